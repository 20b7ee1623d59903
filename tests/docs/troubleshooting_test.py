"""Programs print the texts that docs/troubleshooting.md contains:

    troubleshooting_test.py <program> <mpirun>... <flag for ranks> 2
    troubleshooting_test.py --print <program> ...       shows what each mistake prints

A comment before a block of text names the program, the mistake and the environment, as in
<!-- mistakes one_rank_late KOLO_STALL_WARN=1s -->. The program must print every line of the block.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/troubleshooting.md"
IS_PRINTING = "--print" in sys.argv
PROGRAM, *LAUNCH = [argument for argument in sys.argv[1:] if argument != "--print"]
BLOCK = re.compile(rf"<!-- {pathlib.Path(PROGRAM).name} (\w+)(.*?) -->\n+```\n(.*?)```", re.S)
# Otherwise mpirun ends the other ranks immediately.
WAYS = dict.fromkeys(("one_rank_dies", "one_rank_stops"), ["--enable-recovery"])


def text_of(mistake, variables):
    environment = {**os.environ, **dict(word.split("=") for word in variables.split()),
                   "OMPI_MCA_opal_signal": ""}  # no stack traces
    result = subprocess.run([LAUNCH[0], *WAYS.get(mistake, []), *LAUNCH[1:], PROGRAM, mistake],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60, text=True,
                            stderr=subprocess.STDOUT, check=False, env=environment)
    return result.stdout


class Troubleshooting(unittest.TestCase):
    def test_quotes_what_programs_print(self):
        blocks = BLOCK.findall(DOCUMENT.read_text())
        self.assertTrue(blocks)
        for mistake, variables, quoted in blocks:
            with self.subTest(mistake):
                text = text_of(mistake, variables)
                for line in filter(None, quoted.splitlines()):
                    self.assertIn(line, text)


if IS_PRINTING:
    for each in BLOCK.findall(DOCUMENT.read_text()):
        print(f"== {each[0]}{each[1]}\n{text_of(each[0], each[1])}")
else:
    cases.main()
