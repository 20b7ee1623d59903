"""Stock training scripts on Kolo and on Gloo: equal losses and parameters, bit for bit.

    python training_test.py [mpirun...]

Needs the package: pip install ./python. Each case is a script that all ranks run, unchanged but for
the backend's name. Groups have two ranks, and the sum of two numbers is the same in any order.
"""

import contextlib
import copy
import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MPIRUN = sys.argv[1:] or ["mpirun", "--oversubscribe"]
STEPS = 4
CASES = {2: {}, 4: {}}  # by the number of ranks, name -> what returns the numbers to compare


def case(name, ranks=2, **options):
    def add(function):
        CASES[ranks][name] = functools.partial(function, **options)
        return function
    return add


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, state):
        return state + self.down(nn.functional.gelu(self.up(self.norm(state))))


class Model(nn.Module):
    """The branch is used in every second step."""

    def __init__(self, has_branch=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.branch = nn.Linear(64, 64) if has_branch else None
        self.calls = 0

    def forward(self, state):
        for block in self.blocks:
            state = block(state)
        self.calls += 1
        return self.branch(state) if self.branch and self.calls % 2 else state


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def numbers_of(model):
    """Tell models apart: of each parameter a sum in which every element weighs another amount."""
    numbers = []
    for parameter in model.parameters():
        flat = whole(parameter.detach()).double().flatten()
        numbers.append((flat * torch.arange(1, flat.numel() + 1)).sum().item())
    return numbers


def train(model, optimizer, data_rank=None, between=None, dtype=torch.float):
    """Losses, which differ between ranks, and the parameters at the end."""
    torch.manual_seed(100 + (dist.get_rank() if data_rank is None else data_rank))
    numbers = []
    for step in range(STEPS):
        batch = torch.randn(8, 64, dtype=dtype)
        optimizer.zero_grad()
        loss = model(batch).float().square().mean()
        loss.backward()
        if between:
            between(step)
        optimizer.step()
        numbers.append(loss.item())
    return numbers + numbers_of(model)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


# DistributedDataParallel.


@case("ddp")
@case("ddp, small buckets", bucket_cap_mb=0.1)
@case("ddp, static graph", static_graph=True)
@case("ddp, views", gradient_as_bucket_view=True)
@case("ddp, unused parameters", has_branch=True, find_unused_parameters=True)
def ddp(has_branch=False, **options):
    model = DistributedDataParallel(Model(has_branch), **options)
    return train(model, sgd(model))


def hook(kind):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    return {"allreduce": (None, default_hooks.allreduce_hook),
            "fp16": (None, default_hooks.fp16_compress_hook),
            "bf16": (None, default_hooks.bf16_compress_hook),
            "PowerSGD": (powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2),
                         powerSGD_hook.powerSGD_hook)}[kind]


def one_at_a_time(function):
    """A hook whose callbacks submit operations: of several buckets at once, Gloo hangs."""
    def waiting(state, bucket):
        future = function(state, bucket)
        future.wait()
        return future
    waiting.__annotations__ = function.__annotations__  # which DDP checks
    return waiting


@case("ddp, hook allreduce", kind="allreduce")
@case("ddp, hook fp16", kind="fp16")
@case("ddp, hook bf16", kind="bf16")
@case("ddp, hook PowerSGD", kind="PowerSGD")
def ddp_hook(kind):
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.1)
    state, function = hook(kind)
    if kind == "PowerSGD" and dist.get_backend() == "gloo":
        function = one_at_a_time(function)
    model.register_comm_hook(state, function)
    return train(model, sgd(model))


@case("ddp, accumulated")
def ddp_accumulated():
    model = DistributedDataParallel(Model())
    with model.no_sync():
        model(torch.full((8, 64), dist.get_rank() + 1.0)).square().mean().backward()
    model(torch.full((8, 64), dist.get_rank() - 1.0)).square().mean().backward()
    return train(model, sgd(model))


@case("ddp, uneven inputs")
def ddp_join():
    model = DistributedDataParallel(Model())
    optimizer = sgd(model)
    with model.join():
        for step in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            model(torch.full((8, 64), step + 1.0)).square().mean().backward()
            optimizer.step()
    return numbers_of(model)


@case("ddp, synchronized batch normalization")
def ddp_batch_norm():
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    model = DistributedDataParallel(model)  # broadcasts buffers
    return train(model, sgd(model)) + model.module[1].running_mean.tolist()


@case("zero")
@case("zero, views", parameters_as_bucket_view=True)
def zero(**options):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01, **options)
    numbers = train(model, optimizer)
    optimizer.consolidate_state_dict()
    if dist.get_rank() == 0:
        for state in optimizer.state_dict()["state"].values():
            numbers.append(state["exp_avg"].double().sum().item())
    return numbers


# FSDP2.


def shard(model, allocates=False, **options):
    from torch.distributed.fsdp import FSDPModule, fully_shard
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    for module in model.modules():
        if allocates and isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm(True)
    return model


def mesh_of(shape, names):
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def low_precision():
    from torch.distributed.fsdp import MixedPrecisionPolicy
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@case("fsdp2", reshard_after_forward=False)
@case("fsdp2, resharded", reshard_after_forward=True)
@case("fsdp2, allocates", reshard_after_forward=False, allocates=True)
@case("fsdp2, resharded, allocates", reshard_after_forward=True, allocates=True)
@case("fsdp2, mixed precision", is_mixed=True)
@case("fsdp2, mixed precision, allocates", is_mixed=True, allocates=True)
def fsdp2(is_mixed=False, **options):
    if is_mixed:
        options["mp_policy"] = low_precision()
    model = shard(Model(), mesh=mesh_of((2,), ("shard",)), **options)
    return train(model, torch.optim.AdamW(model.parameters(), 0.01))


