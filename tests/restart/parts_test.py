"""Tests the parts of kolo-restart that decide: what it reads from mpirun's messages, hosts, the
command line, and the plan of the next attempt.

    parts_test.py <kolo-restart>
"""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402


def load(path):
    loader = importlib.machinery.SourceFileLoader("kolo_restart", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


restart = load(sys.argv[1])

KILLED = ("-" * 74 + "\nmpirun noticed that process rank 12 with PID 4711 on node b exited on "
          "signal 9 (Killed).\n" + "-" * 74 + "\n")


class Causes(unittest.TestCase):
    def cause_of(self, text):
        whole, in_bytes = restart.CauseFinder(), restart.CauseFinder()
        whole.add(text.encode())
        for byte in text.encode():  # as it may arrive through a pipe
            in_bytes.add(bytes([byte]))
        self.assertEqual(whole.cause, in_bytes.cause)
        return whole.cause

    def test_each_message_of_mpirun(self):
        for message, text, node in (
                (KILLED, "rank 12 on node b ended by signal 9 (Killed)", "b"),
                ("mpirun noticed that process rank 0 with PID 0 on node a.b exited on signal 6 "
                 "(Aborted).\n", "rank 0 on node a.b ended by signal 6 (Aborted)", None),
                ("mpirun noticed that process rank 0 with PID 0 on node a.b exited on signal 11 "
                 "(S).\n", "rank 0 on node a.b ended by signal 11 (Segmentation fault)", None),
                # Version 5 breaks the line.
                ("prterun noticed that process rank 3 with PID 17 on node b exited on\n"
                 "signal 7 (Bus error).\n", "rank 3 on node b ended by signal 7 (Bus error)", "b"),
                ("  Process name: [[12060,1],2]\n  Exit code:    3\n",
                 "rank 2 ended with exit status 3", None),
                ("  Process name: [prterun-vm-4711@1,2]\n  Exit code:    3\n",
                 "rank 2 ended with exit status 3", None),
                ("or execute an executable:\n\nExecutable: /opt/my train\nNode: b\n\n"
                 "while attempting to start process rank 0.\n",
                 "the program could not be started on node b", "b"),
                ("  HNP daemon   : [[14620,0],0] on node a\n"
                 "  Remote daemon: [[14620,0],1] on node b\n\n",
                 "the connection to node b was lost", "b"),
                # The first one counts.
                ("  Process name: [[1,1],0]\n  Exit code:    1\n" + KILLED,
                 "rank 0 ended with exit status 1", None)):
            with self.subTest(message):
                self.assertEqual(self.cause_of(message), (text, node))

    def test_other_text_is_none(self):
        for text in ("", "epoch 1: loss 0.5\nNode: b\nProcess name: train\nExit code: 1\n",
                     "Executable: x\n\nNode: b",  # the line is incomplete
                     "x" * 100_000 + "noticed that process rank\n"):
            self.assertIsNone(self.cause_of(text), text[:80])

    def test_job_is_given_up_before_its_cause_is_known(self):
        finder = restart.CauseFinder()
        finder.add(b"Primary job  terminated normally, but 1 process returned\n")
        self.assertFalse(finder.is_aborted)
        finder.add(b"a non-zero exit code. Per user-direction, the job has been aborted.\n")
        self.assertEqual((finder.is_aborted, finder.cause), (True, None))
        other = restart.CauseFinder()
        other.add(KILLED.encode())
        self.assertTrue(other.is_aborted)


class Hosts(unittest.TestCase):
    def parse_file(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "hosts")
            path.write_text(text)
            try:
                return restart.parse_host_file(path)
            except argparse.ArgumentTypeError as error:
                return str(error).replace(f"{path}: ", "")

    def error_of_list(self, text):
        with self.assertRaises(argparse.ArgumentTypeError) as context:
            restart.parse_host_list(text)
        return str(context.exception)

    def test_each_mention_in_a_list_adds_its_slots(self):
        for text, hosts in (("a", {"a": 1}), ("a:2,b.c.d:13", {"a": 2, "b.c.d": 13}),
                            ("a,b,a:3,b", {"a": 4, "b": 2})):
            self.assertEqual(restart.parse_host_list(text), hosts)
            self.assertEqual(restart.parse_host_list(restart.list_hosts(hosts)), hosts)

    def test_what_is_no_host_is_named(self):
        for text, name in (("", ""), ("a,,b", ""), ("a,", ""), (":2", ":2"), ("a, b", " b"),
                           ("--np", "--np")):
            self.assertEqual(self.error_of_list(text), f"'{name}' is not the name of a host")
        for text in ("a:", "a:0", "a:-1", "a:2x", "a:1.5", "a:99999999999", "a:1:2"):
            self.assertEqual(self.error_of_list(text),
                             f"'{text}' has no number of slots from 1 to 1000000")
        self.assertEqual(self.error_of_list("a:1000000,b:1"), "the hosts have too many slots")

    def test_files_of_open_mpi_of_mpich_and_of_pbs(self):
        for text, hosts in (
                ("# two hosts\n\na slots=2 max_slots=4\n  b\tslots=3 # the third is down\n",
                 {"a": 2, "b": 3}),
                ("a:2\nb:3", {"a": 2, "b": 3}), ("a\na\nb\nb\n", {"a": 2, "b": 2}),
                ("a\n\nb slots\n", "line 3: 'slots' has no number of slots from 1 to 1000000"),
                ("a slots=two\n", "line 1: 'slots=two' has no number of slots from 1 to 1000000"),
                ("a cores=2\n", "line 1: 'cores=2' is not known: slots=N is"),
                ("slots=2\n", "line 1: 'slots=2' is not the name of a host"),
                ("# nothing\n", "it names no host")):
            self.assertEqual(self.parse_file(text), hosts)

    def test_nodes_are_known_with_and_without_their_domain(self):
        for listed, reported, is_same in (
                ("a", "a", True), ("a.cluster", "a", True), ("a", "a.cluster", True),
                ("10.0.0.1", "10.0.0.1", True), ("localhost", "here", True),
                ("127.0.0.1", "here.cluster", True), ("a", "b", False), ("a", "aa", False),
                ("10.0.0.1", "10.0.0.2", False), ("localhost", "a", False)):
            self.assertEqual(restart.is_same_host(listed, reported, "here.cluster"), is_same)


class Options(unittest.TestCase):
    def error(self, *arguments):
        text = io.StringIO()
        with contextlib.redirect_stderr(text), self.assertRaises(SystemExit) as context:
            restart.parse_options(list(arguments))
        self.assertEqual(context.exception.code, 2)
        return text.getvalue()

    def test_defaults(self):
        options = restart.parse_options(["-np", "4", "--", "./train"])
        self.assertEqual((options.np, options.min_np, options.max_restarts, options.hosts),
                         (4, 4, 3, {}))
        self.assertEqual((options.backoff, options.program), (1, ["./train"]))

    def test_program_and_its_arguments_are_not_touched(self):
        words = ["./my train", "--np", "-np", "--", "", "--help", "a  b"]
        for flag in ("-np", "--np", "-n"):
            options = restart.parse_options([flag, "2", "--", *words])
            self.assertEqual((options.np, options.program), (2, words))

    def test_times(self):
        options = restart.parse_options(["-n", "1", "--backoff", "250ms", "--grace", "2m",
                                         "--probe-timeout", "5s", "--", "x"])
        self.assertEqual((options.backoff, options.grace, options.probe_timeout), (0.25, 120, 5))
        for time in ("3", "-1s", "2d", "25h", "1e99s", ""):
            self.assertIn("--backoff", self.error("-np", "1", "--backoff", time, "--", "x"))

    def test_mpirun_is_split_into_words(self):
        options = restart.parse_options(["-np", "1", "--mpirun", "mpirun  -x 'A=b c'", "--", "x"])
        self.assertEqual(options.mpirun, ["mpirun", "-x", "A=b c"])

    def test_what_is_wrong_is_named(self):
        for words, text in (
                ("-- x", "are required: --np"), ("-np 0 -- x", "--np"),
                ("-np 2 --min-np 3 -- x", "--min-np 3 is more than -np 2"),
                ("-np 2 --min-np 0 -- x", "--min-np"),
                ("-np 2 --max-restarts -1 -- x", "--max-restarts"),
                ("-np 2", "no PROGRAM: it stands behind --"),
                ("-np 2 --", "no PROGRAM: it stands behind --"),
                ("-np 2 x", "unrecognized arguments: x"),
                ("-np 4 --host a:2,b -- x", "-np 4 is more than the slots of a:2,b:1"),
                ("-np 1 --host a --hostfile b -- x", "--hostfile"),
                ("-np 1 --host a:x -- x", "--host: 'a:x' has no number of slots"),
                ("-np 3 --hostfile /no/file -- x", "--hostfile: /no/file: cannot be read")):
            self.assertIn(text, self.error(*words.split()))
        for command, text in (("", "is not a command"), (" ", "is not a command"),
                              ("mpirun 'x", "is not a command"),
                              ("mpirun --enable-recovery",
                               "does not tell that a rank has failed")):
            self.assertIn(text, self.error("-np", "1", "--mpirun", command, "--", "x"))

    def test_program_is_a_path_or_in_path(self):
        self.assertIsNone(restart.problem_with_program("sh"))
        self.assertIsNone(restart.problem_with_program("/bin/sh"))
        for name in ("/bin", "/no/such/program", "kolo-no-such-program", ""):
            self.assertEqual(restart.problem_with_program(name), f"cannot find the program {name}")
        with tempfile.NamedTemporaryFile() as file:
            self.assertIn("it is not executable (chmod +x)",
                          restart.problem_with_program(file.name))


class Plans(unittest.TestCase):
    HOSTS = {"a": 2, "b": 2, "c": 1}

    def plan(self, min_ranks, host_failures=2, hosts=None):
        return restart.Plan(self.HOSTS if hosts is None else hosts, 5, min_ranks, host_failures)

    def test_ranks_stay_without_hosts(self):
        plan = self.plan(2, hosts={})
        for _ in range(5):
            self.assertIsNone(plan.note_failure("b", "b"))
            self.assertEqual(plan.next([]), (5, {}))

    def test_hosts_that_do_not_answer_are_left_out_until_they_do(self):
        plan = self.plan(2)
        self.assertEqual(plan.next("ac"), (3, {"a": 2, "c": 1}))
        self.assertEqual(plan.next("b"), (2, {"b": 2}))
        self.assertEqual(plan.next(""), (0, {}))
        self.assertEqual(plan.next("abc"), (5, self.HOSTS))

    def test_spare_slots_keep_the_number_of_ranks(self):
        plan = restart.Plan(self.HOSTS, 3, 3, 2)
        self.assertEqual(plan.next("ac"), (3, {"a": 2, "c": 1}))

    def test_host_that_fails_in_a_row_is_given_up(self):
        plan = self.plan(2)
        self.assertIsNone(plan.note_failure("b", "a"))
        self.assertEqual(plan.note_failure("b.cluster", "a"), "b")
        self.assertEqual(plan.next("ac"), (3, {"a": 2, "c": 1}))
        self.assertIsNone(plan.note_failure("b", "a"))  # already given up
        self.assertIsNone(plan.note_failure("c", "a"))
        self.assertEqual(plan.note_failure("c", "a"), "c")

    def test_failures_that_are_not_in_a_row_give_no_host_up(self):
        plan = self.plan(1)
        for node in ("a", "b", "a", None, "a", "unknown", "a", "c"):
            self.assertIsNone(plan.note_failure(node, "here"), node)
        self.assertEqual(plan.hosts, self.HOSTS)
        for _ in range(3):
            self.assertIsNone(plan.note_failure(None, "here"))

    def test_host_without_which_too_few_ranks_are_left_is_kept(self):
        plan = self.plan(4, host_failures=1)
        self.assertIsNone(plan.note_failure("a", "here"))
        self.assertEqual(plan.note_failure("c", "here"), "c")
        self.assertIsNone(plan.note_failure("b", "here"))
        self.assertEqual(plan.hosts, {"a": 2, "b": 2})
        alone = self.plan(1, host_failures=1, hosts={"localhost": 2})
        self.assertIsNone(alone.note_failure("here", "here"))

    def test_pause_doubles_up_to_a_minute(self):
        for number, first_s, pause_s in ((1, 1, 1), (2, 1, 2), (6, 1, 32), (7, 1, 60),
                                         (1_000_000, 1, 60), (3, 90, 90), (1_000_000, 0, 0)):
            self.assertEqual(restart.pause_before(number, first_s), pause_s)


if __name__ == "__main__":
    cases.main()
