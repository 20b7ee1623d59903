"""Runs kolo-restart with a real mpirun, as users do:

    restart_test.py <kolo-restart> <mpirun>...
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402
from jobs import wait_for  # noqa: E402
from restart_case import MPIRUN, PROGRAM, Restart  # noqa: E402

IS_OPEN_MPI = b"Open MPI" in subprocess.run([MPIRUN[0], "--version"], check=True,
                                           stdout=subprocess.PIPE).stdout


class Jobs(Restart):
    def test_success_is_the_end(self):
        code, output, errors = self.run_job("-np", "2",
                                            program=self.script("echo out; echo err >&2"))
        self.assertEqual((code, output, errors), (0, "out\nout\n", "err\nerr\n"))
        self.assertEqual(self.starts(), 1)

    def test_arguments_reach_the_program_as_they_are(self):
        words = ["a b", "", "--np", "--", "$HOME", "'\"", "é"]
        program = ["sh", "-c", 'for word; do printf "<%s>" "$word"; done', "x", *words]
        self.assertEqual(self.run_job("-np", "1", program=program),
                         (0, "".join(f"<{word}>" for word in words), ""))

    def test_standard_input_reaches_rank_0(self):
        code, output, _ = self.run_job("-np", "1", program=["cat"], stdin=open(__file__, "rb"))
        self.assertEqual((code, output), (0, pathlib.Path(__file__).read_text()))

    def test_job_that_fails_twice_is_started_three_times(self):
        code, _, errors = self.run_job("-np", "2", "--max-restarts", "2", program=self.script(
            "[ $n = 3 ] && exit 0; [ $n = 2 ] && exit 5; [ $r = 1 ] && kill -9 $$; sleep 60"))
        self.assertEqual((code, self.starts()), (0, 3), errors)
        lines = self.own_lines(errors)
        self.assertEqual(lines[1::2], ["attempt 2 of 3 on 2 ranks starts",
                                       "attempt 3 of 3 on 2 ranks starts"])
        causes = (r"rank 1 on node \S+ ended by signal 9 \(Killed\)" if IS_OPEN_MPI else ".*",
                  ".*ended with exit status 5")
        for line, number, cause in zip(lines[::2], (1, 2), causes):
            self.assertRegex(line, f"^attempt {number} of 3 on 2 ranks failed: {cause}; "
                                   f"starting again in {number}0 ms$")

    def test_signal_ends_the_job_and_no_restart_follows(self):
        job = self.start("-np", "2", program=self.script("sleep 60; exit 1"))
        self.wait_for_ranks(2)
        os.kill(job.process.pid, signal.SIGTERM)
        _, errors = job.wait()
        self.assertNotEqual(job.process.returncode, 0)
        self.assertEqual((self.own_lines(errors), self.starts(), job.pids()), ([], 1, []))

    def test_control_c_at_a_terminal_ends_the_job(self):
        terminal, job = self.start_at_a_terminal("-np", "2",
                                                 program=self.script("sleep 60; exit 1"))
        self.wait_for_ranks(2)
        os.write(terminal, b"\x03")
        _, errors = job.wait()
        self.assertNotEqual(job.process.returncode, 0)
        self.assertEqual(self.own_lines(errors), [])
        self.assertEqual((self.starts(), job.pids()), (1, []))

    def test_nothing_is_left_when_kolo_restart_is_killed(self):
        job = self.start("-np", "2", program=self.script("sleep 60; exit 1"))
        self.wait_for_ranks(2)
        job.process.kill()
        self.assertTrue(wait_for(lambda: job.pids() == []), "the job goes on")
        self.assertEqual(self.starts(), 1)

    def test_ranks_of_a_killed_mpirun_are_ended_before_the_next_start(self):
        job = self.start("-np", "2", program=self.script(
            "touch $f/alive.$n.$$; [ $n = 1 ] && sleep 60; for a in $f/alive.1.*; do "
            "kill -0 ${a##*.} 2>/dev/null && echo $a; done; exit 0"))
        self.assertTrue(wait_for(lambda: len(list(self.folder.glob("alive.*"))) == 2))
        os.kill(job.pids(pathlib.Path(MPIRUN[0]).name)[0], signal.SIGKILL)
        output, errors = job.wait()
        self.assertEqual(output, "")
        if IS_OPEN_MPI:  # other MPIs end them themselves
            self.assertRegex(errors, "kolo-restart: ends [0-9]+ processes that the job has left ")
        self.assertIn("attempt 1 of 4 on 2 ranks failed: mpirun ended by signal 9 (Killed)", errors)
        self.assertEqual(job.pids(), [])

    def test_what_cannot_start_is_no_reason_to_restart(self):
        for flags, program, code, text in (
                (["-np", "2"], "/no/such/program", 127, "cannot find the program /no/such/program"),
                (["-np", "2", "--mpirun", "/no/mpirun"], "true", 127, "cannot start /no/mpirun:"),
                (["-np", "0"], "true", 2, "--np"),
                (["-np", "1", "--min-np", "2"], "true", 2, "--min-np 2 is more than -np 1")):
            with self.subTest(flags=flags):
                result = subprocess.run([PROGRAM, *flags, "--", program], capture_output=True,
                                        text=True, check=False)
                self.assertEqual((result.returncode, result.stdout), (code, ""))
                self.assertIn(text, result.stderr)
                self.assertNotIn("attempt", result.stderr)


class Documentation(unittest.TestCase):
    def test_table_has_every_flag(self):
        text = subprocess.run([PROGRAM, "--help"], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        page = pathlib.Path(__file__).resolve().parents[2] / "docs/restart.md"
        rows = re.findall(r"^\| `(-[^|]+) \|", page.read_text(), re.M)
        self.assertEqual(sorted(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", text, re.M)),
                         sorted(["--help", *re.findall(r"--[a-z-]+", " ".join(rows))]))


if __name__ == "__main__":
    cases.main()
