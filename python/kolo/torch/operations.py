"""Horovod's collectives.

Arguments and results are Horovod's. The forms: `x_async` returns a handle, an integer for poll()
and synchronize(); a trailing underscore works in place; `grouped_x` runs a list of tensors as one
operation, which succeeds or fails as a whole, and returns a list. All ranks get the same errors.
"""

import functools
import itertools
import types

import torch

from .. import InvalidArgument, _kolo
from .compression import Compression
from .process_sets import global_process_set

Average = _kolo.ReduceOp.Average
Sum = _kolo.ReduceOp.Sum
Adasum = _kolo.ReduceOp.Adasum
Min = _kolo.ReduceOp.Min
Max = _kolo.ReduceOp.Max
Product = _kolo.ReduceOp.Product

_handles = {}
_numbers = itertools.count()


def _add(handle):
    number = next(_numbers)
    _handles[number] = handle
    return number


def poll(handle):
    """Whether synchronize(handle) would return at once."""
    if handle not in _handles:
        raise InvalidArgument(f"poll: there is no operation {handle}, or it was synchronized.")
    return _handles[handle].is_ready()


def synchronize(handle):
    """Waits for an operation, and returns its result. A handle is synchronized once; later calls
    return None."""
    waiting = _handles.pop(handle, None)
    return None if waiting is None else waiting.result()


def _blocking(start):
    @functools.wraps(start)
    def call(*arguments, **options):
        return synchronize(start(*arguments, **options))

    call.__name__ = start.__name__.replace("_async", "")
    return call


def _number_of(process_set):
    if process_set.process_set_id is None:
        raise InvalidArgument(f"{process_set} has not been added, or was removed. Pass it to "
                              "hvd.init(process_sets=[…]) or hvd.add_process_set().")
    return process_set.process_set_id


def _options(name, process_set, kind=_kolo.OperationOptions):
    return kind(name or "", _number_of(process_set))


def _of_tensors(start):
    """A function of the extension, which says what is no tensor instead of its signatures."""
    operation = start.__name__.replace("_async", "").replace("reduce_scatter", "reducescatter")

    @functools.wraps(start)
    def call(tensors, *options):
        try:
            return start(tensors, *options)
        except TypeError:
            for each in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
                if not isinstance(each, torch.Tensor):
                    raise TypeError(f"{operation} takes a torch.Tensor, not a "
                                    f"{type(each).__name__}. Pass torch.as_tensor(…).") from None
            raise

    return call


_start = types.SimpleNamespace(**{
    name: _of_tensors(start) for name, start in vars(_kolo).items() if "_async" in name})


def _reduction(average, op, prescale, postscale, name, process_set, codec="none"):
    if average is not None:
        if op is not None:
            raise InvalidArgument("average and op are both given. Pass op alone.")
        op = Average if average else Sum
    if op is None:
        op = Average
    if not isinstance(op, _kolo.ReduceOp):
        raise TypeError(f"op is {op!r}, not hvd.Average, Sum, Adasum, Min, Max or Product.")
    return _kolo.AllreduceOptions(op, prescale, postscale, codec,
                                  name or "", _number_of(process_set))


def _reduce(start, tensors, compression, *reduction):
    """Starts a reduction of a tensor or of a list, and waits."""
    codec = getattr(compression, "codec", None)
    if codec is not None:
        return start(tensors, _reduction(*reduction, codec)).result()
    if isinstance(tensors, torch.Tensor):
        packed, context = compression.compress(tensors)
        return compression.decompress(start(packed, _reduction(*reduction)).result(), context)
    packed, contexts = zip(*map(compression.compress, tensors))
    results = start(packed, _reduction(*reduction)).result()
    return [compression.decompress(*each) for each in zip(results, contexts)]


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """Combines tensors of all ranks element by element; every rank gets the result.

    op: Average (the default), Sum, Min, Max, Product or, in CPU memory, Adasum, which runs on any
    number of ranks and on process sets, too; average, its former name, is True for Average, False
    for Sum. Means of integers are truncated. prescale_factor multiplies every input,
    postscale_factor the result.
    """
    return _reduce(_start.allreduce_async, tensor, compression, average, op, prescale_factor,
                   postscale_factor, name, process_set)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                    postscale_factor=1.0, process_set=global_process_set):
    return _add(_start.allreduce_async(tensor, _reduction(
        average, op, prescale_factor, postscale_factor, name, process_set)))


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                     postscale_factor=1.0, process_set=global_process_set):
    return _add(_start.allreduce_async_(tensor, _reduction(
        average, op, prescale_factor, postscale_factor, name, process_set)))


