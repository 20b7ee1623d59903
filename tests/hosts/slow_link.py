#!/usr/bin/env python3
"""Compares ways to compress gradients over a slow link: runs compare_compression on two hosts,
simulated by namespaces of this machine. Its arguments follow `--`. Needs root.

    slow_link.py build/release/examples/compare_compression mpirun -- --preset small --steps 60
    slow_link.py --rate 1gbit --ranks 2 build/release/examples/compare_compression mpirun
"""

import argparse
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from hosts import Hosts, enter_namespaces, problem  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="compare_compression")
    parser.add_argument("launcher", help="mpirun")
    parser.add_argument("--rate", default="100mbit",
                        help="what each host receives in a second, as tc writes it; %(default)s")
    parser.add_argument("--ranks", type=int, default=1, help="of each host; %(default)s")
    own = sys.argv[1:]
    split = own.index("--") if "--" in own else len(own)
    arguments = parser.parse_args(own[:split])
    return arguments, own[split + 1:]


def main():
    arguments, passed_on = parse_arguments()
    if reason := problem(arguments.launcher):
        sys.exit(f"cannot make hosts: {reason}")
    enter_namespaces()
    hosts = Hosts(2)
    try:
        hosts.slow_down(arguments.rate)
        program = [arguments.program.resolve(), *passed_on]
        job = hosts.mpirun(arguments.launcher, arguments.ranks, program)
        print(f"2 hosts with {arguments.ranks} ranks each, {arguments.rate}", flush=True)
        for line in job.stdout:
            print(line, end="", flush=True)
        return job.wait()
    finally:
        hosts.end_jobs()
        hosts.end()


if __name__ == "__main__":
    sys.exit(main())
