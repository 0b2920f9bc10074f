"""`DistributedOptimizer`: the weights of one process on the whole batch, in every form of its arguments."""

import contextlib
import copy

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError, MismatchError

STEPS, ROWS = 4, 6


def model_of(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def batch(step, size):
    """The batch of all ranks."""
    torch.manual_seed(100 + step)
    return torch.randn(ROWS * size, 4).double(), torch.randn(ROWS * size, 2).double()


def train(model, optimizer, take, passes=1):
    """`take` gives the part of a batch."""
    loss = torch.nn.MSELoss()
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            inputs, targets = (take(whole) for whole in batch(step * passes + part, hvd.size()))
            (loss(model(inputs), targets) / passes).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def own(whole):
    return whole[hvd.rank() * ROWS : (hvd.rank() + 1) * ROWS]


def close(ours, theirs):
    return all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(ours, theirs, strict=True))


KINDS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.05, fused=True),
    "two groups": lambda parameters: torch.optim.SGD(
        [{"params": [each], "lr": 0.1 * place} for place, each in enumerate(parameters, 1)]
    ),
}
FORMS = {
    "plain": {},
    "named": {"named_parameters": True},
    "buckets": {"groups": 3},
    "older": {"num_groups": 2},
    "predivided": {"gradient_predivide_factor": 4.0},
    "accumulated": {"backward_passes_per_step": 3},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_parity_with_one_process(kind, form):
    alone, model = model_of(), model_of()
    options = dict(FORMS[form])
    if options.pop("named_parameters", False):
        options["named_parameters"] = model.named_parameters()
    passes = options.get("backward_passes_per_step", 1)
    expected = train(alone, KINDS[kind](alone.parameters()), lambda whole: whole, passes)
    optimizer = hvd.DistributedOptimizer(KINDS[kind](model.parameters()), **options)
    assert close(train(model, optimizer, own, passes), expected)


def test_sum_compression_and_lists_of_parameters(size):
    alone, model = model_of(), model_of()
    expected = train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), lambda whole: whole)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / size)
    groups = [[model[0].weight, model[2].bias]]
    hvd.DistributedOptimizer(optimizer, op=hvd.Sum, groups=groups)
    assert close(train(model, optimizer, own), expected)
    halved = model_of()
    optimizer = torch.optim.SGD(halved.parameters(), lr=0.1)
    hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16)
    half = train(halved, optimizer, own)
    assert all(torch.allclose(a, b, atol=1e-2) for a, b in zip(half, expected, strict=True))


def test_clipping_between_synchronize_and_step(size):
    def clipped(model, optimizer, take, context):
        loss = torch.nn.MSELoss()
        inputs, targets = (take(whole) for whole in batch(0, size))
        loss(model(inputs), targets).backward()
        if context:
            optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if context:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    alone, model = model_of(), model_of()
    expected = clipped(alone, torch.optim.SGD(alone.parameters(), lr=0.5), lambda whole: whole, False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    assert close(clipped(model, optimizer, own, True), expected)


CHANGES = {
    "clipped": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "replaced": lambda model: setattr(model[0].bias, "grad", model[0].bias.grad * 2),
    "removed": lambda model: setattr(model[0].bias, "grad", None),
}


@pytest.mark.parametrize("how", CHANGES)
def test_gradients_that_are_changed_on_their_way(size, how):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), groups=2)
    model(own(batch(0, size)[0])).sum().backward()
    CHANGES[how](model)
    with pytest.raises(ConfigError, match=r"of parameter \d was changed after backward\(\) and before step\(\)"):
        optimizer.step()
    optimizer.zero_grad()  # and the next step is one like any other
    model(own(batch(1, size)[0])).sum().backward()
    optimizer.step()


def test_a_step_after_synchronize_reduces_twice(size, caplog):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    model(own(batch(0, size)[0])).sum().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    warned = [record.getMessage() for record in caplog.records]
    assert (
        len(warned) == 1 and "optimizer.step() after optimizer.synchronize() reduces the gradients twice" in warned[0]
    )


