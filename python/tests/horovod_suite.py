"""Runs Horovod's own tests of horovod.torch under mpirun on kolo.torch:

    python horovod_suite.py FILE [--ranks 3] [--only test_a,test_b] [--limit SECONDS]

FILE is test/parallel/test_torch.py of Horovod 0.28.1, which is in its repository, not in its
packages. The modules that it imports are replaced: horovod.torch with kolo.torch, pytest and
helpers of Horovod's with what the file needs of them.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import types
import unittest

import suite

NOT_WANTED = {
    # An error from a collective while a rank has joined, where Kolo has a result.
    "test_horovod_join_allgather", "test_horovod_join_broadcast",
}


@contextlib.contextmanager
def temppath():
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "file")


def skip_or_fail_gpu_test(test, message):
    test.skipTest(message)


def rank_and_size():
    return tuple(int(os.environ.get(f"OMPI_COMM_WORLD_{name}", default))
                 for name, default in (("RANK", 0), ("SIZE", 1)))


def load_cases(path):
    import kolo.torch
    import torch

    sys.modules["horovod"] = types.SimpleNamespace(torch=kolo.torch)
    sys.modules["horovod.torch"] = kolo.torch
    sys.modules["pytest"] = types.SimpleNamespace(mark=types.SimpleNamespace(
        skip=lambda reason: unittest.skip(reason)))
    sys.modules["common"] = types.SimpleNamespace(
        mpi_env_rank_and_size=rank_and_size, temppath=temppath,
        skip_or_fail_gpu_test=skip_or_fail_gpu_test)
    if hasattr(torch.optim, "Muon"):  # for matrices alone, and the tests try all of torch.optim
        torch.optim.Muon.__module__ = "newer"
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("test_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TorchTests


def run_case(cases, name):
    import kolo.torch as hvd

    result = unittest.TestResult()
    cases(name).run(result)
    for problems in (result.errors, result.failures):
        for _, text in problems:
            return "failed", text.strip().splitlines()[-1] + " | " + text[-2000:]
    if result.skipped:
        return "skipped", result.skipped[0][1]
    hvd.init()
    hvd.barrier()  # the next case has names of this one
    return "passed", ""


def main():
    parser = suite.parser(__doc__, limit=120)
    parser.add_argument("file")
    options = parser.parse_args()
    if options.cases is not None:
        cases = load_cases(options.file)
        suite.run_rank(rank_and_size()[0], options.cases, lambda name: run_case(cases, name),
                       options.limit)
    names = (options.only.split(",") if options.only
             else sorted({*unittest.TestLoader().getTestCaseNames(load_cases(options.file))}
                         - NOT_WANTED))
    return suite.run_all("horovod", names, options.ranks,
                         [__file__, options.file, "--limit", str(options.limit), "--cases"], {})


if __name__ == "__main__":
    sys.exit(main())
