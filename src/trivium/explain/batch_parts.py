"""Page parts that show a training batch: the inputs, labels and loss weights of an objective."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trivium.data.batch import IGNORE_INDEX, Batch, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.explain.page import Bilingual, Label, Page, Part, Table, Token, TokenRow, get_text
from trivium.objectives import Objective
from trivium.objectives.masked import TokenMasking
from trivium.text import Tokenizer
from trivium.text.roles import SENTINELS, TEXT_SPECIALS
from trivium.text.symbols import UNSPACED

_SEEDS = 20
WITH_SENTINELS = (*TEXT_SPECIALS, *SENTINELS[:9])
# A word, a single Chinese or Japanese character, or a punctuation mark.
_UNITS = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})[\w'\u2019])+|[^\w\s]")

_SIDES = {
    "input": get_text("page.input"),
    "encoder": get_text("page.encoder_input"),
    "decoder": get_text("page.decoder_input"),
    "left": get_text("page.input_read_from_left"),
    "right": get_text("page.input_read_from_right"),
}


def encode_rows(
    texts: Sequence[str],
    tokenizer: str | None,
    special_tokens: Sequence[str],
    *,
    num_copies: int = 1,
    add_special_tokens: bool = True,
) -> tuple[Tokenizer, RowBatch]:
    """Load or train a tokenizer, and encode the texts.

    Each text becomes one document in its own row.

    Args:
        texts: the texts.
        tokenizer: a tokenizer file or a model folder. If None, a word-level tokenizer is trained on
            the texts. Its tokens are words, single Chinese characters and punctuation marks.
        special_tokens: the special tokens of the tokenizer, if it is trained here.
        num_copies: how many times to repeat the rows.
        add_special_tokens: whether to add the special tokens at the start and end of each document.
            Rows of packed text usually do not contain them.

    Returns:
        The tokenizer and the rows.
    """
    if tokenizer is not None:
        chosen = Tokenizer.load(tokenizer)
    else:
        texts = [" ".join(_UNITS.findall(text)) for text in texts]
        chosen = Tokenizer.train(
            "whitespace", texts=texts, special_tokens=special_tokens, progress=False
        )
    vocabulary = chosen.vocabulary
    before, after = (
        (vocabulary.prefix_ids, vocabulary.suffix_ids) if add_special_tokens else ((), ())
    )
    rows = [[*before, *ids, *after] for ids in chosen.encode_ids_batch(texts)] * num_copies
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), vocabulary.pad_id or 0)
    real = np.arange(ids.shape[1]) < lengths[:, None]
    ids[real] = np.concatenate(rows)
    documents = np.tile(np.arange(len(texts)), num_copies)
    return chosen, RowBatch(ids, lengths, real.astype(np.int64), documents)


def build_objective_page(
    title: Label,
    objective: Objective,
    tokenizer: Tokenizer,
    rows: RowBatch,
    *notes: Part,
    seed: int = 0,
) -> Page:
    """Build a page that shows the batch that an objective creates from rows.

    `notes` are parts to append to the page.
    """
    batch = prepare_batch(objective, tokenizer, rows, seed=seed)
    parts = build_batch_parts(objective, batch, tokenizer, details=True)
    return Page(title, [*parts, *notes], batch_to_dict(objective, batch, tokenizer))


def prepare_batch(
    objective: Objective, tokenizer: Tokenizer, rows: RowBatch, *, seed: int = 0
) -> Batch:
    """Return the batch that an objective creates from rows. The noise of each row is different.

    In short texts, the noise may leave a row without labels. In this case, the next seeds are
    tried.

    Raises:
        RecipeError: the tokenizer lacks a special token that the objective needs.
    """
    objective.check_tokens(tokenizer.vocabulary)
    if not objective.needs_documents:
        rows = dataclasses.replace(rows, document_ids=None, first_documents=None)
    row_indices = np.arange(rows.num_rows)
    batches = [
        objective.prepare(rows, RowRandom(row_seed, row_indices), tokenizer.vocabulary)
        for row_seed in range(seed, seed + _SEEDS)
    ]
    return next((batch for batch in batches if _all_rows_have_labels(batch)), batches[0])


def _all_rows_have_labels(batch: Batch) -> bool:
    """Return whether every row has at least one label.

    Returns True if the batch has no token labels at all.
    """
    return batch.labels is None or bool((batch.labels != IGNORE_INDEX).any(-1).all())


def build_batch_parts(
    objective: Objective,
    batch: Batch,
    tokenizer: Tokenizer,
    *,
    source_tokenizer: Tokenizer | None = None,
    label_names: Sequence[str] = (),
    loss_denominators: Mapping[str, int] | None = None,
    max_rows: int | None = None,
    max_tokens: int | None = None,
    details: bool = False,
) -> list[Part]:
    """Build page parts for a batch: rows of tokens with their labels, and a table of loss weights.

    Args:
        objective: the objective that created the batch.
        batch: the batch.
        tokenizer: the tokenizer of the token ids.
        source_tokenizer: the tokenizer of the encoder input, if it differs from `tokenizer`.
        label_names: the names of the labels, if labels are not tokens.
        loss_denominators: loss term -> the number of labels in the whole step; None counts the
            labels of `batch`.
        max_rows: the maximum number of rows to show; None shows all rows.
        max_tokens: the maximum number of tokens per row to show; None shows all tokens.
        details: whether to add a table with all values at each position of the first row.
    """
    labels = label_names or tokenizer.readable_tokens
    parts: list[Part] = []
    for row in range(min(batch.num_rows, max_rows or batch.num_rows)):
        for side, ids, targets in _iterate_inputs(batch, row):
            reads = source_tokenizer if side == "encoder" else None
            view = _InputRow(objective, reads or tokenizer, labels, ids, targets)
            parts.append(
                TokenRow(view.make_tokens(max_tokens), _make_row_caption(batch, row, side, targets))
            )
            if details and row == 0 and targets is not None:
                parts.append(view.make_position_table(batch))
    return [
        *parts,
        _make_loss_weight_table(objective, loss_denominators or objective.loss_denominators(batch)),
    ]


def batch_to_dict(objective: Objective, batch: Batch, tokenizer: Tokenizer) -> dict[str, Any]:
    """Convert a batch to a dict with its arrays by name, and its inputs and labels as tokens.

    The label is None at positions that are ignored by the loss.
    """
    names = tokenizer.readable_tokens
    rows = [
        {
            "side": side,
            "tokens": [names[i] for i in ids],
            "labels": None
            if targets is None
            else [_get_label_name(names, label) or None for label in targets],
        }
        for row in range(batch.num_rows)
        for side, ids, targets in _iterate_inputs(batch, row)
    ]
    arrays = {name: array.tolist() for name, array in batch.arrays().items()}
    return {"objective": objective.kind, "rows": rows, "batch": arrays}


@dataclasses.dataclass(frozen=True)
class _InputRow:
    """One row of an encoder or decoder input, with its targets.

    Args:
        objective: the objective that created the row.
        tokenizer: the tokenizer of the token ids.
        labels: the name of each label.
        ids: the token ids, [T] for T positions.
        targets: the label at each position, [T], or `IGNORE_INDEX` at positions that are ignored by
            the loss. None if the input has no labels.
    """

    objective: Objective
    tokenizer: Tokenizer
    labels: Sequence[str]
    ids: Ints
    targets: Ints | None

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the row, without trailing padding."""
        used = self.ids != self.tokenizer.pad_id
        if self.targets is not None:
            used |= self.targets != IGNORE_INDEX
        return int(np.flatnonzero(used).max(initial=-1)) + 1

    def make_tokens(self, max_tokens: int | None) -> list[Token]:
        """Return the first `max_tokens` tokens (all if None), with their labels as notes."""
        size = self.num_tokens
        shown = [self._make_token(column) for column in range(min(size, max_tokens or size))]
        return shown if len(shown) == size else [*shown, Token("...", f"+{size - len(shown)}")]

    def _make_token(self, position: int) -> Token:
        """Return the token at a position, with its label as a note."""
        name = self.tokenizer.readable_tokens[self.ids[position]]
        if self.targets is None or self.targets[position] == IGNORE_INDEX:
            special = self.tokenizer.vocabulary.is_special[self.ids[position]]
            return Token(name, "", "special" if special else "")
        # Only for these objectives, the label is the original token at the same position.
        replaces = isinstance(self.objective, TokenMasking)
        changed = replaces and self.targets[position] != self.ids[position]
        tone = "changed" if changed else "predicted"
        return Token(name, _get_label_name(self.labels, self.targets[position]), tone)

    def make_position_table(self, batch: Batch) -> Table:
        """Build a table with all values of the batch at each position of the batch's first row."""
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
                _get_label_name(self.labels, target),
                "0" if target == IGNORE_INDEX else f"1/{count}",
                *(str(values[column]) for values in others.values()),
            ]
            for column, target in enumerate(self.targets[: self.num_tokens])
        ]
        columns = [
            get_text("page.position"),
            get_text("page.input"),
            get_text("page.label"),
            get_text("page.weight"),
        ]
        return Table([*columns, *others], rows, get_text("page.row_1_by_position"))


