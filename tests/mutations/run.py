#!/usr/bin/env python3
"""Checks that tests find faults: applies patches, one at a time, to a copy of the sources, builds
the test that must find them and expects it to fail.

    tests/mutations/run.py [--suite protocol] [--seeds 10000] [--jobs 2] [NAME...]
    tests/mutations/run.py --suite algorithms [--jobs 2] [NAME...]
    tests/mutations/run.py --suite device [--jobs 2] [NAME...]

protocol: those of protocol/, in the coordinator; found by the protocol gate.
algorithms: those of algorithms/, in the collectives of ops/; found by their tests.
device: those of device/, in the order of work on GPUs; found by the tests on the fake GPUs.

Prints which seed or test found which mutation. Exit code 1: a mutation survives, does not apply or
does not compile. Without any patch the test must pass.
"""
import argparse
import concurrent.futures
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


def sources_in(folder, pattern="**/*.cpp"):
    """Without those that need CUDA, or what CMake generates."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(pattern)
                  if not re.match("build_info|cuda_|nccl_", path.name))


LIBRARY = [source for folder in ("compression", "ops", "src/base", "src/comm", "src/runtime")
           for source in sources_in(folder)]
SUPPORT = ["tests/runtime/values.cpp"] + [
    source for group in ("contract", "support/fake_world", "support/gpu")
    for source in sources_in(f"tests/{group}", "*.cpp")]
LIBRARIES = ["-lhwy", "-pthread"] + subprocess.run(
    ["mpicc", "--showme:link"], capture_output=True, text=True, check=False).stdout.split()
GTEST = ["-lgtest", "-lgtest_main", *LIBRARIES]


class Protocol:
    """Tests the coordinator with the protocol gate."""
    patches = FOLDER / "protocol"
    sources = LIBRARY + sources_in("tests/support/protocol") + ["tests/tools/protocol_gate.cpp"]
    libraries = LIBRARIES

    @staticmethod
    def command(program, arguments):
        return [program, "--seeds", str(arguments.seeds), "--jobs", "1"]

    @staticmethod
    def finding(output):
        if failed := re.search(r"FAILED seed (\d+): (.*)", output):
            return f"seed {failed[1]}: {failed[2][:90]}"
        crashed = re.search(r"crashed in seed\s+(\d+)", output)
        return f"seed {crashed[1]}: crash" if crashed else "no seed"


class Algorithms:
    """Tests the collectives with their contract suites, and what these do not reach."""
    patches = FOLDER / "algorithms"
    sources = LIBRARY + SUPPORT + [
        f"tests/ops/{name}_test.cpp" for name in
        ("adasum", "adasum_kernels", "algorithms", "compressed_reductions", "hierarchical",
         "sub_communicator", "traffic", "window_segments", "window_slots")]
    libraries = GTEST

    @staticmethod
    def command(program, _):
        return [program, "--gtest_fail_fast"]

    @staticmethod
    def finding(output):
        """The first test that failed, or else the last one that started."""
        if failed := re.search(r"^\[  FAILED  \] ([^\s,]+)", output, re.MULTILINE):
            return failed[1]
        begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
        return begun[-1] if begun else "no test"


class Device(Algorithms):
    """Tests what is launched on GPUs, when, and in which order."""
    patches = FOLDER / "device"
    sources = LIBRARY + SUPPORT + [
        f"tests/runtime/{name}_test.cpp" for name in
        ("api/allreduce", "api/collectives", "api/join", "api/process_set",
         "api/process_set_independence", "device/coded_exchange", "device/device",
         "device/device_buffers", "device/device_errors", "device/device_exchange",
         "device/device_groups", "device/device_life", "device/device_order",
         "device/device_registration", "device/launch_order")]

    @staticmethod
    def command(program, _):
        return [program, "--gtest_fail_fast",
                "--gtest_filter=*Gpu*:*Device*:*CodedExchange*:Launch*"]


SUITES = {"protocol": Protocol, "algorithms": Algorithms, "device": Device}
LONGEST_S = 600  # without any mutation
CCACHE = [ccache] if (ccache := shutil.which("ccache")) else []
MPI_FLAGS = ["-DMPICH_SKIP_MPICXX", "-DOMPI_SKIP_MPICXX"] + subprocess.run(
    ["mpicc", "--showme:compile"], capture_output=True, text=True, check=False).stdout.split()


def compile_source(tree, source, folder="objects"):
    """Compiles with paths relative to the tree, so that ccache reuses other runs' objects."""
    target = tree / folder / (source.replace("/", "_") + ".o")
    target.parent.mkdir(exist_ok=True)
    command = [*CCACHE, os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-I.", "-Iinclude",
               "-Isrc", "-Itests", *MPI_FLAGS, "-c", source, "-o", str(target.relative_to(tree))]
    subprocess.run(command, cwd=tree, env={**os.environ, "CCACHE_NOHASHDIR": "1"},
                   stderr=subprocess.DEVNULL if folder == "mutated" else None, check=True)
    return target


