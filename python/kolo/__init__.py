"""Kolo for Python: `kolo.torch` has Horovod's interface, `kolo.distributed` is a backend of
torch.distributed. A program may use both; they share the ranks.

The errors of both are here. Horovod's HorovodInternalError is `Error`.
"""

import atexit
import multiprocessing

import torch as _torch  # noqa: F401: the extension is loaded into it

from . import _kolo
from ._kolo import (BackendError, Error, InvalidArgument, MismatchError, PeerLostError,
                    ShutdownError, TimeoutError)

__all__ = ["BackendError", "Error", "InvalidArgument", "MismatchError", "PeerLostError",
           "ShutdownError", "TimeoutError"]

atexit.register(_kolo.shutdown)  # while there is an interpreter


def _start():
    """Starts Kolo, once, where this process is a rank, and returns whether it is. A worker of
    multiprocessing, as of a DataLoader, runs the program's imports again and is none."""
    if multiprocessing.parent_process() is not None:
        return False
    _kolo.init()
    return True
