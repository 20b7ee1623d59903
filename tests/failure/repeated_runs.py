"""The command line of a check that runs a program several times, at random moments:

    <check>.py [--runs N] [--seed N] <program> <mpirun>...
"""

import argparse
import random


def repeat(description, default_runs, run):
    """Calls run(number, moments, program, mpirun), which returns an error text or None. `moments`
    is a generator of random numbers that --seed repeats. Returns the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=int, default=default_runs)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randint(0, 2**31))
    parser.add_argument("program")
    parser.add_argument("mpirun", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed}", flush=True)
    moments = random.Random(arguments.seed)
    failures = 0
    for number in range(arguments.runs):
        if problem := run(number, moments, arguments.program, arguments.mpirun):
            failures += 1
            print(f"-- run {number} failed: {problem}", flush=True)
    print(f"{arguments.runs} runs, {failures} failed")
    return 1 if failures else 0
