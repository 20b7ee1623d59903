#!/usr/bin/env python3
"""Reads the records and timelines of a job with Kolo, rank-<R>.json in a folder, and its metrics;
docs/insight.md.

  kolo-trace why FOLDER            the most likely cause of a failure or hang; what each rank did
  kolo-trace stragglers FOLDER     which ranks make the others wait, how long, and in which phase
  kolo-trace report FOLDER         the same as a page, with a picture of one step
  kolo-trace merge FOLDER          one trace of all ranks for Perfetto, on one clock
  kolo-trace top NAME              what a job does now, by the files of KOLO_METRICS=NAME
"""
import argparse
import array
import bisect
import collections
import glob
import html
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import sys
import time

FORMAT = 2
FILE_NAME = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.json")
SPANS = ("negotiate X", "queue X", "move X")  # of an operation
LONG_US = 1e6  # for a wait
ENDED = "requested by SIGTERM"
ARGUMENTS = re.compile(r"\((?!anonymous namespace\)).*")  # of a function
STACK = 3  # functions of it that are shown


class Problem(Exception):
    """Ends the program; its text is one line."""


def say(text):
    print(f"kolo-trace: {text}", file=sys.stderr)


def format_time(us):
    if us >= 999.5e6:
        return f"{us / 60e6:.0f} min"
    unit, size = ("us", 1) if us < 999.5 else ("ms", 1e3) if us < 999.5e3 else ("s", 1e6)
    return f"{us / size:.3g} {unit}"


