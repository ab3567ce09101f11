"""Mixtures: several objectives, each asked of its share of the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trivium.data import Batch, RowBatch, RowRandom
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective

# The stream of noise that decides which objective a row is for.
_OBJECTIVE = 1 << 21


@dataclass(frozen=True)
class Mixture:
    """Objectives by share; of one, all rows are for it.

    Losses of tokens are added up whatever asked for them and divided by the count of all, so that
    an objective that asks for more tokens weighs more (Raffel et al. 2019 mix examples so). What
    else an objective asks is a term of its own.

    Args:
        objectives: at least one.
        shares: of the rows, one for each objective, of any sum.
        names: what each is called in figures.
    """

    objectives: tuple[TextObjective, ...]
    shares: tuple[float, ...]
    names: tuple[str, ...]

    @classmethod
    def of_one(cls, objective: TextObjective) -> Mixture:
        """A mixture that is no mixture."""
        return cls((objective,), (1.0,), ("loss",))

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms of the loss, that of tokens first."""
        own = [objective.terms for objective in self.objectives]
        longest = max(own, key=len)
        others = dict.fromkeys(name for terms in own for name in terms[1:])
        return (longest[0], *others)

    @property
    def asked(self) -> tuple[TextObjective, ...]:
        """The objectives as a step asks them: every one with the terms of all, in one order."""
        terms = self.terms
        return tuple(
            objective if objective.terms == terms else _Placed(objective, terms, objective.heads)
            for objective in self.objectives
        )

    def drawn(self, random: RowRandom) -> NDArray[np.int64]:
        """Which objective each row is for: int64 [B]."""
        bounds = np.cumsum(self.shares) / sum(self.shares)
        draws = random.uniform(1, _OBJECTIVE)[:, 0]
        return np.searchsorted(bounds, draws, side="right").clip(max=len(self.shares) - 1)


@dataclass(frozen=True)
class _Placed(TextObjective):
    """An objective with terms that others have and it has not, which are nothing of nothing."""

    objective: TextObjective
    all_terms: tuple[str, ...]
    heads: tuple[str, ...]

    @property
    def terms(self) -> tuple[str, ...]:
        return self.all_terms

    @property
    def needs_documents(self) -> bool:
        return self.objective.needs_documents

    def counts(self, batch: Batch) -> tuple[int, ...]:
        found = dict(zip(self._own, self.objective.counts(batch), strict=True))
        return tuple(found.get(name, 0) for name in self.all_terms)

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        return self.objective.prepare(rows, random)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        own = self.objective.loss(model, batch)
        nothing = Loss(torch.zeros((), device=own.sum.device), 0)
        found = dict(zip(self._own, own.terms, strict=True))
        first, *others = (
            dataclasses.replace(found.get(name, nothing), name=name, others=())
            for name in self.all_terms
        )
        return dataclasses.replace(first, others=tuple(others))

    @property
    def _own(self) -> tuple[str, ...]:
        """The objective's own terms, as they are called here."""
        return (self.all_terms[0], *self.objective.terms[1:])


def labels_of(kinds: Sequence[str]) -> tuple[str, ...]:
    """Names that differ, of kinds that need not.

    >>> labels_of(["causal", "prefix-lm", "causal"])
    ('causal-1', 'prefix-lm', 'causal-2')
    """
    seen: dict[str, int] = {}
    found = []
    for kind in kinds:
        seen[kind] = seen.get(kind, 0) + 1
        found.append(f"{kind}-{seen[kind]}" if list(kinds).count(kind) > 1 else kind)
    return tuple(found)
