#!/usr/bin/env python3
"""Checkpoints resume in fresh processes, on other numbers of ranks: 2 to 3 and 3 to 1. One process
that no launcher has started reads their parameters.

python3 resume_test.py <resume_matrix> <mpirun>...

Runs resume_matrix, which has the matrix of modes, precisions and optimizers.
"""

import os
import subprocess
import sys
import tempfile


def main():
    program, *launcher = sys.argv[1:]
    os.environ.setdefault("KOLO_TIMEOUT", "120s")  # an error on one rank must not last for long
    for before, after in ((2, 3), (3, 1)):
        with tempfile.TemporaryDirectory(prefix="kolo-resume-") as folder:
            for start, what in (([*launcher, "-np", str(before)], "save"), ([], "read"),
                                ([*launcher, "-np", str(after)], "resume")):
                command = [*start, program, what, folder]
                print(" ".join(command), flush=True)
                if subprocess.run(command).returncode != 0:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
