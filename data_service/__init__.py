"""Preprocessing on other processes: a typed layer on the tf.data service.

Example:

```python
with data_service.Cluster(workers=2) as cluster:
    model.fit(data_service.distribute(dataset, cluster.address))
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.data_service.inspection.survey import Survey as Survey
    from tfdist.data_service.inspection.survey import survey as survey
    from tfdist.data_service.process.autoscale import ScalePolicy as ScalePolicy
    from tfdist.data_service.process.cluster import Cluster as Cluster
    from tfdist.data_service.server.config import DispatcherConfig as DispatcherConfig
    from tfdist.data_service.server.config import WorkerConfig as WorkerConfig
    from tfdist.data_service.server.server import Dispatcher as Dispatcher
    from tfdist.data_service.server.server import Worker as Worker
    from tfdist.data_service.source.image import from_images as from_images
    from tfdist.data_service.source.parquet import from_parquet as from_parquet
    from tfdist.data_service.source.tensorflow_io import from_io as from_io
    from tfdist.data_service.source.tfrecord import from_tfrecord as from_tfrecord
    from tfdist.data_service.store.cache import cache as cache
    from tfdist.data_service.store.footprint import Footprint as Footprint
    from tfdist.data_service.store.footprint import footprint as footprint
    from tfdist.data_service.store.snapshot import load as load
    from tfdist.data_service.store.snapshot import save as save
    from tfdist.data_service.trainer.distribute import distribute as distribute
    from tfdist.data_service.trainer.distribute import from_id as from_id
    from tfdist.data_service.trainer.distribute import register as register
    from tfdist.data_service.trainer.visitation import Visitation as Visitation
    from tfdist.data_service.trainer.visitation import combine as combine
    from tfdist.data_service.trainer.visitation import visitation as visitation
    from tfdist.data_service.trainer.wait import Waited as Waited
    from tfdist.data_service.trainer.wait import measure_wait as measure_wait
    from tfdist.data_service.trainer.wait import wait_for_data as wait_for_data

_HOMES = {
    "Cluster": "process.cluster",
    "Dispatcher": "server.server",
    "DispatcherConfig": "server.config",
    "Footprint": "store.footprint",
    "ScalePolicy": "process.autoscale",
    "Survey": "inspection.survey",
    "Visitation": "trainer.visitation",
    "Waited": "trainer.wait",
    "Worker": "server.server",
    "WorkerConfig": "server.config",
    "cache": "store.cache",
    "combine": "trainer.visitation",
    "distribute": "trainer.distribute",
    "footprint": "store.footprint",
    "from_id": "trainer.distribute",
    "from_images": "source.image",
    "from_io": "source.tensorflow_io",
    "from_parquet": "source.parquet",
    "from_tfrecord": "source.tfrecord",
    "load": "store.snapshot",
    "measure_wait": "trainer.wait",
    "register": "trainer.distribute",
    "save": "store.snapshot",
    "survey": "inspection.survey",
    "visitation": "trainer.visitation",
    "wait_for_data": "trainer.wait",
}
__all__ = sorted(_HOMES)


def _load(name: str) -> Any:
    """Loads a name on first use: the commands and the manager of a cluster start without TensorFlow."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # where it is seen, any name is one
    __getattr__ = _load
