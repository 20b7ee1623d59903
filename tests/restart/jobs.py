"""What the tests of kolo-restart have in common: jobs whose processes can be found."""

import os
import pathlib
import signal
import subprocess
import time
import uuid

LIMIT_S = 60


class Job:
    """A kolo-restart that runs, and all processes below it: they have a variable of its own."""

    def __init__(self, command, environment=None, **options):
        self._mark = f"KOLO_TEST_JOB={uuid.uuid4()}"
        variables = {**os.environ, **(environment or {})}
        variables.update([self._mark.split("=")])
        self.process = subprocess.Popen(list(map(str, command)), env=variables, **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
            "text": True, "start_new_session": True, "preexec_fn": _take_signals, **options})

    def pids(self, program=""):
        """Of its processes that run, those whose command line begins with `program`."""
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
                pass  # it has ended, or belongs to somebody else
        return found

    def wait(self, limit_s=LIMIT_S):
        """Returns what it has written to standard output and standard error."""
        return self.process.communicate(timeout=limit_s)

    def end(self):
        """Leaves nothing behind, whatever the test has found."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.communicate()


def _take_signals():
    """Whoever runs the tests in the background may ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def wait_for(holds, limit_s=LIMIT_S):
    """Whether it holds before the time is up."""
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
