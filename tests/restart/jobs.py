"""Shared code of the kolo-restart tests: jobs whose processes can be found."""

import os
import pathlib
import signal
import subprocess
import time
import uuid

LIMIT_S = 60


class Job:
    """A running kolo-restart with all its descendants, which an environment variable marks."""

    def __init__(self, command, environment=None, **options):
        self._mark = f"KOLO_TEST_JOB={uuid.uuid4()}"
        variables = {**os.environ, **(environment or {})}
        variables.update([self._mark.split("=")])
        self.process = subprocess.Popen(list(map(str, command)), env=variables, **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
            "text": True, "start_new_session": True, "preexec_fn": _take_signals, **options})

    def pids(self, program=""):
        """The PIDs of its running processes whose command line begins with `program`."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if not entry.name.isdigit():
                    continue
                if self._mark.encode() not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[0].endswith(program):
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended, or belongs to another user
        return found

    def wait(self, limit_s=LIMIT_S):
        """Waits until it ends. Returns its standard output and standard error."""
        return self.process.communicate(timeout=limit_s)

    def end(self):
        """Kills all remaining processes, whether the test passed or not."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.communicate()


def _take_signals():
    """Restores the default handling: if the tests run in the background, signals may be ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def wait_for(holds, limit_s=LIMIT_S):
    """Waits until `holds()` is true. Returns whether it became true before the time limit."""
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
