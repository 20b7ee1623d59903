"""Runs train_mnist as users do:

    train_mnist_test.py <train_mnist> <mpirun>... <flag for ranks>
"""

import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

PROGRAM, *LAUNCH = sys.argv[1:]
SIDE = 28


def idx(extents, values):
    return struct.pack(f">BBBB{len(extents)}I", 0, 0, 8, len(extents), *extents) + bytes(values)


def digits(count, seed):
    """Bars whose position is the class, with noise."""
    chance = random.Random(seed)
    labels = [chance.randrange(10) for _ in range(count)]
    pixels = bytearray()
    for label in labels:
        image = bytearray(chance.randrange(60) for _ in range(SIDE * SIDE))
        for row in range(4, 24):
            for column in range(2 * label + 3, 2 * label + 6):
                image[row * SIDE + column] = 200 + chance.randrange(50)
        pixels += image
    return idx([count, SIDE, SIDE], pixels), idx([count], labels)


class TrainMnist(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        self.write_pair("t10k", 300, seed=1)

    def write(self, name, content):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)

    def write_pair(self, prefix, count, seed):
        images, labels = digits(count, seed)
        self.write(f"{prefix}-images-idx3-ubyte", images)
        self.write(f"{prefix}-labels-idx1-ubyte", labels)

    def run_on(self, ranks, *arguments):
        return self.run_program(ranks, "--data", self.folder, *arguments)

    def run_program(self, ranks, *arguments):
        command = [*LAUNCH, str(ranks), PROGRAM, *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})

    def test_learns_from_uneven_shards(self):
        for ranks, imbalance in ((1, "0"), (2, "0.25"), (3, "2")):
            with self.subTest(ranks=ranks):
                report = os.path.join(self.folder, "report.json")
                result = self.run_on(ranks, "--epochs", "4", "--batch", "8", "--imbalance",
                                     imbalance, "--json", report)
                self.assertEqual(result.returncode, 0, result.stdout)
                self.assertIn("of 60 digits", result.stdout)
                with open(report, encoding="utf-8") as file:
                    self.assertGreater(json.load(file)["accuracy"], 0.9)

    def test_reads_drawn_digits(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                result = self.run_program(ranks, "--epochs", "3", "--batch", "32")
                self.assertEqual(result.returncode, 0, result.stdout)
                accuracies = re.findall(r"accuracy ([\d.]+) % of 1000 digits", result.stdout)
                self.assertEqual(len(accuracies), 3, result.stdout)
                self.assertGreaterEqual(float(accuracies[-1]), 97)

    def test_training_files_are_used_where_they_are(self):
        self.write_pair("train", 200, seed=2)
        result = self.run_on(2, "--epochs", "1")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("of 300 digits", result.stdout)

    def test_what_is_wrong_is_said_once(self):
        images, labels = digits(20, seed=3)
        for name, content, text in (
                ("t10k-images-idx3-ubyte", b"\x1f\x8b\x08\x00more", "Unpack it with gunzip"),
                ("t10k-images-idx3-ubyte", b"no IDX file", "it is not an IDX file"),
                ("t10k-images-idx3-ubyte", images[:1000], "it ends after"),
                ("t10k-labels-idx1-ubyte", idx([300], [10] * 300), "a label above 9"),
                ("t10k-labels-idx1-ubyte", labels, "a label for every image")):
            with self.subTest(text):
                self.write_pair("t10k", 300, seed=1)
                self.write(name, content)
                result = self.run_on(2)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertEqual(result.stdout.count(text), 1, result.stdout)

    def test_a_missing_folder_is_named(self):
        self.folder = "/no/such/folder"
        result = self.run_on(2)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual(result.stdout.count("/no/such/folder/t10k-images"), 1, result.stdout)


cases.main()
