"""Groups of ranks that run collectives together."""

from .. import InvalidArgument, _kolo


class ProcessSet:
    """Ranks of the world, for `hvd.init(process_sets=[…])` or `hvd.add_process_set()`, which set
    process_set_id. The object is then an argument of collectives.

    Unlike in Horovod, two sets may have the same ranks, sets can always be added, and there is no
    ProcessSet of an mpi4py communicator.
    """

    def __init__(self, ranks):
        self.ranks = sorted(ranks)
        self.process_set_id = None
        if not all(isinstance(rank, int) for rank in self.ranks):
            raise InvalidArgument(f"ProcessSet: the ranks must be integers, but are {self.ranks}.")

    def size(self):
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self):
        """This rank's index in the set. Roots of broadcasts are ranks of the world all the same."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise InvalidArgument(f"rank {_kolo.rank()} is not a member of {self}.")
        return self.ranks.index(_kolo.rank())

    def included(self):
        return _kolo.rank() in self.ranks

    def __str__(self):
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _World(ProcessSet):
    def __init__(self):
        self.process_set_id = 0

    @property
    def ranks(self):  # Kolo may have been started by kolo.distributed
        return list(range(_kolo.size()))


_added = []
global_process_set = _World()


def add_process_set(process_set):
    """Adds a ProcessSet, or a list of ranks, and returns the set. All ranks of the world call
    it."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    process_set.process_set_id = _kolo.add_process_set(process_set.ranks)
    _added.append(process_set)
    return process_set


def remove_process_set(process_set):
    """Removes a set. All ranks of the world call it. Returns False for the world, and for a set
    that was not added or has been removed."""
    if not process_set.process_set_id:
        return False
    _kolo.remove_process_set(process_set.process_set_id)
    process_set.process_set_id = None
    _added.remove(process_set)
    return True


def shutdown():
    """Ends Kolo, after saves in the background. Sets must be added again after another
    hvd.init()."""
    from .optimizer import finish_saves  # which imports this file

    finish_saves()
    _kolo.shutdown()
    while _added:
        _added.pop().process_set_id = None
