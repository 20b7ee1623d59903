"""What kolo-trace says of training in which rank 2 is slow in backward and rank 1 in loading data:
python3 stragglers_test.py <slow_ranks program> <kolo_trace.py> <mpirun>...
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

EXPECTED = [r"rank 2 takes longer than the median of the others: backward ",
            r"rank 1 takes longer than the median of the others: forward "]


def main():
    program, tool, *mpirun = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="kolo-stragglers-") as name:
        folder = pathlib.Path(name) / "timeline"
        subprocess.run([*mpirun, "-n", "4", program], check=True, timeout=120,
                       env=dict(os.environ, KOLO_TIMELINE=str(folder)))
        run = subprocess.run([sys.executable, tool, "stragglers", folder], capture_output=True,
                             text=True, timeout=60, check=True)
        for expected in EXPECTED:
            if not re.search(expected, run.stdout):
                sys.exit(f"not there: {expected}\n{run.stdout}{run.stderr}")


if __name__ == "__main__":
    main()
