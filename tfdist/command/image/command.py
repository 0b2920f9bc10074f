"""The `tfdist image` command: builds images with Docker's buildx, or shows the table of versions."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from tfdist.command.image import build, checkout, combination, engine, option, table
from tfdist.system.process import caught

FAILURE = 1


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
    """Builds the image, and then saves and pushes it if requested.

    Raises:
        ConfigError: If an option is invalid; nothing has been built then.
        ImageError: If a step failed.
    """
    wish = (options.tensorflow, options.python, options.cuda, options.keras, options.base_image)
    chosen = combination.choose(options.target, *wish)
    source = checkout.read(options.source.resolve())
    lasting = f"tfdist:{source.version}-{chosen.target}{chosen.suffix()}"
    names = list(dict.fromkeys(options.tag)) or [lasting, f"tfdist:{chosen.target}"]
    docker = build.find()
    with engine.connected() as size_of:
        print(f"building {', '.join(names)}: {chosen.summary()}", file=sys.stderr, flush=True)
        build.bake(docker, source, chosen, names, options)
        if options.save is not None:
            build.run(
                [docker, "save", "--output", str(options.save), names[0]],
                f"The image {names[0]} is still in the Docker engine.",
            )
        for name in names if options.push else ():
            build.run([docker, "push", name], f"Check that you have run docker login, then retry: docker push {name}")
        size = size_of(names[0])
    print(f"{', '.join(names)}: {size / (1 << 20):,.0f} MiB, {chosen.summary()}")
