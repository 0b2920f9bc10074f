"""What `tfdist image build` says at its end: the tags with size and contents, and what to type next. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.command.image.combination import Combination
from tfdist.command.image.progress import mebibytes
from tfdist.system.terminal.text_table import aligned

_OPTIONS = {
    "cuda": "--gpus all --shm-size 8g --ulimit memlock=-1 ",
    "dev": '-it --volume "$PWD:/job" ',
}
_COMMANDS = {"data-service": " dispatcher --help"}


def tags(version: str, combination: Combination) -> tuple[str, ...]:
    """The names of an image for which none were given: one that tells what it is, and the short one that moves."""
    return (
        f"tfdist:{version}-{combination.target}{combination.suffix()}",
        f"tfdist:{combination.target}",
    )


def text(
    names: Sequence[str], size: int, combination: Combination, digests: Mapping[str, str], saved: Path | None
) -> str:
    """The table and the next command. `digests`: of the tags that were pushed; `saved`: the file with the first tag."""
    rows = [("tag", "size", "made of"), *((name, mebibytes(size), combination.summary()) for name in names)]
    lines = [aligned(rows), ""]
    lines += [f"pushed {name} as {digest}" for name, digest in digests.items()]
    if saved is not None:
        lines.append(f"saved {names[0]} as {saved}; on another machine: docker load --input {saved.name}")
    options, command = _OPTIONS.get(combination.target, ""), _COMMANDS.get(combination.target, "")
    return "\n".join([*lines, f"try it: docker run --rm {options}{names[0]}{command}"])
