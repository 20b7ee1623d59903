#!/usr/bin/env python3
"""Kolo on two and three hosts, simulated by namespaces of this machine: collectives, every shard
mode, checkpoints, join, a rank that dies, a host that vanishes, and slow or lossy networks.

    hosts_test.py <folder of the test programs> <mpirun>

Prints a table of the results. Skipped if the kernel or the permissions do not suffice.
"""

import argparse
import fnmatch
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402
import summary  # noqa: E402
from hosts import FOLDER, Hosts, enter_namespaces, problem  # noqa: E402

SKIPPED = 77
parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--all", action="store_true", help="the long list, also on three hosts")
parser.add_argument("--without-mpi", action="store_true",
                    help="ranks find each other in a folder, and exchange messages over UCX")
parser.add_argument("programs", type=pathlib.Path, help="folder of the test programs")
parser.add_argument("mpirun")
OPTIONS = parser.parse_args()
if not (OPTIONS.programs / "victim").exists():
    parser.error(f"{OPTIONS.programs} has no victim: give build/release/tests, once it is built")
PROGRAMS, MPIRUN = OPTIONS.programs.resolve(), OPTIONS.mpirun
RANKS = 2  # per host
CONTRACT = "*AllReduceOfEveryType*:*BroadcastFromEveryRoot*:*AllGatherOfUnevenRows*"
NOT_OF_ONE_HOST = "-*KnowsWhoSharesItsNode*"
TRAINING = "whole_tensors_test", "*Steps_AreThoseOfOneProcess/Muon"  # in all shard modes
MODELS = "*.FiftySteps_EndAlike/tied"
JOIN = "*JoinedRanks_*"
CHECKPOINTS = "*Checkpoint_HasTheValuesOfTheCall"
TRACE = pathlib.Path(__file__).parents[2] / "examples/kolo_trace.py"
VANISHED = re.compile(r"rank (\d+) cannot be reached: nothing has come from host (\w+)")

rows = []  # of the table


