"""Elastic training: a job that continues when a rank is lost.

Example:

```python
state = tfdist.elastic.KerasState(model, epoch=0)

@tfdist.elastic.run
def train(state):
    for epoch in range(state.epoch, 10):
        model.fit(tfdist.shard(dataset), callbacks=[tfdist.callbacks.DataParallel()])
        state.epoch = epoch + 1
        state.commit()

train(state)
```
"""

from tfdist.elastic.keras_state import KerasState, TensorFlowKerasState, TensorFlowState
from tfdist.elastic.loop import run
from tfdist.elastic.state import ObjectState, State

__all__ = ["KerasState", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
