"""Published training recipes: every number with the place where it is published.

There is one file per recipe in the folder `recipes`. A value is a pair of the value and its source.
A source such as "section 3.1" refers to the paper of the file; other sources have a name.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).parent / "recipes"
_IN_THE_PAPER = ("section", "appendix", "table", "figure", "equation", "abstract", "footnote")
_BUDGETS = ("train.steps", "train.tokens", "train.epochs")
_NEEDED = ("optimizer.kind", "optimizer.lr", "schedule.kind", "data.length", "train.batch_tokens")


class Published(NamedTuple):
    """A published value, and where it is published."""

    value: Any
    source: str


@dataclass(frozen=True)
class PublishedRecipe:
    """How a model was trained, as far as it is published.

    Args:
        paper: the paper, to which sources such as "section 3.1" refer.
        values: the published value of every key of a recipe.
        phases: the earlier phases of the training, with their keys and `until`.
        data: facts about the training data, such as "text", "tokens" or "mixture".
        hardware: the devices and the time that the training took.
        differences: what Trivium does in another way, one sentence per subject.
        missing: what is published nowhere.
    """

    paper: str
    values: Mapping[str, Published]
    phases: tuple[Mapping[str, Published], ...]
    data: Mapping[str, Published]
    hardware: Mapping[str, Published]
    differences: Mapping[str, str]
    missing: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether optimizer, learning rate, schedule, length, batch and budget are published."""
        return all(key in self.values for key in _NEEDED) and self.budget is not None

    @property
    def budget(self) -> tuple[str, float] | None:
        """The key of the published budget and its size."""
        found = ((key, self.values[key].value) for key in _BUDGETS if key in self.values)
        return next(found, None)

    @property
    def steps(self) -> float | None:
        """The published number of steps, also of a budget in tokens. None if it is not known."""
        if "train.tokens" in self.values and "train.batch_tokens" in self.values:
            tokens = self.values["train.tokens"].value
            return sum(share * tokens / batch for share, batch in self._shares())
        return self.values["train.steps"].value if "train.steps" in self.values else None

    @property
    def tokens(self) -> float | None:
        """The published number of training tokens, also of a budget in steps."""
        if "train.steps" in self.values and "train.batch_tokens" in self.values:
            steps = self.values["train.steps"].value
            return sum(share * steps * batch for share, batch in self._shares())
        return self.values["train.tokens"].value if "train.tokens" in self.values else None

    def _shares(self) -> Iterator[tuple[float, float]]:
        """Yield the share of the budget and the tokens per step of every phase."""
        before, last = 0.0, self.values["train.batch_tokens"]
        for phase in (*self.phases, {"until": Published(1.0, "")}):
            yield phase["until"].value - before, phase.get("train.batch_tokens", last).value
            before = phase["until"].value

    def cite(self, source: str) -> str:
        """Return a source with its name, such as "Devlin et al. 2018, section 3.1"."""
        if source.startswith(_IN_THE_PAPER):
            return f"{self.paper.partition(',')[0]}, {source}"
        return source


@functools.cache
def published_recipes() -> Mapping[str, PublishedRecipe]:
    """Return the published recipe of every preset that has one, by the name of the preset."""
    return {name: recipe for path in sorted(_FOLDER.glob("*.toml")) for name, recipe in _read(path)}


def _read(path: Path) -> Iterator[tuple[str, PublishedRecipe]]:
    """Yield the presets of a file and their recipes."""
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    sizes, hardware = tree.get("sizes", {}), tree.get("hardware", {})
    for preset in tree["presets"]:
        values = {**tree.get("values", {}), **sizes.get(preset, {})}
        if any(key in _BUDGETS for key in sizes.get(preset, {})):  # a budget of another kind
            own = sizes[preset]
            values = {k: v for k, v in values.items() if k not in _BUDGETS or k in own}
        yield (
            preset,
            PublishedRecipe(
                paper=tree["paper"],
                values=_pairs(values),
                phases=tuple(map(_pairs, tree.get("phases", ()))),
                data=_pairs(tree.get("data", {})),
                hardware=_pairs(hardware.get(preset, {})),
                differences=tree.get("differences", {}),
                missing=tuple(tree.get("missing", ())),
            ),
        )


def _pairs(tree: Mapping[str, Any]) -> dict[str, Published]:
    """Return the values of a table as pairs."""
    return {key: Published(*pair) for key, pair in tree.items()}
