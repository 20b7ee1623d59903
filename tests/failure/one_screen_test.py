"""What a user sees when one of four ranks fails and nothing is caught: one_screen_test.py
<program uncaught> <mpirun>...

Each rank says once what has happened and where the records are, and all of it, mpirun's own lines
included, fits on a screen.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

RANKS = 4
MOST_LINES = 15
PROGRAM, *MPIRUN = sys.argv[1:]


class OneScreen(unittest.TestCase):
    def text_of(self, way, most_lines=MOST_LINES):
        with tempfile.TemporaryDirectory(prefix="kolo-screen-") as folder:
            settings = {"KOLO_RECORD": folder, "KOLO_TIMEOUT": "2s", "KOLO_LOST_AFTER": "2s"}
            run = subprocess.run([*MPIRUN, "-n", str(RANKS), PROGRAM, way], timeout=60, text=True,
                                 stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                 env={**os.environ, **settings})
            records = list(pathlib.Path(folder).glob("rank-*.json"))
        self.assertNotEqual(run.returncode, 0)
        self.assertTrue(records)
        lines = run.stderr.splitlines()
        self.assertLessEqual(len(lines), most_lines, run.stderr)
        for rank in range(RANKS):
            own = [line for line in lines if line.startswith(f"[kolo rank {rank}] ")]
            self.assertLessEqual(sum("kolo-trace why" in line for line in own), 1, run.stderr)
            self.assertLessEqual(sum("error: " in line for line in own), 1, run.stderr)
        return run.stderr

    def expect_of_some(self, text, expression):
        self.assertRegex(text, rf"\[kolo rank [013]\] error: {expression} \(kolo-trace why ")

    def test_throw(self):
        text = self.text_of("throw")
        cause = "ended with an uncaught exception: the disk of node 7 is full"
        self.assertIn(f"[kolo rank 2] error: {cause} (kolo-trace", text)
        self.expect_of_some(text, f"allreduce 'loss' on process set world: rank 2 {cause}")

    def test_kill(self):
        self.expect_of_some(self.text_of("kill"), "allreduce 'loss' on process set world: rank 2 "
                            "died: its process has ended")

    def test_stop(self):
        self.expect_of_some(self.text_of("stop"), "allreduce 'loss' on process set world: rank 2 "
                            "does not answer: .*")

    def test_mismatch(self):
        # Ranks say where the records are before they know that nothing catches the error.
        text = self.text_of("mismatch", MOST_LINES + RANKS)
        self.assertRegex(text, r"\[kolo rank .\] error: ended with an uncaught exception: "
                         "'loss' on process set world: shape differs")


cases.main()
