"""How the GPUs of this machine are connected, parsed from the output of `nvidia-smi topo -m`."""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NVLINK = re.compile(r"NV\d+")
# From near to far, as in its legend.
_MEANINGS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between processors",
}


def links(matrix: str) -> dict[tuple[int, int], str]:
    """The kind of connection of each pair of GPUs, lower number first: "NV18", "PIX", "SYS" and so on."""
    rows = [line.split("\t") for line in _ESCAPES.sub("", matrix).splitlines()]
    cells = [[cell.strip() for cell in row] for row in rows]
    header = next((row for row in cells if "GPU0" in row[1:]), [])
    found = {}
    for row in cells:
        if row is header or not (first := re.fullmatch(r"GPU(\d+)", row[0])):
            continue
        for name, kind in zip(header[1:], row[1:], strict=False):
            second = re.fullmatch(r"GPU(\d+)", name)
            if second and int(first.group(1)) < int(second.group(1)):
                found[int(first.group(1)), int(second.group(1))] = kind
    return found


def describe(found: dict[tuple[int, int], str]) -> str:
    """One sentence for all pairs."""
    kinds = sorted(set(found.values()))
    nvlinks = [kind for kind in kinds if _NVLINK.fullmatch(kind)]
    others = [f"{kind} ({_MEANINGS[kind]})" if kind in _MEANINGS else kind for kind in kinds if kind not in nvlinks]
    if not others:
        return f"NVLink between all GPUs ({', '.join(nvlinks)})"
    if not nvlinks:
        return f"no NVLink; between GPUs: {', '.join(others)}"
    joined = sum(kind in nvlinks for kind in found.values())
    return f"NVLink between {joined} of {len(found)} pairs ({', '.join(nvlinks)}); else {', '.join(others)}"
