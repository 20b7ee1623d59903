#!/usr/bin/env python3
"""Trains under kolo-restart while ranks and mpirun are killed at random, and expects the result of
an undisturbed run.

    kill_test.py --restart <kolo-restart> [--rounds 5] [--np 2] [--other-np N] [--mpirun COMMAND]
                 --program '<program> <argument>... {folder}'

The program must resume by itself: {folder} in its arguments is replaced by a folder, from which it
loads the newest checkpoint at its start, if there is one, and to which it saves checkpoints as it
trains. At its end rank 0 prints a line

    digest: <any text>    equal if two runs end with equal parameters
    loss: <number>        needed only with --other-np, unless {export} is in its arguments: a file
                          to which the program writes its parameters as float32 safetensors

First the program runs without kolo-restart. Then it runs under kolo-restart, in a new folder, while
this script sends SIGKILL to one of its ranks, or to mpirun, at a random moment after each start.
This is repeated until `rounds` processes have been killed. Each run must end with exit status 0 and
the digest of the first run. With --other-np everything is repeated with that many ranks in every
second start. The digest may then differ, since sums are rounded differently, but no parameter may
differ by more than 1e-5 or, without {export}, the loss by more than --tolerance (relative).

With --preempt the signals are SIGTERM and SIGUSR1, to a rank, and SIGTERM to kolo-restart. When a
job then leaves with the status of a program that was preempted, it is started again.

Prints the seed of the random moments; KOLO_TEST_SEED chooses it.
"""

import argparse
import math
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from jobs import Job, wait_for  # noqa: E402
from safetensors_file import float32_tensors, largest_difference  # noqa: E402

LONGEST_S = 600  # of one run
MAX_DIFFERENCE = 1e-5  # of a parameter
PREEMPTED = 75  # a status
TOO_EARLY = 128 + signal.SIGUSR1  # a program that is preempted before it has asked


class Problem(Exception):
    pass


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--restart", required=True, help="kolo-restart")
    parser.add_argument("--program", required=True, help="command with {folder} in it")
    parser.add_argument("--rounds", type=int, default=5, help="how often something is killed")
    parser.add_argument("--preempt", action="store_true", help="ask ranks to leave")
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--other-np", type=int, help="ranks of every second start")
    parser.add_argument("--tolerance", type=float, default=0.1, help="of the loss, relative")
    parser.add_argument("--mpirun", default="mpirun", help="with options of its own")
    arguments = parser.parse_args()
    if "{folder}" not in arguments.program:
        parser.error("--program: {folder} must stand where the folder of checkpoints is named")
    return arguments


class Ending:
    """The output of a run and, if requested, the parameters that it has written."""

    def __init__(self, text, export):
        self.text = text
        self.parameters = float32_tensors(export) if export.exists() else None


def value_of(name, output):
    found = re.findall(rf"^{name}: (.+)$", output, re.M)
    if not found:
        raise Problem(f"the program has not printed '{name}: …':\n{output[-2000:]}")
    return found[-1].strip()


