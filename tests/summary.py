"""Adds up what CTest ran: python3 summary.py <preset>=<build folder>...

A build folder has tests.json, the list of tests (ctest --show-only=json-v1), tests.xml, how each
ended (--output-junit), and the files of their cases, one a rank (tests/cases.py).
A case has failed if it failed on any rank, is skipped if all ranks skipped it, and has passed if it
passed on all; anything else, such as a case that one rank does not know, is a failure, and so are a
crash, a timeout, a program that ends before its cases have, a test without the cases that it should
have, and a skip without a reason. A test that has no cases counts as one; it prints why it skips:
"skipped: <reason>". Prints the failures, the skips with their reasons, and the three sums as the
last line. Exit status 0 only if something passed and nothing failed.
"""

import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

SANITIZER_SUMMARY = re.compile(r"SUMMARY: (\w+Sanitizer: .+)")
SKIPPED_TEST = re.compile(r"^skipped: (.+)$", re.M)


class Rank:
    """What a rank has written."""

    def __init__(self, path):
        self.ranks, self.count = 1, None
        self.skip = ""  # why it has skipped all cases
        self.cases = {}  # how they ended, and why
        case = None
        for line in path.read_text(encoding="utf-8").splitlines():
            what, _, text = line.partition(" ")
            if what == "ranks":
                self.ranks = int(text)
            elif what == "cases":
                self.count = int(text)
            elif what == "begin":
                case = text
                self.cases[case] = ("did not end", "")
            elif case is None:
                self.skip = text
            else:
                self.cases[case] = (what, text)


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def add_build(self, preset, folder):
        try:
            planned = json.loads((folder / "tests.json").read_text())["tests"]
            ended = {test.get("name"): test
                     for test in ElementTree.parse(folder / "tests.xml").getroot().iter("testcase")}
        except (OSError, ValueError, ElementTree.ParseError) as error:
            self.failed.append(f"{preset}: no report of its tests ({error})")
            return
        if not planned:
            self.failed.append(f"{preset}: no test ran")
        for test in planned:
            name = f"{preset}: {test['name']}"
            if test["name"] in ended:
                self.add_test(name, ended[test["name"]], results_of(test))
            else:
                self.failed.append(f"{name}: did not run")

    def add_test(self, name, test, results):
        """`results`: the path of the files of its cases, without the rank; None if it has none."""
        output = test.findtext("system-out") or ""
        ranks = read_ranks(results)
        status = test.get("status")
        if status not in ("run", "fail"):
            told = SKIPPED_TEST.search(output)
            self.add_skip(name, ranks[0].skip if ranks else told[1] if told else "")
            return
        failures = len(self.failed)
        where = self.add_cases(name, ranks) if results else ""
        reported = SANITIZER_SUMMARY.search(output)
        if status == "fail" and (reported or where or len(self.failed) == failures):
            self.failed.append(f"{name}: {reported[1] if reported else 'failed'}{where}")
        elif status == "run" and where:
            self.failed.append(f"{name}: ended with status 0{where}")
        elif status == "run" and not results:
            self.passed += 1

    def add_cases(self, name, ranks):
        """Where the program ended, if it has not ended all of its cases on all ranks."""
        if not ranks or not ranks[0].count:
            return " without a case"
        ended, unended = 0, []
        for case in dict.fromkeys(case for rank in ranks for case in rank.cases):
            endings = [rank.cases.get(case, ("did not end", "")) for rank in ranks]
            results = {result for result, _ in endings}
            if "did not end" in results:
                unended.append(case)
            else:
                ended += 1
            if "failed" in results:
                self.failed.append(f"{name}: {case}")
            elif results == {"passed"}:
                self.passed += 1
            elif results == {"skipped"}:
                self.add_skip(f"{name}: {case}", endings[0][1])
            elif results == {"passed", "skipped"}:
                self.failed.append(f"{name}: {case}: skipped on some ranks only")
        where = f" in {', '.join(unended)}" if unended else ""
        if {rank.count for rank in ranks} != {ended}:
            where += f" after {ended} of {ranks[0].count} cases"
        if len(ranks) != ranks[0].ranks:
            where += f" with results of {len(ranks)} of {ranks[0].ranks} ranks"
        return where

    def add_skip(self, name, reason):
        if reason:
            self.skipped.append(f"{name}: {reason}")
        else:
            self.failed.append(f"{name}: skipped without a reason")


def results_of(test):
    """The path of the files of a test's cases, without the rank; None if it has none."""
    environments = (one["value"] for one in test["properties"] if one["name"] == "ENVIRONMENT")
    for variable in next(environments, ()):
        name, _, value = variable.partition("=")
        if name == "KOLO_TEST_RESULTS":
            return value
    return None


def read_ranks(results):
    ranks = []
    while results and (path := pathlib.Path(f"{results}.{len(ranks)}")).exists():
        ranks.append(Rank(path))
    return ranks


def passed_cases(results):
    """Of the first rank."""
    return [case for rank in read_ranks(results)[:1] for case, (result, _) in rank.cases.items()
            if result == "passed"]


def main(arguments):
    tally = Tally()
    for argument in arguments:
        preset, _, folder = argument.partition("=")
        tally.add_build(preset, pathlib.Path(folder))
    for title, lines in (("Skipped", tally.skipped), ("Failed", tally.failed)):
        if lines:
            print(f"{title}:", *lines, sep="\n  ")
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
