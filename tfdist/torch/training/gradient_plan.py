"""Which gradients travel together: computed once, from the parameters alone. Reduces nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tfdist.errors import ConfigError, MismatchError
from tfdist.native import library
from tfdist.torch.collective.tensor import dtype_of


@dataclass(frozen=True)
class Named:
    """A parameter whose gradient is reduced.

    Attributes:
        name: Same on every rank.
        parameter: The parameter.
    """

    name: str
    parameter: torch.nn.Parameter

    def outline(self) -> str:
        """What must be the same on all ranks."""
        return f"{self.name} {dtype_of(self.parameter, self.name)} {list(self.parameter.shape)}"


def named_of(param_groups: Sequence[dict[str, Any]], named_parameters: Iterable[Any] | None) -> list[Named]:
    """The parameters of an optimizer that require gradients, with their names.

    Args:
        param_groups: Those of the optimizer.
        named_parameters: Pairs of name and parameter, such as `model.named_parameters()`; None numbers them.

    Raises:
        ConfigError: If they are no such pairs, a name is there twice, or a parameter has none.
    """
    parameters = [parameter for group in param_groups for parameter in group["params"]]
    if named_parameters is None:
        named = [Named(f"parameter {place}", parameter) for place, parameter in enumerate(parameters)]
        return [each for each in named if each.parameter.requires_grad]
    names = _names_by_parameter(list(named_parameters))
    unnamed = sum(id(parameter) not in names for parameter in parameters)
    if unnamed:
        raise ConfigError(
            f"named_parameters lacks {unnamed} of the {len(parameters)} parameters of the optimizer. Pass those of all "
            "models that it trains."
        )
    return [Named(names[id(each)], each) for each in parameters if each.requires_grad]


def _names_by_parameter(pairs: Sequence[Any]) -> dict[int, str]:
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ConfigError("named_parameters must be pairs of a name and a parameter; pass model.named_parameters().")
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise ConfigError(f"named_parameters has these names more than once: {', '.join(twice)}. Make them unique.")
    return {id(parameter): name for name, parameter in pairs}


def plan(named: Sequence[Named], groups: Any, threshold: int) -> list[list[Named]]:
    """The buckets, each of which is one collective; those whose gradients probably come first are first.

    Args:
        named: The parameters, in the order of the model.
        groups: How many buckets of about equally many parameters; or lists of parameters, each a bucket, the others are
            planned by size; None: all by size.
        threshold: The bytes of a bucket.

    Raises:
        ConfigError: If `groups` is neither, or has a parameter twice or one that is not the optimizer's.
    """
    backwards = list(reversed(named))
    if groups is None:
        return by_size(backwards, threshold)
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return _by_number(backwards, groups)
    if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        return _by_choice(backwards, groups, threshold)
    raise ConfigError(f"groups must be a number above 0 or lists of parameters; received {groups!r}.")


def _by_number(named: Sequence[Named], groups: int) -> list[list[Named]]:
    count = min(groups, len(named))
    edges = [len(named) * place // max(count, 1) for place in range(count + 1)]
    return [list(named[begin:end]) for begin, end in itertools.pairwise(edges)]


def _by_choice(named: Sequence[Named], groups: Sequence[Sequence[torch.Tensor]], threshold: int) -> list[list[Named]]:
    by_id = {id(each.parameter): each for each in named}
    given = [id(parameter) for group in groups for parameter in group]
    if len(set(given)) < len(given) or not set(given) <= set(by_id):
        raise ConfigError(
            "groups has a parameter twice, or one that the optimizer does not have or that requires no gradient."
        )
    chosen = [[by_id[id(parameter)] for parameter in group] for group in groups if group]
    return chosen + by_size([each for each in named if id(each.parameter) not in given], threshold)


def by_size(named: Sequence[Named], threshold: int) -> list[list[Named]]:
    """Buckets of parameters of one dtype that follow each other, of at most `threshold` bytes or one parameter."""
    dtypes = [dtype_of(each.parameter, each.name) for each in named]
    sizes = [each.parameter.numel() * each.parameter.element_size() for each in named]
    return [[named[place] for place in bucket] for bucket in library.plan_buckets(dtypes, sizes, threshold)]


def refuse_strangers(parameters: Iterable[torch.Tensor], known: Container[int]) -> None:
    """Refuses gradients that nobody reduces.

    Args:
        parameters: Those of the optimizer now.
        known: The ids of those whose gradients are reduced.

    Raises:
        ConfigError: If another has a gradient.
    """
    strangers = sum(each.grad is not None and id(each) not in known for each in parameters)
    if strangers:
        raise ConfigError(
            f"{strangers} parameters have a gradient, but were not in the optimizer, or required none, when "
            "DistributedOptimizer was called, so their gradients are not reduced. Call it after add_param_group "
            "and after setting requires_grad; later, for a new optimizer of the same kind and groups: "
            "new.load_state_dict(optimizer.state_dict()), new.add_param_group(...), DistributedOptimizer(new)."
        )


def check_plans(plans: Sequence[Sequence[Sequence[str]]], ranks: Sequence[int], label: str) -> None:
    """Compares the buckets of all ranks.

    Raises:
        MismatchError: Names the first difference.
    """
    first = [line for bucket in plans[0] for line in bucket]
    for rank, other in zip(ranks, plans, strict=True):
        if other == plans[0]:
            continue
        theirs = [line for bucket in other for line in bucket]
        pairs = itertools.zip_longest(first, theirs, fillvalue="nothing")
        mine, yours = next(((a, b) for a, b in pairs if a != b), ("its buckets", "others"))
        raise MismatchError(
            f"{label}: the ranks train different parameters: rank {ranks[0]} has {mine}, rank {rank} has {yours}. Make "
            "the same model and optimizer on every rank, with the same requires_grad and groups."
        )
