#!/usr/bin/env python3
"""Every source is formatted as .clang-format says; no line is longer than 100 columns.

  tests/format_test.py          lists what differs; exit status 77 where clang-format is missing
  tests/format_test.py --fix    formats it
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

from pinned_tool import find_tool

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = "20.1.8"  # as in cmake/test_tools.sh: other versions format differently
FOLDERS = ("include", "src", "ops", "compression", "tests", "examples", "python/src", "python/kolo",
           "python/tests", "python/examples")
FORMATTED = (".cpp", ".hpp", ".cu", ".cuh")
MEASURED = FORMATTED + (".py", ".sh", ".cmake", "CMakeLists.txt")
COLUMNS = 100


def sources(suffixes):
    for folder in FOLDERS:
        yield from sorted(p for p in (ROOT / folder).rglob("*") if p.name.endswith(suffixes))


def too_long():
    for path in sources(MEASURED):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS:
                yield f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fix", action="store_true", help="format the files")
    fix = parser.parse_args().fix
    tool = find_tool("clang-format", VERSION)
    if tool is None:
        print(f"skipped: no clang-format {VERSION}; cmake/setup.sh installs it")
        return 77
    files = list(map(str, sources(FORMATTED)))
    if fix:
        subprocess.run([tool, "-i", *files], check=True)
        return 0
    # Its messages name each file once for every line that differs.
    result = subprocess.run([tool, "--dry-run", *files], capture_output=True, text=True)
    differing = sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning", result.stderr, re.M)))
    found = [f"{os.path.relpath(name, ROOT)}: not formatted; tests/format_test.py --fix"
             for name in differing]
    if result.returncode != 0 and not found:
        found.append(result.stderr)
    found += too_long()
    print("\n".join(found) or f"{len(files)} files are formatted")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
