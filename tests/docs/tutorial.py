#!/usr/bin/env python3
"""Prints the C++ blocks of docs/tutorial.md or another page as one program, or writes them to a
file:

    tutorial.py [FILE [PAGE]]
"""

import pathlib
import re
import sys

DOCUMENTS = pathlib.Path(__file__).resolve().parents[2] / "docs"
DOCUMENT = DOCUMENTS / "tutorial.md"


def program(document):
    return "\n".join(re.findall(r"```cpp\n(.*?)```", document.read_text(), re.S))


if __name__ == "__main__":
    text = program(DOCUMENTS / sys.argv[2] if len(sys.argv) > 2 else DOCUMENT)
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(text)
    else:
        print(text, end="")
