"""Horovod's name for `tfdist.callbacks`, for `from tfdist.keras.callbacks import ...`. Only re-exports."""

from tfdist.callbacks import *  # noqa: F403
from tfdist.callbacks import __all__ as __all__
