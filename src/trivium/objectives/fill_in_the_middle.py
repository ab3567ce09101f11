"""Fill-in-the-middle: a decoder learns to write the text between a prefix and a suffix."""

from __future__ import annotations

import dataclasses
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
from trivium.text.infilling import FIM_TOKENS, InfillTokens
from trivium.text.vocabulary import Vocabulary

# Channels of random numbers.
_CHOSEN, _ORDER, _FIRST, _SECOND = range(4)
_MARKS = 4  # tokens that a rearranged document gains: three marks and, if missing, its end
_GAP = "[MASK]"


class FillInTheMiddle(LeftToRight):
    """Causal language modelling in which the middle of some documents is moved to their end.

    A document is cut at two random places into prefix, middle and suffix. In the order PSM:

        document   the  cat  sat  on  it  </s>
        input_ids  <prefix> the <suffix> on it <middle> cat sat </s>

    and in the order SPM:

        input_ids  <prefix> <suffix> on it <middle> the cat sat </s>

    Every token but the last has its next token as label, as in causal language modelling. The
    middle always ends with the end-of-text token, so that the model learns where to stop. The part
    of a document that is in a row counts as a document ("context-level FIM" in the paper). A full
    row keeps its length: its last tokens make room for the marks, up to four for each rearranged
    document.

    Source: Bavarian et al. 2022, section 3. One difference: the cuts are between tokens, in the
    paper between characters.
    """

    special_tokens: ClassVar[tuple[str, ...]] = FIM_TOKENS
    kind: Literal["fill-in-the-middle"] = "fill-in-the-middle"
    rate: float = Field(0.5, gt=0, le=1, description="fraction of documents that are rearranged")
    spm_rate: float = Field(
        0.5, ge=0, le=1, description="fraction of these in the order suffix, prefix, middle"
    )

    def check_tokens(self, vocabulary: Vocabulary) -> None:
        """Raise RecipeError if the tokenizer has none of the published triples of tokens."""
        try:
            InfillTokens.find(vocabulary.special_tokens)
        except SpecError as error:
            raise RecipeError(f'objective.kind = "{self.kind}": {error}') from None

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError if rows hold one document each, which leave no room for the marks."""
        super().check_rows(packing, separate_documents, is_mixed=is_mixed)
        if packing != "pack":
            raise RecipeError(
                f'objective.kind = "{self.kind}" needs rows of several documents: leave '
                f'data.packing = "{packing}" out.'
            )

    @property
    def control_tokens(self) -> list[str]:
        """No tokens: the names of the marks in a training text are plain text."""
        return []

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return a batch of rearranged rows; the labels are the next tokens, int64 [B, T]."""
        marks = InfillTokens.find(vocabulary.special_tokens)
        width = rows.input_ids.shape[1]
        noise = [rng.uniform(width, channel) for channel in (_CHOSEN, _ORDER, _FIRST, _SECOND)]
        ids = np.full_like(rows.input_ids, vocabulary.pad_id or 0)
        lengths, document_ids = rows.lengths.copy(), np.zeros_like(rows.input_ids)
        for row, tokens in enumerate(rows.input_ids):
            numbers = [each[row] for each in noise]
            parts = self._rearrange(tokens[: rows.lengths[row]], width, numbers, marks, vocabulary)
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
        marks: InfillTokens,
        vocabulary: Vocabulary,
    ) -> list[list[int]]:
        """Return the documents of a row, some of them rearranged, in at most `width` tokens.

        `noise` contains random numbers for each document of the row: whether it is rearranged, its
        order, and its two cuts.
        """
        chosen, order, first, second = noise
        count = len([*_documents(tokens, vocabulary)])
        space = width - _MARKS * int(np.count_nonzero(chosen[:count] < self.rate))
        documents = []
        for index, (head, body, end) in enumerate(_documents(tokens[: max(space, 0)], vocabulary)):
            if chosen[index] >= self.rate:
                documents.append([*head, *body, *end])
                continue
            cuts = sorted(int(each[index] * (len(body) + 1)) for each in (first, second))
            prefix, middle, suffix = body[: cuts[0]], body[cuts[0] : cuts[1]], body[cuts[1] :]
            name: Literal["psm", "spm"] = "spm" if order[index] < self.spm_rate else "psm"
            arranged = marks.arrange(prefix, suffix, name)
            stop = [] if vocabulary.end_id is None else [vocabulary.end_id]
            documents.append([*head, *arranged, *middle, *(end or stop)])
        return documents

    def generate_sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return a sentence with a gap, and what the model writes into the gap.

        Returns None if the text has no sentence with enough words.
        """
        masked = mask_middle(text, _GAP, span=3)
        if masked is None:
            return None
        prefix, _, suffix = masked[0].partition(_GAP)
        middle = lm.infill(prefix, suffix, max_new_tokens=20, temperature=0.8, top_k=40, seed=0)
        return masked[0], middle


def _documents(
    tokens: Ints, vocabulary: Vocabulary
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Yield the documents of a row: the tokens before the text, the text, the tokens after it."""
    ends = np.flatnonzero(tokens == vocabulary.end_id) + 1
    for part in np.split(tokens, ends):
        document = part.tolist()
        if not document:
            continue
        head = [one for one in document[:1] if one in vocabulary.prefix_ids]
        end = [one for one in document[-1:] if one == vocabulary.end_id and len(document) > 1]
        yield head, document[len(head) : len(document) - len(end)], end
