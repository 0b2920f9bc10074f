"""The options of `tfdist image`: names, meanings and all checks that need neither Docker nor sources."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.command.image.combination import TARGETS, Wish
from tfdist.errors import ConfigError
from tfdist.system.terminal.command_line import Parser

# Where the Dockerfile sees the file of --ca.
CA_SECRET = "/run/secrets/ca.pem"
_PIECE = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]+)?/)?"
_TAG = re.compile(rf"{_HOST}{_PIECE}(?:/{_PIECE})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,-]+\])?(?:[<>=!~]=?=?[A-Za-z0-9.*+!,<>=~-]+)?")
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip")

_BUILD = """\
Builds a container image of tfdist from its sources, for minutes. What has not changed is not built again.

examples:
  tfdist image build
  tfdist image build --target cuda --tensorflow 2.20 --cuda 12.8
  tfdist image build --python 3.12 --extra-packages "scikit-learn pandas"
  tfdist image build --tag registry.example.org/team/tfdist:cpu --push
"""


@dataclass(frozen=True)
class Build:
    """Options of `tfdist image build`. `tags` empty: those that the combination gives."""

    wish: Wish
    tags: tuple[str, ...]
    extra_packages: str
    push: bool
    save: Path | None
    source: Path
    pip_config: Path | None
    ca: Path | None


@dataclass(frozen=True)
class Versions:
    """Options of `tfdist image versions`; `markdown`: the page to write the table into."""

    markdown: Path | None


def parse(words: Sequence[str]) -> Build | Versions:
    """The options. Raises ConfigError."""
    top = Parser(prog="tfdist image", description="Container images of tfdist.")
    parts = top.add_subparsers(dest="part", metavar="COMMAND", required=True)
    build = parts.add_parser(
        "build",
        help="build an image, and save or push it",
        description=_BUILD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_releases(build)
    _add_rest(build)
    versions = parts.add_parser("versions", help="the releases that go together")
    versions.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the table into this page, between its marks"
    )
    known = top.parse_args(words)
    return Versions(known.markdown) if known.part == "versions" else _build(known)


def _add_releases(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what it is made of (tfdist image versions lists it)").add_argument
    add("--target", choices=TARGETS, default="cpu", help="the kind of image (default: %(default)s)")
    add("--tensorflow", metavar="VERSION", help="as 2.21 (default: the newest)")
    add("--python", metavar="VERSION", help="as 3.12 (default: that of Debian 12)")
    add("--cuda", metavar="VERSION", help="as 12.9, for --target cuda (default: the newest that TensorFlow takes)")
    add("--keras", metavar="VERSION", help="as 3.15 (default: the newest)")
    add(
        "--base-image",
        metavar="IMAGE",
        help="Debian 12 or 13, or made from it, which brings --python (default: by --python)",
    )
    add(
        "--extra-packages",
        type=_requirements,
        default="",
        metavar="'PACKAGE ...'",
        help="Python packages for your scripts, as in 'scikit-learn pandas>=2'",
    )


def _add_rest(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tag",
        type=_tag,
        action="append",
        default=[],
        metavar="NAME",
        help="name it so; may be given again (default: two)",
    )
    add("--push", action="store_true", help="push each --tag to its registry, with what docker login stored")
    add("--save", type=_archive, metavar="FILE", help="also write it into a tar file, for docker load")
    add(
        "--source", type=Path, default=Path(), metavar="FOLDER", help="checkout of tfdist (default: the current folder)"
    )
    add("--pip-config", type=_file, metavar="FILE", help="pip.conf for the build, as for another index; in no image")
    add("--ca", type=_file, metavar="FILE", help="certificate authorities (PEM) for pip in the build; in no image")


def _build(known: argparse.Namespace) -> Build:
    wish = Wish(known.target, known.tensorflow, known.python, known.cuda, known.keras, known.base_image)
    tags = tuple(dict.fromkeys(known.tag))
    if known.push:
        _check_push(tags)
    if known.ca is not None and known.pip_config is not None and CA_SECRET not in known.pip_config.read_text():
        raise ConfigError(
            f"--pip-config {known.pip_config} does not name the authorities of --ca, so pip would not use them. "
            f"Add this line to its section [global]: cert = {CA_SECRET}"
        )
    return Build(
        wish=wish,
        tags=tags,
        extra_packages=known.extra_packages,
        push=known.push,
        save=known.save,
        source=known.source.resolve(),
        pip_config=known.pip_config,
        ca=known.ca,
    )


def _check_push(tags: tuple[str, ...]) -> None:
    for tag in tags or ("none",):
        if "/" not in tag:
            raise ConfigError(
                f"--push needs a --tag with the registry or the account that it goes to; got {tag}. "
                "For example: --tag registry.example.org/team/tfdist:cpu, or --tag ACCOUNT/tfdist:cpu for Docker Hub."
            )


def _tag(text: str) -> str:
    if not _TAG.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of an image; expected [REGISTRY/]NAME[:TAG] with NAME in small letters, "
            "as in tfdist:cpu or registry.example.org/team/tfdist:1.0"
        )
    return text if ":" in text.rpartition("/")[2] else f"{text}:latest"


def _requirements(text: str) -> str:
    for word in text.split():
        if not _REQUIREMENT.fullmatch(word):
            raise argparse.ArgumentTypeError(
                f"{word!r} is no requirement of pip; expected packages with spaces between them and none in them, "
                "as in 'scikit-learn pandas>=2,<3'"
            )
    return " ".join(text.split())


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file")
    if "," in str(path.resolve()):
        raise argparse.ArgumentTypeError(f"{text!r} has a comma in its path, which docker's --secret cannot take")
    return path.resolve()


def _archive(text: str) -> Path:
    path = Path(text)
    if path.suffix in _COMPRESSED:
        raise argparse.ArgumentTypeError(
            f"{text!r} ends like a compressed file, and what is written is not; give a name as tfdist.tar and "
            "compress it afterwards"
        )
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {path.parent}"
        raise argparse.ArgumentTypeError(f"{text!r} {what}; give the name of a file")
    return path
