"""Files, sections and tests that the documents refer to exist."""

import pathlib
import re
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_TEST = re.compile(r"\b(\w+Test)\.(\w+)")
TEST = re.compile(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", re.M)


def anchors(path):
    """The anchors that GitHub makes from headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


class Links(unittest.TestCase):
    def test_lead_somewhere(self):
        pages = [page for folder in ("", "docs", "tests/traceability")
                 for page in (ROOT / folder).glob("*.md")]
        for page in pages:
            for link in LINK.findall(page.read_text()):
                if re.match(r"\w+:", link):
                    continue
                with self.subTest(page=str(page.relative_to(ROOT)), link=link):
                    name, _, anchor = link.partition("#")
                    target = (page.parent / name).resolve() if name else page
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_tests_exist(self):
        tests = {test for source in (ROOT / "tests").rglob("*.cpp")
                 for test in TEST.findall(source.read_text())}
        for page in (ROOT / "tests/traceability").glob("*.md"):
            for test in NAMED_TEST.findall(page.read_text()):
                with self.subTest(page=page.name, test=".".join(test)):
                    self.assertTrue(test in tests)


cases.main()
