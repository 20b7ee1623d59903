"""Kolo for Python: `kolo.torch` has Horovod's interface, `kolo.distributed` is a backend of
torch.distributed. A program may use both; they share the ranks.

The errors of both are here. Horovod's HorovodInternalError is `Error`.
"""

import atexit
import itertools
import multiprocessing
import os
import sys
import threading
import traceback

from torch import distributed as _distributed  # also loads torch, which the extension is in

from . import _kolo
from ._kolo import (BackendError, Error, InvalidArgument, MismatchError, PeerLostError,
                    ShutdownError, TimeoutError)

__all__ = ["BackendError", "Error", "InvalidArgument", "MismatchError", "PeerLostError",
           "ShutdownError", "TimeoutError"]

_starts = itertools.count()
atexit.register(_kolo.shutdown)  # while there is an interpreter


def _is_started_without_torch():
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


def _take_place():
    if "RANK" in os.environ and not _is_child_of_a_rank():
        os.environ[_TAKEN] = f"{os.getpid()} {_place()}"


def _is_child_of_a_rank():
    """Whether a rank has started this process, which has inherited its place."""
    if "RANK" not in os.environ:
        return "_KOLO_STARTED" in os.environ
    pid, _, place = os.environ.get(_TAKEN, "").partition(" ")
    return place == _place() and pid != str(os.getpid())


def _is_worker():
    """Of multiprocessing, as of a DataLoader: imports the program again, and is no rank, unless it
    was spawned to be one by a process that is none."""
    is_child = (multiprocessing.parent_process() is not None
                # While a spawned one imports the program, it has no parent yet.
                or getattr(multiprocessing.current_process(), "_inheriting", False))
    return is_child and (_is_started_without_torch() or _is_child_of_a_rank())


def _rendezvous():
    """Store, rank and size, where torchrun or another launcher of PyTorch sets them."""
    if (_is_started_without_torch() or os.environ.get("KOLO_LAUNCHER") == "none"
            or "RANK" not in os.environ):
        return ()
    rank, size, host, port = (os.environ.get(name) for name in _PLACE)
    alone = "or, if this process is to work alone, set KOLO_LAUNCHER=none."
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
                           f"{_first_line(str(error))}") from None
    return _store, int(rank), int(size)


def _first_line(text):
    return next(iter(text.strip().splitlines()), "")


def _tell_other_ranks(previous):
    """What C++ does at an exception that nothing catches."""
    def hook(kind, error, trace):
        previous(kind, error, trace)
        text = _first_line("".join(traceback.format_exception_only(kind, error)))
        _kolo.fail(f"ended with an uncaught exception: {text}")
    return hook


class _Exit(SystemExit):
    """What sys.exit() raises. Python has no hook for one that nothing catches, but drops it on the
    main thread once it has printed its message, when no function of the program runs any more."""

    def __del__(self):
        has_message = self.code is not None and not isinstance(self.code, int)
        if (has_message and sys._getframe().f_back is None
                and threading.get_ident() == threading.main_thread().ident):
            _kolo.fail(f"called sys.exit: {_first_line(str(self.code))}")


def _exit(status=None, /):
    raise _Exit(status)


def _start(*group):
    """Starts Kolo, unless it runs, where this process is a rank; returns whether it is. `group`:
    store, rank and size of one of torch.distributed; otherwise what the launcher says."""
    if not group and _is_worker():
        return False
    if not _kolo.is_initialized():
        _take_place()
        group = group or _rendezvous()
        if group:  # the store may have what an earlier start of this process has written
            store, *ranks = group
            group = _distributed.PrefixStore(f"kolo-{next(_starts)}", store), *ranks
        _kolo.init(*group)
        if not hasattr(sys.excepthook, "tells_other_ranks"):
            sys.excepthook = _tell_other_ranks(sys.excepthook)
            sys.excepthook.tells_other_ranks = True
            sys.exit = _exit
    return True


_take_place()  # before a worker can start that inherits it
