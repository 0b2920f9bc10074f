"""The options of `tfdist image`: names, meanings and all checks that need neither Docker nor sources."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tfdist.command.image.combination import TARGETS
from tfdist.errors import ConfigError
from tfdist.system.terminal.command_line import Parser

# Where the Dockerfile sees the file of --ca.
CA_SECRET = "/run/secrets/ca.pem"

_BUILD = """\
Builds a container image of tfdist from its sources, for minutes, by docker buildx. What has not changed is not built
again.

examples:
  tfdist image build
  tfdist image build --target cuda --tensorflow 2.20 --cuda 12.8
  tfdist image build --python 3.12 --extra-packages "scikit-learn pandas"
  tfdist image build --tag registry.example.org/team/tfdist:cpu --push
"""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; `part` is "build" or "versions". Raises ConfigError."""
    top = Parser(prog="tfdist image", description="Container images of tfdist.")
    parts = top.add_subparsers(dest="part", metavar="COMMAND", required=True)
    build = parts.add_parser("build", help="build an image, save or push it", description=_BUILD)
    _add_releases(build)
    _add_rest(build)
    versions = parts.add_parser("versions", help="the releases that go together")
    versions.add_argument("--markdown", type=Path, metavar="FILE", help="write the table between the marks of a page")
    known = top.parse_args(words)
    if known.part == "build":
        _check(known)
    return known


def _add_releases(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what it is made of (tfdist image versions lists it)").add_argument
    add("--target", choices=TARGETS, default="cpu", help="the kind of image (default: %(default)s)")
    add("--tensorflow", metavar="VERSION", help="as 2.21 (default: the newest)")
    add("--python", metavar="VERSION", help="as 3.12 (default: that of Debian 12)")
    add("--cuda", metavar="VERSION", help="as 12.9, for --target cuda (default: the newest that TensorFlow takes)")
    add("--keras", metavar="VERSION", help="as 3.15 (default: the newest)")
    add("--base-image", metavar="IMAGE", help="Debian 12 or 13, or made from it, with --python (default: by --python)")
    more = "Python packages for your scripts, as in 'scikit-learn pandas>=2'"
    add("--extra-packages", default="", metavar="'PACKAGE ...'", help=more)


def _add_rest(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tag", action="append", default=[], metavar="NAME", help="name it so; may be given again (default: two)")
    add("--push", action="store_true", help="push each --tag to its registry, with what docker login stored")
    add("--save", type=_archive, metavar="FILE", help="also write it into a tar file, for docker load")
    add("--source", type=Path, default=Path(), metavar="FOLDER", help="checkout of tfdist (default: this folder)")
    add("--pip-config", type=_file, metavar="FILE", help="pip.conf for the build, as for another index; in no image")
    add("--ca", type=_file, metavar="FILE", help="certificate authorities (PEM) for pip in the build; in no image")


def _check(known: argparse.Namespace) -> None:
    for tag in known.tag or ["none"]:
        if known.push and "/" not in tag:
            raise ConfigError(
                f"--push needs a --tag with the registry or the account that it goes to; got {tag}. For example: "
                "--tag registry.example.org/team/tfdist:cpu, or --tag ACCOUNT/tfdist:cpu for Docker Hub."
            )
    if known.ca and known.pip_config and CA_SECRET not in known.pip_config.read_text():
        raise ConfigError(
            f"--pip-config {known.pip_config} does not name the authorities of --ca, so pip would not use them. "
            f"Add this line to its section [global]: cert = {CA_SECRET}"
        )


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file")
    return Path(text).resolve()


def _archive(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; give the name of a file in a folder that exists")
    return path
