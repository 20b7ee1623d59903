#!/usr/bin/env python3
"""Runs a program by mpirun, and restarts it when it fails; see docs/restart.md.

    kolo-restart -np 4 --host a:2,b:2 --min-np 2 -- ./train
"""
import argparse
import collections
import ctypes
import math
import os
import re
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

MAX_COUNT = 1_000_000
LONGEST_PAUSE_S = 60.0
RANK_EXIT_S = 0.5  # for ranks to end after mpirun
KILL_TIMEOUT_S = 10.0  # after SIGKILL
POLL_S = 0.01
LONGEST_LINE = 4096  # of mpirun's messages

PREEMPTED = 75  # the program has saved and left: kolo::kPreemptedStatus
CANNOT_START = 127
SIGNALLED = 128

Attempt = collections.namedtuple("Attempt", "ranks hosts")  # hosts {}: mpirun chooses them
JobEnd = collections.namedtuple("JobEnd", "status was_killed cause")  # status as Popen.returncode
# Of a job's end. `node` may be to blame: it does not answer, cannot start the program, or a rank
# there ended by SIGKILL or SIGBUS.
Cause = collections.namedtuple("Cause", "text node", defaults=[None])


def say(text):
    try:
        os.write(2, f"kolo-restart: {text}\n".encode(errors="surrogateescape"))
    except OSError:
        pass  # it has no reader


def plural(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def is_count(text, least):
    return re.fullmatch("[0-9]{1,7}", text) and least <= int(text) <= MAX_COUNT


# Hosts: a dictionary from names to slots, the numbers of ranks that they take.


def parse_slots(text, whole):
    if not is_count(text, 1):
        raise argparse.ArgumentTypeError(f"'{whole}' has no number of slots from 1 to {MAX_COUNT}")
    return int(text)


def parse_host(text):
    """Parses "a" or "a:2"."""
    name, colon, slots = text.partition(":")
    if not name or name.startswith("-") or re.search(r"[\s=,]", name):
        raise argparse.ArgumentTypeError(f"'{text}' is not the name of a host")
    return name, parse_slots(slots, text) if colon else 1


def add_host(hosts, name, slots):
    hosts[name] = hosts.get(name, 0) + slots
    if count_slots(hosts) > MAX_COUNT:
        raise argparse.ArgumentTypeError("the hosts have too many slots")


def parse_host_list(text):
    """Parses "a:2,b,b": each mention adds its number of slots, or one."""
    hosts = {}
    for word in text.split(","):
        add_host(hosts, *parse_host(word))
    return hosts


def parse_host_line(words):
    name, slots = parse_host(words[0])
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "slots":
            slots = parse_slots(value, word)
        elif key not in ("max_slots", "max-slots"):  # never more than its slots
            raise argparse.ArgumentTypeError(f"'{word}' is not known: slots=N is")
    return name, slots


def parse_host_file(path):
    """Parses a host file of Open MPI ("a slots=2") or MPICH ("a:2")."""
    hosts = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        raise argparse.ArgumentTypeError(f"{path}: cannot be read") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        try:
            if words:
                add_host(hosts, *parse_host_line(words))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{path}: line {number}: {error}") from None
    if not hosts:
        raise argparse.ArgumentTypeError(f"{path}: it names no host")
    return hosts


def count_slots(hosts):
    return sum(hosts.values())


def list_hosts(hosts):
    return ",".join(f"{name}:{slots}" for name, slots in hosts.items())


def is_same_host(listed, reported, here):
    """Whether mpirun means the host `listed` when it reports a node as `reported`, with or without
    its domain; `here` is the name of this machine."""
    def without_domain(name):
        return name if re.fullmatch("[0-9.]*", name) else name.partition(".")[0]
    if listed in ("localhost", "127.0.0.1"):
        listed = here
    return listed == reported or without_domain(listed) == without_domain(reported)


# The command line.


def count_from(least):
    def parse(text):
        if not is_count(text, least):
            raise argparse.ArgumentTypeError(
                f"'{text}' is not a number from {least} to {MAX_COUNT}")
        return int(text)
    return parse


def parse_duration(text):
    match = re.fullmatch("([0-9]{1,8})(ms|s|m|h)", text)
    seconds = match and int(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2]]
    if seconds is None or seconds > 24 * 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time up to 24h, such as 250ms, 2s, 5m")
    return seconds


