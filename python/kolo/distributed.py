"""A backend of torch.distributed on Kolo, for programs that mpirun or torchrun starts:

    import kolo.distributed
    torch.distributed.init_process_group()

Kolo is then the default, also of init_device_mesh(), for the devices that it was built for. Where a
program names a backend, Kolo's name is "kolo".

Under mpirun the import starts Kolo, which joins MPI, and sets what torchrun sets, each where it is
absent. Otherwise init_process_group() starts it, without MPI, on ranks that find each other in the
group's store, whoever started them. The import also sets DDP_DISABLE_COMM_MEM to 0,
with which DDP has the backend allocate its buckets.
"""

import os
import socket

import torch.distributed
from torch.distributed import distributed_c10d
from torch.optim.optimizer import (register_optimizer_step_post_hook,
                                   register_optimizer_step_pre_hook)

from . import _kolo, _launcher, _start

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
                        ("MASTER_ADDR", host), ("MASTER_PORT", port)):
        if os.environ.setdefault(name, str(value)) != str(value) and name in ("RANK", "WORLD_SIZE"):
            raise ValueError(f"{name} is {os.environ[name]}, but this process is rank "
                             f"{_kolo.rank()} of {_kolo.size()} ranks of Kolo. Unset {name}.")


def _make_backend(options, _):
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if not _kolo.is_initialized():
        if torch.distributed.is_initialized() and len(ranks) < torch.distributed.get_world_size():
            raise ValueError("this group does not have all ranks, and Kolo starts on all at once. "
                             "Make a group of all ranks first, or call kolo.torch.init().")
        _start(options.store, options.group_rank, options.group_size)
    if ranks[-1] >= _kolo.size():
        raise ValueError(
            f"the process group has rank {ranks[-1]}, but Kolo was started before on "
            f"{_kolo.size()} ranks, and keeps them. Start it on all ranks first: by mpirun, by "
            "kolo.torch.init(), or by the first init_process_group().")
    if ranks[options.group_rank] != _kolo.rank():
        raise ValueError(
            f"rank {ranks[options.group_rank]} of torch.distributed is rank {_kolo.rank()} of "
            "Kolo. They must be the same: under mpirun, leave RANK unset, and pass no rank to "
            "init_process_group().")
    return _kolo.make_c10d_backend(options.store, ranks, options.timeout)


def _make_group(options, rest):
    """For groups without a named backend, where torch before 2.14 takes Gloo or NCCL for the main
    one, though it is not there: a group whose main backend is Kolo's."""
    group = torch.distributed.ProcessGroup(options.store, options.group_rank, options.group_size)
    kind, backend = group.BackendType.CUSTOM, _make_backend(options, rest)
    group._set_default_backend(kind)
    for device in _devices:
        group._register_backend(torch.device(device), kind, backend)
    return group


def _register(name, make):
    torch.distributed.Backend.register_backend(name, make, extended_api=True, devices=_devices)
    torch.distributed.Backend.default_device_backend_map.update(dict.fromkeys(_devices, name))


def _begin_step(*_):
    _kolo.enter_phase(_kolo.TrainingPhase.STEP)


def _end_step(*_):
    _kolo.enter_phase(_kolo.TrainingPhase.FORWARD)


_devices = ["cpu", "cuda"] if "NCCL" in _kolo.build_info() else ["cpu"]
_register("kolo", _make_backend)
if not hasattr(distributed_c10d, "_get_default_backend_type_for_backend_config"):
    _register("kolo_default", _make_group)
os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
# Gradients that a backward() reduces tell where it begins and ends, optimizers where steps do.
register_optimizer_step_pre_hook(_begin_step)
register_optimizer_step_post_hook(_end_step)
if _launcher.is_started_without_torch() and _start():
    _describe_ranks()
