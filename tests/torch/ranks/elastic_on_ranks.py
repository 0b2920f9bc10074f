"""Elastic states and samplers, in a job that loses nobody."""

import pickle

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError

ElasticSampler, TorchState = hvd.elastic.ElasticSampler, hvd.elastic.TorchState


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def copy_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("count", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("shuffle", [True, False])
def test_parts_cover_the_dataset(size, count, shuffle):
    sampler = ElasticSampler(range(count), shuffle=shuffle)
    parts = hvd.allgather_object(list(sampler))
    assert {len(part) for part in parts} == {len(sampler)} and len(sampler) * size == sampler.total_size
    dealt = [row for part in parts for row in part]
    assert set(dealt) == set(range(count)) and len(dealt) - count < size
    if not shuffle and count:
        assert [part[0] for part in parts] == [rank % count for rank in range(size)]


def test_what_was_recorded_is_not_dealt_out_again(rank, size):
    sampler = ElasticSampler(range(10 * size), seed=3)
    first = list(sampler)
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    done = {row for part in hvd.allgather_object(first) for row in part[:4]}
    assert sampler.processed_num == 4 * size
    other = ElasticSampler(range(10 * size), seed=3)
    other.load_state_dict(sampler.state_dict())
    rest = [row for part in hvd.allgather_object(list(other)) for row in part]
    assert sorted([*done, *rest]) == list(range(10 * size))
    other.set_epoch(1)
    assert other.processed_num == 0 and list(other) != first
    assert sorted(row for part in hvd.allgather_object(list(other)) for row in part) == list(range(10 * size))


def test_a_sampler_needs_a_length():
    with pytest.raises(ConfigError, match="generator without a length; expected a dataset with __len__"):
        ElasticSampler(row for row in range(3))


def test_sync_takes_the_newest_commit(rank, size):
    model = model_of(rank)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1)))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sampler = ElasticSampler(range(20))
    state = TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, step=rank, extra=model_of(rank + 9))
    state.sync()  # that of rank 0
    assert equal(model.state_dict(), model_of(0).state_dict()) and equal(
        state.extra.state_dict(), model_of(9).state_dict()
    )
    assert (state.step, optimizer.param_groups[0]["lr"]) == (0, 0.1)
    step(model, optimizer)
    if rank == size - 1:  # the last one alone has committed the step
        scheduler.step()
        sampler.record_batch(0, 3)
        state.step = 7
        state.save()
    sampler.record_batch(1, 1)
    state.restore()
    state.sync()
    newest = hvd.broadcast_object(copy_of(model), size - 1)
    assert equal(model.state_dict(), newest) and not equal(newest, model_of(0).state_dict())
    assert (state.step, scheduler.last_epoch, sampler.processed_num) == (7, 1, 3 * size)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    averages = hvd.allgather_object(optimizer.state[model[0].weight]["exp_avg"])
    assert averages[0].abs().sum() > 0 and all(torch.equal(averages[0], other) for other in averages)


def test_a_sampler_goes_back_to_the_last_commit(size):
    sampler = ElasticSampler(range(8 * size))
    state = TorchState(sampler=sampler)
    state.sync()
    loader = torch.utils.data.DataLoader(range(8 * size), batch_size=2, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert sampler.processed_num == 0
        for number, _ in enumerate(loader):
            sampler.record_batch(number, 2)
            assert sampler.processed_num == 2 * size * (number + 1)
        assert len(list(loader)) == 4  # without another epoch it begins again
    sampler.set_epoch(2)
    for number in range(4):
        sampler.record_batch(number, 2)
        if number == 1:
            state.commit()
    state.restore()
    assert sampler.processed_num == 4 * size and len(sampler) == 4
    state.sync()
    assert sampler.processed_num == 4 * size and len(list(loader)) == 2


def test_restore_goes_back_to_the_last_commit(rank):
    model = model_of(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = TorchState(model, optimizer, batch=20 + rank, epoch=10 + rank)
    state.sync()
    for commits in (False, True):
        before = copy_of(model), state.batch, state.epoch
        step(model, optimizer)
        state.batch, state.epoch = 21, 11
        if commits:
            before = copy_of(model), 21, 11
            state.commit()
            step(model, optimizer)
            state.batch = 22
        assert not equal(model.state_dict(), before[0])
        state.restore()
        assert equal(model.state_dict(), before[0]) and (state.batch, state.epoch) == before[1:]
        assert commits or before[1:] == (20, 10)


def test_restore_leaves_no_gradient(rank):
    model = model_of(0)
    state = TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.randn(8, 3)).sum().backward()
    state.restore()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_commit_in_a_file_is_the_state(rank):
    model = model_of(rank)
    optimizer = torch.optim.Adam(model.parameters())
    state = TorchState(model, optimizer, step=3)
    step(model, optimizer)
    state.save()
    content = pickle.loads(pickle.dumps(state._kept_content(), protocol=5))
    new = model_of(rank + 1)
    other = TorchState(new, torch.optim.Adam(new.parameters()), step=0)
    other._adopt(content)
    other.restore()
    assert other.step == 3 and equal(new.state_dict(), model.state_dict())
    assert float(other.optimizer.state[new[0].weight]["step"]) == 1
    with pytest.raises(ConfigError, match="has the states of model, optimizer, but the state has other"):
        TorchState(other=model_of(0))._adopt(content)


def test_wrong_arguments():
    model = model_of(0)
    with pytest.raises(ConfigError, match=r"received optimizer=torch.optim.LBFGS"):
        TorchState(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ConfigError, match="received model=3; expected one with state_dict"):
        TorchState(3)


def test_a_part_that_is_replaced(rank):
    state = TorchState(model_of(rank))
    state.model = model_of(rank + 5)
    state.sync()
    assert equal(state.model.state_dict(), model_of(5).state_dict())


def test_run_calls_the_function_once(size):
    state = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def train(state, more):
        state.step += more
        return state.step

    assert train(state, 2) == 2