def parse_mpirun(text):
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise argparse.ArgumentTypeError(f"'{text}' is not a command")
    for word in words:
        if word in ("--enable-recovery", "-enable-recovery", "-disable-auto-cleanup"):
            raise argparse.ArgumentTypeError(
                f"with {word} mpirun does not tell that a rank has failed; leave it out")
    return words


def make_parser():
    parser = argparse.ArgumentParser(
        prog="kolo-restart", usage="%(prog)s -np N [options] -- PROGRAM [argument]...",
        add_help=False, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs PROGRAM by mpirun, and again when the job fails, on the hosts that are "
        "left.\n\nThe program itself resumes from its newest checkpoint: see docs/restart.md. Exit "
        "status: that\nof the last job, 75 if it was preempted; 2: wrong flags; 127: mpirun or "
        "PROGRAM cannot be run.",
        epilog="PROGRAM and its arguments stand behind --, as in\n"
        "  kolo-restart -np 4 --host a:2,b:2 --min-np 2 -- ./train --lr 0.1")
    add = parser.add_argument
    add("--help", "-h", action="help", help="show this text")
    add("--np", "-np", "-n", type=count_from(1), required=True, metavar="N", help="ranks to start")
    add("--min-np", type=count_from(1), metavar="N",
        help="fewest ranks to go on with where hosts are lost (default: as many as -np)")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("--host", type=parse_host_list, dest="hosts", metavar="HOST:N,...",
                       help="hosts and how many ranks each takes, as in a:2,b:2 (default: mpirun "
                       "chooses)")
    hosts.add_argument("--hostfile", type=parse_host_file, dest="hosts", metavar="FILE",
                       help="the same as a file with lines such as a slots=2")
    add("--mpirun", type=parse_mpirun, metavar="COMMAND",
        default=os.environ.get("KOLO_MPIRUN") or "mpirun",
        help="what starts a job, with options of its own (default: what KOLO_MPIRUN names, or "
        "mpirun)")
    add("--max-restarts", type=count_from(0), default=3, metavar="N",
        help="restarts in all (default 3)")
    add("--host-failures", type=count_from(1), default=2, metavar="N",
        help="failures in a row that mpirun traces to one host, after which the job goes on "
        "without it (default 2)")
    add("--backoff", type=parse_duration, default="1s", metavar="TIME",
        help="pause before the first restart, doubled for each further one up to 1m (default 1s)")
    add("--probe-timeout", type=parse_duration, default="30s", metavar="TIME",
        help="how long a host may take to start a process, or it counts as lost (default 30s)")
    add("--grace", type=parse_duration, default="10s", metavar="TIME",
        help="how long processes that are to end may take before they are killed (default 10s)")
    add("--preempt", type=parse_duration, default="0s", metavar="TIME",
        help="after SIGTERM, how long the job may take to save and leave (kolo::preempted(), which "
        "SIGUSR1 asks) before it is ended (default 0s: it is ended at once)")
    parser.set_defaults(hosts={})
    return parser


def parse_options(arguments):
    """The options; ends the program after --help and with wrong flags."""
    parser = make_parser()
    dashes = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:dashes])
    options.program = arguments[dashes + 1:]
    options.min_np = options.min_np or options.np
    if not options.program:
        parser.error("no PROGRAM: it stands behind --, as in kolo-restart -np 4 -- ./train")
    if options.min_np > options.np:
        parser.error(f"--min-np {options.min_np} is more than -np {options.np}")
    if options.hosts and options.np > count_slots(options.hosts):
        parser.error(f"-np {options.np} is more than the slots of {list_hosts(options.hosts)}, of "
                     "which HOST:N has N")
    return options


# Processes and signals.

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SI_KERNEL = 0x80  # sent by the kernel, as Ctrl-C at a terminal is
SIGINFO_BYTES = 128  # struct signalfd_siginfo, which begins with number, errno and code

