"""Every patch in mutations/ applies to the current sources: whoever changes the code under a patch
regenerates it in the same commit. python3 mutations_test.py"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent / "mutations"
ROOT = FOLDER.parent.parent
sys.path.append(str(FOLDER))
import cases  # noqa: E402
from run import SUITES  # noqa: E402

PATCHES = sorted(FOLDER.rglob("*.patch"))
# Otherwise, for a copy inside another repository, git would use that repository.
ENVIRONMENT = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}


class Mutations(unittest.TestCase):
    def test_apply(self):
        self.assertTrue(PATCHES)
        for patch in PATCHES:
            check = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, text=True,
                                   env=ENVIRONMENT, capture_output=True, check=False)
            with self.subTest(patch.relative_to(FOLDER)):
                self.assertEqual(check.returncode, 0, check.stderr)

    def test_name_tests_that_exist(self):
        sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.[ch]pp"))
        for patch in PATCHES:
            for pattern in re.findall(r"--gtest_filter=(\S+)", patch.read_text()):
                # Programs make up names that end with a number.
                for part in re.split(r"\d*(?:[*:./-]+|$)", pattern):
                    with self.subTest(patch.relative_to(FOLDER), part=part):
                        self.assertTrue(part in sources, "no test has this in its name")

    def test_have_names_of_their_own(self):
        suites = collections.Counter((patch.relative_to(FOLDER).parts[0], patch.stem)
                                     for patch in PATCHES)
        self.assertEqual([name for name, count in suites.items() if count > 1], [])

    def test_suites_compile_sources_that_exist(self):
        for name, suite in SUITES.items():
            missing = [source for source in suite.sources if not (ROOT / source).is_file()]
            self.assertEqual(missing, [], name)


cases.main()
