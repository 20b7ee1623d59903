"""How ranks react when one of them fails: python3 failure_test.py <scenario> <victim program>
<mpirun>...

Starts the program under mpirun --enable-recovery once for every victim and number of ranks, and
checks how each rank ended and what it printed; and once without that option, where mpirun ends the
survivors, of which only those that were faster can be checked. Prints the seed of the random times;
KOLO_TEST_SEED sets it.
"""

import os
import random
import re
import socket
import sys
import time

from failure_job import Job, LIMIT_S, Problems, require

NAMED = r"'(x|large|memory|new \d+)'"


def require_prompt(job, rank):
    took = rank.ended_at - job.death()
    require(took < LIMIT_S, f"rank {rank.number} took {took:.1f} s to end")


def ended_survivors(job):
    """The survivors, once they have ended. Without recovery, those that mpirun has not killed."""
    if job.recovery:
        job.wait_for_survivors()
        return job.survivors()
    job.wait()
    require(job.death() is not None, "nobody died")
    took = time.monotonic() - job.death()
    require(job.process.returncode != 0, "mpirun ended well")
    require(took < LIMIT_S, f"the job took {took:.1f} s to end")
    return [rank for rank in job.survivors() if rank.ending.startswith("exit")]


def expect_text(job, expression):
    """Survivors throw an error with this text, and end in time."""
    for rank in ended_survivors(job):
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        require_prompt(job, rank)
        require(re.search(expression, rank.stderr),
                f"rank {rank.number} does not say {expression!r}")
    job.wait()


def expect_loss(job):
    """The error names the dead rank and the operation."""
    expect_text(job, rf"caught: .*{NAMED}.*rank {job.victim} ")


def expect_start_fails(job):
    # Ranks that died as a consequence may be named, too: they look the same at that time.
    expect_text(job, rf"caught: ranks? ([0-9]+(, | and ))*{job.victim}\b.* died")


def expect_end(job):
    """A rank that dies while all leave must neither harm nor delay the others."""
    job.wait_for_survivors() if job.recovery else job.wait()
    require(job.death() is not None, "nobody died")
    for rank in job.survivors() if job.recovery else []:
        require(rank.ending == "exit 0", f"rank {rank.number} ended with {rank.ending}")
        require_prompt(job, rank)
    job.wait()


def expect_text_everywhere(text):
    def expect(job):
        if job.recovery:
            job.wait_for_survivors()
        job.wait()
        for rank in job.ranks():
            require(text in rank.stderr, f"rank {rank.number} does not say {text!r}")
            require(not job.recovery or rank.failed(), f"rank {rank.number}: {rank.ending}")
        require(job.recovery or job.process.returncode != 0, "mpirun ended well")
    return expect


def failed_survivors_of_a_stop(job):
    job.wait_for_survivors()
    job.resume_victim()
    for rank in job.survivors():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        require_prompt(job, rank)
        yield rank


def expect_stopped(job):
    """With a deadline and KOLO_LOST_AFTER of 2 s each, a stop counts as a death."""
    for rank in failed_survivors_of_a_stop(job):
        require(re.search(rf"caught: .*'x'.*rank {job.victim} does not answer", rank.stderr),
                f"rank {rank.number} does not name rank {job.victim}")
    job.wait()


def expect_vanished(job):
    """With KOLO_LOST_AFTER of 2 s, a stop is detected although no deadline is near."""
    for rank in failed_survivors_of_a_stop(job):
        host = re.escape(socket.gethostname()[:63])
        require(re.search(rf"error: .*rank {job.victim} cannot be reached: nothing has come from "
                          rf"host {host} \(rank {job.victim}\) for 2 s", rank.stderr),
                f"rank {rank.number} does not report that rank {job.victim} cannot be reached")
        require(re.search(rf"caught: .*'x'.*rank {job.victim} cannot be reached", rank.stderr),
                f"rank {rank.number} does not name rank {job.victim}")
    job.wait()