JOB_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # which do not ask this program to end
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def prctl(option, value):
    libc.prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


def open_standard_streams():
    """Opens those that are closed, so that no pipe gets their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def open_signalfd(signals):
    """A descriptor from which blocked signals are read: poll() can wait for it, and it tells who
    has sent a signal."""
    mask = ctypes.create_string_buffer(128)  # sigset_t
    libc.sigemptyset(mask)
    for number in signals:
        libc.sigaddset(mask, int(number))
    descriptor = libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return descriptor


def find_descendants():
    """The running descendants of this process."""
    children = collections.defaultdict(list)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has ended
        if state not in (b"Z", b"X"):
            children[int(parent)].append(int(entry))
    found = [os.getpid()]
    for pid in found:
        found += children[pid]  # which the loop visits too
    return found[1:]


def send(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it has ended


class CannotStart(Exception):
    """A program cannot be started; the text names it and says why."""


class Children:
    """The descendants of this process, and the signals that it receives."""

    def __init__(self):
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become its children
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the kernel would reap them
        handled = {signal.SIGCHLD}
        for number in (*END_SIGNALS, *JOB_SIGNALS):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                handled.add(number)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled)  # children have the old one
        self._signals = open_signalfd(handled)
        self._arrived = []
        self._running = {}  # started here, by their ids
        self.end_signal = 0  # the first one that has asked this program to end

    def start(self, command, **streams):
        """Starts a program, which gets SIGTERM when this one ends."""
        parent = os.getpid()

        def prepare():
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before prctl()
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            child = subprocess.Popen(command, preexec_fn=prepare, **streams)
        except OSError as error:
            raise CannotStart(f"cannot start {command[0]}: {error.strerror}") from None
        self._running[child.pid] = child
        return child

    def wait(self, limit_s, watched=()):
        """Sleeps until a signal arrives, a pair (descriptor, events) of `watched` is ready, or the
        time has passed; None: no limit. Reaps children. Returns the descriptors that are ready."""
        poll = select.poll()
        for descriptor, events in ((self._signals, select.POLLIN), *watched):
            poll.register(descriptor, events)
        ready = poll.poll(None if limit_s is None else max(0, math.ceil(1000 * limit_s)))
        self._read_signals()
        self._reap()
        return [descriptor for descriptor, _ in ready if descriptor != self._signals]

    def wait_until(self, is_done, limit_s):
        """Waits until is_done(), a signal asks this program to end, or the time has passed."""
        end = time.monotonic() + limit_s
        while not is_done() and not self.end_signal and time.monotonic() < end:
            self.wait(end - time.monotonic())
            self.take_signals()  # no job runs that others could be for

    def take_signals(self):
        """The signals that have arrived: their numbers, and whether the terminal, which has sent
        them to the children too, is their origin."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def end_all(self, grace_s):
        """Ends all descendants: with SIGTERM, and after `grace_s` with SIGKILL. Returns those that
        the kernel keeps nevertheless."""
        left = find_descendants()
        for pid in left:
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)  # a stopped process would not notice
        killing_at = time.monotonic() + grace_s
        while left and time.monotonic() < killing_at + KILL_TIMEOUT_S:
            if time.monotonic() >= killing_at:
                for pid in left:
                    send(pid, signal.SIGKILL)
            self.wait(POLL_S)
            left = find_descendants()
        self._reap()
        return left

    def _reap(self):
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            child = self._running.pop(ended.si_pid, None)
            if child:
                child.wait()
            else:
                os.waitpid(ended.si_pid, 0)  # adopted

    def _read_signals(self):
        while True:
            try:
                info = os.read(self._signals, SIGINFO_BYTES)
            except BlockingIOError:
                return
            number, _, code = struct.unpack_from("Iii", info)
            if number == signal.SIGCHLD:
                continue
            self._arrived.append((number, code == SI_KERNEL))
            if number in END_SIGNALS and not self.end_signal:
                self.end_signal = number


# A job.


def signal_name(number):
    return f"signal {number} ({signal.strsignal(number)})"


