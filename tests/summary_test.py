"""Tests of tests/summary.py."""

import contextlib
import io
import os
import re
import tempfile
import unittest
from xml.sax.saxutils import escape, quoteattr

import cases
import summary

GOOGLE_TEST = """\
[ RUN      ] Suite.Passes
[       OK ] Suite.Passes (0 ms)
[ RUN      ] Suite.Skips/two
x_test.cpp:12: Skipped
one rank has nobody to ask

[  SKIPPED ] Suite.Skips/two (3 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Suite.Skips/two
"""
FAILS = """\
[ RUN      ] Suite.Fails
x_test.cpp:12: Failure
[  FAILED  ] Suite.Fails, where GetParam() = a: b (1 ms)
[  FAILED  ] Suite.Fails, where GetParam() = a: b
"""
SKIPS_ALL = "x_test.cpp:12: Skipped\nno GPU here: none\n[==========] 0 tests ran.\n"


def run_test(name, output, status="run", inside=""):
    return (f"<testcase name={quoteattr(name)} status={quoteattr(status)}>{inside}"
            f"<system-out>{escape(output)}</system-out></testcase>")


def skipped_test(name, output):
    return run_test(name, output, "notrun", '<skipped message="SKIP_RETURN_CODE=77"/>')


def run_cases(case):
    """The output of cases.py for a TestCase."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
        unittest.TextTestRunner(stream=io.StringIO(), resultclass=cases.Result).run(suite)
    return re.sub(r"\S*<locals>\.", "", output.getvalue())


class Summary(unittest.TestCase):
    def summarize(self, *tests):
        """The exit status and the printed lines."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tests.xml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"<testsuite>{''.join(tests)}</testsuite>")
            with contextlib.redirect_stdout(io.StringIO()) as output:
                status = summary.main([f"release={path}"])
        return status, output.getvalue().splitlines()

    def test_cases_of_google_test_count_each_and_tell_why_they_skip(self):
        self.assertEqual(self.summarize(run_test("a", GOOGLE_TEST)), (0, [
            "Skipped:", "  release: a: Suite.Skips/two: one rank has nobody to ask",
            "1 passed, 0 failed, 1 skipped"]))

    def test_cases_of_scripts_count_each_and_tell_why_they_skip(self):
        class Some(unittest.TestCase):
            def test_a_passes(self):
                pass

            def test_b_skips(self):
                self.skipTest("no GPU\nat all")

            def test_c_skips_a_part(self):
                with self.subTest("first"):
                    pass
                with self.subTest("second"):
                    self.skipTest("no shared memory")

        self.assertEqual(self.summarize(run_test("b", run_cases(Some))), (0, [
            "Skipped:", "  release: b: Some.test_b_skips: no GPU",
            "  release: b: Some.test_c_skips_a_part: no shared memory",
            "1 passed, 0 failed, 2 skipped"]))

    def test_failures_of_scripts_count(self):
        class Bad(unittest.TestCase):
            def test_a_passes(self):
                pass

            def test_b_fails(self):
                self.fail()

            def test_c_fails_in_a_part(self):
                with self.subTest("first"):
                    raise ValueError

        failed = run_test("c", run_cases(Bad), "fail", '<failure message=""/>')
        self.assertEqual(self.summarize(failed), (1, [
            "Failed:", "  release: c: Bad.test_b_fails", "  release: c: Bad.test_c_fails_in_a_part",
            "1 passed, 2 failed, 0 skipped"]))

    def test_what_skips_altogether_has_passed_nothing(self):
        class Nothing(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                raise unittest.SkipTest("nothing to see")

            def test_a(self):
                pass

        status, lines = self.summarize(
            run_test("d", run_cases(Nothing)),
            skipped_test("e", "[  SKIPPED ] package: No module named 'numpy'\n"),
            skipped_test("f", SKIPS_ALL), skipped_test("g", "skipped: no clang-format\n"))
        self.assertEqual(lines, [
            "Skipped:", "  release: d: Nothing: nothing to see",
            "  release: e: package: No module named 'numpy'", "  release: f: no GPU here: none",
            "  release: g: no clang-format", "0 passed, 0 failed, 4 skipped"])
        self.assertEqual(status, 1)

    def test_a_filter_without_matches_is_a_failure(self):
        nothing = "[==========] Running 0 tests from 0 test suites.\n[  PASSED  ] 0 tests.\n"
        status, lines = self.summarize(run_test("a", GOOGLE_TEST), run_test("b", nothing),
                                       run_test("c", "[  PASSED  ] 0 tests: no case\n"))
        self.assertEqual(lines[-4:], ["Failed:", "  release: b: no case ran",
                                      "  release: c: no case ran",
                                      "1 passed, 2 failed, 1 skipped"])
        self.assertEqual(status, 1)

    def test_a_skip_without_a_reason_is_a_failure(self):
        silent = ("[ RUN      ] Suite.Skips\nx_test.cpp:12: Skipped\n\n"
                  "[  SKIPPED ] Suite.Skips (0 ms)\n")
        status, lines = self.summarize(run_test("a", GOOGLE_TEST), run_test("b", silent),
                                       skipped_test("c", "an old log\n"))
        self.assertEqual(lines[-4:], ["Failed:",
                                      "  release: b: Suite.Skips: skipped without a reason",
                                      "  release: c: did not run, without a reason",
                                      "1 passed, 2 failed, 1 skipped"])
        self.assertEqual(status, 1)

    def test_what_prints_no_cases_counts_as_one(self):
        status, lines = self.summarize(
            run_test("h", "done\n"), run_test("i", FAILS, "fail", '<failure message=""/>'),
            run_test("j", "boom\n", "fail", '<failure message="SEGFAULT"/>'))
        self.assertEqual(lines, ["Failed:", "  release: i: Suite.Fails", "  release: j: SEGFAULT",
                                 "1 passed, 2 failed, 0 skipped"])
        self.assertEqual(status, 1)

    def test_what_crashes_or_hangs_is_told_with_the_case_that_had_begun(self):
        hanging = GOOGLE_TEST + "[ RUN      ] Suite.Hangs\n"
        _, lines = self.summarize(
            run_test("k", hanging, "fail", '<failure message=""/>'),
            run_test("l", GOOGLE_TEST, "fail", '<failure message="SEGFAULT"/>'),
            run_test("m", FAILS + "[ RUN      ] Suite.Hangs\n", "fail", '<failure message=""/>'))
        self.assertEqual(lines[-5:-1], [
            "  release: k: crash or timeout in Suite.Hangs",
            "  release: l: SEGFAULT",
            "  release: m: Suite.Fails",
            "  release: m: crash or timeout in Suite.Hangs"])

    def test_a_sanitizers_report_is_told(self):
        race = "ThreadSanitizer: data race engine.cpp:12 in kolo::Engine::finish()"
        _, lines = self.summarize(run_test("n", f"{GOOGLE_TEST}SUMMARY: {race}\n", "fail",
                                           '<failure message=""/>'))
        self.assertEqual(lines[-2], f"  release: n: {race}")

    def test_a_report_that_is_missing_or_empty_is_a_failure(self):
        self.assertEqual(self.summarize()[1][-1], "0 passed, 1 failed, 0 skipped")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.assertEqual(summary.main(["release=/no/such/file"]), 1)
        self.assertIn("no report of its tests", output.getvalue())


cases.main()
