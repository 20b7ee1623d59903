#!/usr/bin/env python3
"""Proves that the protocol gate finds faults: applies every patch of this folder, one at a time, to a
copy of the coordinator's sources, builds the gate and expects it to fail.

    tests/mutations/run.py [--seeds 10000] [--jobs 2] [NAME...]

Prints which seed found which mutation. Exit code 1: a mutation survives, does not apply or does not
compile. The gate without any patch must pass the same seeds.
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
CORE = ["coordinator", "coordinator_outcome", "header", "history", "negotiation", "request",
        "request_table", "tree_board"]
SIMULATOR = ["grammar_disturbances", "oracle", "oracle_errors", "oracle_finish", "oracle_outcomes",
             "oracle_promptness", "random_scenario", "simulation", "simulation_rank"]
SOURCES = ([f"src/runtime/{name}.cpp" for name in CORE] +
           [f"tests/support/{name}.cpp" for name in SIMULATOR] +
           ["src/base/names.cpp", "ops/names.cpp", "tests/tools/protocol_gate.cpp"])
LONGEST_S = 600


def compile_source(tree, source, folder="objects"):
    target = tree / folder / (source.replace("/", "_") + ".o")
    target.parent.mkdir(exist_ok=True)
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", f"-I{tree}/include",
               f"-I{tree}/src", f"-I{tree}/tests", "-c", str(tree / source), "-o",
               str(target)]
    subprocess.run(command, check=True)
    return target


def link(tree, objects, gate):
    subprocess.run([os.environ.get("CXX", "g++"), "-o", str(gate), *map(str, objects), "-pthread"],
                   check=True)


def run_gate(gate, arguments):
    """The gate's exit code and the first seed that failed."""
    try:
        done = subprocess.run([str(gate), "--seeds", str(arguments.seeds), "--jobs",
                               str(arguments.jobs)], capture_output=True, text=True,
                              timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return 1, f"none: the core hangs for {LONGEST_S} s"
    failed = re.search(r"FAILED seed (\d+): (.*)", done.stdout)
    crashed = re.search(r"crashed in seed\s+(\d+)", done.stdout)
    if failed:
        return done.returncode, f"{failed[1]}: {failed[2][:90]}"
    return done.returncode, f"{crashed[1]}: crash" if crashed else "no seed"


def try_mutation(tree, objects, patch, arguments):
    """None when the mutation was found, else what went wrong; and where it was found."""
    text = patch.read_text()
    sources = re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE)
    saved = {source: (tree / source).read_text() for source in sources}
    try:
        applied = subprocess.run(["patch", "-p1", "--fuzz=0", "--silent", "--force"], cwd=tree,
                                 input=text, capture_output=True, text=True, check=False)
        if applied.returncode != 0:
            return "does not apply", ""
        mutated = dict(objects)
        for source in sources:
            mutated[source] = compile_source(tree, source, "mutated")
        gate = tree / "mutated_gate"
        link(tree, mutated.values(), gate)
        code, where = run_gate(gate, arguments)
        return (None if code != 0 else "SURVIVES"), where
    except subprocess.CalledProcessError:
        return "does not compile", ""
    finally:
        for source, content in saved.items():
            (tree / source).write_text(content)
            (tree / (source + ".orig")).unlink(missing_ok=True)
            (tree / (source + ".rej")).unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="mutations to try; all if none is given")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    patches = [patch for patch in sorted(FOLDER.glob("*.patch"))
               if not arguments.names or patch.stem in arguments.names]

    with tempfile.TemporaryDirectory(prefix="kolo-mutations-") as folder:
        tree = pathlib.Path(folder)
        for part in ("include", "src", "ops", "tests/support", "tests/tools"):
            shutil.copytree(ROOT / part, tree / part)
        objects = {source: compile_source(tree, source) for source in SOURCES}
        gate = tree / "gate"
        link(tree, objects.values(), gate)
        code, where = run_gate(gate, arguments)
        if code != 0:
            print(f"the core fails without any mutation: {where}")
            return 1
        survivors = 0
        for patch in patches:
            problem, where = try_mutation(tree, objects, patch, arguments)
            print(f"{patch.stem:40} {problem or 'seed ' + where}", flush=True)
            survivors += problem is not None
        print(f"{len(patches)} mutations, {survivors} not found")
        return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
