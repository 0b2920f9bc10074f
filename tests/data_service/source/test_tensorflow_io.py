"""Where tensorflow-io does not load, asking for its readers says what they need. tests/tfio reads with them."""

import importlib
from importlib import metadata

import pytest
import tensorflow as tf

from tfdist.data_service import from_io
from tfdist.errors import BuildError, ConfigError


@pytest.mark.parametrize(
    ("tensorflow_io", "tensorflow", "told"),
    [
        (None, "2.16.2", "found no tensorflow-io and TensorFlow 2.16.2"),
        ("0.37.1", "2.21.0", "found 0.37.1 tensorflow-io and TensorFlow 2.21.0"),
        ("0.37.1", "2.160.0", "TensorFlow 2.160.0"),
        ("0.36.0", "2.16.2", "found 0.36.0 tensorflow-io"),
    ],
)
def test_another_version_is_refused(monkeypatch, tensorflow_io, tensorflow, told):
    def version(name):
        assert name == "tensorflow-io"
        if tensorflow_io is None:
            raise metadata.PackageNotFoundError(name)
        return tensorflow_io

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(tf, "__version__", tensorflow)
    with pytest.raises(BuildError, match=rf"needs tensorflow-io 0\.37.*{told}.*pip install 'tfdist\[cpu,io\]'"):
        from_io("avro", "a.avro")


def test_a_broken_installation_is_told(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.37.1")
    monkeypatch.setattr(tf, "__version__", "2.16.2")

    def broken(name):
        raise ImportError(f"{name}: undefined symbol")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(BuildError, match="tensorflow_io: undefined symbol"):
        from_io("avro", "a.avro")


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"kind must be one of avro, .*received 'xls'"):
        from_io("xls", "a.xls")
