"""Runs the program of docs/accelerator.md as that page says:

    accelerator_test.py <program> <mpirun>... <flag for ranks>
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

PROGRAM, *LAUNCH = sys.argv[1:]


class Accelerator(unittest.TestCase):
    def run_program(self, ranks, folder):
        output = subprocess.run([*LAUNCH, str(ranks), PROGRAM, "checkpoints"], cwd=folder,
                                text=True, check=True, timeout=120,
                                stdout=subprocess.PIPE).stdout
        return [(int(epoch), float(error))
                for epoch, error in re.findall(r"^epoch (\d+): error (\S+)$", output, re.M)]

    def test_learns_and_has_nothing_left_to_do_after_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            epochs = self.run_program(2, folder)
            self.assertEqual([epoch for epoch, error in epochs], list(range(1, 21)))
            self.assertLess(epochs[-1][1], 0.5 * epochs[0][1])
            self.assertEqual(self.run_program(1, folder), [])


cases.main()
