"""A backend of torch.distributed on Kolo, for programs that mpirun starts:

    import kolo.distributed
    torch.distributed.init_process_group("kolo")

The import starts Kolo, which joins MPI. Under mpirun it also sets what torchrun sets, each where it
is absent, and DDP_DISABLE_COMM_MEM to 0, with which DDP has the backend allocate its buckets.
"""

import os
import socket

import torch.distributed

from . import _kolo, _start

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")  # also a single rank
_server = None  # of the store at MASTER_PORT, as long as the process of rank 0


def _describe_ranks():
    """Sets what init_process_group() reads, as torchrun does."""
    global _server
    first = ""
    if _kolo.rank() == 0:
        host = "localhost" if _kolo.cross_size() == 1 else socket.getfqdn()
        # init_process_group() finds it by its port, which another program cannot take meanwhile.
        _server = torch.distributed.TCPStore(
            host, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        first = f"{host} {_server.port}"
    everywhere = _kolo.OperationOptions("", 0)
    host, port = _kolo.broadcast_object(first, 0, everywhere).decode().split()
    for name, value in (("RANK", _kolo.rank()), ("WORLD_SIZE", _kolo.size()),
                        ("LOCAL_RANK", _kolo.local_rank()),
                        ("LOCAL_WORLD_SIZE", _kolo.local_size()),
                        ("GROUP_RANK", _kolo.cross_rank()),
                        ("MASTER_ADDR", host), ("MASTER_PORT", port),
                        ("DDP_DISABLE_COMM_MEM", 0)):
        if os.environ.setdefault(name, str(value)) != str(value) and name in ("RANK", "WORLD_SIZE"):
            raise ValueError(f"{name} is {os.environ[name]}, but this process is rank "
                             f"{_kolo.rank()} of {_kolo.size()} ranks of MPI. Unset {name}.")


def _make_backend(options, _):
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if ranks[-1] >= _kolo.size():
        raise ValueError(
            f"the process group has rank {ranks[-1]}, but Kolo has {_kolo.size()} ranks, those of "
            "mpirun. Start the program with mpirun, not with torchrun or as single processes.")
    if ranks[options.group_rank] != _kolo.rank():
        raise ValueError(
            f"rank {ranks[options.group_rank]} of torch.distributed is rank {_kolo.rank()} of MPI. "
            "They must be the same: leave RANK unset, and pass no rank to init_process_group().")
    return _kolo.make_c10d_backend(options.store, ranks, options.timeout)


torch.distributed.Backend.register_backend(
    "kolo", _make_backend, extended_api=True,
    devices=["cpu", "cuda"] if "NCCL" in _kolo.build_info() else ["cpu"])
if _start() and (_kolo.size() > 1 or any(name in os.environ for name in _LAUNCHED)):
    _describe_ranks()
