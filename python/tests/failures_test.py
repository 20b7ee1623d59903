"""How programs on Kolo end when a rank fails: python failures_test.py [mpirun...]

Needs the package: pip install ./python. The rank that fails is rank 1. After each run no process is
left.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests"))

from marked_processes import MarkedProcesses  # noqa: E402

MPIRUN = sys.argv[1:] or ["mpirun", "--oversubscribe"]
LIMIT_S = 120
IMPORTS = """
import datetime, linecache, os, signal, sys, threading, time
import torch
import torch.distributed as dist
import kolo.distributed
"""
HEAD = IMPORTS + """
def interrupt_at(line):  # once the main thread waits in that line of Python
    def watch():
        before = None
        while True:
            frame = sys._current_frames()[threading.main_thread().ident]
            place = frame, frame.f_lasti
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if line in text and place == before:
                break
            before = place
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, daemon=True).start()

def step():
    model(torch.randn(4, 32)).sum().backward()

limit = datetime.timedelta(seconds=int(os.environ.get("LIMIT", 1000)))
dist.init_process_group("kolo", timeout=limit)
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
dist.barrier()
"""


class Job:
    """One run under mpirun."""

    def __init__(self, count, program, settings):
        self.processes = MarkedProcesses()
        self.folder = tempfile.TemporaryDirectory(prefix="kolo-failures-")
        self.output = pathlib.Path(self.folder.name) / "output"
        file = self.output.with_name("program.py")
        file.write_text(program)
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1",
                           PYTHONWARNINGS="ignore", **self.processes.variable, **settings)
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                [*MPIRUN, "-np", str(count), sys.executable, str(file)],
                env=environment, stdout=output, stderr=subprocess.STDOUT)

    def text(self):
        return self.output.read_text(errors="replace")

    def end(self):
        """Whether a process was left."""
        until = time.monotonic() + 10  # children see that their parent has ended
        while self.processes.pids() and time.monotonic() < until:
            time.sleep(0.1)
        left = self.processes.kill()
        self.process.wait()
        self.folder.cleanup()
        return bool(left)


class Failures(unittest.TestCase):
    def run_ranks(self, count, program, head=HEAD, fails=True, **settings):
        """What all ranks print."""
        job = Job(count, head + program, settings)
        text = status = None
        try:
            status = job.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            text = job.text()
            is_left = job.end()
        self.assertIsNotNone(status, f"the job does not end:\n{text}")
        self.assertFalse(is_left, f"a process is left:\n{text}")
        self.assertEqual(fails, status != 0, text)
        self.assertLess(len(text), 100_000, text[:10_000])
        return text

    def assert_names(self, text, how, reporter):
        """Another rank's error says how rank 1 failed. mpirun may mix the lines of two ranks."""
        self.assertRegex(text, rf"\[rank{reporter}\]: .*Error: .*rank 1 {re.escape(how)}")

    def test_a_killed_rank(self):
        text = self.run_ranks(2, """
step()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
step()
""")
        self.assert_names(text, "died: its process has ended", 0)

    def test_a_killed_rank_before_new_group(self):
        text = self.run_ranks(2, """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.new_group()
""")
        self.assert_names(text, "died: its process has ended", 0)

    def test_a_frozen_rank(self):
        text = self.run_ranks(2, """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(3))
""", LIMIT="3")
        self.assert_names(text, "did not submit operation", 0)

    def test_an_exception(self):
        text = self.run_ranks(3, """
if rank == 1:
    raise ValueError("part 7 of the data\\nis broken")
if rank == 2:
    time.sleep(1000)
step()
""")
        self.assertIn("[rank1]: ValueError: part 7 of the data", text)
        self.assertIn("""raise ValueError("part 7""", text)  # of the traceback
        self.assert_names(
            text, "ended with an uncaught exception: ValueError: part 7 of the data", 0)

    def test_an_exception_before_init_process_group(self):
        text = self.run_ranks(3, """
if kolo.distributed._kolo.rank() == 1:
    raise ValueError("no such model")
dist.init_process_group("kolo")
""", head=IMPORTS)
        self.assertIn("ValueError: no such model", text)
        self.assertIn("rank 1 ended with an uncaught exception: ValueError: no such model", text)

    def test_an_exception_in_a_hook(self):
        for place in ("state[0] == 1", "False"):
            text = self.run_ranks(2, f"""
def then(future):
    if rank == 1:
        raise ValueError("the hook is broken")
    return future.value()[0]
def hook(state, bucket):
    if {place}:
        raise ValueError("the hook is broken")
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(then)
model.register_comm_hook([rank], hook)
step()
dist.barrier()
""")
            self.assertIn("the hook is broken", text)
            self.assert_names(text, "ended with an uncaught exception: ", 0)
            self.assertRegex(text, r"\[rank0\]: .*the hook is broken")

    def test_sys_exit(self):
        text = self.run_ranks(2, """
if rank == 1:
    sys.exit(3)
step()
""")
        self.assert_names(text, "shut Kolo down", 0)

    def test_sys_exit_before_new_group(self):
        text = self.run_ranks(2, """
if rank == 1:
    sys.exit()
dist.new_group()
""")
        self.assert_names(text, "shut Kolo down", 0)

    def test_an_interrupt(self):
        """Of the rank that waits; in a collective, and for the members of a group."""
        for wait, line in (("dist.all_reduce(torch.ones(3))", "work.wait()"),
                           ("dist.new_group()", "_kolo.make_c10d_backend(")):
            text = self.run_ranks(2, f"""
if rank == 0:
    time.sleep(1000)
interrupt_at({line!r})
{wait}
""")
            self.assertIn("[rank1]: KeyboardInterrupt", text)
            self.assertNotIn("waitForInput", text)

    def test_workers_of_a_data_loader(self):
        text = self.run_ranks(2, """
    for context in ("fork", "spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(torch.arange(64.0).view(2, 32), num_workers=1,
                                             multiprocessing_context=context)
        for batch in loader:
            model(batch).sum().backward()
        del loader
    print(f"rank {rank} has trained", flush=True)
""", head=IMPORTS + "if __name__ == '__main__':" + HEAD[len(IMPORTS):].replace("\n", "\n    "),
                              fails=False)
        for rank in range(2):
            self.assertIn(f"rank {rank} has trained", text)

    def test_children(self):
        """They end in any way, and the ranks go on."""
        text = self.run_ranks(2, """
step()  # starts the thread of futures
for end in (sys.exit, dist.destroy_process_group, lambda: dist.all_reduce(torch.ones(1))):
    child = os.fork()
    if child == 0:
        # The store's server of rank 0 does not end in a child, with no matter which backend.
        end() if rank == 1 or end is not sys.exit else os._exit(0)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    step()
    print(f"status {status} of rank {rank}", flush=True)
""", fails=False)
        for rank in range(2):
            self.assertEqual(2, text.count(f"status 0 of rank {rank}"), text)
        self.assertIn("is a forked child", text)

    def test_ends_in_order(self):
        """Without destroy_process_group(), with works that nobody waits for."""
        text = self.run_ranks(2, """
dist.destroy_process_group()
dist.init_process_group("kolo")
group = dist.new_group()
dist.all_reduce(torch.ones(3), group=group)
works = [dist.irecv(torch.ones(3), 1 - rank) for _ in range(2)]
works[0].get_future().then(lambda future: None)
if rank == 1:
    time.sleep(0.5)
""", fails=False)
        self.assertEqual("", text)

    def test_members_that_come_late(self):
        text = self.run_ranks(2, """
if rank == 1:
    time.sleep(1)
dist.new_group()
""", fails=False)
        self.assertEqual("", text)

    def test_the_port_is_taken_from_the_start(self):
        self.run_ranks(2, """
import socket
socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
""", head=IMPORTS, fails=False)

    def test_sys_exit_with_a_message(self):
        text = self.run_ranks(2, """
if rank == 1:
    try:
        sys.exit("caught")
    except SystemExit:
        step()  # and nobody hears of it
    sys.exit("no such file\\nReally")
step()
step()
""")
        self.assertNotIn("caught", text)
        self.assertRegex(text, r"(?m)^no such file\nReally$")
        self.assert_names(text, "called sys.exit: no such file", 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
