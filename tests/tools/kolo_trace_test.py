"""Tests of kolo-trace on files whose answers are known.

    kolo_trace_test.py <kolo-trace>
"""

import fcntl
import json
import os
import pathlib
import re
import runpy
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import unittest.mock
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
MS, S = 1e3, 1e6
NOW = 900 * S  # on the clock of rank 0's host


class RankFile:
    """What Kolo writes for one rank. Times are those of the world; `behind` is how much less its
    host's clock shows, `estimated` how much less Kolo believes it to show."""

    def __init__(self, rank, size, host="a", behind=0.0, estimated=None, why="requested",
                 written=NOW, **meta):
        self.rank, self._behind = rank, behind
        self.lines = []
        self._uses = 0
        self.add("kolo_rank", "__metadata", "M", None, format=2, rank=rank, size=size, host=host,
                 to_world_clock_us=behind if estimated is None else estimated, why=why, process=7,
                 clock_us=written - behind, wall_clock_us=1e15 + written, **meta)
        self.add("process_name", "__metadata", "M", None, name=f"rank {rank} on {host}")

    def add(self, name, category, kind, begin, duration=None, event=(), /, **args):
        values = {"name": name, "cat": category, "ph": kind, "pid": self.rank, "tid": 1,
                  **dict(event), "args": args}
        if begin is not None:
            values["ts"] = round(begin - self._behind, 3)
        if duration is not None:
            values["dur"] = round(duration, 3)
        self.lines.append(json.dumps(values))

    def operation(self, name, times, number=0, set="world", **args):
        """`times`: of submission, agreement, start, end; one that fails earlier has fewer."""
        self._uses += 1
        args = {"set": set, "collective": number, "use": self._uses, "bytes": 4, "last_rank": -1,
                "late_us": 0, "waited_us": 0, "waited_for": -1, **args}
        for category, begin, end in zip(("negotiate", "queue", "move"), times, times[1:]):
            if end > begin:
                self.add(name, category, "X", begin, end - begin, **args)

    def pending(self, name, since, state="submitted", set="world", written=NOW, **args):
        self._uses += 1
        self.add(name, "pending", "B", since, set=set, use=self._uses, state=state,
                 waiting_us=written - since, **{"collective": 0, "awaiting": -1, **args})

    def phase(self, name, step, begin, end=None, **args):
        if end is None:
            self.add(name, "phase", "B", begin, step=step, **args)
        else:
            self.add(name, "phase", "X", begin, end - begin, step=step, **args)

    def error(self, kind, text, at=NOW - 1 * MS, lost_rank=-1):
        self.add(text, "error", "i", at, None, {"s": "p"}, kind=kind, lost_rank=lost_rank)

    def text(self):
        return "[\n" + ",\n".join(self.lines) + "\n]\n"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def path(self, rank):
        return self.folder / f"rank-{rank}.json"

    def write(self, *files, cut=()):
        """Writes them; those of the ranks `cut` end in the middle of their last event."""
        for file in files:
            text = file.text()
            self.path(file.rank).write_text(text[:-20] if file.rank in cut else text)

    def run_trace(self, command, *arguments, status=0):
        """Standard output and standard error."""
        result = subprocess.run([sys.executable, PROGRAM, command, str(self.folder), *arguments],
                                capture_output=True, text=True, check=False, cwd=self.folder)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result.stdout, result.stderr

    def training(self, size=4, steps=20, extra=None, exposed=True, **meta):
        """Each step has 10 ms forward, 20 ms backward, 2 ms of the optimizer. `extra(rank, step)`
        adds to the first two. All wait in step() for the slowest rank, which submits two buckets
        with its last gradients."""
        extra = extra or (lambda rank, step: (0, 0))
        files = [RankFile(rank, size, "ab"[rank % 2], why="timeline", **meta)
                 for rank in range(size)]
        now = 1 * S
        for step in range(1, steps + 1):
            more = [[time * MS for time in extra(rank, step)] for rank in range(size)]
            ready = [now + 30 * MS + sum(own) for own in more]
            last = ready.index(max(ready))
            for rank, file in enumerate(files):
                forward = now + 10 * MS + more[rank][0]
                file.phase("forward", step, now, forward)
                file.phase("backward", step, forward, ready[rank])
                for bucket in (1, 2):
                    file.operation(f"allreduce bucket.{bucket}",
                                   [ready[rank], ready[last], ready[last], ready[last] + 1 * MS],
                                   2 * step + bucket - 2, last_rank=last, step=step,
                                   late_us=ready[last] - ready[rank])
                end = ready[last] + 3 * MS
                file.phase("step", step, ready[rank], end,
                           exposed_us=end - ready[rank] - 2 * MS if exposed else 0)
            now = end
        return files