def scaled_losses(model, optimizer, take, size, clips):
    """Four steps with a `GradScaler`; the second has a loss that is infinite, on one rank of all.

    Without clipping the script is that of one process.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = batch(step, size)
        if step == 1:
            inputs[-1] = float("inf")
        scaler.scale(torch.nn.functional.mse_loss(model(take(inputs)), take(targets))).backward()
        if clips == "Horovod's way" and take is own:
            optimizer.synchronize()
        if clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        skips = clips == "Horovod's way" and take is own
        with optimizer.skip_synchronize() if skips else contextlib.nullcontext():
            scaler.step(optimizer)
        scaler.update()
    return [parameter.detach() for parameter in model.parameters()], scaler.get_scale()


@pytest.mark.parametrize("clips", ["", "as one process does", "Horovod's way"])
@pytest.mark.parametrize("kind", KINDS)
def test_scaled_losses_of_which_one_is_infinite(size, kind, clips, caplog):
    alone, model = model_of(), model_of()
    expected, scale = scaled_losses(alone, KINDS[kind](alone.parameters()), lambda whole: whole, size, clips)
    assert scale == 64.0  # halved, and doubled again
    optimizer = hvd.DistributedOptimizer(KINDS[kind](model.parameters()))
    found, own_scale = scaled_losses(model, optimizer, own, size, clips)
    assert close(found, expected) and own_scale == scale
    assert "twice" not in caplog.text
    assert close(found, hvd.broadcast_object(found, 0))


def test_the_step_after_a_scaler_does_not_sum_again(size):
    alone, model = model_of(), model_of()
    expected, _ = scaled_losses(alone, torch.optim.SGD(alone.parameters(), lr=0.1), lambda whole: whole, size, "")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1 / size), op=hvd.Sum)
    assert close(scaled_losses(model, optimizer, own, size, "")[0], expected)


def test_a_closure_reduces_after_each_call(size):
    def fit(model, take):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
        if take is own:
            optimizer = hvd.DistributedOptimizer(optimizer)
        inputs, targets = (take(whole) for whole in batch(0, size))

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return hvd.allreduce(loss.detach())

        optimizer.step(closure)
        return [parameter.detach() for parameter in model.parameters()]

    ours, theirs = fit(model_of(), own), fit(model_of(), lambda whole: whole)
    assert all(torch.allclose(a, b, rtol=1e-8) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("groups", [None, 2])
def test_buckets_follow_the_first_backward_pass(groups, monkeypatch):
    """Unless the script has chosen them. The optimizer has the parameters in the opposite order."""
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", "1")
    alone, model = model_of(), model_of()
    expected = train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), lambda whole: whole)
    named = list(model.named_parameters())[::-1]
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    buckets = hvd.DistributedOptimizer(optimizer, named, groups=groups)._tfdist.buckets
    assert [each.name for bucket in buckets() for each in bucket] == [name for name, _ in named[::-1]]
    assert close(train(model, optimizer, own), expected)
    names = [each.name for bucket in buckets() for each in bucket]
    assert len(buckets()) == (groups or 4) and names[0][0] == ("0" if groups else "2"), names
    assert hvd.broadcast_object(names, 0) == names


def test_a_parameter_that_one_rank_does_not_use(rank, size, caplog):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    before = copy.deepcopy(model[0].bias.detach())
    for _ in range(2):
        optimizer.zero_grad()
        (model[0].bias.sum() if rank == 0 else model[2].bias.sum()).backward()
        optimizer.step()
    assert torch.allclose(model[0].bias.detach(), before - 2 / size)
    warned = [record.getMessage() for record in caplog.records if "2.weight has no gradient" in record.getMessage()]
    assert len(warned) == 1


@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("dense", [True, False])
def test_sparse_gradients(rank, size, dense, lacking):
    """In one step, the first or the second, only rank 0 has any."""
    torch.manual_seed(1)
    table = torch.nn.Embedding(5, 2, sparse=True).double()
    before = table.weight.detach().clone()
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    hvd.DistributedOptimizer(optimizer, sparse_as_dense=dense)
    for step in range(2):
        optimizer.zero_grad()
        if rank == 0 or step != lacking:
            table(torch.tensor([rank, 4])).sum().backward()
        optimizer.step()
    expected = torch.zeros(5)
    for r in range(size):
        expected[r] += 1 / size
        expected[4] += 1 / size
    expected[0] += 1 / size
    expected[4] += 1 / size
    assert torch.allclose(before - table.weight.detach(), expected[:, None].double(), rtol=1e-6)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.value)
@pytest.mark.parametrize("groups", [None, 2])
def test_gradients_that_are_expanded(rank, size, groups, op):
    """As `torch.autograd.grad` gives that of a sum; on one rank only, too."""
    weights = [torch.nn.Parameter(torch.ones(*shape)) for shape in ((3,), (2, 3))]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), groups=groups, op=op)
    for step in range(3):
        gradients = torch.autograd.grad(sum(weight.sum() for weight in weights) * (rank + 1), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient if step < 2 or rank == 0 else gradient.contiguous()
        optimizer.step()
    total = 3.0 * size * (size + 1) / 2 / (size if op is hvd.Average else 1)
    assert all(weight.unique().tolist() == [1.0 - total] for weight in weights)


@pytest.mark.parametrize("dense", [True, False])
def test_sparse_adam(rank, size, dense):
    """Its gradients are sparse, however they travel. In the first step only rank 0 has any."""

    def fit(take, **options):
        torch.manual_seed(1)
        table = torch.nn.Embedding(10, 3, sparse=True).double()
        optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
        if options:
            hvd.DistributedOptimizer(optimizer, **options)
        for step in range(2):
            optimizer.zero_grad()
            for places in [torch.tensor([1, 3 + r, 3 + step]) for r in take if step or r == 0]:
                (table(places).square().sum() / len(take)).backward()
            optimizer.step()
            assert table.weight.grad.is_sparse
        return [table.weight.detach()]

    assert close(fit([rank], sparse_as_dense=dense), fit(range(size)))


def test_an_optimizer_in_a_set(rank, size):
    """Ranks outside train for themselves."""
    even = hvd.add_process_set(list(range(0, size, 2)))
    inside = even.ranks if even.included() else [rank]
    alone, model = model_of(), model_of()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def together(whole):
        return torch.cat([whole[r * ROWS : (r + 1) * ROWS] for r in inside])

    expected = train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), together)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), process_set=even)
    assert close(train(model, optimizer, own), expected)
    late, whole = model_of(), model_of()  # the next one is of all ranks, who have made unequal numbers
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(late.parameters(), lr=0.1))
    expected = train(whole, torch.optim.SGD(whole.parameters(), lr=0.1), lambda each: each)
    assert close(train(late, optimizer, own), expected)
    hvd.remove_process_set(even)


def test_gradients_that_are_turned_on_and_off(size):
    """Two models in turn, as a generator and what judges it; each optimizer steps only when its model is trained."""

    def fit(take, distribute):
        torch.manual_seed(2)
        models = [model_of(), torch.nn.Linear(2, 1).double()]
        optimizers = [distribute(torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)) for each in models]
        for step in range(STEPS):
            for place, model in enumerate(models):
                model.requires_grad_(place == step % 2)
                optimizers[place].zero_grad()
            models[1](models[0](take(batch(step, size)[0]))).square().mean().backward()
            for place, model in enumerate(models):
                assert all((each.grad is not None) == (place == step % 2) for each in model.parameters())
            optimizers[step % 2].step()
        return [parameter.detach() for model in models for parameter in model.parameters()]

    assert close(fit(own, hvd.DistributedOptimizer), fit(lambda whole: whole, lambda optimizer: optimizer))


def test_adasum_of_the_same_changes_is_one_change(size):
    """Ranks with equal batches take the step of one."""
    alone, model = model_of(), model_of()
    expected = train(alone, torch.optim.Adam(alone.parameters(), lr=0.05), lambda whole: whole[:ROWS])
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.05), op=hvd.Adasum)
    assert close(train(model, optimizer, lambda whole: whole[:ROWS]), expected)
    with pytest.raises(ConfigError, match="op=Adasum"):
        optimizer.skip_synchronize()


def test_schedulers_and_state_stay(rank):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    assert hvd.DistributedOptimizer(optimizer) is optimizer and isinstance(optimizer, torch.optim.SGD)
    model(torch.full((2, 4), float(rank)).double()).sum().backward()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    gathered = hvd.allgather(model[0].weight.detach()[None])
    assert all(torch.equal(part, gathered[0]) for part in gathered)


def test_rules_that_scripts_must_keep(size):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    inputs = torch.ones(2, 4).double()
    model(inputs).sum().backward()
    with pytest.raises(ConfigError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(ConfigError, match="backward_passes_per_step=1"):
        model(inputs).sum().backward()
    with pytest.raises(ConfigError, match="was changed after backward"):
        optimizer.synchronize()
    optimizer.zero_grad()
    with pytest.raises(ConfigError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)
    late = torch.nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [late]})
    late.sum().backward()
    with pytest.raises(ConfigError, match="1 parameters have a gradient, but were not"):
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": hvd.Max}, "supports op=Average"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "needs op=Average"),
        ({"backward_passes_per_step": 0}, "above 0"),
        ({"groups": "all"}, "groups must be"),
        ({"groups": [[torch.ones(1)]]}, "does not have"),
        ({"groups": 2, "num_groups": 2}, "pass groups only"),
        ({"named_parameters": [("a", torch.ones(1)), ("a", torch.ones(1))]}, "more than once: a"),
        ({"named_parameters": [("a", torch.ones(1))]}, "lacks 4 of the 4"),
        ({"named_parameters": [torch.ones(1)]}, "pairs of a name"),
    ],
)
def test_arguments_that_cannot_be(options, text):
    with pytest.raises(ConfigError, match=text):
        hvd.DistributedOptimizer(torch.optim.SGD(model_of().parameters(), lr=1.0), **options)


@pytest.mark.parametrize("what", ["names", "shapes", "requires_grad"])
def test_another_plan_is_an_error_on_every_rank(rank, size, what):
    last = rank == size - 1
    model = torch.nn.Sequential(torch.nn.Linear(4, 5 + (last and what == "shapes")), torch.nn.Tanh()).double()
    model[0].bias.requires_grad = not (last and what == "requires_grad")
    names = [(f"late {name}" if last and what == "names" else name, part) for name, part in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=names)
    if size == 1:
        model(torch.ones(2, 4).double()).sum().backward()
        optimizer.step()
        return
    model(torch.ones(2, 4).double()).sum().backward()
    with pytest.raises(MismatchError, match=f"different parameters: rank 0 has .*, rank {size - 1} has "):
        optimizer.step()
