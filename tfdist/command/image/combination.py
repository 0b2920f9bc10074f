"""Chooses the releases for an image from the table in `version`, and explains invalid choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.command.image import table, version
from tfdist.errors import ConfigError

TARGETS = ("cpu", "cuda", "data-service", "dev")


@dataclass(frozen=True)
class Combination:
    """The releases in an image.

    Attributes:
        cuda: Such as "12.9"; empty for an image without CUDA.
        base_image: The user's own, whose Python is only known during the build; None: the one of `python`.
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
        """The build arguments of docker/Dockerfile for this combination; an empty one is not passed."""
        return {
            "BASE_IMAGE": self.begin,
            "TENSORFLOW_VERSION": self.tensorflow.version,
            "KERAS_VERSION": self.keras,
            "NUMPY_VERSION": self.numpy,
            "CUDA_TOOLKIT_VERSION": self.tensorflow.cuda[self.cuda] if self.cuda else "",
            # The build compares it with the Python of the image.
            "EXPECTED_PYTHON": self.python.version if self.base_image else "",
        }

    def summary(self) -> str:
        cuda = f", CUDA {self.cuda}" if self.cuda else ""
        return (
            f"TensorFlow {self.tensorflow.version}{cuda}, Keras {self.keras}, NumPy {self.numpy}, "
            f"Python {self.python.version} of {self.begin}"
        )

    def suffix(self) -> str:
        """How it differs from the default of its target, for a tag: "-tf2.19-py3.12"; empty for the default."""
        usual = choose(self.target, self.tensorflow.minor, self.python.version)
        parts = (
            ("tf", self.tensorflow.minor, version.RELEASES[0].minor),
            ("py", self.python.version, version.PYTHONS[0].version),
            ("cuda", self.cuda, usual.cuda),
            ("keras", version.minor(self.keras), version.minor(usual.keras)),
        )
        return "".join(f"-{name}{chosen}" for name, chosen, default in parts if chosen != default)


def choose(
    target: str,
    tensorflow: str | None = None,
    python: str | None = None,
    cuda: str | None = None,
    keras: str | None = None,
    base_image: str | None = None,
) -> Combination:
    """The compatible releases that match the request; None means the default, or whatever fits the rest.

    Raises:
        ConfigError: If there are none; says why, what would fit, and includes the table of releases.
    """
    releases = {each.version: each for each in version.RELEASES}
    release = releases[_pick("--tensorflow", tensorflow, list(releases), "is not in the table")]
    pythons = {each.version: each for each in version.PYTHONS if each.version in release.pythons}
    beside = f"has no build of TensorFlow {release.minor}"
    chosen = pythons[_pick("--python", python, list(pythons), beside)]
    kept = _pick("--keras", keras, chosen.keras, f"has no build for Python {chosen.version}")
    brought = list(release.cuda) if target == "cuda" else [""]
    lacking = f"is not what TensorFlow {release.minor} brings" if target == "cuda" else f"is not for --target {target}"
    return Combination(target, release, chosen, kept, _pick("--cuda", cuda, brought, lacking), base_image)


def _pick(name: str, asked: str | None, known: Sequence[str], reason: str) -> str:
    """The requested version, given in full or by its first two numbers; if none is requested, the first one."""
    for each in known:
        if asked in (None, each, version.minor(each)):
            return each
    expected = table.listed(map(version.minor, known)) or "none: omit it"
    raise ConfigError(f"{name} is {asked!r}, which {reason}; expected {expected}.\n\n{table.text()}")
