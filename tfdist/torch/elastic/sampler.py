"""Which samples of a dataset each rank has in an epoch, when the number of ranks changes in it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.world import runtime


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its own part of a dataset, and after a change of the ranks a part of what is left of the epoch.

    An epoch has an order of the samples, the same on all ranks. What is left of it is dealt out one to each rank in
    turn; so that every rank has equally many, the first ones are dealt out again at the end. Hold the sampler in the
    state, record each batch after its step, and begin the next epoch with `set_epoch`.

    Args:
        dataset: Anything with a length, the same on every rank.
        shuffle: Whether each epoch has an order of its own.
        seed: Together with the number of the epoch, the seed of its order; the same on every rank.

    Attributes:
        epoch: The number of the epoch.
        processed_num: How many samples of the epoch were recorded.
        remaining_indices: The others, in their order, when they were dealt out.
        num_replicas, rank: The number of ranks, and this one.
        num_samples: How many samples this rank has.
        total_size: How many all ranks have together.

    Raises:
        ConfigError: If the dataset has no length.

    Example:

    ```python
    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @hvd.elastic.run
    def train(state):
        while state.epoch < 10:
            for number, batch in enumerate(loader):
                step(batch)
                state.sampler.record_batch(number, 32)
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()
    ```
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        if not hasattr(dataset, "__len__"):
            raise ConfigError(
                f"ElasticSampler received a {type(dataset).__name__} without a length; expected a dataset with "
                "__len__, whose samples have numbers."
            )
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, none of whose samples are processed. Call it when one has ended, before the commit.

        Args:
            epoch: Its number.
        """
        self.load_state_dict({"epoch": epoch, "processed_num": 0})

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch as processed on all ranks, whose batches of this number are in the same step.

        Args:
            batch_idx: Its number, which Horovod's signature has: each call counts a batch, whatever the number.
            batch_size: How many samples each rank has in a batch.
        """
        self.processed_num += batch_size * self.num_replicas

    def reset(self) -> None:
        """Deals out what is left of the epoch to the ranks of now."""
        self.num_replicas, self.rank = runtime.size(), runtime.rank() % runtime.size()  # one that prepares is alone
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """What a new sampler of this dataset continues from."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned, in this job or another.

        Args:
            state_dict: From `state_dict`.
        """
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        dealt = list(self.remaining_indices)
        while len(dealt) < self.total_size:  # fewer samples than ranks are dealt out several times
            dealt += dealt[: self.total_size - len(dealt)]
        return iter(dealt[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
