"""The noise scale against a case that is known: gradients of a fixed mean and a fixed covariance."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfdist import errors
from tfdist.callbacks.fit.noise_scale import GradientNorms, estimate

MEAN = np.array([1.0, -2.0, 2.0])  # squared norm 9
DEVIATIONS = np.array([3.0, 4.0, 12.0])  # trace of the covariance 169


@pytest.mark.parametrize(("small", "big"), [(1, 2), (8, 32), (32, 96)])
def test_expected_norms_give_the_exact_answer(small, big):
    """E|G_B|^2 = |G|^2 + tr(S) / B, equation A.1 of the paper."""
    squared_norm, trace = estimate(9 + 169 / small, 9 + 169 / big, small, big)
    assert math.isclose(squared_norm, 9, rel_tol=1e-9)
    assert math.isclose(trace, 169, rel_tol=1e-9)


def test_drawn_gradients_give_the_answer_within_their_noise():
    random = np.random.default_rng(3)
    batch, ranks, steps = 16, 4, 4000
    norms = [GradientNorms(decay=0.999) for _ in range(ranks)]
    drawn = tf.constant(MEAN + random.normal(size=(steps, ranks, batch, 3)).mean(axis=2) * DEVIATIONS)

    @tf.function  # the steps would take most of a minute one by one
    def train():
        for step in tf.range(steps):
            own = drawn[step]
            for rank in range(ranks):
                norms[rank].observe([own[rank, :1], None, own[rank, 1:]], [tf.reduce_mean(own, axis=0)])

    train()
    small = np.mean([norm.read()[0] for norm in norms])
    squared_norm, trace = estimate(small, norms[0].read()[1], batch, batch * ranks)
    assert abs(squared_norm / 9 - 1) < 0.1
    assert abs(trace / 169 - 1) < 0.1


def test_averages_forget_and_have_no_bias_to_the_start():
    norms = GradientNorms(decay=0.5)
    assert norms.read() is None
    norms.observe([tf.constant([3.0, 4.0])], [tf.constant([1.0])])
    assert norms.read() == pytest.approx((25.0, 1.0))
    norms.observe([tf.constant([1.0])], [tf.constant([3.0])])
    assert norms.read() == pytest.approx(((0.5 * 25 + 1) / 1.5, (0.5 * 1 + 9) / 1.5))


def test_factors_are_taken_out():
    norms = GradientNorms()
    norms.observe([tf.constant([3.0])], [tf.constant([8.0])], factor=4.0)
    assert norms.read() == pytest.approx((9.0, 4.0))


def test_infinite_steps_and_sparse_gradients_do_not_count():
    norms = GradientNorms()
    norms.observe([tf.constant([float("nan")])], [tf.constant([float("inf")])])
    assert norms.read() is None
    sparse = tf.IndexedSlices(tf.constant([[5.0]]), tf.constant([0]), tf.constant([1, 1]))
    norms.observe([sparse, tf.constant([2.0], tf.float16)], [sparse, tf.constant([1.0], tf.float16)])
    assert norms.read() == pytest.approx((4.0, 1.0))


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_bad_decay_is_refused(decay):
    with pytest.raises(errors.ConfigError, match="decay must be at least 0 and less than 1"):
        GradientNorms(decay)
