"""Tests of tfdist.launch.supervisor.news."""

from __future__ import annotations

import os
import selectors

from tfdist.launch.supervisor.news import NewsPipe
from tfdist.protocol import member


def test_long_line_arrives_whole_as_the_rank_reads() -> None:
    """A pipe may be as small as a page, and the list of a thousand ranks is longer than any."""
    line = b"x" * 300_000 + b"\n"
    with selectors.DefaultSelector() as selector:
        news = NewsPipe(selector)
        reader = news.pipe.rank
        news.tell(line)
        news.tell(member.gone(3))
        read = b""
        while not read.endswith(member.gone(3)):
            read += os.read(reader, 1 << 16)
            for key, _ in selector.select(0):
                key.data()
        assert read == member.TOKEN + line + member.gone(3)
        assert selector.select(0) == [], "nothing is left to write"
        os.close(reader)
        news.tell(b"to nobody\n" * 100_000)
        assert selector.select(0) == []
    os.close(news.pipe.supervisor)
