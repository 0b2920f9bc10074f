"""States of elastic training where no rank is lost: commit, restore, and whose state all ranks get."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.elastic import KerasState, ObjectState, TensorFlowKerasState, TensorFlowState
from tfdist.elastic.commit_store import CommitStore


def make_model(optimizer=None, units=2):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.BatchNormalization()])
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    return model


def take_step(model):
    samples = np.full((4, 3), tfdist.rank() + 1.0, np.float32)
    model.train_on_batch(samples, np.zeros((4, 2), np.float32))


def weights(model):
    return [variable.numpy().copy() for variable in [*model.weights, *model.optimizer.variables]]


def assert_equal(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.ranks(1, 2, 3)
def test_objects_go_back_to_the_last_commit(world):
    history = [tfdist.rank()]
    state = ObjectState(epoch=0, history=history)
    state.other = "not part of it"
    state.epoch = 1
    state.history.append(7)
    state.commit()
    state.epoch, state.other = 2, "still here"
    state.history.append(8)
    state.restore()
    assert (state.epoch, state.history, state.other) == (1, [tfdist.rank(), 7], "still here")
    state.history.append(9)  # what was restored is a copy too
    state.restore()
    assert state.history == [tfdist.rank(), 7]


@pytest.mark.ranks(1, 2, 3, 4)
def test_without_a_commit_the_state_of_rank_0_is_everybodys(world):
    state = ObjectState(epoch=tfdist.rank())
    state.sync()
    assert state.epoch == 0
    state.epoch = 5
    state.restore()
    assert state.epoch == 0  # what was synchronized is kept


@pytest.mark.ranks(2, 3, 4)
def test_the_newest_commit_is_everybodys(world):
    newest = world - 2 if world > 2 else 1
    state = ObjectState(step=0)
    for step in range(4 if tfdist.rank() == newest else 2):
        state.step = 10 * (step + 1) + tfdist.rank()
        state.commit()
    state.restore()
    state.sync()
    assert state.step == 40 + newest
    state.commit()  # all ranks count alike from here on
    state.step = 100 + tfdist.rank()
    state.restore()
    state.sync()
    assert state.step == 40 + newest
    if tfdist.rank() == 0:  # which was behind
        state.step = 50
        state.commit()
    state.restore()
    state.sync()
    assert state.step == 50


@pytest.mark.ranks(1, 2, 3)
def test_variables_are_restored_and_synchronized(world):
    variables = [tf.Variable([tfdist.rank() + 1.0, 2.0]), keras.Variable(np.full([2, 2], tfdist.rank(), np.int32))]
    state = TensorFlowState(variables, step=3)
    variables[0].assign([9.0, 9.0])
    state.step = 4
    state.restore()
    assert state.step == 3
    np.testing.assert_array_equal(variables[0], [tfdist.rank() + 1.0, 2.0])
    state.sync()
    np.testing.assert_array_equal(variables[0], [1.0, 2.0])
    np.testing.assert_array_equal(variables[1], np.zeros([2, 2]))


@pytest.mark.ranks(1, 2, 3)
def test_a_model_and_its_optimizer_are_restored_and_synchronized(world):
    model = make_model()
    state = KerasState(model, epoch=0)
    state.sync()
    assert len({array.tobytes() for array in tfdist.allgather_object(model.weights[0].numpy())}) == 1
    take_step(model)
    state.epoch = 1
    state.commit()
    committed = weights(model)
    take_step(model)
    state.epoch = 2
    state.restore()
    assert state.epoch == 1
    assert int(model.optimizer.iterations) == 1
    assert_equal(weights(model), committed)
    state.sync()
    assert_equal(weights(model), tfdist.broadcast_object(committed, 0))


@pytest.mark.ranks(2, 3)
def test_the_rate_in_force_and_its_factor_come_back_to_the_bit(world):
    model = make_model(keras.optimizers.SGD(0.1))
    state = KerasState(model)
    state.sync()
    tfdist.optimizer.scale_learning_rate(model.optimizer, 3)
    model.optimizer.learning_rate = 0.123
    state.commit()
    tfdist.optimizer.scale_learning_rate(model.optimizer, 2)
    if tfdist.rank() == world - 1:
        state.commit()  # a step ahead: the others take its rate, with its factor
    state.restore()
    expected = (2.0, np.float32(0.123 / 3 * 2)) if tfdist.rank() == world - 1 else (3.0, np.float32(0.123))
    rate = np.float32(model.optimizer.learning_rate)
    assert tfdist.optimizer.learning_rate_scale(model.optimizer) == expected[0]
    np.testing.assert_allclose(rate, expected[1], rtol=1e-6)
    state.sync()
    assert tfdist.optimizer.learning_rate_scale(model.optimizer) == 2.0
    assert len(set(tfdist.allgather_object(model.optimizer.learning_rate.numpy().tobytes()))) == 1


def test_all_optimizers_of_a_model_are_restored_and_synchronized(world):
    model = make_model(keras.optimizers.SGD(0.1, momentum=0.9))
    model.second = keras.optimizers.Adam(0.1)
    tfdist.optimizer.distribute(model.second)
    model.second.build(model.trainable_variables[:1])
    tfdist.optimizer.scale_learning_rate(model.second, 4.0)
    state = KerasState(model)
    assert any(variable is model.second.variables[-1] for variable in state.variables)
    state.sync()
    model.second.apply_gradients([(tf.ones_like(model.trainable_variables[0]), model.trainable_variables[0])])
    state.commit()
    kept = [np.array(variable) for variable in model.second.variables]
    model.second.apply_gradients([(tf.ones_like(model.trainable_variables[0]), model.trainable_variables[0])])
    tfdist.optimizer.scale_learning_rate(model.second, 1.0)
    state.restore()
    assert_equal([np.array(variable) for variable in model.second.variables], kept)
    assert tfdist.optimizer.learning_rate_scale(model.second) == 4.0


def test_an_optimizer_that_is_built_after_the_state_is_refused(world):
    model = make_model()
    model.second = keras.optimizers.Adam(0.1)
    state = KerasState(model)
    model.second.build(model.trainable_variables)
    with pytest.raises(tfdist.errors.ConfigError, match=r"model\.second\.build\(variables\)"):
        state.commit()


@pytest.mark.ranks(1)
def test_a_model_that_has_no_state_is_refused(world):
    with pytest.raises(tfdist.errors.ConfigError, match="has no weights yet"):
        KerasState(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(tfdist.errors.ConfigError, match="has no optimizer"):
        KerasState(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    accumulating = make_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    with pytest.raises(tfdist.errors.ConfigError, match="accumulates gradients"):
        KerasState(accumulating)
    assert TensorFlowKerasState is KerasState


@pytest.mark.ranks(1, 2)
def test_a_training_without_a_loss_runs_once(world):
    calls = []
    state = ObjectState(epoch=tfdist.rank())
    state.register_reset_callbacks([lambda: calls.append("reset")])

    @tfdist.elastic.run
    def train(state, more, *, word):
        """Trains."""
        calls.append((state.epoch, more, word))
        return 42

    assert train(state, 1, word="x") == 42
    assert calls == [(0, 1, "x")]
    assert train.__doc__ == "Trains."


@pytest.mark.ranks(1, 2)
def test_other_errors_leave_the_training(world):
    @tfdist.elastic.run
    def train(state):
        raise error

    for error in (
        ValueError("wrong"),
        tfdist.errors.ConfigError("wrong"),
        tfdist.errors.PeerLostError("of something else"),
        tf.errors.InvalidArgumentError(None, None, "wrong"),
    ):
        with pytest.raises(type(error)) as caught:
            train(ObjectState())
        assert caught.value is error


@pytest.fixture
def store(shared_tmp_path):
    shared_tmp_path.chmod(0o700)
    tfdist.barrier()
    return CommitStore(shared_tmp_path)


@pytest.mark.ranks(1, 2, 3)
def test_new_processes_begin_with_the_newest_commit(world, store):
    model = make_model()
    state = KerasState(model, epoch=0)
    state.keep_in(store, 3)
    state.sync()
    for state.epoch in (1, 2):
        take_step(model)
        tfdist.broadcast_variables([*model.weights, *model.optimizer.variables], 0)
        state.commit()
    kept = weights(model)
    state.epoch = 9
    take_step(model)  # not committed
    tfdist.barrier()
    other = make_model()
    found = KerasState(other, epoch=0)
    found.keep_in(store, 3)
    assert found.epoch == 2
    assert_equal(weights(other), kept)
    found.sync()
    assert found.epoch == 2
    untouched = ObjectState(epoch=0)
    untouched.keep_in(store, 4)
    assert untouched.epoch == 0


@pytest.mark.ranks(1, 2, 3)
def test_new_processes_take_no_other_ranks_random_state(world, store):
    """One rank of a host writes for all of them. What was drawn before the commit is not drawn again either."""
    generators = [keras.random.SeedGenerator(tfdist.rank()) for _ in range(2)]
    first, second = (TensorFlowState([tf.Variable(2.0), generator.state], step=0) for generator in generators)
    first.keep_in(store, 0)
    first.sync()
    keras.random.uniform((), seed=generators[0])
    first.step = 7
    first.commit()
    tfdist.barrier()
    second.keep_in(store, 0)
    assert second.step == 7
    seeds = tfdist.allgather_object([int(generator.state.numpy()[0]) for generator in generators])
    assert len({seed for of_rank in seeds for seed in of_rank}) == 2 * world


@pytest.mark.ranks(1, 2)
def test_a_commit_of_another_script_is_refused(world, store):
    model = make_model()
    state = KerasState(model, epoch=1)
    state.keep_in(store, 0)
    state.commit()
    tfdist.barrier()
    with pytest.raises(tfdist.errors.ConfigError, match="has the attributes epoch, but the state has batch, epoch"):
        KerasState(make_model(), epoch=0, batch=0).keep_in(store, 0)
    smaller = KerasState(make_model(keras.optimizers.SGD(0.1)), epoch=0)
    counts = len(state.variables), len(smaller.variables)
    for text in (
        f"the {counts[0]} variables in a commit of this job do not match the {counts[1]} of the state: the first "
        "difference is variable ",
        rf" {counts[1]} \(not in this state\): float32 \[3, 2\] in the commit, missing in the state. If the script",
    ):
        with pytest.raises(tfdist.errors.ConfigError, match=text):
            smaller.keep_in(store, 0)
    wider = KerasState(make_model(units=4), epoch=0)
    other = rf"variable 0 \({wider.variables[0].path}\): float32 \[3, 2\] in the commit, float32 \[3, 4\] in the state"
    with pytest.raises(tfdist.errors.ConfigError, match=other):
        wider.keep_in(store, 0)


@pytest.mark.ranks(2, 3)
def test_ranks_with_other_variables_are_told_which_is_the_first(world):
    odd = tfdist.rank() == world - 1
    for variables, name, there, here in (
        ([tf.Variable([1.0], name="a"), tf.Variable(tf.zeros([2, 3 + odd]), name="b")], "b:0", [2, 4], [2, 3]),
        ([keras.Variable(np.zeros(4, "float32"), name="c")] * (2 - odd), None, "missing", [4]),
    ):
        with pytest.raises(tfdist.errors.MismatchError) as caught:
            TensorFlowState(variables, step=tfdist.rank()).sync()
        shown = name or ("not in this state" if odd else "c")
        assert str(caught.value) == (
            f"the variables of the state differ between ranks: the first difference is variable 1 ({shown}): "
            f"{f'float32 {there}' if name else there} on rank {world - 1}, float32 {here} on rank 0. Create the same "
            "model and optimizer on every rank."
        )
    state = ObjectState(step=tfdist.rank())
    state.sync()
    assert state.step == 0, "the ranks are in step again"


@pytest.mark.ranks(1, 2)
def test_restarted_training_names_damaged_commits(world, store, shared_tmp_path, warnings_of_tfdist):
    if tfdist.rank() == 0:
        for number in (4, 5):
            store.put(0, number, number)
            (shared_tmp_path / f"0-{number}.commit").write_bytes(b"tfdist commit 1 00000000 9\n" + b"x" * number)
    tfdist.barrier()
    state = ObjectState(epoch=0)
    state.keep_in(store, 0)
    tfdist.barrier()  # so that nobody writes where another still reads
    state.sync()
    state.sync()
    told = [line for line in warnings_of_tfdist if "training starts from scratch" in line]
    assert len(told) == (tfdist.rank() == 0)
    state.commit()
    tfdist.barrier()
    assert store.newest(0)[0] == 1, "it counts for more than what was there"
    for line in told:
        assert line.splitlines()[1:] == [
            f"  {shared_tmp_path / f'0-{number}.commit'}: it has {number} bytes of 9" for number in (5, 4)
        ]


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(("more", "expected"), [(None, False), (0, False), (1, True)])
def test_a_commit_of_another_number_of_ranks_is_told(world, store, more, expected):
    """So that what was registered for a reset adapts the rate after a restart, too."""
    if tfdist.rank() == 0:
        store.put(0, 2, {"values": {"epoch": 7}} | ({} if more is None else {"ranks": world + more}))
    tfdist.barrier()
    state = ObjectState(epoch=0)
    state.keep_in(store, 0)
    tfdist.barrier()
    state.sync()
    assert (state.epoch, state.is_of_others) == (7, expected)
    state.sync()
    assert not state.is_of_others
    tfdist.barrier()
    assert store.newest(0)[1]["ranks"] == world


@pytest.mark.ranks(2)
def test_damage_is_passed_over_where_another_rank_has_a_commit(world, store, shared_tmp_path, warnings_of_tfdist):
    (shared_tmp_path / f"{tfdist.rank()}-1.commit").write_bytes(b"no")
    if tfdist.rank() == 1:
        store.put(1, 2, {"values": {"epoch": 7}})
    tfdist.barrier()
    state = ObjectState(epoch=0)
    state.keep_in(store, tfdist.rank())
    state.sync()
    assert state.epoch == 7
    assert not [line for line in warnings_of_tfdist if "training starts from scratch" in line]


def test_a_commit_that_cannot_be_written_is_told_and_passed_over(world, store, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "put", full)
    state = ObjectState(epoch=0)
    state.keep_in(store, 0)
    for state.epoch in (1, 2, 3):
        state.commit()
    state.epoch = 4
    state.restore()
    assert state.epoch == 3
    told = [message for message in caplog.messages if "commit 1 could not be written to a file" in message]
    assert len([message for message in caplog.messages if "not be written to a file" in message]) == len(told)
    assert len(told) == (tfdist.local_rank() == 0)