def describe_killed_rank(rank, node, number):
    is_suspect = int(number) in (signal.SIGKILL, signal.SIGBUS)
    return Cause(f"rank {rank} on node {node} ended by {signal_name(int(number))}",
                 node if is_suspect else None)


# What mpirun writes, and the cause that it gives.
MESSAGES = (
    (re.compile(r"noticed that process rank (\d+)\s+with\s+PID\s+\S+\s+on\s+node\s+(\S+)\s+exited"
                r"\s+on\s+signal\s+(\d{1,9})"), describe_killed_rank),
    # "[[123,1],2]" in version 4, "[prterun-name-123@1,2]" in version 5.
    (re.compile(r"Process name: \[.*,(\d+)\]\s+Exit code:\s+(\d+)"),
     lambda rank, status: Cause(f"rank {rank} ended with exit status {status}")),
    (re.compile(r"Executable: .+\s+Node:\s+(\S+)"),
     lambda node: Cause(f"the program could not be started on node {node}", node)),
    (re.compile(r"Remote daemon: \[\S+\s+on\s+node\s+(\S+)"),
     lambda node: Cause(f"the connection to node {node} was lost", node)))


class CauseFinder:
    """Parses the standard error of Open MPI's mpirun for the first cause that it gives: later
    failures are consequences of it."""

    def __init__(self):
        self.cause = None
        self.is_aborted = False  # mpirun has given up the job
        self._previous = self._line = b""

    def add(self, data):
        first, *others = data.split(b"\n")
        self._line = (self._line + first)[:LONGEST_LINE]
        for line in others:
            self._end_line()
            self._line = line[:LONGEST_LINE]

    def _end_line(self):
        both = (self._previous + b"\n" + self._line).decode(errors="replace")  # as messages break
        for pattern, describe in MESSAGES:
            match = None if self.cause else pattern.search(both)
            if match:
                self.cause = describe(*match.groups())
        if self.cause or b"Per user-direction, the job has been aborted" in self._line:
            self.is_aborted = True
        self._previous = self._line


class ErrorRelay:
    """Forwards a job's standard error unchanged, and parses it for the cause of the job's end."""

    def __init__(self):
        self.finder = CauseFinder()
        self._output, self.input = os.pipe()
        os.set_blocking(self._output, False)
        self._is_open = True
        self._pending = b""  # not written yet

    def watched(self):
        # Nothing is read while output is pending: a job that writes faster is blocked, as by any
        # reader.
        if self._pending:
            return [(2, select.POLLOUT)]
        return [(self._output, select.POLLIN)] if self._is_open else []

    def move(self):
        """Reads or writes what is possible without blocking, when watched() are ready."""
        if self._pending:
            self._write()
        else:
            self._read()

    def finish(self):
        """Forwards the rest after the job has ended."""
        self._read()
        while self._pending:
            poll = select.poll()
            poll.register(2, select.POLLOUT)
            poll.poll()
            self._write()
            self._read()
        os.close(self._output)

    def _read(self):
        if self._pending or not self._is_open:
            return
        try:
            self._pending = os.read(self._output, 4096)  # PIPE_BUF: fits into any writable pipe
        except BlockingIOError:
            return
        self.finder.add(self._pending)
        self._is_open = bool(self._pending)

    def _write(self):
        try:
            self._pending = self._pending[os.write(2, self._pending):]
        except BlockingIOError:
            pass
        except OSError:
            self._pending = b""  # it has no reader


def end_remaining_ranks(children, grace_s):
    """Ends the ranks that mpirun did not end, or could not since it was killed."""
    limit = time.monotonic() + RANK_EXIT_S
    left = find_descendants()
    while left and time.monotonic() < limit:
        children.wait(POLL_S)
        left = find_descendants()
    if not left:
        return
    noun = "process that the job has" if len(left) == 1 else "processes that the job has"
    say(f"ends {len(left)} {noun} left behind")
    for pid in children.end_all(grace_s):
        say(f"process {pid} does not end even by SIGKILL, as while it waits for a device; it stays")


