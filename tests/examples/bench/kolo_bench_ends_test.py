"""Ends kolo-bench or one of its ranks early, and starts it where it cannot run:

    kolo_bench_ends_test.py <kolo-bench> <mpirun>... <flag for ranks>
"""

import glob
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parents[2]))
import cases  # noqa: E402
from bench_case import Bench, LONG, PROGRAM, TINY  # noqa: E402


def ranks_of(driver):
    """The ranks that mpirun has started for a controlling kolo-bench: Kolo's, then plain MPI's."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8") as file:
                pid, rest = file.read().split(" (", 1)
        except OSError:
            continue  # it has ended meanwhile
        name, state_and_parent = rest.rsplit(") ", 1)
        parents[int(pid)] = (name, int(state_and_parent.split()[1]))
    launchers = {pid for pid, (_, parent) in parents.items() if parent == driver}
    ranks = sorted((name, pid) for pid, (name, parent) in parents.items()
                   if parent in launchers and name.startswith("kolo-bench"))
    return [pid for _, pid in ranks]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


class Ending(Bench):
    def start(self, *arguments):
        """Starts a long measurement; returns its driver and ranks once all ranks work."""
        driver = subprocess.Popen([PROGRAM, "--np", "2", "--baseline", "mpi", *LONG, *arguments],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, start_new_session=True,
                                  env=self.environment)
        self.addCleanup(driver.kill)
        end = time.monotonic() + 30
        while len(ranks_of(driver.pid)) < 4 or glob.glob(self.temporary + "/kolo-bench*"):
            self.assertIsNone(driver.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        time.sleep(0.1)
        return driver, ranks_of(driver.pid)

    def assert_ended(self, ranks):
        end = time.monotonic() + 10
        while any(map(is_alive, ranks)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual([pid for pid in ranks if is_alive(pid)], [])
        self.assert_nothing_is_left()

    def test_a_killed_rank_ends_all(self):
        for victim, name in ((0, "Kolo's ranks"), (3, "plain MPI's ranks")):
            with self.subTest(name):
                driver, ranks = self.start("--json", self.path("unwritten"))
                os.kill(ranks[victim], signal.SIGKILL)
                _, errors = driver.communicate(timeout=60)
                self.assertEqual(driver.returncode, 1, errors)
                self.assertRegex(errors, f"kolo-bench: {name}: rank [01]")
                self.assert_ended(ranks)
                self.assertFalse(os.path.exists(self.path("unwritten")))

    def test_an_interrupt_ends_all(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                driver, ranks = self.start()
                driver.send_signal(number)
                driver.communicate(timeout=60)
                self.assertEqual(driver.returncode, -number)
                self.assert_ended(ranks)

    def test_what_cannot_start_is_told(self):
        for name, value, text in (
                ("KOLO_MPIRUN", "/no/such/mpirun",
                 "cannot start /no/such/mpirun: No such file or directory (KOLO_MPIRUN names"),
                ("KOLO_MPIRUN", "/bin/false", "mpirun ended before its ranks had started"),
                ("TMPDIR", "/no/such/folder", "(TMPDIR names another folder)")):
            with self.subTest(name=name, value=value):
                result = self.run_bench(*TINY, **{name: value})
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(text, result.stderr)
                self.assert_nothing_is_left()


cases.main()
