"""The `tfdist image` command from its words to its exit status. Docker builds, and its SDK does the rest."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from tfdist.command.image import build, checkout, combination, engine, option, report, table
from tfdist.command.image.failure import ImageError
from tfdist.command.image.progress import say
from tfdist.system.process import heeded

FAILURE = 1


def main(words: Sequence[str]) -> int:
    """Builds an image, or shows the table of versions.

    Returns:
        0, or 1 where something failed after the words were understood.

    Raises:
        ConfigError: If the words cannot be honoured.
    """
    options = option.parse(words)
    if isinstance(options, option.Versions):
        if options.markdown is None:
            print(table.text())
        else:
            table.write(options.markdown)
        return 0
    with _terminable():
        try:
            print(make(options))
        except ImageError as error:
            say(f"tfdist image: {error}")
            return FAILURE
    return 0


def make(options: option.Build) -> str:
    """Builds, and then saves and pushes what is to be.

    Returns:
        What there is to say about it.

    Raises:
        ConfigError: If the words cannot be honoured; nothing was built then.
        ImageError: If a part of it failed.
    """
    chosen = combination.choose(options.wish)
    source = checkout.read(options.source)
    docker = build.find()
    temporary = tempfile.TemporaryDirectory(prefix="tfdist-image-")
    with contextlib.closing(engine.connect()) as docker_engine, temporary as folder:
        names = options.tags or report.tags(source.version, chosen)
        say(f"building {', '.join(names)}: {chosen.summary()}")
        identity = Path(folder) / "image"
        secrets = _secrets(options, Path(folder))
        command = build.words(source, chosen, names, options.extra_packages, secrets, identity)
        build.run([docker, *command], say)
        size = docker_engine.size(identity.read_text().strip())
        if options.save is not None:
            say(f"saving {names[0]} as {options.save}")
            docker_engine.save(names[0], size, options.save)
        digests = {}
        for name in names if options.push else ():
            say(f"pushing {name}")
            digests[name] = docker_engine.push(name)
    return report.text(names, size, chosen, digests, options.save)


def _secrets(options: option.Build, folder: Path) -> list[str]:
    """The values of --secret. An authority alone gets the pip.conf that names it."""
    files = {"pip.conf": options.pip_config, "ca.pem": options.ca}
    if options.ca is not None and options.pip_config is None:
        made = files["pip.conf"] = folder / "pip.conf"
        made.write_text(f"[global]\ncert = {option.CA_SECRET}\n")
    return [f"id={name},src={file}" for name, file in files.items() if file is not None]


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and Ctrl-C leave as an exception does, so that docker is ended and no half file stays."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in heeded((signal.SIGTERM, signal.SIGINT))}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
