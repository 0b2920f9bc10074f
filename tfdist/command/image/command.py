"""The `tfdist image` command: builds images with Docker's buildx, or shows the table of versions."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from tfdist.command.image import build, checkout, combination, engine, option, table
from tfdist.command.image.checkout import Checkout
from tfdist.command.image.combination import Combination
from tfdist.system.process import caught

FAILURE = 1
parser = option.parser


def main(words: Sequence[str]) -> int:
    """Builds an image, or shows the table of versions.

    Returns:
        0, or 1 if something failed after the options were accepted.

    Raises:
        ConfigError: If an option is invalid.
    """
    options = option.parse(words)
    if options.part == "versions":
        print(table.text()) if options.markdown is None else table.write(options.markdown)
        return 0
    # They leave as an exception does, so that docker is ended too.
    with caught((signal.SIGTERM, signal.SIGINT), lambda number: sys.exit(128 + number)):
        try:
            _make(options)
        except build.ImageError as error:
            print(f"tfdist image: {error}", file=sys.stderr)
            return FAILURE
    return 0


def _make(options: argparse.Namespace) -> None:
    """Builds the images, and then saves and pushes them if requested.

    Raises:
        ConfigError: If an option is invalid; nothing has been built then.
        ImageError: If a step failed.
    """
    wanted = [_chosen(target, options) for target in options.target]
    source = checkout.read(options.source.resolve())
    named = [(chosen, _names(chosen, source, options.tag)) for chosen in wanted]
    every = [name for _, names in named for name in names]
    docker = build.find()
    with engine.connected() as size_of:
        for chosen, names in named:
            print(f"building {', '.join(names)}: {chosen.summary()}", file=sys.stderr, flush=True)
            build.bake(docker, source, chosen, names, options)
        if options.save is not None:
            advice = f"What was built is still in the Docker engine: {' '.join(every)}"
            build.run([docker, "save", "--output", str(options.save), *every], advice)
        for name in every if options.push else ():
            build.run([docker, "push", name], f"Check that you have run docker login, then retry: docker push {name}")
        sizes = [size_of(names[0]) for _, names in named]
    for (chosen, names), size in zip(named, sizes, strict=True):
        print(f"{', '.join(names)}: {size / (1 << 20):,.0f} MiB, {chosen.summary()}")


def _chosen(target: str, options: argparse.Namespace) -> Combination:
    """Beside an image with CUDA, its version is not one of the others."""
    cuda = options.cuda if target == "cuda" or "cuda" not in options.target else None
    return combination.choose(target, options.tensorflow, options.python, cuda, options.keras, options.base_image)


def _names(chosen: Combination, source: Checkout, tags: Sequence[str]) -> list[str]:
    own = (tag.replace(option.PLACE, chosen.target) for tag in tags)
    lasting = f"tfdist:{source.version}-{chosen.target}{chosen.suffix()}"
    return list(dict.fromkeys(own)) or [lasting, f"tfdist:{chosen.target}"]
