"""The processes of a job that a test starts, with all their descendants: an environment variable
marks them."""

import os
import pathlib
import signal
import uuid


class MarkedProcesses:
    def __init__(self):
        self.variable = {"KOLO_TEST_JOB": str(uuid.uuid4())}  # for the environment of the job

    def pids(self, program=""):
        """The PIDs of those that run and whose command line begins with `program`."""
        mark = "=".join(*self.variable.items()).encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if not entry.name.isdigit():
                    continue
                if mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[0].endswith(program):
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended, or belongs to another user
        return found

    def kill(self):
        """Kills those that are left, and returns their PIDs."""
        left = self.pids()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return left
