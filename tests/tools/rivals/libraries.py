"""How each library wraps a model and its optimizer.

Buffers (of BatchNorm) stay local to each rank, as in Kolo: DDP and ShardedDDP are told not to
broadcast them in every step. Everything not set here is the library's default.
"""

import functools
import importlib
import os
import re
import sys

import torch
import torch.distributed as dist


class Gloo:
    """Ranks of torch.distributed, on one host, as mpirun started them."""

    def __init__(self):
        os.environ.update(RANK=os.environ["OMPI_COMM_WORLD_RANK"],
                          WORLD_SIZE=os.environ["OMPI_COMM_WORLD_SIZE"],
                          GLOO_SOCKET_IFNAME="lo")
        self.start("gloo")

    def start(self, backend):
        dist.init_process_group(backend)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, tensor):
        """The tensors of all ranks, along a new first dimension."""
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor.contiguous())
        return torch.stack(tensors)

    def finish(self):
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # FairScale may abort the interpreter's own exit


class Kolo(Gloo):
    """The same, over Kolo."""

    def __init__(self):
        import kolo.distributed  # noqa: F401
        self.start("kolo")

    def finish(self):
        dist.destroy_process_group()


class Horovod:
    """Ranks of Horovod over MPI."""
    module = "horovod.torch"

    def __init__(self):
        self.hvd = importlib.import_module(self.module)
        self.hvd.init()
        self.rank, self.size = self.hvd.rank(), self.hvd.size()

    def gather(self, tensor):
        return self.hvd.allgather(tensor[None], name="tensors of ranks")

    def finish(self):
        self.hvd.shutdown()


class HorovodOfKolo(Horovod):
    """Kolo by the same interface."""
    module = "kolo.torch"


class Training:
    """A model as wrapped by a library for training."""

    def __init__(self, model, optimizer, **zero_options):
        self.model = model
        self.optimizer = optimizer
        self._zero_options = zero_options

    def step(self, batch):
        self.optimizer.zero_grad(**self._zero_options)
        self.model(*batch).backward()
        self.optimizer.step()


def optimizer_of(task, model):
    return task.optimizer(model.parameters(), **task.options)


def alone(task, _ranks):
    model = task.model()
    return Training(model, optimizer_of(task, model))


def ddp(task, _ranks, **options):
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(task.model(), broadcast_buffers=False, **options)
    return Training(model, optimizer_of(task, model))


def ddp_views(task, ranks):
    return ddp(task, ranks, gradient_as_bucket_view=True)


def ddp_static(task, ranks):
    return ddp(task, ranks, static_graph=True)


def ddp_static_views(task, ranks, bucket_mb):
    return ddp(task, ranks, static_graph=True, gradient_as_bucket_view=True,
               bucket_cap_mb=bucket_mb)


def ddp_zero(task, _ranks):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(task.model(), broadcast_buffers=False,
                                    gradient_as_bucket_view=True)
    return Training(model, ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=task.optimizer, parameters_as_bucket_view=True,
        **task.options))


class ShardsOptimizer:
    """Steps this rank's shards of an FSDP2 model as plain tensors, as PyTorch's fused SGD does not
    support DTensors."""

    def __init__(self, task, model):
        self._sharded = list(model.parameters())
        self._shards = [torch.nn.Parameter(parameter.to_local()) for parameter in self._sharded]
        self._optimizer = task.optimizer(self._shards, **task.options)

    def zero_grad(self):
        for parameter in self._sharded:
            parameter.grad = None

    def step(self):
        for shard, parameter in zip(self._shards, self._sharded):
            shard.grad = parameter.grad.to_local()
        self._optimizer.step()


def fsdp2(task, ranks, reshard_after_forward, allocates=False):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    options = {"mesh": init_device_mesh("cpu", (ranks.size,)),
               "reshard_after_forward": reshard_after_forward}
    model = task.model()
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    for module in (*model.blocks, model) if allocates else ():
        module.set_allocate_memory_from_process_group_for_comm(True)
    return Training(model, ShardsOptimizer(task, model))


def fsdp2_kept(task, ranks):
    return fsdp2(task, ranks, reshard_after_forward=False)


def fsdp2_resharded(task, ranks):
    return fsdp2(task, ranks, reshard_after_forward=True)


def fsdp2_kept_allocating(task, ranks):
    return fsdp2(task, ranks, reshard_after_forward=False, allocates=True)


def fsdp2_resharded_allocating(task, ranks):
    return fsdp2(task, ranks, reshard_after_forward=True, allocates=True)


def fairscale(task, _ranks):
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim import OSS
    model = task.model()
    optimizer = OSS(model.parameters(), optim=task.optimizer, **task.options)
    # Gradients are views of its buckets: if set to None, they are silently not reduced.
    return Training(ShardedDataParallel(model, optimizer, broadcast_buffers=False), optimizer,
                    set_to_none=False)


def horovod(task, ranks):
    hvd = ranks.hvd
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return Training(model, hvd.DistributedOptimizer(
        optimizer_of(task, model), named_parameters=model.named_parameters()))


# Name -> the class of its ranks, and the function that makes the training.
LIBRARIES = {"alone": (Gloo, alone), "ddp": (Gloo, ddp), "ddp-static": (Gloo, ddp_static),
             "ddp-views": (Gloo, ddp_views), "ddp-zero": (Gloo, ddp_zero),
             "fsdp2": (Gloo, fsdp2_kept), "fsdp2-reshard": (Gloo, fsdp2_resharded),
             "ddp-kolo": (Kolo, ddp), "ddp-kolo-static": (Kolo, ddp_static),
             "ddp-kolo-views": (Kolo, ddp_views), "ddp-kolo-zero": (Kolo, ddp_zero),
             "fsdp2-kolo": (Kolo, fsdp2_kept), "fsdp2-kolo-reshard": (Kolo, fsdp2_resharded),
             "fsdp2-kolo-alloc": (Kolo, fsdp2_kept_allocating),
             "fsdp2-kolo-reshard-alloc": (Kolo, fsdp2_resharded_allocating),
             "fairscale": (Gloo, fairscale), "horovod": (Horovod, horovod),
             "horovod-kolo": (HorovodOfKolo, horovod)}


def library(name):
    """An entry of LIBRARIES, or of DDP with a static graph, views and buckets of so many MB:
    "ddp-25mb", "ddp-kolo-25mb"."""
    sized = re.fullmatch(r"(ddp|ddp-kolo)-(\d+)mb", name)
    if not sized:
        return LIBRARIES[name]
    ranks, _ = LIBRARIES[sized[1]]
    return ranks, functools.partial(ddp_static_views, bucket_mb=int(sized[2]))
