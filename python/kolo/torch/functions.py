"""Broadcasts of what a program trains, and of Python's objects. All functions are collective."""

import io
import pickle

import torch

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
    _kolo.broadcast_parameters(named, root_rank, _number_of(process_set))


def broadcast_optimizer_state(optimizer, root_rank, model=None, process_set=global_process_set):
    """Copies the root's state and options to all ranks, of any optimizer with state_dict(), LBFGS
    too. Takes no step to create state, so `model` has no effect; but gradients are zeros afterwards
    where there were none, which programs may read. Holds a serialized copy for the time being."""
    file = io.BytesIO()
    if _kolo.rank() == root_rank:
        torch.save(optimizer.state_dict(), file)
    bytes_ = _kolo.broadcast_object(file.getvalue(), root_rank, _options(
        "broadcast_optimizer_state", process_set))
    if _kolo.rank() != root_rank:  # load_state_dict() moves it to the parameters' device
        optimizer.load_state_dict(
            torch.load(io.BytesIO(bytes_), map_location="cpu", weights_only=False))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """Returns the root's object, pickled and restored on the other ranks."""
    is_root = _kolo.rank() == root_rank
    bytes_ = _kolo.broadcast_object(pickle.dumps(obj) if is_root else b"", root_rank,
                                    _options(name, process_set))
    return obj if is_root else pickle.loads(bytes_)


def allgather_object(obj, name=None, process_set=global_process_set):
    """Returns the objects of all ranks, in rank order; none for a rank that has joined."""
    all_bytes = _kolo.allgather_object(pickle.dumps(obj), _options(name, process_set))
    return [pickle.loads(each) for each in all_bytes if each]