def plural(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def list_ranks(ranks):
    """"rank 3", or "ranks 0, 1 and 4-7"."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [str(rank) for _, rank in run]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run
    text = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


def align(rows):
    """Lines with columns of equal width; without columns that are empty below their heads."""
    columns = [column for column in zip(*rows) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in zip(*columns)]


# The files of a job.


def text_in(values, key):
    """Names come from programs: without control characters."""
    text = values.get(key)
    text = text if isinstance(text, str) else ""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def number_in(values, key, default=0.0):
    value = values.get(key)
    is_number = isinstance(value, (int, float)) and abs(value) < 1e18  # a NaN is not less
    return value if is_number else default


class Event:
    def __init__(self, values, shift):
        self.values = values
        self.kind = f"{values.get('cat')} {values.get('ph')}"
        self.name = text_in(values, "name")
        self.begin = number_in(values, "ts") + shift
        self.duration = number_in(values, "dur")
        self.end = self.begin + self.duration
        args = values.get("args")
        self.args = args if isinstance(args, dict) else {}

    def number(self, key):
        return number_in(self.args, key)

    def rank(self, key):
        return int(number_in(self.args, key, -1))

    def text(self, key):
        return text_in(self.args, key)

    def has_failed(self):
        return "error_kind" in self.args or "error" in self.args


class Trace:
    """The file of one rank."""

    def __init__(self, path):
        self.path = path
        self.rank = int(FILE_NAME.fullmatch(path.name)[1])
        meta = next((event.args for event in itertools.islice(self.events(), 1000)
                     if event.name == "kolo_rank"), {})
        self.format = meta.get("format")
        self.host = text_in(meta, "host") or "an unknown host"
        self.why = text_in(meta, "why")
        self.to_world = number_in(meta, "to_world_clock_us")
        self.clock = number_in(meta, "clock_us")
        self.wall_clock = number_in(meta, "wall_clock_us")
        self.job = str(meta.get("job")), int(number_in(meta, "size", 1))
        nodes = meta.get("nodes")
        self.nodes = nodes if isinstance(nodes, list) and len(nodes) == self.job[1] else []
        self.shares_cores = number_in(meta, "shares_cores") > 0
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 16))
            self.is_cut = not file.read().rstrip().endswith(b"]")

    def events(self, shift=0.0):
        """Those in complete lines. Their times are this rank's plus `shift`."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    values = json.loads(line.strip("[], \t\r\n"))
                except (ValueError, RecursionError):
                    continue
                if isinstance(values, dict):
                    yield Event(values, shift)


class Job:
    """The traces in a folder, of the job that has written last. Says what is missing."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        if FILE_NAME.fullmatch(self.folder.name) and self.folder.is_file():
            self.folder = self.folder.parent
        if not self.folder.is_dir():
            raise Problem(f"{folder} is not a folder")
        found = []
        for path in self.folder.iterdir():
            if FILE_NAME.fullmatch(path.name):
                trace = Trace(path)
                if trace.format == FORMAT:
                    found.append(trace)
                else:
                    say(f"{path.name} is left out: no trace of format {FORMAT}")
        if not found:
            raise Problem(f"{folder} has no trace of Kolo: they are named rank-<R>.json")
        job = max(found, key=lambda trace: trace.wall_clock).job
        self.size = job[1]
        self.traces = sorted((trace for trace in found if trace.job == job),
                             key=lambda trace: trace.rank)
        self.missing = sorted(set(range(self.size)) - {trace.rank for trace in self.traces})
        for noun, ranks in (
                ("of another job, and left out", [t.rank for t in found if t.job != job]),
                ("cut: killed, or still being written", [t.rank for t in self.traces if t.is_cut]),
                (f"missing, of {plural(self.size, 'rank')}", self.missing)):
            if ranks:
                say(f"{noun}: {list_ranks(ranks)}")


# Clocks. The ranks of a host have one. Its distance from that of rank 0 has been estimated when the
# job started; since then both have drifted.

# None of these ends on any rank before it has begun on all.
ALL_WAIT = ("allreduce", "allgather", "alltoall", "reduce_scatter", "barrier")
CELLS = 1024  # the finest grid


class Clocks:
    """World times such that no effect precedes its cause, close to the estimates.

    Between knots, which are equally far apart, a clock's correction is linear. One that is right at
    two knots is right between them: so each knot is corrected by itself, for what happens on both
    its sides.
    """

    def __init__(self, job):
        # Host names may be the same on several machines, estimates are not.
        of_clock = {}
        for trace in job.traces:
            of_clock.setdefault((trace.host, round(trace.to_world, -4)), []).append(trace)
        self._clocks = [traces[0] for traces in of_clock.values()]
        self._number = {trace.rank: number for number, traces in enumerate(of_clock.values())
                        for trace in traces}
        self._begin, self._length = 0.0, 1.0
        self._knots = [[0.0] * len(self._clocks)]  # the corrections of all clocks
        self.text = "as estimated at the start"
        if len(self._clocks) > 1:
            collectives, messages = self._read(job)
            # Where not all messages have been recorded, they may be paired wrongly.
            if not (self._fit(collectives + messages) or self._fit(collectives)):
                self.text = "left as estimated at the start, since they contradict one another"

    def world_times(self, trace, event):
        """When the event of the trace began and ended."""
        return tuple(time + self._shift(trace, time) for time in (event.begin, event.end))

    def _shift(self, trace, time):
        """What to add to a time of the trace. It changes with time, as clocks drift."""
        number = self._number[trace.rank]
        estimate = self._clocks[number].to_world
        last = len(self._knots) - 1
        place = max(0.0, min((time + estimate - self._begin) / self._length, 1.0)) * last
        knot = int(place)
        first, second = (self._knots[k][number] for k in (knot, min(knot + 1, last)))
        return estimate + first + (second - first) * (place - knot)

    def _read(self, job):
        """Causes and their effects, (clock, time, clock, time), in collectives and messages."""
        collectives = {}  # by clock: the last begin, the first end
        sent, received = collections.defaultdict(list), collections.defaultdict(list)
        for trace in job.traces:
            number = self._number[trace.rank]
            times = collections.Counter()  # a new process set may have the name of an old one
            for event in trace.events(self._clocks[number].to_world):
                if event.kind != "move X" or event.has_failed():
                    continue
                kind, _, name = event.name.partition(" ")
                key = event.text("set"), event.number("collective")
                peer = event.rank("peer")
                if kind == "send":
                    sent[key[0], name, trace.rank, peer].append((number, event.begin))
                elif kind == "receive":
                    received[key[0], name, peer, trace.rank].append((number, event.end))
                elif kind in ALL_WAIT and key[1] > 0:
                    times[key] += 1
                    spans = collectives.setdefault((*key, times[key]), {})
                    begin, end = spans.get(number, (event.begin, event.end))
                    spans[number] = max(begin, event.begin), min(end, event.end)
        messages = [(*begin, *end) for key in sent.keys() & received.keys()
                    if len(sent[key]) == len(received[key])
                    for begin, end in zip(sorted(sent[key]), sorted(received[key]))]
        return [(cause, spans[cause][0], effect, spans[effect][1])
                for spans in collectives.values()
                for cause, effect in itertools.permutations(spans, 2)], messages

    def _fit(self, pairs):
        """Whether there are knots, as few as possible, at which all pairs are right."""
        if not pairs:
            return True
        times = [time for pair in pairs for time in pair[1::2]]
        self._begin = min(times)
        self._length = max(times) - self._begin or 1.0
        # By how much the cause's clock may be moved ahead of the effect's, in each cell.
        bounds = collections.defaultdict(lambda: [math.inf] * CELLS)
        for cause, caused, effect, seen in pairs:
            cells = sorted(min(int((time - self._begin) / self._length * CELLS), CELLS - 1)
                           for time in (caused, seen))
            row = bounds[cause, effect]
            for cell in range(cells[0], cells[1] + 1):
                row[cell] = min(row[cell], seen - caused)
        for pieces in (0, 4, 16, 64, 256, 1024):
            width = CELLS // max(pieces, 1)
            knots = [self._correct({pair: min(row[max(0, (knot - 1) * width):(knot + 1) * width])
                                    for pair, row in bounds.items()})
                     for knot in range(pieces + 1)]
            if None not in knots:
                self._knots = knots
                moved = ["{} by {} us".format(trace.host, " to ".join(sorted(
                             {f"{end(column):+.3f}" for end in (min, max)})))
                         for trace, column in zip(self._clocks, zip(*knots)) if any(column)]
                self.text = ", ".join(moved) or self.text
                return True
        return False

    def _correct(self, bounds):
        """Corrections whose difference, cause's less effect's, is at most the bound of each pair;
        None if there are none. They are shortest paths."""
        corrections = [0.0] * len(self._clocks)
        for _ in range(len(corrections) + 1):
            is_done = True
            for (cause, effect), bound in bounds.items():
                if corrections[cause] > corrections[effect] + bound + 1e-6:
                    corrections[cause] = corrections[effect] + bound
                    is_done = False
            if is_done:
                return [correction - corrections[0] for correction in corrections]
        return None


def merge(options):
    job = Job(options.folder)
    clocks = Clocks(job)
    path = options.output or job.folder / "merged.json"
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for trace in job.traces:
            for event in trace.events():
                values = event.values
                if values.get("ph") != "M":
                    begin, end = (round(time, 3) for time in clocks.world_times(trace, event))
                    values["ts"] = begin
                    if "dur" in values:
                        values["dur"] = round(end - begin, 3)
                if "id" in values:  # of an arrow: unique within the rank
                    values["id"] = f"{trace.rank}.{values['id']}"
                if event.name == "kolo_rank":
                    event.args["to_world_clock_us"] = 0
                file.write(",\n" if count else "[\n")
                file.write(json.dumps(values, separators=(",", ":")))
                count += 1
        file.write("\n]\n")
    say(f"clocks: {clocks.text}")
    say(f"{path}: {plural(count, 'event')} of {plural(len(job.traces), 'rank')}")


# Why a job has failed or hangs.

Error = collections.namedtuple("Error", "time rank kind lost text")
STATES = {"negotiate X": "submitted", "queue X": "queued", "move X": "moving"}


def plain(kind):
    """The same for "peer lost" and "PeerLostError"."""
    return re.sub("[^a-z]|error$", "", kind.lower())


class Wait:
    """An operation that had not ended when the record was written, or that failed."""

    def __init__(self, rank, event, since):
        self.since, self.until = since, event.end + event.number("waiting_us")
        self.duration = self.until - self.since
        self.set = event.text("set")
        self.step, self.phase = event.number("step"), event.text("phase")
        self.name = event.name + (f" on process set {self.set}" if self.set != "world" else "")
        self.state = event.text("state") or STATES.get(event.kind)
        self.is_agreed = event.rank("last_rank") >= 0  # by negotiation
        self.is_overdue = plain(event.text("error_kind")) == "timeout"
        self.peer, self.awaiting = event.rank("peer"), event.rank("awaiting")
        self.key = self.name, event.number("set_number")  # several sets may have the same members
        kind, _, name = event.name.partition(" ")
        self.is_message = kind in ("send", "receive")
        if self.is_message:  # both have the same key
            ends = (rank, self.peer) if kind == "send" else (self.peer, rank)
            self.key = name, self.key[1], *ends


class LastSeen:
    """What a rank did last."""

    def __init__(self, trace):
        self.trace = trace
        self.now = trace.to_world + trace.clock  # when the record was written
        self.phase = self.last = None  # the last phase, and the last operation that ended well
        self._phases = []
        self.stack = []  # of the main thread, the innermost function first
        errors, open_operations = [], {}
        backward = recovered = -math.inf
        for event in trace.events(trace.to_world):
            if not event.kind.endswith(" M"):
                self.now = max(self.now, event.end + event.number("waiting_us"))
            if event.kind.startswith("phase "):
                self._phases.append(event)
                if self.phase is None or event.begin >= self.phase.begin:
                    self.phase = event
                # Errors before a whole pass and step were caught: the program went on.
                if event.kind == "phase X":
                    backward = event.begin if event.name == "backward" else backward
                    recovered = backward if event.name == "step" else recovered
            elif event.kind == "stack i":
                functions = event.args.get("functions")
                self.stack = [ARGUMENTS.sub("", text_in({0: text}, 0)).strip()
                              for text in functions[:STACK]] if isinstance(functions, list) else []
            elif event.kind == "error i" and event.text("kind") != "lost events":
                errors.append(Error(event.begin, trace.rank, plain(event.text("kind")),
                                    event.rank("lost_rank"), event.name))
            elif event.kind == "pending B" or event.kind in SPANS and event.has_failed():
                use = event.number("set_number"), event.number("use")
                since = open_operations[use].since if use in open_operations else event.begin
                open_operations[use] = Wait(trace.rank, event, since)
            elif event.kind in SPANS and (self.last is None or event.end > self.last.end):
                self.last = event
        self.errors = [error for error in errors if error.time >= recovered]
        self.waits = [wait for wait in open_operations.values() if wait.until >= recovered]
        self.waits.sort(key=lambda wait: -wait.duration)

    def step(self):
        """In which it is; 0 if it has none."""
        is_in_one = self.phase and self.phase.kind == "phase B"
        return int(self.phase.number("step")) if is_in_one else 0

    def doing(self, at=math.inf):
        """At that time; at the end of the record if that was earlier. None if it does not say."""
        phase = max((phase for phase in self._phases if phase.begin <= at),
                    key=lambda phase: phase.begin, default=None)
        if self.step() and phase:
            name = "step()" if phase.name == "step" else phase.name
            return f"in {name} of step {phase.number('step'):.0f}, for " \
                   f"{format_time(min(self.now, at) - phase.begin)}"
        if at < self.now:
            return None
        if self.last:
            return f"after {self.last.name}, {format_time(self.now - self.last.end)} before"
        return "at its start"


class Inquest:
    """What all ranks did last, whom each waits for, and the cause that explains it."""

    def __init__(self, job):
        self._missing, self._size = job.missing, job.size
        self._nodes = next((trace.nodes for trace in job.traces if trace.nodes), [])
        self._seen = {trace.rank: LastSeen(trace) for trace in job.traces}
        self._errors = sorted(error for seen in self._seen.values() for error in seen.errors)
        self._awaited = {rank: self._find_awaited(rank) for rank in self._seen}

    def waits(self):
        """(awaited rank, how long) of all waits that have not ended, or that failed."""
        return [(other, wait.duration) for awaited in self._awaited.values()
                for other, wait in awaited.items()]

    def cause(self):
        """One sentence."""
        if self._errors:
            # Others may note what follows from an error before the rank itself notes the error.
            causes = [error for error in self._errors if error.kind not in ("peerlost", "shutdown")
                      and error.time < self._errors[0].time + LONG_US]
            return self._explain([*causes, *self._errors][0])
        known = [f"an error on rank {rank}: {seen.trace.why}" for rank, seen in self._seen.items()
                 if seen.trace.why != "timeline" and not seen.trace.why.startswith("requested")
                 and seen.trace.why]
        if self._missing and all(seen.trace.why == ENDED for seen in self._seen.values()):
            known.append(f"{list_ranks(self._missing)} left no record: died, as if killed, unless "
                         "the files are elsewhere; SIGTERM ended the others, as mpirun does when a "
                         "rank has died")
        if self._missing:
            known.append(f"unknown: {list_ranks(self._missing)} left no record, but nobody waits "
                         "for long")
        waiting = collections.defaultdict(dict)  # by operation: the longest waits of ranks
        for rank, seen in self._seen.items():
            for wait in seen.waits[:1]:
                if wait.duration >= LONG_US and self._size > 1:
                    waiting[wait.name][rank] = wait.duration
        if waiting:
            texts = [f"{list_ranks(waits)} wait{'s' * (len(waits) == 1)} up to "
                     f"{format_time(max(waits.values()))} in {name}"
                     for name, waits in itertools.islice(waiting.items(), 4)]
            known.append(f"unknown: {', '.join(texts)}, but no rank is known to be missing there")
        return self._explain_waits() or [
            *known, "nothing is wrong: there are no errors, and nobody waits for long"
            + self._where_all_are()][0]

    def _where_all_are(self):
        steps = {seen.step() for seen in self._seen.values()}
        if 0 in steps:
            return ""
        return f"; all ranks are in step {min(steps)}" if len(steps) == 1 \
            else f"; ranks are in steps {min(steps)} to {max(steps)}"

    def describe(self, rank):
        """One line."""
        if rank not in self._seen:
            return f"rank {rank}: no record"
        seen = self._seen[rank]
        parts = [f"rank {rank} on {seen.trace.host}: {seen.doing()}"]
        for wait in seen.waits[:1]:
            others = [other for other, why in self._awaited[rank].items() if why is wait]
            whom = f" for {list_ranks(others)}" if others else ""
            more = f" and {len(seen.waits) - 1} more" if seen.waits[1:] else ""
            parts.append(f"waits {format_time(wait.duration)}{whom} in {wait.name}{more}")
        parts += [f"error: {error.text}" for error in seen.errors[:1]]
        parts += ["its file is cut"] * seen.trace.is_cut
        return "; ".join(parts)

    def _find_awaited(self, rank):
        """The ranks that this one waits for, and the longest wait for each."""
        awaited = {}
        for wait in self._seen[rank].waits:
            for other in self._awaited_in(wait, rank):
                awaited.setdefault(other, wait)
        return awaited

    def _awaited_in(self, wait, rank):
        if wait.awaiting >= 0 and wait.state != "submitted":
            return [wait.awaiting]
        if wait.is_message:
            members = [wait.peer] if wait.peer >= 0 else []
        else:  # named "world", or "{0, 2}"
            members = [int(member) for member in re.findall("[0-9]+", wait.set)] \
                or range(self._size)
        if wait.state == "submitted" or wait.is_message:
            absent = [other for other in members if other != rank
                      and not self._has_submitted(other, wait)]
            # What a cut file lacks may have been submitted.
            known = [other for other in absent
                     if other in self._seen and not self._seen[other].trace.is_cut]
            if not known and wait.awaiting in absent:
                return [wait.awaiting]
            return known or [other for other in absent if other not in self._seen
                             or wait.duration >= LONG_US]
        return [other for other in members if other not in self._seen and wait.state == "moving"]

    def _has_submitted(self, rank, wait):
        return rank in self._seen and any(own.key == wait.key and own.since < wait.until
                                          for own in self._seen[rank].waits)

    def _explain(self, error):
        ended = re.search("rank ([0-9]+) shut Kolo down", error.text)
        thrown = re.search("rank ([0-9]+) ended with an uncaught exception: (.*)", error.text)
        if ended:
            return f"rank {ended[1]} ended before the others: " \
                + (f"rank {thrown[1]} says: {thrown[2]}" if thrown else error.text)
        if error.kind == "mismatch":
            return f"a mismatch: {error.text}"
        if error.kind == "timeout":
            return self._explain_waits() or f"the deadline passed: {error.text}"
        if error.kind != "peerlost":
            return f"an exception on rank {error.rank}: {error.text}"
        if thrown:
            return f"an exception on rank {thrown[1]}: {thrown[2]}"
        return self._explain_loss()

    def _explain_loss(self):
        """A rank that had an error of its own before the others lost it is no cause."""
        losses = [error for error in self._errors if error.kind == "peerlost"]
        failed = {}  # by rank: when
        for error in reversed(self._errors):
            failed[error.rank] = error.time
        causes = [loss for loss in losses
                  if loss.lost >= 0 and failed.get(loss.lost, math.inf) > loss.time] or losses
        lost = {loss.lost for loss in causes if loss.lost >= 0}
        witnesses = {loss.rank for loss in causes}
        lost_by = f"{list_ranks(witnesses - lost or witnesses)} lost contact"
        first = min(causes)
        silent = re.search("nothing has come from (.+?) for ", first.text)
        stopped = {loss.lost for loss in causes
                   if loss.lost >= 0 and "does not answer" in loss.text}
        dead = sorted(lost - self._seen.keys())
        if silent:
            host = f"nothing came from {silent[1]} any more, and {lost_by}"
            if self._missing:
                return f"a host vanished: {host}; {list_ranks(self._missing)} left no record"
            return f"the network between hosts failed: {host}, but all ranks have written records"
        if stopped:
            return f"{list_ranks(stopped)} {'is' if len(stopped) == 1 else 'are'} stopped or hang" \
                   f"{'s' * (len(stopped) == 1)}: there was no sign of life; {lost_by}"
        if not dead:
            return first.text
        host = self._ranks_beside(dead[0])
        if len(host) > 1 and not self._seen.keys() & host:
            return f"a host vanished: {list_ranks(host)}, all of its ranks, left no record; " \
                   f"{lost_by}"
        return f"{list_ranks(dead)} died, as if killed: no record is left; {lost_by}"

    def _ranks_beside(self, rank):
        """All ranks of its node."""
        own = self._nodes[rank:rank + 1]
        return {other for other, node in enumerate(self._nodes) if [node] == own}

    def _explain_waits(self):
        """Follows who waits for whom from the longest wait to ranks that wait for nobody."""
        longest = {rank: max(awaited.values(), key=lambda wait: wait.duration)
                   for rank, awaited in self._awaited.items() if awaited}
        waiting = [rank for rank, wait in longest.items()
                   if wait.is_overdue or wait.duration >= LONG_US]
        if not waiting:
            return None
        first = max(waiting, key=lambda rank: longest[rank].duration)
        reached, todo = [], [first]
        while todo:
            rank = todo.pop()
            if rank not in reached:
                reached.append(rank)
                todo += self._awaited_long(rank)
        roots = [rank for rank in reached if rank != first and not self._awaited_long(rank)]
        return self._explain_roots(roots) if roots else self._explain_cycle(first)

    def _awaited_long(self, rank):
        """A late rank waits, too, but not for long."""
        awaited = self._awaited.get(rank, {})
        longest = max((wait.duration for wait in awaited.values()), default=0)
        return awaited if longest >= min(LONG_US, self._longest() / 2) else {}

    def _longest(self):
        return max(wait.duration for awaited in self._awaited.values()
                   for wait in awaited.values())

    def _explain_roots(self, roots):
        waits = [(wait, waiter, root) for waiter, awaited in self._awaited.items()
                 for root, wait in awaited.items() if root in roots]
        wait = max((wait for wait, _, _ in waits), key=lambda wait: wait.duration)
        waits = [found for found in waits if found[0].key == wait.key]
        waiters, roots = (sorted({found[column] for found in waits}) for column in (1, 2))
        # Operations that are matched by order move as soon as this rank has submitted them.
        are_late = not wait.is_agreed and all(
            root in self._seen and self._seen[root].now > wait.until - LONG_US
            and not self._has_submitted(root, wait) for root in roots)
        if wait.state == "submitted" or wait.is_message or are_late:
            text = f"{list_ranks(roots)} did not submit " \
                   + "the counterpart of " * wait.is_message + wait.name
        else:
            text = f"{list_ranks(roots)} did not move the data of {wait.name}"
        return "the deadline passed: " * wait.is_overdue + text \
            + f", for which {list_ranks(waiters)} waited {format_time(wait.duration)}; " \
            + "; ".join(self._describe_root(root, wait) for root in roots[:4])

    def _describe_root(self, root, wait):
        if root not in self._seen:
            return f"rank {root} left no record: it is stopped, or hangs, or its host does"
        seen = self._seen[root]
        age = wait.until - seen.now
        if age > LONG_US and seen.trace.why != "timeline":
            return f"rank {root} seems to be stopped: its record is {format_time(age)} older, " \
                   f"when it was {seen.doing()}"
        stack = f"; its main thread was in {', from '.join(seen.stack)}" if seen.stack else ""
        if age < -LONG_US:  # it went on later, as one that was stopped and is then ended
            return f"rank {root} was {seen.doing(wait.until) or 'there only later'}"
        return f"rank {root} was {seen.doing()}{stack}"

    def _explain_cycle(self, rank):
        path = [rank]
        while path[-1] not in path[:-1]:
            path.append(next(iter(self._awaited[path[-1]])))
        path = path[path.index(path[-1]):]
        waits, texts = [], []
        for waiter, awaited in zip(path, path[1:]):
            waits.append(self._awaited[waiter][awaited])
            alike = [other for other, found in self._awaited.items()
                     if awaited in found and found[awaited].key == waits[-1].key]
            texts.append(f"{list_ranks(alike)} wait{'s' * (len(alike) == 1)} for rank {awaited} in "
                         f"{waits[-1].name}")
        are_calls = all(wait.state == "submitted" and not wait.is_message
                        and wait.phase in PHASES for wait in waits)
        if len(waits) == 2 and are_calls and waits[0].key != waits[1].key:
            behind, ahead = sorted((0, 1), key=lambda place: (
                waits[place].step, PHASES.index(waits[place].phase)))
            if waits[behind].step < waits[ahead].step or waits[behind].phase != waits[ahead].phase:
                return f"rank {path[ahead]} did not call {waits[behind].name} in " \
                       f"{waits[behind].phase} of step {waits[behind].step}, and went on to " \
                       f"{waits[ahead].phase} of step {waits[ahead].step}: " \
                       f"{', '.join((texts[behind], texts[ahead]))}"
        return "a cycle, as when ranks submit operations in different orders, or one leaves one " \
               "out: " + ", ".join(texts)


def why(options):
    job = Job(options.folder)
    inquest = Inquest(job)
    print(f"Most likely cause: {inquest.cause()}\n")
    for rank in range(job.size):
        print(inquest.describe(rank))


# Stragglers.

SLOW_STEP = 0.05  # by this part of its length a step takes longer on a slow rank
STRAGGLER = 0.01  # this part of all ranks' time is lost through one
SINGLE = 3.0  # this many times the median is an event of its own
PHASES = ("forward", "backward", "before step", "step")
WAITING_PHASES = ("step", "before step", "forward", "backward")  # those where programs wait, first
HEAD = ("rank", "host", "was last in", "others waited", "longer than the median of the others")

Row = collections.namedtuple("Row", "rank host last waited waited_part slow slow_part mark")


def total_of(intervals):
    """Their union."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(zip(intervals[::2], intervals[1::2])):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def median_of_others(ordered, own):
    """The median of sorted values without one that is `own`."""
    place, count = bisect.bisect_left(ordered, own), len(ordered) - 1
    return sum(ordered[k + (k >= place)] for k in ((count - 1) // 2, count // 2)) / 2


class Survey:
    """One pass through all files: who was last, what it cost, and how long phases took."""

    def __init__(self, job):
        self.job = job
        self._duration = 1.0  # of the longest file
        self._last, self._waited = collections.Counter(), collections.Counter()  # by rank
        self._phases, self._exposed = {}, {}  # by rank and step
        self._marks = {}  # by rank, step and name: how long they took in all
        for trace in job.traces:
            self._read(trace)
        if any(trace.why != "timeline" for trace in job.traces):  # timelines have no open waits
            for rank, duration in Inquest(job).waits():
                self._waited[rank] += duration
        self.steps = sorted(set.intersection(*map(set, self._exposed.values())))
        self.rows = sorted(self._rows(), key=lambda row: -row.waited_part - row.slow_part)

    def length(self, step):
        """How long a step took, waits included."""
        return statistics.median(sum(phases[step].values()) for phases in self._phases.values())

    def _read(self, trace):
        last = collections.Counter()
        intervals = collections.defaultdict(lambda: array.array("d"))  # of this rank's waits
        phases = self._phases[trace.rank] = collections.defaultdict(collections.Counter)
        exposed = self._exposed[trace.rank] = collections.Counter()
        marks, spans = [], []  # with their times; spans are phases
        begin, end = math.inf, -math.inf
        for event in trace.events():
            if event.values.get("ph") != "X":
                end = max(end, event.end + event.number("waiting_us"))
                continue
            begin, end = min(begin, event.begin), max(end, event.end)
            if event.kind == "phase X":
                phases[event.number("step")][event.name] += event.duration
                spans.append((event.begin, event.end, event.number("step")))
                if event.name == "step":
                    exposed[event.number("step")] += event.number("exposed_us")
            elif event.kind == "mark X":
                marks.append(event)
            elif event.kind == "negotiate X":
                last[event.rank("last_rank")] += event.number("collective") > 0
                intervals[event.rank("last_rank")].extend(
                    (event.begin, event.begin + event.number("late_us")))
            elif event.kind == "move X":
                intervals[event.rank("waited_for")].extend(
                    (event.begin, event.begin + event.number("waited_us")))
        spans.sort()
        in_steps = self._marks[trace.rank] = collections.defaultdict(collections.Counter)
        for mark in marks:
            place = bisect.bisect_right(spans, (mark.begin, math.inf)) - 1
            if place >= 0 and mark.begin < spans[place][1]:
                in_steps[spans[place][2]][mark.name] += mark.duration
        # All files count the same operations, if they have not been cut; but where its own rank was
        # last, a file may leave out that the operation was negotiated for no time.
        self._last |= last
        # Operations that wait at the same time for the same rank wait once.
        self._waited.update({rank: total_of(times) for rank, times in intervals.items()})
        self._duration = max(self._duration, end - begin)

    def _work(self, rank, step):
        """How long the phases of a step took without the program's waits, in the order PHASES."""
        phases = dict(self._phases[rank][step])
        waits = self._exposed[rank][step]
        for name in WAITING_PHASES:
            part = min(waits, phases.get(name, 0.0))
            phases[name] = phases.get(name, 0.0) - part
            waits -= part
        return [phases[name] for name in PHASES]

    def _rows(self):
        others = max(1, len(self.job.traces) - 1)
        # By rank: a step, and by how much its phases are longer.
        slow = collections.defaultdict(list)
        for step in self.steps if len(self.job.traces) > 1 else ():
            works = {trace.rank: self._work(trace.rank, step) for trace in self.job.traces}
            totals = sorted(map(sum, works.values()))
            columns = [sorted(column) for column in zip(*works.values())]
            for rank, work in works.items():
                excess = sum(work) - median_of_others(totals, sum(work))
                if excess > SLOW_STEP * self.length(step):
                    slow[rank].append((step, [own - median_of_others(column, own)
                                              for column, own in zip(columns, work)]))
        lengths = sum(map(self.length, self.steps)) or 1.0
        for trace in self.job.traces:
            waited, steps = self._waited[trace.rank], slow[trace.rank]
            excess = sum(sum(phases) for _, phases in steps)
            yield Row(trace.rank, trace.host, self._last[trace.rank], waited,
                      waited / self._duration / others, steps, excess / lengths,
                      self._slow_mark(trace.rank, [step for step, _ in steps], excess))

    def _slow_mark(self, rank, steps, excess):
        """The program's mark that takes most of what this rank takes longer in these steps; None if
        none does."""
        longer = {}
        for name in {name for step in steps for name in self._marks[rank][step]}:
            times = {other: sum(marks[step][name] for step in steps)
                     for other, marks in self._marks.items()}
            longer[name] = times[rank] - median_of_others(sorted(times.values()), times[rank])
        worst = max(longer, key=longer.get, default=None)
        return worst if worst is not None and longer[worst] > max(excess, 1.0) / 2 else None

    def describe_slow(self, row):
        if row.slow_part < STRAGGLER:
            return "not longer"
        def phases_of(excess):
            return ", ".join(f"{name}{' (data included)' * (name == 'forward')} {format_time(time)}"
                             for name, time in zip(PHASES, excess) if time > max(excess) / 4)
        ordered = sorted(row.slow, key=lambda slow: sum(slow[1]))
        _, usual = ordered[(len(ordered) - 1) // 2]
        step, worst = ordered[-1]
        text = f"{phases_of(usual)} in {len(row.slow)} of {plural(len(self.steps), 'step')}"
        if sum(worst) > SINGLE * sum(usual):
            text += f", {phases_of(worst)} in step {step:.0f}"
        return text + f", most of it in '{row.mark}'" * (row.mark is not None)

    def table(self, top=None):
        operations = sum(self._last.values())
        return [HEAD, *((str(row.rank), row.host, f"{row.last} of {operations}",
                         format_time(row.waited), self.describe_slow(row))
                        for row in self.rows[:top])]

    def sentences(self):
        """One for each straggler, the worst first."""
        found = []
        for row in self.rows:
            waited = f"the others waited {format_time(row.waited)} for it, " \
                     f"{row.waited_part:.0%} of their time"
            if row.slow_part >= STRAGGLER:
                found.append(f"rank {row.rank} takes longer than the median of the others: "
                             f"{self.describe_slow(row)}; {waited}")
            elif row.waited_part >= max(STRAGGLER, SINGLE * self._usual_waits(row)):
                found.append(f"rank {row.rank}: {waited}" + bool(self.steps) * (
                    f"; its phases take {SLOW_STEP:.0%} longer than the median of the others in "
                    f"{len(row.slow)} of {plural(len(self.steps), 'step')}"))
        shared = [trace.rank for trace in self.job.traces if trace.shares_cores]
        shares = []
        if shared:
            shares = [f"{list_ranks(shared)} share{'s' * (len(shared) == 1)} cores with other "
                      "ranks, and may wait for one"]
        if found:
            return found + shares
        waited = ", ".join(f"{row.waited_part:.0%} of their time for rank {row.rank}"
                           for row in self.rows[:4] if row.waited_part >= STRAGGLER)
        return ["no straggler: no rank " + (f"stands out; the others waited {waited}" if waited
                                            else "costs the others 1% of their time"), *shares]

    def _usual_waits(self, row):
        """The median over the other ranks of the part of their time that others waited."""
        parts = sorted(other.waited_part for other in self.rows)
        return median_of_others(parts, row.waited_part) if len(parts) > 1 else 0.0


def stragglers(options):
    survey = Survey(Job(options.folder))
    print(*align(survey.table(options.top)), "", *survey.sentences(), sep="\n")


# A page with a picture of one step.

COLOURS = {"mark": "#f0e442", "forward": "#56b4e9", "backward": "#0072b2", "before step": "#cc79a7",
           "step": "#009e73", "exposed": "url(#stripes)", "negotiate": "#e69f00",
           "queue": "#999999", "move": "#6a51a3", "waits": "#d55e00"}
ROWS = ("mark", "negotiate", "queue", "move", "waits")
PICTURED_RANKS = 16
LEFT, WIDTH, ROW, BLOCK = 130, 900, 12, 109
CHART = 100  # the height of a chart

SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
     aria-label="{label}">
<style>
text {{ font: 12px sans-serif; fill: #222 }}
.small {{ font-size: 9px; fill: #666 }} .rank {{ font-weight: bold }} .inside {{ fill: #fff }}
.right {{ text-anchor: end }} .middle {{ text-anchor: middle }}
line {{ stroke: #ddd }} .operation {{ fill-opacity: .55 }}
</style>
<pattern id="stripes" width="5" height="5" patternUnits="userSpaceOnUse"
  patternTransform="rotate(45)"><rect width="5" height="5" fill="#fff"/><rect width="2.5" height="5"
  fill="#d55e00"/></pattern>
<rect width="100%" height="100%" fill="#fff"/>
{content}
</svg>
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Who makes the others wait</title>
<style>
body {{ font: 15px/1.5 sans-serif; color: #222; max-width: 1060px; margin: 2em auto }}
table {{ border-collapse: collapse }} svg {{ width: 100% }}
td, th {{ padding: .2em 1.5em .2em 0; text-align: left; border-bottom: 1px solid #ddd }}
</style>
<h1>Who makes the others wait</h1>
<p>{job}</p>
{sentences}
<table>
{table}
</table>
{picture}
</html>
"""


class Picture:
    """One step: times across; for each rank a block of rows."""

    def __init__(self, survey, step):
        shown = [row.rank for row in survey.rows[:PICTURED_RANKS]]
        clocks = Clocks(survey.job)
        self._step = step
        self._events = {trace: list(self._read(trace, clocks)) for trace in survey.job.traces
                        if trace.rank in shown}
        phases = [event for event in itertools.chain(*self._events.values())
                  if event.kind == "phase X"]
        self._begin = min(phase.begin for phase in phases)
        end = max(phase.end for phase in phases)
        self._length = end - self._begin or 1.0
        for trace, events in self._events.items():
            self._events[trace] = [event for event in events if event.kind != "mark X"
                                   or event.end > self._begin and event.begin < end]

    def svg(self):
        height = 64 + BLOCK * len(self._events)
        content = [*self._legend(), *self._axis(height)]
        for number, trace in enumerate(self._events):
            content += self._block(trace, 40 + BLOCK * number)
        return SVG.format(width=LEFT + WIDTH + 20, height=height, content="\n".join(content),
                          label=f"What each rank did in step {self._step}")

    def _read(self, trace, clocks):
        for event in trace.events():
            if event.kind == "mark X" or (
                    event.number("step") == self._step and event.kind in ("phase X", *SPANS)):
                event.begin, event.end = clocks.world_times(trace, event)
                yield event

    def _bars(self, trace):
        """The names of operations that share a bar, by its row, begin and end: fused ones do."""
        bars = collections.defaultdict(list)
        for event in self._events[trace]:
            row = event.kind.removesuffix(" X")
            if row in ROWS:
                bars[row, event.begin, event.end].append(event.name)
            culprit, wait = {"negotiate": ("last_rank", "late_us"),
                             "move": ("waited_for", "waited_us")}.get(row, ("", ""))
            if event.number(wait) > 0:
                bars["waits", event.begin, event.begin + event.number(wait)].append(
                    f"for rank {event.rank(culprit)} in {event.name}")
        return bars

    def _legend(self):
        x = LEFT
        for name, colour in COLOURS.items():
            yield f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>'
            yield f'<text x="{x + 17}" y="18">{name}</text>'
            x += 45 + 6 * len(name)

    def _axis(self, height):
        unit = 10 ** math.floor(math.log10(self._length))
        unit /= next(parts for parts in (1, 2, 5, 10) if self._length / unit * parts >= 4)
        for tick in range(int(self._length / unit) + 1):
            x = self._x(self._begin + tick * unit)
            yield f'<line x1="{x}" x2="{x}" y1="30" y2="{height - 24}"/>'
            yield f'<text class="small middle" x="{x}" y="{height - 10}">' \
                  f'{format_time(tick * unit)}</text>'

    def _block(self, trace, top):
        yield f'<text class="rank" x="8" y="{top + 14}">rank {trace.rank}</text>'
        yield f'<text class="small" x="8" y="{top + 28}">{html.escape(trace.host)}</text>'
        for phase in self._events[trace]:
            if phase.kind != "phase X":
                continue
            text = f"{phase.name} {format_time(phase.duration)}"
            yield self._bar(phase.begin, phase.end, top, 18, COLOURS.get(phase.name, "#777"), text)
            if phase.duration / self._length * WIDTH > 7 * len(text):
                yield f'<text class="inside" x="{self._x(phase.begin) + 4}" y="{top + 13}">' \
                      f'{html.escape(text)}</text>'
            exposed = phase.number("exposed_us")
            if exposed > 0:  # when is not recorded: mostly at the begin of step()
                begin = min(phase.begin, phase.end - exposed)
                yield self._bar(begin, begin + exposed, top + 19, 6, COLOURS["exposed"],
                                f"exposed communication {format_time(exposed)}")
        y = {row: top + 28 + (ROW + 3) * number for number, row in enumerate(ROWS)}
        for row in ROWS:
            yield f'<text class="small right" x="{LEFT - 6}" y="{y[row] + 9}">{row}</text>'
        for (row, begin, end), names in self._bars(trace).items():
            text = f"{row} {format_time(end - begin)}: {', '.join(names[:8])}" \
                   + (f" and {len(names) - 8} more" if names[8:] else "")
            yield self._bar(begin, end, y[row], ROW, COLOURS[row], text, ' class="operation"')

    def _x(self, time):
        return round(LEFT + WIDTH * max(0, min((time - self._begin) / self._length, 1)), 2)

    def _bar(self, begin, end, y, height, colour, text, attributes=""):
        width = max(round(self._x(end) - self._x(begin), 2), 0.5)
        return f'<rect{attributes} x="{self._x(begin)}" y="{y}" width="{width}" ' \
               f'height="{height}" fill="{colour}"><title>{html.escape(text)}</title></rect>'


def steps_over_time(survey):
    """A bar for each step; where several share one, it is that of the longest."""
    lengths = {step: survey.length(step) for step in survey.steps}
    ordered = sorted(lengths.values())
    share = math.ceil(len(lengths) / WIDTH)
    content = []
    for begin in range(0, len(survey.steps), share):
        step = max(survey.steps[begin:begin + share], key=lengths.get)
        height = round(CHART * lengths[step] / (ordered[-1] or 1.0), 2)
        x, end = (round(LEFT + WIDTH * place / len(lengths), 2) for place in (begin, begin + share))
        content.append(f'<rect x="{x}" y="{10 + CHART - height}" width="{end - x:.2f}" '
                       f'height="{height}" fill="{COLOURS["backward"]}"><title>step {step:.0f}: '
                       f"{format_time(lengths[step])}</title></rect>")
    for y, time_us in (20, ordered[-1]), (10 + CHART, 0):
        content.append(f'<text class="small right" x="{LEFT - 6}" y="{y}">{format_time(time_us)}'
                       "</text>")
    text = f"The median step took {format_time(statistics.median(ordered))}, nine of ten at most " \
           f"{format_time(ordered[math.ceil(0.9 * len(ordered)) - 1])}, the longest " \
           f"{format_time(ordered[-1])}: step {max(lengths, key=lengths.get):.0f}."
    chart = SVG.format(width=LEFT + WIDTH + 20, height=CHART + 20, content="\n".join(content),
                       label="How long each step took")
    return f"<h2>Steps over time</h2>\n<p>{text}</p>\n{chart}"


def describe_job(job):
    hosts = sorted({trace.host for trace in job.traces})
    where = ", ".join(hosts) if len(hosts) < 5 else plural(len(hosts), "host")
    written = time.gmtime(max(0.0, *(trace.wall_clock for trace in job.traces)) / 1e6)
    return f"{job.folder}: {plural(job.size, 'rank')} on {where}, " \
           f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', written)}"


def choose_step(survey, which):
    """The first step warms up: it is neither the worst nor the median unless it is the only one."""
    steps = sorted(survey.steps[1:] or survey.steps, key=survey.length)
    if not steps or which not in ("worst", "median") and which not in survey.steps:
        raise Problem(f"{survey.job.folder}: no step {which} that all ranks have recorded")
    return {"worst": steps[-1], "median": steps[(len(steps) - 1) // 2]}.get(which, which)


def report(options):
    survey = Survey(Job(options.folder))
    page = ""
    if survey.steps or options.output.endswith(".svg"):
        step = choose_step(survey, options.step)
        page = Picture(survey, step).svg()
    if not options.output.endswith(".svg"):
        rows = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
                for row in survey.table()]
        if page:
            page = f"{steps_over_time(survey)}\n<h2>Step {step:.0f} of " \
                   f"{plural(len(survey.steps), 'step')}</h2>\n{page}"
        page = PAGE.format(
            job=html.escape(describe_job(survey.job)),
            sentences="\n".join(f"<p>{html.escape(text)}</p>" for text in survey.sentences()),
            table="\n".join([rows[0].replace("td>", "th>"), *rows[1:]]),
            picture=page or "<p>There is no step that all ranks have recorded.</p>")
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(page)


# A live view of metrics.

BETWEEN_FILES = 10  # seconds: how often Kolo replaces a file
SILENT = 2.5 * BETWEEN_FILES
REMARKS = (("failed_operations_total", "failed"), ("stalls_total", "stalled"))
SAMPLE = re.compile(r'kolo_(\w+)\{rank="(\d{1,9})"(?:,(?:collective|path|peer|le)="([^"]{0,30})")?'
                    r'(?:,\w+="[^"\n]*")*\} (\d{1,18}(?:\.\d+)?)\n', re.ASCII)
WAITS = ("late_seconds_total", "data_wait_seconds_total", "open_wait_seconds")
TOP_HEAD = ("rank", "others waited", "remarks", "steps", "a step", "exposed", "ops/s", "MB/s",
            "agree", "move")


class Counts:
    """What a rank had counted when it wrote its file. Differences have what grew. A wait that has
    not ended is longer in each file, and then counted: `waits` has both."""

    def __init__(self, text="", written=0.0):
        self.written = written
        self.values = collections.Counter()  # by name; sums over the second label
        self.waits = collections.Counter()  # by peer
        self.open = 0.0, ""  # the longest wait that has not ended, and for whom
        for name, rank, label, number in SAMPLE.findall(text):
            self.rank = int(rank)
            self.values[name] += float(number)
            if name in WAITS and label.isdecimal():
                self.waits[int(label)] += float(number)
            if name == "open_wait_seconds":
                self.open = max(self.open, (float(number), label))
        self.elapsed = self.values["elapsed_seconds_total"]
        self.started = written - self.elapsed

    def __sub__(self, earlier):
        difference = Counts()
        difference.values, difference.waits = (
            self.values - earlier.values, self.waits - earlier.waits)
        difference.elapsed = self.elapsed - earlier.elapsed
        return difference

    def mean(self, histogram):
        count = self.values[f"{histogram}_count"]
        return format_time(self.values[f"{histogram}_sum"] / count * 1e6) if count else ""


def figures_of(last):
    """The cells from "a step" on, from what a rank has counted lately."""
    if not last.elapsed:
        return [""] * 6
    steps, exposed = last.values["steps_total"], last.values["step_exposed_seconds_total"]
    return [format_time(last.elapsed / steps * 1e6) if steps else "",
            f"{min(1.0, exposed / last.elapsed):.0%}" if steps else "",  # some was before
            f"{last.values['operations_total'] / last.elapsed:,.1f}",
            f"{last.values['moved_bytes_total'] / last.elapsed / 1e6:,.1f}",
            last.mean("agree_seconds"), last.mean("move_seconds")]


class LiveView:
    """The newest two versions of each rank's file."""

    def __init__(self, name):
        self._name = re.sub("/+", "/", name)
        self._ranks = {}  # the newest version, and what it has more than the one before
        self._changed = 0.0  # when one of them did, by time.monotonic()
        self._unread = ""  # a file, and why

    def read(self):
        is_first, found, self._unread = not self._ranks, {}, ""
        for path in filter(os.path.isfile, self._paths()):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    counts = Counts(file.read(), os.fstat(file.fileno()).st_mtime)
            except OSError as error:
                self._unread = f"{path}: {error.strerror}"
                continue
            if counts.elapsed and counts.written >= found.get(counts.rank, counts).written:
                found[counts.rank] = counts
        for rank, now in found.items():
            before = self._ranks.get(rank, [Counts()])[0]
            if now.started > before.written:  # a new job
                before = Counts()
            if now.elapsed > before.elapsed:
                self._ranks[rank] = now, now - before
                self._changed = time.monotonic()
        if not self._ranks:
            raise Problem(self._unread or f"{self._name}: no metrics of Kolo to read; start the "
                          "job with KOLO_METRICS set to this name")
        if is_first:  # only now, since the clock of the file system may not be this host's
            self._changed -= max(0.0, time.time() - self._newest()[0].written)

    def _newest(self):
        return max(self._ranks.values(), key=lambda pair: pair[0].written)

    def _paths(self):
        """Kolo replaces the first {rank}; without one it appends the rank, if there are several."""
        before, place, after = self._name.partition("{rank}")
        before += "" if place else "."
        of_rank = re.compile(f"{re.escape(before)}[0-9]{{1,9}}{re.escape(after)}")
        paths = glob.glob(f"{glob.escape(before)}*{glob.escape(after)}")
        return [*filter(of_rank.fullmatch, paths), *[self._name] * (not place)]

    def lines(self, most):
        """With at most that many rows, the worst."""
        newest, last = self._newest()
        # A rank that is stopped writes no more: its file is old, but not older than the job.
        old = [rank for rank, (now, _) in self._ranks.items() if now.written < newest.started
               and now.started < newest.started - BETWEEN_FILES]
        ranks = {rank: pair for rank, pair in self._ranks.items() if rank not in old}
        rows = sorted(self._rows(ranks, newest))
        age = time.monotonic() - self._changed
        yield "; ".join(filter(None, [  # a narrow terminal cuts the end
            f"all silent for {format_time(age * 1e6)}: ended, or stopped" if age > SILENT else "",
            self._unread,
            f"{plural(len(rows), 'rank')}, {format_time(newest.elapsed * 1e6)} after the start",
            f"figures of the last {format_time(last.elapsed * 1e6)}",
            f"left out, of an earlier job: {list_ranks(old)}" if old else ""]))
        yield from align([TOP_HEAD, *(row[-1] for row in rows[:most])])
        if rows[most:]:
            yield f"and {plural(len(rows[most:]), 'rank')} more"

    def _rows(self, ranks, newest):
        """The cells of each rank, after what to sort by: first the silent ones, since the others
        may wait for them now, and count a wait when it ends."""
        lasts = {rank: last for rank, (now, last) in ranks.items()
                 if now.written > newest.written - SILENT}
        waits = sum((last.waits for last in lasts.values()), collections.Counter())
        total = sum(last.elapsed for last in lasts.values())
        for rank in {**ranks, **waits}:  # files of some may be elsewhere
            now = ranks[rank][0] if rank in ranks else Counts()
            last = lasts.get(rank, Counts())
            part = min(1.0, waits[rank] / (total - last.elapsed or 1.0))
            is_silent = bool(now.elapsed and not last.elapsed)
            remarks = ["no file"] * (not now.elapsed) \
                + [f"silent for {format_time((newest.written - now.written) * 1e6)}"] * is_silent \
                + [f"an operation of {format_time(now.open[0] * 1e6)}"
                   + f" waits for rank {now.open[1]}" * now.open[1].isdecimal()
                   ] * (now.open[0] >= 1) \
                + [f"{now.values[name]:.0f} {text}" for name, text in REMARKS if now.values[name]]
            steps = now.values["steps_total"]
            yield not is_silent, -part, rank, [
                str(rank), f"{part:.0%}", ", ".join(remarks), f"{steps:.0f}" if steps else "",
                *figures_of(last)]


def top(options):
    view = LiveView(options.name)
    is_terminal = sys.stdout.isatty() and not options.once
    most = options.top or sys.maxsize
    try:
        while True:
            view.read()
            if is_terminal:
                size = shutil.get_terminal_size()
                lines = view.lines(max(1, min(most, size.lines - 3)))  # and three around them
                screen = "\n".join(f"{line[:size.columns - 1]}\x1b[K"
                                   for line in itertools.islice(lines, size.lines))
                print(f"\x1b[H{screen}\x1b[J", end="", flush=True)
            else:
                print(*view.lines(most), *[""] * (not options.once), sep="\n", flush=True)
            if options.once:
                return
            time.sleep(options.interval)
    except KeyboardInterrupt:
        print("\n" * is_terminal, end="")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"kolo-trace: {message}; see {self.prog} --help\n")


def positive(text):
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def parse_options(arguments):
    parser = Parser(prog="kolo-trace", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version",
                        version=f"kolo-trace for traces of format {FORMAT}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(run, text, what="folder", which="with a rank-<R>.json of each rank"):
        command = commands.add_parser(run.__name__, help=text, description=text)
        command.add_argument(what, metavar=what.upper(), help=which)
        command.set_defaults(run=run)
        return command.add_argument

    add(why, "the most likely cause of a failure or hang, and what each rank did last")
    add(stragglers, "which ranks make the others wait, how long, and in which phase")(
        "--top", type=positive, metavar="N", help="the table shows only the N worst ranks")
    argument = add(report, "stragglers as a page, with a picture of one step")
    argument("-o", "--output", default="report.html", metavar="FILE",
             help="default: %(default)s; if it ends in .svg, it is the picture alone")
    argument("--step", default="worst", help="worst (default), median or its number",
             type=lambda text: text if text in ("worst", "median") else positive(text))
    add(merge, "one trace of all ranks on one clock, for Perfetto and chrome://tracing")(
        "-o", "--output", metavar="FILE", help="default: FOLDER/merged.json")
    argument = add(top, "what each rank of a running job does, until Ctrl-C", "name",
                   "the file that KOLO_METRICS names")
    argument("--once", action="store_true", help="one table, with figures since the start")
    argument("--interval", type=positive, default=2, metavar="SECONDS",
             help="between two looks at the files; default: %(default)s")
    argument("--top", type=positive, metavar="N", help="only the N worst ranks")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_options(arguments)
    sys.stdout.reconfigure(errors="backslashreplace")  # names may have letters that it cannot show
    try:
        options.run(options)
        sys.stdout.flush()
    except Problem as problem:
        say(problem)
        return 2
    except BrokenPipeError:  # as by head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        say(": ".join(filter(None, (error.filename, error.strerror))))  # standard output has none
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
