"""What an executor does for `KerasModel.transform`: values as a model takes them."""

import numpy as np
import pandas as pd
import pytest

from tfdist.spark.keras import prediction


def _of_spark(array):
    """As Spark gives nested arrays to pandas."""
    if array.ndim == 1:
        return array
    found = np.empty(len(array), object)
    found[:] = [_of_spark(each) for each in array]
    return found


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 3, 4), (2, 1, 3, 2)], ids=str)
def test_nested_arrays(shape):
    values = np.random.default_rng(1).normal(size=(5, *shape))
    column = pd.Series(list(_of_spark(values)))
    found = prediction._stacked(column, "x", shape or None)
    assert found.dtype == "float64"
    np.testing.assert_array_equal(found, values)