class HostsTest(unittest.TestCase):
    count = 2

    @classmethod
    def setUpClass(cls):
        cls.hosts = Hosts(cls.count, without_mpi=OPTIONS.without_mpi)

    @classmethod
    def tearDownClass(cls):
        cls.hosts.end()

    def setUp(self):
        self.started = time.monotonic()
        self.note = ""

    def tearDown(self):
        self.hosts.end_jobs()
        rows.append((f"{self.count} hosts", self._testMethodName.removeprefix("test_"), self.note,
                     f"{time.monotonic() - self.started:.1f} s"))

    @property
    def ranks(self):
        return RANKS * self.count

    def passes(self, program, tests, meanwhile=None, **variables):
        """Runs GoogleTests on all hosts, and adds their number to the table."""
        variables["KOLO_FAKE_NODES"] = str(self.count)  # tells tests how many nodes to expect
        results = variables["KOLO_TEST_RESULTS"] = str(FOLDER / f"results-{time.monotonic_ns()}")
        command = [PROGRAMS / program, "--longest-test=600", f"--gtest_filter={tests}"]
        job = self.hosts.mpirun(MPIRUN, RANKS, command, variables=variables)
        beside = threading.Thread(target=meanwhile or (lambda _: None), args=[job])
        beside.start()
        output, _ = job.communicate(timeout=900)
        beside.join()
        passed = summary.passed_cases(results)
        self.assertEqual(job.returncode, 0, output[-5000:])
        for pattern in tests.partition("-")[0].split(":"):
            self.assertTrue(fnmatch.filter(passed, pattern or "*"), f"nothing like {pattern}")
        self.note += f"{', ' if self.note else ''}{len(passed)} tests"

    def start_victim(self, scenario, victim=-1, **variables):
        """Starts a program of tests/failure. Returns the folder to which its ranks write."""
        folder = FOLDER / f"{scenario}-{time.monotonic_ns()}"
        folder.mkdir()
        variables |= {"KOLO_TEST_FOLDER": str(folder), "KOLO_TEST_VICTIM": str(victim)}
        self.hosts.mpirun(MPIRUN, RANKS, [PROGRAMS / "victim", scenario],
                          options=["--enable-recovery"], variables=variables)
        return folder

    def wait_for(self, what, holds, limit_s):
        """Waits until `holds()` is true. Returns how many seconds that took."""
        started = time.monotonic()
        while not holds():
            if time.monotonic() > started + limit_s:
                self.fail(f"{what}: not within {limit_s} s")
            time.sleep(0.02)
        return time.monotonic() - started

    def texts(self, folder):
        return [path.read_text() if path.exists() else ""
                for path in (folder / f"{rank}.err" for rank in range(self.ranks))]

    def start_idle_ranks(self, **variables):
        folder = self.start_victim("sleeps", **variables)
        self.wait_for("all ranks sleep", lambda: len(list(folder.glob("warm.*"))) == self.ranks, 60)
        return folder

    def expect_vanished(self, host, lost_after_s, limit_s, **variables):
        """A host vanishes: all ranks detect it in time, though no rank waits for another."""
        folder = self.start_idle_ranks(KOLO_LOST_AFTER=f"{lost_after_s}s", **variables)
        self.hosts.unplug(self.hosts.names[host])
        try:
            took = self.wait_for(
                "all ranks know that a host is gone",
                lambda: all(VANISHED.search(text) for text in self.texts(folder)), limit_s)
        finally:
            self.hosts.plug_in(self.hosts.names[host])
        lowest = str(RANKS * host)
        for rank, text in enumerate(self.texts(folder)):
            named = VANISHED.search(text).groups()
            if rank // RANKS != host:
                self.assertEqual(named, (lowest, self.hosts.names[host]), text)
            else:
                self.assertNotEqual(named[1], self.hosts.names[host], text)
        self.note += f"{' ' if self.note else ''}{took:.1f} s"

    def kolo_trace(self, *arguments):
        run = subprocess.run([sys.executable, TRACE, *arguments], capture_output=True, text=True,
                             check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def expect_one_clock(self, trace):
        """No rank ends a collective before all have begun to move its data.

        After the correction both may happen at once, and each time has been rounded to 1 ns: so
        times are compared as whole ns, and may differ by one.
        """
        begun, ended = {}, {}
        for event in trace:
            if event["cat"] != "move":
                continue
            number = event["args"]["collective"]
            begun.setdefault(number, []).append(round(1e3 * event["ts"]))
            ended.setdefault(number, []).append(round(1e3 * (event["ts"] + event["dur"])))
        self.assertGreater(len(begun), 30)
        for number, times in begun.items():
            self.assertEqual(len(times), self.ranks, f"collective {number}")
            self.assertLessEqual(max(times), min(ended[number]) + 1, f"collective {number}")

    def expect_death(self, victim):
        folder = self.start_victim("busy", victim, KOLO_TEST_MOMENT_US="300000")
        self.wait_for("the death", (folder / "death").exists, 60)
        others = [rank for rank in range(self.ranks) if rank != victim]
        took = self.wait_for("the others end", lambda: all(
            (folder / f"{rank}.status").exists() for rank in others), 20)
        for rank in others:
            text = (folder / f"{rank}.err").read_text()
            ending = (folder / f"{rank}.status").read_text()
            self.assertRegex(text, rf"caught: .*rank {victim} died", f"rank {rank}: {ending}")
        self.note += f"{' ' if self.note else ''}{took:.1f} s"


class OnTwoHosts(HostsTest):
    def test_collectives(self):
        self.passes("runtime_mpi_test", CONTRACT)

    @unittest.skipUnless((PROGRAMS / "train_test").exists(), "built without LibTorch")
    def test_shard_modes_checkpoints_and_join(self):
        self.passes(*TRAINING)
        self.passes("train_test", f"{JOIN}:{CHECKPOINTS}")
        self.passes("sharded_models_test", MODELS)

    def test_rank_dies(self):
        self.expect_death(3)

    def test_timelines_on_one_clock(self):
        folder = FOLDER / "timeline"
        job = self.hosts.mpirun(MPIRUN, RANKS, [PROGRAMS / "trouble", "late"],
                                variables={"KOLO_TIMELINE": str(folder)})
        output, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, output)
        offsets = []
        for rank in range(self.ranks):
            trace = json.loads((folder / f"rank-{rank}.json").read_text())
            offsets.append(trace[0]["args"]["to_world_clock_us"])
        for rank, offset in enumerate(offsets):
            self.assertAlmostEqual(offset, -1e6 * (rank // RANKS), delta=5e4)
        merged = FOLDER / "merged.json"
        self.kolo_trace("merge", folder, "-o", merged)
        self.expect_one_clock(json.loads(merged.read_text()))
        self.assertIn("rank 1 ", self.kolo_trace("stragglers", folder))
        self.note += f"clocks {max(offsets) - min(offsets):.0f} us apart"


class OfTwoHosts(HostsTest):
    """On separate hosts, since mpirun may start slowly just after a link was down."""

    def both_hosts_recorded(self, folder):
        run = subprocess.run([sys.executable, TRACE, "why", folder], capture_output=True, text=True,
                             check=False)
        return "the network between hosts failed" in run.stdout.partition("\n")[0]

    def test_one_vanishes(self):
        folder = FOLDER / "records"
        self.expect_vanished(1, lost_after_s=2, limit_s=7, KOLO_RECORD=str(folder))
        name = self.hosts.names[1]
        # A rank reports the loss before it writes its record.
        self.wait_for("records of both hosts", lambda: self.both_hosts_recorded(folder), 10)
        for rank in range(RANKS, 2 * RANKS):
            # A rank whose neighbour was first has written none.
            (folder / f"rank-{rank}.json").unlink(missing_ok=True)
        self.assertIn(f"a host vanished: nothing came from host {name} ",
                      self.kolo_trace("why", folder).splitlines()[0])


class All:
    """The long list."""

    def test_whole_contract(self):
        self.passes("runtime_mpi_test", NOT_OF_ONE_HOST)

    def test_training(self):
        self.passes("train_test", "*ShardedTraining*")
        self.passes("sharded_models_test", "*")

    def test_checkpoints(self):
        left_out = "*CheckpointedModels*:*ForgedCheckpoint*"
        if self.ranks > 4:
            left_out += ":*Training_ResumesAtAnyWorldSize*"  # its batch has too few rows
        self.passes("train_test", f"*Checkpoint*-{left_out}")

    def test_join(self):
        self.passes("train_test", "*Join*")

    def test_each_rank_dies(self):
        for victim in range(self.ranks):
            self.expect_death(victim)
            self.hosts.end_jobs()

    def test_link_comes_back_in_time(self):
        """While ranks train, a link is down for 3 s again and again; KOLO_LOST_AFTER is 10 s."""
        times = 0

        def pull_cables(job):
            nonlocal times
            time.sleep(3)
            while job.returncode is None:
                host = self.hosts.names[times % self.count]
                self.hosts.unplug(host)
                time.sleep(3)
                self.hosts.plug_in(host)
                times += 1
                time.sleep(3)

        self.passes(*TRAINING, pull_cables)
        self.passes("train_test", JOIN, pull_cables)
        self.passes("sharded_models_test", MODELS)
        self.note += f", {times} times down"

    def test_slow_link(self):
        self.hosts.slow_down("20mbit")
        self.addCleanup(self.hosts.full_speed)
        self.note = "20 Mbit/s"
        self.passes("runtime_mpi_test", CONTRACT)
        self.passes(*TRAINING)
        self.passes("sharded_models_test", MODELS)

    @unittest.skipUnless(shutil.which("nft"), "no nft: install nftables")
    def test_random_loss(self):
        self.hosts.lose(1)
        self.addCleanup(self.hosts.lose_nothing)
        self.note = "1 % of packets"
        self.passes("runtime_mpi_test", CONTRACT)
        self.passes(*TRAINING)
        self.passes("sharded_models_test", MODELS)


if OPTIONS.all:
    class AllOnTwoHosts(All, HostsTest):
        pass

    class AllOnThreeHosts(All, HostsTest):
        count = 3

        def test_host_vanishes_ten_times(self):
            for i in range(10):
                self.expect_vanished(i % self.count, lost_after_s=10, limit_s=15)
                self.hosts.end_jobs()


def print_table():
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    if (reason := problem(MPIRUN)) is not None:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    enter_namespaces()
    try:
        cases.main()
    finally:
        print_table()
