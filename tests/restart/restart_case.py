"""Shared code of tests that run kolo-restart. Their arguments: <kolo-restart> <mpirun>..."""

import os
import pathlib
import pty
import shlex
import sys
import tempfile
import unittest

from jobs import Job, wait_for

PROGRAM, *MPIRUN = sys.argv[1:]
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


class Restart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.mpirun = shlex.join(MPIRUN)

    def start(self, *arguments, program=("true",), **options):
        flags = ["--mpirun", self.mpirun]
        if "--backoff" not in arguments:
            flags += ["--backoff", "10ms"]
        job = Job([PROGRAM, *flags, *arguments, "--", *program],
                  {"KOLO_TEST_FOLDER": str(self.folder)}, **options)
        self.addCleanup(job.end)
        return job

    def run_job(self, *arguments, program=("true",), **options):
        """Returns the exit status, standard output and standard error."""
        job = self.start(*arguments, program=program, **options)
        output, errors = job.wait()
        self.assertEqual(job.pids(), [])
        return job.process.returncode, output, errors

    def start_at_a_terminal(self, *arguments, program):
        """Returns the other end of the terminal, and the job."""
        terminal, its_end = pty.openpty()
        self.addCleanup(os.close, terminal)
        # Makes the terminal the controlling terminal of a new session.
        take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); " \
               "os.execv(sys.argv[1], sys.argv[1:])"
        job = Job([sys.executable, "-c", take, PROGRAM, *arguments, "--mpirun", self.mpirun, "--",
                   *program], {"KOLO_TEST_FOLDER": str(self.folder)}, stdin=its_end)
        self.addCleanup(job.end)
        os.close(its_end)
        return terminal, job

    def own_lines(self, errors):
        start = "kolo-restart: "
        return [line.removeprefix(start) for line in errors.splitlines() if line.startswith(start)]

    def path(self, name):
        return self.folder / name

    def starts(self):
        """How many times rank 0 has started."""
        return len(self.path("starts.0").read_text())

    def script(self, text):
        """A shell program for ranks, in which $r is the rank and $n the number of the start."""
        return ["sh", "-c", f"""r={RANK}; f={self.folder}
printf x >>$f/starts.$r
n=$(wc -c <$f/starts.$r)
touch $f/began.$r
{text}"""]

    def wait_for_ranks(self, count):
        self.assertTrue(wait_for(lambda: len(list(self.folder.glob("began.*"))) == count))
