"""Kolo for Python: `kolo.torch` has Horovod's interface, `kolo.distributed` is a backend of
torch.distributed. A program may use both; they share the ranks.

The errors of both are here; Horovod's HorovodInternalError is `Error`. So are functions of
kolo/insight.hpp and kolo/preemption.hpp: dump_record(), start_timeline(), mark(), enter_phase(),
metrics(), preempted(), and span(), a `with` block in place of MarkedSpan.
"""

import atexit
import json
import sys
import threading
import traceback

import torch as _torch  # noqa: F401: loads the libraries that the extension needs

from . import _kolo, _launcher
from ._kolo import (BackendError, Error, InvalidArgument, MismatchError, PeerLostError,
                    ShutdownError, TimeoutError, TrainingPhase, dump_record, enter_phase, mark,
                    preempted, request_preemption, span, start_timeline, stop_timeline)

__all__ = ["BackendError", "Error", "InvalidArgument", "MismatchError", "PREEMPTED_STATUS",
           "PeerLostError", "ShutdownError", "TimeoutError", "TrainingPhase", "dump_record",
           "enter_phase", "mark", "metrics", "preempted", "request_preemption", "span",
           "start_timeline", "stop_timeline"]

PREEMPTED_STATUS = 75  # of a program that leaves after preempted(): EX_TEMPFAIL, try again


def metrics():
    """What this rank has counted so far, by the names in docs/insight.md."""
    return json.loads(_kolo.metrics())


atexit.register(_kolo.shutdown)  # while there is an interpreter


def _first_line(text):
    return next(iter(text.strip().splitlines()), "")


def _ended_with(error):
    text = _first_line("".join(traceback.format_exception_only(type(error), error)))
    return f"ended with an uncaught exception: {text}"


def _tell_other_ranks(previous):
    """What C++ does at an exception that nothing catches."""
    def hook(kind, error, trace):
        previous(kind, error, trace)
        _kolo.fail(_ended_with(error))
    return hook


class _Exit(SystemExit):
    """What sys.exit() raises. Python has no hook for one that nothing catches, but drops it on the
    main thread once it has printed its message, when no function of the program runs any more."""

    of_spawned = ""  # the end of the function that torch's spawn() has called

    def __del__(self):
        if (sys._getframe().f_back is not None
                or threading.get_ident() != threading.main_thread().ident):
            return
        if self.code is not None and not isinstance(self.code, int):
            _kolo.fail(f"called sys.exit: {_first_line(str(self.code))}")
        elif self.code and _Exit.of_spawned:
            _kolo.fail(_Exit.of_spawned)


def _exit(status=None, /):
    error = sys.exc_info()[1]
    # It writes the exception down for the parent. Then multiprocessing catches what is raised here,
    # and calls this again.
    caller = sys._getframe(1).f_globals["__name__"]
    if error is not None and caller == "torch.multiprocessing.spawn":
        _Exit.of_spawned = _ended_with(error)
    raise _Exit(status)


def _start(*group):
    """Starts Kolo, unless it runs, where this process is a rank; returns whether it is. `group`:
    store, rank and size of one of torch.distributed; otherwise what the launcher says."""
    if not group and _launcher.is_worker():
        return False
    if not _kolo.is_initialized():
        _launcher.take_place()
        _kolo.init(*(group or _launcher.rendezvous()))
        if not hasattr(sys.excepthook, "tells_other_ranks"):
            sys.excepthook = _tell_other_ranks(sys.excepthook)
            sys.excepthook.tells_other_ranks = True
            sys.exit = _exit
    return True
