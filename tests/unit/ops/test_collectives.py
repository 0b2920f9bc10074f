"""The list of collectives, from which others know them."""

import inspect

import tfdist
from tfdist.ops import COLLECTIVES

# Rooms of ops whose names run nothing on other ranks.
LOCAL = ("tfdist.ops.topology", "tfdist.ops.reduction", "tfdist.ops.compression")


def test_every_public_function_of_ops_is_in_it():
    found = {
        name
        for name in tfdist.__all__
        if inspect.isfunction(value := getattr(tfdist, name))
        if value.__module__.startswith("tfdist.ops.") and not value.__module__.startswith(LOCAL)
    }
    assert {"allreduce", "barrier"} <= found
    assert found == COLLECTIVES | {"join"}
