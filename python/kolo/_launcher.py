"""Which processes are ranks, and how those that MPI does not connect find each other."""

import multiprocessing
import os

from torch import distributed as _distributed

from . import _kolo
from ._kolo import InvalidArgument, TimeoutError


def is_started_without_torch():
    """By mpirun and the like, also a single rank, or as KOLO_RENDEZVOUS says."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return False
    if "KOLO_RENDEZVOUS" in os.environ or os.environ.get("KOLO_LAUNCHER") == "mpi":
        return True
    sizes = [os.environ[name] for name in (
        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS") if name in os.environ]
    # A shell that srun has opened for one task may start PyTorch's launchers.
    is_for_torch = sizes == ["1"] and os.environ.get("WORLD_SIZE", "1") != "1"
    return not is_for_torch and any(name in os.environ for name in (
        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))


_PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # as launchers of PyTorch set it
_TAKEN = "_KOLO_PLACE"  # "<pid> <place>" of the process that has it, not of its children


def _place():
    return " ".join(os.environ[name] for name in _PLACE if name in os.environ)


def take_place():
    if "RANK" in os.environ and not _is_child_of_a_rank():
        os.environ[_TAKEN] = f"{os.getpid()} {_place()}"


def _is_child_of_a_rank():
    """Whether a rank has started this process, which has inherited its place."""
    if "RANK" not in os.environ:
        return "_KOLO_STARTED" in os.environ
    pid, _, place = os.environ.get(_TAKEN, "").partition(" ")
    return place == _place() and pid != str(os.getpid())


def is_worker():
    """Of multiprocessing, as of a DataLoader: imports the program again, and is no rank, unless it
    was spawned to be one by a process that is none."""
    is_child = (multiprocessing.parent_process() is not None
                # While a spawned one imports the program, it has no parent yet.
                or getattr(multiprocessing.current_process(), "_inheriting", False))
    return is_child and (is_started_without_torch() or _is_child_of_a_rank())


def rendezvous():
    """Store, rank and size, where torchrun or another launcher of PyTorch sets them."""
    if (is_started_without_torch() or os.environ.get("KOLO_LAUNCHER") == "none"
            or "RANK" not in os.environ):
        return ()
    rank, size, host, port = (os.environ.get(name) for name in _PLACE)
    alone = "or, if this process is to work alone, set KOLO_LAUNCHER=none."
    if None in (host, port) and size in (None, "1"):
        return ()
    if None in (size, host, port):
        raise InvalidArgument(f"RANK is {rank}, but not all of WORLD_SIZE, MASTER_ADDR and "
                              f"MASTER_PORT are set. Set them, as torchrun does, {alone}")
    if _is_child_of_a_rank():
        raise InvalidArgument(f"rank {rank} has started this process, which has inherited RANK. "
                              f"Start it without RANK and WORLD_SIZE, {alone}")
    has_server = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    global _store  # the others may read it as long as this process lives
    # torch's own rendezvous would wait for all ranks, and name none.
    try:
        _store = _distributed.TCPStore(
            host, int(port), is_master=rank == "0" and not has_server, wait_for_workers=False,
            multi_tenant=True, timeout=_kolo.start_timeout())
    except _distributed.DistNetworkError as error:
        raise TimeoutError(f"rank {rank} cannot reach the store of rank 0 at {host}:{port}: "
                           f"{str(error).partition(chr(10))[0]}") from None
    return _store, int(rank), int(size)


take_place()  # before a worker can start that inherits it
