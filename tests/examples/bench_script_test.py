"""Runs examples/bench.sh in a copy of its folders, with an existing build of kolo-bench:

    bench_script_test.py <kolo-bench>
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(sys.argv[1]).resolve()
TINY = "--max 4KB --min 4KB --iterations 2 --warmup 1 --rounds 3".split()
# Records its arguments, and builds nothing.
FAKE_CMAKE = """#!/bin/sh
echo "$@" >>"$CMAKE_CALLS"
case "$1" in --version) echo "cmake version 3.25.0" ;; *) echo "-- Kolo: nothing" ;; esac
"""


class BenchScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "kolo")
        for source in (*ROOT.glob("cmake/*.sh"), ROOT / "examples/bench.sh"):
            copy = self.root / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
        programs = self.root / "build/bench/examples"
        programs.mkdir(parents=True)
        for program in ("kolo-bench", "kolo-bench-mpi"):
            (programs / program).symlink_to(PROGRAM.with_name(program))
        tools = pathlib.Path(folder.name, "tools")
        tools.mkdir()
        cmake = tools / "cmake"
        cmake.write_text(FAKE_CMAKE)
        cmake.chmod(0o755)
        self.calls = pathlib.Path(folder.name, "calls")
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
                            "CMAKE_CALLS": str(self.calls)}

    def run_script(self, *arguments):
        result = subprocess.run([self.root / "examples/bench.sh", *arguments], text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                env=self.environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_help_builds_nothing(self):
        self.assertIn("Usage: examples/bench.sh", self.run_script("--help"))
        self.assertFalse(self.calls.exists())

    def test_prints_the_allreduce_table_beside_plain_mpi_and_draws_it(self):
        text = self.run_script(*TINY)
        self.assertIn("--preset bench", self.calls.read_text())
        self.assertIn("allreduce", text)
        self.assertIn("MPI_Allreduce", text)
        plot = self.root / "build/bench/bench.svg"
        self.assertIn(f"plot: {plot}", text)
        self.assertTrue(xml.etree.ElementTree.parse(plot).getroot().tag.endswith("svg"))

    def test_passes_flags_on(self):
        plot = self.root / "own.svg"
        text = self.run_script("broadcast", *TINY, "--plot", str(plot))
        self.assertIn("MPI_Bcast", text)
        self.assertTrue(plot.exists())
        self.assertNotIn("plot:", text)


if __name__ == "__main__":
    cases.main()
