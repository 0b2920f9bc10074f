"""Keras callbacks for distributed training: `DataParallel`, the plugin, and the pieces it is made of.

Example:

```python
model.fit(tfdist.shard(dataset), epochs=5, callbacks=[tfdist.callbacks.DataParallel()])
```
"""

from tfdist.callbacks.backup_and_restore import BackupAndRestore
from tfdist.callbacks.broadcast_global_variables import BroadcastGlobalVariablesCallback
from tfdist.callbacks.data_parallel import DataParallel
from tfdist.callbacks.data_wait import DataWait
from tfdist.callbacks.elastic_state import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from tfdist.callbacks.metric_average import MetricAverageCallback
from tfdist.callbacks.metrics import Metrics
from tfdist.callbacks.model_checkpoint import BestModelCheckpoint, ModelCheckpoint
from tfdist.callbacks.rank_zero import RankZero
from tfdist.callbacks.rate.learning_rate_schedule import LearningRateScheduleCallback
from tfdist.callbacks.rate.learning_rate_warmup import LearningRateWarmupCallback
from tfdist.callbacks.throughput import Throughput

__all__ = [
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "DataParallel",
    "DataWait",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "Metrics",
    "ModelCheckpoint",
    "RankZero",
    "Throughput",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]
