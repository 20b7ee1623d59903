"""Base class of the tests that run kolo-bench; their arguments: <kolo-bench> <mpirun>... <flag for
ranks>"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM, *LAUNCH = sys.argv[1:]
TINY = "--min 1KB --max 16KB --factor 16 --iterations 2 --warmup 1 --rounds 3".split()
LONG = "--min 1MB --max 1MB --rounds 3001".split()
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
FIELDS = {"bytes", "count", "algorithm", "placement", "min_us", "median_us", "p99_us", "host_us",
          "algbw_gbps", "busbw_gbps", "wrong", "cpu_s", "ratio", "ratio_low", "ratio_high"}


def bus_factor(collective, ranks):
    """The bytes that must pass each rank's link at least, per byte of the tensor."""
    if collective in ("allreduce", "gradients"):
        return 2 * (ranks - 1) / ranks
    return 1 if collective == "broadcast" else (ranks - 1) / ranks


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.temporary = os.path.join(self.folder, "tmp")
        os.mkdir(self.temporary)
        self.environment = {**os.environ, "TMPDIR": self.temporary}

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_bench(self, *arguments, launch=(), **variables):
        """Runs it without a terminal, and with an empty standard input."""
        return subprocess.run([*launch, PROGRAM, *arguments], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              start_new_session=True, check=False,
                              env={**self.environment, **variables})

    def measure(self, *arguments, launch=()):
        result = self.run_bench(*arguments, "--json", self.path("json"), launch=launch)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertTrue(report["rows"])
        for row in report["rows"]:
            self.assertLessEqual(FIELDS, row.keys())
            self.assertEqual(row["wrong"], 0, row)
            self.assertGreater(row["min_us"], 0)
            if report["device"] == "cpu":
                self.assertEqual(row["host_us"], row["median_us"])
            self.assertGreater(row["cpu_s"], 0)
            self.assertEqual(row["bytes"], row["count"] * ELEMENT_BYTES[report["dtype"]])
            self.assertAlmostEqual(row["algbw_gbps"] * row["median_us"] * 1e3, row["bytes"], 3)
            self.assertAlmostEqual(
                row["busbw_gbps"],
                row["algbw_gbps"] * bus_factor(report["collective"], report["ranks"]))
        self.check_ratios(report)
        return report

    def check_ratios(self, report):
        """Each ratio is the median over rounds of time / reference time. The medians and minima of
        both times give two bounds for it."""
        for size in {row["bytes"] for row in report["rows"]}:
            rows = [row for row in report["rows"] if row["bytes"] == size]
            references = [row for row in rows if row["ratio"] == row["ratio_low"] == 1
                          and row["is_baseline"]]
            for row in rows if report["baseline"] else []:
                self.assertTrue(references, rows)
                self.assertTrue(any(
                    row["min_us"] / reference["median_us"] <= row["ratio"] * (1 + 1e-9)
                    and row["ratio"] <= row["median_us"] / reference["min_us"] * (1 + 1e-9)
                    for reference in references), (row, references))
                self.assertLessEqual(row["ratio_low"], row["ratio"])
                self.assertLessEqual(row["ratio"], row["ratio_high"])

    def assert_nothing_is_left(self):
        self.assertEqual(glob.glob(os.path.join(self.temporary, "kolo-bench*")), [])