allreduce_ = _blocking(allreduce_async_)


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    return _reduce(_start.grouped_allreduce_async, tensors, compression, average, op,
                   prescale_factor, postscale_factor, name, process_set)


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                            postscale_factor=1.0, process_set=global_process_set):
    return _add(_start.grouped_allreduce_async(tensors, _reduction(
        average, op, prescale_factor, postscale_factor, name, process_set)))


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                             postscale_factor=1.0, process_set=global_process_set):
    return _add(_start.grouped_allreduce_async_(tensors, _reduction(
        average, op, prescale_factor, postscale_factor, name, process_set)))


grouped_allreduce_ = _blocking(grouped_allreduce_async_)


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Adds up or averages COO tensors. Returns a function that waits, and returns the entries of
    all ranks, not coalesced."""
    handle = _add(_start.sparse_allreduce_async(
        tensor, _reduction(None, op, 1.0, 1.0, name, process_set)))
    return functools.partial(synchronize, handle)


def reducescatter(tensor, name=None, compression=Compression.none, op=Average,
                  process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """Combines tensors of all ranks as allreduce(), by any op but Adasum, and gives each rank its
    share of the result's rows; the first ranks get one more where they do not divide evenly."""
    return _reduce(_start.reduce_scatter_async, tensor, compression, None, op, prescale_factor,
                   postscale_factor, name, process_set)


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set,
                        prescale_factor=1.0, postscale_factor=1.0):
    return _add(_start.reduce_scatter_async(tensor, _reduction(
        None, op, prescale_factor, postscale_factor, name, process_set)))


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    return _reduce(_start.grouped_reduce_scatter_async, tensors, compression, None, op,
                   prescale_factor, postscale_factor, name, process_set)


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set,
                                prescale_factor=1.0, postscale_factor=1.0):
    return _add(_start.grouped_reduce_scatter_async(tensors, _reduction(
        None, op, prescale_factor, postscale_factor, name, process_set)))


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Concatenates tensors of all ranks along dimension 0, in which they may differ. A rank that
    has joined has no rows."""
    return _add(_start.allgather_async(tensor, _options(name, process_set, _kolo.GatherOptions)))


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    return _add(_start.grouped_allgather_async(
        tensors, _options(name, process_set, _kolo.GatherOptions)))


allgather = _blocking(allgather_async)
grouped_allgather = _blocking(grouped_allgather_async)


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Copies the tensor of root_rank, a rank of the world, to all ranks."""
    return _add(_start.broadcast_async(tensor, root_rank, _options(name, process_set)))


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    return _add(_start.broadcast_async_(tensor, root_rank, _options(name, process_set)))


broadcast = _blocking(broadcast_async)
broadcast_ = _blocking(broadcast_async_)


class _Alltoall:
    """A handle whose received splits become a tensor like the splits."""

    def __init__(self, handle, like):
        self._handle, self._like = handle, like
        self.is_ready = handle.is_ready

    def result(self):
        output, received = self._handle.result()
        return output, self._like.new_tensor(received)


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Sends rows to every rank. splits, a tensor or a list of integers, has the number of rows for
    each rank; None is equal shares.

    Returns the rows from all ranks, and if splits are given also a tensor of the number of rows
    from each rank. splits must add up to the tensor's rows; Horovod ignores rows beyond them.
    """
    output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """Its result is always the pair."""
    if not isinstance(splits, torch.Tensor):
        splits = torch.tensor([] if splits is None else splits, dtype=torch.int32, device="cpu")
    if splits.is_floating_point():
        raise InvalidArgument(f"alltoall: splits must be integers, but are {splits.dtype}.")
    return _add(_Alltoall(_start.alltoall_async(tensor, splits.tolist(),
                                               _options(name, process_set)), splits))


def barrier(process_set=global_process_set):
    """Waits until all ranks of the set have called it."""
    _kolo.barrier_async(_options(None, process_set)).result()


def join(device=-1, process_set=global_process_set):
    """Takes no further part in the operations of others until all ranks have joined, and returns
    the rank that joined last. A rank that has joined contributes the identity: zeros to sums, ones
    to products, no rows to gathers. device has no effect: nothing is allocated for it."""
    return _kolo.join(_number_of(process_set))
