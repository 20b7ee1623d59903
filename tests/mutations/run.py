#!/usr/bin/env python3
"""Checks that tests find faults that no mutation tool would plant: in the protocol, and in the
order of work on GPUs. Each patch beside this file is applied to a copy of the sources, one at a
time, and one of the programs of its folder must fail; without any patch all must pass.

    tests/mutations/run.py [NAME...]        # a patch, or a folder; all takes about an hour
    tests/mutations/run.py --check          # every patch applies to the sources; a test

Exit code 1: a fault is not found, or its patch does not apply or compile. Who changes the code
under a patch makes it again, or deletes it with the code that could go wrong.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
COMMANDS = {
    "protocol": [["protocol_gate", "--seeds", "10000", "--jobs", "1"]],
    "device": [["device_test", "--gtest_fail_fast"], ["collectives_test", "--gtest_fail_fast"]],
}
LONGEST_S = 900
FAILURE = re.compile(r"^\[  FAILED  \] [^\s,]+|FAILED seed \d+: .{0,90}|crashed in seed +\d+", re.M)


def apply(patch, tree, *options):
    # Without the ceiling, git would apply to a repository around the tree.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    return subprocess.run(["git", "apply", *options, patch], cwd=tree, env=environment, text=True,
                          capture_output=True, check=False)


def check(patches):
    """Prints the patches that do not apply; how many."""
    said = {patch: apply(patch, ROOT, "--check") for patch in patches}
    stale = [patch for patch, result in said.items() if result.returncode != 0]
    for patch in stale:
        print(f"{patch.relative_to(ROOT)} does not apply: {said[patch].stderr.strip()}")
    return len(stale)


def builds(build, programs, **options):
    return subprocess.run(["cmake", "--build", build, "--target", *programs], check=False,
                          **options).returncode == 0


def failure(build, folder):
    """The first failure of the folder's programs; empty if all pass."""
    for program, *arguments in COMMANDS[folder]:
        try:
            run = subprocess.run([build / "tests" / program, *arguments], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True, errors="replace",
                                 timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired:
            return f"{program} hangs"
        if run.returncode != 0:
            found = FAILURE.search(run.stdout)
            return found[0] if found else f"{program} ends with {run.returncode}"
    return ""


def problem(patch, tree, build):
    """What is wrong with the patch, if anything, and what found it."""
    if apply(patch, tree).returncode != 0:
        return "does not apply", ""
    try:
        programs = [program for program, *_ in COMMANDS[patch.parent.name]]
        if not builds(build, programs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            return "does not compile", ""
        found = failure(build, patch.parent.name)
        return "" if found else "IS NOT FOUND", found
    finally:
        apply(patch, tree, "--reverse")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="patches or folders; all if none is given")
    parser.add_argument("--check", action="store_true", help="only whether patches apply")
    arguments = parser.parse_args()
    patches = [patch for patch in sorted(FOLDER.glob("*/*.patch"))
               if not arguments.names or {patch.stem, patch.parent.name} & {*arguments.names}]
    if not patches:
        parser.error("there is no such patch")
    if arguments.check:
        return 1 if check(patches) else 0
    with tempfile.TemporaryDirectory(prefix="kolo-mutations-") as place:
        tree = pathlib.Path(place) / "kolo"
        build = tree / "build" / "release"  # where ccache knows what other clones have built
        subprocess.run(["git", "clone", "--quiet", ROOT, tree], check=True)
        subprocess.run(["cmake", "--preset", "release", "-DKOLO_WITH_TORCH=OFF",
                        "-DKOLO_BUILD_EXAMPLES=OFF"], cwd=tree, stdout=subprocess.DEVNULL,
                       check=True)
        folders = {patch.parent.name for patch in patches}
        programs = [program for folder in folders for program, *_ in COMMANDS[folder]]
        if not builds(build, programs):
            return 1
        for folder in folders:
            if found := failure(build, folder):
                print(f"the tests of {folder} fail without any fault: {found}")
                return 1
        survivors = 0
        for patch in patches:
            begin = time.monotonic()
            wrong, found = problem(patch, tree, build)
            survivors += bool(wrong)
            print(f"{patch.stem:48} {time.monotonic() - begin:.0f} s  {wrong or found}", flush=True)
    print(f"{len(patches)} faults, {survivors} not found")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
