"""The progress bar of `fit` under tfdistrun: redrawn in its line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

import pytest

pytestmark = pytest.mark.starter("direct")

FIT = """
import keras, numpy, tfdist
tfdist.init()
x = numpy.ones((200, 4), "float32") * (rank + 1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        if rank == 1 and batch == 50:
            print("from rank 1", flush=True)
model.fit(x, x[:, :1], batch_size=2, callbacks=[tfdist.callbacks.DataParallel(), Slow()])
print("after")
"""
TERMINAL = {"TERM": "xterm", "TF_CPP_MIN_LOG_LEVEL": "3", "NO_COLOR": ""}


class Terminal:
    """A pseudo terminal; what is written to it is read from the start."""

    def __init__(self) -> None:
        self._master, self.end = os.openpty()
        self._written = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                self._written += data
        except OSError:  # no process has the terminal any more
            pass

    def text(self) -> str:
        os.close(self.end)
        self._reader.join(60)
        assert not self._reader.is_alive()
        os.close(self._master)
        return self._written.decode().replace("\r\n", "\n")


def _shown(text: str) -> list[str]:
    """The lines that stay: what comes after a carriage return replaces the line, if its rest is erased."""
    return [re.sub(r"\x1b\[[0-9;]*[mK]", "", line.rpartition("\r")[2]) for line in text.split("\n")]


def test_bar_of_fit_is_redrawn_on_a_terminal(launch: Any) -> None:
    launch.script(FIT)
    terminal = Terminal()
    words = ("-np", "2", "--output-filename", "logs", "python", "rank.py")
    started = launch.start(*words, variables=TERMINAL, stdout=terminal.end, inside=("sh", "-c", 'exec "$@" 2>&1', "sh"))
    done = launch.end(started)
    text = terminal.text()
    assert done.code == 0, text
    lines = [line for line in _shown(text) if "step - loss" in line]
    assert len(lines) == 1 and lines[0].startswith("[0] 100/100"), lines
    states = re.findall(r"\r\x1b\[36m\[0\]\x1b\[0m \x1b\[1m *(\d+)/100", text)
    assert len(set(states)) >= 5, "drawn again while it trains"
    shown = _shown(text)
    assert shown.index("[1] from rank 1") < shown.index(lines[0]) < shown.index("[0] after")
    kept = (launch.folder / "logs/rank.0/stdout").read_text()
    assert "\x1b" not in kept and "\b" not in kept
    assert kept.count("step - loss") == 1


def test_bar_of_fit_is_plain_lines_in_a_pipe(launch: Any) -> None:
    launch.script(FIT)
    done = launch.run("-np", "2", "python", "rank.py", variables=TERMINAL)
    assert done.code == 0, done.stderr
    assert not re.search(r"[\x1b\b\r]", done.stdout)
    assert re.search(r"^\[0\] 100/100 \S+ \d+s \d+ms/step - loss: \S+$", done.stdout, re.MULTILINE), done.stdout
    assert "[1] from rank 1\n" in done.stdout
