"""Horovod's names for the elastic training of Keras models, as `hvd.elastic`. Only re-exports."""

from tfdist.callbacks import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from tfdist.elastic import KerasState, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
