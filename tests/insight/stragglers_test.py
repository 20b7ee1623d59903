"""What kolo-trace says of training in which rank 2 is slow in backward and rank 1 in loading data,
and that the metrics say the same as the spans:
python3 stragglers_test.py <slow_ranks program> <kolo_trace.py> <mpirun>...
"""

import collections
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

EXPECTED = [r"rank 2 takes longer than the median of the others: backward ",
            r"rank 1 takes longer than the median of the others: forward "]
SUMS = {"negotiate X": "agree_seconds_sum", "queue X": "queue_seconds_sum",
        "move X": "move_seconds_sum"}
WAITS = {"negotiate X": ("late_seconds_total", "last_rank", "late_us"),
         "move X": ("data_wait_seconds_total", "waited_for", "waited_us")}
WAIT_NAMES = [name for name, _, _ in WAITS.values()]
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def load(tool):
    sys.dont_write_bytecode = True  # beside the sources
    specification = importlib.util.spec_from_file_location("kolo_trace", tool)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def sums_of_spans(trace, total_of):
    """In seconds, by what the metrics call them, and their peer."""
    sums, waits = collections.Counter(), collections.defaultdict(list)
    for event in trace.events():
        if event.kind in SUMS:
            sums[SUMS[event.kind], ""] += event.duration * 1e-6
        if event.kind in WAITS:
            name, peer, duration = WAITS[event.kind]
            peer = str(event.rank(peer)) if event.rank(peer) >= 0 else "unknown"
            waits[name, peer] += event.begin, event.begin + event.number(duration)
        if event.kind == "phase X":
            sums["step_exposed_seconds_total", ""] += event.number("exposed_us") * 1e-6
    sums.update({key: total_of(intervals) * 1e-6 for key, intervals in waits.items()})
    return sums


def are_close(one, other):
    return abs(one - other) <= max(0.05 * max(one, other), 1e-3)


def differences(folder, output, kolo_trace):
    """Between the spans in folder/timeline and the metrics beside it, and between these and what
    the others waited for rank 2 by the table."""
    of_rank_2 = collections.Counter()
    for trace in kolo_trace.Job(folder / "timeline").traces:
        text = (folder / f"{trace.rank}.prom").read_text()
        metrics = collections.Counter({(name, label): float(number) for name, _, label, number
                                       in kolo_trace.SAMPLE.findall(text)})
        spans = sums_of_spans(trace, kolo_trace.total_of)
        for key in spans.keys() | {key for key in metrics if key[0] in WAIT_NAMES}:
            if not are_close(spans[key], metrics[key]):
                yield f"rank {trace.rank}: {key}: {spans[key]} s in spans, {metrics[key]} s counted"
        if trace.rank != 2:
            of_rank_2.update({name: metrics[name, "2"] for name in WAIT_NAMES})
    row = re.search(r"^2 .* of \d+ +(\S+) (us|ms|s) ", output, re.M)
    if not row:
        yield "not there: the row of rank 2"
        return
    shown, counted = float(row[1]) * SECONDS[row[2]], of_rank_2.values()
    # An operation may wait for its data while another does for its submission.
    if not 0.95 * max(counted) <= shown <= 1.05 * sum(counted):
        yield f"waited for rank 2: {shown} s by the table, but {dict(of_rank_2)} counted"


def main():
    program, tool, *mpirun = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="kolo-stragglers-") as name:
        folder = pathlib.Path(name)
        subprocess.run([*mpirun, "-n", "4", program, folder], check=True, timeout=120,
                       env=dict(os.environ, KOLO_TIMELINE=str(folder / "timeline")))
        run = subprocess.run([sys.executable, tool, "stragglers", folder / "timeline"],
                             capture_output=True, text=True, timeout=60, check=True)
        wrong = [f"not there: {expected}" for expected in EXPECTED
                 if not re.search(expected, run.stdout)]
        wrong += differences(folder, run.stdout, load(tool))
        if wrong:
            sys.exit("\n".join([*wrong, run.stdout, run.stderr]))


if __name__ == "__main__":
    main()
