"""Exit on Ctrl-C while modules are imported. This module is imported before all others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # the exit code


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Exit at once with code 130 if Ctrl-C is pressed in the `with` block, which imports modules.

    A C callback can swallow a KeyboardInterrupt that is raised during an import. The exception can
    also leave a module half imported. In both cases the program would continue and fail later.
    """

    def exit_now(*_: object) -> None:
        """End the process without cleanup."""
        os.write(2, b"\ninterrupted\n")
        os._exit(INTERRUPTED)

    handler = signal.getsignal(signal.SIGINT)
    if (
        handler is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    signal.signal(signal.SIGINT, exit_now)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
