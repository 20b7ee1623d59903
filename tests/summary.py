"""Adds up what CTest reported: python3 summary.py <preset>=<junit.xml>...

In a CTest test that prints the results of its cases, a GoogleTest program or a script that uses
cases.py, each case counts; one without any case is a failure, since a filter that no longer
matches would pass forever. Any other test counts as one. A skip without a printed reason is a
failure, too. Prints the failures, the skips with their reasons, and the three sums as the last
line. Exit status 0 only if something passed and nothing failed.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

CASE = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+)(?:, where .*)? \(\d+ ms(?: total)?\)$", re.M)
SANITIZER_SUMMARY = re.compile(r"^SUMMARY: (\w+Sanitizer: .+)$", re.M)
# How programs with cases begin, or end where none has run.
HAS_CASES = re.compile(r"^\[=+\] Running |^\[=+\] \d+ tests? from |^\[ +PASSED +\] 0 tests", re.M)
BEGUN_CASE = re.compile(r"^\[ +RUN +\] (\S+)$", re.M)
SKIP_REASON = re.compile(r"^\S+: Skipped\n(.*)$", re.M)
SKIPPED_TEST = re.compile(r"^skipped: (.+)$", re.M)
# Printed by cases.py, or by a program that skips everything.
SKIPPED_LINE = re.compile(r"^\[ +SKIPPED +\] (\S+): (.+)$", re.M)


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def add_report(self, preset, path):
        try:
            tests = list(ElementTree.parse(path).getroot().iter("testcase"))
        except (OSError, ElementTree.ParseError) as error:
            self.failed.append(f"{preset}: no report of its tests ({error})")
            return
        if not tests:
            self.failed.append(f"{preset}: no test ran")
        for test in tests:
            self.add_test(f"{preset}: {test.get('name')}", test)

    def add_test(self, name, test):
        output = test.findtext("system-out") or ""
        cases = CASE.findall(output)
        self.passed += sum(result == "OK" for result, _ in cases)
        failed = [f"{name}: {case}" for result, case in cases if result == "FAILED"]
        skipped = [case for result, case in cases if result == "SKIPPED"]
        reasons = skip_reasons(output)
        for case in skipped:
            if reasons.get(case):
                self.skipped.append(f"{name}: {case}: {reasons[case]}")
            else:
                failed.append(f"{name}: {case}: skipped without a reason")
        told = SKIPPED_LINE.findall(output)
        self.skipped += [f"{name}: {case}: {reason}" for case, reason in told]
        if test.get("status") == "fail":
            # A crash or a timeout has no failed case, but is a failure.
            reported = SANITIZER_SUMMARY.search(output)
            message = test.find("failure").get("message") or "crash or timeout"
            where = where_it_ended(output, cases)
            if reported or where or not failed:
                failed.append(f"{name}: {reported.group(1) if reported else message}{where}")
        elif test.get("status") != "run":
            if not skipped and not told:
                reason = reason_of_all(output)
                if reason:
                    self.skipped.append(f"{name}: {reason}")
                else:
                    failed.append(f"{name}: did not run, without a reason")
        elif not cases and not told:
            if HAS_CASES.search(output):
                failed.append(f"{name}: no case ran")
            else:
                self.passed += 1
        self.failed += failed


def where_it_ended(output, cases):
    """The case that had begun when a program crashed or was stopped."""
    begun = BEGUN_CASE.findall(output)
    if not begun or begun[-1] in (case for _, case in cases):
        return ""
    return f" in {begun[-1]}"


def reason_of_all(output):
    """Why a CTest test did not run, as its program says it."""
    said = SKIP_REASON.search(output) or SKIPPED_TEST.search(output)
    return said.group(1).strip() if said else ""


def skip_reasons(output):
    """Each skipped case's reason: the text between its RUN and its SKIPPED line."""
    blocks = re.findall(r"^\[ RUN +\] (\S+)\n(.*?)^\[ +SKIPPED +\] \1", output, re.M | re.S)
    found = ((case, SKIP_REASON.search(block)) for case, block in blocks)
    return {case: match.group(1).strip() for case, match in found if match}


def main(arguments):
    tally = Tally()
    for argument in arguments:
        tally.add_report(*argument.split("=", 1))
    for title, lines in (("Skipped", tally.skipped), ("Failed", tally.failed)):
        if lines:
            print(f"{title}:", *lines, sep="\n  ")
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
