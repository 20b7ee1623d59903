#!/usr/bin/env python3
"""A rank is killed in MPI_Init while mpirun keeps the others: they end after KOLO_START_TIMEOUT,
and say which ranks have come.

    killed_in_start_test.py [--runs 20] [--seed N] <program> <mpirun>...

Any program with a kolo::Runtime does. Open MPI itself sometimes ends another rank, which the text
of the remaining one then lists as ended; and its mpirun may go on: it is killed.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from repeated_runs import repeat

RANKS = 3
VICTIM = 1
TIMEOUT_S = 5  # ranks must start within a tenth of it to see one another
LIMIT_S = TIMEOUT_S + 5
LATEST_S = 0.05  # MPI_Init takes longer
TEXT = "Of 3 ranks, 2 have come on this host (ranks 0 and 2)"
TEXT_OF_ONE = "Of 3 ranks, 1 has come on this host"
TEXT_OF_MPI = "An error occurred in MPI_Init"

# Runs one rank. Its output and its exit status become files.
ONE_RANK = f"""
rank=$OMPI_COMM_WORLD_RANK
"$0" >"$KOLO_TEST_FOLDER/$rank.output" 2>&1 &
if [ "$rank" = {VICTIM} ]; then sleep "$KOLO_TEST_MOMENT"; kill -KILL $!; fi
wait $!
echo $? >"$KOLO_TEST_FOLDER/$rank.new"
mv "$KOLO_TEST_FOLDER/$rank.new" "$KOLO_TEST_FOLDER/$rank.status"
"""


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def wait_for(paths, limit_s):
    until = time.monotonic() + limit_s
    while not all(path.exists() for path in paths) and time.monotonic() < until:
        time.sleep(0.02)


def run(_, moments, program, mpirun):
    """An error text or None."""
    moment = moments.uniform(0.004, LATEST_S)
    with tempfile.TemporaryDirectory(prefix="kolo-start-") as name:
        folder = pathlib.Path(name)
        settings = {"KOLO_START_TIMEOUT": f"{TIMEOUT_S}s", "KOLO_TEST_FOLDER": name,
                    "KOLO_TEST_MOMENT": f"{moment:.3f}"}
        command = [mpirun[0], "--enable-recovery", *mpirun[1:], "-n", str(RANKS), "sh", "-c",
                   ONE_RANK, program]
        job = subprocess.Popen(command, env=dict(os.environ, **settings), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
        statuses = {rank: folder / f"{rank}.status" for rank in range(RANKS)}
        wait_for([statuses[VICTIM]], 10)
        survivors = [rank for rank in statuses if rank != VICTIM]
        wait_for([statuses[rank] for rank in survivors], LIMIT_S)
        problems = []
        outputs = {rank: read(folder / f"{rank}.output") for rank in survivors}
        has_mpi_ended_one = any(TEXT_OF_MPI in output for output in outputs.values())
        texts = (TEXT, TEXT_OF_ONE, TEXT_OF_MPI) if has_mpi_ended_one else (TEXT,)
        for rank, output in outputs.items():
            status = read(statuses[rank]).strip()
            if status in ("", "0") or not any(text in output for text in texts):
                problems.append(f"rank {rank}, exit status {status or 'none'}:\n{output}")
        job.kill()
        of_mpirun, _ = job.communicate()
        if not problems:
            return None
        return "\n".join([f"killed after {1e3 * moment:.0f} ms", *problems, of_mpirun])


sys.exit(repeat(__doc__.split("\n\n")[0], 20, run))
