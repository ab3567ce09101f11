"""Run the program `trivium` as `python -m trivium`, for example for `torchrun -m trivium`."""

from __future__ import annotations

import importlib
import sys

from trivium.interrupts import INTERRUPTED, exit_on_interrupt


def main() -> int:
    """Run the program and return its exit code. Ctrl-C ends the program without a traceback.

    The command line is imported inside the function, because its libraries take a third of a second
    to import.
    """
    try:
        with exit_on_interrupt():
            program = importlib.import_module("trivium.cli")
        return program.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
