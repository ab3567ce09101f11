"""Labels of a model that is fine-tuned further: which rows of its head are kept."""

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
from trivium.objectives.task_metrics import quote_names


@dataclass(frozen=True)
class KnownLabels:
    """The labels of the base model and of the new data.

    Args:
        before: the labels of the base model, in the order of the rows of its head.
        data: the labels of the new data.
    """

    before: tuple[str, ...] = ()
    data: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether the model keeps its labels, which requires that the new data has one of them."""
        return not {*self.before}.isdisjoint(self.data)

    @property
    def after(self) -> tuple[str, ...]:
        """The labels of the trained model: those of the base model, if kept, and the new ones."""
        new = tuple(name for name in self.data if name not in self.before)
        return self.before + new if self.kept else self.data

    def sentences(self) -> Iterator[str]:
        """Yield sentences that inform the user which labels are kept, added, replaced or unseen."""
        added = [name for name in self.after if name not in self.before]
        unseen = [name for name in self.before if name not in self.data]
        if not self.before or not (added or unseen):
            return
        if not self.kept:
            yield translated("labels.replaced", labels=quote_names(self.before))
            return
        kept = [name for name in self.before if name in self.data]
        yield translated("labels.kept", labels=quote_names(kept))
        if added:
            yield translated("labels.added", labels=quote_names(added))
        if unseen:
            yield translated("labels.unseen", labels=quote_names(unseen))


def has_label_rows(head: Head) -> TypeGuard[ClassifierHead | TaggerHead]:
    """Return whether a head has one row per label."""
    return isinstance(head, ClassifierHead | TaggerHead)


def compare_labels(
    base: LanguageModel | None, settings: Settings, heads: Iterable[Head]
) -> KnownLabels:
    """Compare the labels of a base model with those in the settings of a new task.

    Args:
        base: the model to start from, or None.
        settings: settings with the labels of the data.
        heads: the heads for the new task.
    """
    if base is None or settings.label_kind != base.settings.label_kind:
        return KnownLabels()
    kinds = {head.kind for head in heads if has_label_rows(head)}
    own = [one.num_labels for one in base.spec.heads if has_label_rows(one) and one.kind in kinds]
    before = base.label_names(own[0]) if own else ()
    if base.generates_labels and settings.task == base.settings.task:
        before = base.settings.labels
    if settings.label_kind == "regression":  # a single output, whatever its name is
        return KnownLabels(settings.labels, settings.labels) if before else KnownLabels()
    numbers = tuple(name.removeprefix("LABEL_") for name in before)  # transformers' default names
    if {*settings.labels} <= {*numbers}:
        before = numbers
    return KnownLabels(before, settings.labels)


def copy_known_rows(weight: Tensor, new: Tensor, num_rows: int) -> Tensor:
    """Return the weight of a head over labels in which known labels keep their rows.

    The first `num_rows` rows are copied from `weight`, and all others from `new`. If both have the
    same shape, `weight` is returned.
    """
    return weight if weight.shape == new.shape else torch.cat([weight[:num_rows], new[num_rows:]])
