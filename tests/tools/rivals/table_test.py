"""Tests of the tables of compare.py."""

import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[2]))
import cases  # noqa: E402
from table import HEAD, Run, failure_of, summary, table  # noqa: E402


def run(case, number, with_library, without):
    return Run("gpt", case, number, {"step_ms_with": with_library, "step_ms_without": without,
                                     "efficiency": without / with_library})


class Table(unittest.TestCase):
    def rows(self, labels, runs):
        head, rows = table(labels, runs, "alone").rsplit("---|\n", 1)
        self.assertEqual(head + "---|", HEAD)
        return rows.splitlines()

    def test_median_and_range_over_the_rounds(self):
        runs = [run("alone", 1, 90.0, 90.0), run("alone", 2, 80.0, 80.0),
                run("alone", 3, 50.0, 50.0), run("x", 1, 100.0, 80.0), run("x", 2, 200.0, 40.0),
                run("x", 3, 125.0, 50.0)]
        self.assertEqual(self.rows({"x": ("X", "TCP"), "alone": ("PyTorch alone", "none")}, runs), [
            "| X | TCP | 125.0 (100.0 to 200.0) | 50.0 (40.0 to 80.0) | 0.400 (0.200 to 0.800) "
            "| 0.400 (0.400 to 0.900) |",
            "| PyTorch alone | none | 80.0 (50.0 to 90.0) | 80.0 (50.0 to 90.0) "
            "| 1.000 (1.000 to 1.000) | 1.000 (1.000 to 1.000) |"])

    def test_one_round_has_no_range_and_may_lack_what_it_is_compared_with(self):
        self.assertEqual(self.rows({"x": ("X", "TCP")}, [run("x", 1, 100.0, 80.0)]),
                         ["| X | TCP | 100.0 | 80.0 | 0.800 | not known |"])

    def test_a_case_that_fails_says_why(self):
        failed = Run("gpt", "x", 2, failure="ImportError: no a|b")
        self.assertEqual(self.rows({"x": ("X", "TCP")}, [failed]),
                         ["| X | TCP | did not run: ImportError: no a/b | | | |"])
        self.assertEqual(self.rows({"x": ("X", "TCP")}, [run("x", 1, 100.0, 80.0), failed]),
                         ["| X (1 of 2 runs) | TCP | 100.0 | 80.0 | 0.800 | not known |"])
        self.assertEqual(self.rows({"x": ("X", "TCP")}, []),
                         ["| X | TCP | did not run: not run | | | |"])


class Summary(unittest.TestCase):
    LABELS = {"ddp": ("DDP", "TCP"), "ddp-static": ("DDP, static graph", "TCP"),
              "kolo": ("Kolo", "memory"), "kolo-tcp": ("Kolo, over TCP", "TCP")}

    def test_the_best_way_of_all_rounds_and_who_leads(self):
        runs = {"GPT": [run("ddp", 1, 100, 70), run("ddp", 2, 100, 80), run("ddp", 3, 100, 99),
                        run("ddp-static", 1, 100, 79), run("kolo", 1, 100, 90)],
                "ResNet": [run("ddp", 1, 100, 80), run("ddp-static", 1, 100, 95),
                           run("kolo", 1, 100, 90)]}
        rows = {"DDP": ["ddp", "ddp-static"], "Kolo": ["kolo"]}
        self.assertEqual(summary(rows, self.LABELS, runs).splitlines(), [
            "| | data move by | GPT | ResNet |", "|---|---|---|---|",
            "| DDP | TCP | 0.800, as it comes | 0.950, static graph |",
            "| Kolo | memory | 0.900 | 0.900 |", "",
            "- GPT: Kolo is ahead, at its best 0.900 (Kolo) against 0.800 (DDP)",
            "- ResNet: Kolo is behind, at its best 0.900 (Kolo) against 0.950 (DDP, static graph)"])

    def test_what_was_not_run_is_not_left_out(self):
        failed = Run("gpt", "kolo-tcp", 1, failure="no port")
        rows = {"DDP": ["ddp"], "Kolo, over TCP": ["kolo-tcp"]}
        self.assertEqual(
            summary(rows, self.LABELS, {"GPT": [run("ddp", 1, 100, 80), failed]}).splitlines()[2:],
            ["| DDP | TCP | 0.800 |", "| Kolo, over TCP | TCP | not run |", "",
             "- GPT: nothing to compare"])


class Failure(unittest.TestCase):
    def test_the_first_error_tells_most(self):
        output = ("Traceback (most recent call last):\n  raise ValueError\n"
                  "torch.cuda.OutOfMemoryError: none left\nerror: later\nmpirun: exited\n\n")
        self.assertEqual(failure_of(output, 1), "torch.cuda.OutOfMemoryError: none left")
        self.assertEqual(failure_of("error: the parameters differ\nmpirun", 1),
                         "error: the parameters differ")

    def test_otherwise_the_status_and_the_last_line_do(self):
        self.assertEqual(failure_of("a\nmpirun: signal 11\n\n", 139),
                         "exit status 139: mpirun: signal 11")
        self.assertEqual(failure_of("", 2), "exit status 2")


cases.main()
