"""Preference pairs: read a prompt with two responses from a record, and encode them as rows."""

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
from trivium.objectives.chat import LabelledRow, encode_spans, get_chat_template, group_by_field
from trivium.objectives.conversations import (
    PROMPTS,
    SYSTEM,
    Turn,
    are_texts,
    as_text,
    join_messages,
    note_missing_space,
    prepend_prompt,
    read_prompt,
    read_turn,
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

_REPEATED_PROMPTS = "data.repeated_prompts"
# The number of examples that decide whether responses repeat their prompts.
_PROBED = 10_000
# The fraction of pairs with a longer chosen response from which `check` warns.
_MAX_LONGER = 0.8


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with a chosen (better) and a rejected (worse) response.

    All three are texts, or all three are lists of messages. `where` is the file and line of the
    pair. `margin` is the minimum difference between the rewards of both responses (see `Reward`).
    """

    prompt: Turn
    chosen: Turn
    rejected: Turn
    where: str
    margin: float = 0.0

    @property
    def group_key(self) -> str:
        """The key by which pairs are grouped when the data is split.

        It is the prompt as text, or the chosen response if the prompt is blank. Groups are never
        divided between splits.
        """
        return as_text(self.prompt) or as_text(self.chosen)


class GivenResponses(LabelledObjective):
    """Base class of objectives that learn from given responses, not from sampled responses."""

    responses: ClassVar[Sequence[str]]
    """The names of the fields of an example that contain responses to its prompt."""
    prompt_field: str | None = column_key("column of the prompt, text or messages", OPTIONAL_PROMPT)

    def build_examples(self, records: Iterable[Any], options: RecordOptions) -> Iterator[Any]:
        """Convert records to examples, and strip the prompt from responses that repeat it.

        The prompt is stripped only if more than half of the first 10,000 examples with a text
        prompt repeat the prompt in their responses.
        """
        examples = super().build_examples(records, options)
        first = list(itertools.islice(examples, _PROBED))
        num_texts = sum(isinstance(one.prompt, str) and one.prompt != "" for one in first)
        num_repeated = sum(self._strip_prompt(one) is not None for one in first)
        repeats = 2 * num_repeated > num_texts
        for one in itertools.chain(first, examples):
            stripped = self._strip_prompt(one) if repeats else None
            if stripped is not None and options.report is not None:
                options.report.notes[_REPEATED_PROMPTS] += 1
            yield stripped or one

    def _strip_prompt(self, example: Any) -> Any | None:
        """Return the example without its prompt in the responses; None if they do not repeat it."""
        if not isinstance(example.prompt, str) or not example.prompt:
            return None
        texts = {name: getattr(example, name) for name in self.responses}
        rest = {name: text.removeprefix(example.prompt) for name, text in texts.items()}
        if all(rest[name].strip() and rest[name] != text for name, text in texts.items()):
            return dataclasses.replace(example, **rest)
        return None

    def input_text(self, example: Any) -> str:
        """Return the prompt and the responses of an example as one text, joined by line breaks."""
        return "\n".join(self.to_texts(example).values())

    def to_texts(self, example: Any) -> dict[str, str]:
        """Return the prompt and the responses of an example as texts, by field name."""
        return {name: as_text(getattr(example, name)) for name in ("prompt", *self.responses)}

    def list_pairs(self, examples: Sequence[Any]) -> list[tuple[Turn, Turn]]:
        """Return a list of pairs (prompt, response), one for every response of every example."""
        return [(one.prompt, getattr(one, name)) for one in examples for name in self.responses]

    def source_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield one text per response: the prompt followed by the response."""
        return (
            as_text(prompt) + as_text(response) for prompt, response in self.list_pairs(examples)
        )


class PreferencePairs(GivenResponses):
    """Base class of objectives on pairs of a chosen and a rejected response to a prompt."""

    example_type: ClassVar[type | None] = Preference
    responses: ClassVar[Sequence[str]] = ("chosen", "rejected")
    fields: ClassVar[Sequence[Slot]] = (_PROMPT, CHOSEN, REJECTED, SYSTEM)
    chosen_field: str | None = column_key("column of the chosen (better) response", CHOSEN)
    rejected_field: str | None = column_key("column of the rejected (worse) response", REJECTED)

    def read_example(self, record: Record) -> Preference:
        """Read a preference pair from a record.

        If the record has no prompt, the common prefix of both responses becomes the prompt. If the
        responses are conversations, all messages that both conversations have in common at the
        start belong to the prompt.

        Raises:
            DataError: with file and line, if the prompt or a response is blank, or if both
                responses are equal.
        """
        chosen, rejected = (read_turn(record, name) for name in self.responses)
        if chosen == rejected:
            names = " and ".join(f'"{record.columns[name]}"' for name in self.responses)
            raise DataError(
                f"{names} of {record.where} are the same: there is no preference. Remove the row, "
                "or leave such rows out: --set data.bad_records=skip"
            )
        prompt = read_prompt(record)
        if are_texts(record, prompt, chosen, rejected):
            return _build_text_pair(record, prompt, chosen, rejected)  # type: ignore[arg-type]
        one, other = (join_messages(record, prompt, turn) for turn in (chosen, rejected))
        start = min(_count_common_prefix(one, other), len(one) - 1, len(other) - 1)
        return Preference(one[:start], one[start:], other[start:], record.where)

    def find_problems(self, examples: Sequence[Preference]) -> list[Finding]:
        """Check whether most chosen responses are longer than the rejected responses.

        Returns a list with one finding.
        """
        lengths = ((len(as_text(one.chosen)), len(as_text(one.rejected))) for one in examples)
        longer = sum(chosen > rejected for chosen, rejected in lengths)
        return [Finding.of("chosen_longer", longer, len(examples), _MAX_LONGER, "add_shorter")]


def _build_text_pair(record: Record, prompt: str | None, chosen: str, rejected: str) -> Preference:
    """Build a preference pair from a prompt and two responses that are texts.

    If `prompt` is None, the common prefix of both responses becomes the prompt.
    """
    if prompt is None:
        prompt = _find_common_prefix(chosen, rejected)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    else:
        note_missing_space(record, prompt, (chosen, rejected))
    return Preference(prompt, chosen, rejected, record.where)


def _find_common_prefix(chosen: str, rejected: str) -> str:
    """Return the common prefix of two texts, shortened to the end of a word.

    In scripts without spaces between words, the prefix may end after any character.

    >>> _find_common_prefix("Q: why? A: because", "Q: why? A: begone")
    'Q: why? A:'
    """
    end = min(_count_common_prefix(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    while end and any(_splits_word(text, end) for text in (chosen, rejected)):
        end -= 1
    return chosen[:end].rstrip()


def _splits_word(text: str, offset: int) -> bool:
    """Return whether `offset` is inside a word or a combined character of a text."""
    before, after = text[offset - 1], text[offset]
    if unicodedata.combining(after) or unicodedata.category(after) in ("Mn", "Mc", "Cf"):
        return True
    return before.isalnum() and after.isalnum() and not (is_unspaced(before) or is_unspaced(after))


def _count_common_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the length of the common prefix of two texts, or of two lists of messages."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second)))


def encode_responses(
    lm: LanguageModel, pairs: Sequence[tuple[Turn, Turn]]
) -> tuple[Sequences, Truncations]:
    """Encode pairs of a prompt and a response as rows. Only response tokens have labels.

        input_ids  prompt prompt response response </s>
        labels     -100   response response </s>   -100

    Messages are formatted with the chat template. For an encoder-decoder, the encoder reads the
    prompt and the decoder generates the response. The contents of messages are then joined by line
    breaks, without the chat template.

    Returns:
        The token ids and labels of all rows, by field of `RowBatch`; and the truncation counts of
        every row (see `EncodedExamples`).
    """
    if lm.spec.family == "encoder-decoder":
        return pair_rows(lm, [(as_text(prompt), as_text(response)) for prompt, response in pairs])
    return group_by_field([_encode_response(lm, prompt, response) for prompt, response in pairs])


def _encode_response(lm: LanguageModel, prompt: Turn, response: Turn) -> LabelledRow:
    """Encode a prompt and a response as one row for a decoder. Only the response has labels."""
    if isinstance(prompt, str) and isinstance(response, str):
        text, eos = prompt + response, lm.text_tokenizer.eos_id
        return encode_spans(lm, text, [(len(prompt), len(text))], [] if eos is None else [eos])
    messages = prepend_prompt(prompt, response)
    text, spans = get_chat_template(lm).get_turns(messages)
    turns = prepend_prompt(None, response)
    own = sum(one["role"] == "assistant" for one in turns)
    return encode_spans(lm, text, spans[len(spans) - own :])


def merge_truncations(truncations: Truncations) -> Truncations:
    """Add up the truncation counts of the two rows of every pair.

    If truncation has removed all targets of one row, all targets of the pair count as removed.
    """
    merged = []
    for one, other in zip(truncations[::2], truncations[1::2]):
        cut, total, lost = (a + b for a, b in zip(one, other))
        merged.append((cut, total, lost if has_target([one, other]).all() else total))
    return merged


def stack_pairs(rows: Sequences) -> dict[str, Ragged]:
    """Combine every two consecutive rows into one example, so that they stay in one micro-batch.

    Both rows have the same prompt. For an encoder-decoder, the prompt is stored only once.

    Args:
        rows: token ids and labels of 2 N rows, by field of `RowBatch`.

    Returns:
        The token ids and labels of N examples with two rows each, by field of `RowBatch`.
    """
    pairs = {name: Ragged.from_lists(each, per_example=2) for name, each in rows.items()}
    if "decoder_input_ids" in rows:
        pairs["input_ids"] = Ragged.from_lists(rows["input_ids"][::2])
    return pairs


def build_pair_batch(rows: RowBatch) -> Batch:
    """Build a batch [B, 2, U] from B pairs of rows that `stack_pairs` has combined.

    U is the length of the longest row.
    """
    ids, lengths, sizes = rows.input_ids, rows.lengths, rows.decoder_lengths
    if sizes is not None:  # the encoder reads the same prompt for both responses
        ids, lengths = (np.repeat(one[:, None], 2, axis=1) for one in (ids, lengths))
    width = (lengths if sizes is None else sizes).max()
    ids = ids[..., : width if sizes is None else None]

    def truncate(array: Ints | None) -> Ints | None:
        """Truncate an array [B, 2, >= U] to its first U columns."""
        return None if array is None else array[..., :width]

    return Batch(
        input_ids=ids,
        attention_mask=(np.arange(ids.shape[2]) < lengths[..., None]).astype(np.int64),
        token_type_ids=truncate(rows.token_type_ids),
        decoder_input_ids=truncate(rows.decoder_input_ids),
        labels=truncate(rows.labels),
        sequence_labels=rows.sequence_labels,
    )


def unstack_pairs(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reshape model inputs from pairs [B, 2, U] to rows [2 B, U].

    The two rows of a pair stay adjacent.
    """
    return {name: one.flatten(0, 1) for name, one in inputs.items()}
