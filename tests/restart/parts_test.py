"""Tests what kolo-restart reads from mpirun's messages and of hosts.

    parts_test.py <kolo-restart>
"""

import argparse
import importlib.machinery
import importlib.util
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


if __name__ == "__main__":
    cases.main()
