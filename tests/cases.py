"""Runs the tests in Python. What has cases writes how they end for tests/summary.py, GoogleTest's
programs too (tests/support/results.cpp): each rank to a file, $KOLO_TEST_RESULTS.<rank>, of lines

    ranks <n>        so many write such a file; one, without this line
    cases <n>        so many will run
    begin <case>
    passed           or failed; or skipped <reason>; before any case, the latter means all
"""

import os
import sys
import unittest

class Result(unittest.TextTestResult):
    def __init__(self, file, *arguments):
        super().__init__(*arguments)
        self._file = file
        self._before = (0, 0)

    def _problems_and_skips(self):
        problems = self.errors + self.failures + self.unexpectedSuccesses
        return len(problems), len(self.skipped)

    def startTest(self, test):
        super().startTest(test)
        self._before = self._problems_and_skips()
        print("begin", test.id().removeprefix("__main__."), file=self._file)

    def stopTest(self, test):
        super().stopTest(test)
        problems, skips = self._problems_and_skips()
        if problems > self._before[0]:
            print("failed", file=self._file)
        elif skips > self._before[1]:
            print("skipped", self.skipped[-1][1].strip().partition("\n")[0], file=self._file)
        else:
            print("passed", file=self._file)


def run(suite):
    """Whether at least one case of the TestSuite ran, and none failed."""
    results = os.environ.pop("KOLO_TEST_RESULTS", None)  # not for programs that a case starts
    with open(f"{results}.0" if results else os.devnull, "w", buffering=1) as file:
        print("cases", suite.countTestCases(), file=file)
        result = unittest.TextTestRunner(
            verbosity=2, resultclass=lambda *arguments: Result(file, *arguments)).run(suite)
    return result.testsRun > 0 and result.wasSuccessful()


def main():
    """Runs the test cases of the main module, which parses the program's arguments itself."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    sys.exit(not run(suite))
