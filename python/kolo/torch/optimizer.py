"""DistributedOptimizer: an optimizer of torch.optim, or of the program's own, that steps with
gradients which C++ reduces over the ranks while backward() runs."""

import contextlib
import copy
import os
import warnings
import weakref

import torch

from .. import _kolo
from .compression import Compression
from .functions import broadcast_optimizer_state
from .operations import Average, _number_of
from .process_sets import ProcessSet, global_process_set


_live = weakref.WeakSet()  # all that train parameters


def finish_saves():
    """Waits for all saves in the background, before the runtime ends."""
    for optimizer in list(_live):
        if optimizer._engine is not None:
            optimizer._engine.finish_save()


class _Replaced:
    """In place of the engine of an optimizer that has let go of its parameters."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, _):
        raise RuntimeError(
            f"A later DistributedOptimizer has taken parameter '{self._name}' over, and this one "
            "has let go of all of its own. Use the later one; two that train at once must share "
            "no parameter.")


class _Distributed:
    """Stands before the class of the wrapped optimizer, whose groups, state and methods it shares.
    The class that both make has its name, so that schedulers take it for one."""

    def _start(self, wrapped, names, named, model, process_set, options):
        self._wrapped_optimizer = wrapped
        for other in list(_live):
            theirs = other._trained()
            shared = next((parameter for parameter in self._trained() if parameter in theirs), None)
            if shared is not None:
                _live.remove(other)
                other._engine = _Replaced(names[shared])
        _live.add(self)
        self._given_names = named
        self._trained_model = model
        self._process_set = process_set
        self._is_synchronized = False
        self._skips_synchronize = False
        self._engine = None
        if process_set.included():
            options.process_set = _number_of(process_set)
            self._engine = _kolo.DistributedOptimizer(self, options)

    def _trained(self):
        return dict.fromkeys(parameter for group in self.param_groups
                             for parameter in group["params"] if parameter.requires_grad)

    # --- what C++ calls ---

    def _named_parameters(self):  # as they are now
        if self._given_names is not None:
            return self._given_names
        if self._trained_model is not None:
            return list(self._trained_model.named_parameters())
        return [(name, parameter)
                for parameter, name in _names_of(self.param_groups, None).items()]

    def _named_buffers(self):
        return [] if self._trained_model is None else list(self._trained_model.named_buffers())

    def _step_wrapped(self):
        if isinstance(self, torch.optim.SparseAdam):  # with sparse_as_dense; it takes no others
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and not parameter.grad.is_sparse:
                        parameter.grad = parameter.grad.to_sparse()
        super().step()

    def _keep_groups(self):
        """Before steps of a probe. Returns a function that undoes what they do to the groups, and
        until which no hooks run."""
        names = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
        hooks = {name: getattr(self, name) for name in names if hasattr(self, name)}
        kept = [copy.deepcopy({key: value for key, value in group.items() if key != "params"})
                for group in self.param_groups]
        for name in hooks:
            setattr(self, name, type(hooks[name])())

        def restore():
            for group, before in zip(self.param_groups, kept):
                for key in set(group) - set(before) - {"params"}:
                    del group[key]
                group.update(before)
            for name, those in hooks.items():
                setattr(self, name, those)

        return restore

    def _is_sharded(self):  # for broadcast_optimizer_state()
        return self._engine is not None and self._engine.is_sharded()

    def _broadcast_wrapped(self, root):
        broadcast_optimizer_state(self, root, self._process_set)

    # --- torch.optim.Optimizer ---

    def step(self, closure=None):
        """Reduces the gradients unless synchronize() has done so, and steps. Blocks until they are
        reduced. `closure` is evaluated once."""
        if hasattr(self._wrapped_optimizer.step, "_wrapped_by_lr_sched"):
            self._wrapped_optimizer._opt_called = True  # or its schedulers would warn
        if self._engine is None:
            return super().step(closure)
        if self._is_synchronized and not self._skips_synchronize:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(). Kolo does not reduce twice; Horovod would.",
                stacklevel=2)
        self._is_synchronized = False
        loss = None

        def evaluate():
            nonlocal loss
            with torch.enable_grad():
                loss = closure()

        self._engine.step(None if closure is None else evaluate)
        return loss

    def zero_grad(self, *args, **kwargs):
        """Drops all gradients. If some have arrived since the last step(), it discards them on all
        ranks, and must be called on all."""
        if self._engine is not None:
            self._is_synchronized = False
            self._engine.discard()
        super().zero_grad(*args, **kwargs)

    def state_dict(self):
        if self._engine is not None:
            self._engine.require_state_map()
        return super().state_dict()

    def load_state_dict(self, state_dict):
        if self._engine is not None:
            self._engine.require_state_map()
        groups, state = self.param_groups, self.state
        super().load_state_dict(state_dict)  # makes new ones
        groups[:] = self.param_groups
        state.clear()
        state.update(self.state)
        self.param_groups, self.state = groups, state  # still those of the wrapped optimizer

    def __reduce_ex__(self, protocol):
        raise TypeError("A DistributedOptimizer cannot be copied or pickled. Use state_dict().")

    # --- Horovod's ---

    def synchronize(self):
        """Blocks until all gradients are reduced, so that the program can read and change them
        before step()."""
        if self._engine is not None:
            self._engine.synchronize()
            self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Under it, step() does not reduce gradients."""
        if self._engine is not None:
            self._engine.add_skip_synchronize()
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False
            if self._engine is not None:
                self._engine.remove_skip_synchronize()

    # --- beyond Horovod: as kolo::DistributedOptimizer in C++, where they are described ---

    @contextlib.contextmanager
    def no_sync(self):
        """Under it, backward() adds up gradients on this rank, and nothing is reduced."""
        self._require_engine().add_no_sync()
        try:
            yield
        finally:
            self._engine.remove_no_sync()

    def backward(self, loss_sum, count):
        """Runs backward on a loss that is normalised by the `count`s of all ranks and passes."""
        self._require_engine().backward(loss_sum, count)

    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        """Waits for the gradients, then scales all of them so that their total norm is at most
        `max_norm`. Needs no skip_synchronize(). Returns the norm before, the same on all ranks, in
        every shard mode."""
        return self._require_engine().clip_grad_norm_(max_norm, norm_type)

    def clip_grad_value_(self, max_value):
        """Waits for the gradients, then limits each element to [-max_value, max_value]."""
        self._require_engine().clip_grad_value_(max_value)

    def join(self):
        """Declares that this rank takes no more steps, and blocks until all have joined. All then
        have the parameters and the state of one that has taken the most steps. Returns the rank
        that joined last."""
        return self._require_engine().join()

    def save(self, folder, keep_last=1, extras=None, in_background=False):
        """Writes a checkpoint: parameters, buffers, state and options of the optimizer, and the
        states of random number generators. Programs in C++ load it, too. Collective. Returns a
        dictionary: path, and the names of the saved parameters and buffers.

        `keep_last`: keeps this many of the newest; 0: all. `extras`: a dictionary of strings, the
        same on all ranks. `in_background`: returns once this rank has copied its share, without a
        path, and writes the files while training goes on; wait_for_save(), or the next save, load
        or join, raises what went wrong."""
        return self._require_engine().save(os.fspath(folder), keep_last, extras or {},
                                           in_background)

    def wait_for_save(self):
        """Waits for a save in the background. Returns what save() would, or None if there was none.
        Collective."""
        return self._require_engine().wait_for_save()

    def load(self, path, strict=True, optimizer_state=True, random_state=True):
        """Resumes from a checkpoint of any number of ranks, any shard mode and either language, or
        loads parameters from a file of safetensors. Collective. Returns a dictionary: path, steps,
        extras, which tensors it took, and which options it replaced. `strict` also asks for the
        class of the optimizer, and for the groups, that were saved."""
        return self._require_engine().load(os.fspath(path), strict, optimizer_state, random_state)

    def save_full_state(self, file, root=0):
        """Rank `root` writes one file of safetensors with all parameters, buffers and state."""
        self._require_engine().save_full_state(os.fspath(file), root)

    def full_parameters(self, write):
        """Runs `write()`, which may change parameters. Only needed with shard="full"."""
        self._require_engine().full_parameters(write)

    def check_replicas(self):
        """Raises MismatchError on all ranks if parameters differ between ranks."""
        self._require_engine().check_replicas()

    def for_each_gradient(self, visit):
        """Waits for the gradients, then calls `visit(name, gradient)` with this rank's pieces of
        them, in every shard mode, which may change them in place. Returns how many ranks visit each
        element."""
        return self._require_engine().for_each_gradient(visit)

    def parameter_state(self, parameter):
        """The state of a parameter, whole in every shard mode, as a dictionary of copies and
        numbers. Collective if the optimizer is sharded."""
        return self._require_engine().parameter_state(parameter)

    def reset_parameter_state(self, parameter):
        """Resets it to that of a new optimizer. To be called on all ranks."""
        self._require_engine().reset_parameter_state(parameter)

    def _require_engine(self):
        if self._engine is None:
            raise RuntimeError("DistributedOptimizer: this rank is not in its process set, and "
                               "steps alone.")
        return self._engine


