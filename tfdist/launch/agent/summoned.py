"""The agent that ssh, srun or Spark starts: reads the job's key from its standard input, so that no `ps` shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

if not __package__:
    # At the end, so that packages installed next to tfdist do not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tfdist.errors import ConfigError, PeerLostError
from tfdist.launch.agent.agent import Post, serve
from tfdist.system.network.endpoint import parse
from tfdist.system.process import machine

# The launcher is there already.
_WAIT_S = 20.0
_MOST_BYTES = 1024
# The exit status where the launcher was not reached, or has refused this host.
NOT_ENLISTED = os.EX_UNAVAILABLE


def main(words: Sequence[str]) -> int:
    """`words` are the launcher's address, the number of slots, and the name of this host.

    One more, of any content, says that several of them may serve on one machine, as its tasks.
    """
    launcher, slots, host, *shares = words
    key = sys.stdin.buffer.readline(_MOST_BYTES).strip()
    try:
        address = parse(launcher)
        post = Post(address, key, host, int(slots), _WAIT_S, machine() if shares else "")
        return serve(post, lambda text: print(text, file=sys.stderr), greets=False)
    except (ConfigError, PeerLostError) as error:
        print(error, file=sys.stderr)
        return NOT_ENLISTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
