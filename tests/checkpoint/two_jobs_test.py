#!/usr/bin/env python3
"""Two jobs save into one folder, like a requeued job and survivors of the old one. Whatever is
paused or killed, load() always finds a whole checkpoint, and no completed save is lost.

python3 two_jobs_test.py [--rounds N] [--ranks N] <training_victim> [<mpirun>...]

Every round pauses a job (SIGSTOP), kills all of its ranks, or one, or does one after the other, at
a random moment; a killed job is restarted. Then another program loads the newest checkpoint while
living jobs continue to save. Prints the seed, which KOLO_TEST_SEED sets.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 120
STRIDE = 10**6  # between the numbers of two starts


class Job:
    """One start of a program that saves repeatedly."""

    def __init__(self, command, folder, start, output):
        self.start = start
        self.output = pathlib.Path(output)
        self.errors = self.output.with_suffix(".errors")
        command = [*command, "save-on", str(folder), str(start)]
        with open(self.output, "wb") as out, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(command, stdout=out, stderr=errors,
                                            start_new_session=True)

    def text(self):
        return self.output.read_text()

    def wait_for(self, pattern, count):
        deadline = time.monotonic() + LIMIT_S
        while len(found := re.findall(pattern, self.text(), re.M)) < count:
            self.require_alive()
            if time.monotonic() > deadline:
                raise SystemExit(f"a job has not printed {pattern} {count} times: {self.text()}")
            time.sleep(0.01)
        return found

    def require_alive(self):
        if self.process.poll() is not None:
            raise SystemExit(f"a job that nobody killed has ended: {self.errors.read_text()}")

    def ranks(self):
        return [int(pid) for pid in re.findall(r"^rank \d+ is process (\d+)$", self.text(), re.M)]

    def signal(self, pids, number):
        for pid in pids:
            os.kill(pid, number)

    def saves(self):
        """The number of completed saves."""
        return len(re.findall(r"^saved \d+$", self.text(), re.M))


class Jobs:
    def __init__(self, program, launcher, ranks, folder, place):
        self.program, self.launcher, self.ranks = program, launcher, ranks
        self.folder, self.place = folder, place
        self.reader = subprocess.Popen([program, "read-on", str(folder)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        self.starts = 0
        self.past_saves = 0
        self.jobs = []
        for _ in range(2):
            self.start_one()

    def start_one(self):
        self.starts += 1
        job = Job([*self.launcher, self.program], self.folder, self.starts * STRIDE,
                  self.place / f"job-{self.starts}")
        self.jobs.append(job)
        return job

    def disturb(self):
        way = random.choice(["pause", "kill", "pause and kill"])
        while not (running := [job for job in self.jobs if len(job.ranks()) == self.ranks]):
            time.sleep(0.01)
        job = random.choice(running)
        pids = job.ranks()
        if way != "kill":
            job.signal(pids, signal.SIGSTOP)
            time.sleep(random.uniform(0, 0.3))
        if way == "pause":
            job.signal(pids, signal.SIGCONT)
            return way
        victims = random.choice([pids, [random.choice(pids)]])
        job.signal(victims, signal.SIGKILL)
        if way != "kill":
            job.signal([pid for pid in pids if pid not in victims], signal.SIGCONT)
        self.jobs.remove(job)
        self.start_one()  # beside its survivors
        job.process.wait(LIMIT_S)
        self.past_saves += job.saves()
        return way

    def saves(self):
        return self.past_saves + sum(job.saves() for job in self.jobs)

    def read(self):
        """The number in the newest checkpoint's name. It counts at least every completed save."""
        least = self.saves()
        self.reader.stdin.write("\n")
        self.reader.stdin.flush()
        line = self.reader.stdout.readline()
        found = re.fullmatch(r"read (\d+) of checkpoint-(\d+)\n", line)
        if not found:
            names = "\n".join(sorted(str(p) for p in self.folder.rglob("*")))
            raise SystemExit(f"no checkpoint can be loaded: {line}\n{names}")
        newest = int(found[2])
        if newest < least:
            raise SystemExit(f"{least} saves have ended, but checkpoint {newest} is the newest")
        return newest

    def end(self):
        self.reader.kill()
        for job in self.jobs:
            os.killpg(job.process.pid, signal.SIGKILL)
            for pid in job.ranks():
                with contextlib.suppress(ProcessLookupError):  # mpirun has ended it
                    os.kill(pid, signal.SIGKILL)
            job.process.wait(LIMIT_S)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("mpirun", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    seed = int(os.environ.get("KOLO_TEST_SEED", random.randrange(10**6)))
    print(f"KOLO_TEST_SEED={seed}")
    random.seed(seed)
    launcher = [*options.mpirun, "-n", str(options.ranks)] if options.ranks > 1 else []
    with tempfile.TemporaryDirectory(prefix="kolo-jobs-") as name:
        folder = pathlib.Path(name) / "checkpoints"
        jobs = Jobs(options.program, launcher, options.ranks, folder, pathlib.Path(name))
        done = collections.Counter()
        try:
            jobs.jobs[0].wait_for(r"^saved \d+$", 1)
            for _ in range(options.rounds):
                time.sleep(random.uniform(0, 0.3))
                for job in jobs.jobs:
                    job.require_alive()
                done[jobs.disturb()] += 1
                jobs.read()
            # Both jobs can still save.
            for job in jobs.jobs:
                job.wait_for(r"^saved \d+$", job.saves() + 1)
            saves, newest = jobs.saves(), jobs.read()
        finally:
            jobs.end()
        print(f"{options.rounds} rounds of two jobs with {options.ranks} ranks ({dict(done)}): a "
              f"whole checkpoint was there each time; {saves} saves had ended before checkpoint "
              f"{newest} was loaded")


if __name__ == "__main__":
    sys.exit(main())
