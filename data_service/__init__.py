"""Preprocessing on other processes: a typed layer on the tf.data service.

Example:

```python
with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
    with data_service.Worker(data_service.WorkerConfig(dispatcher.address)):
        dataset = data_service.distribute(dataset, dispatcher.address)
```
"""

from tfdist.data_service.config import DispatcherConfig, WorkerConfig
from tfdist.data_service.distribute import distribute
from tfdist.data_service.server import Dispatcher, Worker

__all__ = ["Dispatcher", "DispatcherConfig", "Worker", "WorkerConfig", "distribute"]
