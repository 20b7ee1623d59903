"""What records, metrics and kolo-trace say of programs in Python, by torch.distributed and by hvd:
python insight_test.py [mpirun...]

Needs the package: pip install ./python. The last rank makes trouble in step 30 of 40.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests"))

from cases import main  # noqa: E402
from marked_processes import MarkedProcesses  # noqa: E402

MPIRUN = sys.argv[1:] or ["mpirun", "--oversubscribe"]
TRACE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "kolo_trace.py"
LIMIT_S = 120
HEADS = {"ddp": """
import kolo.distributed
import torch.distributed as dist
limit = datetime.timedelta(seconds=float(os.environ["LIMIT"]))
dist.init_process_group(timeout=limit)
rank, size = dist.get_rank(), dist.get_world_size()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=.01)
model = torch.nn.parallel.DistributedDataParallel(model)
def reduce(name):
    dist.all_reduce(torch.ones(3))
def make_sets(lists):
    return [dist.new_group(ranks, timeout=limit) for ranks in lists]
def reduce_in(group):
    dist.all_reduce(torch.ones(3), group=group)
""", "hvd": """
import kolo.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
model = make_model()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.01),
                                     named_parameters=model.named_parameters())
def reduce(name):
    hvd.allreduce_(torch.ones(3), name=name)
def make_sets(lists):
    return [hvd.add_process_set(ranks) for ranks in lists]
def reduce_in(process_set):
    hvd.allreduce_(torch.ones(3), name="in_set", process_set=process_set)
"""}
BEGIN = """
import datetime, os, signal, subprocess, sys, time
import torch
import kolo
torch.set_num_threads(1)
def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
"""
LOOP = """
def step():
    optimizer.zero_grad()
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
case = os.environ["CASE"]
last = size - 1
for number in range(1, 41):
    bad = number == 30 and rank == last
    if bad and case == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if bad and case == "stopped": os.kill(os.getpid(), signal.SIGSTOP)
    if bad and case == "ends": sys.exit(0)
    if bad and case == "throws": raise ValueError("this batch is damaged")
    if bad and case == "hangs": print("hangs", flush=True)
    if bad and case in ("hangs", "late"): time.sleep(1000 if case == "hangs" else 3)
    if case == "always_late" and rank == last:
        with kolo.span("load batch"): time.sleep(.03)
    if number == 30 and rank >= last - 1 and case == "two_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 30 and case == "sets_crosswise":
        groups = make_sets([[0, 1], [0, 1]])
        for group in groups[::-1] if rank else groups: reduce_in(group)
    step()
    if not (bad and case == "skips"):
        reduce("val_loss")
if case == "healthy":
    if rank == 0: print("trained", flush=True)
    time.sleep(2)
    reduce("end")
    time.sleep(1)