class KilledRuns:
    def __init__(self, arguments, seed, other_np=None):
        self.arguments = arguments
        self.random = random.Random(seed)
        self.other_np = other_np
        self.reference_s = 0.0
        self.preempted = 0  # starts that left with this status

    def program(self, folder):
        """The command, and the file for its parameters, if any."""
        export = pathlib.Path(folder, "parameters.safetensors")
        command = [word.replace("{folder}", str(pathlib.Path(folder, "checkpoints")))
                   .replace("{export}", str(export))
                   for word in shlex.split(self.arguments.program)]
        return command, export

    def run_undisturbed(self):
        with tempfile.TemporaryDirectory(prefix="kolo-kill-") as folder:
            command, export = self.program(folder)
            started = time.monotonic()
            result = subprocess.run([*shlex.split(self.arguments.mpirun), "-np",
                                     str(self.arguments.np), *command],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                    check=False, timeout=LONGEST_S)
            self.reference_s = time.monotonic() - started
            if result.returncode != 0:
                raise Problem(f"without a kill it ends with exit status {result.returncode}")
            return Ending(result.stdout, export)

    def mpirun(self, folder):
        """The mpirun for kolo-restart; with other_np a script that changes every second -np."""
        if self.other_np is None:
            return self.arguments.mpirun
        script = pathlib.Path(folder, "mpirun")
        script.write_text(f"""#!/bin/sh
echo x >>{folder}/starts
[ $(($(wc -l <{folder}/starts) % 2)) = 1 ] || {{ shift 2; set -- -np {self.other_np} "$@"; }}
exec {self.arguments.mpirun} "$@"
""")
        script.chmod(0o755)
        return str(script)

    def run_and_kill(self, most):
        """One run under kolo-restart. Returns its ending, and how many processes were killed."""
        with tempfile.TemporaryDirectory(prefix="kolo-kill-") as folder:
            program, export = self.program(folder)
            with open(pathlib.Path(folder, "output"), "w+", encoding="utf-8") as output:
                kills, status = 0, PREEMPTED
                while status in (PREEMPTED, TOO_EARLY):
                    job = Job([self.arguments.restart, "-np", self.arguments.np, "--mpirun",
                               self.mpirun(folder), "--max-restarts", 10 * most + 10, "--backoff",
                               "0ms", "--preempt", "60s", "--", *program],
                              stdout=output, stderr=subprocess.STDOUT)
                    try:
                        kills += self.kill_while_it_runs(job, pathlib.Path(program[0]).name,
                                                         most - kills)
                        job.wait(LONGEST_S)
                        left = job.pids()
                    finally:
                        job.end()
                    status = job.process.returncode
                    text = pathlib.Path(output.name).read_text(errors="replace")
                    if left:
                        raise Problem(f"processes are left: {left}")
                    may_leave = (PREEMPTED, TOO_EARLY) if self.arguments.preempt else ()
                    if status not in (0, *may_leave):
                        raise Problem(f"exit status {status}:\n{text[-5000:]}")
                    self.preempted += status == PREEMPTED
            return Ending(text, export), kills

    def kill_while_it_runs(self, job, program, most):
        kills = 0
        known = set()  # ranks of earlier starts, which may take a moment to end
        while kills < most and job.process.poll() is None:
            wait_for(lambda: set(job.pids("/" + program)) - known or job.process.poll() is not None,
                     LONGEST_S)
            time.sleep(self.random.uniform(0, self.reference_s))
            ranks = job.pids("/" + program)
            victims = sorted(set(ranks) - known)
            number = signal.SIGKILL
            if self.arguments.preempt:
                number = self.random.choice((signal.SIGTERM, signal.SIGUSR1))
            if self.random.random() < 0.2:
                victims = job.pids(shlex.split(self.arguments.mpirun)[0])
                if self.arguments.preempt:
                    victims, number = [job.process.pid], signal.SIGTERM
            if not victims:
                continue
            try:
                os.kill(self.random.choice(victims), number)
            except ProcessLookupError:
                continue  # it has already ended
            known |= set(ranks)
            kills += 1
            if self.arguments.preempt:
                wait_for(lambda: not set(job.pids("/" + program)) & set(ranks), LONGEST_S)
        return kills

    def check(self, reference, ending):
        """Compares a run with the reference. Returns a description of its result."""
        if self.other_np is not None and reference.parameters is not None:
            if ending.parameters is None:
                raise Problem("the program has not written its parameters")
            difference = largest_difference(reference.parameters, ending.parameters)
            if not difference <= MAX_DIFFERENCE:
                raise Problem(f"a parameter differs by {difference}:\n{ending.text[-5000:]}")
            return f"parameters within {difference:.1e}"
        name = "digest" if self.other_np is None else "loss"
        expected, found = (value_of(name, each.text) for each in (reference, ending))
        is_equal = expected == found if self.other_np is None else math.isclose(
            float(expected), float(found), rel_tol=self.arguments.tolerance)
        if not is_equal:
            raise Problem(f"{name} {found}, not {expected}:\n{ending.text[-5000:]}")
        return f"{name} {found}"

    def run(self):
        reference = self.run_undisturbed()
        value_of("digest", reference.text)
        done = runs = 0
        while done < self.arguments.rounds:
            ending, kills = self.run_and_kill(self.arguments.rounds - done)
            result = self.check(reference, ending)
            done += kills
            runs += 1
            starts = len(re.findall(r"^kolo-restart: attempt \d+ of \d+ on .* starts", ending.text,
                                    re.M))
            print(f"{kills} killed, {starts} restarts: ends with {result}", flush=True)
        ranks = f"{self.arguments.np}" + (f" and {self.other_np}" if self.other_np else "")
        what = f"asked to leave, {self.preempted} did," if self.arguments.preempt else "killed"
        print(f"{done} {what} in {runs} runs on {ranks} ranks, all ended as without; one run takes "
              f"{self.reference_s:.1f} s", flush=True)


def main():
    arguments = parse_arguments()
    seed = int(os.environ.get("KOLO_TEST_SEED", random.SystemRandom().randint(0, 2**31)))
    print(f"KOLO_TEST_SEED={seed}", flush=True)
    try:
        KilledRuns(arguments, seed).run()
        if arguments.other_np is not None:
            KilledRuns(arguments, seed, arguments.other_np).run()
    except Problem as problem:
        print(f"failed: {problem}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
