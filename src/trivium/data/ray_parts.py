"""Preparing a corpus in parts on a Ray cluster, through Ray Data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trivium.data.prepare import ProgressCallback, prepare, prepare_part
from trivium.data.shards import Shards
from trivium.data.sources import Paths
from trivium.data.splitting import CorpusOptions
from trivium.errors import MissingExtraError
from trivium.text import Tokenizer


def prepare_on_ray(
    paths: Paths,
    tokenizer: Tokenizer,
    out: str | Path,
    num_parts: int,
    *,
    options: CorpusOptions | None = None,
    progress: ProgressCallback | None = None,
) -> Shards:
    """Every part is a row of a Ray data set, then the parts are merged here.

    The cluster is the one of RAY_ADDRESS, or this machine. All of its machines have the package,
    the texts and the folder `out` under the same names.

    Args:
        paths, tokenizer, out, options, progress: As of `prepare`; `progress` is of the merging.
        num_parts: How many parts are made, at most as many at a time as there are CPUs.

    Raises:
        MissingExtraError: Without the extra "ray".
        DataError: As of `prepare_part`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports its use to its makers
    try:
        import ray.data  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("Preparing on Ray", "ray") from error

    def make(row: dict[str, Any]) -> dict[str, int]:
        part = int(row["id"]) + 1
        return {"tokens": prepare_part(paths, tokenizer, out, part, num_parts, options=options)}

    rows = ray.data.range(num_parts, override_num_blocks=num_parts)
    rows.map(make).materialize()
    return prepare(paths, tokenizer, out, options=options, progress=progress)
