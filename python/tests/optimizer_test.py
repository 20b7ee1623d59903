"""hvd.DistributedOptimizer under mpirun, against one process: python optimizer_test.py
[mpirun...]"""

import ranks

HEAD = """
import glob, json, sys, tempfile
import torch
import kolo
import kolo.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), weight_decay=0.2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01, initial_accumulator_value=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
}
SHARDS = ("none", "optimizer", "gradients", "full")

def model_of(seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)
    return torch.nn.Sequential(*layers).double()

def values_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

def batch_of(step, samples=12):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(samples, 6, dtype=torch.double, generator=generator)

def loss_of(model, batch):
    return model(batch).square().mean()

def train(model, optimizer, steps, scheduler=None, alone=False):
    for step in steps:
        batch = batch_of(step)
        optimizer.zero_grad()
        loss_of(model, batch if alone else batch.chunk(size)[rank]).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()

def expect_close(model, wanted, what):
    difference = (values_of(model) - wanted).abs().max().item()
    assert difference < 1e-12, f"{what}: {difference}"

def expect_error(kind, text, work):
    try:
        work()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no error: {text}")
"""


class OptimizerTest(ranks.Ranks):
    head = HEAD

    def test_every_class_trains_as_one_process_in_every_shard_mode(self):
        for count in (1, 2, 3):
            self.run_ranks(count, """
for name, make in OPTIMIZERS.items():
    wanted = model_of()
    train(wanted, make(wanted.parameters()), range(5), alone=True)
    for shard in SHARDS:
        model = model_of()
        train(model, hvd.DistributedOptimizer(make(model.parameters()), model=model, shard=shard),
              range(5))
        expect_close(model, values_of(wanted), f"{name} {shard}")
""")

    def test_resumes_with_another_shard_mode_and_number_of_ranks(self):
        resumed = """
CASES = [(name, saved, shard) for name in ("SGD", "AdamW", "NAdam")
         for saved, shard in zip(SHARDS, reversed(SHARDS))]
def start(name, shard, seed):
    model = model_of(seed)
    return model, hvd.DistributedOptimizer(OPTIMIZERS[name](model.parameters()), model=model,
                                           shard=shard)
"""
        for saved_by, loaded_by in ((2, 3), (3, 1)):
            folder = self.run_ranks(saved_by, resumed + """
folder = hvd.broadcast_object(tempfile.mkdtemp())
for name, saved, _ in CASES:
    model, optimizer = start(name, saved, seed=0)
    train(model, optimizer, range(3), torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    optimizer.save(f"{folder}/{name}-{saved}", extras={"epoch": "3"})
if rank == 0:
    print(folder)
""").strip()
            self.run_ranks(loaded_by, resumed + f"""
for name, saved, shard in CASES:
    wanted = model_of()
    optimizer = OPTIMIZERS[name](wanted.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    train(wanted, optimizer, range(6), scheduler, alone=True)
    model, optimizer = start(name, shard, seed=7)
    loaded = optimizer.load(f"{folder}/{{name}}-{{saved}}")
    assert (loaded["steps"], loaded["extras"]) == (3, {{"epoch": "3"}}), loaded
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scheduler.last_epoch = 3
    train(model, optimizer, range(3, 6), scheduler)
    expect_close(model, values_of(wanted), f"{{name}}, {{saved}} to {{shard}}")
""")

    def test_a_class_that_steps_whole_parameters_is_sharded_by_parameters(self):
        self.run_ranks(2, """
folder = hvd.broadcast_object(tempfile.mkdtemp())
class Lars(torch.optim.SGD):  # torch does not know it: Kolo steps a probe
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(p.detach().norm() / (p.grad.norm() + 1e-6))
        return super().step(closure)
def lars(parameters):
    return Lars(parameters, lr=0.02, momentum=0.9)
for make in torch.optim.Adafactor, lars:
    wanted = model_of()
    train(wanted, make(wanted.parameters()), range(6), alone=True)
    for saved, shard in zip(SHARDS, SHARDS[1:] + SHARDS[:1]):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model=model, shard=saved)
        train(model, optimizer, range(3))
        optimizer.save(folder, in_background=True)
        optimizer.wait_for_save()
        del optimizer
        model = model_of(seed=7)
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model=model, shard=shard)
        optimizer.load(folder)
        train(model, optimizer, range(3, 6))
        expect_close(model, values_of(wanted), f"{make}, {saved} to {shard}")
        del optimizer
""")

    def test_checkpoints_name_what_cpp_names(self):
        self.run_ranks(2, """
folder = hvd.broadcast_object(tempfile.mkdtemp())
WANTED = {
    "SGD": (["dampening", "lr", "momentum", "nesterov", "weight_decay"], [], ["momentum_buffer"]),
    "Adam": (["amsgrad", "betas", "eps", "lr", "weight_decay"], ["step"],
             ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    "AdamW": (["amsgrad", "betas", "eps", "lr", "weight_decay"], ["step"],
              ["exp_avg", "exp_avg_sq"]),
    "RMSprop": (["alpha", "centered", "eps", "lr", "momentum", "weight_decay"], ["step"],
                ["grad_avg", "momentum_buffer", "square_avg"]),
    "Adagrad": (["eps", "initial_accumulator_value", "lr", "lr_decay", "weight_decay"], ["step"],
                ["sum"]),
}
for name, (options, numbers, tensors) in WANTED.items():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name](model.parameters()), model=model)
    train(model, optimizer, range(2))
    optimizer.save(f"{folder}/{name}")
    (file,) = glob.glob(f"{folder}/{name}/*/index.json")
    details = json.load(open(file))["details"]
    assert sorted(details["groups"][0]) == options, details["groups"]
    state = details["state"]["0.bias"]
    assert state["numbers"] == dict.fromkeys(numbers, 2), state
    assert state["tensors"] == dict.fromkeys(tensors, True), state
""")

    def test_accumulation_closures_and_clipping(self):
        self.run_ranks(2, """
wanted = model_of()
optimizer = torch.optim.SGD(wanted.parameters(), 0.1)
norms = []
for step in range(3):
    optimizer.zero_grad()
    (loss_of(wanted, batch_of(step)) / 2).backward()
    (loss_of(wanted, batch_of(step + 10)) / 2).backward()
    norms.append(torch.nn.utils.clip_grad_norm_(wanted.parameters(), 0.05).item())
    optimizer.step()
mine = lambda step: batch_of(step).chunk(size)[rank]
for shard in ("none", "gradients"):
    for way in ("passes", "no_sync", "closure"):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), shard=shard,
            backward_passes_per_step=1 if way == "no_sync" else 2, groups=2)
        for step in range(3):
            def passes():
                (loss_of(model, mine(step)) / 2).backward()
                last = loss_of(model, mine(step + 10)) / 2
                last.backward()
                return 2.5
            optimizer.zero_grad()
            if way == "no_sync":
                with optimizer.no_sync():
                    (loss_of(model, mine(step)) / 2).backward()
                (loss_of(model, mine(step + 10)) / 2).backward()
            elif way == "passes":
                passes()
            if way == "closure":  # not clipped
                assert optimizer.step(passes) == 2.5
            else:
                assert abs(optimizer.clip_grad_norm_(0.05) - norms[step]) < 1e-12
                with optimizer.skip_synchronize() if shard == "none" else optimizer.no_sync():
                    optimizer.step()
        if way != "closure":
            expect_close(model, values_of(wanted), f"{shard} {way}")
plain = model_of()
optimizer = torch.optim.SGD(plain.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    (loss_of(plain, batch_of(step)) / 2 + loss_of(plain, batch_of(step + 10)) / 2).backward()
    optimizer.step()
expect_close(model, values_of(plain), "closure")
""")

    def test_compression_loses_little_but_something(self):
        self.run_ranks(2, """
wanted = model_of()
train(wanted, torch.optim.SGD(wanted.parameters(), 0.1), range(3), alone=True)
way = (values_of(wanted) - values_of(model_of())).abs().max().item()  # that training has gone
for compression, bound in ((hvd.Compression.fp16, 1e-4), (hvd.Compression.bf16, 1e-3),
                           (hvd.Compression.named("int8"), 1e-3),
                           (hvd.Compression.named("top_k:0.5"), way / 5)):
    for shard in ("none", "gradients"):
        model = model_of()
        train(model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), shard=shard,
                                              compression=compression), range(3))
        difference = (values_of(model) - values_of(wanted)).abs().max().item()
        assert 0 < difference < bound, (compression.codec, shard, difference)
class Own(hvd.Compression.fp16):
    compress = staticmethod(lambda tensor: (tensor, None))
for own in (Own, Own()):
    expect_error(ValueError, "of the program's own", lambda: hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), compression=own))
""")

    def test_wrapping_keeps_what_schedulers_and_programs_see(self):
        self.run_ranks(2, """
model = model_of()
inner = torch.optim.Adam(model.parameters(), 0.1)
before = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
calls = []
optimizer.register_step_post_hook(lambda *_: calls.append("post"))
train(model, optimizer, range(2), before)
assert optimizer.param_groups[0]["lr"] == 0.025 and calls == ["post"] * 2
late = torch.nn.Parameter(torch.ones(2).double() * (rank + 1))
optimizer.add_param_group({"params": [late], "lr": 1.0})
optimizer.zero_grad()
late.sum().backward()
optimizer.step()
assert torch.equal(late.grad, torch.ones(2).double())
calls.clear()
hvd.broadcast_optimizer_state(optimizer, 1)  # rank 0 loads a state
assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
train(model, optimizer, range(2, 4), before)
assert calls == ["post"] * 2 and optimizer.param_groups[0]["lr"] == 0.1 * 0.5 ** 4
first = [hvd.broadcast(parameter, 0) for parameter in model.parameters()]
assert all(map(torch.equal, first, model.parameters()))
""")

    def test_classes_of_the_program(self):
        self.run_ranks(2, """
import copy
class Derived(torch.optim.Adam):
    def zero_grad(self):
        super().zero_grad(set_to_none=True)
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr, names=("a", "b"), limit=None))
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(count=torch.zeros((), dtype=torch.double), steps=0,
                                 total=torch.zeros_like(parameter))
                state["count"].add_(1)
                state["steps"] += 1
                state["total"].add_(parameter.grad)
                parameter.data.sub_(group["lr"] * state["total"] / state["count"])
folder = hvd.broadcast_object(tempfile.mkdtemp())
for make in (lambda p: Derived(p, 0.01), lambda p: Own(p, 0.1)):
    wanted = model_of()
    train(wanted, make(wanted.parameters()), range(4), alone=True)
    for shard in ("none", "optimizer"):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model=model, shard=shard)
        train(model, optimizer, range(2))
        name = f"{folder}/{type(optimizer).__name__}-{shard}"
        optimizer.save(name)
        model = model_of(seed=7)
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model=model, shard=shard)
        optimizer.load(name)
        train(model, optimizer, range(2, 4))
        expect_close(model, values_of(wanted), f"{type(optimizer).__name__} {shard}")
expect_error(TypeError, "Use state_dict()", lambda: copy.deepcopy(optimizer))
expect_error(ValueError, "Wrap it once", lambda: hvd.DistributedOptimizer(optimizer))
""")

    def test_sharded_gradients_and_state(self):
        self.run_ranks(2, """
wanted = model_of()
adam = torch.optim.Adam(wanted.parameters(), 0.01)
train(wanted, adam, range(2), alone=True)
for shard in SHARDS:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01 * (1 + rank)),
                                         model=model, shard=shard)
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    train(model, optimizer, range(1))
    optimizer.zero_grad()
    loss_of(model, 2 * batch_of(1).chunk(size)[rank]).backward()
    optimizer.for_each_gradient(lambda name, gradient: gradient.zero_())
    assert optimizer.clip_grad_norm_(1.0) == 0.0
    optimizer.zero_grad()
    loss_of(model, batch_of(1).chunk(size)[rank]).backward()
    optimizer.step()
    expect_close(model, values_of(wanted), shard)
    state = optimizer.parameter_state(model[0].weight)
    assert state["step"] == 2, state["step"]
    assert torch.allclose(state["exp_avg"], adam.state[wanted[0].weight]["exp_avg"], atol=1e-14)
""")

    def test_errors_are_the_same_on_all_ranks(self):
        self.run_ranks(2, """
model = model_of()
named = list(model.named_parameters())
sgd = lambda: torch.optim.SGD(model.parameters(), 0.1)
expect_error(ValueError, "lacks 3 of the optimizer's 4",
             lambda: hvd.DistributedOptimizer(sgd(), named[:1]))
expect_error(ValueError, "the same name: a", lambda: hvd.DistributedOptimizer(
    sgd(), [("a", parameter) for _, parameter in named]))
expect_error(kolo.MismatchError, "backward_passes_per_step", lambda: hvd.DistributedOptimizer(
    sgd(), named, backward_passes_per_step=1 + rank))
expect_error(kolo.InvalidArgument, "LBFGS", lambda: hvd.DistributedOptimizer(
    torch.optim.LBFGS(model.parameters()), named))
expect_error(kolo.InvalidArgument, "zero",
             lambda: hvd.DistributedOptimizer(sgd(), named, shard="zero"))

for wrong in dict(op="average"), dict(shard=3), dict(bucket_bytes="1MB"), dict(
        reduce_dtype="float32"), dict(process_set=0), dict(compression="fp16"):
    (name, value), = wrong.items()
    expect_error(TypeError, f"{name} is {value!r}",
                 lambda: hvd.DistributedOptimizer(sgd(), named, **wrong))
expect_error(TypeError, "optimizer is None", lambda: hvd.DistributedOptimizer(None))
half = torch.nn.Linear(2, 2).bfloat16()
expect_error(kolo.InvalidArgument, "by reduce_dtype", lambda: hvd.DistributedOptimizer(
    torch.optim.AdamW(half.parameters()), model=half, reduce_dtype=torch.float32))

# An option that is not a number is one that does not change.
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(half.parameters(), float("nan")), model=half)
for _ in range(3):
    optimizer.zero_grad()
    half(torch.ones(1, 2).bfloat16()).sum().backward()
    optimizer.step()
optimizer.param_groups[0]["maximize"] = True
expect_error(kolo.InvalidArgument, "option maximize of parameter group 0 has been set",
             optimizer.step)

optimizer = hvd.DistributedOptimizer(sgd(), named)
train(model, optimizer, range(1))
loss_of(model, batch_of(1)).backward()
expect_error(RuntimeError, "data pointer",
             lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
optimizer.step()
optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank)
def differ():
    for step in range(3):
        train(model, optimizer, [step])
expect_error(kolo.MismatchError, "option lr of parameter group 0", differ)
optimizer.param_groups[0]["lr"] = 0.1
hvd.broadcast_parameters(model.state_dict(), 0)
train(model, optimizer, range(3))

def fail():
    raise KeyError("of the program")
expect_error(KeyError, "of the program", lambda: optimizer.step(fail))

sharded = model_of()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(sharded.parameters(), 0.1),
                                     sharded.named_parameters(), shard="optimizer")
expect_error(kolo.InvalidArgument, "shard = optimizer", optimizer.state_dict)
""")

    def test_ranks_outside_the_process_set_step_alone(self):
        self.run_ranks(3, """
pair = hvd.add_process_set([0, 2])
model = model_of()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), process_set=pair)
optimizer.zero_grad()
loss_of(model, batch_of(rank)).backward()
optimizer.step()
wanted = model_of()
sgd = torch.optim.SGD(wanted.parameters(), 0.1)
sum(loss_of(wanted, batch_of(each)) for each in ([1] if rank == 1 else [0, 2])).backward()
for parameter in wanted.parameters():
    parameter.grad /= 1 if rank == 1 else 2
sgd.step()
expect_close(model, values_of(wanted), "set")
""")

    def test_join_lets_ranks_take_different_numbers_of_steps(self):
        self.run_ranks(2, """
wanted = model_of()
adam = torch.optim.Adam(wanted.parameters(), 0.1)
train(wanted, adam, range(2), alone=True)
adam.zero_grad()
(loss_of(wanted, batch_of(2).chunk(size)[1]) / size).backward()  # rank 0 has joined
adam.step()
for shard in ("none", "optimizer"):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.1), shard=shard)
    train(model, optimizer, range(2 + rank))
    assert optimizer.join() == 1
    expect_close(model, values_of(wanted), shard)
    every = hvd.allgather(values_of(model)[None])
    assert torch.equal(every[0], every[1])
""")

    def test_a_later_optimizer_takes_parameters_over(self):
        """Of one that a scheduler keeps alive, with gradients on their way."""
        self.run_ranks(2, """
def wrap(parameters, shard, **options):
    sgd = torch.optim.SGD(parameters, 0.1)
    return hvd.DistributedOptimizer(sgd, shard=shard, **options)
for shard in SHARDS:
    wanted = model_of()
    train(wanted, torch.optim.SGD(wanted.parameters(), 0.1), range(4), alone=True)
    model = model_of()
    other = torch.nn.Parameter(torch.ones(1, dtype=torch.double))
    apart = wrap([other], shard)
    optimizers, schedulers = [], []
    for step in range(4):
        optimizers.append(wrap(model.parameters(), shard, model=model))
        schedulers.append(torch.optim.lr_scheduler.StepLR(optimizers[-1], 100))
        train(model, optimizers[-1], [step])
        optimizers[-1].zero_grad()
        loss_of(model, batch_of(9)).backward()
    head = wrap(model[2].parameters(), shard, named_parameters=model.named_parameters())
    for replaced in optimizers:
        for use in replaced.step, replaced.zero_grad, replaced.state_dict:
            expect_error(RuntimeError, "has let go of all of its own. Use the later one", use)
    expect_error(RuntimeError, "parameter '2.weight' over", optimizers[-1].synchronize)
    expect_close(model, values_of(wanted), shard)
    apart.zero_grad()
    (other * (rank + 1)).sum().backward()
    apart.step()
    assert abs(other.item() - 0.85) < 1e-12
""")

    def test_schedulers_of_the_wrapped_optimizer_warn_as_without_one(self):
        self.run_ranks(2, """
import warnings
def count_warnings(order, wraps):
    model = model_of()
    inner = optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in order.split():
            if each == "make":
                scheduler = torch.optim.lr_scheduler.StepLR(inner, 1)
            elif each == "wrap":
                optimizer = hvd.DistributedOptimizer(inner) if wraps else inner
            elif each == "schedule":
                scheduler.step()
            else:
                train(model, optimizer, [1])
    assert all("lr_scheduler.step()` before `optimizer.step" in str(it.message) for it in caught)
    return len(caught)
for order, expected in {"make wrap train schedule": 0, "wrap make train schedule": 0,
                        "make wrap schedule train": 1, "wrap train make schedule": 1,
                        "wrap make schedule train schedule": 1}.items():
    assert count_warnings(order, False) == count_warnings(order, True) == expected, order
""")


if __name__ == "__main__":
    ranks.main()