def _iterate_inputs(batch: Batch, row: int) -> Iterator[tuple[str, Ints, Ints | None]]:
    """Yield each input of a row, as a tuple of its name, its token ids [T] and its targets [T].

    The name is "encoder", "decoder", "input", "left" or "right", and T is the number of positions.
    A target is `IGNORE_INDEX` at positions that are ignored by the loss. For an input without
    labels, the targets are None.
    """
    if batch.input_ids.ndim == 3:  # both sequences of a pair, one after the other
        for index in range(2):
            arrays = {name: a[:, index] for name, a in batch.arrays().items() if a.ndim == 3}
            yield from _iterate_inputs(Batch(**arrays), row)
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


def _get_label_name(names: Sequence[str], label: int) -> str:
    """Return the name of a label, or "" for `IGNORE_INDEX`."""
    return "" if label == IGNORE_INDEX else names[label]


def _make_row_caption(batch: Batch, row: int, side: str, targets: Ints | None) -> Bilingual:
    """Return the caption above the tokens of a row.

    If the row as a whole has a label, the caption includes it.
    """
    parts = [get_text("page.caption", row=row + 1, side=_SIDES[side])]
    if targets is not None:
        parts.append(get_text("page.label_below"))
    # Float values are random numbers for sampling (replaced-token detection), not labels.
    if batch.sequence_labels is not None and batch.sequence_labels.dtype.kind == "i":
        parts.append(get_text("page.label_of_row", label=batch.sequence_labels[row].tolist()))
    return Bilingual(*map("".join, zip(*parts)))


def _make_loss_weight_table(objective: Objective, loss_denominators: Mapping[str, int]) -> Table:
    """Build a table of the loss terms: label count, weight of the term, and weight per label."""
    weights = objective.term_weights()
    rows = [
        [term, count, weights.get(term, 1.0), weights.get(term, 1.0) / max(1, count)]
        for term, count in loss_denominators.items()
    ]
    columns = [
        get_text("page.term_loss"),
        get_text("page.labels"),
        get_text("page.own_weight"),
        get_text("page.weight_one_label"),
    ]
    return Table(columns, rows)
