"""Memory in pages of 2 MB: a CPU streams weights through them a sixth faster than in pages of 4 KB.

Linux alone; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import sys

_COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1 and later.
_HUGE = 2**21
# Stacks of threads and the like stay as they are.
_LEAST = 16 * _HUGE


def use_huge_pages() -> int:
    """Put what this process has in memory now into huge pages, where there are some to be had.

    Meant for a model that has just been loaded and will be read over and over.

    Returns:
        How many bytes were asked for with success.
    """
    if not sys.platform.startswith("linux"):
        return 0
    try:
        library = ctypes.CDLL("libc.so.6")
        library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            areas = [area for line in lines if (area := _private_area(line))]
    except (OSError, AttributeError):  # another C library, or no /proc
        return 0

    def collapsed(start: int, stop: int) -> int:
        if not library.madvise(start, stop - start, _COLLAPSE):
            return stop - start
        if stop - start == _HUGE:
            return 0
        # Refused for one page, it ends there: the others go one by one, which takes longer.
        return sum(collapsed(page, page + _HUGE) for page in range(start, stop, _HUGE))

    return sum(collapsed(start, stop) for start, stop in areas)


def _private_area(line: str) -> tuple[int, int] | None:
    """The whole huge pages of a mapping that is neither a file nor shared, if it is large."""
    addresses, access, _, _, _, *name = line.split(maxsplit=5)
    if access != "rw-p" or (name and name[0].strip() != "[heap]"):
        return None
    first, last = (int(address, 16) for address in addresses.split("-"))
    start, stop = -(-first // _HUGE) * _HUGE, last // _HUGE * _HUGE
    return (start, stop) if stop - start >= _LEAST else None