_Distributed.step.hooked = True  # the wrapped class calls the hooks of a step


def _names_of(groups, named):
    """The names of parameters by parameter."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    if named is None:
        return {parameter: f"allreduce.noname.{i}.{j}" for i, group in enumerate(groups)
                for j, parameter in enumerate(group["params"])}
    named = list(named)
    if not all(isinstance(pair, tuple) for pair in named):
        raise ValueError("named_parameters must be pairs of a name and a parameter, as from "
                         "model.named_parameters().")
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named_parameters has several parameters of the same name: "
                         f"{', '.join(twice)}. Rename all but one.")
    of_parameters = {parameter: name for name, parameter in named}
    unnamed = sum(parameter not in of_parameters for parameter in parameters)
    if unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's {len(parameters)} "
                         "parameters. Name all, or leave named_parameters out.")
    return of_parameters


def _groups_of(groups, parameters):
    """Lists of parameters that are reduced together."""
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups is {groups}; it must be a list of lists of parameters, or "
                             "how many there are.")
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        share, rest = divmod(len(trained), groups or 1)
        ends = [share * (i + 1) + min(i + 1, rest) for i in range(groups)]
        return [trained[begin:end] for begin, end in zip([0, *ends], ends) if begin < end]
    for group in groups:
        if not all(isinstance(parameter, torch.Tensor) for parameter in group):
            raise ValueError("groups must be a list of lists of parameters, or how many there are.")
    return [list(group) for group in groups]


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set, *, model=None, shard=None,
                         master_weights=False, reduce_dtype=None, bucket_bytes=0,
                         error_feedback=True):
    """Wraps an optimizer for data-parallel training: gradients are reduced over all ranks while
    backward() still runs. Returns an object of the optimizer's class, which shares its parameter
    groups and its state; use this one from now on. An earlier DistributedOptimizer that trains any
    of its parameters lets go of all of its own, and ends with RuntimeError when it is used.
    Collective over the process set.

    The arguments before `*` are those of Horovod 0.28; num_groups is the old name of groups.

    optimizer: any torch.optim.Optimizer but LBFGS, over parameters on one device.
    named_parameters: pairs of a name and a parameter; the same on all ranks.
    compression: Compression.none, .fp16, .bf16, …
    backward_passes_per_step: calls of backward() before gradients, which add up, are reduced.
    op: Average, Sum or Adasum, which combines gradients, where Horovod's combines updates.
    gradient_predivide_factor: f: gradients are multiplied by 1/f before the sum and by f after it.
    groups: lists of parameters that are reduced together, or how many equal ones there are.
    sparse_as_dense: makes sparse gradients dense.
    process_set: reduces over its ranks only. On other ranks the optimizer steps alone.
    model: supplies names, instead of named_parameters, and buffers, as they are when save() writes
        them.
    shard: "optimizer", "gradients" or "full": what is sharded over the ranks instead of replicated,
        as ZeRO-1, -2 and -3. An optimizer that looks at whole parameters, such as Adafactor or
        Muon, has one rank that steps each. Default: the setting KOLO_SHARD.
    master_weights, reduce_dtype, bucket_bytes, error_feedback: as in C++; see
        include/kolo/torch/distributed_optimizer_options.hpp.

    While gradients are reduced, until step() or synchronize(), a program may read them, which is
    undefined, but not write to them: torch raises RuntimeError ("Cannot access data pointer"). Call
    synchronize(), or clip_grad_norm_() of the optimizer, first. From the third step on, options
    that differ between ranks, such as the learning rate, are an error on all ranks.
    """
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; it must be "
                         "positive.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is for op=Average only.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is {optimizer!r}, not a torch.optim.Optimizer.")
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}, not an hvd.ProcessSet.")
    if not hasattr(compression, "codec"):
        raise TypeError(f"compression is {compression!r}, not one of hvd.Compression.")
    if compression.codec is None:
        raise ValueError(f"compression is {compression!r}, of the program's own: the "
                         "optimizer compresses in C++. Pass one of Compression.")
    if num_groups:
        warnings.warn("num_groups is now called groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already. Wrap it once.")
    base = type(optimizer)
    distributed = type(base.__name__, (_Distributed, base), {"__doc__": base.__doc__})
    wrapped = distributed.__new__(distributed)
    # Not what a scheduler has put in place of step(), which would step the wrapped optimizer.
    wrapped.__dict__.update((name, value) for name, value in vars(optimizer).items()
                            if name != "step")
    named = None if named_parameters is None else list(named_parameters)
    names = _names_of(wrapped.param_groups,
                      model.named_parameters() if named is None and model is not None else named)

    options = _kolo.DistributedOptimizerOptions()
    for name, value in {
            "op": op, "gradient_predivide_factor": gradient_predivide_factor,
            "sparse_as_dense": sparse_as_dense, "reads_in_flight": True,
            "backward_passes_per_step": backward_passes_per_step,
            "compression": compression.codec, "shard": shard, "master_weights": master_weights,
            "reduce_dtype": reduce_dtype, "bucket_bytes": bucket_bytes,
            "error_feedback": error_feedback,
            "groups": [] if groups is None else _groups_of(groups, list(names))}.items():
        try:
            setattr(options, name, value)
        except TypeError:
            raise TypeError(f"{name} is {value!r}, of a type that it cannot have; see "
                            "help(hvd.DistributedOptimizer).") from None
    wrapped._start(optimizer, names, named, model, process_set, options)
    return wrapped
