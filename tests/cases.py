"""What the tests in Python have in common: their lines say, case by case, what passed, failed or
was skipped, as GoogleTest's do, and tests/summary.py counts them alike.
"""

import sys
import time
import unittest


def print_skipped(name, reason):
    """One case was skipped. `name` has no spaces; only the reason's first line counts."""
    print(f"[  SKIPPED ] {name}: {reason.strip().splitlines()[0]}", flush=True)


class Result(unittest.TextTestResult):
    """Its own lines on standard output; failures' tracebacks as unittest writes them."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._is_running = False
        self._started = 0.0
        self._has_failed = False  # the case that runs
        self._skip_reason = None

    def startTest(self, test):
        super().startTest(test)
        self._is_running = True
        self._started = time.monotonic()
        self._has_failed = False
        self._skip_reason = None
        print(f"[ RUN      ] {_name(test)}", flush=True)

    def stopTest(self, test):
        super().stopTest(test)
        self._is_running = False
        if self._skip_reason is not None and not self._has_failed:
            print_skipped(_name(test), self._skip_reason)
            return
        ending = "[  FAILED  ]" if self._has_failed else "[       OK ]"
        milliseconds = round(1000 * (time.monotonic() - self._started))
        print(f"{ending} {_name(test)} ({milliseconds} ms)", flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        self._has_failed = True

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._has_failed = True

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        self._has_failed |= err is not None

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._has_failed = True

    def addSkip(self, test, reason):
        """Of a case, of a subtest of it, which is then the case's, or of a whole class."""
        super().addSkip(test, reason)
        if self._is_running:
            self._skip_reason = reason
        else:
            print_skipped(_name(test), reason)


def _name(test):
    """Without the module; of a class, "setUpClass (<module>.<class>)" is its id."""
    name = test.id().removeprefix("setUpClass (").removesuffix(")")
    return name.removeprefix("__main__.")


def main():
    """Runs the test cases of the main module; the program's arguments are its own."""
    runner = unittest.TextTestRunner(verbosity=0, resultclass=Result)  # no dots between the lines
    unittest.main(argv=sys.argv[:1], testRunner=runner)
