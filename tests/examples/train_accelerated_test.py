"""Runs train_accelerated as users do:

    train_accelerated_test.py <train_accelerated> <mpirun>... <flag for ranks>
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402
from safetensors_file import float32_tensors, largest_difference  # noqa: E402

PROGRAM, *LAUNCH = sys.argv[1:]


class TrainAccelerated(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def train(self, ranks, name, *arguments):
        result = subprocess.run(
            [*LAUNCH, str(ranks), PROGRAM, "--folder", os.path.join(self.folder.name, name),
             "--export", os.path.join(self.folder.name, f"{name}.safetensors"), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_restarts_change_nothing(self):
        whole = self.train(2, "whole", "--epochs", "3")
        accuracies = [float(each) for each in re.findall(r"accuracy (\S+) %", whole)]
        self.assertEqual(len(accuracies), 3, whole)
        self.assertGreater(accuracies[-1], 85, whole)
        digest = re.search(r"^digest: ([0-9a-f]{16})$", whole, re.M).group(1)
        self.assertNotIn("\r", whole)  # a progress bar is for terminals

        # The newest checkpoint of the first run is of step 60, in the second epoch.
        self.train(2, "part", "--epochs", "2", "--save-every", "30")
        shutil.copytree(os.path.join(self.folder.name, "part"),
                        os.path.join(self.folder.name, "other"))
        self.assertIn(f"digest: {digest}\n", self.train(2, "part", "--epochs", "3"))
        resumed = self.train(3, "other", "--epochs", "3")
        self.assertEqual(re.findall("epoch .:", resumed), ["epoch 2:", "epoch 3:"])
        whole, other = (float32_tensors(os.path.join(self.folder.name, f"{name}.safetensors"))
                        for name in ("whole", "other"))
        self.assertLess(largest_difference(whole, other), 1e-5)

    def test_all_ranks_stop_early(self):
        output = self.train(2, "short", "--epochs", "5", "--stop-at", "50")
        accuracies = [float(each) for each in re.findall(r"accuracy (\S+) %", output)]
        self.assertIn(len(accuracies), range(1, 5), output)
        self.assertGreaterEqual(accuracies[-1], 50, output)
        self.assertTrue(all(each < 50 for each in accuracies[:-1]), output)


cases.main()
