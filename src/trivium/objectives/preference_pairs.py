"""Two responses to a prompt, of which one is preferred: how they are read, and become rows."""

from __future__ import annotations

import dataclasses
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from trivium.data.batch import Batch, Ints, RowBatch
from trivium.data.checks import Finding
from trivium.data.encoded import Ragged, Sequences, Truncations, has_target
from trivium.data.records import Record, RecordOptions
from trivium.data.schema import Fields, Slot
from trivium.errors import DataError
from trivium.language_model import LanguageModel
from trivium.objectives.chat import LabelledRow, by_field, chat_template, labelled_row
from trivium.objectives.conversations import (
    PROMPTS,
    SYSTEM,
    Turn,
    are_texts,
    conversation,
    join_note,
    plain,
    read_prompt,
    read_turn,
    with_prompt,
)
from trivium.objectives.labelled import LabelledObjective, column_key
from trivium.objectives.seq2seq import pair_rows
from trivium.text.symbols import is_unspaced

OPTIONAL_PROMPT = Fields("prompt? input?", *PROMPTS)
_PROMPT = Fields("prompt? input?", *PROMPTS, ("conversations", "messages"))  # LLaMA-Factory's
CHOSEN = Fields(
    "chosen", ("chosen",), ("preferred", "chosen_response", "response_chosen", "preferred_output")
)
REJECTED = Fields(
    "rejected",
    ("rejected",),
    ("dispreferred", "rejected_response", "response_rejected", "non_preferred_output"),
)

_WHOLE = "data.repeated_prompts"
# Of pairs whose chosen response is the longer one, a bad sign.
_MOSTLY = 0.8


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