@case("fsdp2, accumulated, clipped")
def fsdp2_clipped():
    model = shard(Model(), mesh=mesh_of((2,), ("shard",)))
    model.set_requires_gradient_sync(False)
    model(torch.full((8, 64), dist.get_rank() + 1.0)).square().mean().backward()
    model.set_requires_gradient_sync(True)
    norms = []
    numbers = train(model, sgd(model), between=lambda _: norms.append(
        whole(nn.utils.clip_grad_norm_(model.parameters(), 0.5)).item()))
    return numbers + norms


@case("fsdp2, replicated groups", ranks=4)
@case("fsdp2, replicated groups, allocates", ranks=4, allocates=True)
def fsdp2_hybrid(**options):
    model = shard(Model(), mesh=mesh_of((2, 2), ("replicate", "shard")), **options)
    return train(model, sgd(model))


# DTensor.


def parallelize(model, mesh):
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


@case("tensor parallel")
def tensor_parallel():
    model = parallelize(Model(), mesh_of((2,), ("tensor",)))
    return train(model, sgd(model), data_rank=0)


@case("tensor parallel, fsdp2", ranks=4)
def tensor_parallel_sharded():
    mesh = mesh_of((2, 2), ("shard", "tensor"))
    model = shard(parallelize(Model(), mesh["tensor"]), mesh=mesh["shard"])
    return train(model, sgd(model), data_rank=mesh["shard"].get_local_rank())


@case("redistribute")
def redistribute():
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    mesh = mesh_of((2,), ("all",))
    tensor = distribute_tensor(torch.randn(5, 6), mesh, [Shard(0)])
    numbers = []
    for placement in (Shard(1), Replicate(), Shard(0), Replicate()):
        tensor = tensor.redistribute(mesh, [placement])
        numbers += tensor.to_local().flatten().tolist()
    partial = (tensor @ distribute_tensor(torch.randn(6, 4), mesh, [Replicate()])).sum()
    halves = distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)])
    product = halves @ distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])
    assert product.placements == (Partial(),), product.placements
    scattered = product.redistribute(mesh, [Shard(0)])
    return [*numbers, whole(partial).item(), *whole(product).flatten().tolist(),
            *scattered.to_local().flatten().tolist()]


# Checkpoints, pipelines.


@contextlib.contextmanager
def common_folder():
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names)
    yield names[0]
    dist.barrier()
    if dist.get_rank() == 0:
        subprocess.run(["rm", "-r", names[0]], check=True)


@case("checkpoint")
@case("checkpoint, asynchronous", is_async=True)
def checkpoint(is_async=False):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    model = shard(Model(), mesh=mesh_of((2,), ("shard",)))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    numbers = train(model, optimizer)
    with common_folder() as folder:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        if is_async:
            dcp.async_save(state, checkpoint_id=folder).result()
            dist.barrier()
        else:
            dcp.save(state, checkpoint_id=folder)
        numbers += train(model, optimizer)
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        again = train(model, optimizer)
    assert again == numbers[-len(again):], "training goes on from elsewhere"
    return numbers


@case("pipeline")
def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    rank = dist.get_rank()
    stage = nn.Sequential(*copy.deepcopy(list(Model().blocks))[2 * rank:2 * rank + 2])
    schedule = ScheduleGPipe(PipelineStage(stage, rank, 2, torch.device("cpu")), 4,
                             loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = sgd(stage)
    numbers = []
    for _ in range(STEPS):
        batch, target = torch.randn(8, 64), torch.randn(8, 64)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch)
        else:
            losses = []
            schedule.step(target=target, losses=losses)
            numbers += [loss.item() for loss in losses]
        optimizer.step()
    return numbers + numbers_of(stage)


# What each rank runs, and what compares.


def run_cases(backend, cases, file):
    import kolo.distributed  # noqa: F401: names the ranks
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    numbers = {}
    for name, function in cases.items():
        torch.manual_seed(1)
        numbers[name] = function()
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, numbers)
    if dist.get_rank() == 0:
        with open(file, "w", encoding="utf-8") as output:
            json.dump(everybody, output)
    dist.destroy_process_group()


class Training(unittest.TestCase):
    maxDiff = 2000

    def train_all(self, backend, ranks):
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", GLOO_SOCKET_IFNAME="lo")
        with tempfile.NamedTemporaryFile() as file:
            run = subprocess.run(
                [*MPIRUN, "-np", str(ranks), sys.executable, __file__, "--rank", backend,
                 str(ranks), file.name], text=True, env=environment, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=300)
            self.assertEqual(run.returncode, 0, f"{backend}, {ranks} ranks:\n{run.stdout}")
            return json.load(file)

    def compare(self, ranks):
        gloo, kolo = (self.train_all(backend, ranks) for backend in ("gloo", "kolo"))
        for name in CASES[ranks]:
            with self.subTest(name):
                self.assertGreater(len(gloo[0][name]), 5)
                self.assertEqual([each[name] for each in kolo], [each[name] for each in gloo])

    def test_two_ranks(self):
        self.compare(2)

    def test_two_by_two_ranks(self):
        self.compare(4)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _, _, name, count, path = sys.argv
        run_cases(name, CASES[int(count)], path)
    else:
        unittest.main(argv=sys.argv[:1])
