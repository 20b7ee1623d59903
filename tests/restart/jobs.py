"""Shared code of the kolo-restart tests: jobs whose processes can be found."""

import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))

from marked_processes import MarkedProcesses  # noqa: E402

LIMIT_S = 60


class Job:
    """A running kolo-restart with all its descendants."""

    def __init__(self, command, environment=None, **options):
        self._processes = MarkedProcesses()
        self.pids = self._processes.pids
        variables = {**os.environ, **(environment or {}), **self._processes.variable}
        self.process = subprocess.Popen(list(map(str, command)), env=variables, **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
            "text": True, "start_new_session": True, "preexec_fn": _take_signals, **options})

    def wait(self, limit_s=LIMIT_S):
        """Waits until it ends. Returns its standard output and standard error."""
        return self.process.communicate(timeout=limit_s)

    def end(self):
        """Kills all remaining processes, whether the test passed or not."""
        self._processes.kill()
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