def run_job(children, command, grace_s, preempt_s):
    """Runs mpirun, forwards signals and its standard error, and leaves none of its processes
    behind. They may take `grace_s` to end: after a signal, and after mpirun has given up the job,
    when it may wait for a lost host. Before that, SIGTERM gives the program `preempt_s` to save."""
    relay = ErrorRelay()
    mpirun = children.start(command, stderr=relay.input)
    os.close(relay.input)
    killing_at = ending_at = math.inf
    was_killed = False
    while mpirun.returncode is None:
        next_s = min(killing_at, ending_at) - time.monotonic()
        if children.wait(None if next_s == math.inf else next_s, relay.watched()):
            relay.move()
        must_end = relay.finder.is_aborted
        signals = children.take_signals()
        if time.monotonic() >= ending_at:
            say("the job has not left in time: it is ended")
            ending_at, preempt_s = math.inf, 0
            signals.append((signal.SIGTERM, False))
        for number, is_from_terminal in signals:
            if number == signal.SIGTERM and preempt_s > 0 and ending_at == math.inf:
                say("asks the job to save and leave")
                ending_at = time.monotonic() + preempt_s
                number = signal.SIGUSR1
            must_end = must_end or number in END_SIGNALS
            # If the terminal has sent it to mpirun too, mpirun would take ours for a second Ctrl-C,
            # on which it abandons its ranks.
            if not is_from_terminal and mpirun.returncode is None:
                # mpirun ends a job only on SIGINT and SIGTERM.
                is_unknown = number in (signal.SIGHUP, signal.SIGQUIT)
                send(mpirun.pid, signal.SIGTERM if is_unknown else number)
        if must_end and not was_killed:
            killing_at = min(killing_at, time.monotonic() + grace_s)
        if time.monotonic() >= killing_at:
            say("mpirun does not end: it is killed")
            was_killed = True
            killing_at = math.inf
            children.end_all(0)
    end_remaining_ranks(children, grace_s)
    relay.finish()
    return JobEnd(mpirun.returncode, was_killed, relay.finder.cause)


def exit_status(end):
    return end.status if end.status >= 0 else SIGNALLED - end.status


def reason_of(end):
    if end.cause:
        return end.cause.text
    if end.was_killed:
        return "mpirun has given the job up but did not end"
    if end.status >= 0:
        return f"mpirun ended with exit status {end.status}"
    return f"mpirun ended by {signal_name(-end.status)}"


# Which hosts and how many ranks each attempt has.


class Plan:
    def __init__(self, hosts, ranks, min_ranks, host_failures):
        self.hosts = dict(hosts)  # without those given up
        self._ranks = ranks
        self._min_ranks = min_ranks
        self._host_failures = host_failures
        self._blamed = None  # for the last failure
        self._failures = 0  # of that host, in a row

    def note_failure(self, node, here):
        """Notes that a job has failed. Returns the host that is given up because of that: the one
        that failed too often in a row, if enough ranks are left without it.
        @param node the host that may be to blame, as mpirun calls it, or None
        @param here the name of this machine
        """
        blamed = next((host for host in self.hosts if node and is_same_host(host, node, here)),
                      None)
        self._failures = self._failures + 1 if blamed == self._blamed else 1
        self._blamed = blamed
        if blamed is None or self._failures < self._host_failures:
            return None
        if count_slots(self.hosts) - self.hosts[blamed] < self._min_ranks:
            return None
        del self.hosts[blamed]
        return blamed

    def next(self, answers):
        """The next attempt, given the names of the hosts that answer. It may have too few ranks."""
        if not self.hosts:
            return Attempt(self._ranks, {})
        hosts = {name: slots for name, slots in self.hosts.items() if name in answers}
        return Attempt(min(self._ranks, count_slots(hosts)), hosts)


def pause_before(number, first_s):
    """How long to wait before restart `number` (1 for the first)."""
    return min(first_s * 2.0 ** min(number - 1, 30), max(first_s, LONGEST_PAUSE_S))


