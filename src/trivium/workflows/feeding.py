"""What a run reads: the rows of its sources as training batches, and what is held out of them."""

from __future__ import annotations

from trivium.data import Rows
from trivium.data.shards import TRAIN, VALIDATION
from trivium.objectives import Mixture
from trivium.train.feed import Feed, MixedFeed, RowFeed
from trivium.train.recipe import Recipe
from trivium.train.validation import MixedValidation, Validation, ValidationPart
from trivium.workflows.corpus import Corpus, Source, held_out
from trivium.workflows.objectives import of_source


class TextRows:
    """The rows of a corpus, cut as its recipe says.

    `train` are those of every source, and `shares` how often each source is taken.

    Raises:
        DataError: a source that does not fill a row.
    """

    def __init__(self, corpus: Corpus, recipe: Recipe) -> None:
        self.corpus, self.recipe = corpus, recipe
        self.train = [self.of(source) for source in corpus.sources]
        self.shares = recipe.data.shares([len(rows) for rows in self.train])

    def of(self, source: Source, split: str = TRAIN) -> Rows:
        """The rows of one split of a source."""
        return rows_of(self.corpus, self.recipe, source, split)

    def feed(self, mixture: Mixture, *, rows_per_step: int, micro_batch: int) -> Feed:
        """The training batches."""
        seed, separate = self.recipe.seed, self.recipe.data.separate_documents
        feeds = [
            RowFeed(
                of_source(mixture, rows),
                rows,
                # With one seed the same places of their rows would be hidden in every source.
                seed=seed if number == 0 else hash((seed, number)),
                rows_per_step=rows_per_step,
                micro_batch=micro_batch,
                separate_documents=separate,
            )
            for number, rows in enumerate(self.train)
        ]
        if len(feeds) == 1:
            return feeds[0]
        return MixedFeed(feeds, self.shares, seed=seed, rows_per_step=rows_per_step)

    def validation(self, mixture: Mixture) -> Validation | MixedValidation | None:
        """What is held out; of several objectives or sources each gets its share of the rows."""
        parts = [
            part
            for source, train, share in zip(
                self.corpus.sources, self.train, self.shares, strict=True
            )
            if held_out(source)
            for part in self._validations(source, train, share, mixture)
        ]
        if not parts:
            return None
        return MixedValidation(parts) if any(part.groups for part in parts) else parts[0].validation

    def _validations(
        self, source: Source, train: Rows, share: float, mixture: Mixture
    ) -> list[ValidationPart]:
        """One for every objective."""
        section, rows = self.recipe.train, self.of(source, VALIDATION)
        # False sentences are as new as true ones, where there are enough.
        own = of_source(mixture, rows if rows.split.num_documents > 1 else train)
        named = [source.name] if len(self.corpus.sources) > 1 else []
        found = []
        for name, objective, part in zip(own.names, own.asked, own.shares, strict=True):
            weight = share * part / sum(own.shares)
            tokens = section.eval_tokens
            validation = Validation(
                objective,
                rows,
                tokens=None if tokens is None else round(weight * tokens),
                batch=section.eval_batch,
                separate_documents=self.recipe.data.separate_documents,
            )
            groups = (name, *named) if len(own.names) > 1 else tuple(named)
            found.append(ValidationPart(validation, weight, groups))
        return found


def rows_of(corpus: Corpus, recipe: Recipe, source: Source, split: str = TRAIN) -> Rows:
    """The rows of one split of a source.

    Raises:
        DataError: it does not fill one.
    """
    section, tokenizer = recipe.data, corpus.tokenizer
    pad = tokenizer.eos_id if tokenizer.pad_id is None else tokenizer.pad_id
    return Rows(source.shards.split(split), section.length, section.mode, pad_id=pad or 0)
