"""The classes of `horovod.tensorflow.compression`."""

from __future__ import annotations

from tfdist.ops.compression import Compression, Compressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

NoneCompressor, FP16Compressor = Compression.none, Compression.fp16
