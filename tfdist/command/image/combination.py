"""Which releases an image gets, and why others cannot be: pure, from `version`. It builds nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfdist.command.image import table, version
from tfdist.errors import ConfigError

TARGETS = ("cpu", "cuda", "data-service", "dev")


@dataclass(frozen=True)
class Wish:
    """What was asked for; None: the default, or what goes with the rest."""

    target: str = "cpu"
    tensorflow: str | None = None
    python: str | None = None
    cuda: str | None = None
    keras: str | None = None
    base_image: str | None = None


@dataclass(frozen=True)
class Combination:
    """What an image is made of.

    Attributes:
        cuda: As "12.9"; empty for an image without it.
        base_image: One of the user's own, whose Python is only known when it is there; None: that of `python`.
    """

    target: str
    tensorflow: version.Release
    python: version.Python
    keras: str
    cuda: str = ""
    base_image: str | None = None

    @property
    def numpy(self) -> str:
        return version.oldest(self.tensorflow.numpy, self.python.numpy)

    @property
    def begin(self) -> str:
        return self.base_image or self.python.begin

    def arguments(self) -> dict[str, str]:
        """The build arguments of docker/Dockerfile that say so."""
        chosen = {
            "BASE_IMAGE": self.begin,
            "TENSORFLOW_VERSION": self.tensorflow.version,
            "KERAS_VERSION": self.keras,
            "NUMPY_VERSION": self.numpy,
        }
        if self.cuda and self.tensorflow.cuda[self.cuda]:
            chosen["CUDA_TOOLKIT_VERSION"] = self.tensorflow.cuda[self.cuda]
        if self.base_image:
            chosen["EXPECTED_PYTHON"] = self.python.version  # the build compares it with what the image brings
        return chosen

    def summary(self) -> str:
        cuda = f", CUDA {self.cuda}" if self.cuda else ""
        return (
            f"TensorFlow {self.tensorflow.version}{cuda}, Keras {self.keras}, NumPy {self.numpy}, "
            f"Python {self.python.version} of {self.begin}"
        )

    def suffix(self) -> str:
        """What distinguishes it from the default of its target, for a tag: "-tf2.19-py3.12"; empty for the default."""
        usual = choose(Wish(self.target, tensorflow=self.tensorflow.minor, python=self.python.version))
        parts = (
            ("tf", self.tensorflow.minor, version.RELEASES[0].minor),
            ("py", self.python.version, version.PYTHONS[0].version),
            ("cuda", self.cuda, usual.cuda),
            ("keras", version.minor(self.keras), version.minor(usual.keras)),
        )
        return "".join(f"-{name}{chosen}" for name, chosen, default in parts if chosen != default)


def choose(wish: Wish) -> Combination:
    """The releases that go together and are what was asked for.

    Raises:
        ConfigError: If there are none; with the reason, and the table of what there is.
    """
    try:
        return _choose(wish)
    except ConfigError as refused:
        raise ConfigError(f"{refused}\n\n{table.text()}") from None


def _choose(wish: Wish) -> Combination:
    release = _tensorflow(wish.tensorflow)
    python = _python(wish.python)
    if python.version not in release.pythons:
        raise ConfigError(
            f"TensorFlow {release.minor} has no build for Python {python.version}; "
            f"it has those for {table.listed(release.pythons)}."
        )
    keras = _keras(wish.keras, python)
    return Combination(wish.target, release, python, keras, _cuda(wish, release), wish.base_image)


def _tensorflow(asked: str | None) -> version.Release:
    for release in version.RELEASES:
        if asked in (None, release.version, release.minor):
            return release
    raise ConfigError(
        f"--tensorflow is {asked!r}, which is not in the table; "
        f"expected one of {_names(release.minor for release in version.RELEASES)}."
    )


def _python(asked: str | None) -> version.Python:
    for python in version.PYTHONS:
        if asked in (None, python.version):
            return python
    known = sorted((python.version for python in version.PYTHONS), key=lambda text: int(text.partition(".")[2]))
    raise ConfigError(f"--python is {asked!r}, which is not in the table; expected one of {_names(known)}.")


def _keras(asked: str | None, python: version.Python) -> str:
    for keras in python.keras:
        if asked in (None, keras, version.minor(keras)):
            return keras
    there = _names(map(version.minor, python.keras))
    every = {keras for each in version.PYTHONS for keras in each.keras}
    if asked in every | set(map(version.minor, every)):
        raise ConfigError(f"Keras {asked} has no build for Python {python.version}; it has those of {there}.")
    raise ConfigError(f"--keras is {asked!r}, which is not in the table; expected one of {there}.")


def _cuda(wish: Wish, release: version.Release) -> str:
    if wish.target != "cuda":
        if wish.cuda is not None:
            raise ConfigError(
                f"--cuda is {wish.cuda!r}, but --target is {wish.target!r}, and that image has no CUDA; "
                "leave --cuda out, or give --target cuda."
            )
        return ""
    if wish.cuda is None:
        return next(iter(release.cuda))
    if wish.cuda not in release.cuda:
        brought = table.listed(release.cuda)
        raise ConfigError(f"TensorFlow {release.minor}'s packages bring CUDA {brought}, not {wish.cuda}.")
    return wish.cuda


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)
