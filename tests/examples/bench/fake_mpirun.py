#!/usr/bin/env python3
"""Stands in for an mpirun whose ranks measure on GPUs, for kolo-bench: `mpirun -n 2 ... [env ...]
kolo-bench ...`. This process plays all ranks: it gives the answers that a controller expects, and
writes the environment that NCCL would see to $FAKE_MPIRUN_LOG. Calls take 3 us with Kolo, 2 us with
NCCL's ring, and 1.5 us with NCCL's own choice.
"""

import json
import os
import socket
import sys

TIMES_US = {None: 3.0, "ring": 2.0, "auto": 1.5}


def environment(words):
    """This process's environment as changed by `env`."""
    variables = dict(os.environ)
    if "env" not in words:
        return variables
    words = iter(words[words.index("env") + 1:])
    for word in words:
        if word == "-u":
            variables.pop(next(words), None)
        elif "=" in word:
            name, value = word.split("=", 1)
            variables[name] = value
        else:
            break
    return variables


def label(nccl):
    return {"algorithm": f"ncclAllReduce {nccl}" if nccl else "kolo", "placement": "device",
            "in_place": True, "compression": "none", "reference": nccl or ""}


def answer(order, nccl):
    if order["do"] == "prepare":
        return {"labels": [label(nccl)]}
    if order["do"] == "check":
        return {"wrong": 0}
    time_us = TIMES_US[nccl]
    return {"calls_us": [time_us], "mean_us": time_us, "cpu_s": 1e-6, "host_us": 1.0}


def main():
    if "--version" in sys.argv:
        print("mpirun (Open MPI) 4.1.4")
        return
    ranks = int(sys.argv[sys.argv.index("-n") + 1])
    variables = environment(sys.argv)
    nccl = variables.get("KOLO_BENCH_NCCL")
    algo = variables.get("NCCL_ALGO")
    with open(os.environ["FAKE_MPIRUN_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps([nccl, algo]) + "\n")
    gpu = {"name": "fake", "driver": "1", "cuda": "1", "nccl": "1", "nccl_algo": algo or ""}
    files = []
    for rank in range(ranks):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["KOLO_BENCH_SOCKET"])
        files.append(connection.makefile("rw", encoding="utf-8"))
        files[-1].write(json.dumps({"rank": rank, "ranks": ranks, "pid": os.getpid(), "gpu": gpu,
                                    "mpi": {"library": "", "single_copy": ""}}) + "\n")
        files[-1].flush()
    while True:
        for file in files:
            line = file.readline()
            if not line or json.loads(line)["do"] == "end":
                return
            file.write(json.dumps(answer(json.loads(line), nccl)) + "\n")
            file.flush()


main()
