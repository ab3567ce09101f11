"""Taking a run folder for a job, so that nothing there is lost and no failed attempt stays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trivium.errors import RecipeError, TriviumError
from trivium.train.run import RunFolder


@dataclass
class Claim:
    """A run folder that is taken; `began` says that there is something worth keeping in it."""

    began: bool = False


@contextmanager
def claimed(run: RunFolder, *, resume: bool, overwrite: bool) -> Iterator[Claim]:
    """The run folder for a job: an attempt that fails before its first step leaves no trace.

    A run that is to be replaced stays aside until the new one trains. An interrupted
    preparation is kept, for --resume.

    Raises:
        RecipeError: the folder holds a run and `overwrite` is not set, or other things.
    """
    claim = Claim()
    if resume:
        yield claim
        return
    replaced = _set_aside(run, overwrite)
    try:
        yield claim
    except BaseException as error:
        if not claim.began and (replaced is not None or isinstance(error, TriviumError)):
            shutil.rmtree(run.path, ignore_errors=True)
            if replaced is not None:
                replaced.rename(run.path)
        raise
    finally:
        if replaced is not None and claim.began:
            shutil.rmtree(replaced, ignore_errors=True)


def _set_aside(run: RunFolder, overwrite: bool) -> Path | None:
    """Where an earlier run was moved to, None if there was none. Refuses unless `overwrite`."""
    if not run.recipe.is_file():
        if run.path.is_dir() and any(run.path.iterdir()):
            raise RecipeError(
                f"{run.path} is a folder with other things in it: choose another --out."
            )
        return None
    if not overwrite:
        raise RecipeError(
            f"{run.path} already holds a run: go on with it (--resume), choose another --out, or "
            "replace it (--overwrite)."
        )
    aside = run.path.with_name(f".{run.path.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    return run.path.rename(aside)
