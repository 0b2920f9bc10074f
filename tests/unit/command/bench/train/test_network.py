"""The smallest images of the networks, against what Keras itself refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfdist.command.bench.train import network
from tfdist.errors import ConfigError

APPLICATIONS = sorted(set(network.LEAST_PIXELS) - {network.DIGITS})


@pytest.mark.parametrize("name", APPLICATIONS)
def test_keras_refuses_one_pixel_less(name: str) -> None:
    """Keras looks at the size before it builds a layer, so that this is quick."""
    import keras

    least = network.LEAST_PIXELS[name]
    with pytest.raises(ValueError, match=rf"at least {least}"):
        getattr(keras.applications, name)(weights=None, input_shape=(least - 1, least - 1, 3))


def test_table_holds_every_network_of_keras() -> None:
    import keras

    offered = {name for name in dir(keras.applications) if name[0].isupper()}
    assert offered == set(APPLICATIONS)


@pytest.mark.parametrize(("name", "pixels"), [("ResNet50", 31), ("InceptionV3", 74), ("Xception", 70), ("digits", 7)])
def test_too_small_an_image(name: str, pixels: int) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--image-size {pixels} is too small for {name}")) as caught:
        network.check(name, pixels)
    assert f"{pixels + 1} pixels or more" in str(caught.value)
    network.check(name, pixels + 1)


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match="did you mean ResNet50"):
        network.check("Resnet50", 96)
    with pytest.raises(ConfigError, match="expected one of digits, "):
        network.check("?", 96)


def test_machine_is_described(tmp_path: Path) -> None:
    from tfdist.command.bench.measure import machine

    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: A B 3000\nprocessor\t: 1\nmodel name\t: A B 3000\n"
    )
    facts = machine.describe(tmp_path / "cpuinfo")
    assert facts["processor"] == "A B 3000"
    assert isinstance(facts["cores"], int) and facts["cores"] >= 1
    assert "keras" in facts
    assert machine.describe(tmp_path / "missing")["processor"] != ""
