"""The classes of `horovod.torch.compression`."""

from __future__ import annotations

from typing import Any

from tfdist.torch import Compression

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

NoneCompressor, FP16Compressor = Compression.none, Compression.fp16


class Compressor:
    """Interface of a custom compression: derive from it, and define these two methods, also as static ones."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError(f"{type(self).__name__} must define compress(tensor)")

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Returns a tensor of the dtype and shape that `compress` received."""
        raise NotImplementedError(f"{type(self).__name__} must define decompress(tensor, ctx)")