def link(suite, objects, program):
    subprocess.run([os.environ.get("CXX", "g++"), "-o", str(program), *map(str, objects),
                    *suite.libraries], check=True)


def run_test(suite, program, arguments, longest_s):
    """The test's exit code and its first failure."""
    with open(f"{program}.txt", "w+", encoding="utf-8", errors="replace") as output:
        try:
            code = subprocess.run(suite.command(str(program), arguments), stdout=output,
                                  stderr=subprocess.DEVNULL, timeout=longest_s,
                                  check=False).returncode
            ending = ""
        except subprocess.TimeoutExpired:
            code, ending = 1, f", hangs for {longest_s:.0f} s"
        output.seek(0)
        return code, suite.finding(output.read()) + ending


def sources_of(tree, files, sources):
    """The `sources` that are among `files` or include any of them, directly or indirectly."""
    texts = {str(path.relative_to(tree)): path.read_text()
             for part in ("compression", "ops", "src", "tests")
             for path in (tree / part).rglob("*.[ch]pp")}
    reached, last = set(files), set()
    while reached - last:
        includes = [f'#include "{re.sub("^(src|tests)/", "", name)}"' for name in reached - last
                    if name.endswith(".hpp")]
        last = set(reached)
        reached |= {name for name, text in texts.items()
                    if any(include in text for include in includes)}
    return [source for source in sources if source in reached]


def try_mutation(suite, tree, objects, patch, arguments, longest_s):
    """None if the mutation was found, otherwise the problem; and where it was found."""
    text = patch.read_text()
    sources = re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE)
    saved = {source: (tree / source).read_text() for source in sources}
    try:
        applied = subprocess.run(["patch", "-p1", "--fuzz=0", "--silent", "--force"], cwd=tree,
                                 input=text, capture_output=True, text=True, check=False)
        if applied.returncode != 0:
            return "does not apply", ""
        mutated = dict(objects)
        for source in sources_of(tree, sources, objects):
            mutated[source] = compile_source(tree, source, "mutated")
        program = tree / "mutated_test"
        link(suite, mutated.values(), program)
        code, where = run_test(suite, program, arguments, longest_s)
        return (None if code != 0 else "SURVIVES"), where
    except subprocess.CalledProcessError:
        return "does not compile", ""
    finally:
        for source, content in saved.items():
            (tree / source).write_text(content)
            (tree / (source + ".orig")).unlink(missing_ok=True)
            (tree / (source + ".rej")).unlink(missing_ok=True)


def copy_sources(tree):
    for part in ("compression", "include", "ops", "src", "tests/contract", "tests/ops",
                 "tests/runtime", "tests/support", "tests/tools"):
        shutil.copytree(ROOT / part, tree / part)
    subprocess.run(["flatc", "--cpp", "--scoped-enums", "-o", str(tree / "src/runtime/control"),
                    str(tree / "src/runtime/control/wire.fbs")], check=True)
    return tree


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="mutations to try; all if none is given")
    parser.add_argument("--suite", choices=SUITES, default="protocol")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2, help="mutations to try at the same time")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    patches = [patch for patch in sorted(suite.patches.rglob("*.patch"))
               if not arguments.names or patch.stem in arguments.names]
    if not patches:
        parser.error(f"{suite.patches.relative_to(ROOT)} has no patch of these names")
    start = time.monotonic()

    with tempfile.TemporaryDirectory(prefix="kolo-mutations-") as folder:
        trees = [copy_sources(pathlib.Path(folder) / str(job)) for job in range(arguments.jobs)]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            compiled = pool.map(lambda source: compile_source(trees[0], source), suite.sources)
            objects = dict(zip(suite.sources, compiled))
        program = trees[0] / "test"
        link(suite, objects.values(), program)
        begin = time.monotonic()
        code, where = run_test(suite, program, arguments, LONGEST_S)
        longest_s = 30 + 4 * (time.monotonic() - begin)  # failing tests do not take longer
        if code != 0:
            print(f"the sources fail without any mutation: {where}")
            return 1
        survivors = try_all(
            trees, patches, lambda patch: patch.stem,
            lambda tree, patch: try_mutation(suite, tree, objects, patch, arguments, longest_s))
        print(f"{len(patches)} mutations, {survivors} not found, {time.monotonic() - start:.0f} s")
        return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
