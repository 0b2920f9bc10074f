"""What ends `tfdist image build` after the words were understood."""

from __future__ import annotations

from tfdist.errors import TfdistError


class ImageError(TfdistError, RuntimeError):
    """An image could not be built, saved or pushed; the message says why and what to do."""
