"""Runs kolo-restart as users do, with mpirun and with a fake one that fails as it is told:

    restart_test.py <kolo-restart> <mpirun>...
"""

import json
import os
import pathlib
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402
from jobs import Job, wait_for  # noqa: E402

PROGRAM, *MPIRUN = sys.argv[1:]
FAKE = pathlib.Path(__file__).with_name("fake_mpirun.py").resolve()
IS_OPEN_MPI = b"Open MPI" in subprocess.run([MPIRUN[0], "--version"], check=True,
                                           stdout=subprocess.PIPE).stdout
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
KILLED = ("echo 'mpirun noticed that process rank 1 with PID 7 on node {} exited on signal 9 "
          "(Killed).' >&2; exit 137")


class Restart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.mpirun = shlex.join(MPIRUN)

    def start(self, *arguments, program=("true",), **options):
        flags = ["--mpirun", self.mpirun]
        if "--backoff" not in arguments:
            flags += ["--backoff", "10ms"]
        job = Job([PROGRAM, *flags, *arguments, "--", *program],
                  {"KOLO_TEST_FOLDER": str(self.folder)}, **options)
        self.addCleanup(job.end)
        return job

    def run_job(self, *arguments, program=("true",), **options):
        """Returns the exit status, the output, and what was written to standard error."""
        job = self.start(*arguments, program=program, **options)
        output, errors = job.wait()
        self.assertEqual(job.pids(), [])
        return job.process.returncode, output, errors

    def start_at_a_terminal(self, *arguments, program):
        """Returns the terminal's other end, and the job."""
        terminal, its_end = pty.openpty()
        self.addCleanup(os.close, terminal)
        # A session of its own, whose terminal it becomes.
        take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); " \
               "os.execv(sys.argv[1], sys.argv[1:])"
        job = Job([sys.executable, "-c", take, PROGRAM, *arguments, "--mpirun", self.mpirun, "--",
                   *program], {"KOLO_TEST_FOLDER": str(self.folder)}, stdin=its_end)
        self.addCleanup(job.end)
        os.close(its_end)
        return terminal, job

    def own_lines(self, errors):
        start = "kolo-restart: "
        return [line.removeprefix(start) for line in errors.splitlines() if line.startswith(start)]

    def path(self, name):
        return self.folder / name

    def starts(self):
        """How often rank 0 has begun."""
        return len(self.path("starts.0").read_text())

    def script(self, text):
        """A program for ranks in sh, in which $r is the rank and $n the number of the start."""
        return ["sh", "-c", f"""r={RANK}; f={self.folder}
printf x >>$f/starts.$r
n=$(wc -c <$f/starts.$r)
touch $f/began.$r
{text}"""]

    def wait_for_ranks(self, count):
        self.assertTrue(wait_for(lambda: len(list(self.folder.glob("began.*"))) == count))


class Jobs(Restart):
    """With a real mpirun."""

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
        if IS_OPEN_MPI:  # others end them
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


