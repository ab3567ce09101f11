"""Decides which rows of a classification head are kept when a model is fine-tuned again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.messages import translated
from trivium.models.heads import Head
from trivium.models.heads.text import ClassifierHead
from trivium.models.heads.tokens import TaggerHead
from trivium.objectives.task_metrics import quote_names


@dataclass(frozen=True)
class KnownLabels:
    """The labels of a base model and of the data on which it is fine-tuned.

    Args:
        base: the labels of the base model, one per row of its classification head.
        data: the labels of the new data.
    """

    base: tuple[str, ...] = ()
    data: tuple[str, ...] = ()

    @property
    def keeps_base(self) -> bool:
        """Whether the labels of the base model are kept: true if the data contains any of them."""
        return not {*self.base}.isdisjoint(self.data)

    @property
    def final_labels(self) -> tuple[str, ...]:
        """The labels after training: the kept labels of the base model, then the new ones."""
        new = tuple(name for name in self.data if name not in self.base)
        return self.base + new if self.keeps_base else self.data

    def describe_changes(self) -> Iterator[str]:
        """Yield sentences for the user about labels that are kept, added, replaced or unused."""
        added = [name for name in self.final_labels if name not in self.base]
        unseen = [name for name in self.base if name not in self.data]
        if not self.base or not (added or unseen):
            return
        if not self.keeps_base:
            yield translated("labels.replaced", labels=quote_names(self.base))
            return
        kept = [name for name in self.base if name in self.data]
        yield translated("labels.kept", labels=quote_names(kept))
        if added:
            yield translated("labels.added", labels=quote_names(added))
        if unseen:
            yield translated("labels.unseen", labels=quote_names(unseen))


def has_label_rows(head: Head) -> TypeGuard[ClassifierHead | TaggerHead]:
    """Return whether a head has one weight row per label, like a classification head."""
    return isinstance(head, ClassifierHead | TaggerHead)


def compare_labels(
    base: LanguageModel | None, settings: Settings, heads: Iterable[Head]
) -> KnownLabels:
    """Collect the labels of a base model and of a new task, if the two can be compared.

    The result has no labels if there is no base model, or if the two have different kinds of
    labels.

    Args:
        base: the model that training starts from, or None.
        settings: the settings of the new task, with the labels of its data.
        heads: the heads for the new task.
    """
    if base is None or settings.label_kind != base.settings.label_kind:
        return KnownLabels()
    kinds = {head.kind for head in heads if has_label_rows(head)}
    own = [one.num_labels for one in base.spec.heads if has_label_rows(one) and one.kind in kinds]
    known = base.label_names(own[0]) if own else ()
    if base.generates_labels and settings.task == base.settings.task:
        known = base.settings.labels
    if settings.label_kind == "regression":  # a single output, whatever its name is
        return KnownLabels(settings.labels, settings.labels) if known else KnownLabels()
    numbers = tuple(name.removeprefix("LABEL_") for name in known)  # transformers' default names
    if {*settings.labels} <= {*numbers}:
        known = numbers
    return KnownLabels(known, settings.labels)
