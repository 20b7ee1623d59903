"""Ranks of one machine in separate PID namespaces, as in containers, cannot share memory: they
detect that and use messages, and their results are right.

    namespaces_test.py <runtime_mpi_test> <mpirun> <arguments before the program>...

PID namespaces need root, or a kernel that permits them to users; otherwise the test is skipped.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import summary  # noqa: E402

SKIPPED = 77
WAYS = (["unshare", "-pf", "--mount-proc"], ["unshare", "-Urpf", "--mount-proc"])
TESTS = ("AllReduceOfEveryType", "BroadcastFromEveryRoot", "AllGatherOfUnevenRows")


def find_way():
    for way in WAYS:
        if subprocess.run([*way, "true"], capture_output=True).returncode == 0:
            return way
    return None


def main(program, *mpirun):
    way = find_way()
    if way is None:
        print("skipped: PID namespaces are not permitted here")
        return SKIPPED
    # Open MPI's own shared memory does not work across namespaces.
    command = [*mpirun, "--mca", "btl", "tcp,self", "-n", "2", *way, program,
               f"--gtest_filter={':'.join(f'*{test}*' for test in TESTS)}"]
    with tempfile.TemporaryDirectory() as folder:
        results = f"{folder}/results"
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=200,
                              env={**os.environ, "KOLO_TEST_RESULTS": results})
        passed = {re.split("[./]", case)[1] for case in summary.passed_cases(results)}
    is_good = done.returncode == 0 and passed == set(TESTS)
    print(f"{' '.join(command)}: exit {done.returncode}"
          + ("" if is_good else f" -- failed\n{done.stdout}"))
    return 0 if is_good else 1


sys.exit(main(*sys.argv[1:]))
