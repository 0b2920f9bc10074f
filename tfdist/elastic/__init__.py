"""Elastic training: a job that continues when a rank is lost. Names of Keras are loaded on first use.

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

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdist.elastic.loop import run
from tfdist.elastic.state import ObjectState, State

if TYPE_CHECKING:
    from tfdist.elastic.keras_state import KerasState, TensorFlowKerasState, TensorFlowState

__all__ = ["KerasState", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


def _load(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfdist.elastic import keras_state  # PyTorch's states need none of it

    return getattr(keras_state, name)


if not TYPE_CHECKING:  # where it is seen, any name is one
    __getattr__ = _load
