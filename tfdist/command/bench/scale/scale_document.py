"""A JSON file that people write, read field by field; each error names file, field and what was expected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError


class Document:
    """The fields of one JSON object. Take each one that is known, then call `finish`.

    Args:
        where: What errors call it, such as the path of its file.
        fields: The object.
    """

    def __init__(self, where: str, fields: Mapping[str, Any]) -> None:
        self._where, self._fields = where, dict(fields)

    @classmethod
    def read(cls, path: Path) -> Document:
        """Raises ConfigError if there is no such file, or it holds no JSON object."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ConfigError(f"{path} holds a {type(fields).__name__}; expected an object of fields")
        return cls(str(path), fields)

    def number(self, name: str, positive: bool = False, default: float | None = None) -> float:
        """A finite number of 0 or more, or of more than 0."""
        value = self._take(name, default)
        wanted = "more than 0" if positive else "0 or more"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, value, f"a number of {wanted}")
        if not 0 <= value < float("inf") or (positive and value == 0):
            raise self._wrong(name, value, f"a number of {wanted}")
        return float(value)

    def whole(self, name: str) -> int:
        """A whole number of 1 or more."""
        value = self._take(name, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, value, "a whole number of 1 or more")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Texts by name; none where the field is not there."""
        value = self._take(name, {})
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self._wrong(name, value, "an object of texts")
        return value

    def sizes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of 0 or more."""
        value = self._take(name, None)
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self._wrong(name, value, "a list of whole numbers of 0 or more")
        return tuple(value)

    def parts(self, name: str, default: list[Any] | None = None) -> list[Document]:
        """A list of objects."""
        value = self._take(name, default)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(name, value, "a list of objects")
        return [Document(f"{self._where}: {name}[{index}]", item) for index, item in enumerate(value)]

    def finish(self) -> None:
        """Raises ConfigError if there is a field that nothing took, such as a misspelt one."""
        if self._fields:
            raise ConfigError(f"{self._where} has fields that are not known: {', '.join(sorted(self._fields))}")

    def _take(self, name: str, default: Any) -> Any:
        if name not in self._fields and default is None:
            raise ConfigError(f"{self._where} lacks the field {name}")
        return self._fields.pop(name, default)

    def _wrong(self, name: str, value: Any, wanted: str) -> ConfigError:
        return ConfigError(f"{self._where}: {name} is {value!r}; expected {wanted}")
