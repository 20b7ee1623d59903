"""Commands in the documents name scripts, sources, presets and flags that exist:

    commands_test.py <kolo-bench>
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = sys.argv[1]


def commands():
    """The page and the words of each line in blocks of shell commands."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M)
        for block in [text for kind, text in blocks if kind in ("", "sh")]:
            for line in block.replace("\\\n", " ").splitlines():
                try:
                    yield page.name, shlex.split(line, comments=True)
                except ValueError:
                    continue  # output of a program


class Commands(unittest.TestCase):
    def check(self, names, is_there):
        names = set(names)
        self.assertTrue(names)
        self.assertEqual([], sorted(name for name in names if not is_there(name[1])))

    def test_name_files_that_exist(self):
        self.check(((page, word) for page, words in commands() for word in words
                    if re.match(r"(tests|examples|cmake|include|src)/[\w/.-]+$", word)),
                   lambda path: (ROOT / path).exists())

    def test_name_presets_that_exist(self):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        known = {preset["name"] for preset in presets["configurePresets"]}
        self.check(((page, preset) for page, words in commands()
                    for flag, preset in zip(words, words[1:]) if flag == "--preset"
                    and words[0] in ("cmake", "ctest")), lambda name: name in known)

    def test_name_flags_of_kolo_bench(self):
        text = subprocess.run([PROGRAM, "--help"], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        known = set(re.findall(r"--[a-z-]+", text))
        self.check(((page, word) for page, words in commands() if "kolo-bench" in words
                    for word in words[words.index("kolo-bench"):] if word.startswith("--")),
                   lambda flag: flag in known)


cases.main()
