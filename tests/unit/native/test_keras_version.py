"""A Keras that is too old is named, or the TensorFlow that brought it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
try:
    from tfdist.native import keras_version
except ImportError as error:
    assert {expected!r} in str(error), error
else:
    raise AssertionError("taken")
"""


@pytest.mark.parametrize(
    ("tensorflow", "expected"),
    [
        ("", "Keras 2.15.0 is installed, and tfdist needs a newer one"),
        ("__version__ = '2.15.1'", "TensorFlow 2.15.1 is installed, but tfdist has libraries for"),
    ],
    ids=["Keras", "TensorFlow"],
)
def test_an_old_keras(run_script: Callable[..., str], tmp_path: Path, tensorflow: str, expected: str) -> None:
    (tmp_path / "keras.py").write_text("__version__ = '2.15.0'")
    if tensorflow:
        (tmp_path / "tensorflow.py").write_text(tensorflow)
    run_script(SCRIPT.format(expected=expected))
