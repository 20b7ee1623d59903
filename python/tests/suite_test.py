"""Tests of suite.py: cases that end in every way on one of two ranks."""

import contextlib
import io
import os
import signal
import sys
import unittest

import suite
import cases  # found by suite

WAYS = {
    "passes": lambda: ("passed", ""),
    "skips": lambda: ("skipped", "no GPU"),
    "fails": lambda: ("failed", "in\ntwo lines"),
    "crashes": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exits": lambda: os._exit(0),
    "hangs": signal.pause,
}


def run_all(*names):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = suite.run_all("ways", names, 2, [__file__, "--cases"], {})
    return status, output.getvalue().splitlines()


class SuiteTest(unittest.TestCase):
    def test_all_that_one_rank_does_is_told(self):
        self.assertEqual(run_all("crashes", "passes", "fails", "exits", "skips", "hangs"), (1, [
            "failed: crashes: a rank has ended; mpirun's status is 137",
            "failed: fails: 'in\\ntwo lines'",
            "failed: exits: a rank has ended; mpirun's status is 0",
            "skipped: skips: 'no GPU'",
            "failed: hangs: not ended within 2 s",
            "ways, 2 ranks: 1 passed, 4 failed, 1 skipped"]))

    def test_no_case_is_a_failure(self):
        self.assertEqual(run_all()[0], 1)
        self.assertEqual(run_all("skips")[0], 1)
        self.assertEqual(run_all("skips", "passes")[0], 0)


if __name__ == "__main__":
    if "--cases" in sys.argv:
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        suite.run_rank(rank, sys.argv[2:],
                       lambda name: WAYS[name if rank else "passes"](), limit=2)
    cases.main()
