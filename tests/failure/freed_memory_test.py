#!/usr/bin/env python3
"""After a peer is lost, memory whose handle is ready is not written to.

    freed_memory_test.py [--runs N] [--seed N] <freed_memory> <mpirun>...

Each run starts three ranks without shared memory, kills one of them at a random time during its
reductions, and lets the others watch the buffers of failed operations: every byte in one run, and
any write by their own process in the next. There is one run per algorithm unless --runs says
otherwise; further runs cycle through victims, transports and ways to watch.
"""

import os
import re
import subprocess
import sys

from repeated_runs import repeat

RANKS = 3
LATEST_US = 60_000
LIMIT_S = 60
ALGORITHMS = ("allreduce:direct", "allreduce:ring")
# Not TCP: Open MPI 4 may itself hang or end a process whose peer has died.
TRANSPORTS = ((), ("--mca", "btl_vader_single_copy_mechanism", "none"))
WATCHES = ("pattern", "trap")
VERDICT = re.compile(r"rank (\d): (clean|WRITTEN), (\d+) bytes watched, (\d+) written")


def run(number, moments, program, mpirun):
    """An error text or None, and the number of bytes watched."""
    cycle, algorithm = divmod(number, len(ALGORITHMS))
    settings = {
        "KOLO_SHARED_MEMORY": "off",
        "KOLO_ALGORITHM": ALGORITHMS[algorithm],
        "KOLO_TEST_VICTIM": str(number % RANKS),
        "KOLO_TEST_WATCH": WATCHES[(number + cycle) % len(WATCHES)],
        "KOLO_TEST_MOMENT_US": str(moments.randint(0, LATEST_US)),
    }
    transport = TRANSPORTS[(number // 2 + cycle // 2) % len(TRANSPORTS)]
    command = [mpirun[0], "--enable-recovery", *transport, *mpirun[1:], "-n", str(RANKS), program]
    try:
        output = subprocess.run(command, env=dict(os.environ, **settings), timeout=LIMIT_S,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True).stdout
    except subprocess.TimeoutExpired as expired:
        output = f"{(expired.output or b'').decode()}\n-- goes on after {LIMIT_S} s"
    verdicts = VERDICT.findall(output)
    clean = {rank for rank, verdict, watched, _ in verdicts if verdict == "clean" and int(watched)}
    survivors = {str(rank) for rank in range(RANKS)} - {settings["KOLO_TEST_VICTIM"]}
    watched = sum(int(verdict[2]) for verdict in verdicts)
    if clean == survivors:
        return None, watched
    return f"{settings} {' '.join(transport)}\n{output}", watched


def main():
    watched = []

    def run_once(*arguments):
        problem, count = run(*arguments)
        watched.append(count)
        return problem

    status = repeat(__doc__.split("\n\n")[0], len(ALGORITHMS), run_once)
    print(f"{sum(watched)} bytes watched")
    return status


sys.exit(main())
