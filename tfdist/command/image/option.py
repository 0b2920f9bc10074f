"""The options of `tfdist image`: names, help texts, and all checks that need neither Docker nor sources."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tfdist.command.image.combination import TARGETS
from tfdist.errors import ConfigError
from tfdist.system.terminal.command_line import Parser

# What --tag has for the target, where several are built.
PLACE = "{target}"
# Where the Dockerfile mounts the file of --ca.
CA_SECRET = "/run/secrets/ca.pem"

_BUILD = """\
Builds a container image of tfdist from its sources with docker buildx. This takes minutes; unchanged parts are cached.

examples:
  tfdist image build
  tfdist image build --target cuda --tensorflow 2.20 --cuda 12.8
  tfdist image build --python 3.12 --extra-packages "scikit-learn pandas"
  tfdist image build --tag registry.example.org/team/tfdist:cpu --push
  tfdist image build --target cpu --target data-service --save images.tar
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    top = Parser(prog="tfdist image", description="Builds container images of tfdist.")
    parts = top.add_subparsers(dest="part", metavar="COMMAND", required=True)
    build = parts.add_parser("build", help="build an image, and save or push it", description=_BUILD)
    _add_releases(build)
    _add_rest(build)
    versions = parts.add_parser("versions", help="list the releases that work together")
    versions.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the table between the markers in a Markdown file"
    )
    return top


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; `part` is "build" or "versions", and `target` a list. Raises ConfigError."""
    known = parser().parse_args(words)
    if known.part == "build":
        known.target = list(dict.fromkeys(known.target or ["cpu"]))
        _check(known)
    return known


def _add_releases(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("contents (tfdist image versions lists the choices)").add_argument
    kind = "the kind of image; may be repeated (default: cpu)"
    add("--target", choices=TARGETS, action="append", default=[], help=kind)
    add("--tensorflow", metavar="VERSION", help="such as 2.21 (default: the newest)")
    add("--python", metavar="VERSION", help="such as 3.12 (default: the one of Debian 12)")
    add("--cuda", metavar="VERSION", help="such as 12.9, for --target cuda (default: the newest for TensorFlow)")
    add("--keras", metavar="VERSION", help="such as 3.15 (default: the newest)")
    add("--base-image", metavar="IMAGE", help="based on Debian 12 or 13, with --python (default: by --python)")
    more = "Python packages for your scripts, such as 'scikit-learn pandas>=2'"
    add("--extra-packages", default="", metavar="'PACKAGE ...'", help=more)


def _add_rest(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tag",
        action="append",
        default=[],
        metavar="NAME",
        help=f"name of the image, with {PLACE} if there are several; may be repeated (default: two names)",
    )
    add("--push", action="store_true", help="push each --tag to its registry, with the login of docker login")
    add(
        "--save",
        type=_archive,
        metavar="FILE",
        help="also save all images, with their names, to one tar file, for docker load",
    )
    add("--source", type=Path, default=Path(), metavar="FOLDER", help="checkout of tfdist (default: this folder)")
    add(
        "--pip-config",
        type=_file,
        metavar="FILE",
        help="pip.conf for the build, such as for another index; not kept in the image",
    )
    add(
        "--ca",
        type=_file,
        metavar="FILE",
        help="certificate authorities (PEM) for pip in the build; not kept in the image",
    )


def _check(known: argparse.Namespace) -> None:
    for tag in known.tag if len(known.target) > 1 else ():
        if PLACE not in tag:
            raise ConfigError(
                f"--tag {tag} would name {len(known.target)} images; expected {PLACE} in it. For example: "
                f"--tag 'registry.example.org/team/tfdist:{PLACE}'"
            )
    for tag in known.tag or ["none"]:
        if known.push and "/" not in tag:
            raise ConfigError(
                f"--push needs a --tag with a registry or an account; received {tag}. For example: "
                "--tag registry.example.org/team/tfdist:cpu, or --tag ACCOUNT/tfdist:cpu for Docker Hub."
            )
    if known.ca and known.pip_config and CA_SECRET not in known.pip_config.read_text():
        raise ConfigError(
            f"--pip-config {known.pip_config} does not refer to the file of --ca, so pip would not use it. "
            f"Add this line to its section [global]: cert = {CA_SECRET}"
        )


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file")
    return Path(text).resolve()


def _archive(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; use a file name in an existing folder")
    return path
