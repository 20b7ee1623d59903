#!/usr/bin/env python3
"""Proves that tests notice defects: puts each into a copy of the sources, one at a time, and
expects the test that its patch names to fail, and to pass without it.

    tests/mutations/defects.py [--suite defects|training] [--build FOLDER] [NAME...]

defects: those that Kolo once had. training: faults planted in the training layer, src/torch.

A patch begins with lines in plain text:
    What: the defect in a sentence
    Found by: <program> [np=<ranks>] [env=<NAME>=<value>]... [<argument>...]

Exit code 1: a defect goes unnoticed, or its patch does not apply or compile.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
LONGEST_S = 300


class Defect:
    def __init__(self, patch):
        self.name = patch.stem
        self.text = patch.read_text()
        found_by = re.search(r"^Found by: *(.+)$", self.text, re.MULTILINE)
        if not found_by:
            sys.exit(f"{patch}: it has no line 'Found by: <program> …'")
        self.program, *words = found_by[1].split()
        self.settings = dict(word[4:].split("=", 1) for word in words if word.startswith("env="))
        ranks = [int(word[3:]) for word in words if word.startswith("np=")]
        self.ranks = ranks[0] if ranks else 0
        self.arguments = [word for word in words if not word.startswith(("env=", "np="))]

    def apply(self, tree, *options):
        return subprocess.run(["git", "apply", *options], cwd=tree, input=self.text, text=True,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    def passes(self, build):
        """Whether the test passes, and what failed first."""
        launcher = ["mpirun", "--oversubscribe", "-np", str(self.ranks)] if self.ranks else []
        try:
            run = subprocess.run(
                [*launcher, build / "tests" / self.program, *self.arguments],
                env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **self.settings},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired:
            return False, f"hangs for {LONGEST_S} s"
        if run.returncode == 0 and re.search(r"^\[  PASSED  \] 0 tests", run.stdout, re.MULTILINE):
            return True, "no such test, or it was skipped"
        failed = re.search(r"^\[  FAILED  \] ([^\s,]+)", run.stdout, re.MULTILINE)
        return run.returncode == 0, failed[1] if failed else f"exit status {run.returncode}"


def compile_program(build, program):
    return subprocess.run(["cmake", "--build", build, "--parallel", "2", "--target", program],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def problem_of(defect, tree, build):
    """What is wrong, if anything; and what the test said."""
    if not compile_program(build, defect.program):
        return "the test does not compile", ""
    passes, said = defect.passes(build)
    if not passes or "no such test" in said:
        return f"the test does not pass without the defect ({said})", ""
    if not defect.apply(tree):
        return "does not apply", ""
    try:
        if not compile_program(build, defect.program):
            return "does not compile", ""
        passes, said = defect.passes(build)
        return ("GOES UNNOTICED" if passes else None), said
    finally:
        defect.apply(tree, "--reverse")


def copy_sources(tree):
    """Files that are the same already keep their time, and their objects."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True,
                            check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, tree / name
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="defects to try; all if none is given")
    parser.add_argument("--suite", choices=["defects", "training"], default="defects")
    parser.add_argument("--build", type=pathlib.Path,
                        help="keeps sources and objects there, for the next time")
    arguments = parser.parse_args()
    defects = [Defect(patch) for patch in sorted((FOLDER / arguments.suite).glob("*.patch"))
               if not arguments.names or patch.stem in arguments.names]
    if not defects:
        parser.error(f"tests/mutations/{arguments.suite} has no patch of these names")
    with tempfile.TemporaryDirectory(prefix="kolo-defects-") as folder:
        place = (arguments.build or pathlib.Path(folder)).resolve()
        tree, build = place / "sources", place / "build"
        tree.mkdir(parents=True, exist_ok=True)
        copy_sources(tree)
        subprocess.run(["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DKOLO_WITH_CUDA=OFF",
                        "-DKOLO_BUILD_EXAMPLES=OFF", "-DCMAKE_BUILD_TYPE=Release",
                        "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"],
                       stdout=subprocess.DEVNULL, check=True)
        unnoticed = 0
        for defect in defects:
            problem, said = problem_of(defect, tree, build)
            print(f"{defect.name:48} {problem or said}", flush=True)
            unnoticed += problem is not None
    print(f"{len(defects)} defects, {unnoticed} not noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
