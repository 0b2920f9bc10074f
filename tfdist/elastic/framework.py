"""What elastic training needs of the framework that trains, TensorFlow or PyTorch. Imports neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdist.errors import TfdistError


@dataclass(frozen=True)
class Framework:
    """The collectives of a framework, and what it does about a loss.

    Attributes:
        allgather_object: Its collective of objects, of an object and `name`.
        broadcast_object: The same, of an object, the root, and `name`.
        loss_behind: The loss or stall of a rank that made something fail with this error; None if it has another cause.
        begin_anew: Called when the ranks have changed, before any collective of theirs.
    """

    allgather_object: Callable[..., list[Any]]
    broadcast_object: Callable[..., Any]
    loss_behind: Callable[[BaseException], TfdistError | None]
    begin_anew: Callable[[], None]


def of_tensorflow() -> Framework:
    """That of states which do not say otherwise."""
    from tfdist.input import part
    from tfdist.ops import object as objects
    from tfdist.ops.graph import failure

    return Framework(
        allgather_object=objects.allgather_object,
        broadcast_object=objects.broadcast_object,
        loss_behind=failure.trouble_behind,
        begin_anew=part.deal_all,
    )
