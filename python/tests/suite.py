"""Runs cases of another project's tests under mpirun, one process a rank for all cases: after a
case that fails or hangs on a rank, mpirun starts again with the next."""

import argparse
import collections
import faulthandler
import os
import re
import signal
import subprocess
import sys

RESULT = re.compile(r"RESULT (\d+) (\w+) (\w+) (.*)")
SEVERITY = ["passed", "skipped", "failed", "hung"]


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
    """What a rank runs: run_case(name) returns how the case ended, and why."""
    for name in names:
        def say(result, text, name=name):
            sys.stdout.write(f"RESULT {rank} {name} {result} {text[:300]!r}\n")  # a line at once
            sys.stdout.flush()

        def give_up(*_, say=say):
            say("hung", f"for {limit} s")
            faulthandler.dump_traceback()
            os._exit(1)

        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(limit)
        result, text = run_case(name)
        say(result, text)
        if result == "failed":  # other ranks may still wait for this one
            os._exit(1)
        signal.alarm(0)
    os._exit(0)


def run_all(title, names, ranks, command, environment):
    """Runs `command` with names of cases on so many ranks until each case has run. Prints those
    that do not pass, and sums. Returns 1 if there are any that fail."""
    results, texts = {}, {}
    left = list(names)
    while left:
        output = subprocess.run(
            ["mpirun", "--oversubscribe", "-np", str(ranks), sys.executable, *command, *left],
            env=dict(os.environ, KOLO_RECORD="off", KOLO_LOG_LEVEL="error",
                     OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **environment),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace").stdout
        found = RESULT.findall(output)
        if not found:
            sys.exit(f"no case ran:\n{output}")
        for _, name, result, text in found:
            if SEVERITY.index(result) >= SEVERITY.index(results.get(name, "passed")):
                results[name], texts[name] = result, text
        last = max(left.index(name) for _, name, _, _ in found)
        left = left[last + 1:]
    for name, result in results.items():
        if result in ("failed", "hung"):
            print(f"{result}: {name}: {texts[name]}")
    sums = collections.Counter(results.values())
    print(f"{title}, {ranks} ranks:", ", ".join(f"{sums[each]} {each}" for each in SEVERITY))
    return 1 if sums["failed"] + sums["hung"] else 0
