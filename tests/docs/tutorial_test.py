"""Runs the program of docs/tutorial.md as that page says:

    tutorial_test.py <program> <mpirun>... <flag for ranks>
"""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402
import tutorial  # noqa: E402

PROGRAM, *LAUNCH = sys.argv[1:]


class Tutorial(unittest.TestCase):
    def commands(self):
        block = re.search(r"```sh\n(.*?)```", tutorial.DOCUMENT.read_text(), re.S).group(1)
        for line in block.splitlines():
            words = [PROGRAM if word == "./train" else word
                     for word in shlex.split(line, comments=True)]
            yield [*LAUNCH, *words[2:]] if words[0] == "mpirun" else words

    def test_prints_the_same_loss_each_time(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = [subprocess.run(command, cwd=folder, text=True, check=True, timeout=120,
                                    stdout=subprocess.PIPE).stdout for command in self.commands()]
        alone, together, half, resumed = (float(re.search(r"loss (\S+)", text).group(1))
                                          for text in texts)
        self.assertLess(alone, 0.1)
        self.assertAlmostEqual(together, alone, 4)
        self.assertGreater(half, 1.1 * alone)
        self.assertAlmostEqual(resumed, alone, 4)


cases.main()
