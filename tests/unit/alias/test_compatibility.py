"""The small functions of `horovod.common.util`."""

import os

import pytest
import tensorflow as tf

import tfdist
from tfdist.alias import compatibility


def test_frameworks():
    compatibility.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    compatibility.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.mxnet is not available"):
        compatibility.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    assert compatibility.extension_available("keras")
    assert not compatibility.extension_available("mxnet", verbose=True)
    assert compatibility.gpu_available("tensorflow") == bool(tf.config.list_physical_devices("GPU"))
    assert not compatibility.gpu_available("mxnet")


def test_what_is_built():
    assert compatibility.mpi_built(verbose=True)
    assert compatibility.gloo_built()
    assert compatibility.nccl_built()
    assert not compatibility.ddl_built()
    assert not compatibility.ccl_built()


def test_powers_of_2():
    assert [n for n in range(-1, 10) if compatibility.num_rank_is_power_2(n)] == [1, 2, 4, 8]


@pytest.mark.parametrize(("count", "parts"), [(7, 3), (6, 3), (2, 4), (0, 2)])
def test_split_list(count, parts):
    split = compatibility.split_list(list(range(count)), parts)
    assert sum(split, []) == list(range(count))
    lengths = [len(part) for part in split]
    assert len(split) == parts
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_versions():
    assert compatibility.is_version_greater_equal_than("2.16.1", "2.9.0")
    assert compatibility.is_version_greater_equal_than("2.16.1rc2", "2.16.1")
    assert not compatibility.is_version_greater_equal_than("2.9.0", "2.16.1")


def test_iterables():
    assert compatibility.is_iterable([1])
    assert not compatibility.is_iterable(1)


def test_reduction_from_two_arguments():
    assert compatibility.handle_average_backwards_compatibility(None, None) is tfdist.Average
    assert compatibility.handle_average_backwards_compatibility(None, False) is tfdist.Sum
    with pytest.raises(ValueError, match="give op or average"):
        compatibility.handle_average_backwards_compatibility(tfdist.Sum, True)


def test_references_and_variables():
    one, two = tf.Variable(1.0), tf.Variable(2.0)
    refs = compatibility.vars_to_refs([one, [two]])
    assert hash(refs) == hash(compatibility.vars_to_refs([one, [two]]))
    again = compatibility.refs_to_vars(refs)
    assert again[0] is one
    assert again[1][0] is two


def test_environment(monkeypatch):
    monkeypatch.setenv("HERE", "1")
    with compatibility.env(HERE=None, THERE="2"):
        assert "HERE" not in os.environ
        assert os.environ["THERE"] == "2"
    assert os.environ["HERE"] == "1"
    assert "THERE" not in os.environ
