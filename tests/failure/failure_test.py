"""What ranks make of the misfortune of one of them: python3 failure_test.py <scenario> <victim
program> <mpirun>...

Starts the program under mpirun, with and without --enable-recovery, once for every choice of victim
and number of ranks, and looks at how each rank ended and what it said. Prints the seed of the
random moments; KOLO_TEST_SEED chooses it.
"""

import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

LIMIT_S = 10  # within which survivors and jobs have ended
NEVER_S = 60

NAMED = r"'(x|large|memory|new \d+)'"


def flag_of_recovery(mpirun):
    """With which the launcher leaves the other ranks alone when one ends."""
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
    """Names in /dev/shm but those of MPI's own memory: Open MPI's, and an MPICH's that another
    test runs meanwhile. Kolo's windows never have one."""
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
        self.mark = f"KOLO_TEST_JOB={uuid.uuid4()}"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kolo-failure-"))
        self.files_before = shared_files()
        program, *mpirun = command
        environment = dict(os.environ, KOLO_TEST_FOLDER=str(self.folder),
                           KOLO_TEST_VICTIM=str(victim), **settings)
        environment.update([self.mark.split("=")])
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
        """One that was stopped is still there, and mpirun waits for it."""
        for rank in self.ranks():
            if rank.number == self.victim and rank.pid:
                os.kill(int(rank.pid[0]), signal.SIGKILL)

    def processes(self):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended, or belongs to somebody else
        return found

    def require_nothing_left(self):
        until = time.monotonic() + LIMIT_S
        while (self.processes() or self.new_files()) and time.monotonic() < until:
            time.sleep(0.02)
        # Memory without a name lasts as long as a process that has mapped it.
        require(not self.processes(), "a process is left")
        require(not self.new_files(), f"left in /dev/shm: {self.new_files()}")

    def new_files(self):
        return shared_files() - self.files_before

    def end(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
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


def require_prompt(job, rank):
    took = rank.ended_at - job.death()
    require(took < LIMIT_S, f"rank {rank.number} took {took:.1f} s to end")


def expect_loss(job):
    """Survivors raise, name the dead rank and what they waited for, and end in time."""
    if not job.recovery:
        job.wait()
        require(job.death() is not None, "nobody died")
        took = time.monotonic() - job.death()
        require(job.process.returncode != 0, "mpirun ended well")
        require(took < LIMIT_S, f"the job took {took:.1f} s to end")
        return
    job.wait_for_survivors()
    for rank in job.survivors():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        require_prompt(job, rank)
        require(re.search(rf"caught: .*{NAMED}.*rank {job.victim} ", rank.stderr),
                f"rank {rank.number} does not name rank {job.victim} and its operation")
    job.wait()


def expect_start_fails(job):
    if not job.recovery:
        expect_loss(job)
        return
    job.wait_for_survivors()
    for rank in job.survivors():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        require_prompt(job, rank)
        # Others that died of it may be named as well: nothing tells them apart at that time.
        require(re.search(rf"caught: ranks? ([0-9]+(, | and ))*{job.victim}\b.* died", rank.stderr),
                f"rank {rank.number} does not name rank {job.victim}")
    job.wait()


def expect_end(job):
    """Whoever dies while all leave harms nobody, but must not keep them either."""
    job.wait_for_survivors() if job.recovery else job.wait()
    require(job.death() is not None, "nobody died")
    for rank in job.survivors() if job.recovery else []:
        require(rank.ending == "exit 0", f"rank {rank.number} ended with {rank.ending}")
        require_prompt(job, rank)
    job.wait()


def expect_text_everywhere(text):
    def expect(job):
        if job.recovery:
            job.wait_for_survivors()
        job.wait()
        for rank in job.ranks():
            require(text in rank.stderr, f"rank {rank.number} does not say {text!r}")
            require(not job.recovery or rank.failed(), f"rank {rank.number}: {rank.ending}")
        require(job.recovery or job.process.returncode != 0, "mpirun ended well")
    return expect


def failed_survivors_of_a_stop(job):
    job.wait_for_survivors()
    job.resume_victim()
    for rank in job.survivors():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        require_prompt(job, rank)
        yield rank


def expect_stopped(job):
    """The deadline and KOLO_LOST_AFTER of a second each, and then the same as a death."""
    for rank in failed_survivors_of_a_stop(job):
        require(re.search(rf"caught: .*'x'.*rank {job.victim} does not answer", rank.stderr),
                f"rank {rank.number} does not name rank {job.victim}")
    job.wait()


def expect_vanished(job):
    """KOLO_LOST_AFTER of a second, though no deadline is near."""
    for rank in failed_survivors_of_a_stop(job):
        host = re.escape(socket.gethostname()[:63])
        require(re.search(rf"error: .*rank {job.victim} cannot be reached: nothing has come from "
                          rf"host {host} \(rank {job.victim}\) for 1 s", rank.stderr),
                f"rank {rank.number} does not report that rank {job.victim} cannot be reached")
        require(re.search(rf"caught: .*'x'.*rank {job.victim} cannot be reached", rank.stderr),
                f"rank {rank.number} does not name rank {job.victim}")
    job.wait()


def expect_mismatch(job):
    job.wait()
    for rank in job.ranks():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        for part in ("caught: 'x'", "[3, 4] on rank", f"[4, 3] on rank {job.victim}"):
            require(part in rank.stderr, f"rank {rank.number} does not say {part!r}")


def expect_timeout(job):
    job.wait()
    for rank in job.ranks():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        require(re.search(rf"caught: .*'x'.*while rank {job.victim} had not submitted it",
                          rank.stderr), f"rank {rank.number} does not name rank {job.victim}")
    report = rf"stalled: 'x'.*rank {job.victim} did not submit it yet"
    require(any(re.search(report, rank.stderr) for rank in job.ranks()), "no stall report")


def expect_success(job):
    job.wait()
    for rank in job.ranks():
        require(rank.ending == "exit 0", f"rank {rank.number} ended with {rank.ending}")


BOTH = (True, False)
RECOVERY = (True,)
PLAIN = (False,)
SHORT_TIMES = {"KOLO_TIMEOUT": "1s", "KOLO_LOST_AFTER": "1s"}
NODE_FOR_EACH = {"KOLO_LOST_AFTER": "1s", "KOLO_FAKE_NODES": "4"}
STALL_TIMES = {"KOLO_TIMEOUT": "1500ms", "KOLO_STALL_WARN": "300ms"}
THROWN = expect_text_everywhere("the disk of node 7 is full")

# scenario: what must come of it, under which mpirun, latest moment of a random death, settings
SCENARIOS = {
    "idle": (expect_loss, BOTH, 0, {}),
    "negotiating": (expect_loss, BOTH, 50_000, {}),
    "others_posted": (expect_loss, BOTH, 0, {}),
    "posted": (expect_loss, BOTH, 0, {}),
    "busy": (expect_loss, BOTH, 50_000, {}),
    "mid_chunk": (expect_loss, BOTH, 200_000, {}),
    "sharing_memory": (expect_loss, BOTH, 50_000, {}),
    "mpi_started": (expect_start_fails, BOTH, 0, {}),
    "shutting_down": (expect_end, BOTH, 20_000, {}),
    "left": (expect_end, BOTH, 0, {}),
    "throws": (THROWN, BOTH, 0, {}),
    "stops": (expect_stopped, RECOVERY, 0, SHORT_TIMES),
    "vanishes": (expect_vanished, RECOVERY, 0, NODE_FOR_EACH),
    "rests": (expect_success, PLAIN, 0, NODE_FOR_EACH),
    "diverges": (expect_mismatch, RECOVERY, 0, {}),
    "falls_silent": (expect_timeout, RECOVERY, 0, STALL_TIMES),
    "costs": (expect_success, PLAIN, 0, {}),
}


def run(scenario, command, seed):
    expect, modes, latest_us, settings = SCENARIOS[scenario]
    moments = random.Random(seed)
    failures = 0
    for recovery in modes:
        for ranks in (2, 4):
            for victim in (0, ranks - 1):
                moment = {"KOLO_TEST_MOMENT_US": str(moments.randint(0, latest_us))}
                job = Job(command, scenario, ranks, victim, recovery, settings | moment)
                try:
                    expect(job)
                    job.require_nothing_left()
                except Problems as problem:
                    failures += 1
                    print(job.describe(), f"-- failed: {problem}\n", sep="\n", flush=True)
                finally:
                    job.end()
    return failures


def main(scenario, *command):
    seed = int(os.environ.get("KOLO_TEST_SEED", random.SystemRandom().randint(0, 2**31)))
    print(f"KOLO_TEST_SEED={seed}", flush=True)
    return 1 if run(scenario, command, seed) else 0


sys.exit(main(*sys.argv[1:]))
