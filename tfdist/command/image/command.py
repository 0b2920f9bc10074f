"""The `tfdist image` command from its words to its exit status. Docker's buildx builds what goes together."""

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
        0, or 1 where something failed after the words were understood.

    Raises:
        ConfigError: If the words cannot be honoured.
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
    """Builds, and then saves and pushes what is to be.

    Raises:
        ConfigError: If the words cannot be honoured; nothing was built then.
        ImageError: If a part of it failed.
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
            build.run([docker, "save", "--output", str(options.save), names[0]], f"The engine keeps {names[0]}.")
        for name in names if options.push else ():
            build.run([docker, "push", name], f"See that docker login was done, and try again: docker push {name}")
        size = size_of(names[0])
    print(f"{', '.join(names)}: {size / (1 << 20):,.0f} MiB, {chosen.summary()}")
