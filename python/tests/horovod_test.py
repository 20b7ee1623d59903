"""kolo.torch under mpirun, where Horovod's own tests do not look: horovod_test.py [mpirun...]

Needs the package: pip install ./python. Each case is a function that all ranks run.
"""

import os
import tempfile

from ranks import Ranks, main


class HorovodTest(Ranks):
    head = """
import torch
import kolo
import kolo.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
total = size * (size + 1) / 2  # the sum of rank + 1
"""

    def test_ranks_and_timeline(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_ranks(2, f"folder = {folder!r}\n" + """
assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, 2, 0, 1)
assert hvd.is_homogeneous() and hvd.mpi_built() and hvd.mpi_threads_supported()
assert not hvd.gloo_built() and bool(hvd.nccl_built()) == hvd.cuda_built()
hvd.start_timeline(folder)
hvd.allreduce(torch.ones(1), name="recorded")
hvd.stop_timeline()
with open(f"{folder}/rank-{rank}.json") as file:
    assert "recorded" in file.read()
""")
        self.run_ranks(0, "assert (rank, size) == (0, 1) and not hvd.mpi_threads_supported()")

    def test_reductions(self):
        for count in (1, 2, 3):
            self.run_ranks(count, """
own = torch.full((3, 2), rank + 1.0)
assert hvd.allreduce(own).unique().tolist() == [total / size]
assert hvd.allreduce(own, average=False, prescale_factor=2, postscale_factor=3).max() == 6 * total
assert hvd.allreduce(own, op=hvd.Max).max() == size and hvd.allreduce(own, op=hvd.Min).max() == 1
assert hvd.allreduce(own, op=hvd.Product).max() == torch.arange(1, size + 1).prod()
assert hvd.allreduce(own.t(), op=hvd.Sum).shape == (2, 3)  # not contiguous
assert hvd.allreduce(own.bfloat16(), op=hvd.Sum).dtype == torch.bfloat16
assert hvd.allreduce(torch.eye(size)[rank], op=hvd.Adasum).tolist() == [1] * size  # orthogonal
handle = hvd.allreduce_async_(own, op=hvd.Sum, name="own")
assert hvd.synchronize(handle) is own and own[2, 1] == total and hvd.synchronize(handle) is None
first, second = torch.tensor([rank]), torch.tensor([1.0 + rank])
results = hvd.grouped_allreduce([first, second], op=hvd.Sum)
assert [each.item() for each in results] == [total - size, total] and first.item() == rank
hvd.grouped_allreduce_([first, second], op=hvd.Sum)
assert (first.item(), second.item()) == (total - size, total)
rows = torch.arange(size + 1.0).repeat(2, 1).t() * (rank + 1)  # one rank gets two rows
rows = hvd.reducescatter(rows, op=hvd.Sum)
assert rows.shape == (2 if rank == 0 else 1, 2)
assert rows[-1, 0] == total * (rank + 1 if rank else 1)
entries = torch.sparse_coo_tensor([[rank, 0]], [1.0, rank], (size, ))
entries = hvd.sparse_allreduce_async(entries, "sparse", hvd.Sum)()
dense = torch.ones(size)
dense[0] += total - size
assert torch.equal(entries.to_dense(), dense)
""")

    def test_compression(self):
        self.run_ranks(3, """
class Halved(hvd.Compression.fp16):
    compress = staticmethod(lambda tensor: (tensor / 2, rank))
    decompress = staticmethod(lambda tensor, context: tensor + context)
own = torch.tensor([1 + 2.0 ** -11 * rank, 70000.0])
half, brain = (hvd.allreduce(own, compression=each, op=hvd.Max)
               for each in (hvd.Compression.fp16, hvd.Compression.bf16))
assert half.dtype == torch.float32 and half.tolist() == [1 + 2.0 ** -10, float("inf")]
assert brain.tolist() == [1, 70144]
assert hvd.allreduce(own, compression=Halved, op=hvd.Max)[1] == 35000 + rank
results = hvd.grouped_allreduce([own, 2 * own], compression=Halved, op=hvd.Max)
assert [each[1] for each in results] == [35000 + rank, 70000 + rank]
""")

    def test_rows(self):
        for count in (1, 2, 3):
            self.run_ranks(count, """
mine = torch.full((rank, 2), rank)  # none on rank 0
assert hvd.allgather(mine)[:, 0].tolist() == [each for each in range(size) for _ in range(each)]
both = hvd.grouped_allgather([mine, torch.tensor([10 * rank])])
assert both[1].tolist() == [10 * each for each in range(size)]
root = size - 1
tensor = torch.tensor([rank])
assert hvd.broadcast(tensor, root).item() == root and tensor.item() == rank
assert hvd.broadcast_(tensor, root) is tensor and tensor.item() == root
values = torch.arange(size) + 10 * rank
assert hvd.alltoall(values).tolist() == [rank + 10 * each for each in range(size)]
values, received = hvd.alltoall(values, [size if each == rank else 0 for each in range(size)])
assert received.dtype == torch.int32 and received.sum() == size and values[0] == 10 * rank
splits = torch.tensor([1] * size)
assert hvd.alltoall(values, splits)[1].dtype == torch.int64
""")

    def test_gradients(self):
        self.run_ranks(2, """
def gradient_of(call):
    tensor = torch.ones(2, requires_grad=True)
    (call(tensor) * (rank + 1)).sum().backward()
    return tensor.grad.tolist()
assert gradient_of(lambda each: hvd.allreduce(each, op=hvd.Sum)) == [3, 3]
assert gradient_of(lambda each: hvd.synchronize(hvd.allreduce_async(each))) == [1.5, 1.5]
assert gradient_of(lambda each: hvd.allreduce(each, compression=hvd.Compression.fp16)) == [1.5, 1.5]
assert gradient_of(hvd.allgather) == [1.5, 1.5]
assert gradient_of(lambda each: hvd.broadcast(each, 1)) == [1.5 * rank, 1.5 * rank]
assert gradient_of(hvd.alltoall) == [1, 2]
""")

    def test_process_sets(self):
        self.run_ranks(3, """
ends, last = hvd.ProcessSet([2, 0]), hvd.ProcessSet([2])
assert ends.size() is None and ends.rank() is None
hvd.init(process_sets=[ends])
hvd.add_process_set(last)
assert (ends.ranks, ends.size(), ends.process_set_id) == ([0, 2], 2, 1)
assert hvd.global_process_set.ranks == [0, 1, 2]
if ends.included():
    assert ends.rank() == rank // 2
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=ends).item() == 2
    assert hvd.broadcast_object(rank, 2, process_set=ends) == 2
    assert hvd.allgather_object(rank, process_set=ends) == [0, 2]
    hvd.barrier(process_set=ends)
else:
    try:
        hvd.allreduce(torch.ones(1), process_set=ends)
        assert False
    except kolo.InvalidArgument as error:
        assert "{0, 2}" in str(error), error
assert hvd.remove_process_set(ends) and not hvd.remove_process_set(ends)
assert not hvd.remove_process_set(hvd.global_process_set)
try:
    hvd.allreduce(torch.ones(1), process_set=ends)
    assert False
except ValueError as error:
    assert "has not been added" in str(error)
assert ends.size() is None and last.size() == 1
hvd.shutdown()
assert last.size() is None
hvd.init(process_sets=[last])
assert last.process_set_id == 1 and hvd.allgather_object(last.size()) == [1, 1, 1]
""")

    def test_join(self):
        self.run_ranks(3, """
for step in range(rank + 1):
    result = hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, name=f"step {step}")
    assert result.item() == size - step
assert hvd.join() == size - 1
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
""")

    def test_objects_and_parameters(self):
        for count in (1, 3):
            self.run_ranks(count, """
root = size - 1
received = hvd.broadcast_object({"rank": rank, "text": "x" * rank}, root)
assert received == {"rank": root, "text": "x" * root}
add = hvd.broadcast_object(lambda number, more=rank: number + more, root)  # by cloudpickle
assert add(1) == 1 + root
assert hvd.allgather_object([rank] * rank) == [[each] * each for each in range(size)]
model = torch.nn.BatchNorm1d(2)
with torch.no_grad():
    model.weight.fill_(rank), model.running_mean.fill_(rank)
hvd.broadcast_parameters(model.state_dict(), root)
assert model.weight[0] == root and model.running_mean[1] == root
with torch.no_grad():
    model.weight.fill_(rank + 1)
hvd.broadcast_parameters(model.parameters(), root)
assert model.weight[0] == root + 1
hvd.broadcast_parameters(list(model.named_parameters()), 0)
for bad in (model, model.weight):
    try:
        hvd.broadcast_parameters(bad, 0)
        assert False
    except ValueError:
        pass
""")

    def test_optimizer_state(self):
        """Of the root, which has taken steps, on ranks that have taken none."""
        for kind in ("Adam(parameters, 0.1 * (rank + 1), fused=True)",
                     "LBFGS(parameters, max_iter=2)",
                     "SGD(parameters, 0.1 * (rank + 1), momentum=0.5)"):
            self.run_ranks(3, f"""
parameters = [torch.nn.Parameter(torch.tensor([1.0, 2.0])), torch.nn.Parameter(torch.ones(1))]
optimizer = torch.optim.{kind}
def loss():
    optimizer.zero_grad()
    value = sum(each.square().sum() for each in parameters) * (rank + 1)
    value.backward()
    return value
if rank == 1:
    for _ in range(3):
        optimizer.step(loss)
gradients = [each.grad for each in parameters]
hvd.broadcast_optimizer_state(optimizer, 1)
for each, gradient in zip(parameters, gradients):
    assert each.grad is gradient or gradient is None and not each.grad.any()
""" + """
def leaves(value):
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return [leaf for key in sorted(value, key=str) for leaf in leaves(value[key])]
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]
every = hvd.allgather_object(leaves(optimizer.state_dict()))
assert len(every[0]) > 8 and every[0] == every[1] == every[2], every
hvd.broadcast_parameters(parameters, 1)
optimizer.step(loss)  # usable
""")

    def test_sync_batch_norm(self):
        """As BatchNorm of all rows, for outputs, gradients and running statistics."""
        self.run_ranks(3, """
import copy
torch.manual_seed(0)
rows = torch.randn(12, 4, 5, dtype=torch.double)
first, last = [(0, 2), (2, 2), (2, 12)][rank]  # none on rank 1
plain = torch.nn.BatchNorm1d(4, momentum=None).double()
synced = hvd.SyncBatchNorm(4, momentum=None).double()
for norm in (plain, synced):
    torch.nn.init.constant_(norm.weight, 3.0)
whole, part = rows.clone().requires_grad_(), rows[first:last].clone().requires_grad_()
for _ in range(2):
    expected, found = plain(whole), synced(part)
torch.testing.assert_close(found, expected[first:last])
(expected.square() * rows).sum().backward()
(found.square() * rows[first:last]).sum().backward()
torch.testing.assert_close(part.grad, whole.grad[first:last])
torch.testing.assert_close(hvd.allreduce(synced.weight.grad, op=hvd.Sum), plain.weight.grad)
torch.testing.assert_close(synced.state_dict(), plain.state_dict())
for norm in (plain, synced):  # as swa_utils.update_bn
    norm.reset_running_stats()
    norm.momentum, norm.eps = 0.3, 0.5
expected, found = plain(whole), synced(part)
torch.testing.assert_close(found, expected[first:last])
torch.testing.assert_close(synced.state_dict(), plain.state_dict())
again = copy.deepcopy(synced)
torch.testing.assert_close(again(part), found)
plain.eval(), again.eval(), plain.load_state_dict(again.state_dict())
assert torch.equal(again(rows), plain(rows))
""")

    def test_errors(self):
        self.run_ranks(2, """
def text_of(kind, call):
    try:
        call()
    except kind as error:
        assert isinstance(error, (kolo.Error, RuntimeError)), type(error)
        return str(error)
    raise AssertionError(f"no {kind}")
text = text_of(kolo.MismatchError, lambda: hvd.allreduce(torch.ones(2 + rank), name="loss"))
assert "'loss' on process set world: shape differs: [2] on rank 0, [3] on rank 1." in text, text
text_of(hvd.HorovodInternalError, lambda: hvd.allgather(torch.ones(2, 2 + rank)))
assert "average and op" in text_of(ValueError, lambda: hvd.allreduce(
    torch.ones(2), op=hvd.Sum, average=True))
assert "splits" in text_of(ValueError, lambda: hvd.alltoall(torch.ones(2), torch.ones(2)))
assert "Adasum" in text_of(kolo.InvalidArgument, lambda: hvd.allreduce(
    torch.tensor([rank]), op=hvd.Adasum))
handle = hvd.allreduce_async(torch.ones(2), name="same") if rank == 0 else None
if rank == 0:
    assert "same" in text_of(ValueError, lambda: hvd.broadcast_async(torch.ones(2), 0, name="same"))
    assert not hvd.poll(handle)
hvd.barrier()
if rank == 1:
    handle = hvd.allreduce_async(torch.ones(2), name="same")
assert hvd.synchronize(handle).tolist() == [1, 1]
assert "synchronized" in text_of(ValueError, lambda: hvd.poll(handle))
hvd.shutdown()
assert not hvd.is_initialized()
assert "started" in text_of(ValueError, hvd.rank)
hvd.init()
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
""")

    def test_elastic_state_survives_a_restart(self):
        """Three ranks fail in the second epoch, two go on: each epoch has each sample once."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state.pt")
            program = f"""
import os
path = {path!r}
""" + """
torch.manual_seed(rank)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
sampler = hvd.elastic.ElasticSampler(range(12), seed=1)
state = hvd.elastic.TorchState(model, optimizer, path=path, sampler=sampler, epoch=0, seen=[], at=0,
                               last=None)
resets = []
state.register_reset_callbacks([lambda: resets.append(state.epoch)])

@hvd.elastic.run
def train(state):
    momenta = [each["momentum_buffer"] for each in optimizer.state.values()]
    assert all(each != 0 for each in momenta) and len(momenta) == 2 * (size == 2)
    weights = hvd.allgather_object([each.item() for each in model.parameters()])
    assert all(each == weights[0] for each in weights)
    assert state.at == (weights[0] if size == 2 else 0)
    assert state.last == ((1, 1) if size == 2 else None)
    for state.epoch in range(state.epoch, 2):
        for batch, sample in enumerate(torch.utils.data.DataLoader(range(12), sampler=sampler)):
            optimizer.zero_grad()
            model(torch.ones(1)).sum().backward()
            optimizer.step()
            if size == 3 and state.epoch == 1 and batch == 2:
                raise SystemExit(3)  # before a commit of this batch
            sampler.record_batch(batch, 1)
            state.seen += [(state.epoch, *each) for each in hvd.allgather_object(sample.tolist())]
            state.at = [each.item() for each in model.parameters()]
            state.last = (state.epoch, batch)
            state.check_host_updates()
            state.commit()
        sampler.set_epoch(state.epoch + 1)
    return state.epoch

assert train(state) == 1
assert sorted(state.seen) == [(epoch, each) for epoch in range(2) for each in range(12)]
assert resets == [1] and not os.path.exists(path) and len(sampler) == 6
"""
            output = self.run_ranks(3, program, status=3)
            self.assertEqual(os.listdir(folder), ["state.pt"], output)
            self.run_ranks(2, program)

    def test_an_exception_on_one_rank_ends_all(self):
        output = self.run_ranks(3, """
if rank == 1:
    raise KeyError("lost in thought")
hvd.barrier()
""", status=1)
        self.assertIn("lost in thought", output)

    def test_a_program_may_end_with_operations_in_flight(self):
        self.run_ranks(2, """
from kolo.torch import operations
for step in range(100):
    hvd.allreduce_async(torch.full((1000,), float(rank)))
    if step % 30 == 0:
        operations._handles.clear()  # nothing but the operations holds the tensors
hvd.barrier()
hvd.allreduce_async(torch.ones(10), name=f"of rank {rank} alone")
""")

    def test_threads(self):
        self.run_ranks(2, """
from concurrent.futures import ThreadPoolExecutor
def work(name):
    for step in range(100):
        total = hvd.allreduce(torch.tensor([rank + step]), op=hvd.Sum, name=name).item()
        assert total == 1 + 2 * step
with ThreadPoolExecutor(3) as threads:
    list(threads.map(work, ("first", "second", "third")))  # throws what they have thrown
assert hvd.allgather_object(True) == [True, True]
""")

    def test_ctrl_c_ends_a_wait(self):
        self.run_ranks(2, """
import os, signal, threading
if rank == 0:
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        hvd.allreduce(torch.ones(1), name="late")
        assert False
    except KeyboardInterrupt:
        pass
hvd.barrier()
if rank == 1:
    assert hvd.allreduce(torch.ones(1), name="late").item() == 1  # rank 0 has submitted it
""")

    def test_data_loader_with_workers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as file:  # spawned workers import it
                file.write(self.head.replace("hvd.init()", """
if __name__ == "__main__":
    hvd.init()
    for start in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(range(10), num_workers=2,
                                             multiprocessing_context=start)
        assert sum(each.item() for each in loader) == 45
        hvd.barrier()
""").split("rank, size")[0])
            self.run_ranks(2, f"import runpy\nrunpy.run_path({path!r}, run_name='__main__')",
                           head="")

    def test_both_doors_in_one_program(self):
        for order in (("hvd.init()", "import kolo.distributed"),
                      ("import kolo.distributed", "hvd.init()"),
                      ("import kolo.distributed", "assert hvd.is_initialized()")):
            self.run_ranks(2, f"""
import torch
import torch.distributed as dist
import kolo.torch as hvd
{order[0]}
{order[1]}
dist.init_process_group("kolo")
from kolo.torch.mpi_ops import rank
assert (dist.get_rank(), dist.get_world_size()) == (rank(), hvd.mpi_ops.size())
tensor = torch.tensor([hvd.rank() + 1])
handle = hvd.allreduce_async(tensor.clone(), op=hvd.Sum, name="one")
dist.all_reduce(tensor)
assert tensor.item() == 3 and hvd.synchronize(handle).item() == 3
weight = torch.zeros(1, requires_grad=True)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
(weight * (hvd.rank() + 1)).sum().backward()
optimizer.step()
assert weight.item() == -1.5 and hvd.global_process_set.size() == 2
dist.destroy_process_group()
""", head="")

    def test_both_doors_raise_the_same_errors(self):
        output = self.run_ranks(2, """
import torch.distributed as dist
import kolo.distributed
dist.init_process_group("kolo")
try:
    dist.barrier() if rank else dist.all_reduce(torch.ones(4))
    assert False
except kolo.MismatchError as error:
    assert "submitted barrier" in str(error), error
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2  # the world of hvd is another set
""", status=1)  # the group is lost, and MPI cannot be left in order
        self.assertNotIn("Traceback", output)

    def test_what_is_no_tensor_is_named(self):
        self.run_ranks(1, """
import numpy
def text_of(call):
    try:
        call()
    except TypeError as error:
        return str(error)
    raise AssertionError("no TypeError")
one = torch.ones(1)
for call, operation, kind in (
        (lambda: hvd.allreduce(3.0), "allreduce", "float"),
        (lambda: hvd.allreduce_async_(numpy.ones(2)), "allreduce_", "ndarray"),
        (lambda: hvd.grouped_allreduce([one, 3]), "grouped_allreduce", "int"),
        (lambda: hvd.reducescatter([3.0]), "reducescatter", "float"),
        (lambda: hvd.broadcast(None, 0), "broadcast", "NoneType")):
    wanted = f"{operation} takes a torch.Tensor, not a {kind}. Pass torch.as_tensor(…)."
    assert text_of(call) == wanted, text_of(call)
assert "'a' is a int" in text_of(lambda: hvd.broadcast_parameters({"a": 1}, 0))
assert text_of(lambda: hvd.allreduce(one, op="sum")).startswith("op is 'sum', not hvd.Average")
""")

    def test_elastic_commits_when_all_ranks_do(self):
        with tempfile.TemporaryDirectory() as folder:
            program = f"import os\nos.chdir({folder!r})\n" + """
state = hvd.elastic.TorchState(step=0)
@hvd.elastic.run
def train(state):
    begin = state.step
    for state.step in range(begin + 1, 3):
        if size == 2 and rank == 1 and state.step == 2:
            raise SystemExit(3)
        state.commit()
    return begin
assert train(state) == 2 - size
"""
            self.run_ranks(2, program.replace("2 - size", "None"), status=1)
            output = self.run_ranks(1, program)
            self.assertIn(f"goes on from {os.path.join(folder, 'elastic-state.pt')}", output)

    def test_elastic_state_of_another_job(self):
        with tempfile.TemporaryDirectory() as folder:
            program = f"import os, sys\nos.chdir({folder!r})\n" + """
def state_of(arguments, **options):
    sys.argv = ["/tmp/train.py", *arguments]
    return hvd.elastic.TorchState(step=len(arguments), **options)
state_of(["--lr", "0.1"]).commit()
try:
    state_of(["--lr"]).restore()
    assert False
except kolo.InvalidArgument as error:
    assert "another job, train.py --lr 0.1, and this is train.py --lr." in str(error), error
for options in dict(path="elastic-state.pt"), dict():
    state = state_of(["--lr"] if options else ["--lr", "0.1"], **options)
    state.step = 7
    assert state.restore() and state.step == 2
"""
            self.run_ranks(2, program)


if __name__ == "__main__":
    main()