class GivenResponses(LabelledObjective):
    """An objective on prompts with given responses."""

    responses: ClassVar[Sequence[str]]
    """The fields of an example that are responses to its prompt."""
    prompt_field: str | None = column_key("column of the prompt, text or messages", OPTIONAL_PROMPT)

    def examples(self, records: Iterable[Any], options: RecordOptions) -> Iterator[Any]:
        """Return the examples of records.

        Where more than half of the examples have responses that begin with the prompt, these are
        whole texts, and the prompt is cut off.
        """
        examples = list(super().examples(records, options))
        texts = [one for one in examples if isinstance(one.prompt, str) and one.prompt]
        cut: dict[int, Any] = {}
        for one in texts:
            rest = {name: getattr(one, name).removeprefix(one.prompt) for name in self.responses}
            if all(text.strip() and text != getattr(one, name) for name, text in rest.items()):
                cut[id(one)] = dataclasses.replace(one, **rest)
        if 2 * len(cut) <= len(texts):
            cut = {}
        elif options.report is not None:
            options.report.notes[_WHOLE] += len(cut)
        return (cut.get(id(one), one) for one in examples)

    def input_of(self, example: Any) -> str:
        """Return the prompt and its responses, a line each."""
        return "\n".join(self.texts_of(example).values())

    def texts_of(self, example: Any) -> dict[str, str]:
        """Return the prompt and the responses of an example as texts, by field."""
        return {name: plain(getattr(example, name)) for name in ("prompt", *self.responses)}

    def turns(self, examples: Sequence[Any]) -> list[tuple[Turn, Turn]]:
        """Return every response of every example, each after its prompt."""
        return [(one.prompt, getattr(one, name)) for one in examples for name in self.responses]

    def source_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Return every prompt with each of its responses."""
        return (plain(prompt) + plain(response) for prompt, response in self.turns(examples))


class PreferencePairs(GivenResponses):
    """An objective on pairs of responses, one of which is preferred."""

    responses: ClassVar[Sequence[str]] = ("chosen", "rejected")
    fields: ClassVar[Sequence[Slot]] = (_PROMPT, CHOSEN, REJECTED, SYSTEM)
    chosen_field: str | None = column_key("column of the better response", CHOSEN)
    rejected_field: str | None = column_key("column of the worse response", REJECTED)

    def example(self, record: Record) -> Preference:
        """A record with two responses, or two whole texts or conversations, and their prompt.

        Without a prompt, or where both conversations begin with it, it is their common beginning.

        Raises:
            DataError: with file and line, for a blank part, or where both responses are the same.
        """
        chosen, rejected = (read_turn(record, name) for name in self.responses)
        if chosen == rejected:
            names = " and ".join(f'"{record.columns[name]}"' for name in self.responses)
            raise DataError(
                f"{names} of {record.where} are the same: nothing is preferred. Remove the row, or "
                "leave such rows out: --set data.bad_records=skip"
            )
        prompt = read_prompt(record)
        if are_texts(record, prompt, chosen, rejected):
            return _texts(record, prompt, chosen, rejected)  # type: ignore[arg-type]
        one, other = (conversation(record, prompt, turn) for turn in (chosen, rejected))
        start = min(_num_common(one, other), len(one) - 1, len(other) - 1)
        return Preference(one[:start], one[start:], other[start:], record.where)

    def findings(self, examples: Sequence[Preference]) -> list[Finding]:
        """Whether the length of a response tells which one is chosen."""
        lengths = ((len(plain(one.chosen)), len(plain(one.rejected))) for one in examples)
        longer = sum(chosen > rejected for chosen, rejected in lengths)
        return [Finding.of("chosen_longer", longer, len(examples), _MOSTLY, "add_shorter")]


def _texts(record: Record, prompt: str | None, chosen: str, rejected: str) -> Preference:
    """Return a pair of texts. Without a prompt, their common beginning becomes the prompt."""
    if prompt is None:
        prompt = _common_beginning(chosen, rejected)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    else:
        join_note(record, prompt, (chosen, rejected))
    return Preference(prompt, chosen, rejected, record.where)


def _common_beginning(chosen: str, rejected: str) -> str:
    """Return the common beginning of two texts, which ends with a word, without the space after.

    In scripts without spaces, it may end with any character.

    >>> _common_beginning("Q: why? A: because", "Q: why? A: begone")
    'Q: why? A:'
    """
    end = min(_num_common(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    while end and any(_inside_word(text, end) for text in (chosen, rejected)):
        end -= 1
    return chosen[:end].rstrip()


def _inside_word(text: str, at: int) -> bool:
    """Return whether a position is inside of a word, or before a mark of the last character."""
    before, after = text[at - 1], text[at]
    if unicodedata.combining(after) or unicodedata.category(after) in ("Mn", "Mc", "Cf"):
        return True
    return before.isalnum() and after.isalnum() and not (is_unspaced(before) or is_unspaced(after))


def _num_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many characters or messages at the beginning are the same."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def response_rows(
    lm: LanguageModel, pairs: Sequence[tuple[Turn, Turn]]
) -> tuple[Sequences, Truncations]:
    """Prompts and responses as token ids by the field of `RowBatch`, labels at the responses.

        input_ids  prompt prompt response response </s>
        labels     -100   response response </s>   -100

    An encoder-decoder reads the prompt and generates the response. Messages are written by the chat
    template, where that of an encoder-decoder is their contents, a line each. Returns the rows, and
    what is cut of each (`EncodedExamples.truncations`).
    """
    if lm.spec.family == "encoder-decoder":
        return pair_rows(lm, [(plain(prompt), plain(response)) for prompt, response in pairs])
    return by_field([_row(lm, prompt, response) for prompt, response in pairs])


def _row(lm: LanguageModel, prompt: Turn, response: Turn) -> LabelledRow:
    if isinstance(prompt, str) and isinstance(response, str):
        text, eos = prompt + response, lm.text_tokenizer.eos_id
        return labelled_row(lm, text, [(len(prompt), len(text))], [] if eos is None else [eos])
    messages = with_prompt(prompt, response)
    text, spans = chat_template(lm).responses(messages)
    turns = with_prompt(None, response)
    own = sum(one["role"] == "assistant" for one in turns)
    return labelled_row(lm, text, spans[len(spans) - own :])


def double_truncations(truncations: Truncations) -> Truncations:
    """Return what is cut of every two rows; all of it where one of them has no target left."""
    joined = []
    for one, other in zip(truncations[::2], truncations[1::2]):
        cut, total, lost = (a + b for a, b in zip(one, other))
        joined.append((cut, total, lost if has_target([one, other]).all() else total))
    return joined


def pair_up(rows: Sequences) -> dict[str, Ragged]:
    """Make one example of every two rows, which no micro-batch can part.

    Both have the same prompt. That of an encoder-decoder is kept once.
    """
    pairs = {name: Ragged.of(each, per_example=2) for name, each in rows.items()}
    if "decoder_input_ids" in rows:
        pairs["input_ids"] = Ragged.of(rows["input_ids"][::2])
    return pairs


def pair_batch(rows: RowBatch) -> Batch:
    """Return the batch of rows that `pair_up` made, [B, 2, U]: chosen and rejected responses."""
    ids, lengths, sizes = rows.input_ids, rows.lengths, rows.decoder_lengths
    if sizes is not None:  # the encoder reads the prompt of both responses
        ids, lengths = (np.repeat(one[:, None], 2, axis=1) for one in (ids, lengths))
    width = (lengths if sizes is None else sizes).max()
    ids = ids[..., : width if sizes is None else None]

    def cut(array: Ints | None) -> Ints | None:
        return None if array is None else array[..., :width]

    return Batch(
        input_ids=ids,
        attention_mask=(np.arange(ids.shape[2]) < lengths[..., None]).astype(np.int64),
        token_type_ids=cut(rows.token_type_ids),
        decoder_input_ids=cut(rows.decoder_input_ids),
        labels=cut(rows.labels),
        sequence_labels=rows.sequence_labels,
    )


def unstack_pairs(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return inputs [B, 2, U] of pairs as rows [2 B, U], the two of a pair one after the other."""
    return {name: one.flatten(0, 1) for name, one in inputs.items()}
