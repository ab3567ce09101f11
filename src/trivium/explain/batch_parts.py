"""What the loss of an objective sees of a batch: inputs, labels, weights, position by position."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trivium.data.batch import IGNORE_INDEX, Batch, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.explain.page import Bilingual, Label, Page, Part, Table, Token, TokenRow, bilingual
from trivium.objectives import Objective
from trivium.objectives.masked import Masking
from trivium.text import Tokenizer
from trivium.text.roles import SENTINELS, TEXT_SPECIALS
from trivium.text.symbols import UNSPACED

_SEEDS = 20
WITH_SENTINELS = (*TEXT_SPECIALS, *SENTINELS[:9])
# Words, Chinese and Japanese characters one by one, and punctuation marks.
_UNITS = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})[\w'\u2019])+|[^\w\s]")

_SIDES = {
    "input": bilingual("page.input"),
    "encoder": bilingual("page.encoder_input"),
    "decoder": bilingual("page.decoder_input"),
    "left": bilingual("page.input_read_from_left"),
    "right": bilingual("page.input_read_from_right"),
}


def text_rows(
    texts: Sequence[str],
    tokenizer: str | None,
    special_tokens: Sequence[str],
    *,
    draws: int = 1,
    ends: bool = True,
) -> tuple[Tokenizer, RowBatch]:
    """A tokenizer, and every text as a document and row of its own, `draws` times in a row.

    Unless a file or a model's folder has one, the tokens are the words of the texts, Chinese
    characters and punctuation marks one by one. With `ends` the tokens that begin and end
    documents are there, too; rows of packed text seldom have them.
    """
    if tokenizer is not None:
        chosen = Tokenizer.load(tokenizer)
    else:
        texts = [" ".join(_UNITS.findall(text)) for text in texts]
        chosen = Tokenizer.train(
            "whitespace", texts=texts, special_tokens=special_tokens, progress=False
        )
    vocabulary = chosen.vocabulary
    before, after = (vocabulary.prefix_ids, vocabulary.suffix_ids) if ends else ((), ())
    rows = [[*before, *ids, *after] for ids in chosen.encode_ids_batch(texts)] * draws
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), vocabulary.pad_id or 0)
    real = np.arange(ids.shape[1]) < lengths[:, None]
    ids[real] = np.concatenate(rows)
    documents = np.tile(np.arange(len(texts)), draws)
    return chosen, RowBatch(ids, lengths, real.astype(np.int64), documents)


def objective_page(
    title: Label,
    objective: Objective,
    tokenizer: Tokenizer,
    rows: RowBatch,
    *notes: Part,
    seed: int = 0,
) -> Page:
    """A page of what the loss sees of rows, as `noisy_batch`; notes stand at the end."""
    batch = noisy_batch(objective, tokenizer, rows, seed=seed)
    parts = batch_parts(objective, batch, tokenizer, details=True)
    return Page(title, [*parts, *notes], batch_data(objective, batch, tokenizer))


def noisy_batch(
    objective: Objective, tokenizer: Tokenizer, rows: RowBatch, *, seed: int = 0
) -> Batch:
    """What an objective makes of rows, each with noise of its own.

    In short texts a seed may choose nothing to predict: then the next one is taken.

    Raises RecipeError where the tokenizer lacks a special token.
    """
    objective.check_tokens(tokenizer.vocabulary)
    if not objective.needs_documents:
        rows = dataclasses.replace(rows, document_ids=None, first_documents=None)
    numbers = np.arange(rows.num_rows)
    batches = [
        objective.prepare(rows, RowRandom(each, numbers), tokenizer.vocabulary)
        for each in range(seed, seed + _SEEDS)
    ]
    return next((each for each in batches if _predicts(each)), batches[0])


def _predicts(batch: Batch) -> bool:
    """Whether each row has a label."""
    return batch.labels is None or bool((batch.labels != IGNORE_INDEX).any(-1).all())


def batch_parts(
    objective: Objective,
    batch: Batch,
    tokenizer: Tokenizer,
    *,
    source_tokenizer: Tokenizer | None = None,
    label_names: Sequence[str] = (),
    label_counts: Mapping[str, int] | None = None,
    most_rows: int | None = None,
    most_tokens: int | None = None,
    details: bool = False,
) -> list[Part]:
    """Rows of a batch as tokens with the label of each below it, and the weight of a label.

    Args:
        objective: that made the batch.
        batch: its arrays.
        tokenizer: of its ids, but for those of `source_tokenizer`, which an encoder reads.
        label_names: of an objective whose labels are no tokens.
        label_counts: those of the whole step, where it has more than this batch.
        most_rows: that are shown; None: all.
        most_tokens: of each that are shown; None: all.
        details: also a table of all that the batch has of each position of the first row.
    """
    labels = label_names or tokenizer.readable_tokens
    parts: list[Part] = []
    for row in range(min(batch.num_rows, most_rows or batch.num_rows)):
        for side, ids, targets in _sides(batch, row):
            reads = source_tokenizer if side == "encoder" else None
            view = _Side(objective, reads or tokenizer, labels, ids, targets)
            parts.append(TokenRow(view.tokens(most_tokens), _caption(batch, row, side, targets)))
            if details and row == 0 and targets is not None:
                parts.append(view.table(batch))
    return [*parts, _weights(objective, label_counts or objective.label_counts(batch))]


def batch_data(objective: Objective, batch: Batch, tokenizer: Tokenizer) -> dict[str, Any]:
    """The arrays of a batch by name, and inputs and labels as tokens, None where no loss is."""
    names = tokenizer.readable_tokens
    rows = [
        {
            "side": side,
            "tokens": [names[i] for i in ids],
            "labels": None if targets is None else [_name(names, one) or None for one in targets],
        }
        for row in range(batch.num_rows)
        for side, ids, targets in _sides(batch, row)
    ]
    arrays = {name: array.tolist() for name, array in batch.arrays().items()}
    return {"objective": objective.kind, "rows": rows, "batch": arrays}


@dataclasses.dataclass(frozen=True)
class _Side:
    """A row as one side of the model reads it, and the targets of its positions."""

    objective: Objective
    tokenizer: Tokenizer
    labels: Sequence[str]
    ids: Ints
    targets: Ints | None

    @property
    def size(self) -> int:
        """Tokens without the padding at the end of a row."""
        used = self.ids != self.tokenizer.pad_id
        if self.targets is not None:
            used |= self.targets != IGNORE_INDEX
        return int(np.flatnonzero(used).max(initial=-1)) + 1

    def tokens(self, most: int | None) -> list[Token]:
        """Tokens with their labels."""
        size = self.size
        shown = [self._token(column) for column in range(min(size, most or size))]
        return shown if len(shown) == size else [*shown, Token("...", f"+{size - len(shown)}")]

    def _token(self, column: int) -> Token:
        name = self.tokenizer.readable_tokens[self.ids[column]]
        if self.targets is None or self.targets[column] == IGNORE_INDEX:
            special = self.tokenizer.vocabulary.is_special[self.ids[column]]
            return Token(name, "", "special" if special else "")
        # Only these objectives have the label of a token where it stands.
        replaces = isinstance(self.objective, Masking)
        changed = replaces and self.targets[column] != self.ids[column]
        tone = "changed" if changed else "predicted"
        return Token(name, _name(self.labels, self.targets[column]), tone)

    def table(self, batch: Batch) -> Table:
        """What the batch has of each position of its first row."""
        assert self.targets is not None
        count = max(1, batch.num_labels)
        others = {
            name: array[0].tolist()
            for name, array in batch.arrays().items()
            if array.shape[:2] == (batch.num_rows, len(self.ids))
            and name not in ("input_ids", "decoder_input_ids", "labels", "attention_mask")
        }
        rows = [
            [
                column,
                self.tokenizer.readable_tokens[self.ids[column]],
                _name(self.labels, target),
                "0" if target == IGNORE_INDEX else f"1/{count}",
                *(str(values[column]) for values in others.values()),
            ]
            for column, target in enumerate(self.targets[: self.size])
        ]
        columns = [
            bilingual("page.position"),
            bilingual("page.input"),
            bilingual("page.label"),
            bilingual("page.weight"),
        ]
        return Table([*columns, *others], rows, bilingual("page.row_1_by_position"))


def _sides(batch: Batch, row: int) -> Iterator[tuple[str, Ints, Ints | None]]:
    """What each side of a model reads of a row, with targets [T], `IGNORE_INDEX` without loss."""
    if batch.input_ids.ndim == 3:  # both sequences of a pair, one after the other
        for each in range(2):
            arrays = {name: one[:, each] for name, one in batch.arrays().items() if one.ndim == 3}
            yield from _sides(Batch(**arrays), row)
        return
    ids, labels = batch.input_ids[row], None if batch.labels is None else batch.labels[row]
    if batch.decoder_input_ids is not None:
        yield "encoder", ids, None
        yield "decoder", batch.decoder_input_ids[row], labels
    elif labels is not None and batch.predicted is not None:  # labels of some columns
        targets, known = np.full_like(ids, IGNORE_INDEX), labels != IGNORE_INDEX
        targets[batch.predicted[row][known]] = labels[known]
        yield "input", ids, targets
    elif labels is not None and labels.ndim == 2:  # two directions
        yield "left", ids, labels[0]
        yield "right", ids, labels[1]
    else:
        yield "input", ids, labels


def _name(names: Sequence[str], label: int) -> str:
    return "" if label == IGNORE_INDEX else names[label]


def _caption(batch: Batch, row: int, side: str, targets: Ints | None) -> Bilingual:
    parts = [bilingual("page.caption", row=row + 1, side=_SIDES[side])]
    if targets is not None:
        parts.append(bilingual("page.label_below"))
    # Numbers with a fraction are noise that the loss draws by (replaced tokens), no label.
    if batch.sequence_labels is not None and batch.sequence_labels.dtype.kind == "i":
        parts.append(bilingual("page.label_of_row", label=batch.sequence_labels[row].tolist()))
    return Bilingual(*map("".join, zip(*parts)))


def _weights(objective: Objective, label_counts: Mapping[str, int]) -> Table:
    """The terms of the loss: a mean over their labels."""
    weights = objective.term_weights()
    rows = [
        [term, count, weights.get(term, 1.0), weights.get(term, 1.0) / max(1, count)]
        for term, count in label_counts.items()
    ]
    columns = [
        bilingual("page.term_loss"),
        bilingual("page.labels"),
        bilingual("page.own_weight"),
        bilingual("page.weight_one_label"),
    ]
    return Table(columns, rows)
