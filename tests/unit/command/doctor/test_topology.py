"""How GPUs are connected, from texts in the form of `nvidia-smi topo -m`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tfdist.command.doctor import topology

SAMPLE = Path(__file__).with_name("sample")
NVLINK = (SAMPLE / "topology_nvlink.txt").read_text()
MIXED = (SAMPLE / "topology_mixed.txt").read_text()


def test_pairs_without_nics_and_affinities() -> None:
    assert topology.links(NVLINK) == dict.fromkeys(combinations(range(4), 2), "NV18")
    assert topology.links(MIXED) == {
        (0, 1): "NV4",
        (0, 2): "PHB",
        (0, 3): "SYS",
        (1, 2): "PHB",
        (1, 3): "SYS",
        (2, 3): "SYS",
    }


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n", "GPU0\tX", "\tGPU0\nGPU0\t X \n"])
def test_nothing_to_connect(text: str) -> None:
    assert topology.links(text) == {}


@pytest.mark.parametrize(
    ("links", "text"),
    [
        ({(0, 1): "NV18"}, "NVLink between all GPUs (NV18)"),
        ({(0, 1): "SYS"}, "no NVLink; between GPUs: SYS (the link between processors)"),
        ({(0, 1): "XYZ"}, "no NVLink; between GPUs: XYZ"),
        (topology.links(MIXED), "NVLink between 1 of 6 pairs (NV4); else PHB (the PCIe host bridge), SYS (the link"),
    ],
)
def test_words(links: dict[tuple[int, int], str], text: str) -> None:
    assert topology.describe(links).startswith(text)
