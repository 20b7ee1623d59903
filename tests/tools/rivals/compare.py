#!/usr/bin/env python3
"""Compares Kolo with other libraries on this machine and prints docs/comparison.md: page.md of this
folder with what was measured:

    tests/tools/rivals/compare.py [--rounds 3] [--pairs 9] [--models gpt] [--cases ...]
                                  [--json FILE] > docs/comparison.md

Every library trains the same model on 2 ranks of one thread each, in a job of its own, and all of
them in every round, in random order. README.md says how to get them and what is measured.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time

from table import Run, failure_of, summary, table

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
PROGRAMS = ROOT / "build/release/examples"
TIMEOUT = 240  # seconds for one run, which takes about 30

# Keeps freed memory, as examples/common/freed_memory.hpp does for Kolo's programs.
SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
            "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(64 << 20)}
HOROVOD_AT_ITS_BEST = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0.1",
                       "OMPI_MCA_mpi_yield_when_idle": "1"}

MODELS = {"gpt": "GPT, 10,774,272 parameters, AdamW, 8 windows of 128 bytes a rank",
          "resnet50": "ResNet-50, 25,557,032 parameters, SGD with momentum, 8 images of 64×64 a "
                      "rank"}
BUCKETS_MB = (1, 5, 25, 100)
KOLO = {"kolo": (), "kolo-optimizer": ("--shard", "optimizer"),
        "kolo-gradients": ("--shard", "gradients"), "kolo-full": ("--shard", "full"),
        "kolo-gathered": ("--shard", "full")}
# TCP through the loopback interface, as Gloo uses it: of the cases whose name ends with "-tcp".
TCP = {"KOLO_SHARED_MEMORY": "off", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp",
       "OMPI_MCA_btl_tcp_if_include": "lo"}
SETTINGS_OF_CASES = {"horovod-best": HOROVOD_AT_ITS_BEST,
                     "kolo-gathered": {"KOLO_SHARED_MEMORY": "off"}}


def labels_of_torch(mark, backend):
    ddp, fsdp2 = f"DDP over {backend}", f"FSDP2 over {backend}"
    return {f"ddp{mark}": ddp, f"ddp{mark}-static": f"{ddp}, static graph",
            f"ddp{mark}-views": f"{ddp}, gradients as views of buckets",
            **{f"ddp{mark}-{size}mb": f"{ddp}, static graph, such views, buckets of {size} MB"
               for size in BUCKETS_MB},
            f"ddp{mark}-zero": f"{ddp} with such views, ZeroRedundancyOptimizer",
            f"fsdp2{mark}": f"{fsdp2}, not resharded after forward",
            f"fsdp2{mark}-reshard": f"{fsdp2}, resharded after forward"}


LABELS = {"kolo": "Kolo, `none`", "kolo-optimizer": "Kolo, `optimizer`",
          "kolo-gradients": "Kolo, `gradients`",
          "kolo-full": "Kolo, `full`, one copy of the parameters",
          "kolo-gathered": "Kolo, `full`, gathered on use, no shared memory",
          "alone": "PyTorch alone, two processes at once",
          **labels_of_torch("", "Gloo"), **labels_of_torch("-kolo", "Kolo"),
          "fsdp2-kolo-alloc": "FSDP2 over Kolo, which allocates, not resharded after forward",
          "fsdp2-kolo-reshard-alloc": "FSDP2 over Kolo, which allocates, resharded after forward",
          "fairscale": "FairScale, OSS and ShardedDDP", "horovod": "Horovod",
          "horovod-best": "Horovod, settings at their best",
          "horovod-kolo": "Horovod's interface over Kolo"}
LABELS |= {f"{case}-tcp": f"{LABELS[case]}, over TCP as Gloo" for case in
           ("kolo", "kolo-gathered", "ddp-kolo", "ddp-kolo-static", "fsdp2-kolo")}


def each_of(*cases):
    return {LABELS[case]: [case] for case in cases}


def ways_of_ddp(mark):
    return [f"ddp{mark}{way}" for way in
            ("", "-static", "-views", *(f"-{size}mb" for size in BUCKETS_MB))]


# Heading of a part -> its rows, as summary() takes them. The best is chosen from the same ways over
# Gloo and over Kolo.
SUMMARY = {
    "Over one transport, TCP through the loopback interface":
        each_of("ddp", "ddp-static", "ddp-kolo-tcp", "ddp-kolo-static-tcp", "kolo-tcp"),
    "Over one transport, parameters gathered when they are used":
        each_of("fsdp2", "fsdp2-kolo-tcp", "kolo-gathered-tcp"),
    "As each library moves data within a machine":
        {"DDP over Gloo": ways_of_ddp(""), "DDP over Kolo": ways_of_ddp("-kolo"),
         "Horovod": ["horovod", "horovod-best"], **each_of("horovod-kolo", "fairscale", "kolo")},
    "As each library moves data within a machine, parameters sharded":
        {"FSDP2 over Gloo": ["fsdp2", "fsdp2-reshard"],
         "FSDP2 over Kolo": ["fsdp2-kolo", "fsdp2-kolo-reshard"],
         "FSDP2 over Kolo, which allocates": ["fsdp2-kolo-alloc", "fsdp2-kolo-reshard-alloc"],
         **each_of("kolo-gathered", "kolo-full")}}


def transport(case):
    """How the data of two ranks move."""
    if case == "alone":
        return "nothing"
    if case in ("kolo-gathered", "horovod", "horovod-best"):
        return "MPI in shared memory"
    is_tcp = case.endswith("-tcp") or "kolo" not in case
    return "TCP, loopback" if is_tcp else "shared memory"


def environment():
    """The PATH of cmake/environment.sh, and the Python of setup.sh."""
    script = '. "$1/cmake/environment.sh"; printf "%s\\n" "$PATH" "$kolo_cache"'
    output = subprocess.run(["bash", "-c", script, "bash", ROOT], check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    path, cache = output.splitlines()
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **SETTINGS, "PATH": path}, pathlib.Path(cache) / "rivals/bin/python3"


def command(case, model, pairs, python, file):
    case = case.removesuffix("-tcp")
    if case in KOLO:
        program = {"gpt": ["train_gpt", "--preset", "medium"],
                   "resnet50": ["synthetic_benchmark", "--image", "64", "--batch", "8"]}[model]
        return [str(PROGRAMS / program[0]), *program[1:], "--fused", f"--efficiency={pairs}",
                *KOLO[case], "--json", file]
    library = case.removesuffix("-best")
    return [str(python), str(FOLDER / "train.py"), library, model, str(pairs), file]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def launcher(options):
    return ["mpirun", "-np", "2", "--bind-to", options.bind_to]


def run(case, model, number, options, settings, python):
    """Runs one case in separate processes."""
    settings = {**settings, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
                **(TCP if case.endswith("-tcp") else SETTINGS_OF_CASES.get(case, {}))}
    with tempfile.TemporaryDirectory() as folder, \
            open(os.path.join(folder, "output"), "w+", errors="replace") as output:
        file = os.path.join(folder, "measured.json")
        launched = command(case, model, options.pairs, python, file)
        if not os.access(launched[0], os.X_OK):
            return Run(model, case, number, failure=f"{launched[0]} is not there")
        job = subprocess.Popen([*launcher(options), *launched], env=settings,
                               stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = job.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            return Run(model, case, number, failure=f"not done after {TIMEOUT} s")
        finally:
            stop(job)
        if status != 0 or not os.path.exists(file):
            output.seek(0)
            return Run(model, case, number, failure=failure_of(output.read(), status))
        measured = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    # synthetic_benchmark writes a list, by size of images.
    return Run(model, case, number, measured[0] if isinstance(measured, list) else measured)


def stop(job):
    """Asks mpirun to end, so that it ends its ranks."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def run_all(options, settings, python):
    """Runs every case of a model once per round, in random order, and one model after the other, so
    that the rounds of each table are close in time."""
    order = random.Random(options.seed)
    runs, total = [], options.rounds * len(options.models) * len(options.cases)
    for model in options.models:
        for number in range(1, options.rounds + 1):
            for case in order.sample(options.cases, len(options.cases)):
                start = time.monotonic()
                runs.append(run(case, model, number, options, settings, python))
                measured = runs[-1].measured
                result = (f"{measured['step_ms_with']:.1f} ms a step, "
                          f"{measured['efficiency']:.3f}" if measured else runs[-1].failure)
                print(f"[{len(runs)}/{total}] round {number}, {model}, {LABELS[case]}: {result} "
                      f"({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
    return runs


def output_of(*arguments, **options):
    result = subprocess.run(arguments, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, **options)
    return result.stdout.strip()


def versions(settings, python):
    script = ("import importlib.metadata as m\n"
              "for name in ('torch', 'fairscale', 'horovod'):\n"
              "    try: print(name, m.version(name))\n"
              "    except m.PackageNotFoundError: print(name, 'not installed')")
    packages = ["no Python packages"]
    if os.access(python, os.X_OK):
        packages = [*output_of(python, "-c", script).splitlines(), output_of(python, "-V")]
    mpi = output_of("mpirun", "--version", env=settings).splitlines()[:1]
    return ", ".join([*packages, *mpi, " ".join(platform.libc_ver())])


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} processors"
    return platform.processor()


