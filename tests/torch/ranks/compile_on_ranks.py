"""`torch.compile`, with the one of its backends that needs no compiler: models, and collectives inside functions."""

import torch

import tfdist.torch as hvd


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def trained(rows, **options):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if options:
        hvd.DistributedOptimizer(optimizer, **options)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        optimizer.zero_grad()
        compiled(rows).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_compiled_model_has_the_weights_of_one_process(rank, size):
    torch.manual_seed(1)
    rows = torch.randn(6 * size, 4).double()
    found = trained(rows[6 * rank : 6 * rank + 6], op=hvd.Average)
    assert torch.allclose(found, trained(rows), rtol=1e-12)


def test_a_collective_inside_a_compiled_function(rank, size):
    """It runs between two compiled parts."""

    @torch.compile(backend="aot_eager")
    def function(own):
        return hvd.allreduce(own * 2, op=hvd.Sum, name="inside") + 1

    for step in range(2):
        own = torch.full((3,), float(rank + step), requires_grad=True)
        result = function(own)
        assert result.tolist() == [2 * sum(r + step for r in range(size)) + 1] * 3
        result.sum().backward()
        assert own.grad.tolist() == [2 * size] * 3


def test_collectives_that_make_their_result(rank, size):
    @torch.compile(backend="aot_eager")
    def function(own):
        return hvd.allgather(own * 2) + 1, hvd.alltoall(own.repeat(size)) + 1

    gathered, exchanged = function(torch.full((2,), float(rank)))
    assert gathered.tolist() == [2.0 * r + 1 for r in range(size) for _ in range(2)]
    assert exchanged.tolist() == [r + 1.0 for r in range(size) for _ in range(2)]


def test_a_compiled_step_that_is_the_first(rank, size):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @torch.compile(backend="aot_eager")
    def step(rows):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    torch.manual_seed(1)
    rows = torch.randn(6 * size, 4).double()
    for _ in range(3):
        step(rows[6 * rank : 6 * rank + 6])
    found = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.allclose(found, trained(rows), rtol=1e-12)
