"""Two responses to a prompt, of which one is preferred: how they are read, and become rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from trivium.data.batch import IGNORE_INDEX, Batch, Ints, RowBatch
from trivium.data.checks import Finding
from trivium.data.encoded import has_target
from trivium.data.records import Record
from trivium.errors import DataError
from trivium.language_model import LanguageModel
from trivium.objectives.base import LabelledObjective, column_key, compact, field_option
from trivium.objectives.chat import (
    LabelledRow,
    chat_template,
    labelled_row,
    labelled_rows,
    read_messages,
)
from trivium.objectives.seq2seq import pair_rows
from trivium.text.symbols import is_unspaced

PROMPTS = ("prompt", "question", "instruction", "query", "input")
CHOSEN = ("chosen", "preferred", "chosen_response", "response_chosen")
REJECTED = ("rejected", "dispreferred", "rejected_response", "response_rejected")

# Of pairs whose chosen response is the longer one, a bad sign.
_MOSTLY = 0.8

Turn = str | tuple[dict[str, str], ...]
"""A text, or messages {"role", "content"}."""


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with the better and the worse response, all texts or all messages.

    `margin` says by how much the rewards differ at least; see `Reward`.
    """

    prompt: Turn
    chosen: Turn
    rejected: Turn
    where: str
    margin: float = 0.0

    @property
    def group(self) -> str:
        """Pairs of a prompt share a side of the validation split."""
        return plain(self.prompt) or plain(self.chosen)


class PreferencePairs(LabelledObjective):
    """What objectives on pairs have in common: their columns."""

    prompt_field: str | None = column_key("column of the prompt, text or messages", PROMPTS)
    chosen_field: str | None = column_key("column of the better response", CHOSEN)
    rejected_field: str | None = column_key("column of the worse response", REJECTED)

    def example(self, record: Record) -> Preference:
        """A record with two responses, or two whole texts or conversations, and their prompt.

        Without a prompt, or where both conversations begin with it, it is their common beginning.

        Raises:
            DataError: with file and line, for a blank part, or where both responses are the same.
        """
        names = self.columns(record, chosen=CHOSEN, rejected=REJECTED)
        chosen, rejected = (
            read_turn(record, name, what) for name, what in zip(names, ("chosen", "rejected"))
        )
        if chosen == rejected:
            raise DataError(
                f'"{names[0]}" and "{names[1]}" of {record.where} are the same: nothing is '
                "preferred. Remove the row, or leave such rows out: --set data.bad_records=skip"
            )
        prompt = read_prompt(record, self.prompt_field)
        if isinstance(chosen, str) and isinstance(rejected, str) and not isinstance(prompt, tuple):
            if prompt is None:
                prompt = _common_beginning(chosen, rejected)
                chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
            return Preference(prompt, chosen, rejected, record.where)
        one, other = (with_prompt(prompt, turn) for turn in (chosen, rejected))
        start = min(_num_common(one, other), len(one) - 1, len(other) - 1)
        return Preference(one[:start], one[start:], other[start:], record.where)

    def source_texts(self, examples: Sequence[Preference]) -> Iterator[str]:
        """Each prompt with both responses."""
        for one in examples:
            for response in (one.chosen, one.rejected):
                yield joined(plain(one.prompt), plain(response))

    def findings(self, examples: Sequence[Preference]) -> list[Finding]:
        """Whether the length of a response tells which one is chosen."""
        lengths = ((len(plain(one.chosen)), len(plain(one.rejected))) for one in examples)
        longer = sum(chosen > rejected for chosen, rejected in lengths)
        advice = "a model may learn length alone: add pairs whose better response is shorter"
        return [Finding("chosen response is longer", longer, len(examples), _MOSTLY, advice)]

    def input_of(self, example: Preference) -> str:
        """The prompt with both responses."""
        return "\n".join(map(plain, (example.prompt, example.chosen, example.rejected)))


def read_turn(record: Record, name: str, what: str) -> Turn:
    """The text or the messages in a column, which is that of `what`."""
    if isinstance(record.value(name, field_option(what)), str):
        return record.text(name)
    return tuple(read_messages(record, name))


def read_prompt(record: Record, field: str | None) -> Turn | None:
    """The prompt of a record, if it has one."""
    name = record.find(PROMPTS) if field is None else record.first_of(field)
    return None if name is None else read_turn(record, name, "prompt")


def with_prompt(prompt: Turn | None, response: Turn) -> tuple[dict[str, str], ...]:
    """A conversation: the response after its prompt, where it does not begin with that already."""
    if isinstance(response, str):
        response = ({"role": "assistant", "content": response},)
    if isinstance(prompt, str):
        prompt = ({"role": "user", "content": prompt},)
    if response[0]["role"] != "assistant":
        return response
    return (*(prompt or ()), *response)


def _common_beginning(chosen: str, rejected: str) -> str:
    """What two texts have in common, without the space and the word that it ends in.

    >>> _common_beginning("Q: why? A: because", "Q: why? A: begone")
    'Q: why? A:'
    """
    return re.sub(r"\s*\S*$", "", chosen[: _num_common(chosen, rejected)])