"""


class Job:
    """One run under mpirun."""

    def __init__(self, door, case, ranks=3, limit_s=1000, **settings):
        self.folder = tempfile.TemporaryDirectory(prefix="kolo-insight-")
        self.records = pathlib.Path(self.folder.name, "records")
        self._processes = MarkedProcesses()
        program = pathlib.Path(self.folder.name, "train.py")
        program.write_text(BEGIN + HEADS[door] + LOOP)
        environment = dict(os.environ, KOLO_RECORD=str(self.records), CASE=case,
                           KOLO_LOST_AFTER="2s", LIMIT=str(limit_s), KOLO_TIMEOUT=f"{limit_s}s",
                           OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMP_NUM_THREADS="1", **settings, **self._processes.variable)
        self._output = open(pathlib.Path(self.folder.name, "output"), "w+", errors="replace")
        self.process = subprocess.Popen([*MPIRUN, "-np", str(ranks), sys.executable, str(program)],
                                        env=environment, stdout=self._output,
                                        stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._processes.kill()
        self.process.kill()
        self.process.wait()
        self._output.close()
        self.folder.cleanup()

    def output(self):
        return pathlib.Path(self._output.name).read_text(errors="replace")

    def wait(self):
        self.process.wait(LIMIT_S)

    def trace(self, command, folder=None):
        run = subprocess.run([sys.executable, TRACE, command, folder or self.records], text=True,
                             capture_output=True, timeout=LIMIT_S, check=False)
        return run.stdout + run.stderr

    def cause(self):
        answer = self.trace("why")
        return next((line for line in answer.splitlines() if line.startswith("Most likely")),
                    answer + self.output())


def wait_until(holds):
    until = time.monotonic() + LIMIT_S
    while not holds() and time.monotonic() < until:
        time.sleep(.1)
    return holds()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class WhyTest(unittest.TestCase):
    def check(self, case, expected, **options):
        """The job fails; `expected`: by door, or of both."""
        for door in HEADS:
            with self.subTest(door, **options), Job(door, case, **options) as job:
                job.wait()
                self.assertRegex(job.cause(),
                                 expected[door] if isinstance(expected, dict) else expected)

    def test_a_killed_rank(self):
        for ranks in (2, 3, 4):
            self.check("killed", rf"rank {ranks - 1} died, as if killed", ranks=ranks)

    def test_two_killed_ranks(self):
        self.check("two_killed", "ranks? [23].* died, as if killed", ranks=4)

    def test_an_exception(self):
        self.check("throws", "an exception on rank 2: ValueError: this batch is damaged")

    def test_a_rank_that_ends_early(self):
        self.check("ends", "rank 2 ended before the others")

    def test_a_rank_that_hangs(self):
        self.check("hangs", r"rank 2 .*rank 2 was in forward of step 30, for", limit_s=4)

    def test_a_stopped_rank(self):
        # mpirun lets it go on to end it; in its record it was where it had stopped.
        self.check("stopped", r"rank 2 (is stopped or hangs|.*rank 2 was in forward of step 30)",
                   limit_s=4)

    def test_a_skipped_operation(self):
        self.check("skips", {"hvd": "rank 2 did not call allreduce val_loss in forward of step "
                                    "31, and went on to backward of step 31",
                             "ddp": "a mismatch: .* submitted allreduce .* submitted allreduce"},
                   limit_s=4)

    def test_sets_used_crosswise(self):
        self.check("sets_crosswise", "a cycle", ranks=2, limit_s=4)

    def test_a_job_that_is_well(self):
        for door in HEADS:
            with self.subTest(door), Job(door, "healthy") as job:
                self.assertTrue(wait_until(lambda: "trained" in job.output()), job.output())
                job.process.send_signal(signal.SIGUSR2)
                self.assertTrue(wait_until(lambda: len(list(job.records.glob("*.json"))) == 3))
                job.wait()
                self.assertRegex(job.cause(), "nothing is wrong.*all ranks are in step 41")

    def test_a_scheduler_that_ends_the_job(self):
        for door in HEADS:
            with self.subTest(door), Job(door, "hangs") as job:
                self.assertTrue(wait_until(lambda: "hangs" in job.output()), job.output())
                time.sleep(3)  # shorter waits explain nothing
                job.process.send_signal(signal.SIGTERM)
                job.wait()
                self.assertEqual(len(list(job.records.glob("*.json"))), 3, job.output())
                self.assertRegex(job.cause(), "rank 2 .*in forward of step 30")


class StragglersTest(unittest.TestCase):
    def check(self, case, ranks, expected):
        for door in HEADS:
            with self.subTest(door), tempfile.TemporaryDirectory() as timeline, \
                    Job(door, case, ranks=ranks, KOLO_TIMELINE=timeline) as job:
                job.wait()
                self.assertRegex(job.trace("stragglers", timeline), expected)

    def test_a_rank_that_is_slow_in_its_own_span(self):
        self.check("always_late", 4, r"rank 3 takes longer than the median of the others: forward "
                                     r".* in \d+ of \d+ steps, most of it in 'load batch'")

    def test_one_pause(self):
        self.check("late", 2, r"rank 1 takes longer .*forward .* 3(\.\d+)? s.* in step 30"
                              r"|rank 1 takes longer .* 3(\.\d+)? s in 1 of")


class MetricsTest(unittest.TestCase):
    def read(self, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
        return {name: float(value) for name, _, value in lines if not name.startswith("#")}

    def test_a_hang_shows_while_it_lasts(self):
        for door in HEADS:
            port = free_port()
            with self.subTest(door), Job(door, "hangs", KOLO_METRICS=f":{port}",
                                         KOLO_METRICS_LABELS="job_id=7") as job:
                def open_wait():
                    try:
                        return self.read(port)[
                            'kolo_open_wait_seconds{rank="0",peer="2",job_id="7"}'] > 2
                    except (OSError, KeyError):
                        return False
                self.assertTrue(wait_until(open_wait), job.output())
                values = self.read(port)
                self.assertEqual(values['kolo_steps_total{rank="0",job_id="7"}'], 29)
                since = time.time() \
                    - values['kolo_last_step_timestamp_seconds{rank="0",job_id="7"}']
                self.assertTrue(1 < since < LIMIT_S, since)
                # The rank that hangs answers, too: it waits for nobody.
                late = self.read(port + 2)
                self.assertEqual(
                    late['kolo_open_wait_seconds{rank="2",peer="unknown",job_id="7"}'], 0)

    def test_waits_name_the_late_rank(self):
        for door in HEADS:
            with self.subTest(door), tempfile.TemporaryDirectory() as folder, \
                    Job(door, "killed", KOLO_METRICS=f"{folder}/{{rank}}.prom") as job:
                job.wait()
                text = pathlib.Path(folder, "0.prom").read_text()
                self.assertRegex(text, r'kolo_records_total\{rank="0",job_id="\d+"\} [1-9]')


PREEMPTED = """
batches = iter(torch.utils.data.DataLoader(range(100000), num_workers=1))
state = torch.zeros(2)
count = 0
while True:
    state += 1
    next(batches)
    reduce("loss")
    count += 1
    if count == 20 and rank == last and case == "asks": kolo.request_preemption()
    if count == 20 and rank == last and case == "signal":
        assert os.getpgrp() == os.getpid()
        subprocess.run(["kill", "-USR1", "--", f"-{os.getpid()}"])  # also to the worker, as mpirun
        time.sleep(.2)
    if kolo.preempted():
        print(f"rank {rank} leaves after {int(state[0])}", flush=True)
        sys.exit(kolo.PREEMPTED_STATUS)
