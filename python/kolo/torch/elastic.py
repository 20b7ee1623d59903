"""Training that survives failures by restarts.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 90):
            …
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, epoch=0))

Unlike in Horovod, ranks do not go on without one that is lost: the job ends, and what started it,
such as kolo-restart, starts it again, on as many ranks as there are then. So commit() writes a
file, and run() begins with what it holds, and says so. The file "elastic-state.pt" belongs to the
program and its arguments: with others, run() ends with InvalidArgument. One that TorchState(path=…)
names belongs to whatever names it.
"""

import functools
import io
import itertools
import logging
import os
import random
import shlex
import sys
import time

import torch

from .. import PREEMPTED_STATUS, InvalidArgument, _kolo, preempted
from .functions import _options, broadcast_object
from .operations import barrier
from .process_sets import global_process_set


def _state_of(value):
    return value.state_dict() if hasattr(value, "state_dict") else value


def _broadcast(state):
    return _kolo.broadcast_object(state, 0, _options("elastic_state", global_process_set))


def _program():
    return shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])


def _deserialize(state):
    return torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)


class TorchState:
    """What a restart needs: models, optimizers, samplers and all else that has state_dict(), and
    plain values. They are attributes. All methods are collective.

    path: the file of commit(), which rank 0 must see again after a restart
    """

    def __init__(self, model=None, optimizer=None, *, path=None, **values):
        self._path, self._callbacks = path or "elastic-state.pt", []
        self._is_bound = path is None
        self.model, self.optimizer = model, optimizer
        given = [name for name in ("model", "optimizer") if getattr(self, name) is not None]
        self._names = [*given, *values]
        for name, value in values.items():
            setattr(self, name, value)

    def register_reset_callbacks(self, callbacks):
        """Functions for run() to call after a restart, before training goes on."""
        self._callbacks.extend(callbacks)

    def commit(self):
        """Writes the state of rank 0 once all ranks have called this. Returns once it is written;
        if a rank has been asked to leave, see kolo.preempted(), ends the program instead, with the
        status PREEMPTED_STATUS: the next start goes on from here.
        """
        if _kolo.rank() == 0:
            with open(self._path + ".incomplete", "wb") as file:
                file.write(self._serialize())
                file.flush()
                os.fsync(file.fileno())
        barrier()
        if _kolo.rank() == 0:
            os.replace(self._path + ".incomplete", self._path)
        barrier()
        if preempted():
            sys.exit(PREEMPTED_STATUS)

    save = commit

    def check_host_updates(self):
        """Nothing: hosts come and go between restarts."""

    def restore(self):
        """Returns to the last commit(). Returns False if there is none. InvalidArgument if the
        program had other arguments then."""
        committed, program = b"", None
        if _kolo.rank() == 0 and os.path.exists(self._path):
            with open(self._path, "rb") as file:
                committed = file.read()
            program = _program()
            since = time.ctime(os.path.getmtime(self._path))
        committed = _broadcast(committed)
        if not committed:
            return False
        program = broadcast_object(program)
        writer, state = _deserialize(committed)
        if self._is_bound and writer != program:
            raise InvalidArgument(
                f"elastic.run: {self._path} is the last commit() of another job, {writer}, and "
                f"this is {program}. Remove the file to begin anew, or give the job a file of its "
                "own: TorchState(path=…).")
        self._load(state)
        if _kolo.rank() == 0:
            logging.getLogger("kolo").warning(
                "elastic.run goes on from %s, the commit() of %s on %s. To begin anew, remove the "
                "file.", os.path.abspath(self._path), writer, since)
        return True

    def sync(self):
        """Gives all ranks the state of rank 0."""
        self._load(_deserialize(_broadcast(self._serialize() if _kolo.rank() == 0 else b""))[1])

    def _serialize(self):
        file = io.BytesIO()
        state = {name: _state_of(getattr(self, name)) for name in self._names}
        torch.save((_program(), state), file)
        return file.getvalue()

    def _load(self, state):
        for name, value in state.items():
            current = getattr(self, name)
            if hasattr(current, "load_state_dict"):
                current.load_state_dict(value)
            else:
                setattr(self, name, value)


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