def is_open_mpi(mpirun):
    """Whether `mpirun` is Open MPI's. Its options differ from those of MPICH and Intel MPI."""
    try:
        result = subprocess.run([mpirun, "--version"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    first_line = result.stdout.partition(b"\n")[0]
    return any(name in first_line for name in (b"Open MPI", b"OpenRTE", b"PRRTE"))


def command_of(options, attempt, program):
    words = [*options.mpirun, "-np", str(attempt.ranks)]
    if attempt.hosts:
        words += [options.host_flag, list_hosts(attempt.hosts)]
    return words + program


def find_answering_hosts(children, options, hosts):
    """The names of the hosts that can start a process."""
    nothing = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
    probes = {name: children.start(command_of(options, Attempt(1, {name: slots}), ["true"]),
                                   **nothing)
              for name, slots in hosts.items()}
    children.wait_until(lambda: all(probe.returncode is not None for probe in probes.values()),
                        options.probe_timeout)
    answers = [name for name, probe in probes.items() if probe.returncode == 0]
    children.end_all(options.grace)
    if not children.end_signal:
        for name in hosts:
            if name not in answers:
                say(f"host {name} does not answer and is left out")
    return answers


def run_until_it_succeeds(options):
    """Runs the job until it succeeds or may not be restarted. Returns this program's status."""
    options.host_flag = "--host" if options.hosts and is_open_mpi(options.mpirun[0]) else "-hosts"
    children = Children()
    plan = Plan(options.hosts, options.np, options.min_np, options.host_failures)

    def describe(number):
        return f"attempt {number} of {options.max_restarts + 1} on {plural(attempt.ranks, 'rank')}"

    attempt = Attempt(options.np, options.hosts)
    rendezvous = os.environ.get("KOLO_RENDEZVOUS")
    for number in range(1, options.max_restarts + 2):
        if rendezvous:  # no attempt may find what the one before has left
            os.environ["KOLO_RENDEZVOUS"] = os.path.join(rendezvous, f"{os.getpid()}-{number}")
        end = run_job(children, command_of(options, attempt, options.program), options.grace,
                      options.preempt)
        status = exit_status(end)
        if status == PREEMPTED:
            say(f"the job ended with status {PREEMPTED}, as a preempted program that has saved: no "
                "restart follows")
        if status in (0, PREEMPTED) or children.end_signal:
            return status
        failed = f"{describe(number)} failed: {reason_of(end)}"
        if number > options.max_restarts:
            say(f"{failed}; no restart is left")
            return status
        lost = plan.note_failure(end.cause and end.cause.node, socket.gethostname())
        if lost:
            in_a_row = "" if options.host_failures == 1 else " in a row"
            failed += (f"; host {lost} is left out, "
                       f"{plural(options.host_failures, 'failure')}{in_a_row}")
        pause_s = pause_before(number, options.backoff)
        milliseconds = round(1000 * pause_s)
        say(f"{failed}; starting again in " + (f"{milliseconds} ms" if milliseconds % 1000 else
                                               f"{milliseconds // 1000} s"))
        children.wait_until(lambda: False, pause_s)
        attempt = plan.next(find_answering_hosts(children, options, plan.hosts))
        if children.end_signal:
            return SIGNALLED + children.end_signal
        if attempt.ranks < options.min_np:
            say(f"the hosts that are left take {plural(attempt.ranks, 'rank')}, fewer than "
                f"--min-np {options.min_np}: not started again")
            return status
        hosts = f", hosts {list_hosts(attempt.hosts)}" if attempt.hosts else ""
        say(f"{describe(number + 1)} starts{hosts}")


def problem_with_program(name):
    """Why `name`, a path or a name in PATH, cannot be run; None if it can."""
    if shutil.which(name):
        return None
    folders = [""] if "/" in name else os.get_exec_path()
    for path in (os.path.join(folder, name) for folder in folders):
        if os.path.isfile(path):
            return f"may not run the program {path}: it is not executable (chmod +x)"
    return f"cannot find the program {name}"


def main(arguments):
    open_standard_streams()
    options = parse_options(arguments)
    problem = problem_with_program(options.program[0])
    if problem:
        say(problem)
        return CANNOT_START
    try:
        return run_until_it_succeeds(options)
    except CannotStart as error:
        say(f"{error} (--mpirun or KOLO_MPIRUN names another mpirun)")
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