class Why(Case):
    def cause(self):
        """What the first line says; the others are one per rank."""
        self.output, self.errors = self.run_trace("why")
        first, empty, *self.ranks = self.output.splitlines()
        self.assertEqual(empty, "")
        return first.removeprefix("Most likely cause: ")

    def ranks_of_a_deadline(self, size=4, culprit=2, **meta):
        """All but one rank have waited 12.4 s for it, and got a TimeoutError."""
        for rank in range(size):
            file = RankFile(rank, size, **meta)
            file.operation("allreduce layer3", [NOW - 14 * S, NOW - 13.9 * S, NOW - 13.8 * S,
                                                NOW - 13 * S], 41)
            if rank == culprit:
                file.phase("forward", 812, NOW - 14 * S, NOW - 12.5 * S)
                file.phase("backward", 812, NOW - 12.5 * S)
            else:
                file.operation("allreduce layer4", [NOW - 12.4 * S + rank * MS, NOW],
                               error="late", error_kind="timeout")
                file.phase("step", 812, NOW - 12.3 * S)
                file.error("timeout", "allreduce 'layer4' on process set world: the deadline "
                                      "passed on rank 0 while rank 2 had not submitted it.")
            yield file

    def test_nothing_wrong(self):
        for rank in range(2):
            file = RankFile(rank, 2)
            file.operation("allreduce x", [NOW - 9 * MS, NOW - 8 * MS, NOW - 7 * MS, NOW - 4 * MS])
            file.pending("allreduce y", NOW - 3 * MS)
            file.phase("backward", 5, NOW - 10 * MS)
            self.write(file)
        self.assertEqual(self.cause(), "nothing is wrong: there are no errors, and nobody waits "
                                       "for long; all ranks are in step 5")
        self.assertEqual(self.ranks[1], "rank 1 on a: in backward of step 5, for 10 ms; waits 3 ms "
                                        "in allreduce y")
        self.assertEqual(self.errors, "")

    def test_a_rank_alone(self):
        file = RankFile(0, 1)
        file.operation("allreduce x", [NOW - 9 * S, NOW - 8 * S, NOW - 8 * S, NOW - 4 * S])
        self.write(file)
        self.assertIn("nothing is wrong", self.cause())
        self.assertEqual(self.ranks, ["rank 0 on a: after allreduce x, 4 s before"])

    def test_deadline(self):
        self.write(*self.ranks_of_a_deadline())
        self.assertEqual(self.cause(), "the deadline passed: rank 2 did not submit allreduce "
                         "layer4, for which ranks 0, 1 and 3 waited 12.4 s; rank 2 was in backward "
                         "of step 812, for 12.5 s")
        self.assertRegex(self.ranks[3], "^rank 3 on a: in step.. of step 812, for 12.3 s; waits "
                                        "12.4 s for rank 2 in allreduce layer4; error: allreduce")
        self.assertEqual(self.ranks[2], "rank 2 on a: in backward of step 812, for 12.5 s")

    def test_the_root_of_a_chain(self):
        files = [RankFile(rank, 3) for rank in range(3)]
        files[0].pending("allreduce x", NOW - 30 * S)
        for name in "xy":  # rank 2 has submitted neither
            files[1].pending(f"allreduce {name}", NOW - 20 * S)
        files[0].pending("receive z", NOW - 40 * S, peer=1)
        files[2].phase("forward", 9, NOW - 31 * S)
        self.write(*files)
        self.assertEqual(self.cause(), "rank 2 did not submit allreduce x, for which ranks 0 and 1 "
                                       "waited 30 s; rank 2 was in forward of step 9, for 31 s")
        self.assertIn("waits 40 s for rank 1 in receive z and 1 more", self.ranks[0])

    def test_what_the_waiting_ranks_know(self):
        """Whom an operation waits for counts where no record says who has not submitted it."""
        files = [RankFile(rank, 4) for rank in range(2)]
        for file in files:
            file.pending("allreduce x", NOW - 30 * S, awaiting=3)
        self.write(*files)
        self.assertIn("rank 3 did not submit allreduce x, for which ranks 0 and 1 waited 30 s; "
                      "rank 3 left no record", self.cause())

    def test_the_stack_of_the_late_rank(self):
        *others, late = self.ranks_of_a_deadline(size=3)
        late.add("main thread", "stack", "i", NOW - 1 * MS,
                 functions=["read\n(int)", "(anonymous namespace)::load(char*)", "main", "x"])
        self.write(*others, late)
        self.assertTrue(self.cause().endswith(
            "rank 2 was in backward of step 812, for 12.5 s; its main thread was in read, from "
            "(anonymous namespace)::load, from main"))

    def test_a_job_that_mpirun_has_ended(self):
        """Before its ranks knew why."""
        files = [RankFile(rank, 4, why="requested by SIGTERM") for rank in range(2)]
        for file in files:
            file.pending("allreduce x", NOW - 30 * MS)
        self.write(*files)
        self.assertEqual(self.cause(), "ranks 2 and 3 left no record: died, as if killed, unless "
                         "the files are elsewhere; SIGTERM ended the others, as mpirun does when a "
                         "rank has died")

    def test_a_rank_that_goes_on_after_it_was_stopped(self):
        *others, late = self.ranks_of_a_deadline(size=3)
        late = RankFile(2, 3, why="requested by SIGTERM", written=NOW + 2 * S)
        late.phase("forward", 812, NOW - 14 * S, NOW + 1.9 * S)
        late.phase("backward", 812, NOW + 1.9 * S)
        late.add("main thread", "stack", "i", NOW + 2 * S, functions=["pause"])
        self.write(*others, late)
        self.assertRegex(self.cause(), "rank 2 was in forward of step 812, for 14 s$")

    def test_several_roots(self):
        files = [RankFile(rank, 4) for rank in range(4)]
        files[0].pending("allreduce x", NOW - 30 * S)
        files[2].pending("allreduce x", NOW - 20 * S)
        files[3].phase("backward", 7, NOW - 31 * S)
        self.write(*files)
        self.assertEqual(self.cause(), "ranks 1 and 3 did not submit allreduce x, for which ranks "
                         "0 and 2 waited 30 s; rank 1 was at its start; rank 3 was in backward of "
                         "step 7, for 31 s")

    def test_cycle(self):
        files = [RankFile(rank, 2) for rank in range(2)]
        files[0].pending("allreduce x", NOW - 30 * S)
        files[1].pending("allreduce y", NOW - 20 * S)
        self.write(*files)
        self.assertEqual(self.cause(), "a cycle, as when ranks submit operations in different "
                         "orders, or one leaves one out: rank 0 waits for rank 1 in allreduce x, "
                         "rank 1 waits for rank 0 in allreduce y")

    def test_only_members_of_a_process_set_are_awaited(self):
        files = [RankFile(rank, 3) for rank in range(3)]
        files[0].pending("allreduce x", NOW - 30 * S, set="{0, 2}")
        self.write(*files)
        self.assertIn("rank 2 did not submit allreduce x on process set {0, 2}, for which rank 0 "
                      "waited 30 s", self.cause())

    def test_sets_of_the_same_members(self):
        files = [RankFile(rank, 2) for rank in range(2)]
        for file in files:
            file.pending("allreduce x", NOW - (30 + file.rank) * S, set="{0, 1}",
                         set_number=1 + file.rank)
        self.write(*files)
        self.assertIn("a cycle", self.cause())

    def test_three_sets_crosswise(self):
        files = [RankFile(rank, 3) for rank in range(3)]
        for file, members in zip(files, ("{0, 1}", "{1, 2}", "{0, 2}")):
            file.pending("allreduce x", NOW - 30 * S, set=members, set_number=file.rank + 1)
        self.write(*files)
        self.assertIn("a cycle", self.cause())
        for waiter in range(3):
            self.assertIn(f"rank {waiter} waits for rank {(waiter + 1) % 3} in allreduce x on "
                          "process set {", self.output)

    def test_an_operation_that_a_rank_has_left_out(self):
        files = [RankFile(rank, 4) for rank in range(4)]
        for file in files:
            left_out = file.rank == 2
            file.pending("allreduce layer1" if left_out else "allreduce val_loss",
                         NOW - (20 if left_out else 30) * S, step=51 if left_out else 50,
                         phase="backward" if left_out else "forward")
        self.write(*files)
        self.assertEqual(self.cause(), "rank 2 did not call allreduce val_loss in forward of step "
                         "50, and went on to backward of step 51: ranks 0, 1 and 3 wait for rank 2 "
                         "in allreduce val_loss, rank 2 waits for rank 0 in allreduce layer1")

    def test_messages(self):
        files = [RankFile(rank, 3) for rank in range(3)]
        files[1].pending("receive x", NOW - 30 * S, peer=0)
        files[0].pending("send x", NOW - 30 * S, peer=2)  # another one
        files[2].pending("receive x", NOW - 3 * S, peer=0)
        self.write(*files)
        self.assertIn("rank 0 did not submit the counterpart of receive x, for which rank 1 waited "
                      "30 s", self.cause())
        files[1].lines[-1] = files[1].lines[-1].replace('"peer": 0', '"tag": 5')
        self.write(files[1])
        self.assertEqual(self.cause(), "unknown: rank 0 waits up to 30 s in send x, ranks 1 and 2 "
                         "wait up to 30 s in receive x, but no rank is known to be missing there")
        self.assertIn("waits 30 s in receive x", self.ranks[1])

    def test_data_that_do_not_move(self):
        files = [RankFile(rank, 3) for rank in range(3)]
        for file, awaiting in zip(files, (1, 2, -1)):
            file.pending("allreduce x", NOW - 30 * S, "moving", awaiting=awaiting, collective=4)
        files[2].pending("allreduce y", NOW - 40 * S, "agreed")  # which the others have ended
        self.write(*files)
        self.assertIn("rank 2 did not move the data of allreduce x, for which rank 1 waited 30 s",
                      self.cause())

    def test_killed_rank(self):
        for rank in (0, 1, 3):
            file = RankFile(rank, 4, host="ab"[rank // 2])
            file.operation("allreduce x", [NOW - 2 * S, NOW], error_kind="peer lost")
            file.error("peer lost", "allreduce 'x': rank 2 died: its process has ended",
                       lost_rank=2)
            file.error("", "cannot clean up", at=NOW + 5 * S)  # a consequence
            self.write(file)
        self.assertEqual(self.cause(), "rank 2 died, as if killed: no record is left; ranks 0, 1 "
                                       "and 3 lost contact")
        self.path(3).unlink()  # mpirun has ended it before it could write
        self.path(1).unlink()
        self.assertIn("rank 2 died, as if killed", self.cause())
        self.assertIn("missing, of 4 ranks: ranks 1-3", self.errors)

    def test_groups_that_wait_in_messages(self):
        files = [RankFile(rank, 2) for rank in range(2)]
        for file in files:
            file.pending("receive x", NOW - 30 * S, peer=1 - file.rank, step=5 + file.rank)
        self.write(*files)
        self.assertIn("a cycle", self.cause())

    def test_a_lost_rank_that_cannot_be(self):
        file = RankFile(0, 2, nodes=[0, 0])
        file.error("peer lost", "rank 7 died", lost_rank=7)
        self.write(file)
        self.assertIn("rank 7 died, as if killed", self.cause())

    def test_the_last_rank_of_a_host(self):
        for rank in range(3):
            file = RankFile(rank, 4, nodes=[0] * 4)
            file.error("peer lost", "rank 3 died: its process has ended", lost_rank=3)
            self.write(file)
        self.assertIn("rank 3 died, as if killed", self.cause())

    def test_what_follows_from_a_loss(self):
        """Rank 3 was stopped; the others ended; and it found them dead when it went on."""
        files = [RankFile(rank, 4) for rank in range(4)]
        for file in files[:3]:
            file.error("peer lost", "rank 3 does not answer", NOW - 9 * S + file.rank, lost_rank=3)
            file.error("peer lost", "rank 0 died", NOW - 8 * S, lost_rank=0)
            files[3].error("peer lost", f"rank {file.rank} died", NOW - 1 * S, lost_rank=file.rank)
        self.write(*files)
        self.assertEqual(self.cause(), "rank 3 is stopped or hangs: there was no sign of life; "
                                       "ranks 0-2 lost contact")

    def test_the_file_of_one_rank(self):
        self.write(*self.ranks_of_a_deadline())
        folder, self.folder = self.folder, self.path(1)
        self.addCleanup(setattr, self, "folder", folder)
        result = subprocess.run([sys.executable, PROGRAM, "why", str(self.folder)],
                                capture_output=True, text=True, check=True)
        self.assertIn("rank 2 did not submit allreduce layer4", result.stdout)

    def test_a_record_that_was_asked_for(self):
        for rank in range(2):
            file = RankFile(rank, 2, why="requested by SIGUSR2")
            file.phase("forward", 811 + rank, NOW - 1 * MS)
            self.write(file)
        self.assertEqual(self.cause(), "nothing is wrong: there are no errors, and nobody waits "
                                       "for long; ranks are in steps 811 to 812")

    def test_stopped_rank(self):
        for rank in (0, 1, 3):
            file = RankFile(rank, 4)
            file.pending("allreduce x", NOW - 30 * S)
            self.write(file)
        stopped = "rank 2 did not submit allreduce x, for which ranks 0, 1 and 3 waited 30 s; "
        self.assertEqual(self.cause(), stopped + "rank 2 left no record: it is stopped, or hangs, "
                                                 "or its host does")
        old = RankFile(2, 4, written=NOW - 90 * S)
        old.phase("backward", 3, NOW - 91 * S)
        self.write(old)
        self.assertEqual(self.cause(), stopped + "rank 2 seems to be stopped: its record is 90 s "
                         "older, when it was in backward of step 3, for 1 s")

    def test_an_error_that_is_only_in_the_head_of_its_file(self):
        self.write(RankFile(0, 2), RankFile(1, 2, why="no space left\non device"))
        self.assertEqual(self.cause(), "an error on rank 1: no space left on device")

    def test_vanished_host(self):
        silence = "allreduce 'x': rank 2 cannot be reached: nothing has come from host b " \
                  "(ranks 2 and 3) for 10 s (KOLO_LOST_AFTER)."
        for text, cause in (
                (silence, "a host vanished: nothing came from host b (ranks 2 and 3) any more, and "
                          "ranks 0 and 1 lost contact; ranks 2 and 3 left no record"),
                ("rank 2 died", "a host vanished: ranks 2 and 3, all of its ranks, left no record; "
                                "ranks 0 and 1 lost contact")):
            for rank in range(2):
                file = RankFile(rank, 4, nodes=[0, 0, 1, 1])
                file.error("PeerLostError", text, lost_rank=2)
                self.write(file)
            self.assertEqual(self.cause(), cause)

    def test_network_between_hosts(self):
        for rank in range(2):
            file = RankFile(rank, 2, host="ab"[rank])
            file.error("peer lost", f"rank {1 - rank} cannot be reached: nothing has come from "
                       f"host {'ba'[rank]} (rank {1 - rank}) for 10 s", lost_rank=1 - rank)
            self.write(file)
        self.assertEqual(self.cause(), "the network between hosts failed: nothing came from host b "
                         "(rank 1) any more, and ranks 0 and 1 lost contact, but all ranks have "
                         "written records")

    def test_shutdown(self):
        files = [RankFile(rank, 2) for rank in range(2)]
        files[0].error("shutdown", "allreduce 'x': rank 1 shut Kolo down before all ranks had "
                                   "submitted it")
        self.write(*files)
        self.assertEqual(self.cause(), "rank 1 ended before the others: allreduce 'x': rank 1 shut "
                                       "Kolo down before all ranks had submitted it")
        files[0].error("peer lost", "rank 2 ended with an uncaught exception: allreduce 'x': "
                                    "rank 1 shut Kolo down", NOW - 2 * S, lost_rank=2)
        self.write(*files)
        self.assertEqual(self.cause(), "rank 1 ended before the others: rank 2 says: allreduce "
                                       "'x': rank 1 shut Kolo down")

    def test_errors_that_the_program_has_caught(self):
        for file in self.ranks_of_a_deadline():
            file.phase("backward", 900, NOW + 1 * S, NOW + 2 * S)
            file.phase("step", 900, NOW + 2 * S, NOW + 3 * S)
            self.write(file)
        self.assertIn("nothing is wrong", self.cause())

    def test_timelines(self):
        self.write(*self.ranks_of_a_deadline(why="timeline", written=NOW - 100 * S))
        self.assertIn("rank 2 did not submit allreduce layer4", self.cause())
        self.assertIn("rank 2 was in backward of step 812", self.output)

    def test_a_record_is_missing_and_nobody_waits(self):
        self.write(RankFile(0, 2))
        self.assertEqual(self.cause(), "unknown: rank 1 left no record, but nobody waits for long")


class Merge(Case):
    def merged(self, *files):
        """The events by rank, category and name."""
        self.write(*files)
        output, self.errors = self.run_trace("merge")
        self.assertEqual(output, "")
        self.events = json.loads((self.folder / "merged.json").read_text())
        return {(event["pid"], event["cat"], event["name"]): event for event in self.events}

    def span(self, events, *key):
        event = events[key]
        return event["ts"], event["ts"] + event["dur"]

    def assert_causal(self, events, ranks, name):
        spans = [self.span(events, rank, "move", name) for rank in ranks]
        self.assertGreaterEqual(min(end for _, end in spans) + 0.002,
                                max(begin for begin, _ in spans))

    def test_one_host(self):
        files = [RankFile(rank, 2) for rank in range(2)]
        for file in files:
            file.operation("allreduce x", [5.0, 6.0, 7.25, 9.0], 1)
            file.add("gradients", "bucket", "s", 4.0, None, {"id": "0.1"})
        events = self.merged(*files)
        self.assertEqual(self.span(events, 1, "move", "allreduce x"), (7.25, 9.0))
        self.assertEqual(len(self.events), 12)
        self.assertEqual(len({event["id"] for event in self.events if "id" in event}), 2)
        self.assertEqual(self.errors, "kolo-trace: clocks: as estimated at the start\n"
                         f"kolo-trace: {self.folder}/merged.json: 12 events of 2 ranks\n")

    def test_clocks_a_second_apart(self):
        """The estimate is right: nothing is moved but by it."""
        files = [RankFile(0, 2, "a"), RankFile(1, 2, "b", behind=S)]
        for file in files:  # they need not have negotiated at the same time
            begin = (4 + file.rank / 2) * S
            file.operation("barrier", [begin, begin + 10, 5 * S, 5 * S + 10], 1)
        files[0].operation("send x", [6 * S, 6 * S, 6 * S, 6 * S + 5], peer=1)
        files[1].operation("receive x", [5.5 * S, 5.5 * S, 5.5 * S, 6 * S + 50], peer=0)
        events = self.merged(*files)
        self.assertEqual(self.span(events, 1, "move", "receive x"), (5.5 * S, 6 * S + 50))
        self.assertIn("clocks: as estimated", self.errors)
        self.assertEqual(events[1, "__metadata", "kolo_rank"]["args"]["to_world_clock_us"], 0)

    def test_a_wrong_estimate(self):
        """Both ranks of host b move together, until no effect precedes its cause."""
        for error in (-3 * MS, 3 * MS):
            with self.subTest(error=error):
                files = [RankFile(0, 3, "a"), RankFile(1, 3, "b", behind=S, estimated=S + error),
                         RankFile(2, 3, "b", behind=S, estimated=S + error + 2)]
                for file in files:
                    file.operation("allreduce x", [5 * S, 5 * S, 5 * S, 5 * S + 100], 1)
                    file.operation("broadcast y", [7 * S, 7 * S, 7 * S, 7 * S + 1 + file.rank], 2)
                files[0].operation("send m", [6 * S, 6 * S, 6 * S, 6 * S + 5], peer=2)
                files[2].operation("receive m", [6 * S, 6 * S, 6 * S, 6 * S + 10], peer=0)
                files[1].operation("send n", [6 * S, 6 * S, 6 * S, 6 * S + 10], peer=0)
                files[0].operation("receive n", [6 * S, 6 * S, 6 * S, 6 * S + 20], peer=1)
                events = self.merged(*files)
                self.assert_causal(events, range(3), "allreduce x")
                self.assertGreaterEqual(self.span(events, 2, "move", "receive m")[1],
                                        self.span(events, 0, "move", "send m")[0])
                self.assertGreaterEqual(self.span(events, 0, "move", "receive n")[1],
                                        self.span(events, 1, "move", "send n")[0])
                first, second = (events[rank, "move", "broadcast y"] for rank in (1, 2))
                self.assertAlmostEqual(first["ts"], second["ts"], places=2)
                self.assertEqual(events[0, "move", "broadcast y"]["ts"], 7 * S)
                self.assertRegex(self.errors, "clocks: b by .*29[0-9]{2}")

    def test_clocks_that_drift(self):
        """By 100 us a second, against operations of 20 us; evenly, and so does the correction."""
        files = [RankFile(rank, 2, "ab"[rank]) for rank in range(2)]
        for number in range(1, 601):
            for file in files:
                begin = number * S / 10 + (number * 10 if file.rank else 0)
                file.operation(f"allreduce {number}", [begin, begin, begin, begin + 20], number)
        events = self.merged(*files)
        for number in range(1, 601):
            self.assert_causal(events, range(2), f"allreduce {number}")
        begins = [events[1, "move", f"allreduce {number}"]["ts"] for number in range(100, 501)]
        for begin, following in zip(begins, begins[1:]):
            self.assertAlmostEqual(following - begin, S / 10, delta=3)
        self.assertRegex(self.errors, r"clocks: b by .*-59[0-9]{2}\.")

    def test_a_long_operation_while_clocks_drift(self):
        """Its end needs another correction than its begin: 50 us of drift lie between."""
        files = [RankFile(rank, 2, "ab"[rank]) for rank in range(2)]
        for number in range(1, 601):
            for file in files:
                time = number * S / 10 - (number * 10 if file.rank else 0)
                begin = time - (S / 2 if number == 300 and file.rank else 0)
                file.operation(f"allreduce {number}", [begin, begin, begin, time + 20], number)
        events = self.merged(*files)
        for number in range(1, 601):
            self.assert_causal(events, range(2), f"allreduce {number}")

    def test_messages_that_were_not_all_recorded(self):
        """Two sends and two receipts, but not of the same messages: the collectives win."""
        files = [RankFile(rank, 2, "ab"[rank]) for rank in range(2)]
        for file in files:
            for number in (1, 2):
                begin = number * S
                file.operation("allreduce x", [begin, begin, begin, begin + 20], number)
        for at in (2 * S, 3 * S):
            files[0].operation("send m", [at, at, at, at + 5], peer=1)
            files[1].operation("receive m", [at - S, at - S, at - S, at - S + 10], peer=0)
        self.merged(*files)
        self.assertIn("clocks: as estimated", self.errors)

    def test_failed_operations_say_nothing_about_clocks(self):
        files = [RankFile(rank, 2, "ab"[rank]) for rank in range(2)]
        for file, begin in zip(files, (1 * S, 5 * S)):
            file.operation("allreduce x", [begin, begin, begin, begin + 20], 1,
                           error_kind="timeout")
        self.merged(*files)
        self.assertIn("clocks: as estimated", self.errors)

    def test_contradictory_clocks(self):
        """Rank 1's first operation ends before rank 0's begins, and the other way round."""
        files = [RankFile(rank, 2, "ab"[rank]) for rank in range(2)]
        for number, begins in ((1, (0, S)), (2, (S, 0))):
            for file in files:
                begin = 5 * S + begins[file.rank]
                file.operation("barrier", [begin, begin, begin, begin + 10], number)
        events = self.merged(*files)
        self.assertEqual(events[1, "move", "barrier"]["ts"], 5 * S)
        self.assertIn("clocks: left as estimated at the start, since they contradict", self.errors)

    def test_cut_files_and_the_name_of_the_output(self):
        files = [RankFile(rank, 3) for rank in range(2)]
        for file in files:
            file.operation("barrier", [5.0, 5.0, 5.0, 6.0], 1)
        self.write(*files, cut=(1,))
        _, errors = self.run_trace("merge", "-o", "all.json")
        self.assertEqual(len(json.loads((self.folder / "all.json").read_text())), 5)
        self.assertIn("cut: killed, or still being written: rank 1", errors)
        self.assertIn("missing, of 3 ranks: rank 2", errors)
        _, errors = self.run_trace("merge", "-o", "no/all.json", status=2)
        self.assertIn("kolo-trace: no/all.json: No such file or directory\n", errors)


class Stragglers(Case):
    def table(self, *arguments):
        """The rows as lists of cells by rank, then the sentences."""
        self.output, self.errors = self.run_trace("stragglers", *arguments)
        table, sentences = self.output.split("\n\n")
        head, *rows = table.splitlines()
        columns = [head.index(word) for word in ("rank", "host", "was last", "others", "longer")]
        cells = [[row[begin:end].strip() for begin, end in zip(columns, [*columns[1:], None])]
                 for row in rows]
        return {int(row[0]): row for row in cells}, sentences.splitlines()

    def test_one_rank_slow_in_backward_and_one_with_its_data(self):
        self.write(*self.training(extra=lambda rank, step: (
            12 if rank == 1 else 0, 30 if rank == 2 and step > 2 else 0)))
        rows, sentences = self.table()
        self.assertEqual(list(rows), [2, 1, 0, 3])
        # Two ranks wait for 30 ms, one for 18 ms, in 18 steps: the buckets wait together.
        self.assertEqual(rows[2], ["2", "a", "36 of 40", "1.4 s",
                                   "backward 30 ms in 18 of 20 steps"])
        self.assertEqual(rows[1], ["1", "b", "4 of 40", "72 ms",
                                   "forward (data included) 12 ms in 20 of 20 steps"])
        self.assertEqual(rows[0][2:], ["0 of 40", "0 us", "not longer"])
        self.assertEqual(len(sentences), 2)
        self.assertEqual(sentences[0], "rank 2 takes longer than the median of the others: "
                         "backward 30 ms in 18 of 20 steps; the others waited 1.4 s for it, 38% of "
                         "their time")
        self.assertRegex(sentences[1], "^rank 1 takes .*: forward .data included. 12 ms in 20")

    def test_two_ranks(self):
        """Whoever waits is not the slow one."""
        self.write(*self.training(2, extra=lambda rank, step: (0, 30 * rank)))
        rows, sentences = self.table()
        self.assertEqual(rows[0][4], "not longer")
        self.assertEqual(rows[1][2:], ["40 of 40", "600 ms", "backward 30 ms in 20 of 20 steps"])
        self.assertEqual(len(sentences), 1)

    def test_the_median_of_two_others(self):
        self.write(*self.training(3, extra=lambda rank, step: (0, (0, 10, 30)[rank])))
        rows, _ = self.table()
        self.assertEqual([rows[rank][4] for rank in range(3)],
                         ["not longer", "not longer", "backward 25 ms in 20 of 20 steps"])

    def test_rare_pauses(self):
        self.write(*self.training(extra=lambda rank, step: (500 * (rank == 3 and step == 7), 0)))
        _, sentences = self.table()
        self.assertIn("rank 3 takes longer than the median of the others: forward (data included) "
                      "500 ms in 1 of 20 steps", sentences[0])

    def test_a_pause_beside_small_delays(self):
        self.write(*self.training(extra=lambda rank, step: (
            3000 * (rank == 3 and step == 7), 4 * (rank == 3 and step % 2))))
        _, sentences = self.table()
        self.assertIn("rank 3 takes longer than the median of the others: backward 4 ms in 10 of "
                      "20 steps, forward (data included) 3 s in step 7", sentences[0])

    def test_marks_of_the_program(self):
        files = self.training(extra=lambda rank, step: (12 * (rank == 1), 0))
        for file in files:
            for step in range(20):
                begin = 1 * S + step * 50 * MS
                file.add("load 'batch'", "mark", "X", begin, (13 if file.rank == 1 else 1) * MS)
                file.add("print", "mark", "X", begin, 5 * MS)
            if file.rank == 1:
                file.add("between the steps", "mark", "X", 500 * S, 9 * S)
        self.write(*files)
        _, sentences = self.table()
        self.assertIn("forward (data included) 12 ms in 20 of 20 steps, most of it in 'load "
                      "'batch''", sentences[0])

    def test_ranks_that_are_last_in_turn(self):
        self.write(*self.training(extra=lambda rank, step: (0, 1.5 * (rank == step % 4)),
                                  shares_cores=1))
        _, sentences = self.table()
        self.assertEqual(sentences, [
            "no straggler: no rank stands out; the others waited 1% of their time for rank 0, 1% "
            "of their time for rank 1, 1% of their time for rank 2, 1% of their time for rank 3",
            "ranks 0-3 share cores with other ranks, and may wait for one"])

    def test_a_rank_that_has_stopped(self):
        """Its record is there, and the others wait for it."""
        for rank in range(3):
            file = RankFile(rank, 3)
            file.operation("allreduce x", [NOW - 41 * S, NOW - 40 * S, NOW - 40 * S, NOW - 40 * S],
                           1, last_rank=rank)
            if rank != 1:
                file.pending("allreduce y", NOW - 39 * S)
            self.write(file)
        rows, sentences = self.table()
        self.assertEqual(rows[1][3], "78 s")
        self.assertEqual(sentences, ["rank 1: the others waited 78 s for it, 95% of their time"])

    def test_no_straggler(self):
        files = self.training(extra=lambda rank, step: (0, 0.01 * (rank == step % 4)))
        for file in files:  # messages, and what never ran, are not counted
            file.operation("receive x", [2 * S, 2.1 * S], 0, last_rank=0)
        self.write(*files)
        rows, sentences = self.table()
        self.assertEqual(rows[0][2], "10 of 40")
        self.assertEqual(rows[1][2], "10 of 40")
        self.assertEqual(sentences, ["no straggler: no rank costs the others 1% of their time"])

    def test_a_slow_network(self):
        files = self.training()
        for file in files:
            for number in range(41, 45):
                begin = 2 * S + number * 100 * MS
                file.operation("allreduce x", [begin, begin, begin, begin + 90 * MS], number,
                               waited_us=80 * MS, waited_for=-1 if file.rank == 3 else 3)
        self.write(*files)
        rows, sentences = self.table()
        self.assertEqual(rows[3][3:], ["960 ms", "not longer"])
        self.assertEqual(sentences[0], "rank 3: the others waited 960 ms for it, 6% of their "
                         "time; its phases take 5% longer than the median of the others in 0 of "
                         "20 steps")

    def test_without_training(self):
        for file in (RankFile(0, 2), RankFile(1, 2)):
            late = 5 * MS * (file.rank == 0)
            for number in range(1, 5):
                begin = number * 10 * MS
                file.operation("barrier", [begin, begin + late, begin + late, begin + 6 * MS],
                               number, last_rank=1, late_us=late)
            self.write(file)
        rows, sentences = self.table()
        self.assertEqual(rows[1], ["1", "a", "4 of 4", "20 ms", "not longer"])
        self.assertEqual(sentences, ["rank 1: the others waited 20 ms for it, 56% of their time"])

    def test_one_rank(self):
        self.write(*self.training(1))
        rows, sentences = self.table()
        self.assertEqual(rows[0], ["0", "a", "0 of 0", "0 us", "not longer"])
        self.assertIn("no straggler", sentences[0])

    def test_top(self):
        self.write(*self.training(extra=lambda rank, step: (0, 30 * (rank == 2))))
        self.assertEqual(list(self.table("--top", "1")[0]), [2])
        _, errors = self.run_trace("stragglers", "--top", "0", status=2)
        self.assertIn("'0' is not a positive", errors)

    def test_missing_and_cut_files(self):
        self.write(*self.training(extra=lambda rank, step: (0, 30 * (rank == 2))), cut=(1,))
        self.path(0).unlink()
        rows, _ = self.table()
        self.assertEqual(rows[2][2:], ["40 of 40", "1.2 s", "backward 30 ms in 19 of 19 steps"])
        self.assertIn("cut: killed, or still being written: rank 1", self.errors)


class Report(Case):
    def picture(self, *arguments):
        """The texts of its bars; `self.bars` has their begins and lengths, of which a step has
        900."""
        self.run_trace("report", "-o", "step.svg", *arguments)
        root = xml.etree.ElementTree.parse(self.folder / "step.svg").getroot()
        space = "{http://www.w3.org/2000/svg}"
        bars = [bar for bar in root.iter(space + "rect") if bar.find(space + "title") is not None]
        texts = [bar.find(space + "title").text for bar in bars]
        self.bars = {text: (float(bar.get("x")) - 130, float(bar.get("width")))
                     for text, bar in zip(texts, bars)}
        return texts

    def slowed(self, **meta):
        """Rank 2 is slow in backward, most in step 5."""
        return self.training(steps=10, extra=lambda rank, step: (
            0, (60 if step == 5 else 30) * (rank == 2)), **meta)

    def test_page(self):
        self.write(*self.slowed())
        self.assertEqual(self.run_trace("report"), ("", ""))
        page = (self.folder / "report.html").read_text()
        self.assertIn("<p>rank 2 takes longer than the median of the others: backward 30 ms in 10 "
                      "of 10 steps", page)
        self.assertEqual(page.count(">others waited</th>"), 1)
        self.assertNotIn("others waited</td>", page)
        self.assertIn("<td>20 of 20</td>", page)
        self.assertIn("<h2>Step 5 of 10 steps</h2>", page)
        self.assertIn("4 ranks on a, b, 2001-09-09 02:01:40 UTC</p>", page)
        self.assertIn("The median step took 63 ms, nine of ten at most 63 ms, the longest 93 ms: "
                      "step 5.", page)
        self.assertEqual(len(re.findall("<title>step [0-9]+: ", page)), 10)
        self.assertIn("<title>step 5: 93 ms</title>", page)
        self.assertNotRegex(page.replace("http://www.w3.org/2000/svg", ""), "https?:|<script|@im")

    def test_picture(self):
        self.write(*self.slowed())
        texts = self.picture()
        self.assertEqual(len(texts), 4 * 4 + 2 * 3 + 4)
        # Two buckets that are submitted and moved together are one bar.
        self.assertEqual(texts.count("move 1 ms: allreduce bucket.1, allreduce bucket.2"), 4)
        self.assertEqual(texts.count("negotiate 60 ms: allreduce bucket.1, allreduce bucket.2"), 3)
        self.assertEqual(texts.count("waits 60 ms: for rank 2 in allreduce bucket.1, for rank 2 in "
                                     "allreduce bucket.2"), 3)
        self.assertEqual(texts.count("backward 80 ms"), 1)
        self.assertEqual(texts.count("exposed communication 61 ms"), 3)
        for text, begin, length in (
                ("backward 80 ms", 10, 80), ("exposed communication 61 ms", 30, 61),
                ("waits 60 ms: for rank 2 in allreduce bucket.1, for rank 2 in allreduce bucket.2",
                 30, 60), ("move 1 ms: allreduce bucket.1, allreduce bucket.2", 90, 1)):
            for found, expected in zip(self.bars[text], (begin, length)):
                self.assertAlmostEqual(found, expected * 900 / 93, delta=0.02)

    def test_marks_in_the_picture(self):
        files = self.slowed()
        begin = 1 * S + 4 * 63 * MS  # of step 5
        for name, at in (("load", begin + 2 * MS), ("before", begin - 9 * MS)):
            files[1].add(name, "mark", "X", at, 5 * MS)
        self.write(*files)
        texts = self.picture()
        self.assertIn("mark 5 ms: load", texts)
        self.assertNotIn("mark 5 ms: before", texts)

    def test_many_steps(self):
        self.write(*self.training(1, steps=2000))
        self.run_trace("report")
        page = (self.folder / "report.html").read_text()
        self.assertEqual(len(re.findall("<title>step [0-9]+: ", page)), 667)

    def test_choice_of_the_step(self):
        self.write(*self.slowed())
        self.assertIn("backward 50 ms", self.picture("--step", "median"))
        self.assertIn("backward 50 ms", self.picture("--step", "7"))
        _, errors = self.run_trace("report", "--step", "11", status=2)
        self.assertIn("no step 11 that all ranks have recorded", errors)
        _, errors = self.run_trace("report", "--step", "best", status=2)
        self.assertIn("'best' is not a positive number", errors)

    def test_ranks_beyond_the_picture(self):
        self.write(*self.training(20, steps=3, extra=lambda rank, step: (0, 30 * (rank == 19))))
        self.assertEqual(sum(text.startswith("forward") for text in self.picture()), 16)
        self.assertIn("rank 19</text>", (self.folder / "step.svg").read_text())

    def test_names_are_escaped(self):
        files = self.training(2, steps=3)
        begin = 1 * S + 40 * MS
        files[0].operation("allreduce <b>&\x1b[31m", [begin, begin, begin, begin + 9], 99,
                           step=2)
        self.write(*files)
        self.run_trace("report", "--step", "2")
        page = (self.folder / "report.html").read_text()
        self.assertIn("allreduce &lt;b&gt;&amp; [31m</title>", page)
        self.assertNotIn("<b>", page)

    def test_no_steps(self):
        self.write(RankFile(0, 1))
        self.run_trace("report")
        self.assertIn("There is no step that all ranks have recorded",
                      (self.folder / "report.html").read_text())
        self.assertIn("no step worst", self.run_trace("report", "-o", "x.svg", status=2)[1])


class Top(Case):
    NAME = "m-{rank}.prom"

    def setUp(self):
        super().setUp()
        self.now = time.time()

    def put(self, rank, elapsed, age=0.0, name=NAME, **values):
        """Replaces a rank's file by one that was written `age` seconds before now. Values are
        numbers, or numbers by the second label."""
        text = "# HELP kolo_x Text.\n# TYPE kolo_x counter\n"
        for metric, numbers in {**values, "elapsed_seconds_total": elapsed}.items():
            for label, number in (numbers if isinstance(numbers, dict) else {"": numbers}).items():
                label = f',peer="{label}"' if label != "" else ""
                text += f'kolo_{metric}{{rank="{rank}"{label},job_id="7",own="a }} 9"}} {number}\n'
        path = self.folder / name.replace("{rank}", str(rank), 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name("new")
        new.write_text(text)
        os.utime(new, (self.now - age,) * 2)
        new.replace(path)
        return path

    def parse(self, lines):
        """The first line, and the cells by rank and column."""
        self.head, columns, *rows = lines
        columns = [(match[0], match.start()) for match in re.finditer(r"\S+( \S+)*", columns)]
        ends = [begin for _, begin in columns[1:]] + [None]
        return {int(row.split()[0]): {name: row[begin:end].strip() for (name, begin), end
                                      in zip(columns, ends)} for row in rows}

    def once(self, name=NAME, *arguments):
        result = subprocess.run([sys.executable, PROGRAM, "top", "--once", *arguments,
                                 f"{self.folder}/{name}"], capture_output=True, text=True,
                                check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return self.parse(result.stdout.splitlines())

    def start(self, **options):
        """Until the test ends."""
        process = subprocess.Popen(
            [sys.executable, PROGRAM, "top", "--interval", "1", self.folder / self.NAME],
            text=True, **options,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def view(self):
        """Returns a function for the next table of a live view: without it a test would sleep."""
        view = runpy.run_path(str(PROGRAM))["LiveView"](str(self.folder / self.NAME))

        def next_table():
            view.read()
            return self.parse(list(view.lines(99)))

        return next_table

    def test_figures_since_the_start(self):
        self.put(0, 20, steps_total=40, step_exposed_seconds_total=5,
                 operations_total={"allreduce": 100, "broadcast": 20},
                 failed_operations_total={"allreduce": 3, "broadcast": 0}, stalls_total=1,
                 moved_bytes_total={"shared_memory": 10e6, "messages": 20e6, "gpus": 3e10},
                 agree_seconds_bucket={"0.000001": 0, "+Inf": 120}, agree_seconds_sum=0.6,
                 agree_seconds_count=120, move_seconds_sum=1.5, move_seconds_count=100)
        self.put(1, 20.5, operations_total={"barrier": 41}, agree_seconds_count=0,
                 failed_operations_total={"barrier": 0}, stalls_total=0)
        self.assertEqual(self.once(), {
            0: {"rank": "0", "others waited": "0%", "remarks": "3 failed, 1 stalled",
                "steps": "40", "a step": "500 ms", "exposed": "25%", "ops/s": "6.0",
                "MB/s": "1,501.5", "agree": "5 ms", "move": "15 ms"},
            1: {"rank": "1", "others waited": "0%", "remarks": "", "steps": "", "a step": "",
                "exposed": "", "ops/s": "2.0", "MB/s": "0.0", "agree": "", "move": ""}})
        self.assertEqual(self.head, "2 ranks, 20.5 s after the start; figures of the last 20.5 s")

    def test_columns_without_figures_are_left_out(self):
        self.put(0, 20)
        self.assertEqual(list(self.once()[0]), ["rank", "others waited", "ops/s", "MB/s"])

    def test_the_worst_come_first(self):
        """For rank 2 the others waited 6 of 30 s, for rank 1 3 of 30, for rank 7 4 of 40: its file
        is elsewhere."""
        self.put(0, 10, late_seconds_total={1: 1, 2: 3}, data_wait_seconds_total={2: 1, 7: 2})
        self.put(1, 10, late_seconds_total={2: 2, 7: 2}, data_wait_seconds_total={"unknown": 99})
        self.put(2, 10, late_seconds_total={1: 2})
        self.put(3, 10)
        table = self.once()
        self.assertEqual([(rank, row["others waited"], row["remarks"])
                          for rank, row in table.items()],
                         [(2, "20%", ""), (1, "10%", ""), (7, "10%", "no file"), (0, "0%", ""),
                          (3, "0%", "")])
        self.assertEqual(table[7]["ops/s"], "")
        result = subprocess.run([sys.executable, PROGRAM, "top", "--once", "--top", "2",
                                 self.folder / self.NAME], capture_output=True, text=True,
                                check=True)
        self.assertEqual([line.split()[0] for line in result.stdout.splitlines()],
                         ["5", "rank", "2", "1", "and"])
        self.assertIn("and 3 ranks more\n", result.stdout)

    def test_waits_that_last(self):
        """Between two files a wait grows, and then ends and counts: rank 2 is waited for all the
        time by rank 0, half of it by rank 1."""
        self.put(0, 10, open_wait_seconds={2: 4, "unknown": 0})
        self.put(1, 10, open_wait_seconds={"unknown": 3})
        self.put(2, 10, open_wait_seconds={"unknown": 0})
        next_table = self.view()
        table = next_table()
        self.assertEqual([(rank, row["others waited"], row["remarks"])
                          for rank, row in table.items()],
                         [(2, "20%", ""), (0, "0%", "an operation of 4 s waits for rank 2"),
                          (1, "0%", "an operation of 3 s")])
        self.put(0, 20, open_wait_seconds={2: 14, "unknown": 0})
        self.put(1, 20, late_seconds_total={2: 5}, open_wait_seconds={"unknown": 0.5})
        self.put(2, 20)
        table = next_table()
        self.assertEqual((table[2]["others waited"], table[0]["remarks"], table[1]["remarks"]),
                         ("75%", "an operation of 14 s waits for rank 2", ""))

    def test_waits_that_ended_may_have_begun_before(self):
        self.put(0, 10, late_seconds_total={1: 700}, step_exposed_seconds_total=700, steps_total=1)
        self.put(1, 10)
        table = self.once()
        self.assertEqual((table[1]["others waited"], table[0]["exposed"]), ("100%", "100%"))

    def test_figures_between_two_versions(self):
        self.put(0, 100, 10.5, steps_total=1000, late_seconds_total={1: 2})
        self.put(1, 100, 10.5, steps_total=1000, stalls_total=1)
        next_table = self.view()
        table = next_table()
        self.assertIn("figures of the last 100 s", self.head)
        self.assertEqual([table[rank]["a step"] for rank in (0, 1)], ["100 ms", "100 ms"])
        self.assertEqual(table[1]["others waited"], "2%")
        self.put(1, 110, 0.5, steps_total=1005, stalls_total=1)
        self.put(0, 110.5, steps_total=1021, late_seconds_total={1: 6.2})
        table = next_table()
        self.assertIn("figures of the last 10.5 s", self.head)
        self.assertEqual([(row["steps"], row["a step"]) for row in table.values()],
                         [("1005", "2 s"), ("1021", "500 ms")])
        self.assertEqual((table[1]["others waited"], table[1]["remarks"]), ("40%", "1 stalled"))
        (self.folder / "m-0.prom").unlink()
        (self.folder / "m-1.prom").write_text('kolo_elapsed_seconds_total{rank="1"} 120')  # cut
        self.assertEqual(next_table(), table)

    def test_a_job_that_has_begun_anew(self):
        """And shows, when it is first seen, more or less than the one before."""
        for before, now in ((5, 6), (100, 8)):
            self.put(0, before, 30, steps_total=10)
            next_table = self.view()
            next_table()
            self.put(0, now, steps_total=16)
            self.assertEqual(next_table()[0]["a step"], f"{now / 16 * 1e3:.3g} ms")
            self.assertIn(f"figures of the last {now} s", self.head)

    def test_tables_until_control_c(self):
        self.put(0, 10)
        process = self.start(stdout=subprocess.PIPE)
        for elapsed in (10, 20):
            self.put(0, elapsed)
            while f"1 rank, {elapsed} s after" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            self.assertIn("rank", process.stdout.readline())
            self.assertEqual(process.stdout.readline().split()[0], "0")
            self.assertEqual(process.stdout.readline(), "\n")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)

    def test_a_file_system_with_another_clock(self):
        """This host's counts only in the first table, in which nothing has changed yet."""
        for behind in (60, 3600, -60, -3600):
            self.put(0, 100, behind)
            self.put(1, 50, behind + 50)
            next_table = self.view()
            with unittest.mock.patch("time.monotonic", return_value=1e4) as now:
                self.assertEqual(next_table()[1]["remarks"], "silent for 50 s")
                self.assertEqual("all silent" in self.head, behind > 0)
                self.put(0, 110, behind - 10)
                self.assertEqual(next_table()[1]["remarks"], "silent for 60 s")
                self.assertRegex(self.head, "^2 ranks, 110 s after the start; figures of the last "
                                            "10 s$")
                now.return_value += 40
                next_table()
                self.assertRegex(self.head, "^all silent for 40 s: ended, or stopped; 2 ranks, ")

    def test_a_stopped_rank_is_not_hidden(self):
        """Files of an earlier job are, which may be as old: rank 4 had run for an hour. Of what
        rank 2 has counted lately nothing is shown."""
        for rank, age in enumerate((1, 24, 300, 1)):
            self.put(rank, 400 - age, age, steps_total=7, late_seconds_total={
                peer: seconds for peer, seconds in ((0, 40), (1, 4)) if peer != rank})
        self.put(4, 3600, 500)
        table = self.once()
        self.assertEqual(
            [(rank, row["others waited"], row["remarks"], row["steps"], row["ops/s"])
             for rank, row in table.items()],
            [(2, "0%", "silent for 299 s", "7", ""), (0, "10%", "", "7", "0.0"),
             (1, "1%", "", "7", "0.0"), (3, "0%", "", "7", "0.0")])
        self.assertRegex(self.head, "^4 ranks, 399 s after the start; figures of the last 399 s; "
                                    "left out, of an earlier job: rank 4$")

    def test_a_rank_that_stopped_at_its_start_is_not_hidden(self):
        self.put(0, 98, 1)
        self.put(1, 0.001, 103)
        self.put(2, 120, 2)  # its Runtime waited for the others
        self.assertEqual(list(self.once()), [1, 0, 2])

    def test_a_job_that_has_ended(self):
        for rank in range(3):
            self.put(rank, 400, 3000 + rank, late_seconds_total={1: 4} if rank != 1 else {})
        table = self.once()
        self.assertEqual(list(table), [1, 0, 2])
        self.assertEqual(table[1]["others waited"], "1%")
        self.assertRegex(self.head, "^all silent for 50 min: ended, or stopped; 3 ranks, 400 s ")

    def test_names(self):
        for name in ("{rank}", "r/{rank}/m", "a*?[1-9]{{rank}}{rank}.prom", ".{rank}.tmp"):
            for rank in (0, 7, 10):
                self.put(rank, 10, name=name)
            self.put(5, 10, name=name.replace("{rank}", "x{rank}", 1).replace("*", "x"))
            self.put(6, 10, name=name.replace("{rank}", "{rank}.tmp", 1))
            self.assertEqual(list(self.once(name)), [0, 7, 10], name)
        self.assertEqual(list(self.once("r//{rank}//m")), [0, 7, 10])

    def test_names_without_a_place_for_the_rank(self):
        self.put(0, 10, 60, name="m.prom")
        self.assertEqual(list(self.once("m.prom")), [0])
        for rank in range(3):
            self.put(rank, 30, name=f"m.prom.{rank}")
            self.put(rank + 3, 30, name=f"m.prom.{rank}.tmp")
        self.put(6, 30, name="mxprom.6")
        self.assertEqual(list(self.once("m.prom")), [0, 1, 2])
        self.assertIn("30 s after the start", self.head)  # the newer file of rank 0

    def test_foreign_files(self):
        self.put(0, 10)
        (self.folder / "m-1.prom").mkdir()
        (self.folder / "m-2.prom").write_bytes(b"\xff\x00kolo_{\n" * 1000)
        os.mkfifo(self.folder / "m-3.prom")
        (self.folder / "m-4.prom").symlink_to("nowhere")
        (self.folder / "m-10.prom").write_text("")
        self.put(5, "NaN")
        self.put(6, "-7")
        self.put(7, "9" * 400)
        self.put(8, 10, steps_total="x", operations_total={"a": "1e999"}, stalls_total="+Inf",
                 late_seconds_total={"9" * 5000: 1, "\u0663\u00b2": 1}, **{"\x1b[2J": 7})
        self.put(9, 10, steps_total="9" * 18, agree_seconds_count="9" * 18,
                 late_seconds_total={0: "9" * 18})
        self.assertEqual(list(self.once()), [0, 8, 9])

    def test_nothing_to_show(self):
        result = subprocess.run([sys.executable, PROGRAM, "top", "none/m.prom"],
                                capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (
            2, "", "kolo-trace: none/m.prom: no metrics of Kolo to read; start the job with "
                   "KOLO_METRICS set to this name\n"))

    def test_a_file_that_cannot_be_read(self):
        path = self.folder / "m-1.prom"
        path.symlink_to("/proc/self/mem")
        result = subprocess.run([sys.executable, PROGRAM, "top", self.folder / self.NAME],
                                capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (2, "", f"kolo-trace: {path}: Input/output error\n"))
        self.put(0, 10, late_seconds_total={1: 1})
        self.assertEqual(self.once()[1]["remarks"], "no file")
        self.assertEqual(self.head, f"{path}: Input/output error; 2 ranks, 10 s after the start; "
                                    "figures of the last 10 s")

    def test_wrong_arguments(self):
        for arguments in ([], ["m", "--interval", "0"], ["m", "--top", "x"], ["m", "n"]):
            result = subprocess.run([sys.executable, PROGRAM, "top", *arguments],
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(len(result.stderr.splitlines()), 1)

    def run_in_terminal(self, height, screens):
        """Of 40 columns, until so many screens are complete. Returns all that has been written."""
        terminal, of_program = os.openpty()
        self.addCleanup(os.close, terminal)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", height, 40, 0, 0))
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("COLUMNS", "LINES")}
        process = self.start(stdout=of_program, env=environment)
        os.close(of_program)
        output = ""
        while output.count("\x1b[J") < screens:
            output += os.read(terminal, 10000).decode()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)
        while not output.endswith("\x1b[J\r\n"):
            output += os.read(terminal, 10000).decode()
        return output

    def test_terminal(self):
        for rank in range(12):
            self.put(rank, 10, late_seconds_total={11 - rank: rank})
        screens = self.run_in_terminal(8, 2).split("\x1b[H")
        self.assertEqual(screens[0], "")
        self.assertEqual(screens[1], screens[2].removesuffix("\r\n"))
        lines = screens[1].removesuffix("\x1b[J").split("\r\n")
        self.assertEqual([line.split()[0] for line in lines],
                         ["12", "rank", "0", "1", "2", "3", "4", "and"])
        self.assertEqual(lines[-1], "and 7 ranks more\x1b[K")
        self.assertEqual(max(len(line.removesuffix("\x1b[K")) for line in lines), 39)
        for height in (1, 3):  # without scrolling
            self.assertEqual(self.run_in_terminal(height, 1).count("\n"), height)


class Files(Case):
    def test_folders_without_traces(self):
        for command in ("why", "stragglers", "report", "merge"):
            output, errors = self.run_trace(command, status=2)
            self.assertEqual(output, "")
            self.assertEqual(errors, f"kolo-trace: {self.folder} has no trace of Kolo: they are "
                                     "named rank-<R>.json\n")
        result = subprocess.run([sys.executable, PROGRAM, "why", self.folder / "none"],
                                capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stderr),
                         (2, f"kolo-trace: {self.folder}/none is not a folder\n"))

    def test_foreign_files(self):
        self.write(RankFile(0, 4), RankFile(3, 4))
        self.path(1).write_text("{}")
        self.path(2).write_bytes(b"\xff\x00[[[[" * 1000)
        (self.folder / "rank-x.json").write_text("[")
        (self.folder / "merged.json").write_text("[")
        self.path("03").write_text(RankFile(3, 4).text())
        _, errors = self.run_trace("why")
        self.assertEqual(sorted(errors.splitlines()), [
            "kolo-trace: missing, of 4 ranks: ranks 1 and 2",
            "kolo-trace: rank-1.json is left out: no trace of format 2",
            "kolo-trace: rank-2.json is left out: no trace of format 2"])

    def test_another_format(self):
        self.path(0).write_text(RankFile(0, 1).text().replace('"format": 2', '"format": 1'))
        self.path(1).write_text("")
        errors = self.run_trace("why", status=2)[1]
        self.assertEqual(errors.count("no trace of format 2"), 2)

    def test_files_of_an_earlier_job(self):
        """Three ranks of it had no successor, one of the new job was killed."""
        for old in ({"job": 5, "size": 2}, {"job": 6, "size": 4}):
            size = old.pop("size")
            self.write(*(RankFile(rank, size, written=NOW - 60 * S, **old) for rank in range(size)))
            self.write(RankFile(1, 2, job=6))
            output, errors = self.run_trace("why")
            self.assertIn("missing, of 2 ranks: rank 0\n", errors)
            self.assertIn("of another job, and left out: rank", errors)
            self.assertEqual(len(output.splitlines()), 4)

    def test_damaged_lines_and_unknown_fields(self):
        file = RankFile(0, 1, future=[1])
        file.operation("allreduce x", [NOW - 9 * S, NOW - 8 * S, NOW - 8 * S, NOW - 4 * S])
        file.lines += ['{"name":7,"cat":[],"ph":{},"ts":"x","dur":null,"args":[3]}', '{"name":"x',
                       "7", "[" * 5000, '{"cat":"move","ph":"X","ts":NaN,"dur":1e999,"args":{}}',
                       '{"cat":"phase","ph":"X","ts":1,"args":{"step":"a"}}', "\x00" * 9, "{}"]
        self.write(file)
        self.path(0).write_text(self.path(0).read_text() + "trailing")
        for command in ("why", "stragglers", "report", "merge"):
            self.run_trace(command)
        self.assertIn("after allreduce x, 4 s before", self.run_trace("why")[0])

    def test_output_has_no_control_characters(self):
        file = RankFile(0, 2, host="a\x1b[2J\u202e")
        file.pending("allreduce \x1b]0;\x07\ud800é", NOW - 9 * S)
        self.write(file, RankFile(1, 2))
        for locale in ("C", "C.UTF-8"):
            result = subprocess.run([sys.executable, PROGRAM, "why", self.folder], env={
                "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
                capture_output=True, check=True)
            self.assertTrue(result.stdout.decode().replace("\n", "").isprintable())

    def test_a_full_disk(self):
        self.write(RankFile(0, 1))
        self.path("1.prom").write_text('kolo_elapsed_seconds_total{rank="1"} 10\n')
        for arguments in (["why", "."], ["top", "rank-{rank}.prom.json"],
                          ["merge", ".", "-o", "/dev/full"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([sys.executable, PROGRAM, *arguments], cwd=self.folder,
                                        stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual((result.returncode, result.stderr),
                             (2, "kolo-trace: No space left on device\n"))

    def test_a_reader_that_has_seen_enough(self):
        self.write(*(RankFile(rank, 3000) for rank in range(2)))
        result = subprocess.run(["sh", "-c", '"$0" "$1" why "$2" 2>&1 | head -n 1', sys.executable,
                                 PROGRAM, self.folder], capture_output=True, text=True, check=True)
        self.assertNotIn("Traceback", result.stdout)

    def test_help(self):
        for command in ([], ["why"], ["stragglers"], ["report"], ["merge"], ["top"]):
            result = subprocess.run([sys.executable, PROGRAM, *command, "--help"],
                                    capture_output=True, text=True, check=True)
            self.assertIn("usage: kolo-trace", result.stdout)
        result = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 2)
        self.assertEqual(len(result.stderr.splitlines()), 1)


cases.main()