def _num_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many first characters or messages are the same."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def plain(turn: Turn) -> str:
    """A text, or the contents of messages, a line each."""
    return turn if isinstance(turn, str) else "\n".join(one["content"] for one in turn)


def joined(prompt: str, response: str) -> str:
    """A text after its prompt, with a space between them unless there is one, or none belongs."""
    if not prompt or any(one.isspace() or is_unspaced(one) for one in (prompt[-1], response[0])):
        return prompt + response
    return f"{prompt} {response}"


def response_rows(
    lm: LanguageModel, pairs: Sequence[tuple[Turn, Turn]]
) -> tuple[dict[str, list[list[int]]], list[tuple[int, int, int]]]:
    """Prompts and responses as token ids by the field of `RowBatch`, labels at the responses.

        input_ids  prompt prompt response response </s>
        labels     -100   response response </s>   -100

    An encoder-decoder reads the prompt and generates the response. Messages are written by the chat
    template, where that of an encoder-decoder is their contents, a line each. Returns the rows, and
    what is cut of each (`EncodedExamples.cuts`).
    """
    if lm.spec.family == "encoder-decoder":
        return pair_rows(lm, [(plain(prompt), plain(response)) for prompt, response in pairs])
    ids, labels, cuts = labelled_rows(_row(lm, prompt, response) for prompt, response in pairs)
    return {"input_ids": ids, "labels": labels}, cuts


def _row(lm: LanguageModel, prompt: Turn, response: Turn) -> LabelledRow:
    if isinstance(prompt, str) and isinstance(response, str):
        text, eos = joined(prompt, response), lm.text_tokenizer.eos_id
        return labelled_row(lm, text, [(len(prompt), len(text))], [] if eos is None else [eos])
    messages = with_prompt(prompt, response)
    text, spans = chat_template(lm).responses(messages)
    turns = with_prompt(None, response)
    own = sum(one["role"] == "assistant" for one in turns)
    return labelled_row(lm, text, spans[len(spans) - own :])


def both_cuts(cuts: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return what is cut of every two rows; all of it where one of them has no target left."""
    joined = []
    for one, other in zip(cuts[::2], cuts[1::2]):
        cut, total, lost = (a + b for a, b in zip(one, other))
        joined.append((cut, total, lost if has_target([one, other]).all() else total))
    return joined


def side_by_side(
    rows: dict[str, list[list[int]]],
) -> tuple[dict[str, list[list[int]]], list[int]]:
    """Each two rows as one, and the tokens of the first: no micro-batch can part them.

    The prompt of an encoder-decoder, which both have, is there once.
    """
    both = {name: [[*a, *b] for a, b in zip(each[::2], each[1::2])] for name, each in rows.items()}
    if "decoder_input_ids" in rows:
        both["input_ids"] = rows["input_ids"][::2]
    firsts = rows.get("decoder_input_ids", rows["input_ids"])[::2]
    return both, [len(ids) for ids in firsts]


def spread(rows: RowBatch, first: ArrayLike, pad_id: int) -> Batch:
    """What `side_by_side` joined, each of the two padded to the longest: [B, T] -> [B, 2 U].

        chosen chosen rejected rejected rejected  ->  chosen chosen pad rejected rejected rejected

    `first` [B] are the tokens of the first of each. `apart` makes rows of them.
    """
    decoder = rows.decoder_input_ids
    ids, lengths = rows.input_ids, rows.lengths
    if decoder is not None and rows.decoder_lengths is not None:
        ids, lengths = decoder, rows.decoder_lengths
    column, first = np.arange(ids.shape[1]), np.asarray(first, dtype=np.int64)[:, None]
    both = column < first, (column >= first) & (column < lengths[:, None])
    shown = np.stack(both, axis=1).reshape(-1, len(column))

    def padded(array: Ints | None, fill: int) -> Ints | None:
        if array is None:
            return None
        return compact(np.repeat(array, 2, axis=0), shown, fill)[0].reshape(len(array), -1)

    labels = padded(rows.labels, IGNORE_INDEX)
    if decoder is not None:
        mask = np.arange(rows.input_ids.shape[1]) < rows.lengths[:, None]
        return Batch(
            input_ids=np.tile(rows.input_ids, (1, 2)),
            attention_mask=np.tile(mask, (1, 2)).astype(np.int64),
            decoder_input_ids=padded(decoder, pad_id),
            labels=labels,
        )
    input_ids, sizes = padded(ids, pad_id), shown.sum(axis=1)
    assert input_ids is not None
    mask = np.arange(input_ids.shape[1] // 2) < sizes[:, None]
    return Batch(
        input_ids=input_ids,
        attention_mask=mask.astype(np.int64).reshape(input_ids.shape),
        token_type_ids=padded(rows.token_type_ids, 0),
        labels=labels,
    )


def apart(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs [B, 2 U] of pairs as those of rows that alternate: [2 B, U]."""
    return {name: one.reshape(2 * len(one), -1) for name, one in inputs.items()}
