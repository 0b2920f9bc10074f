"""One folder of objects: each operation has a deadline and is tried again; an error says what to do."""

from __future__ import annotations

import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tfdist.errors import StoreError
from tfdist.storage.file_system import About, open_folder
from tfdist.system.backoff import pause_s

# What an operation may take if the one before it has succeeded, and otherwise; how slow large objects may be.
OPERATION_S = 60.0
CHECK_S = 8.0
_SLOWEST_BYTES_PER_S = 1 << 20
_TRIES = 4
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0
_PROBE = ".tfdist-probe-"
# Trying again would not help.
_FINAL = (
    *(FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError),
    *(ImportError, TypeError, ValueError),
)
_FINAL_NAMES = r"Credentials|^NotFoundError|^PermissionDenied|^Unauthenticated"
# Errors of the stores' libraries are of many classes; these occur in their names and texts.
_OF_CREDENTIALS = r"credential|signature|forbidden|unauthorized|accessdenied|accesskey|token|\b403\b|permissiondenied"
_OF_NETWORK = r"connect|timeout|timed out|no answer|dns|resolve"

Result = TypeVar("Result")
# By address: the thread that puts or removes an object. One that is left behind at its deadline may still do it.
_changing: dict[str, threading.Thread] = {}


class NoAnswerError(TimeoutError):
    """Our deadline has passed."""


class Store:
    """A folder of objects at an address. Thread-safe.

    Args:
        address: As in `s3://bucket/folder`.

    Raises:
        ConfigError: If nothing that is installed knows the scheme.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._files = open_folder(address)
        # Of the last try; None before the first.
        self._has_failed: bool | None = None

    def __str__(self) -> str:
        return self.address

    @property
    def is_struggling(self) -> bool:
        """Whether the last try of an operation has failed."""
        return self._has_failed is True

    def check(self) -> None:
        """Writes, reads and removes a small object. Raises StoreError, within 10 seconds."""
        contents = secrets.token_bytes(32)
        name = _PROBE + secrets.token_hex(8)
        until = time.monotonic() + CHECK_S
        with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
            path = Path(folder) / name
            path.write_bytes(contents)
            self._try("write to", lambda: self._files.put(path, name), until)
        found = self._try("read from", lambda: self._files.read(name), until)
        self._try("remove from", lambda: self._files.remove(name), until)
        if found != contents:
            raise StoreError(
                f"{self.address} returned {len(found)} other bytes than the {len(contents)} that were written there. "
                "Use another store."
            )

    def put(self, source: Path, name: str) -> None:
        """Makes a file an object. Raises StoreError; the object is then as it was, or new, never a part.

        That holds for stores that show an object once it is complete, as S3, GCS and Azure do. What was given up and
        has not ended is waited for: it would replace this one.
        """
        size_bytes = source.stat().st_size
        self._wait_for(name, self._deadline(size_bytes))
        put = self._noted(name, lambda: self._files.put(source, name))
        self._try(f"write {name} to", put, self._deadline(size_bytes))

    def settle(self) -> None:
        """Waits for what this process was to put here, and gave up. Raises StoreError if it does not end."""
        folder, until = f"{self.address}/", self._deadline(0)
        for name in [each.removeprefix(folder) for each in list(_changing) if each.startswith(folder)]:
            self._wait_for(name, until)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The contents of an object, small unless `end` is given: then the bytes up to there. Raises StoreError."""
        until = self._deadline(0 if end is None else end - begin)
        return self._try(f"read {name} from", lambda: self._files.read(name, begin, end), until)

    def sizes(self) -> dict[str, int]:
        """The objects, with their sizes in bytes; empty if there is no such folder. Raises StoreError."""
        return self._try("list", self._files.sizes, self._deadline(0))

    def remove(self, name: str) -> None:
        """Removes an object if it is there. Raises StoreError."""

        def remove() -> None:
            try:
                self._files.remove(name)
            except FileNotFoundError:  # an earlier try has removed it, but its answer was lost
                return

        self._try(f"remove {name} from", self._noted(name, remove), self._deadline(0))

    def size(self, name: str) -> int | None:
        """The size of an object in bytes; None if there is none of this name. Raises StoreError."""
        found = self.about(name)
        return None if found is None else found.size

    def about(self, name: str) -> About | None:
        """What the store says of an object; None if there is none of this name. Raises StoreError."""
        return self._try(f"look at {name} in", lambda: self._files.about(name), self._deadline(0))

    def glob(self, pattern: str) -> list[str]:
        """The addresses of the objects that match a pattern below the folder, sorted. Raises StoreError."""
        return sorted(self._try(f"list {pattern} in", lambda: self._files.glob(pattern), self._deadline(0)))

    def tree(self) -> dict[str, int]:
        """The addresses of all objects in the folder and below, sorted, with their sizes. Raises StoreError."""
        return dict(sorted(self._try("list", self._files.tree, self._deadline(0)).items()))

    def check_bucket(self) -> None:
        """Raises StoreError if the bucket is not there. For who has found nothing: it may take a right to ask that."""
        if not self._try("look at the bucket of", self._files.has_bucket, self._deadline(0)):
            raise StoreError(
                f"found nothing at {self.address}, and {_bucket(self.address)} is not there, or this process may not "
                "look at it. Check the name, the credentials and the endpoint; tfdist creates no bucket"
            )

    def _noted(self, name: str, change: Callable[[], None]) -> Callable[[], None]:
        key = f"{self.address}/{name}"

        def noted() -> None:
            _changing[key] = thread = threading.current_thread()
            try:
                change()
            finally:
                if _changing.get(key) is thread:
                    del _changing[key]

        return noted

    def _wait_for(self, name: str, until: float) -> None:
        """Waits until nothing changes an object. Raises StoreError if that takes too long."""
        thread = _changing.get(f"{self.address}/{name}")
        if thread is None:
            return
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            raise StoreError(
                f"could not write {name} to {self.address}: an earlier operation on it has had no answer, and what it "
                "does when it gets one would replace this. Try again later, or write under another name. "
                f"{remedy(NoAnswerError(), self.address)}"
            )

    def _deadline(self, size_bytes: int) -> float:
        longest = OPERATION_S if self._has_failed is False else CHECK_S
        return time.monotonic() + longest + size_bytes / _SLOWEST_BYTES_PER_S

    def _try(self, doing: str, action: Callable[[], Result], until: float) -> Result:
        failures, before = 0, None
        while True:
            try:
                result = _within(until - time.monotonic(), action)
                self._has_failed = False
                return result
            except Exception as newest:  # noqa: BLE001  (the stores' libraries have many classes)
                # Our own deadline says less than what went wrong before it.
                error = before if before is not None and isinstance(newest, NoAnswerError) else newest
                before, failures, self._has_failed = error, failures + 1, True
                pause = pause_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, failures)
                final = isinstance(error, _FINAL) or re.search(_FINAL_NAMES, type(error).__name__)
                if final or failures == _TRIES or time.monotonic() + pause >= until:
                    tries = "" if failures == 1 else f" ({failures} tries)"
                    raise StoreError(
                        f"could not {doing} {self.address}{tries}: {type(error).__name__}: {_text(error)}. "
                        f"{remedy(error, self.address, doing)}"
                    ) from error
                time.sleep(pause)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or "no message"