"""


class PreemptionTest(unittest.TestCase):
    def test_all_ranks_leave_after_the_same_step(self):
        global LOOP
        loop, LOOP = LOOP, 'case, last = os.environ["CASE"], size - 1\n' + PREEMPTED
        self.addCleanup(lambda: globals().update(LOOP=loop))
        for door in HEADS:
            for case in ("signal", "asks"):
                with self.subTest(f"{door} {case}"), Job(door, case) as job:
                    job.wait()
                    self.assertEqual(job.process.returncode, 75, job.output())
                    self.assertEqual(set(re.findall(r"leaves after (\d+)", job.output())), {"20"})

    def test_elastic_commits_and_leaves(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "train.py")
            program.write_text(BEGIN + f"""
import kolo.torch as hvd
hvd.init()
@hvd.elastic.run
def train(state):
    while state.batch < 30:
        state.batch += 1
        if state.batch == 12 and hvd.rank() == 1 and not os.path.exists({folder!r} + "/asked"):
            open({folder!r} + "/asked", "w").close()
            kolo.request_preemption()
        state.commit()
    print("ended at", state.batch)
train(hvd.elastic.TorchState(batch=0, path={folder!r} + "/state.pt"))
""")
            statuses = []
            for _ in range(2):
                run = subprocess.run([*MPIRUN, "-np", "2", sys.executable, str(program)], text=True,
                                     env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                                              OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"),
                                     capture_output=True, timeout=LIMIT_S)
                statuses.append(run.returncode)
            self.assertEqual(statuses, [75, 0], run.stderr)
            self.assertIn("ended at 30", run.stdout)


class MarksTest(unittest.TestCase):
    def test_functions_of_the_package(self):
        program = """
import kolo.torch as hvd, kolo, pathlib, sys
hvd.init()
kolo.mark("a moment")
with kolo.span("a span"):
    hvd.allreduce_(__import__("torch").ones(2), name="x")
kolo.enter_phase(kolo.TrainingPhase.BACKWARD)
kolo.enter_phase(kolo.TrainingPhase.FORWARD)
assert kolo.metrics()["kolo_steps_total"] == 1
kolo.enter_phase(kolo.TrainingPhase.STEP)
kolo.enter_phase(kolo.TrainingPhase.FORWARD)
assert kolo.metrics()["kolo_steps_total"] == 2
text = pathlib.Path(kolo.dump_record(sys.argv[1])).read_text()
assert '"a moment"' in text and '"a span"' in text 
"""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*MPIRUN, "-np", "2", sys.executable, "-c", program, folder], check=True,
                           timeout=LIMIT_S, env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                                                     OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))
            for rank in range(2):
                json.loads(pathlib.Path(folder, f"rank-{rank}.json").read_text())


if __name__ == "__main__":
    main()
