"""What the tests under mpirun share. Arguments of a test are the command that starts ranks."""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests"))
from cases import main  # noqa: E402,F401

MPIRUN = sys.argv[1:] or ["mpirun", "--oversubscribe"]


class Ranks(unittest.TestCase):
    head = ""  # of every program

    def run_ranks(self, count, program, head=None, status=0):
        """What all ranks print, lines in any order. A count of 0 is a process without mpirun.
        `status` is that of the first rank that fails, which mpirun passes on."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                 "MASTER_ADDR", "MASTER_PORT")
        environment = {name: value for name, value in os.environ.items() if name not in names}
        environment |= dict.fromkeys(
            ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
        start = [*MPIRUN, "-np", str(count)] if count else []
        text = (self.head if head is None else head) + program
        run = subprocess.run([*start, sys.executable, "-c", text], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                             timeout=300)
        self.assertEqual(run.returncode, status, run.stdout)
        return run.stdout
