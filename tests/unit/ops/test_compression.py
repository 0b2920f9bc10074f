"""What counts as a compression, and what is put around a collective for one of the user's own."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.ops.compression import Compression, Compressor, pack

TENSORS = {name: tf.constant([1.0, -2.5, 0.1], name) for name in ("float16", "bfloat16", "float32", "float64")}


class Halved(Compressor):
    def compress(self, tensor):
        return tf.cast(tensor / 2, tf.float16), tensor.dtype

    def decompress(self, tensor, ctx):
        return tf.cast(tensor, ctx) * 2


class Static:
    """Written against Horovod: a class that is never instantiated and derives from nothing."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class OptionalContext(Static):
    @staticmethod
    def compress(tensor, ctx=None):
        return tensor, ctx


def test_members_are_those_of_the_table():
    assert [member.value for member in Compression] == list(config.COMPRESSIONS)
    for name, wire in config.COMPRESSIONS.items():
        sent, _ = Compression(name).compress(TENSORS["float64"])
        assert sent.dtype.name == (wire or "float64")


@pytest.mark.parametrize("member", Compression)
def test_members_and_their_names(member):
    assert Compression.of(member) is member
    assert Compression.of(member.value) is member
    assert isinstance(member, Compressor)


@pytest.mark.parametrize("own", [Halved(), Static, Static(), OptionalContext], ids=["object", "class", "plain", "ctx"])
def test_own_compressions(own):
    assert Compression.of(own) is own


class WithoutDecompress:
    @staticmethod
    def compress(tensor):
        return tensor, None


class ContextMissing(Static):
    @staticmethod
    def decompress(tensor):
        return tensor


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("zip", "one of none, fp16, bf16.*received 'zip'"),
        (None, "received None"),
        (16, "received 16"),
        (tf.float16, "received tf.float16"),
        (WithoutDecompress, "compress.tensor. and decompress.tensor, ctx."),
        (ContextMissing, "decompress of the compression .* must take .tensor, ctx."),
        (Halved, "pass an instance of the class"),
    ],
)
def test_what_is_none_is_refused(value, expected):
    with pytest.raises(ConfigError, match=expected):
        Compression.of(value)


@pytest.mark.parametrize("dtype", TENSORS)
@pytest.mark.parametrize(("member", "wire"), [("none", None), ("fp16", tf.float16), ("bf16", tf.bfloat16)])
def test_members_compress_as_horovod_calls_them(member, wire, dtype):
    tensor = TENSORS[dtype]
    compressed, ctx = Compression[member].compress(tensor)
    assert compressed.dtype == (wire if wire is not None and dtype in ("float32", "float64") else tensor.dtype)
    restored = Compression[member].decompress(compressed, ctx)
    assert restored.dtype == tensor.dtype
    expected = tf.cast(tf.cast(tensor, compressed.dtype), tf.float64)
    np.testing.assert_array_equal(tf.cast(restored, tf.float64), expected)


@pytest.mark.parametrize("member", Compression)
def test_integers_travel_as_they_are(member):
    compressed, ctx = member.compress(tf.constant([1 << 30, 3]))
    assert compressed.dtype == tf.int32
    np.testing.assert_array_equal(member.decompress(compressed, ctx), [1 << 30, 3])


def test_the_interface_must_be_filled():
    with pytest.raises(NotImplementedError, match="compress"):
        Compressor().compress(tf.zeros([1]))
    with pytest.raises(NotImplementedError, match="decompress"):
        Compressor().decompress(tf.zeros([1]), None)


def test_the_engine_compresses_what_it_knows():
    tensors = [tf.ones([2]), tf.ones([3], tf.int32)]
    packed, wire, unpack = pack("fp16", tensors)
    assert all(a is b for a, b in zip(packed, tensors, strict=True))
    assert wire is Compression.fp16
    assert unpack(packed) == packed


def test_own_compression_is_applied_before_and_after():
    tensors = [tf.constant([3.0, 5.0]), tf.constant([[7.0]], tf.float64)]
    packed, wire, unpack = pack(Halved(), tensors)
    assert wire is Compression.none
    assert [tensor.dtype for tensor in packed] == [tf.float16, tf.float16]
    np.testing.assert_array_equal(packed[0], [1.5, 2.5])
    results = unpack([packed[0] * 10, packed[1] * 100])
    np.testing.assert_array_equal(results[0], [30.0, 50.0])
    np.testing.assert_array_equal(results[1], [[700.0]])
    assert [tensor.dtype for tensor in results] == [tf.float32, tf.float64]


class NoPair(Static):
    @staticmethod
    def compress(tensor):
        return tensor


class OtherType(Halved):
    def decompress(self, tensor, ctx):
        return tensor


class OtherShape(Static):
    @staticmethod
    def decompress(tensor, ctx):
        return tensor[:1]


def test_a_result_that_is_no_pair_is_refused():
    with pytest.raises(ConfigError, match=r"must return \(tensor, ctx\)"):
        pack(NoPair, [tf.ones([2])])


@pytest.mark.parametrize(("own", "received"), [(OtherType(), "float16"), (OtherShape, r"\(1,\)")])
def test_a_result_unlike_the_tensor_is_refused(own, received):
    packed, _, unpack = pack(own, [tf.ones([2])])
    with pytest.raises(ConfigError, match=f"{received}.*received float32"):
        unpack(packed)
