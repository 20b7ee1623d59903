"""Runs the numbered examples on 1, 2 and 3 ranks and checks what they print:
python3 numbered_examples_test.py <folder of the programs> <case> <mpirun>... <flag for ranks>
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

FOLDER, CASE, *LAUNCH = sys.argv[1:]
RANKS = (1, 2, 3)


def numbers(values):
    return " ".join(f"{value:g}" for value in values)


class NumberedExamples(unittest.TestCase):
    def run_example(self, ranks, program, *arguments):
        result = subprocess.run([*LAUNCH, str(ranks), os.path.join(FOLDER, program), *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def expect_lines(self, output, expected):
        """Compares the lines in any order, as ranks print independently."""
        self.assertEqual(sorted(output.splitlines()), sorted(expected))

    def accuracies(self, output):
        """Compares the lines in order, as printed by one rank."""
        return [float(number) for number in re.findall(r"([\d.]+) %", output)]


class HelloAllreduce(NumberedExamples):
    def test_sums_are_those_of_all_ranks(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                first = sum(1 + rank for rank in range(ranks))
                self.expect_lines(
                    self.run_example(ranks, "01_hello_allreduce"),
                    [f"rank {rank} of {ranks}: sum = [{first}, {10 * ranks}, {100 * ranks}]"
                     for rank in range(ranks)])


class HelloTensors(NumberedExamples):
    def test_rank_0_prints_mean_rows_and_the_value_of_the_root(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                output = self.run_example(ranks, "02_hello_tensors")
                mean, rows, root = re.fullmatch(
                    r"mean of ranks\n(.*)\nrows of all\n(.*)\nfrom rank 0\n(.*)\n", output,
                    re.S).groups()
                values = [[float(number) for number in re.findall(r"^ *(\S+)$", text, re.M)]
                          for text in (mean, root)]
                average = sum(range(ranks)) // ranks  # truncated, as for integers
                self.assertEqual(values, [[average] * 3, [0, 0]])
                expected = [[rank, rank] for rank in range(ranks) for _ in range(rank + 1)]
                found = [[int(number) for number in pair]
                         for pair in re.findall(r"^ *(\d+) +(\d+)$", rows, re.M)]
                self.assertEqual(found, expected)


class Asynchronous(NumberedExamples):
    def test_every_rank_gets_every_sum(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                self.expect_lines(
                    self.run_example(ranks, "03_asynchronous"),
                    [f"rank {rank}: tensor {i} has {2**i} elements of {ranks * i}"
                     for rank in range(ranks) for i in range(4)])


class WrapOptimizer(NumberedExamples):
    def test_ranks_share_the_pictures_and_learn_to_read_them(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                saved = os.path.join(folder, "model.pt")
                output = self.run_example(ranks, "04_wrap_optimizer", saved)
                self.assertEqual(output.count("epoch"), 6)
                shares = -(-4000 // ranks)
                self.assertEqual(output.count(f": {-(-shares // 32)} steps,"), 6, output)
                self.assertGreater(self.accuracies(output)[-1], 97, output)
                self.assertGreater(os.path.getsize(saved), 4 * 28 * 28 * 64)


class OwnAlgorithm(NumberedExamples):
    def test_values_farthest_from_zero_win(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                inputs = [(rank, -2 * rank, 0.5 - rank) for rank in range(ranks)]
                farthest = [max(values, key=lambda value: value * value) for values in zip(*inputs)]
                output = self.run_example(ranks, "05_own_algorithm").replace("-0", "0")
                self.expect_lines(output, [f"rank {rank}: {numbers(farthest)} … "
                                           f"{numbers(farthest[-1:])}" for rank in range(ranks)])


class OwnCodec(NumberedExamples):
    def test_feedback_makes_up_for_what_is_lost(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                output = self.run_example(ranks, "10_own_codec")
                found = re.fullmatch(r"distance without compression (\S+), with feedback (\S+), "
                                     r"without (\S+)\n", output)
                none, with_feedback, without = map(float, found.groups())
                self.assertLess(none, 0.0001)
                self.assertLess(with_feedback, 0.05)
                if ranks > 1:
                    self.assertGreater(without, 2 * with_feedback, output)


class Pretrained(NumberedExamples):
    def test_any_number_of_ranks_resumes_and_fine_tunes(self):
        for ranks, shard in ((1, "optimizer"), (3, "gradients")):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                output = self.run_example(ranks, "06_pretrain_sharded", shard, folder)
                reached = self.accuracies(output)
                self.assertEqual(len(reached), 4, output)
                self.assertGreater(reached[-1], 95, output)

                output = self.run_example(ranks % 3 + 1, "07_resume_elsewhere", folder)
                loaded, later = self.accuracies(output)
                self.assertEqual(loaded, reached[-1], output)
                self.assertGreater(later, 95, output)
                self.assertIn("after epoch 4", output)
                self.assertIn("after epoch 6", output)

                output = self.run_example(4 - ranks, "08_fine_tune",
                                          os.path.join(folder, "all.safetensors"))
                before, after = self.accuracies(output)
                self.assertLess(before, 40, output)
                self.assertGreater(after, 90, output)


class InsideASimulation(NumberedExamples):
    def test_the_network_learns_the_reaction_and_replaces_it(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                *reaction, flame = self.accuracies(self.run_example(ranks,
                                                                    "09_inside_a_simulation"))
                self.assertEqual(len(reaction), 4)
                self.assertLess(reaction[-1], reaction[0] / 3)
                self.assertLess(flame, 5)

    def test_one_rank_is_told_how_to_start_it(self):
        result = subprocess.run([os.path.join(FOLDER, "09_inside_a_simulation")],
                                stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("mpirun -np 2", result.stderr)


def load_tests(loader, _tests, _pattern):
    """Loads the case named on the command line."""
    return loader.loadTestsFromTestCase(globals()[CASE])


cases.main()
