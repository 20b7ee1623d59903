#!/usr/bin/env python3
"""Prints the blocks of C++ in docs/tutorial.md as one program, or writes it to a file:

    tutorial.py [FILE]
"""

import pathlib
import re
import sys

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/tutorial.md"


def program():
    return "\n".join(re.findall(r"```cpp\n(.*?)```", DOCUMENT.read_text(), re.S))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(program())
    else:
        print(program(), end="")
