#!/usr/bin/env python3
"""Looks for mistakes with clang-tidy, by the checks of .clang-tidy.

  tests/lint_test.py BUILD              the core's compilations, several sources at once in a unity
                                        build, without the static analyzer: half a minute
  tests/lint_test.py --all BUILD        every source that BUILD compiles, with the analyzer: an hour
  tests/lint_test.py BUILD FILE...      these, with the analyzer

BUILD has been configured with CMAKE_EXPORT_COMPILE_COMMANDS, and has built its generated headers.
Exit status 77 where clang-tidy or the compile commands are missing.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from pinned_tool import find_tool

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = "22.1.8"  # as in cmake/test_tools.sh: other versions have other findings
CORE = ("src", "ops", "compression")


def sources(entry):
    """The sources of one compilation: in a unity build there are several."""
    path = pathlib.Path(entry["directory"]) / entry["file"]
    if path.parent.name == "unity":
        return [str(ROOT / name) for name in re.findall(r'#include "(.*)"', path.read_text())]
    return [str(path)]


def is_ours(source):
    return source.endswith(".cpp") and "build" not in pathlib.Path(source).relative_to(ROOT).parts


def commands(build, is_wanted):
    """One compile command for each wanted source, without options that only g++ supports."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        command = re.sub(r" -o .*", "", entry["command"])
        command = re.sub(r" -W(no-subobject-linkage|no-maybe-uninitialized)", "", command)
        command = re.sub(r" -Winvalid-pch -include \S+", "", command)
        for source in filter(is_ours, sources(entry)):
            if is_wanted(source):
                yield {"directory": entry["directory"], "file": source,
                       "command": f"{command} -c {source}"}


def core_commands(build):
    """The core's compile commands, unchanged: in a unity build headers are parsed once."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        own = [source for source in sources(entry) if is_ours(source)]
        if own and "torch/include" not in entry["command"] and all(
                pathlib.Path(source).relative_to(ROOT).parts[0] in CORE for source in own):
            yield {**entry, "command": re.sub(
                r" -o \S+| -W(no-subobject-linkage|no-maybe-uninitialized)", "", entry["command"])}


def lint(tool, folder, source, checks):
    """The findings of clang-tidy, without the caret lines that quote the source."""
    result = subprocess.run([tool, "-p", folder, "--quiet", f"--checks={checks}", source],
                            capture_output=True, text=True)
    found = re.findall(r"^\S+:\d+:\d+: (?:error|warning): .*", result.stdout, re.M)
    if result.returncode != 0 and not found:
        found = [f"{source}: clang-tidy failed: {result.stderr.strip()}"]
    return [line.replace(f"{ROOT}/", "").replace(",-warnings-as-errors", "") for line in found
            if not line.startswith("/usr/")]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    tool = find_tool("clang-tidy", VERSION)
    if tool is None:
        print(f"skipped: no clang-tidy {VERSION}; cmake/setup.sh --tests installs it")
        return 77
    if not (arguments.build / "compile_commands.json").exists():
        print(f"skipped: {arguments.build} is configured without CMAKE_EXPORT_COMPILE_COMMANDS")
        return 77
    wanted = {str(file.resolve()) for file in arguments.files}
    whole = arguments.all or wanted
    build = arguments.build.resolve()
    found = (commands(build, lambda source: arguments.all or source in wanted) if whole
             else core_commands(build))
    entries = {entry["file"]: entry for entry in found}
    found = set()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        pathlib.Path(folder, "compile_commands.json").write_text(json.dumps([*entries.values()]))
        checks = "" if whole else "-clang-analyzer-*,-bugprone-suspicious-include"
        for lines in pool.map(lambda source: lint(tool, folder, source, checks), entries):
            for line in lines:
                if line not in found:
                    print(line, flush=True)
                found.add(line)
    print(f"{len(entries)} sources, {len(found)} mistakes")
    return 1 if found or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
