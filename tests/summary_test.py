"""Tests of tests/summary.py, and of what tests/cases.py writes for it."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
import unittest
from unittest import mock
from xml.sax.saxutils import escape, quoteattr

import cases
import summary

PASSES = "cases 1\nbegin Suite.Passes\npassed\n"
RACE = "ThreadSanitizer: data race engine.cpp:12 in kolo::Engine::finish()"


class Summary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.planned, self.reports = [], []

    def add(self, name, *ranks, status="run", output=""):
        """A test that CTest ran, whose ranks wrote these files, None if it should write none."""
        results = self.folder / name
        self.planned.append({"name": name, "properties": [] if ranks == (None,) else [
            {"name": "ENVIRONMENT", "value": ["A=b", f"KOLO_TEST_RESULTS={results}"]}]})
        for rank, text in enumerate(filter(None, ranks)):
            pathlib.Path(f"{results}.{rank}").write_text(text)
        self.reports.append(f"<testcase name={quoteattr(name)} status={quoteattr(status)}>"
                            f"<system-out>{escape(output)}</system-out></testcase>")

    def expect(self, *lines):
        """The printed lines, and the exit status that the sums call for."""
        (self.folder / "tests.json").write_text(json.dumps({"tests": self.planned}))
        (self.folder / "tests.xml").write_text(f"<testsuite>{''.join(self.reports)}</testsuite>")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = summary.main([f"release={self.folder}"])
        self.assertEqual(output.getvalue().splitlines(), list(lines))
        self.assertEqual(status == 0, " 0 failed" in lines[-1] and not lines[-1].startswith("0 "))

    def test_cases_count_each_and_tell_why_they_skip(self):
        self.add("a", PASSES)
        self.add("b", "cases 2\nbegin S.A/two\nskipped one rank: nobody\nbegin S.B\npassed\n")
        self.expect("Skipped:", "  release: b: S.A/two: one rank: nobody",
                    "2 passed, 0 failed, 1 skipped")

    def test_scripts_write_how_their_cases_end(self):
        class Some(unittest.TestCase):
            def test_a_passes(self):
                self.assertNotIn("KOLO_TEST_RESULTS", os.environ)

            def test_b_skips(self):
                self.skipTest("no GPU\nat all")

            def test_c_skips_a_part(self):
                with self.subTest("first"):
                    pass
                with self.subTest("second"):
                    self.skipTest("no shared memory")

            def test_d_fails(self):
                self.fail()

            def test_e_fails_in_a_part(self):
                with self.subTest("first"):
                    raise ValueError

            @unittest.expectedFailure
            def test_f_passes_unexpectedly(self):
                pass

        suite = unittest.defaultTestLoader.loadTestsFromTestCase(Some)
        with mock.patch.dict(os.environ, KOLO_TEST_RESULTS=str(self.folder / "a")), \
                contextlib.redirect_stderr(io.StringIO()):
            self.assertFalse(cases.run(suite))
        text = (self.folder / "a.0").read_text().replace(f"{Some.__qualname__}.", "")
        self.assertEqual(text, """\
cases 6
begin test_a_passes
passed
begin test_b_skips
skipped no GPU
begin test_c_skips_a_part
skipped no shared memory
begin test_d_fails
failed
begin test_e_fails_in_a_part
failed
begin test_f_passes_unexpectedly
failed
""")

    def test_ranks_end_a_case_together(self):
        both = "ranks 2\ncases 3\nbegin A\npassed\nbegin B\n{}\nbegin C\nskipped {}\n"
        self.add("a", both.format("passed", "one"), both.format("failed", "two"), status="fail")
        self.add("b", both.format("passed", "one"), both.format("skipped why", "two"))
        self.add("c", both.format("passed", "one"), both.replace("B", "D").format("passed", "two"))
        self.expect("Skipped:", "  release: a: C: one", "  release: b: C: one",
                    "  release: c: C: one", "Failed:", "  release: a: B",
                    "  release: b: B: skipped on some ranks only",
                    "  release: c: ended with status 0 in B, D after 2 of 3 cases",
                    "3 passed, 3 failed, 3 skipped")

    def test_what_ends_early_is_a_failure_that_tells_where(self):
        self.add("a", PASSES.replace("1", "3"))
        self.add("b", "cases 2\nbegin S.A\npassed\nbegin S.B\n", status="fail")
        self.add("c", "cases 2\nbegin S.A\nfailed\nbegin S.B\n", status="fail")
        self.add("d", f"ranks 2\n{PASSES}", status="fail")
        self.add("e")
        self.expect("Failed:", "  release: a: ended with status 0 after 1 of 3 cases",
                    "  release: b: failed in S.B after 1 of 2 cases", "  release: c: S.A",
                    "  release: c: failed in S.B after 1 of 2 cases",
                    "  release: d: failed with results of 1 of 2 ranks",
                    "  release: e: ended with status 0 without a case",
                    "3 passed, 6 failed, 0 skipped")

    def test_what_has_no_cases_counts_as_one(self):
        self.add("a", None, output="done\n")
        self.add("b", None, status="fail")
        self.expect("Failed:", "  release: b: failed", "1 passed, 1 failed, 0 skipped")

    def test_what_skips_altogether_has_passed_nothing(self):
        self.add("a", "ranks 2\ncases 3\nskipped no GPU\n", "ranks 2\ncases 3\nskipped no GPU\n",
                 status="notrun")
        self.add("b", None, status="notrun", output="looking\nskipped: no clang-format\n")
        self.add("c", status="notrun", output="skipped: no MPICH\n")
        self.expect("Skipped:", "  release: a: no GPU", "  release: b: no clang-format",
                    "  release: c: no MPICH", "0 passed, 0 failed, 3 skipped")

    def test_a_filter_without_matches_is_a_failure(self):
        self.add("a", PASSES)
        self.add("b", "cases 0\n", status="fail")
        self.expect("Failed:", "  release: b: failed without a case",
                    "1 passed, 1 failed, 0 skipped")

    def test_a_skip_without_a_reason_is_a_failure(self):
        self.add("a", "cases 1\nbegin S.A\nskipped \n")
        self.add("b", None, status="notrun", output="an old log\n")
        self.expect("Failed:", "  release: a: S.A: skipped without a reason",
                    "  release: b: skipped without a reason", "0 passed, 2 failed, 0 skipped")

    def test_a_sanitizers_report_is_told(self):
        self.add("a", PASSES, status="fail", output=f"==7== SUMMARY: {RACE}\n")
        self.expect("Failed:", f"  release: a: {RACE}", "1 passed, 1 failed, 0 skipped")

    def test_a_report_that_is_missing_or_short_is_a_failure(self):
        self.expect("Failed:", "  release: no test ran", "0 passed, 1 failed, 0 skipped")
        self.add("a", PASSES)
        self.reports.clear()
        self.expect("Failed:", "  release: a: did not run", "0 passed, 1 failed, 0 skipped")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.assertEqual(summary.main(["release=/no/such/folder"]), 1)
        self.assertIn("no report of its tests", output.getvalue())


cases.main()
