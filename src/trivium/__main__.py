"""`python -m trivium`: the same program as `trivium`, for `torchrun -m trivium`."""

from __future__ import annotations

import sys

from trivium.cli import main

if __name__ == "__main__":
    sys.exit(main())
