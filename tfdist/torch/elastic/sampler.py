"""Which samples of a dataset each rank has in an epoch, when the number of ranks changes in it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.world import runtime


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its own part of a dataset, and after a change of the ranks a part of what is left of the epoch.

    The samples of the epoch that were not recorded are put into an order, the same on all ranks, and dealt out one to
    each rank in turn. So that every rank has equally many, the first ones are dealt out again at the end. Hold it in
    the state, record each batch after its step, and begin the next epoch with `set_epoch`:

    Args:
        dataset: Anything with a length, the same on every rank.
        shuffle: Whether each epoch has an order of its own.
        seed: Together with the number of the epoch, the seed of its order; the same on every rank.

    Attributes:
        epoch: The number of the epoch.
        processed_indices: The samples of this epoch that were recorded.
        remaining_indices: The others, when the parts were dealt out.
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
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    @property
    def processed_num(self) -> int:
        """How many samples of this epoch were recorded."""
        return len(self.processed_indices)

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, none of whose samples are processed. Call it when one has ended, before the commit.

        Args:
            epoch: Its number.
        """
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Marks a batch as processed on all ranks, whose batches of this number are in the same step.

        Args:
            batch_idx: Its number since the iteration over this sampler began.
            batch_size: How many samples each rank has in a batch.
        """
        begin = batch_idx * batch_size * self.num_replicas
        self.processed_indices.update(self._ordered()[begin : begin + batch_size * self.num_replicas])

    def record_indices(self, indices: Iterable[int]) -> None:
        """Marks samples as processed that this rank has chosen itself. Those of the other ranks are added by `sync`.

        Args:
            indices: Their numbers.
        """
        self.processed_indices.update(indices)

    def reset(self) -> None:
        """Deals out what is left of the epoch to the ranks of now."""
        self.num_replicas, self.rank = runtime.size(), runtime.rank() % runtime.size()  # one that prepares is alone
        self.remaining_indices = [each for each in range(len(self.dataset)) if each not in self.processed_indices]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self._order: list[int] = []  # of all ranks; made when it is needed

    def state_dict(self) -> dict[str, Any]:
        """What a new sampler of this dataset continues from."""
        return {"epoch": self.epoch, "processed_indices": self.processed_indices}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned, in this job or another.

        Args:
            state_dict: From `state_dict`.
        """
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self._ordered()[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def _ordered(self) -> list[int]:
        """The samples of all ranks, in their order: the first `num_replicas` are the first one of each rank."""
        if len(self._order) < self.total_size:
            order = list(self.remaining_indices)
            if self.shuffle:
                random.Random(self.seed + self.epoch).shuffle(order)
            while len(order) < self.total_size:  # fewer samples than ranks are dealt out several times
                order += order[: self.total_size - len(order)]
            self._order = order
        return self._order
