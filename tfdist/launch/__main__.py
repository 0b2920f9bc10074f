"""`python -m tfdist.launch`: the tfdistrun command, if its console script is not on PATH."""

from __future__ import annotations

import sys

from tfdist.launch.command import main

if __name__ == "__main__":
    sys.exit(main())
