"""Runs torch's own tests of torch.distributed under mpirun, on Kolo or on Gloo:

    python torch_suite.py [--backend gloo] [--ranks 3] [--only test_a,test_b] [--limit SECONDS]

They are in the wheel: torch.testing._internal.distributed.distributed_test. They skip what they do
not know, by a backend's name, so the backend is called "gloo" throughout; for Kolo, what makes
ProcessGroupGloo makes Kolo's backend.
"""

import argparse
import contextlib
import datetime
import os
import sys
import tempfile
import unittest

import suite as runner

# What each rank runs.


def put_kolo_in_place_of_gloo():
    import torch
    from kolo import _kolo
    from torch.distributed import distributed_c10d as c10d

    groups = []  # the ranks of the groups that are being made
    make_group, gloo = c10d._new_process_group_helper, c10d.ProcessGroupGloo

    def remember_ranks(size, rank, ranks, *arguments, **options):
        groups.append(list(ranks) or list(range(size)))
        with contextlib.ExitStack() as stack:
            stack.callback(groups.pop)
            return make_group(size, rank, ranks, *arguments, **options)

    class Either(type):
        def __instancecheck__(cls, value):
            return isinstance(value, gloo) or type(value) is torch._C._distributed_c10d.Backend

    class ProcessGroupGloo(metaclass=Either):
        _Options = gloo._Options

        def __new__(cls, store, rank, size, timeout):
            return _kolo.make_c10d_backend(store, groups[-1], timeout)

    # Torch sets options of the backend, whose class has none in Python.
    torch._C._distributed_c10d.Backend.options = property(lambda _: argparse.Namespace())
    c10d._new_process_group_helper = remember_ranks
    c10d.ProcessGroupGloo = ProcessGroupGloo


def cases_of(suite):
    class Case(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self):  # would start processes
            pass

        def tearDown(self):
            pass

    return Case


def meet():
    """All ranks of mpirun, whatever torch's groups are."""
    from kolo import _kolo

    _kolo.barrier_async(_kolo.OperationOptions("", 0)).result()


def run_case(case, suite, store):
    """How it ended, and why."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed, common_utils

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    name = case._testMethodName
    common_utils.set_rng_seed()
    try:
        timeout = suite.CUSTOM_PG_TIMEOUT.get(name, suite.default_pg_timeout)
        case.rank, case.file_name = rank, store
        dist.init_process_group("gloo", init_method=case.init_method, rank=rank, world_size=size,
                                timeout=datetime.timedelta(seconds=timeout))
        if rank == 0:
            suite.Barrier.init()
        meet()
        suite.Barrier.barrier_id = 0
        dist.barrier()
        getattr(case, name)()
    except unittest.SkipTest as skipped:
        return "skipped", str(skipped)
    except SystemExit as left:
        codes = {skip.exit_code for skip in common_distributed.TEST_SKIPS.values()}
        return ("skipped" if left.code in codes else "failed"), f"exit status {left.code}"
    except BaseException as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def run_cases(options):
    folder = os.environ["TEMP_DIR"]
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    os.environ["BACKEND"] = "gloo"
    import kolo.distributed  # noqa: F401: sets RANK and others
    import torch
    if options.backend == "kolo":
        put_kolo_in_place_of_gloo()
    from torch.testing._internal.distributed import distributed_test as suite
    torch.set_num_threads(1)
    if options.backend == "kolo":  # events have its name
        events_named = suite.get_profiling_event

        def events_of_kolo(name, *rest, **more):
            events = events_named(name.replace("gloo:", "kolo:"), *rest, **more)
            for event in events:
                event.name = event.name.replace("kolo:", "gloo:")
            return events

        suite.get_profiling_event = events_of_kolo

    def run(name):
        ended = run_case(cases_of(suite)(name), suite, f"{folder}/store-{name}")
        if ended[0] != "failed":
            meet()  # as torch's own runner: a case may still wait for others in vain
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        return ended

    runner.run_rank(os.environ["RANK"], options.cases, run, options.limit)


# What starts them.


def all_cases():
    os.environ.update(BACKEND="gloo", WORLD_SIZE="1")
    from torch.testing._internal.distributed import distributed_test as suite
    return [name for name in dir(cases_of(suite)) if name.startswith("test_")]


def main():
    parser = runner.parser(__doc__, limit=60)
    parser.add_argument("--backend", choices=("kolo", "gloo"), default="kolo")
    options = parser.parse_args()
    if options.cases is not None:
        run_cases(options)
    names = options.only.split(",") if options.only else all_cases()
    for name in ("RANK", "WORLD_SIZE", "BACKEND"):
        os.environ.pop(name, None)
    command = [__file__, "--backend", options.backend, "--limit", str(options.limit), "--cases"]
    with tempfile.TemporaryDirectory() as folder:
        return runner.run_all(options.backend, names, options.ranks, command, {"TEMP_DIR": folder})


if __name__ == "__main__":
    sys.exit(main())
