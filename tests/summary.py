"""Adds up what CTest reported: python3 summary.py <preset>=<junit.xml>...

A CTest test that is a GoogleTest program counts with each of its cases, any other as one. Prints
what failed and what was skipped, with reasons, and as the last line the three sums. Exit status 0
only if something passed and nothing failed.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

CASE = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+)(?:, where .*)? \(\d+ ms(?: total)?\)$", re.M)
SKIP_REASON = re.compile(r"^\S+: Skipped\n(.*)$", re.M)


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
            self.skipped.append(f"{name}: {case}: {reasons.get(case, 'no reason given')}")
        if test.get("status") == "fail":
            # A crash or a timeout leaves no failed case behind, but is a failure.
            message = test.find("failure").get("message") or "crash or timeout: see its output"
            failed = failed or [f"{name}: {message}"]
        elif test.get("status") != "run":
            element = test.find("skipped")
            reason = element.get("message") if element is not None else test.get("status")
            self.skipped.append(f"{name}: {reason}")
        elif not cases:
            self.passed += 1
        self.failed += failed


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


sys.exit(main(sys.argv[1:]))