def kernel():
    """The version without suffixes of a distribution or host."""
    return f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"


def describe(options, settings, python, load):
    """The lines above the tables."""
    commit = output_of("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
    measured = ["include", "src", "ops", "compression", "examples"]
    if output_of("git", "-C", ROOT, "status", "--porcelain", "--", *measured):
        commit += " with changes"
    best = " ".join(f"{name}={value}" for name, value in HOROVOD_AT_ITS_BEST.items())
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return [f"- command: `{shlex.join(['tests/tools/rivals/compare.py', *sys.argv[1:]])}`",
            f"- Kolo: commit {commit}; ended {now}; order of seed {options.seed}",
            f"- machine: {processor()}; {kernel()}; load average at "
            f"the start {load:.2f}",
            f"- versions: {versions(settings, python)}",
            f"- ranks: `{shlex.join(launcher(options))}`; "
            f"`{' '.join(f'{name}={value}' for name, value in SETTINGS.items())}`",
            f"- Horovod's settings at their best: `{best}`",
            f"- {options.rounds} rounds, in each {options.pairs} pairs of blocks: medians, and "
            "least to greatest"]


def page(options, about, runs):
    labels = {case: (label, transport(case)) for case, label in LABELS.items()}
    run_labels = {case: labels[case] for case in LABELS if case in options.cases}
    of_models = {model: [run for run in runs if run.model == model] for model in options.models}
    titled = {MODELS[model].split(",")[0]: of_model for model, of_model in of_models.items()}
    parts = {
        "summary": "\n\n".join(f"**{title}**\n\n{summary(rows, labels, titled)}"
                               for title, rows in SUMMARY.items()),
        "about": "\n".join(about),
        "tables": "\n\n".join(f"### {MODELS[model]}\n\n{table(run_labels, of_model, 'alone')}"
                              for model, of_model in of_models.items())}
    text = (FOLDER / "page.md").read_text(encoding="utf-8")
    return re.sub(r"^@(\w+)@$", lambda match: parts[match[1]], text, flags=re.MULTILINE)


def parse_options():
    parser = argparse.ArgumentParser(description="Compares Kolo with other libraries.")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case")
    parser.add_argument("--pairs", type=int, default=9, help="of blocks of a second, in each run")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cases", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--bind-to", choices=["core", "none"], default="core",
                        help="of mpirun: whether a rank and its threads stay on one core")
    parser.add_argument("--python", type=pathlib.Path,
                        help="with the packages of requirements.txt; otherwise that of setup.sh")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--json", type=pathlib.Path, help="write all runs to this file too")
    return parser.parse_args()


def main():
    options = parse_options()
    settings, python = environment()
    python = options.python or python
    load = os.getloadavg()[0]
    runs = run_all(options, settings, python)
    about = describe(options, settings, python, load)
    print(page(options, about, runs), end="")
    if options.json:
        options.json.write_text(json.dumps(
            {"about": about, "runs": [run._asdict() for run in runs]}, indent=1), encoding="utf-8")
    return 0 if all(run.measured for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
