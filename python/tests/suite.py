"""Runs cases of another project's tests under mpirun, one process a rank for all cases: after a
case that fails on a rank, hangs or ends it, mpirun starts again with the next."""

import argparse
import faulthandler
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests"))
import summary  # noqa: E402


def parser(description, limit):
    """The options of both suites."""
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", help="names of cases, separated by commas")
    parser.add_argument("--limit", type=int, default=limit,
                        help="seconds for a case; %(default)s")
    parser.add_argument("--cases", nargs="*", help=argparse.SUPPRESS)  # of a rank
    return parser


def run_rank(rank, names, run_case, limit):
    """What a rank runs: run_case(name) returns how the case ended, and why. Writes that as
    tests/cases.py does."""
    file = open(f"{os.environ['KOLO_TEST_RESULTS']}.{rank}", "w", buffering=1)

    def give_up(*_):
        print("failed", f"not ended within {limit} s", file=file)
        faulthandler.dump_traceback()
        os._exit(1)

    signal.signal(signal.SIGALRM, give_up)
    for name in names:
        print("begin", name, file=file)
        signal.alarm(limit)
        result, text = run_case(name)
        print(result, repr(text[:300]), file=file)  # a line
        if result == "failed":  # other ranks may still wait for this one
            os._exit(1)
    sys.exit()  # within the limit, too: mpirun's status counts


def run_from(names, ranks, command, environment):
    """Runs the cases up to the first that does not pass or skip on all ranks. Returns how they
    ended, and why."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            ["mpirun", "--oversubscribe", "-np", str(ranks), sys.executable, *command, *names],
            env=dict(os.environ, KOLO_RECORD="off", KOLO_LOG_LEVEL="error",
                     OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                     KOLO_TEST_RESULTS=f"{folder}/results", **environment),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        written = summary.read_ranks(f"{folder}/results")
    if len(written) != ranks:
        sys.exit(f"{len(written)} of {ranks} ranks have begun:\n{run.stdout}")
    ended = {}
    crash = ("failed", f"a rank has ended; mpirun's status is {run.returncode}")
    for name in names:
        endings = [rank.cases.get(name, ("did not end", "")) for rank in written]
        by_result = dict(reversed(endings))  # the text of the first rank
        if "failed" not in by_result and "did not end" in by_result:
            by_result["failed"] = crash[1]
        result = next(each for each in ("failed", "skipped", "passed") if each in by_result)
        ended[name] = (result, by_result[result])
        if result == "failed":
            return ended
    if run.returncode != 0:
        ended["the end"] = crash
    return ended


def run_all(title, names, ranks, command, environment):
    """Runs `command` with names of cases on so many ranks until each case has run. Prints those
    that do not pass, and sums. Returns 1 if any fails, or none passes."""
    ended = {}
    while left := [name for name in names if name not in ended]:
        ended |= run_from(left, ranks, command, environment)
    sums = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for name, (result, text) in ended.items():
        sums[result] += 1
        if result != "passed":
            print(f"{result}: {name}: {text}")
    print(f"{title}, {ranks} ranks:", ", ".join(f"{n} {result}" for result, n in sums.items()))
    return 1 if sums["failed"] or not sums["passed"] else 0
