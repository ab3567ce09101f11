"""The process group of a test of several processes."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


@contextmanager
def joined_processes(rank: int, size: int, folder: str | Path) -> Iterator[None]:
    """Join the processes of a test, of one thread each, which find each other in `folder`."""
    torch.set_num_threads(1)
    rendezvous, timeout = f"file://{folder}/rendezvous", timedelta(seconds=200)
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=timeout
    )
    yield
    dist.destroy_process_group()


@contextmanager
def naming(case: object) -> Iterator[None]:
    """Add the case to the error of an assertion, whose message does not say which model failed."""
    try:
        yield
    except Exception:
        raise AssertionError(f"{case}\n{traceback.format_exc()}") from None
