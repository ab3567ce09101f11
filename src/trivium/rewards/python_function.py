"""The reward "python", which a user-defined Python function computes."""

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
    """A reward computed by a user-defined `function(prompts, responses, records)`.

    The function returns one number per response. Prompts and responses are lists of strings.
    `records` contains the columns of each prompt's record as a dictionary. The function must be
    deterministic; otherwise a resumed run gives different results. A run cannot be resumed after
    the file has changed.

    The file is executed with the user's full privileges, including by `eval` and `--resume`. Since
    a recipe may come from somebody else, this requires the environment variable TRIVIUM_RUN_CODE=1.
    """

    kind: Literal["python"] = "python"
    function: str = Field(pattern=r".+\.py:\w+$", description='"file.py:name" of a function')

    _call: Callable[..., Any] | None = PrivateAttr(None)
    """The function. None before `open`."""

    @property
    def files(self) -> tuple[str, ...]:
        """The file that defines the function. Files that it imports are not included."""
        return (self.function.rpartition(":")[0],)

    def open(self) -> None:
        """Execute the user's file and look up the function in it.

        Raises RecipeError if this is not allowed, or if the file does not define the function.
        """
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

    def compute_rewards(self, samples: Sequence[Sample]) -> list[float]:
        """Return one reward per sample, computed by the user's function.

        Raises RecipeError if the function fails. The message names the first response for which the
        function fails.
        """
        try:
            return self._call_function(samples)
        except Exception as error:
            for one in samples:
                try:
                    self._call_function([one])
                except Exception as own:
                    raise RecipeError(
                        f"{self.function} failed with {own!r} for {one}, a prompt {one.prompt!r}."
                    ) from own
            raise RecipeError(f"{self.function} failed with {error!r}.") from error

    def _call_function(self, samples: Sequence[Sample]) -> list[float]:
        """Call the user's function on the samples. Returns one number per sample."""
        self.open()
        assert self._call is not None
        prompts, responses = [one.prompt for one in samples], [one.response for one in samples]
        return list(self._call(prompts, responses, [dict(one.record) for one in samples]))
