"""A node whose /dev/shm is full, or becomes full: programs use messages or private memory, report
that, and succeed. No rank is killed by SIGBUS.

    full_memory_test.py <train_gan> <synthetic_benchmark> <kolo-bench> <mpirun>
                        <arguments before the program>...

The small /dev/shm is mounted in a namespace of the test, which needs root; otherwise the test is
skipped.
"""

import subprocess
import sys

SKIPPED = 77
BENCH = ["allreduce", "--min", "16MB", "--max", "16MB", "--rounds", "3",
         "--placement", "staged,window"]
BENCHMARK = ["--batch", "2", "--image", "32", "--iterations", "2", "--warmup", "1"]


def run_in(size, command):
    """Runs `command` with a /dev/shm of `size`; returns its exit status and output."""
    script = 'mount -t tmpfs -o size="$0" none /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, size, *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=200)
    return done.returncode, done.stdout


def main(gan, benchmark, kolo_bench, *mpirun):
    # Open MPI puts its own shared memory there, too, unless told otherwise.
    launch = [*mpirun, "--mca", "btl_vader_backing_directory", "/tmp"]
    if run_in("64k", ["true"])[0] != 0:
        print("skipped: cannot mount a /dev/shm of its own (it takes root)")
        return SKIPPED
    no_agreement = "no shared memory for agreement, using messages instead"
    no_data = "no shared memory for data, using messages instead"
    no_buffer = "private memory, not shared"
    scenarios = [
        # name, size, program, expected text, its least and greatest number of occurrences
        ("nothing fits", "16k", [gan], no_agreement, 1, 1),
        ("the data does not fit", "1m", [gan], no_data, 1, 1),
        ("the buckets do not fit", "12m", [benchmark, *BENCHMARK], no_buffer, 1, 2),
        ("the measured buffer does not fit", "20m", [kolo_bench, *BENCH], no_buffer, 1, 1),
        ("all fits", "1g", [benchmark, *BENCHMARK], no_buffer, 0, 0),
    ]
    failures = 0
    for name, size, program, text, least, most in scenarios:
        status, output = run_in(size, [*launch, *program])
        said = output.count(text)
        is_good = status == 0 and least <= said <= most
        print(f"{name} ({size}): exit {status}, said {said} times: {text!r}"
              + ("" if is_good else f" -- failed\n{output}"), flush=True)
        failures += not is_good
    return 1 if failures else 0


sys.exit(main(*sys.argv[1:]))
