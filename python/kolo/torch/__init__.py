"""Horovod's interface for PyTorch on Kolo:

    import kolo.torch as hvd
    hvd.init()

Programs are started by mpirun, or by torchrun or whatever sets its variables; without either there
is one rank. Names, arguments and defaults are Horovod's; docs/python-horovod.md lists what behaves
differently.
"""

import re
import sys

from .. import Error as HorovodInternalError
from .. import InvalidArgument, _kolo, _start
from .._kolo import (cross_rank, cross_size, is_homogeneous, is_initialized, local_rank, local_size,
                     mpi_threads_supported, rank, size, stop_timeline)
from . import elastic
from .compression import Compression
from .functions import (allgather_object, broadcast_object, broadcast_optimizer_state,
                        broadcast_parameters)
from .operations import (
    Adasum, Average, Max, Min, Product, Sum, allgather, allgather_async, allreduce, allreduce_,
    allreduce_async, allreduce_async_, alltoall, alltoall_async, barrier, broadcast, broadcast_,
    broadcast_async, broadcast_async_, grouped_allgather, grouped_allgather_async,
    grouped_allreduce, grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_,
    grouped_reducescatter, grouped_reducescatter_async, join, poll, reducescatter,
    reducescatter_async, sparse_allreduce_async, synchronize)
from .optimizer import DistributedOptimizer
from .process_sets import (ProcessSet, add_process_set, global_process_set, remove_process_set,
                           shutdown)
from .sync_batch_norm import SyncBatchNorm


def init(comm=None, process_sets=None):
    """Starts Kolo, which joins MPI under mpirun. Blocks until all ranks have called it; later calls
    do nothing but add the sets.

    process_sets: a list of ProcessSet to add; "dynamic", as in Horovod, has no effect.
    """
    if comm:
        raise InvalidArgument("hvd.init(comm=…): Kolo runs on all ranks of mpirun. Start fewer, or "
                              "pass an hvd.ProcessSet of some of them to the operations.")
    if not _start():
        return
    for process_set in process_sets if process_sets != "dynamic" and process_sets else ():
        if process_set.process_set_id is None:
            add_process_set(process_set)


def start_timeline(file_path, mark_cycles=False):
    """Writes file_path/rank-<rank>.json until stop_timeline(), on every rank that calls it."""
    _kolo.start_timeline(file_path)


def mpi_built():
    return True


def nccl_built():
    """NCCL's version, as 21903 for 2.19.3, or 0."""
    found = re.search(r"NCCL (\d+)\.(\d+)\.(\d+)", _kolo.build_info())
    return int("{:d}{:02d}{:02d}".format(*map(int, found.groups()))) if found else 0


def cuda_built():
    return nccl_built() > 0


def gloo_built():
    return False


mpi_ops = sys.modules[__name__ + ".mpi_ops"] = sys.modules[__name__]  # a module of Horovod's
mpi_enabled = _kolo.mpi_enabled
gloo_enabled = ddl_built = ccl_built = rocm_built = gloo_built
