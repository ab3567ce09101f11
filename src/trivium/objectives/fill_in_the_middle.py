"""Fill-in-the-middle: a decoder learns to write the text between a prefix and a suffix."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import Batch, Floats, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError, SpecError
from trivium.language_model import LanguageModel
from trivium.objectives.causal import LeftToRight, build_causal_batch, next_token_labels
from trivium.objectives.excerpt import mask_middle
from trivium.text.infilling import FIM_TOKENS, GAP, InfillTokens, Order
from trivium.text.vocabulary import Vocabulary

# Channels of random numbers.
_CHOSEN, _ORDER, _FIRST, _SECOND = range(4)


class FillInTheMiddle(LeftToRight):
    """Causal language modelling in which the middle of some documents is moved to their end.

    A document is cut at two random characters into prefix, middle and suffix. In the order PSM:

        document   the  cat  sat  on  it  </s>
        input_ids  <prefix> the <suffix> on it <middle> cat sat </s>

    and in the order SPM:

        input_ids  <prefix> <suffix> on it <middle> the cat sat </s>

    The label of every token except the last is the next token, as in causal language modelling. The
    middle always ends with the end-of-text token, so that the model learns where to stop. Documents
    are cut after rows are packed ("context-level FIM" in the paper). The length of a full row does
    not change: its last tokens are dropped to make room for the sentinel tokens.

    If a cut is inside a token, both parts of the token are encoded again, so that the model also
    learns to continue in the middle of a word. Source: Bavarian et al. 2022, section 3. There are
    two differences. The paper encodes the whole prefix, middle and suffix again. If the tokenizer
    is not byte-level, the cuts are between tokens.
    """

    special_tokens: ClassVar[tuple[str, ...]] = FIM_TOKENS
    kind: Literal["fill-in-the-middle"] = "fill-in-the-middle"
    rate: float = Field(0.5, gt=0, le=1, description="fraction of documents that are rearranged")
    spm_rate: float = Field(
        0.5, ge=0, le=1, description="fraction of these in the order suffix, prefix, middle"
    )

    def check_tokens(self, vocabulary: Vocabulary) -> None:
        """Raise RecipeError if the tokenizer has no published set of three sentinel tokens."""
        try:
            InfillTokens.find(vocabulary.special_tokens)
        except SpecError as error:
            raise RecipeError(f'objective.kind = "{self.kind}": {error}') from None

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError if each row is one document, without room for sentinel tokens."""
        super().check_rows(packing, separate_documents, is_mixed=is_mixed)
        if packing != "pack":
            raise RecipeError(
                f'objective.kind = "{self.kind}" needs rows of several documents: leave '
                f'data.packing = "{packing}" out.'
            )

    @property
    def control_tokens(self) -> list[str]:
        """No tokens: a sentinel name (such as `<fim_prefix>`) in a text is encoded as text."""
        return []

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return a batch of rearranged rows, with the next tokens as labels, int64 [B, T]."""
        fim = InfillTokens.find(vocabulary.special_tokens)
        width = rows.input_ids.shape[1]
        noise = [rng.uniform(width, channel) for channel in (_CHOSEN, _ORDER, _FIRST, _SECOND)]
        ids = np.full_like(rows.input_ids, vocabulary.pad_id or 0)
        lengths, document_ids = rows.lengths.copy(), np.zeros_like(rows.input_ids)
        for row, tokens in enumerate(rows.input_ids):
            numbers = [each[row] for each in noise]
            parts = self._rearrange(tokens[: rows.lengths[row]], width, numbers, fim, vocabulary)
            ends = np.cumsum([0, *map(len, parts)])
            lengths[row] = ends[-1]
            for number, (part, start) in enumerate(zip(parts, ends), start=1):
                ids[row, start : start + len(part)] = part
                document_ids[row, start : start + len(part)] = number
        changed = dataclasses.replace(
            rows,
            input_ids=ids,
            lengths=lengths,
            document_ids=None if rows.document_ids is None else document_ids,
        )
        return build_causal_batch(changed, next_token_labels(changed))

    def _rearrange(
        self,
        tokens: Ints,
        width: int,
        noise: list[Floats],
        fim: InfillTokens,
        vocabulary: Vocabulary,
    ) -> list[list[int]]:
        """Rearrange some of the documents of a row. Returns the token ids of all documents.

        Tokens at the end of the row are dropped if the result would exceed `width` tokens. `noise`
        contains random numbers for each document: whether it is rearranged, the order (PSM or SPM),
        and the two cuts.
        """
        chosen, order, *cuts = noise
        stop = [] if vocabulary.end_id is None else [vocabulary.end_id]
        space = len(tokens)
        while True:
            documents = []
            for index, (head, body, end) in enumerate(_split_documents(tokens[:space], vocabulary)):
                if chosen[index] < self.rate:
                    total = int(vocabulary.num_characters[body].sum())
                    low, high = sorted(int(each[index] * (total + 1)) for each in cuts)
                    rest, suffix = _split(body, high, vocabulary)
                    prefix, middle = _split(rest, low, vocabulary)
                    name: Order = "spm" if order[index] < self.spm_rate else "psm"
                    body, end = [*fim.arrange(prefix, suffix, name), *middle], end or stop
                documents.append([*head, *body, *end])
            excess = sum(map(len, documents)) - width
            if excess <= 0:
                return documents
            space -= excess

    def generate_sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return a sentence with a gap, and the text with which the model fills the gap.

        Returns None if the text has no sentence with enough words.
        """
        masked = mask_middle(text, GAP, span=3)
        if masked is None:
            return None
        prefix, _, suffix = masked[0].partition(GAP)
        middle = lm.infill(prefix, suffix, max_new_tokens=20, temperature=0.8, top_k=40, seed=0)
        return masked[0], middle

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return an `infill` command with a sentence of the validation text."""
        prompt, _ = mask_middle(text, GAP, span=3) or (f"The weather was {GAP} yesterday.", "")
        return f"infill {run} {shlex.quote(prompt)}"


def _split(ids: list[int], characters: int, vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """Cut token ids after a number of characters. Returns the ids before and after the cut."""
    ends = np.cumsum(vocabulary.num_characters[ids])
    index = int(np.searchsorted(ends, characters, side="right"))
    offset = characters - int(ends[index - 1] if index else 0)
    if not offset:
        return ids[:index], ids[index:]
    left, right = vocabulary.split_token(ids[index], offset)
    return [*ids[:index], *left], [*right, *ids[index + 1 :]]


def _split_documents(
    tokens: Ints, vocabulary: Vocabulary
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Yield the prefix tokens, the text tokens and the end token of each document in a row."""
    ends = np.flatnonzero(tokens == vocabulary.end_id) + 1
    for part in np.split(tokens, ends):
        document = part.tolist()
        if not document:
            continue
        head = [one for one in document[:1] if one in vocabulary.prefix_ids]
        end = [one for one in document[-1:] if one == vocabulary.end_id and len(document) > 1]
        yield head, document[len(head) : len(document) - len(end)], end
