"""Labels of a model whose training continues: which rows of its head it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.messages import translated
from trivium.models.heads import Head
from trivium.models.heads.text import ClassifierHead
from trivium.models.heads.tokens import TaggerHead
from trivium.objectives.task_metrics import listing


@dataclass(frozen=True)
class KnownLabels:
    """The labels of a model to start from, and those of the new data.

    Args:
        before: the labels of the model, in the order of its head.
        data: the labels of the new data.
    """

    before: tuple[str, ...] = ()
    data: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether the model keeps its labels, since at least one of them is in the new data."""
        return not {*self.before}.isdisjoint(self.data)

    @property
    def after(self) -> tuple[str, ...]:
        """The labels of the trained model: those of the model before, then the new ones."""
        new = tuple(name for name in self.data if name not in self.before)
        return self.before + new if self.kept else self.data

    def sentences(self) -> Iterator[str]:
        """Yield sentences that tell the user what happens to the labels."""
        added = [name for name in self.after if name not in self.before]
        unseen = [name for name in self.before if name not in self.data]
        if not self.before or not (added or unseen):
            return
        if not self.kept:
            yield translated("labels.replaced", labels=listing(self.before))
            return
        kept = [name for name in self.before if name in self.data]
        yield translated("labels.kept", labels=listing(kept))
        if added:
            yield translated("labels.added", labels=listing(added))
        if unseen:
            yield translated("labels.unseen", labels=listing(unseen))


def over_labels(head: Head) -> TypeGuard[ClassifierHead | TaggerHead]:
    """Return whether a head has a row for every label."""
    return isinstance(head, ClassifierHead | TaggerHead)


def known_labels(
    base: LanguageModel | None, settings: Settings, heads: Iterable[Head]
) -> KnownLabels:
    """Compare the labels of a base model with those in the settings of a new task.

    Args:
        base: the model to start from.
        settings: settings with the labels of the data.
        heads: the heads of the new task.
    """
    if base is None or settings.label_kind != base.settings.label_kind:
        return KnownLabels()
    kinds = {head.kind for head in heads if over_labels(head)}
    own = [one.num_labels for one in base.spec.heads if over_labels(one) and one.kind in kinds]
    before = base.label_names(own[0]) if own else ()
    if base.generates_labels and settings.task == base.settings.task:
        before = base.settings.labels
    if settings.label_kind == "regression":  # one number, whatever its name is
        return KnownLabels(settings.labels, settings.labels) if before else KnownLabels()
    numbers = tuple(name.removeprefix("LABEL_") for name in before)  # names of transformers
    if {*settings.labels} <= {*numbers}:
        before = numbers
    return KnownLabels(before, settings.labels)


def copied_rows(weight: Tensor, new: Tensor, rows: int) -> Tensor:
    """Return a new weight over labels whose first `rows` rows are those of another weight."""
    return weight if weight.shape == new.shape else torch.cat([weight[:rows], new[rows:]])
