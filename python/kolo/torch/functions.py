"""Broadcasts of what a program trains, and of Python's objects. All functions are collective."""

import io

import torch

try:
    import cloudpickle as pickle  # functions and local classes, too, as with Horovod
except ImportError:
    import pickle

from .. import InvalidArgument, _kolo
from .operations import _number_of, _options
from .process_sets import global_process_set


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Copies the root's tensors to all ranks, in place.

    params: model.state_dict(), matched by name; model.named_parameters(); or model.parameters(),
    matched by order; as lists, or as they are.
    """
    if isinstance(params, dict):
        params = params.items()
    elif isinstance(params, torch.Tensor) or not hasattr(params, "__iter__"):
        raise InvalidArgument(f"broadcast_parameters: {type(params).__name__} is neither a dict "
                              "nor a list of parameters.")
    named = [each if isinstance(each, tuple) else (str(index), each)
             for index, each in enumerate(params)]
    for name, each in named:
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"broadcast_parameters: '{name}' is a {type(each).__name__}, not a "
                            "torch.Tensor. Pass it to broadcast_object().")
    _kolo.broadcast_parameters(named, root_rank, _number_of(process_set))


def broadcast_optimizer_state(optimizer, root_rank, model=None, process_set=global_process_set):
    """Copies the root's state and options to all ranks, of any optimizer with state_dict(), LBFGS
    too; of a sharded DistributedOptimizer the options alone. Takes no step to create state, so
    `model` has no effect; but gradients are zeros afterwards where there were none, which programs
    may read. Holds a serialized copy for the time being."""
    is_sharded = getattr(optimizer, "_is_sharded", lambda: False)()

    def save():
        file = io.BytesIO()
        torch.save([{name: value for name, value in group.items() if name != "params"}
                    for group in optimizer.param_groups] if is_sharded else optimizer.state_dict(),
                   file)
        return file.getvalue()

    saved = _broadcast(save, root_rank, _options("broadcast_optimizer_state", process_set))
    if _kolo.rank() != root_rank:  # load_state_dict() moves it to the parameters' device
        state = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=False)
        if is_sharded:
            for group, options in zip(optimizer.param_groups, state):
                group.update(options)
        else:
            optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None and not is_sharded:
                parameter.grad = torch.zeros_like(parameter)


def _broadcast(make, root_rank, options):
    """What `make` returns on the root, bytes; where it raises there, an error on all ranks."""
    content, error = b"", None
    if _kolo.rank() == root_rank:
        try:
            content = b"+" + make()
        except Exception as raised:
            content, error = b"-" + repr(raised).encode(), raised
    content = _kolo.broadcast_object(content, root_rank, options)
    if error is not None:
        raise error
    if content[:1] == b"-":
        raise InvalidArgument(f"rank {root_rank} could not serialize what it broadcasts: "
                              f"{content[1:].decode()}")
    return content[1:]


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """Returns the root's object, pickled and restored on the other ranks."""
    content = _broadcast(lambda: pickle.dumps(obj), root_rank, _options(name, process_set))
    return obj if _kolo.rank() == root_rank else pickle.loads(content)


def allgather_object(obj, name=None, process_set=global_process_set):
    """Returns the objects of all ranks, in rank order; none for a rank that has joined."""
    all_bytes = _kolo.allgather_object(pickle.dumps(obj), _options(name, process_set))
    return [pickle.loads(each) for each in all_bytes if each]
