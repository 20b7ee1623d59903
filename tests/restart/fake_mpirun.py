#!/usr/bin/env python3
"""Replaces mpirun in fake_jobs_test.py, and starts no ranks. It appends its arguments to the file
`calls` in the folder KOLO_TEST_FOLDER. Other files there determine what it does:

    version         the output of --version
    down            hosts, one per line, where no process starts
    silent          hosts where a process starts but never ends
    jobs/<number>   a shell script that is the job of that start; without one the job succeeds
"""

import json
import os
import pathlib
import sys
import time

FOLDER = pathlib.Path(os.environ["KOLO_TEST_FOLDER"])


def lines(name):
    path = FOLDER / name
    return path.read_text().split() if path.exists() else []


def hosts(arguments):
    for flag, value in zip(arguments, arguments[1:]):
        if flag in ("--host", "-hosts"):
            return [host.split(":")[0] for host in value.split(",")]
    return []


def main(arguments):
    if arguments == ["--version"]:
        print((FOLDER / "version").read_text())
        return
    with open(FOLDER / "calls", "a", encoding="utf-8") as file:
        file.write(json.dumps(arguments) + "\n")
    if arguments[-1] == "true":
        if set(hosts(arguments)) & set(lines("silent")):
            time.sleep(60)
        sys.exit(1 if set(hosts(arguments)) & set(lines("down")) else 0)
    calls = [json.loads(line) for line in (FOLDER / "calls").read_text().splitlines()]
    number = sum(call[-1] != "true" for call in calls)
    job = FOLDER / "jobs" / str(number)
    if job.exists():
        os.execvp("sh", ["sh", str(job)])


main(sys.argv[1:])
