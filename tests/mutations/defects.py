#!/usr/bin/env python3
"""Checks that tests detect defects: applies each to a copy of the sources, one at a time, and
expects the test that its patch names to fail, and to pass without it.

    tests/mutations/defects.py [--suite defects|training] [--jobs 2] [--build FOLDER] [NAME...]

defects: bugs that Kolo once had. training: faults planted in the training layer, src/torch.

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
import time

from attempts import try_all

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
LONGEST_S = 300
LONGEST_OF_ONE_TEST_S = 120  # for those under mpirun, where most defects hang
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1", "GTEST_COLOR": "no"}


class Defect:
    def __init__(self, patch):
        self.name = patch.stem
        self.text = patch.read_text()
        found_by = re.search(r"^Found by: *(.+)$", self.text, re.MULTILINE)
        if not found_by:
            sys.exit(f"{patch}: it has no line 'Found by: <program> …'")
        self.found_by = found_by[1]
        self.files = re.findall(r"^\+\+\+ b/(\S+)", self.text, re.MULTILINE)
        self.program, *words = found_by[1].split()
        self.settings = dict(word[4:].split("=", 1) for word in words if word.startswith("env="))
        ranks = [int(word[3:]) for word in words if word.startswith("np=")]
        self.ranks = ranks[0] if ranks else 0
        self.arguments = [word for word in words if not word.startswith(("env=", "np="))]

    def apply(self, tree, *options):
        return subprocess.run(["git", "apply", *options], cwd=tree, input=self.text, text=True,
                              env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    def passes(self, build):
        """Whether the test passes, and its first failure."""
        launcher = ["mpirun", "--oversubscribe", "-np", str(self.ranks)] if self.ranks else []
        limit = [f"--longest-test={LONGEST_OF_ONE_TEST_S}"] if self.ranks else []
        try:
            run = subprocess.run(
                [*launcher, build / "tests" / self.program, *limit, *self.arguments],
                env={**os.environ, **ENVIRONMENT, **self.settings},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired:
            return False, f"hangs for {LONGEST_S} s"
        if run.returncode == 0 and re.search(r"^\[  PASSED  \] 0 tests", run.stdout, re.MULTILINE):
            return True, "no such test, or it was skipped"
        if failed := re.search(r"^\[  FAILED  \] ([^\s,]+)", run.stdout, re.MULTILINE):
            return run.returncode == 0, failed[1]
        if hung := re.search(r"watchdog: (\S+) has run for more than .*? s", run.stdout):
            return False, hung[0]
        last_line = (run.stdout.strip().splitlines() or [""])[-1]
        return run.returncode == 0, f"exit status {run.returncode}: {last_line[:90]}"


class Copy:
    """A copy of the sources with a build folder of its own."""

    def __init__(self, place, defects):
        self.tree, self.build = place, place / "build" / "release"
        self.tree.mkdir(parents=True, exist_ok=True)
        copy_sources(self.tree)
        self.compile_alone(sorted({file for defect in defects for file in defect.files}))
        # The same flags and folder as the preset release, so that ccache has most objects.
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja",
                        "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_UNITY_BUILD=ON",
                        "-DKOLO_BUILD_EXAMPLES=OFF"],
                       stdout=subprocess.DEVNULL, check=True)

    def compile_alone(self, files):
        """Compiles patched files separately, outside of unity units, and quickly."""
        text = (ROOT / "CMakeLists.txt").read_text()
        lists = self.tree / "CMakeLists.txt"
        paths = " ".join(str(self.tree / file) for file in files if file.endswith(".cpp"))
        unite = "kolo_unite_sources("  # does not unite sources with their own options
        text = text.replace(unite, f"""set_source_files_properties({paths}
  TARGET_DIRECTORY kolo_core kolo_checkpoint kolo_test_support
  PROPERTIES COMPILE_OPTIONS "-O1;-w" SKIP_PRECOMPILE_HEADERS ON)
{unite}""")
        if lists.read_text() != text:
            lists.write_text(text)

    def compiles(self, programs, jobs, output=subprocess.DEVNULL):
        return subprocess.run(["cmake", "--build", self.build, "--parallel", str(jobs),
                               "--target", *programs], stdout=output, stderr=output,
                              check=False).returncode == 0

    def problem_of(self, defect):
        """The problem, if any, and the first failure of the test."""
        if not defect.apply(self.tree):
            return "does not apply", ""
        try:
            if not self.compiles([defect.program], 1):
                return "does not compile", ""
            passes, said = defect.passes(self.build)
            return (f"GOES UNNOTICED ({said})" if passes else None), said
        finally:
            defect.apply(self.tree, "--reverse")


def copy_sources(tree):
    """Copies changed files only: the others keep their times, and their objects."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True,
                            check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, tree / name
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def failures_without_defects(copy, defects):
    """The first failure of each defect's test that fails without any defect."""
    said = {}
    for found_by, defect in {defect.found_by: defect for defect in defects}.items():
        passes, text = defect.passes(copy.build)
        if not passes or "no such test" in text:
            said[found_by] = text
    return {defect.name: said[defect.found_by] for defect in defects if defect.found_by in said}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="defects to try; all if none is given")
    parser.add_argument("--suite", choices=["defects", "training"], default="defects")
    parser.add_argument("--jobs", type=int, default=2, help="defects to try at the same time")
    parser.add_argument("--build", type=pathlib.Path,
                        help="keeps sources and objects there, for the next time")
    arguments = parser.parse_args()
    defects = [Defect(patch) for patch in sorted((FOLDER / arguments.suite).rglob("*.patch"))
               if not arguments.names or patch.stem in arguments.names]
    if not defects:
        parser.error(f"tests/mutations/{arguments.suite} has no patch of these names")
    programs = sorted({defect.program for defect in defects})
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kolo-defects-") as folder:
        place = (arguments.build or pathlib.Path(folder)).resolve()
        copies = []
        for job in range(min(arguments.jobs, len(defects))):
            copies.append(Copy(place / str(job), defects))
            if not copies[-1].compiles(programs, arguments.jobs, output=sys.stderr):
                sys.exit("the tests do not compile without any defect")
        failures = failures_without_defects(copies[0], defects) if copies else {}
        for name, said in failures.items():
            print(f"{name:48} the test does not pass without the defect ({said})", flush=True)
        sound = [defect for defect in defects if defect.name not in failures]
        unnoticed = len(failures)
        unnoticed += try_all(copies, sound, lambda defect: defect.name, Copy.problem_of)
    print(f"{len(defects)} defects, {unnoticed} not noticed, {time.monotonic() - begin:.0f} s")
    return 1 if unnoticed or not defects else 0


if __name__ == "__main__":
    sys.exit(main())
