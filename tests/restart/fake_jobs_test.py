"""Runs kolo-restart with a fake mpirun that fails on demand:

    fake_jobs_test.py <kolo-restart>
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402
from jobs import Job, wait_for  # noqa: E402
from restart_case import PROGRAM, Restart  # noqa: E402

FAKE = pathlib.Path(__file__).with_name("fake_mpirun.py").resolve()
KILLED = ("echo 'mpirun noticed that process rank 1 with PID 7 on node {} exited on signal 9 "
          "(Killed).' >&2; exit 137")


class FakeJobs(Restart):
    """Lost hosts, and jobs that fail or do not end."""

    def setUp(self):
        super().setUp()
        self.mpirun = f"{FAKE} --own flag"
        self.path("version").write_text("mpirun (Open MPI) 4.1.4\n")
        self.path("jobs").mkdir()

    def jobs(self, *texts):
        for number, text in enumerate(texts, 1):
            (self.path("jobs") / str(number)).write_text(text.replace("$f", str(self.folder)))

    def calls(self):
        """The arguments of each call after mpirun's own: jobs in order, probes as a set."""
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
                                       "--probe-timeout", "5s", program=["echo"])
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
        """mpirun waits for a lost host."""
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
        os.kill(job.process.pid, signal.SIGUSR1)  # arrives after SIGHUP
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


if __name__ == "__main__":
    cases.main()
