"""torch.distributed on Kolo, under mpirun: python distributed_test.py [mpirun...]

Needs the package: pip install ./python. Each case is a function that all ranks run.
"""

import unittest

from torch._C._distributed_c10d import Backend

from ranks import Ranks, main

SINCE_2_9 = unittest.skipUnless(hasattr(Backend, "allocate_tensor"),
                                "torch can do this since 2.9")


class DistributedTest(Ranks):
    head = """
import os
import torch
import torch.distributed as dist
import kolo.distributed
dist.init_process_group("kolo")
rank, size = dist.get_rank(), dist.get_world_size()
"""

    def test_environment_is_that_of_mpi(self):
        for count in (1, 3):
            output = self.run_ranks(count, """
assert os.environ["LOCAL_RANK"] == str(rank) and os.environ["LOCAL_WORLD_SIZE"] == str(size)
assert os.environ["GROUP_RANK"] == "0"
print(f"rank {rank} of {size}")
""")
            for rank in range(count):
                self.assertIn(f"rank {rank} of {count}", output)  # lines of ranks may mix

    def test_without_mpirun_there_is_one_rank(self):
        self.run_ranks(0, """
before = dict(os.environ)
import kolo.distributed
assert dict(os.environ) == before | {"DDP_DISABLE_COMM_MEM": "0"}
dist.init_process_group("kolo", rank=0, world_size=1, store=dist.HashStore())
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [1, 1, 1]
dist.destroy_process_group()
""", head="import os, torch, torch.distributed as dist\n")

    def test_collectives(self):
        for count in (1, 2, 3):
            self.run_ranks(count, """
tensor = torch.full((5,), rank + 1.0)
dist.all_reduce(tensor)
assert tensor[4] == size * (size + 1) / 2
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank, "text": "x" * (1 + 1000 * rank)})
assert [each["rank"] for each in objects] == list(range(size))
output = torch.empty(2 * size)
dist.all_gather_into_tensor(output, torch.tensor([rank, -rank], dtype=torch.float))
assert output.view(-1, 2)[:, 0].tolist() == list(range(size))
part = torch.empty(1)
dist.reduce_scatter_tensor(part, torch.arange(size, dtype=torch.float) + rank)
assert part.item() == size * rank + size * (size - 1) / 2
requests = dist.batch_isend_irecv([
    dist.P2POp(dist.isend, torch.tensor([rank]), (rank + 1) % size),
    dist.P2POp(dist.irecv, received := torch.tensor([-1]), (rank - 1) % size)])
for request in requests:
    request.wait()
assert received.item() == (rank - 1) % size
halves = [dist.new_group(range(first, size, 2)) for first in range(min(size, 2))]
tensor = torch.tensor([rank])
dist.all_reduce(tensor, group=halves[rank % 2])
assert tensor.item() == sum(range(rank % 2, size, 2))
sparse = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, rank], (size + 1,))
dist.all_reduce(sparse)
assert sparse.is_coalesced() and sparse.to_dense().tolist() == [size, *range(size)]
bits = torch.tensor([1 << rank])
dist.all_reduce(bits, dist.ReduceOp.BOR)
assert bits.item() == 2 ** size - 1
dist.barrier()
dist.destroy_process_group()
""")

    @SINCE_2_9
    def test_split_group(self):
        self.run_ranks(3, """
part = dist.group.WORLD.split_group([0, 2])
assert (part is None) == (rank == 1)
if part is not None:
    tensor = torch.tensor([rank + 1])
    part.allreduce([tensor]).wait()
    assert tensor.item() == 4 and (part.rank(), part.size()) == (rank // 2, 2)
    part.shutdown()
dist.destroy_process_group()
""")

    def test_ddp_trains_as_one_process_does(self):
        losses = {}
        for count in (1, 2):
            losses[count] = self.run_ranks(count, """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
model = model.double()
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(10):
    batch = torch.randn(12, 64, dtype=torch.double)
    optimizer.zero_grad()
    model(batch[rank * 12 // size:(rank + 1) * 12 // size]).square().mean().backward()
    optimizer.step()
if rank == 0:
    print(f"{model(batch).square().mean().item():.12f}")
dist.destroy_process_group()
""").strip()
        self.assertEqual(losses[1], losses[2])

    def test_callbacks_of_hooks_may_reduce(self):
        """Of several buckets of one size, so that those of two could be mixed up unnoticed."""
        self.run_ranks(3, """
import time
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
def reduce_twice(_, bucket):
    def reduce_again(future):
        time.sleep(0.1 * rank)  # longer than until the next bucket
        total = future.value()[0]
        dist.all_reduce(total)
        return total / size**2
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(reduce_again)
def train(steps, *hook):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(6)]
    for layer in layers[1:]:
        layer.register_full_backward_hook(lambda *_: time.sleep(0.03))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers),
                                                      bucket_cap_mb=0.016)
    if hook:
        model.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 64), rank + step + 1.0)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
torch.testing.assert_close(train(3, None, reduce_twice), train(3))
parameters = train(6, PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
same = parameters.clone()
dist.broadcast(same, 0)
assert torch.equal(parameters, same)
dist.destroy_process_group()
""")

    def test_futures_of_receives_do_not_wait(self):
        self.run_ranks(2, """
received = torch.zeros(3)
for start in (lambda: dist.irecv(received, 1 - rank),
              lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, 1 - rank)])[0]):
    future = start().get_future()  # before the other rank sends
    doubled = future.then(lambda it: 2 * it.value()[0])
    dist.send(torch.full((3,), rank + 1.0), 1 - rank)
    assert doubled.wait().tolist() == [2 * (2 - rank)] * 3
dist.destroy_process_group()
""")

    @SINCE_2_9
    def test_ddp_and_fsdp2_allocate_in_shared_memory(self):
        self.run_ranks(2, """
import torch.distributed.fsdp as fsdp
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
shared = backend.allocate_tensor(1000, dtype=torch.float, device=torch.device("cpu")).data_ptr()
def is_shared(tensor):  # in the memory that was free again
    return 0 <= tensor.data_ptr() - shared < 1 << 20
seen = []
def hook(_, bucket):
    seen.append(is_shared(bucket.buffer()))
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda it: it.value()[0])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
model.register_comm_hook(None, hook)
model(torch.ones(2, 8)).sum().backward()
assert seen == [True], seen
name = "all_gather_single"  # of torch 2.15; before:
if not hasattr(dist, name):
    name = "all_gather_into_tensor"
gather = getattr(dist, name)
def gather_and_look(output_tensor, *rest, **more):
    seen.append(is_shared(output_tensor))
    return gather(output_tensor, *rest, **more)
setattr(dist, name, gather_and_look)
for allocates in (True, False):
    model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=dist.init_device_mesh("cpu", (2,)))
    model.set_allocate_memory_from_process_group_for_comm(allocates)
    model(torch.ones(2, 8))
assert seen == [True, True, False], seen
dist.destroy_process_group()
""")

    def test_another_order_is_an_error_that_names_both(self):
        output = self.run_ranks(2, """
try:
    dist.barrier() if rank else dist.all_reduce(torch.ones(4))
except RuntimeError as error:
    print(f"rank {rank}: {error}", flush=True)  # before the other's end ends this one
""", status=1)  # the group is lost, and MPI cannot be left in order
        for rank in range(2):
            text = output[output.index(f"rank {rank}: "):]
            self.assertIn("rank 1 submitted barrier", text)
            self.assertIn("rank 0 submitted allreduce (Sum) of 4 elements of float32", text)

    def test_kolo_is_the_default(self):
        """Also of subgroups; and without a warning of torch's at the end."""
        for start in ("dist.init_process_group()", "mesh = dist.init_device_mesh('cpu', (2,))"):
            output = self.run_ranks(2, f"""
{start}
for group in dist.group.WORLD, dist.new_group():
    assert group._get_backend(torch.device("cpu")).name() == "kolo"
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model(torch.full((1, 1), dist.get_rank() + 1.0)).sum().backward()
assert model.module.weight.grad.item() == 1.5
objects = [None] * 2
dist.all_gather_object(objects, dist.get_rank())
assert objects == [0, 1]
dist.barrier()
gloo = dist.new_group(backend="gloo")
assert gloo._get_backend(torch.device("cpu")).name() == "gloo"
dist.destroy_process_group()
""", head="import kolo.distributed, torch, torch.distributed as dist\n")
            self.assertEqual("", output)

    def test_reduce_scatter_of_unequal_tensors(self):
        for count in (1, 2, 3):
            self.run_ranks(count, """
parts = [torch.arange(2.0 * other) * (rank + 1) for other in range(size)]  # none for rank 0
output = torch.empty(2 * rank)
dist.reduce_scatter(output, parts)
assert output.tolist() == [each * size * (size + 1) / 2 for each in range(2 * rank)]
assert parts[-1].tolist() == [each * (rank + 1) for each in range(2 * size - 2)]
try:
    dist.reduce_scatter(torch.empty(2 * rank + 1), [*parts[:-1], torch.ones(7)])
    assert False
except ValueError as error:
    assert "They must be equal" in str(error) or size == 1, error
dist.destroy_process_group()
""")

    @SINCE_2_9
    def test_allocated_memory_can_be_resized(self):
        self.run_ranks(2, """
cpu = torch.device("cpu")
backend = dist.group.WORLD._get_backend(cpu)
tensor = backend.allocate_tensor(4, dtype=torch.float, device=cpu).fill_(rank + 1)
tensor.resize_(1000)
assert tensor[:4].tolist() == [rank + 1] * 4
tensor.fill_(rank + 1)
dist.all_reduce(tensor)
assert tensor.unique().tolist() == [3]
tensor.untyped_storage().resize_(0)  # as FSDP frees
assert tensor.untyped_storage().nbytes() == 0
dist.destroy_process_group()
""")


if __name__ == "__main__":
    main()
