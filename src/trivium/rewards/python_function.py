"""A reward that is computed by a function of the user's."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from trivium.errors import RecipeError
from trivium.rewards import RewardFunction, Sample

_ALLOWED = "TRIVIUM_RUN_CODE"


class PythonFunction(RewardFunction):
    """What `function(prompts, responses, records)` returns: a number for every response.

    Prompts and responses are strings, records the columns of the prompts' rows. The same arguments
    must give the same numbers, or a resumed run differs; it is refused where the file has changed.
    The file is run with all rights of the user, also by `eval` and `--resume`, and only where the
    environment variable TRIVIUM_RUN_CODE is 1: a recipe may come from somebody else.
    """

    kind: Literal["python"] = "python"
    function: str = Field(
        pattern=r".+\.py:\w+$", description='"file.py:name" of (prompts, responses, records)'
    )

    _call: Callable[..., Any] | None = PrivateAttr(None)

    @property
    def files(self) -> tuple[str, ...]:
        """The file of the function, without the files that it imports."""
        return (self.function.rpartition(":")[0],)

    def open(self) -> None:
        """Run the file. Raises RecipeError where that is not allowed, or has no such function."""
        if self._call is not None:
            return
        file, _, name = self.function.rpartition(":")
        if os.environ.get(_ALLOWED) != "1":
            raise RecipeError(
                f"objective.rewards names {file}, which would be run with all your rights. Read "
                f"it, and if you trust it set the environment variable {_ALLOWED}=1."
            )
        if not Path(file).is_file():
            raise RecipeError(f"objective.rewards: there is no file {file}.")
        call: Any = runpy.run_path(file).get(name)
        if not callable(call):
            raise RecipeError(f"{file} has no function {name}.")
        self._call = call

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """What the function returns.

        Raises RecipeError where it fails, and names the first response with which it does.
        """
        try:
            return self._values(samples)
        except Exception as error:
            for one in samples:
                try:
                    self._values([one])
                except Exception as own:
                    raise RecipeError(
                        f"{self.function} failed with {own!r} for {one}, a prompt {one.prompt!r}."
                    ) from own
            raise RecipeError(f"{self.function} failed with {error!r}.") from error

    def _values(self, samples: Sequence[Sample]) -> list[float]:
        self.open()
        assert self._call is not None
        prompts, responses = [one.prompt for one in samples], [one.response for one in samples]
        return list(self._call(prompts, responses, [dict(one.record) for one in samples]))
