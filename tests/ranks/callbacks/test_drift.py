"""Ranks that drift apart in `fit` are found, whatever updates the weights; what may differ is no drift."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback, DataParallel, MetricAverageCallback, Throughput
from tfdist.errors import ConfigError, MismatchError
from tfdist.world import process_sets

BATCH, STEPS = 4, 4


def data(steps=STEPS):
    generator = np.random.default_rng(30 + tfdist.rank())
    x = generator.normal(size=(BATCH * steps, 3)).astype("float32")
    return x, np.sin(x[:, :1] + tfdist.rank()).astype("float32")


def layers():
    return [keras.layers.Dense(5, activation="tanh", name="body"), keras.layers.Dense(1, name="head")]


def new_model(optimizer="sgd", kind=keras.Sequential, **kwargs):
    keras.utils.set_random_seed(0)
    model = kind([keras.Input((3,)), *layers()])
    model.compile(optimizer, loss="mse", **kwargs)
    return model


def fit(model, *callbacks, **kwargs):
    return model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks), **kwargs)


def collectives():
    return {operation: cost["calls"] for operation, cost in tfdist.metrics()["collectives"].items()}


def explicit(**kwargs):
    return [BroadcastGlobalVariablesCallback(0, **kwargs), MetricAverageCallback()]


class ByHand(keras.callbacks.Callback):
    """Changes a weight on the last rank after the first step, or after another one."""

    def __init__(self, step=0, amount=1.0):
        super().__init__()
        self._step, self._amount = step, amount

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._step and tfdist.rank() == tfdist.size() - 1:
            self.model.get_layer("head").kernel.assign_add(np.full((5, 1), self._amount))


class OptimizerInClosure(keras.Sequential):
    """The body is trained by an optimizer that nothing of the model holds."""

    rate = 0.5

    def __init__(self, *args):
        super().__init__(*args)
        hidden = keras.optimizers.SGD(self.rate)
        hidden.build(self.get_layer("body").trainable_variables)
        self.apply_hidden = hidden.apply

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        body, head = (self.get_layer(name).trainable_variables for name in ("body", "head"))
        gradients = tape.gradient(loss, [*body, *head])
        self.apply_hidden(gradients[: len(body)])
        self.optimizer.apply_gradients(zip(gradients[len(body) :], head, strict=True))
        return {"loss": loss}


class SlowInClosure(OptimizerInClosure):
    """A step changes less than a thousandth."""

    rate = 1e-3


class LateInClosure(OptimizerInClosure):
    """It begins in the second epoch."""

    rate = keras.optimizers.schedules.PiecewiseConstantDecay([STEPS - 1], [0.0, 0.5])


class Assigning(keras.Sequential):
    """The step assigns what it has of its own batch."""

    def train_step(self, batch):
        logs = super().train_step(batch)
        bias = self.get_layer("head").bias
        bias.assign(bias + tf.reduce_mean(batch[1]) + 1.0)
        return logs


CAUSES = {
    "by_hand": (
        keras.Sequential,
        [ByHand()],
        ["after the first step", "head/kernel", "distributed, so something else"],
    ),
    "by_hand_later": (keras.Sequential, [ByHand(2)], ["after epoch 1", "head/kernel"]),
    "in_closure": (OptimizerInClosure, [], ["body/kernel", "body/bias", "no optimizer of the model holds it"]),
    "slow_in_closure": (
        SlowInClosure,
        [],
        ["after the first step", "body/kernel", "no optimizer of the model holds it"],
    ),
    "late_in_closure": (LateInClosure, [], ["after epoch 2", "body/kernel", "no optimizer of the model holds it"]),
    "assigning": (Assigning, [], ["head/bias", "distributed, so something else", "code in train_step"]),
}


@pytest.mark.parametrize("mode", ["error", "warn", "off"])
@pytest.mark.parametrize("cause", CAUSES)
def test_drift(world, cause, mode, warnings_of_tfdist):
    kind, callbacks, texts = CAUSES[cause]
    for plugins in ([DataParallel(drift=mode)], explicit(drift=mode)):
        warnings_of_tfdist.clear()
        optimizer = keras.optimizers.SGD(0.1)
        model = new_model(optimizer if len(plugins) == 1 else tfdist.DistributedOptimizer(optimizer), kind)
        if mode == "error":
            with pytest.raises(MismatchError) as caught:
                fit(model, *plugins, *callbacks, epochs=2)
            message = str(caught.value)
            assert all(text in message for text in [*texts, f"rank {world - 1}", "drift.md"]), message
            assert tfdist.allgather_object(message, name="messages") == [message] * world
            continue
        fit(model, *plugins, *callbacks, epochs=3)
        warned = [line for line in warnings_of_tfdist if "variables differ between the ranks. Difference" in line]
        assert bool(warned) == (mode == "warn" and tfdist.rank() == 0)
        assert all(any(text in line for line in warned) for text in texts if warned)


def test_an_optimizer_that_is_not_distributed(world):
    with pytest.raises(MismatchError, match=r"optimizer \('adam'\), which is not distributed") as caught:
        fit(new_model("adam"), *explicit())
    assert "after the first step" in str(caught.value)
    assert "DataParallel()" in str(caught.value)


def test_rounding_is_one_warning_a_fit(world, warnings_of_tfdist):
    model = new_model()
    for _ in range(2):
        warnings_of_tfdist.clear()
        fit(model, ByHand(0, 1e-6), DataParallel(), MetricAverageCallback(), epochs=2)
        warned = [line for line in warnings_of_tfdist if "last digits" in line and "head/kernel" in line]
        assert len(warned) == (tfdist.rank() == 0)


def test_rounding_hides_no_drift_that_comes_later(world, warnings_of_tfdist):
    fit(new_model(), ByHand(0, 1e-6), ByHand(2), DataParallel(drift="warn"), epochs=2)
    for text in ("last digits", "variables differ between the ranks. Difference"):
        assert sum(text in line for line in warnings_of_tfdist) == (tfdist.rank() == 0)


@pytest.mark.slice("ranks")
@pytest.mark.ranks(1, 2)
def test_what_a_fit_pays_for_looking(world):
    """One collective after the first step, if another one follows in its epoch, and one an epoch, by all callbacks."""

    def cost(callbacks, epochs=1, **kwargs):
        model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        before = collectives()
        fit(model, *callbacks, epochs=epochs, **kwargs)
        return {name: calls - before[name] for name, calls in collectives().items()}

    for others in ([], [MetricAverageCallback(), BroadcastGlobalVariablesCallback(0)]):
        for epochs in (1, 3):
            for kwargs, looks in (({}, epochs + 1), ({"steps_per_epoch": 1}, epochs)):
                off = cost([DataParallel(drift="off"), *others], epochs, **kwargs)
                on = cost([*others, DataParallel()], epochs, **kwargs)
                assert on == off | {"allgather": off["allgather"] + (looks if world > 1 else 0)}
    assert cost(explicit())["allgather"] - cost(explicit(drift="off"))["allgather"] == (2 if world > 1 else 0)


class Tape(keras.Sequential):
    """Gradients are reduced by a tape, in a process set where there is one."""

    process_set = tfdist.global_process_set

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        tape = tfdist.DistributedGradientTape(tape, process_set=self.process_set)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


def partial(**kwargs):
    return tfdist.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), **kwargs)


def of_own_layer():
    own = keras.layers.Dense(4 + tfdist.rank(), name="own")
    model = keras.Sequential([keras.Input((3,)), own, keras.layers.Dense(5), *layers()])
    model.compile(partial(local_layers=[own, model.layers[1]]), loss="mse")
    return model


def of_own_variable():
    model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.optimizer.register_local_var(model.get_layer("head").bias)
    return model


ORDINARY = {
    "eager": lambda: new_model(run_eagerly=True),
    "together": lambda: new_model(steps_per_execution=2),
    "accumulating": lambda: new_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)),
    "adam_scaled": lambda: new_model(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())),
    "own_layer": of_own_layer,
    "own_variable": of_own_variable,
}


@pytest.mark.parametrize("case", ORDINARY)
def test_no_false_alarm(world, case, warnings_of_tfdist):
    """In two fits, and again after a compile."""
    model = ORDINARY[case]()
    for _ in range(2):
        fit(model, DataParallel(), epochs=2)
    model.compile(model.optimizer, loss="mae")
    fit(model, DataParallel())
    assert not warnings_of_tfdist


def test_no_false_alarm_by_explicit_callbacks(world, warnings_of_tfdist):
    fit(new_model(kind=Tape), *explicit(), epochs=2)
    model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    bias = model.get_layer("head").bias
    model.optimizer.register_local_var(bias)
    fit(model, *explicit(local_variables=bias), Throughput(), epochs=2)
    # Here the callback alone says that the ranks keep it.
    model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    kernel = model.get_layer("head").kernel
    kernel.assign_add(np.full((5, 1), float(tfdist.rank())))
    fit(model, *explicit(local_variables=kernel))
    assert not warnings_of_tfdist


@pytest.mark.ranks(2, 3)
def test_uneven_batches(world, warnings_of_tfdist):
    """Ranks meet at the end of the epoch only."""
    x = np.linspace(-1, 1, (2 * world + 1) * 3, dtype="float32").reshape(-1, 3)
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(1)
    model = new_model()
    model.fit(tfdist.shard(dataset, remainder="join"), epochs=2, verbose=0, callbacks=[DataParallel()])
    tfdist.check_equal(model)
    assert not warnings_of_tfdist


@pytest.mark.ranks(3)
def test_process_sets(world):
    """Each set trains its own weights, which are equal inside of it; a tape tells as much as an optimizer."""
    process_sets.start("dynamic", None)
    sets = [tfdist.add_process_set([0, 1]), tfdist.add_process_set([2])]
    mine = sets[tfdist.rank() == 2]
    try:
        for kind in (keras.Sequential, Tape):
            Tape.process_set = mine
            plain = keras.optimizers.SGD(0.1)
            model = new_model(tfdist.DistributedOptimizer(plain, process_set=mine) if kind is not Tape else plain, kind)
            fit(model, MetricAverageCallback(), epochs=2)
            with pytest.raises(MismatchError):
                tfdist.check_equal(model)
        model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=sets[0]))
        hand = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: model.layers[1].bias.assign([float(tfdist.rank())])
        )
        with pytest.raises(MismatchError, match=r"head/bias, float32 \(1,\): rank 1 is nonzero"):  # on rank 2 too
            fit(model, hand, MetricAverageCallback())
    finally:
        Tape.process_set = tfdist.global_process_set
        for process_set in sets:
            tfdist.remove_process_set(process_set)
        process_sets.start(None, None)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("extra", [[], [Throughput]], ids=["no callbacks", "one that looks at nothing"])
def test_a_distributed_optimizer_alone(world, extra):
    """The weights are compared after the first step of the first `fit`, and no more."""
    model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    fit(model, *(kind() for kind in extra))
    before = collectives()["allgather"]
    fit(model, *(kind() for kind in extra))
    assert collectives()["allgather"] == before
    apart = keras.Sequential([keras.Input((3,)), *layers()])
    apart.get_layer("head").kernel.assign(np.full((5, 1), tfdist.rank()))
    apart.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    if tfdist.size() == 1:
        fit(apart)
        return
    with pytest.raises(
        MismatchError, match=r"(?s)after the first step of fit: .*head/kernel.*began with different weights"
    ):
        fit(apart)


def test_tapes_of_a_train_step_without_callbacks(world):
    class Taped(keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            with tfdist.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    fit(new_model(kind=Taped))
    model = new_model(kind=Taped)
    model.get_layer("body").bias.assign(np.full(5, tfdist.rank()))
    if tfdist.size() > 1:
        with pytest.raises(MismatchError, match=r"(?s)body/bias.*began with different weights"):
            fit(model)


def test_other_modes_are_refused(world):
    for kind, arguments in ((DataParallel, ()), (MetricAverageCallback, ()), (BroadcastGlobalVariablesCallback, (0,))):
        with pytest.raises(ConfigError, match='"error", "warn" or "off"; received True'):
            kind(*arguments, drift=True)