class FakeJobs(Restart):
    """With a fake mpirun: hosts that are lost, and jobs that do not do as they are told."""

    def setUp(self):
        super().setUp()
        self.mpirun = f"{FAKE} --own flag"
        self.path("version").write_text("mpirun (Open MPI) 4.1.4\n")
        self.path("jobs").mkdir()

    def jobs(self, *texts):
        for number, text in enumerate(texts, 1):
            (self.path("jobs") / str(number)).write_text(text.replace("$f", str(self.folder)))

    def calls(self):
        """Arguments behind mpirun's own of each call: jobs in order, and probes as a set."""
        calls = [json.loads(line) for line in self.path("calls").read_text().splitlines()]
        for call in calls:
            self.assertEqual(call[:2], ["--own", "flag"])
        jobs = [" ".join(call[2:]) for call in calls if call[-1] != "true"]
        return jobs, {" ".join(call[2:]) for call in calls if call[-1] == "true"}

    def test_job_that_never_succeeds_ends_with_its_exit_status(self):
        self.jobs(*(f"exit {code}" for code in (5, 6, 7, 0)))
        code, _, errors = self.run_job("-np", "1", "--max-restarts", "2", program=["echo"])
        self.assertEqual((code, len(self.calls()[0])), (7, 3), errors)
        self.assertEqual(self.own_lines(errors), [
            "attempt 1 of 3 on 1 rank failed: mpirun ended with exit status 5; starting again in "
            "10 ms",
            "attempt 2 of 3 on 1 rank starts",
            "attempt 2 of 3 on 1 rank failed: mpirun ended with exit status 6; starting again in "
            "20 ms",
            "attempt 3 of 3 on 1 rank starts",
            "attempt 3 of 3 on 1 rank failed: mpirun ended with exit status 7; no restart is left"])

    def test_each_signal_reaches_mpirun_as_one_that_ends_it(self):
        for number, name in ((signal.SIGTERM, "TERM"), (signal.SIGINT, "INT"),
                             (signal.SIGHUP, "TERM"), (signal.SIGQUIT, "TERM")):
            with self.subTest(number):
                self.jobs("trap 'echo TERM; exit 3' TERM; trap 'echo INT; exit 3' INT; "
                          "touch $f/ready; while :; do sleep 0.01; done")
                job = self.start("-np", "1", program=["echo"])
                self.assertTrue(wait_for(self.path("ready").exists))
                os.kill(job.process.pid, number)
                output, errors = job.wait()
                self.assertEqual((job.process.returncode, output, errors), (3, f"{name}\n", ""))
                self.assertEqual(len(self.calls()[0]), 1)
                self.path("calls").unlink()
                self.path("ready").unlink()

    def test_closed_streams_do_no_harm(self):
        self.jobs("echo out; echo err >&2; exit 1")
        job = Job(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "x", PROGRAM, "-np", "2", "--mpirun",
                   self.mpirun, "--backoff", "10ms", "--", "echo"],
                  {"KOLO_TEST_FOLDER": str(self.folder)})
        self.addCleanup(job.end)
        job.wait()
        self.assertEqual((job.process.returncode, len(self.calls()[0])), (0, 2))

    def test_host_that_does_not_answer_is_left_out(self):
        self.jobs("exit 1")
        self.path("down").write_text("b\n")
        code, _, errors = self.run_job("-np", "5", "--min-np", "2", "--host", "a:2,b:2,c",
                                       program=["echo", "x y"])
        self.assertEqual(code, 0, errors)
        jobs, probes = self.calls()
        self.assertEqual(jobs, ["-np 5 --host a:2,b:2,c:1 echo x y",
                                "-np 3 --host a:2,c:1 echo x y"])
        self.assertEqual(probes, {"-np 1 --host a:2 true", "-np 1 --host b:2 true",
                                  "-np 1 --host c:1 true"})
        self.assertEqual(self.own_lines(errors)[1:], [
            "host b does not answer and is left out",
            "attempt 2 of 4 on 3 ranks starts, hosts a:2,c:1"])

    def test_host_whose_answer_takes_too_long_is_left_out(self):
        self.jobs("exit 1")
        self.path("silent").write_text("a\n")
        code, _, errors = self.run_job("-np", "4", "--min-np", "1", "--host", "a:2,b:2",
                                       "--probe-timeout", "1s", program=["echo"])
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.calls()[0][1:], ["-np 2 --host b:2 echo"])

    def test_host_that_answers_again_comes_back(self):
        self.jobs("echo b >$f/down; exit 1", "rm $f/down; exit 1")
        code, _, errors = self.run_job("-np", "4", "--min-np", "2", "--host", "a:2,b:2",
                                       program=["echo"])
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.calls()[0], ["-np 4 --host a:2,b:2 echo", "-np 2 --host a:2 echo",
                                           "-np 4 --host a:2,b:2 echo"])

    def test_host_that_fails_twice_in_a_row_is_left_out(self):
        self.jobs(KILLED.format("b"), KILLED.format("b.cluster"))
        code, _, errors = self.run_job("-np", "4", "--min-np", "2", "--host", "a:2,b:2",
                                       program=["echo"])
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.calls()[0], ["-np 4 --host a:2,b:2 echo"] * 2 +
                         ["-np 2 --host a:2 echo"])
        self.assertIn("rank 1 on node b ended by signal 9 (Killed); starting", errors)
        self.assertIn("host b is left out, 2 failures in a row; starting again in 20 ms", errors)

    def test_fewer_ranks_than_min_np_are_not_started(self):
        self.jobs("exit 9")
        self.path("down").write_text("b\n")
        code, _, errors = self.run_job("-np", "4", "--min-np", "3", "--host", "a:2,b:2",
                                       program=["echo"])
        self.assertEqual(code, 9, errors)
        self.assertEqual(len(self.calls()[0]), 1)
        self.assertEqual(self.own_lines(errors)[-1], "the hosts that are left take 2 ranks, fewer "
                                                     "than --min-np 3: not started again")

    def test_hosts_of_a_file_in_the_form_of_mpich(self):
        self.path("version").write_text("HYDRA build details:\n")
        self.path("hosts").write_text("a:2\nb slots=1\n")
        self.jobs("exit 1")
        self.path("down").write_text("a\n")
        code, _, errors = self.run_job("-np", "3", "--min-np", "1", "--hostfile",
                                       self.path("hosts"), program=["echo"])
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.calls()[0], ["-np 3 -hosts a:2,b:1 echo", "-np 1 -hosts b:1 echo"])

    def test_without_hosts_none_is_asked(self):
        self.jobs("exit 1")
        self.assertEqual(self.run_job("-np", "3", program=["echo"])[0], 0)
        self.assertEqual(self.calls(), (["-np 3 echo"] * 2, set()))

    def test_processes_that_a_job_leaves_are_ended_before_the_next_start(self):
        # The second ignores SIGTERM.
        self.jobs("setsid sleep 60 & (trap '' TERM; setsid sh -c 'touch $f/ready; sleep 60; :') & "
                  "until [ -e $f/ready ]; do sleep 0.01; done; exit 1",
                  "pgrep -f $f/ready >$f/found; exit 0")
        code, _, errors = self.run_job("-np", "1", "--grace", "200ms", program=["echo"],
                                       stdout=subprocess.DEVNULL)
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.path("found").read_text(), "")
        self.assertRegex(errors, "ends [34] processes that the job has left behind")

    def test_job_that_ignores_signals_is_killed(self):
        self.jobs("trap '' TERM; touch $f/ready; while :; do sleep 0.1; done")
        job = self.start("-np", "1", "--grace", "200ms", program=["echo"])
        self.assertTrue(wait_for(self.path("ready").exists))
        os.kill(job.process.pid, signal.SIGTERM)
        _, errors = job.wait()
        self.assertEqual((job.process.returncode, job.pids()), (137, []))
        self.assertEqual(self.own_lines(errors), ["mpirun does not end: it is killed"])
        self.assertEqual(len(self.calls()[0]), 1)

    def test_mpirun_that_gives_a_job_up_but_does_not_end_is_killed(self):
        """It waits for a host that is gone."""
        self.jobs("trap '' TERM; echo 'a non-zero exit code. Per user-direction, the job has been "
                  "aborted.' >&2; while :; do sleep 0.1; done")
        code, _, errors = self.run_job("-np", "1", "--grace", "200ms", program=["echo"])
        self.assertEqual(code, 0)
        self.assertEqual(self.own_lines(errors), [
            "mpirun does not end: it is killed",
            "attempt 1 of 4 on 1 rank failed: mpirun has given the job up but did not end; "
            "starting again in 10 ms",
            "attempt 2 of 4 on 1 rank starts"])

    def test_job_that_succeeds_after_a_signal_is_a_success(self):
        self.jobs("trap 'exit 0' TERM; touch $f/ready; while :; do sleep 0.01; done")
        job = self.start("-np", "1", program=["echo"])
        self.assertTrue(wait_for(self.path("ready").exists))
        os.kill(job.process.pid, signal.SIGTERM)
        job.wait()
        self.assertEqual(job.process.returncode, 0)

    def test_signal_for_the_job_alone_is_passed_on(self):
        self.jobs("trap 'echo saved; exit 1' USR1; touch $f/ready; while :; do sleep 0.01; done")
        job = self.start("-np", "1", program=["echo"])
        self.assertTrue(wait_for(self.path("ready").exists))
        os.kill(job.process.pid, signal.SIGUSR1)
        output, _ = job.wait()
        self.assertEqual((job.process.returncode, output), (0, "saved\n"))
        self.assertEqual(len(self.calls()[0]), 2)

    def test_signal_between_two_starts_is_the_end(self):
        self.jobs("exit 1")
        job = self.start("-np", "1", "--backoff", "1m", program=["echo"])
        self.assertIn("starting again in 60 s", job.process.stderr.readline())
        os.kill(job.process.pid, signal.SIGTERM)
        job.wait()
        self.assertEqual(job.process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(len(self.calls()[0]), 1)

    def test_ignored_signal_stays_ignored(self):
        """As under nohup."""
        self.jobs("trap 'exit 0' USR1; touch $f/ready; while :; do sleep 0.01; done")
        job = Job(["sh", "-c", 'trap "" HUP; exec "$@"', "x", PROGRAM, "-np", "1", "--mpirun",
                   self.mpirun, "--", "echo"], {"KOLO_TEST_FOLDER": str(self.folder)})
        self.addCleanup(job.end)
        self.assertTrue(wait_for(self.path("ready").exists))
        os.kill(job.process.pid, signal.SIGHUP)
        os.kill(job.process.pid, signal.SIGUSR1)  # comes after it
        job.wait()
        self.assertEqual(job.process.returncode, 0)

    def test_error_output_passes_unchanged_though_its_reader_is_slow_or_gone(self):
        size = 3_000_000
        self.jobs(f"head -c {size} /dev/zero >&2")
        _, _, errors = self.run_job("-np", "1", program=["echo"])
        self.assertEqual(errors, "\0" * size)
        self.path("calls").unlink()
        script = '{ "$@"; echo $? >"$f/code"; } 2>&1 | head -c 10 >/dev/null'
        subprocess.run(["sh", "-c", script, "x", PROGRAM, "-np", "1", "--mpirun", self.mpirun, "--",
                        "echo"], check=True, timeout=60,
                       env={**os.environ, "KOLO_TEST_FOLDER": str(self.folder),
                            "f": str(self.folder)})
        self.assertEqual(self.path("code").read_text(), "0\n")


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
