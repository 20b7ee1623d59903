"""One run of the program `victim` under mpirun, and how each of its ranks ended."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))

from marked_processes import MarkedProcesses  # noqa: E402

LIMIT_S = 10  # by then survivors and jobs must have ended
NEVER_S = 60


def flag_of_recovery(mpirun):
    """The options with which the launcher keeps the other ranks when one ends."""
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return "-disable-auto-cleanup" if "HYDRA" in version.stdout else "--enable-recovery"


class Rank:
    """How one rank ended and what it wrote to stderr."""

    def __init__(self, folder, number):
        self.number = number
        self.pid = read(folder / f"{number}.pid").split()[:1]
        self.stderr = read(folder / f"{number}.err")
        kind, code, when = (read(folder / f"{number}.status").split() + [None] * 3)[:3]
        self.ending = f"{kind} {code}"
        self.ended_at = float(when) if when else None

    def failed(self):
        return self.ended_at is not None and self.ending != "exit 0"


class Problems(Exception):
    pass


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def shared_files():
    """Names in /dev/shm, except MPI's own: those of Open MPI, and of an MPICH that another test
    may be running. Kolo's windows are unnamed."""
    of_mpi = ("vader_segment.", "mpich_shm_")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(of_mpi)}


def require(condition, text):
    if not condition:
        raise Problems(text)


class Job:
    """One run of the program under mpirun."""

    def __init__(self, command, scenario, ranks, victim, recovery, settings):
        self.ranks_count = ranks
        self.victim = victim
        self.recovery = recovery
        self.processes = MarkedProcesses()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kolo-failure-"))
        self.files_before = shared_files()
        program, *mpirun = command
        environment = dict(os.environ, KOLO_TEST_FOLDER=str(self.folder),
                           KOLO_TEST_VICTIM=str(victim), **self.processes.variable, **settings)
        if "KOLO_TEST_RENDEZVOUS" in os.environ:  # mpirun starts the ranks, and MPI is not used
            environment["KOLO_RENDEZVOUS"] = str(self.folder / "rendezvous")
        if recovery:
            mpirun = [*mpirun[:1], flag_of_recovery(mpirun[0]), *mpirun[1:]]
        self.process = subprocess.Popen([*mpirun, "-n", str(ranks), program, scenario],
                                        env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.output = ""

    def survivors(self):
        return [rank for rank in self.ranks() if rank.number != self.victim]

    def ranks(self):
        return [Rank(self.folder, number) for number in range(self.ranks_count)]

    def death(self):
        words = read(self.folder / "death").split()
        return float(words[0]) if words else None

    def wait(self, limit_s=NEVER_S):
        try:
            self.output, _ = self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Problems(f"the job goes on after {limit_s} s") from None

    def wait_for_survivors(self):
        until = time.monotonic() + NEVER_S
        has_ended = False
        while any(rank.ended_at is None for rank in self.survivors()):
            require(time.monotonic() < until, "a survivor does not end")
            require(not has_ended, "mpirun ended before the survivors")
            has_ended = self.process.poll() is not None
            time.sleep(0.02)

    def resume_victim(self):
        """Ends a stopped victim, for which mpirun would wait."""
        for rank in self.ranks():
            if rank.number == self.victim and rank.pid:
                os.kill(int(rank.pid[0]), signal.SIGKILL)

    def require_nothing_left(self):
        until = time.monotonic() + LIMIT_S
        while (self.processes.pids() or self.new_files()) and time.monotonic() < until:
            time.sleep(0.02)
        # Unnamed memory exists as long as a process that has mapped it.
        require(not self.processes.pids(), "a process is left")
        require(not self.new_files(), f"left in /dev/shm: {self.new_files()}")

    def new_files(self):
        return shared_files() - self.files_before

    def end(self):
        self.processes.kill()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    def describe(self):
        lines = [f"-- {' '.join(self.process.args)}, victim {self.victim}", self.output]
        for rank in self.ranks():
            after = (f", {rank.ended_at - self.death():.2f} s after the death"
                     if rank.ended_at and self.death() else "")
            lines.append(f"-- rank {rank.number}: {rank.ending}{after}\n{rank.stderr}")
        return "\n".join(lines)
