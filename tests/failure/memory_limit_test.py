"""Under a memory limit for all ranks together, a model runs out of memory with Shard::None, but
trains with Shard::Full, construction included.

    memory_limit_test.py <memory_limit> <mpirun> <arguments before the program>...

The limit is set by a cgroup, of version 1 or 2, or by a systemd scope; without permission to create
one the test is skipped. These count shared memory, once; limits of single processes do not count
it.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

SKIPPED = 77
# 64 MiB of parameters on 4 ranks. None: 4 ranks * 4 copies, 1 GiB. Full: 4 copies, 256 MiB, and
# three buckets of 8 MiB on each rank. A process needs about 100 MiB in addition.
LIMIT_BYTES = 1100 << 20


class Cgroup:
    """A folder below the cgroup of this process."""

    def __init__(self):
        lines = [line.split(":", 2) for line in
                 pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
        first = {kind: place.lstrip("/") for _, kinds, place in lines for kind in kinds.split(",")}
        if "memory" in first:
            parent = pathlib.Path("/sys/fs/cgroup/memory") / first["memory"]
            limits = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        else:
            parent = pathlib.Path("/sys/fs/cgroup") / first.get("", "")
            limits = ["memory.max", "memory.swap.max"]
        self.folder = parent / f"kolo-memory-limit-{os.getpid()}"
        self.folder.mkdir()
        try:
            (self.folder / limits[0]).write_text(str(LIMIT_BYTES))
            if (self.folder / limits[1]).exists():  # limits swapped memory, too
                (self.folder / limits[1]).write_text(
                    str(LIMIT_BYTES) if "memsw" in limits[1] else "0")
            self.launch = ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh"]
            subprocess.run([*self.launch, "true"], check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            self.remove()
            raise

    def remove(self):
        for _ in range(100):  # killed processes may still be ending
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.1)


class Scope:
    """A systemd scope of this user."""

    def __init__(self):
        if not shutil.which("systemd-run"):
            raise OSError("no systemd-run")
        self.launch = ["systemd-run", "--user", "--scope", "--quiet", "-p",
                       f"MemoryMax={LIMIT_BYTES}", "-p", "MemorySwapMax=0"]
        subprocess.run([*self.launch, "true"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def remove(self):
        pass


def make_limit():
    for kind in (Cgroup, Scope):
        try:
            return kind()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{kind.__name__}: {error}")
    return None


def main(program, *mpirun):
    limit = make_limit()
    if limit is None:
        print("skipped: no cgroup that this user can make")
        return SKIPPED
    failures = 0
    try:
        for mode, launch, trains in [("none", [], True), ("none", limit.launch, False),
                                     ("full", limit.launch, True)]:
            done = subprocess.run([*launch, *mpirun, "4", program, mode], text=True, timeout=200,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            is_good = (done.returncode == 0 and "trained" in done.stdout) == trains
            print(f"{mode} {'with the limit' if launch else 'without limit'}: exit "
                  f"{done.returncode}" + ("" if is_good else f" -- failed\n{done.stdout}"),
                  flush=True)
            failures += not is_good
    finally:
        limit.remove()
    return 1 if failures else 0


sys.exit(main(*sys.argv[1:]))
