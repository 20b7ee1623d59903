#!/usr/bin/env python3
"""Whenever DistributedOptimizer::save() is killed, the previous or the new checkpoint can be loaded
completely.

python3 kill_test.py [--every N] [--ranks N] calls <training_victim> [<mpirun>...]
    kills a rank before each call that changes files, and in the middle of each write, one moment
    after the other; with two ranks the first, then the last one. --every N: only every N-th
    moment, starting at a random one.
python3 kill_test.py [--times N] [--ranks N] moments <training_victim> [<mpirun>...]
    kills all ranks, or one, at N random moments.

Prints at how many moments of how many it killed, and the random seed, which KOLO_TEST_SEED sets.
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
        self.launcher = [*mpirun, "-n", str(ranks)] if ranks > 1 else []

    def save(self, folder, number, *death):
        """The output of the ranks; None if one was killed."""
        command = [*self.launcher, self.program, "save", folder, number, *death]
        run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        if run.returncode != 0 and not death:
            raise SystemExit(f"saving checkpoint {number} fails:\n{run.stdout}")
        return run.stdout if run.returncode == 0 else None

    def read(self, folder, allowed):
        """The number of the newest checkpoint, which must be one of those allowed."""
        run = subprocess.run([self.program, "read", str(folder)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        return self.number_read(run, folder, allowed)

    def check(self, folder, allowed, number):
        """Like read(). Every checkpoint must be loadable, and another one is saved and loaded."""
        run = subprocess.run([self.program, "check", str(folder), str(number)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=LIMIT_S)
        found = self.number_read(run, folder, allowed)
        if f"read {number} of " not in run.stdout:
            raise SystemExit(f"checkpoint {number} cannot be saved after it: {run.stdout}")
        return found

    @staticmethod
    def number_read(run, folder, allowed):
        found = re.search(r"^read (\d+) of ", run.stdout, re.M)
        if run.returncode != 0 or not found or int(found[1]) not in allowed:
            names = "\n".join(sorted(str(p) for p in folder.rglob("*")))
            raise SystemExit(f"none of {allowed} can be read: {run.stdout}\n{names}")
        return int(found[1])

    def start_saving(self, folder, number):
        return subprocess.Popen([*self.launcher, self.program, "save-on", str(folder), str(number)],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                start_new_session=True)


def plant_leftovers(folder):
    """Makes leftovers of earlier attempts, so that their removal is interrupted too."""
    for name in (".incomplete-1", ".removed-checkpoint-00000001"):
        (folder / name).mkdir()
        (folder / name / "rank-0000.safetensors").write_bytes(b"leftover")


def check_order(folder, rank, calls):
    """Checks that the calls of `rank` were observed, that nothing is renamed to its final name
    before it is on the disk, and that nothing is removed before it is renamed. A crash of the
    machine, which no test can simulate, would lose data that is not on the disk."""
    at = {}
    for i, call in enumerate(calls):
        at.setdefault(call, []).append(i)
    renames = {pathlib.Path(path).name: i for i, (call, path) in enumerate(calls)
               if call == "rename"}
    renames.pop(".incomplete-1", None)  # a leftover, removed with the others
    published = min((i for name, i in renames.items() if name.startswith(".incomplete-")),
                    default=len(calls))  # by another rank
    written = {pathlib.Path(path).name for call, path in at if call == "write"}
    own = {f"rank-{rank:04}.safetensors", *(["index.json"] if rank == 0 else [])}
    if not own <= written or (rank == 0) != (published < len(calls)):
        raise SystemExit(f"rank {rank} has not been seen to write {own} and publish them: {calls}")
    for call, path in at:
        if call in ("unlink", "unlinkat", "rmdir", "remove") and "/.removed-" not in path:
            raise SystemExit(f"{path} is removed under the name that it had: {calls}")
    for call, path in at:
        if call == "write" and not path.endswith("/.lock"):
            synced = at.get(("fsync", path), [-1])[-1]
            if not at[call, path][-1] < synced < published:
                raise SystemExit(f"{path} is not on the disk when it gets its name: {calls}")
    if published == len(calls):
        return
    place = calls[published][1]
    made = max(indexes[0] for (call, path), indexes in at.items()
               if call == "open" and path.startswith(place + "/"))
    removed = renames["checkpoint-00000001"]
    folder_synced = at["fsync", str(folder)]
    if not any(made < i < published for i in at.get(("fsync", place), [])):
        raise SystemExit(f"the names in {place} are not on the disk when it gets its own: {calls}")
    if not any(published < i < removed for i in folder_synced) or folder_synced[-1] < removed:
        raise SystemExit(f"the names in {folder} are not on the disk in their order: {calls}")


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
                output = victim.save(folder, 2, rank, moment)
                if output is not None:
                    break
                new += victim.check(folder, (1, 2), 3) == 2
                left = sorted(p.name for p in folder.iterdir())
                if left not in ([".lock", f"checkpoint-0000000{i}"] for i in (2, 3)):
                    raise SystemExit(f"after another save there are {left}")
                shutil.rmtree(folder)
                kills += 1
                moment += every
            victim.read(folder, (2,))
            check_order(folder, rank, re.findall(r"call (\w+) (.*)", output))
            shutil.rmtree(folder)
            all_moments = sum(2 if call == "write" else 1
                              for call, _ in re.findall(r"call (\w+) (.*)", output))
            print(f"{ranks} ranks, rank {rank} killed in save() at {kills} of {all_moments} "
                  f"moments: {kills - new} times the old checkpoint is there, {new} times the "
                  "new one", flush=True)
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
        print(f"{ranks} ranks, killed at {times} random moments during {number} saves: "
              f"{newer} times the checkpoint that was being saved is there, otherwise the one "
              "before it")


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