def _bucket(address: str) -> str:
    return "/".join(address.split("/")[:3])


def _without_names(text: str, address: str) -> str:
    """Without the names that users chose, which may look like a reason: s3://tokens/run, an object named x403."""
    text = re.sub(r"\S*/\S*", " ", text)
    names = [part for part in address.partition("://")[2].split("/") if part]
    return re.sub("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names), " ", text) if names else text


def remedy(error: BaseException, address: str, doing: str = "") -> str:
    """What to do about an error of a store's library, which came from `doing` something, such as "write x to"."""
    text = _without_names(f"{type(error).__name__} {error}", address).lower()
    bucket = _bucket(address)
    if isinstance(error, PermissionError) or re.search(_OF_CREDENTIALS, text):
        return (
            "Check the credentials of this process (s3://: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile; "
            f"gs://: GOOGLE_APPLICATION_CREDENTIALS), and that they may list, read, write and delete in {bucket}"
        )
    if isinstance(error, FileNotFoundError) or "notfounderror" in text:
        # Who writes an object needs no other one.
        if doing.startswith("write") or re.search(r"bucket\b.*\bnot|nosuchbucket", text):
            return f"Check the name, and create {bucket} first: tfdist creates no bucket"
        return "Check the name: there is no such object, or it was removed meanwhile"
    if isinstance(error, (TimeoutError, ConnectionError)) or re.search(_OF_NETWORK, text):
        return "Check the network and the endpoint of the store (s3://: AWS_ENDPOINT_URL)"
    return "Check the address, and the store's own status"


def _within(seconds: float, action: Callable[[], Result]) -> Result:
    """Calls `action` in a thread of its own, which is left behind if it takes longer: libraries may block for long."""
    found: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001  (raised again below)
            errors.append(error)

    thread = threading.Thread(target=call, name="tfdist-store", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if errors:
        raise errors[0]
    if not found:
        raise NoAnswerError(f"no answer within {max(0.0, seconds):.1g} s")
    return found[0]
