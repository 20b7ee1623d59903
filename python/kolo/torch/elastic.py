"""Training that survives failures by restarts.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 90):
            …
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, epoch=0))

Unlike in Horovod, ranks do not go on without one that is lost: the job ends, and what started it,
such as kolo-restart, starts it again, on as many ranks as there are then. So commit() writes a
file, and run() begins with what it holds.
"""

import functools
import io
import itertools
import os
import random

import torch

from .. import _kolo
from .functions import _options
from .operations import barrier
from .process_sets import global_process_set


def _state_of(value):
    return value.state_dict() if hasattr(value, "state_dict") else value


def _broadcast(state):
    return _kolo.broadcast_object(state, 0, _options("elastic_state", global_process_set))


class TorchState:
    """What a restart needs: models, optimizers, samplers and all else that has state_dict(), and
    plain values. They are attributes. All methods are collective.

    path: the file of commit(), which rank 0 must see again after a restart
    """

    def __init__(self, model=None, optimizer=None, *, path="elastic-state.pt", **values):
        self._path, self._callbacks = path, []
        self.model, self.optimizer = model, optimizer
        given = [name for name in ("model", "optimizer") if getattr(self, name) is not None]
        self._names = [*given, *values]
        for name, value in values.items():
            setattr(self, name, value)

    def register_reset_callbacks(self, callbacks):
        """Functions for run() to call after a restart, before training goes on."""
        self._callbacks.extend(callbacks)

    def commit(self):
        """Writes the state of rank 0. Returns once it is written."""
        if _kolo.rank() == 0:
            with open(self._path + ".incomplete", "wb") as file:
                file.write(self._serialize())
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._path + ".incomplete", self._path)
        barrier()

    save = commit

    def check_host_updates(self):
        """Nothing: hosts come and go between restarts."""

    def restore(self):
        """Returns to the last commit(). Returns False if there is none."""
        committed = b""
        if _kolo.rank() == 0 and os.path.exists(self._path):
            with open(self._path, "rb") as file:
                committed = file.read()
        return self._load(_broadcast(committed))

    def sync(self):
        """Gives all ranks the state of rank 0."""
        self._load(_broadcast(self._serialize() if _kolo.rank() == 0 else b""))

    def _serialize(self):
        file = io.BytesIO()
        torch.save({name: _state_of(getattr(self, name)) for name in self._names}, file)
        return file.getvalue()

    def _load(self, state):
        if not state:
            return False
        state = torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)
        for name, value in state.items():
            current = getattr(self, name)
            if hasattr(current, "load_state_dict"):
                current.load_state_dict(value)
            else:
                setattr(self, name, value)
        return True


def run(function):
    """Makes function(state, …) begin with the last commit() of its state, or with that of rank 0.
    Removes the file when the function has returned: the work is done."""

    @functools.wraps(function)
    def call(state, *arguments, **options):
        if state.restore():
            for callback in state._callbacks:
                callback()
        else:
            state.sync()
        result = function(state, *arguments, **options)
        barrier()
        if _kolo.rank() == 0 and os.path.exists(state._path):
            os.remove(state._path)
        barrier()
        return result

    return call


class ElasticSampler(torch.utils.data.Sampler):
    """Divides a data set between the ranks, as DistributedSampler does. As a value of TorchState it
    remembers what an epoch has seen: after a restart, the ranks that there are share the rest.

    Call record_batch() after each batch, and set_epoch() at the end of each epoch.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.load_state_dict({"epoch": epoch, "processed_num": 0})

    def record_batch(self, batch_idx, batch_size):
        """Counts a batch of this size on every rank."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self):
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict):
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self):
        """Divides what is left of the epoch."""
        self.num_replicas, self.rank = _kolo.size(), _kolo.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num:]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self):
        count = self.num_samples * self.num_replicas  # some samples twice, for equal shares
        indices = itertools.islice(itertools.cycle(self.remaining_indices), count)
        return itertools.islice(indices, self.rank, None, self.num_replicas)

    def __len__(self):
        return self.num_samples
