#!/usr/bin/env python3
"""Every public function of the training layer is a call of the random training programs.

Reads the public headers, and looks for calls in calls.cpp. A name that is not called there is an
error unless it is listed below with a reason.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
INCLUDE = ROOT / "include/kolo"

# Header, class, and how calls.cpp refers to an object of it.
CLASSES = [
    ("torch/distributed_optimizer.hpp", "DistributedOptimizer",
     r"(optimizer\((?:[^()]|\([^()]*\))*\)|own)\."),
    ("extras/accelerator.hpp", "Accelerator", r"accelerator(\(\)\.|_->)"),
    ("torch/grad_scaler.hpp", "GradScaler", r"(scaler\(\)|scaler_)\."),
]
FUNCTIONS = ["torch/checkpoint.hpp", "torch/parameter_sync.hpp"]
ELSEWHERE = {
    "batches": "random programs make their own batches: accelerator_test",
    "print": "writes a line: accelerator_test",
    "broadcast_optimizer_state": "needs optimizers that are not sharded yet: parameter_sync_test",
}


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def body_of(text, name):
    """The text between the braces of the class."""
    begin = re.search(rf"\bclass {name}\b[^;{{]*{{", text).end()
    depth, end = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[begin:end]


def public_methods(body, name):
    """Names of functions in the public part, without those of nested classes."""
    public = body[body.index("public:"):]
    public = re.split(r"\n private:", public)[0]
    while re.search(r"\b(class|struct)\b[^;{}]*{[^{}]*(?:{[^{}]*}[^{}]*)*}", public):
        public = re.sub(r"\b(class|struct)\b[^;{}]*{[^{}]*(?:{[^{}]*}[^{}]*)*}", "", public)
    names = re.findall(r"^  (?! )(?:[\w:<>&*, ]+[ &*])(\w+)\(", public, flags=re.MULTILINE)
    return sorted(set(names) - {name, "operator"})


def functions(text):
    return sorted(set(re.findall(r"^[\w:<>]+ (\w+)\(", text, flags=re.MULTILINE)))


def main():
    sources = ["calls.cpp", "rank.cpp", "rank.hpp"]
    here = pathlib.Path(__file__).parent
    calls = "\n".join(without_comments((here / name).read_text()) for name in sources)
    missing, count = [], 0
    for header, name, receiver in CLASSES:
        body = body_of(without_comments((INCLUDE / header).read_text()), name)
        for method in public_methods(body, name):
            count += 1
            if method not in ELSEWHERE and not re.search(receiver + method + r"\(", calls):
                missing.append(f"{name}::{method}()")
    for header in FUNCTIONS:
        for function in functions(without_comments((INCLUDE / header).read_text())):
            count += 1
            if function not in ELSEWHERE and not re.search(rf"\b{function}\(", calls):
                missing.append(f"{function}()")
    for name in missing:
        print(f"{name} is public, and no call of random training programs: add it to calls.cpp")
    print(f"{count} functions, {len(missing)} missing")
    return 1 if missing or count < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
