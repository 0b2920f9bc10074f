"""Errors that `except` of tfdist and of TensorFlow catch alike."""

import pickle
import subprocess
import sys

import cloudpickle
import keras
import pytest
import tensorflow as tf

from tfdist import errors
from tfdist.launch.function import parcel

PAIRS = [
    (errors.MismatchError, tf.errors.FailedPreconditionError, ValueError),
    (errors.PeerLostError, tf.errors.UnavailableError, RuntimeError),
    (errors.StallError, tf.errors.DeadlineExceededError, TimeoutError),
]
pytestmark = pytest.mark.usefixtures("_installed")


@pytest.fixture(scope="module")
def _installed():
    """As importing TensorFlow after tfdist does, or tfdist after TensorFlow."""
    assert type(errors.MismatchError("x")) is errors.united(errors.MismatchError)


@pytest.mark.parametrize(("ours", "theirs", "of_python"), PAIRS)
def test_is_of_both_classes(ours, theirs, of_python):
    error = ours("rank 1 differs")
    for kind in (ours, errors.TfdistError, of_python, theirs, tf.errors.OpError):
        assert isinstance(error, kind)
    assert (str(error), error.message, error.args) == ("rank 1 differs", "rank 1 differs", ("rank 1 differs",))
    assert (error.op, error.node_def, error.error_code) == (None, None, theirs(None, None, "").error_code)
    assert f"{type(error).__module__}.{type(error).__qualname__}" == f"tfdist.errors.{ours.__name__}"


def test_losses_and_stalls_are_horovods_internal_error():
    for kind in (errors.PeerLostError, errors.StallError):
        assert isinstance(kind("rank 1"), errors.HorovodInternalError)
    assert not isinstance(errors.MismatchError("x"), errors.HorovodInternalError)
    assert isinstance(errors.HostsUpdatedInterrupt("x"), RuntimeError)
    assert not errors.HostsUpdatedInterrupt("x").skip_sync


@pytest.mark.parametrize(("ours", "theirs", "_"), PAIRS)
@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_pickles(ours, theirs, _, module):
    again = pickle.loads(module.dumps(ours("rank 1 differs")))
    assert isinstance(again, theirs)
    assert isinstance(again, ours)
    assert str(again) == "rank 1 differs"


def test_crosses_tfdist_run():
    sent = b"".join(parcel.pack_failure(parcel.RAISED, errors.MismatchError("rank 1 differs")))
    error = parcel.unpack_answer(sent).load()
    assert isinstance(error, errors.MismatchError)
    assert isinstance(error, tf.errors.FailedPreconditionError)
    assert str(error) == "rank 1 differs"


def test_errors_of_ops_only():
    """What Python raises for an argument is no error of TensorFlow; what an op refuses is."""
    assert not isinstance(errors.ConfigError("x"), tf.errors.OpError)
    assert not isinstance(errors.RankError("x", 3), tf.errors.OpError)
    refused = errors.united(errors.ConfigError)("x")
    assert isinstance(refused, tf.errors.InvalidArgumentError)
    assert isinstance(refused, errors.ConfigError)


def test_keras_adds_its_words_and_keeps_the_class():
    class Broken(keras.layers.Layer):
        def call(self, x):
            raise errors.MismatchError("rank 1 differs")

    with pytest.raises(errors.MismatchError, match="rank 1 differs") as caught:
        Broken()(tf.zeros([1]))
    assert isinstance(caught.value, tf.errors.FailedPreconditionError)


@pytest.mark.parametrize(
    "kind", [errors.ConfigError, errors.UnsupportedError, errors.NotInitializedError, errors.StoreError]
)
def test_autograph_keeps_other_classes(kind):
    @tf.function
    def broken(x):
        if x.shape.rank == 1:
            raise kind("received 3; expected 4")
        return x

    with pytest.raises(kind, match="received 3; expected 4"):
        broken(tf.zeros([1]))
    assert str(kind("x")) == "x"
    assert pickle.loads(pickle.dumps(kind("x"))).args == ("x",)


def test_autograph_keeps_the_class():
    @tf.function
    def broken(x):
        if tf.reduce_sum(x) > 0:
            raise errors.MismatchError("rank 1 differs")
        return x

    with pytest.raises(errors.MismatchError, match="rank 1 differs"):
        broken(tf.zeros([1]))


def test_tensorflow_imported_later():
    script = (
        "from tfdist import errors; before = errors.MismatchError('x'); import tensorflow as tf; "
        "print([isinstance(e, tf.errors.OpError) for e in (before, errors.MismatchError('x'))], repr(before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[False, True] MismatchError('x')\n", done.stderr
