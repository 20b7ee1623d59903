"""Runs a command that should fail, or succeed, with a certain output: python3 expect_output.py
<fails|succeeds> <regular expression> <command>... Prints the output only if something else
happens, so that expected failures are not counted.
"""

import re
import subprocess
import sys


def main(ending, expression, *command):
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if (run.returncode != 0) != (ending == "fails"):
        problem = f"exit status {run.returncode}, but it {ending}"
    elif not re.search(expression, run.stdout, re.S):
        problem = f"the output has no {expression!r}"
    else:
        return 0
    print(run.stdout, f"not as expected: {problem}", sep="\n")
    return 1


sys.exit(main(*sys.argv[1:]))
