"""The program `trivium`, also run as `python -m trivium`, for `torchrun -m trivium`."""

from __future__ import annotations

import sys

from trivium.interrupts import INTERRUPTED, interrupts_exit


def main() -> int:
    """Run the program and return its exit code; Ctrl-C ends it from here on, without a traceback.

    The command line is imported inside: its libraries take a third of a second.
    """
    try:
        with interrupts_exit():
            from trivium.cli import main as run_program
        return run_program()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
