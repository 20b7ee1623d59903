"""Whatever moment a save is killed at, the checkpoint before it or the new one can be read, whole.

python3 kill_test.py [--every N] [--ranks N] calls <checkpoint_victim> [<mpirun>...]
    kills a rank before every call that changes files, and in the middle of every write, one after
    another; at two ranks the first, then the last one. --every N: only every N-th moment, beginning
    at a random one.
python3 kill_test.py [--times N] [--ranks N] moments <checkpoint_victim> [<mpirun>...]
    kills all ranks, or one, at N random moments.

Prints the seed of what is random; KOLO_TEST_SEED chooses it.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 60


class Victim:
    def __init__(self, program, ranks, mpirun):
        self.program = program
        self.launcher = [*mpirun, "-n", str(ranks)] if mpirun else []

    def save(self, folder, number, *death):
        """Whether all ranks lived to the end."""
        command = [*self.launcher, self.program, "save", folder, number, *death]
        run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        if run.returncode != 0 and not death:
            raise SystemExit(f"saving checkpoint {number} fails:\n{run.stdout}")
        return run.returncode == 0

    def read(self, folder, allowed):
        """The number of the checkpoint that is there: one of those allowed."""
        run = subprocess.run([self.program, "read", str(folder)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        found = re.fullmatch(r"read (\d+)\n", run.stdout)
        if run.returncode != 0 or not found or int(found[1]) not in allowed:
            names = "\n".join(sorted(str(p) for p in folder.rglob("*")))
            raise SystemExit(f"none of {allowed} can be read: {run.stdout}\n{names}")
        return int(found[1])

    def start_saving(self, folder, number):
        return subprocess.Popen([*self.launcher, self.program, "save-on", str(folder), str(number)],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                start_new_session=True)


def plant_leftovers(folder):
    """What earlier attempts left, so that their removal is interrupted too."""
    for name in (".incomplete-1", ".removed-checkpoint-00000001"):
        (folder / name).mkdir()
        (folder / name / "rank-0000.safetensors").write_bytes(b"leftover")


def kill_at_calls(victim, ranks, every):
    with tempfile.TemporaryDirectory(prefix="kolo-kill-") as name:
        base = pathlib.Path(name) / "base"
        victim.save(base, 1)
        plant_leftovers(base)
        for rank in sorted({0, ranks - 1}):
            moment, kills, new = random.randrange(every), 0, 0
            while True:
                folder = pathlib.Path(name) / "folder"
                shutil.copytree(base, folder)
                if victim.save(folder, 2, rank, moment):
                    break
                new += victim.read(folder, (1, 2)) == 2
                victim.save(folder, 3)
                victim.read(folder, (3,))
                left = sorted(p.name for p in folder.iterdir())
                if left != ["checkpoint-00000002"] and left != ["checkpoint-00000003"]:
                    raise SystemExit(f"after another save there are {left}")
                shutil.rmtree(folder)
                kills += 1
                moment += every
            victim.read(folder, (2,))
            shutil.rmtree(folder)
            print(f"{ranks} ranks, rank {rank} killed at {kills} moments: {kills - new} times the "
                  f"old checkpoint is there, {new} times the new one", flush=True)
            if kills == 0:
                raise SystemExit("nothing was killed")


def last_number(lines, default):
    return max([int(n) for n in re.findall(r"^saved (\d+)$", lines, re.M)], default=default)


def kill_at_moments(victim, ranks, times):
    newer = 0
    with tempfile.TemporaryDirectory(prefix="kolo-kill-") as name:
        folder = pathlib.Path(name)
        victim.save(folder, 1)
        number = 1
        for _ in range(times):
            job = victim.start_saving(folder, number + 1)
            processes = {}
            lines = ""
            while len(processes) < ranks:
                lines += job.stdout.readline()
                processes = dict(re.findall(r"rank (\d+) is process (\d+)", lines))
            time.sleep(random.uniform(0, 0.25))
            for rank in random.choice([list(processes), [random.choice(list(processes))]]):
                os.kill(int(processes[rank]), signal.SIGKILL)
            lines += job.stdout.read()
            job.wait(LIMIT_S)
            saved = last_number(lines, number)
            number = victim.read(folder, (saved, saved + 1))
            newer += number - saved
        print(f"{ranks} ranks, killed at {times} moments during {number} saves: {newer} times the "
              "checkpoint that was being saved is there, otherwise the one before it")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("way", choices=["calls", "moments"])
    parser.add_argument("program")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("mpirun", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    seed = int(os.environ.get("KOLO_TEST_SEED", random.randrange(10**6)))
    print(f"KOLO_TEST_SEED={seed}")
    random.seed(seed)
    victim = Victim(options.program, options.ranks, options.mpirun)
    if options.way == "calls":
        kill_at_calls(victim, options.ranks, options.every)
    else:
        kill_at_moments(victim, options.ranks, options.times)


if __name__ == "__main__":
    sys.exit(main())
