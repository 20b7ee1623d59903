"""What kolo-trace says of real jobs in which rank 1 makes trouble in step 12:
python3 why_test.py <kind> <trouble program> <kolo_trace.py> <mpirun>...

Asks again with a record missing, and with one cut in the middle. A job that hangs, or is well,
writes its records when mpirun gets SIGUSR2, and one that is terminated when it gets SIGTERM.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 60
RANKS = 3
# What the first line says, and the number of records that must be there.
EXPECTED = {
    "mismatch": (r"mismatch.*'layer4\.weight'.*\[999\] on rank 1", RANKS),
    "deadline": (r"rank 1 did not submit allreduce layer4\.weight.*rank 1 was in backward of "
                 r"step 12", RANKS),
    "killed": (r"rank 1 (died|.*killed)", 1),
    "stopped": (r"rank 1\b.*(stopped|did not respond|hangs)", 1),
    "hangs": (r"rank 1 did not submit allreduce layer4\.weight.*backward of step 12.*"
              r"its main thread was in ", RANKS),
    "terminated": (r"rank 1 did not submit allreduce layer4\.weight.*backward of step 12", RANKS),
    "healthy": (r"nothing is wrong: .*; all ranks are in step 12", RANKS),
    "skips": (r"rank 1 did not call allreduce layer4\.weight in backward of step 12, and went on "
              r"to backward of step 13", RANKS),
    "crosswise": (r"a cycle.*rank [01] waits for rank [01] in allreduce norm.*, rank [01] waits",
                  2),
    "throws": (r"rank 1.*this batch is damaged", 1),
}


def run_job(kind, program, mpirun, folder):
    is_asked = kind in ("hangs", "terminated", "healthy")
    timeout = "60s" if is_asked else "1s"
    environment = dict(os.environ, KOLO_RECORD=str(folder), KOLO_TIMEOUT=timeout,
                       KOLO_LOST_AFTER="2s")
    trouble = "hangs" if kind == "terminated" else kind
    job = subprocess.Popen([*mpirun, "-n", str(RANKS), program, trouble], env=environment,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           start_new_session=True)
    said = ask_for_records(job, folder, kind) if is_asked else ""
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        sys.exit(f"the job goes on after {LIMIT_S} s")
    if job.returncode == 0 and kind != "healthy":
        sys.exit("the job ended well")
    return said + output


def ask_for_records(job, folder, kind):
    """Ends the job once all ranks have written theirs. Returns what it has said until then."""
    said = job.stdout.readline()
    while not re.search("hangs|pauses", said) and (line := job.stdout.readline()):
        said += line
    time.sleep(2)  # shorter waits explain nothing
    job.send_signal(signal.SIGTERM if kind == "terminated" else signal.SIGUSR2)
    until = time.monotonic() + LIMIT_S
    while [path.read_text()[-2:] for path in folder.glob("rank-*.json")] != ["]\n"] * RANKS:
        if time.monotonic() > until:
            break  # the number of records will be wrong
        time.sleep(0.05)
    if kind == "hangs":
        os.killpg(job.pid, signal.SIGTERM)
    return said


def why(tool, folder):
    run = subprocess.run([sys.executable, tool, "why", folder], capture_output=True, text=True,
                         timeout=LIMIT_S, check=False)
    return run.stdout if run.returncode == 0 else f"exit {run.returncode}: {run.stderr}"


def require(condition, what, output, answer):
    if not condition:
        sys.exit(f"{what}\n--- kolo-trace why\n{answer}\n--- the job\n{output}")


def main():
    kind, program, tool, *mpirun = sys.argv[1:]
    expected, fewest = EXPECTED[kind]
    with tempfile.TemporaryDirectory(prefix="kolo-why-") as name:
        folder = pathlib.Path(name) / "records"
        output = run_job(kind, program, mpirun, folder)
        answer = why(tool, folder)
        records = sorted(folder.glob("rank-*.json"))
        require(len(records) >= fewest, f"{len(records)} records", output, answer)
        require(re.search(expected, answer.split("\n", 1)[0]), "another cause", output, answer)
        if len(records) < 2 or kind in ("healthy", "crosswise"):
            return
        # The survivors' records say the same as long as there is one.
        survivors = [path for path in records if path.name != "rank-1.json"]
        survivors[0].write_bytes(survivors[0].read_bytes()[:-200])
        answer = why(tool, folder)
        require(re.search(expected, answer.split("\n", 1)[0]), "with a cut record", output, answer)
        survivors[0].unlink()
        answer = why(tool, folder)
        require("rank 0: no record" in answer or survivors[0].name != "rank-0.json",
                "the missing record is not named", output, answer)
        require(re.search(expected, answer.split("\n", 1)[0]), "with a missing record", output,
                answer)


if __name__ == "__main__":
    main()
