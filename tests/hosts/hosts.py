"""Simulated hosts on one machine, for tests between hosts. Each has its own network, name, IPC,
processes, mounts, /dev/shm and monotonic clock, a second apart; a bridge connects them. They are
namespaces of this process, so nothing is left behind however it ends. Needs root, or equivalent
capabilities, and iproute2.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path("/media")  # a separate file system, visible to all hosts
NETWORK = "10.77.0"
INSIDE = "KOLO_TEST_INSIDE_NAMESPACES"
UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child",
           "--mount-proc"]
TRIAL = ("mount -t tmpfs tmpfs /media && ip link set lo up && ip link add bridge0 type bridge && "
         "ip link add probe0 type veth peer name probe1 && "
         "ip link set probe0 master bridge0")
# A refused connection proves that packets come back.
REACH = """import socket, sys
while True:
    try:
        socket.create_connection((sys.argv[1], 9), timeout=0.1).close()
    except ConnectionRefusedError:
        break
    except OSError:
        pass
"""


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def problem(launcher):
    """Why simulated hosts cannot be created here; None if they can."""
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:
        return f"{launcher} is not Open MPI's, whose options start programs here"
    for tool in ("unshare", "nsenter", "setpriv", "ip"):
        if shutil.which(tool) is None:
            return f"no {tool}: install util-linux and iproute2"
    trial = subprocess.run([*UNSHARE, "sh", "-c", TRIAL], capture_output=True, text=True)
    if trial.returncode == 0:
        return None
    return f"the kernel gives no namespaces with a bridge: {trial.stderr.strip() or trial.stdout}"


def enter_namespaces():
    """Runs this program again in new namespaces, which end with it."""
    if INSIDE in os.environ:
        return
    # unshare itself ignores SIGTERM, and so does the first process of a PID namespace.
    inside = subprocess.run(["setpriv", "--pdeathsig", "KILL", *UNSHARE, sys.executable, *sys.argv],
                            env={**os.environ, INSIDE: "yes"}, check=False)
    sys.exit(inside.returncode)


class Hosts:
    """The simulated hosts. `enter_namespaces` must be called first."""

    def __init__(self, count, *, without_mpi=False):
        self.without_mpi = without_mpi
        self.names = [f"host{chr(ord('a') + i)}" for i in range(count)]
        self._processes = []
        self._jobs = []
        run("mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", str(FOLDER))
        run("ip", "link", "set", "lo", "up")
        # Otherwise the bridge has the address of one of its ports, which changes as ports come and
        # go.
        run("ip", "link", "add", "bridge0", "address", "02:00:00:00:00:01", "type", "bridge")
        run("ip", "link", "set", "bridge0", "up")
        run("ip", "address", "add", f"{NETWORK}.254/24", "dev", "bridge0")
        known = "127.0.0.1 localhost\n" + "".join(
            f"{NETWORK}.{i + 1} {name}\n" for i, name in enumerate(self.names))
        (FOLDER / "hosts").write_text(known)
        run("mount", "--bind", str(FOLDER / "hosts"), "/etc/hosts")
        for i, name in enumerate(self.names):
            self._start(name, f"{NETWORK}.{i + 1}/24", i)

    def _start(self, name, address, clock_offset_s):
        # The host's first process reaps orphans, like init.
        script = (f"hostname {name} && mount -t tmpfs -o size=1g tmpfs /dev/shm && "
                  f"ip link set lo up && exec sleep infinity")
        process = subprocess.Popen([*UNSHARE, "--time", "--monotonic", str(clock_offset_s), "sh",
                                    "-c", script])
        self._processes.append(process)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            time.sleep(0.01)
        first = children.read_text().split()[0]
        while pathlib.Path(f"/proc/{first}/comm").read_text().strip() != "sleep":
            time.sleep(0.01)
        (FOLDER / name).write_text(first)
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", first)
        run("ip", "link", "set", name, "master", "bridge0", "up")
        self.run(name, "ip", "address", "add", address, "dev", "eth0")
        self.run(name, "ip", "link", "set", "eth0", "up")
        self._wait_for_link(name)

    def command(self, host, *command):
        first = (FOLDER / host).read_text()
        return ["nsenter", "--target", first, "--net", "--uts", "--ipc", "--mount", "--pid",
                "--time", "--", *command]

    def run(self, host, *command):
        return run(*self.command(host, *command))

    def unplug(self, host):
        run("ip", "link", "set", host, "down")

    def plug_in(self, host):
        run("ip", "link", "set", host, "up")
        self._wait_for_link(host)

    def _wait_for_link(self, host):
        """Needed because the kernel takes up to a second to detect that a link is up."""
        self.run(host, sys.executable, "-c", REACH, f"{NETWORK}.254")

    def slow_down(self, rate):
        """Limits the rate at which each host receives, such as "50mbit"."""
        for name in self.names:
            run("tc", "qdisc", "replace", "dev", name, "root", "tbf", "rate", rate, "burst", "64kb",
                "latency", "50ms")

    def full_speed(self):
        for name in self.names:
            run("tc", "qdisc", "del", "dev", name, "root")

    def lose(self, percent):
        """Drops this percentage of the packets that each host receives, at random."""
        for name in self.names:
            self.run(name, "nft", "add table ip loss; add chain ip loss input "
                     "{ type filter hook input priority 0; }; add rule ip loss input iif eth0 "
                     f"numgen random mod 1000 < {round(10 * percent)} drop")

    def lose_nothing(self):
        for name in self.names:
            self.run(name, "nft", "delete table ip loss")

    def mpirun(self, launcher, ranks_per_host, program, *, options=(), variables=None):
        """Starts a program on all hosts. mpirun itself runs on none of them."""
        folder = tempfile.mkdtemp(dir=FOLDER)
        where = ",".join(f"{name}:{ranks_per_host}" for name in self.names)
        environment = {**os.environ, "KOLO_TEST_HOSTS": str(FOLDER), "TMPDIR": folder,
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMP_NUM_THREADS": "1", **(variables or {})}
        if self.without_mpi:  # mpirun starts the ranks, which find each other in a folder
            environment["KOLO_RENDEZVOUS"] = f"{folder}/rendezvous"
        agent = pathlib.Path(__file__).with_name("agent.sh")
        settings = {"plm_rsh_agent": agent, "btl": "tcp,self,vader", "mpi_yield_when_idle": "1",
                    "btl_tcp_if_include": f"{NETWORK}.0/24",
                    "oob_tcp_if_include": f"{NETWORK}.0/24"}
        mca = [word for name, value in settings.items() for word in ("--mca", name, str(value))]
        command = [launcher, *mca, "-H", where, *options, *map(str, program)]
        job = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace")
        self._jobs.append(job)
        return job

    def end_jobs(self):
        """Kills all processes except the first one of each host."""
        for job in self._jobs:
            job.kill()
            job.wait()
            job.stdout.close()
        self._jobs.clear()
        for name in self.names:
            subprocess.run(self.command(name, "sh", "-c", "rm -f /dev/shm/*; kill -9 -1"),
                           check=False, capture_output=True)

    def end(self):
        for name in self.names:
            run("ip", "link", "del", name)  # removed now: the namespace may end later
        for process in self._processes:
            process.kill()
            process.wait()
        run("umount", "/etc/hosts")
        run("ip", "link", "del", "bridge0")
        run("umount", "-l", str(FOLDER))
