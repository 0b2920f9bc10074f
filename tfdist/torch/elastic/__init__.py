"""Elastic training with PyTorch: a job that continues when a rank is lost.

Example:

```python
state = hvd.elastic.TorchState(model, optimizer, epoch=0)

@hvd.elastic.run
def train(state):
    while state.epoch < 10:
        for images, labels in loader:
            step(images, labels)
        state.epoch += 1
        state.commit()

train(state)
```
"""

from tfdist.elastic.loop import run
from tfdist.torch.elastic.sampler import ElasticSampler
from tfdist.torch.elastic.state import ObjectState, TorchState

__all__ = ["ElasticSampler", "ObjectState", "TorchState", "run"]
