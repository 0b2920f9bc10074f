"""`python -m tfdist`: the tfdist command, if its console script is not on PATH."""

from __future__ import annotations

import sys

from tfdist.command.main import main

if __name__ == "__main__":
    sys.exit(main())
