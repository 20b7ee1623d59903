"""The runner of the tests in Python: like GoogleTest it prints one line for each case that passed,
failed or was skipped, so that tests/summary.py counts both in the same way.
"""

import sys
import time
import unittest


def print_skipped(name, reason):
    """One case was skipped. `name` has no spaces; only the reason's first line counts."""
    print(f"[  SKIPPED ] {name}: {reason.strip().splitlines()[0]}", flush=True)


class Result(unittest.TextTestResult):
    """Prints one line per case on standard output; tracebacks are printed by unittest."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._is_running = False
        self._started = 0.0
        self._has_failed = False  # the running case
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
        """Records the skip of a case, of one of its subtests, or of a whole class."""
        super().addSkip(test, reason)
        if self._is_running:
            self._skip_reason = reason
        else:
            print_skipped(_name(test), reason)


def _name(test):
    """The name without its module; the id of a class is "setUpClass (<module>.<class>)"."""
    name = test.id().removeprefix("setUpClass (").removesuffix(")")
    return name.removeprefix("__main__.")


def main():
    """Runs the test cases of the main module, which parses the program's arguments itself."""
    runner = unittest.TextTestRunner(verbosity=0, resultclass=Result)  # no dots between the lines
    run = unittest.main(argv=sys.argv[:1], testRunner=runner, exit=False)
    ran_none = not run.result.testsRun and not run.result.skipped
    if ran_none:
        print("[  PASSED  ] 0 tests: there is no case", flush=True)
    sys.exit(ran_none or not run.result.wasSuccessful())
