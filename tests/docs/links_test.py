"""Files and sections that the documents refer to exist."""

import pathlib
import re
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(path):
    """The anchors that GitHub makes from headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


class Links(unittest.TestCase):
    def test_lead_somewhere(self):
        pages = [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]
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


cases.main()