def expect_mismatch(job):
    job.wait()
    for rank in job.ranks():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        for part in ("caught: 'x'", "[3, 4] on rank", f"[4, 3] on rank {job.victim}"):
            require(part in rank.stderr, f"rank {rank.number} does not say {part!r}")


def expect_timeout(job):
    job.wait()
    for rank in job.ranks():
        require(rank.failed(), f"rank {rank.number} ended with {rank.ending}")
        require(re.search(rf"caught: .*'x'.*while rank {job.victim} had not submitted it",
                          rank.stderr), f"rank {rank.number} does not name rank {job.victim}")
    report = rf"stalled: 'x'.*rank {job.victim} did not submit it yet"
    require(any(re.search(report, rank.stderr) for rank in job.ranks()), "no stall report")


def expect_success(job):
    job.wait()
    for rank in job.ranks():
        require(rank.ending == "exit 0", f"rank {rank.number} ended with {rank.ending}")


CASES = ((2, 0), (2, 1), (4, 0), (4, 3))  # ranks, and which of them dies
BOTH = (True, False)
RECOVERY = (True,)
PLAIN = (False,)
SHORT_TIMES = {"KOLO_TIMEOUT": "2s", "KOLO_LOST_AFTER": "2s"}
NODE_FOR_EACH = {"KOLO_LOST_AFTER": "2s", "KOLO_FAKE_NODES": "4"}
STALL_TIMES = {"KOLO_TIMEOUT": "1500ms", "KOLO_STALL_WARN": "300ms"}
THROWN = expect_text_everywhere("the disk of node 7 is full")

# scenario: expectation, kinds of mpirun, latest time of a random death, settings
SCENARIOS = {
    "idle": (expect_loss, BOTH, 0, {}),
    "negotiating": (expect_loss, BOTH, 50_000, {}),
    "others_posted": (expect_loss, BOTH, 0, {}),
    "posted": (expect_loss, BOTH, 0, {}),
    "busy": (expect_loss, BOTH, 50_000, {}),
    "mid_chunk": (expect_loss, BOTH, 200_000, {}),
    "sharing_memory": (expect_loss, BOTH, 50_000, {}),
    "mpi_started": (expect_start_fails, BOTH, 0, {}),
    "shutting_down": (expect_end, BOTH, 20_000, {}),
    "left": (expect_end, BOTH, 0, {}),
    "throws": (THROWN, BOTH, 0, {}),
    "stops": (expect_stopped, RECOVERY, 0, SHORT_TIMES),
    "vanishes": (expect_vanished, RECOVERY, 0, NODE_FOR_EACH),
    "rests": (expect_success, PLAIN, 0, NODE_FOR_EACH),
    "diverges": (expect_mismatch, RECOVERY, 0, {}),
    "falls_silent": (expect_timeout, RECOVERY, 0, STALL_TIMES),
    "costs": (expect_success, PLAIN, 0, {}),
}


def run(scenario, command, seed):
    expect, modes, latest_us, settings = SCENARIOS[scenario]
    moments = random.Random(seed)
    failures = 0
    for recovery in modes:
        for ranks, victim in CASES if recovery or modes == PLAIN else CASES[-1:]:
            moment = {"KOLO_TEST_MOMENT_US": str(moments.randint(0, latest_us))}
            job = Job(command, scenario, ranks, victim, recovery, settings | moment)
            try:
                expect(job)
                job.require_nothing_left()
            except Problems as problem:
                failures += 1
                print(job.describe(), f"-- failed: {problem}\n", sep="\n", flush=True)
            finally:
                job.end()
    return failures


def main(scenario, *command):
    seed = int(os.environ.get("KOLO_TEST_SEED", random.SystemRandom().randint(0, 2**31)))
    print(f"KOLO_TEST_SEED={seed}", flush=True)
    return 1 if run(scenario, command, seed) else 0


sys.exit(main(*sys.argv[1:]))
