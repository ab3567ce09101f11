"""Log-probabilities of texts as continuations of a context, which may be empty.

A decoder scores items of similar lengths in one batch. The other items of a batch affect a score
only through rounding.

Shape letters: R rows, L longest continuation, M scored tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.forward import (
    Ids,
    batch_by_length,
    check_ids,
    extend,
    masked_states,
    pad_rows,
    padding_mask,
    prefill,
    vocabulary_log_probabilities,
)
from trivium.inference.text_model import TextModel, bos_or_eos_ids
from trivium.models import LanguageModule
from trivium.nn.sequence_info import check_length
from trivium.text import Encoding, Tokenizer

_LOGITS_AT_ONCE = 512  # Positions whose logits [V] are in memory at once.
_POSITIONS_AT_ONCE = 8192  # Rows x length of a forward pass.


class ScoreItem(NamedTuple):
    """A context and the continuations to score, as token ids without special tokens.

    `after` contains the ids of the text after every continuation. Only an encoder reads them.
    """

    context: Ids
    continuations: Sequence[Ids]
    after: Ids = ()


@dataclass(frozen=True, slots=True)
class SequenceScore:
    """The log-probabilities of the tokens of one continuation, in nats.

    Args:
        ids: the tokens.
        log_probabilities: log p(token | tokens before) for a decoder, log p(token | all other
            tokens) for an encoder (Salazar et al. 2020). The value of the first token is None if a
            decoder reads no token before it.
        greedy: whether every token is the most probable token at its position.
        num_cut: the number of tokens by which the context was left-truncated.
    """

    ids: tuple[int, ...]
    log_probabilities: tuple[float | None, ...]
    greedy: bool = True
    num_cut: int = 0

    @property
    def total(self) -> float:
        """The log-likelihood of the tokens (encoder: the pseudo-log-likelihood), in nats."""
        return math.fsum(value for value in self.log_probabilities if value is not None)

    @property
    def num_tokens(self) -> int:
        """The number of tokens whose log-probability is not None, which `total` sums."""
        return sum(value is not None for value in self.log_probabilities)


def score_text(lm: TextModel, text: str, context: str | None = None) -> SequenceScore:
    """Return the log-probabilities of the tokens of a text, which may continue a context.

    No EOS token is added to the text. Context and text are tokenized as the one string
    `context + text`: start the text with a space if the string has one there. A token across the
    border of context and text is scored with the text. A context that is too long is
    left-truncated. In an encoder-decoder, the encoder reads the context, and context and text are
    tokenized separately.

    Raises:
        SpecError: the text is longer than the model's context length, or the model is an
            encoder-decoder and there is no context.
        TokenizerError: the model is an encoder whose tokenizer has no mask token.
        TriviumError: the context is an empty string.
    """
    if context == "":
        raise TriviumError("the context is empty: leave it out.")
    if context is not None:
        return continuation_scores(lm, context, [text])[0]
    if lm.module.spec.family == "encoder-decoder":
        raise SpecError("an encoder-decoder scores outputs given a source: give a context, too.")
    ids = lm.text_tokenizer.encode(text, add_special_tokens=False).ids
    return score_continuations(lm, [ScoreItem((), [ids])])[0][0] if ids else SequenceScore((), ())


def score_continuations(
    lm: TextModel, items: Sequence[ScoreItem], *, truncate: bool = False
) -> list[list[SequenceScore]]:
    """Return the scores of the continuations of every item, in the given order.

    A decoder reads the context once, after the BOS tokens used in training. If there are none, an
    empty context is replaced by the EOS token. If there is no EOS token either, the first token is
    not scored. In an encoder-decoder, the encoder reads the context, and the decoder predicts the
    continuation. An encoder reads context, continuation and `after` as one text with special
    tokens; if this text is too long, it reads a window around the predicted token. The encoder
    predicts each token of the continuation while only this token is masked.

    Args:
        lm: a model with a head over the vocabulary.
        items: contexts with their continuations.
        truncate: whether to left-truncate contexts that are too long for the model, by the same
            number of tokens for all continuations of an item.

    Raises:
        SpecError: an item is longer than the model's context length, or an id is out of vocabulary.
        TokenizerError: the model is an encoder whose tokenizer has no mask token.
        TriviumError: an item has no continuations, or a continuation has no tokens.
    """
    masked = lm.module.spec.family == "encoder-only"
    scores: list[list[SequenceScore]] = []
    contexts: list[tuple[list[int], int]] = []
    for number, item in enumerate(items, start=1):
        if not item.continuations or not all(item.continuations):
            raise TriviumError(f"item {number} needs continuations, each of at least one token.")
        try:
            if masked:
                scores.append(_score_with_encoder(lm, item, truncate))
            else:
                contexts.append(_truncate_context(lm, item, truncate))
        except SpecError as error:
            raise SpecError(f"item {number}: {error}") from None
    return scores if masked else _score_with_decoder(lm, items, contexts)


def encode_item(
    lm: TextModel, context: str, continuations: Sequence[str], *, after: str = ""
) -> ScoreItem:
    """Return an item to score: the ids of a context and its continuations.

    Each continuation is tokenized as one string with the context.

    Spaces at the end of the context belong to the continuations, because most tokenizers include a
    space in the token after it. The ids of the context are the common prefix of all encodings. A
    token across the border belongs to the continuation. For an encoder-decoder, the context (the
    source) and the continuations are tokenized separately.

    Raises:
        TokenizerError: a continuation has no tokens.
    """

    def encode_text(tokenizer: Tokenizer, text: str) -> Encoding:
        """Encode a text without special tokens."""
        return tokenizer.encode(text, add_special_tokens=False)

    tokenizer, both = lm.text_tokenizer, lm.module.spec.family == "encoder-decoder"
    stem, whole, contexts = context.rstrip(), [], []
    for text in continuations:
        encoding = encode_text(tokenizer, text.strip() if both else context + text)
        border = 0 if both else sum(end <= len(stem) for _, end in encoding.offsets)
        if not encoding.ids[border:]:
            raise TokenizerError(f"the continuation {text!r} has no tokens: nothing to score.")
        whole.append(encoding.ids)
        contexts.append(encoding.ids[:border])
    columns = takewhile(lambda column: len({*column}) == 1, zip(*contexts))
    shared: Ids = [column[0] for column in columns]
    rest = [ids[len(shared) :] for ids in whole]
    if both:
        shared = encode_text(lm.source_tokenizer, context.strip()).ids
    return ScoreItem(shared, rest, encode_text(tokenizer, after).ids if after else ())


def continuation_scores(
    lm: TextModel, context: str, continuations: Sequence[str], *, after: str = ""
) -> list[SequenceScore]:
    """Return the scores of continuations of a context, which is left-truncated if it is too long.

    `after` is the text after each continuation. Only an encoder reads it.
    """
    item = encode_item(lm, context, continuations, after=after)
    return score_continuations(lm, [item], truncate=True)[0]


def token_log_probabilities(
    module: LanguageModule, hidden: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target token, and whether it is the most probable token.

    Both results are on the CPU. Only ids below `vocab_size` can be the most probable token.

    Shape: hidden [M, D], targets int64 [M] -> float64 [M], bool [M].
    """
    values, best = [], []
    for states, target in zip(hidden.split(_LOGITS_AT_ONCE), targets.split(_LOGITS_AT_ONCE)):
        scores = vocabulary_log_probabilities(module, states, vocab_size)
        values.append(scores.gather(-1, target[:, None])[:, 0])
        best.append(scores.argmax(-1) == target)
    return torch.cat(values).double().cpu(), torch.cat(best).cpu()


class _Group(NamedTuple):
    """Continuations of one item that are scored in the same batch, and their context.

    `item` is the index of the item, and `first` the index of the first of these continuations in
    the item. `context` contains the ids of the decoder's prompt or the encoder's source, after
    `num_cut` context tokens were cut on the left.
    """

    item: int
    first: int
    continuations: Sequence[Ids]
    context: Ids
    num_cut: int


def _truncate_context(lm: TextModel, item: ScoreItem, truncate: bool) -> tuple[list[int], int]:
    """Return the left-truncated prompt or encoder source, and the number of tokens cut from it."""
    module, longest = lm.module, max(map(len, item.continuations))
    if module.spec.family == "encoder-decoder":
        start = lm.generation_rules.target_start
        check_length(len(start) + longest - 1, lm.context_length)
        before, after, read = lm.source_template.before, lm.source_template.after, 0
    else:
        tokenizer = lm.text_tokenizer
        before = list(tokenizer.prefix_ids) if item.context else bos_or_eos_ids(tokenizer)
        # The last token of a continuation is predicted, but not read.
        after, read = [], longest - 1
    around = len(before) + len(after)
    excess = _num_cut(lm, around, len(item.context), read, truncate)
    ids = [*before, *item.context[excess:], *after]
    if not ids and module.spec.family == "encoder-decoder":
        raise TokenizerError("the context is empty, so that the encoder has nothing to read.")
    return ids, excess


@torch.inference_mode()
def _score_with_decoder(
    lm: TextModel, items: Sequence[ScoreItem], contexts: Sequence[tuple[list[int], int]]
) -> list[list[SequenceScore]]:
    """Score items with a decoder, which reads a context of several continuations only once."""
    both = lm.module.spec.family == "encoder-decoder"
    whole: list[_Group] = []
    shared: list[_Group] = []
    for index, ((_, continuations, _), (context, num_cut)) in enumerate(zip(items, contexts)):
        longest = len(context) + max(map(len, continuations))
        expires = any(
            len(context) <= length < longest for length in lm.module.spec.recompute_lengths
        )
        alone = not both and (len(continuations) == 1 or not context or expires)
        size = 1 if alone else max(1, _POSITIONS_AT_ONCE // longest)
        for first in range(0, len(continuations), size):
            some = continuations[first : first + size]
            (whole if alone else shared).append(_Group(index, first, some, context, num_cut))
    results: list[list[Any]] = [[None] * len(item.continuations) for item in items]
    for group in (*whole, *shared):
        check_ids(group.context, lm.module.spec.input_vocab_size)
        for ids in group.continuations:
            check_ids(ids, lm.module.spec.vocab_size)
    for groups, states_of in ((whole, _single_row_states), (shared, _shared_context_states)):
        lengths = [len(one.context) + max(map(len, one.continuations)) for one in groups]
        counts = [len(one.continuations) for one in groups]
        for batch in batch_by_length(lengths, _POSITIONS_AT_ONCE, counts=counts):
            some = [groups[i] for i in batch]
            scores = _sequence_scores(lm, some, states_of(lm, some))
            for group in some:
                stop = group.first + len(group.continuations)
                results[group.item][group.first : stop] = islice(scores, stop - group.first)
    return results


def _single_row_states(lm: TextModel, groups: Sequence[_Group]) -> list[Tensor]:
    """Return the hidden states that predict the tokens of the only continuation of each group.

    A context and its continuation are read as one row, without a cache.
    """
    rows = [[*group.context, *group.continuations[0][:-1]] for group in groups]
    if not any(rows):
        return [torch.empty(0)] * len(rows)
    ids, lengths = pad_rows(rows, lm.module.device)
    hidden = lm.module(ids, attention_mask=padding_mask(lengths, ids.shape[1]))
    starts = [max(0, len(group.context) - 1) for group in groups]
    return [hidden[i, start : len(row)] for i, (start, row) in enumerate(zip(starts, rows))]


def _shared_context_states(lm: TextModel, groups: Sequence[_Group]) -> list[Tensor]:
    """Return the hidden states that predict the tokens of each of the groups' continuations.

    The context of a group is read once. Its cache slot is copied for the other continuations.
    """
    module, start = lm.module, lm.generation_rules.target_start
    counts = [len(group.continuations) for group in groups]
    continuations = [ids for group in groups for ids in group.continuations]
    first = [sum(counts[:i]) for i in range(len(counts))]
    contexts = [group.context for group in groups]
    is_encoded = module.spec.family == "encoder-decoder"
    read = [len(start) if is_encoded else len(context) for context in contexts]
    # Padding of a shorter continuation may lie behind its slot.
    ends = [n + max(map(len, group.continuations)) for n, group in zip(read, groups)]
    cache = module.new_cache(len(continuations), max(ends) - 1)
    states = prefill(module, cache, first, contexts, start)
    repeats = torch.tensor(counts, device=module.device)
    source = torch.tensor(first, device=module.device).repeat_interleave(repeats)
    target = torch.arange(len(continuations), device=module.device)
    others = source != target
    cache.copy(source[others], target[others])
    hidden = states.repeat_interleave(repeats, 0)[:, None]
    if max(map(len, continuations)) > 1:
        rows, lengths = pad_rows([ids[:-1] for ids in continuations], module.device)
        hidden = torch.cat((hidden, extend(module, cache, rows, lengths=lengths)), 1)
    return [hidden[row, : len(ids)] for row, ids in enumerate(continuations)]


@torch.inference_mode()
def _score_with_encoder(lm: TextModel, item: ScoreItem, truncate: bool) -> list[SequenceScore]:
    """Score continuations with an encoder: one token at a time is masked and predicted."""
    tokenizer = lm.source_tokenizer
    template, excess = lm.source_template, 0
    if truncate:
        around = template.count_special(paired=False) + len(item.after)
        longest = max(map(len, item.continuations))
        excess = _num_cut(lm, around, len(item.context), longest, truncate)
    context = [*template.before, *item.context[excess:]]
    scores = []
    for ids in item.continuations:
        whole = [*context, *ids, *item.after, *template.after]
        positions = range(len(context), len(context) + len(ids))
        hidden = masked_states(lm, whole, positions, lm.max_length)
        targets = torch.tensor(ids, device=hidden.device)
        values, best = token_log_probabilities(lm.module, hidden, targets, tokenizer.vocab_size)
        scores.append(SequenceScore(tuple(ids), tuple(values.tolist()), bool(best.all()), excess))
    return scores


def _sequence_scores(
    lm: TextModel, groups: Sequence[_Group], states: Sequence[Tensor]
) -> Iterator[SequenceScore]:
    """Yield the scores of all continuations. The states [M, D] predict their tokens."""
    lengths = [len(each) for each in states]
    continuations = [(group.num_cut, ids) for group in groups for ids in group.continuations]
    values, best = torch.empty(0), torch.empty(0, dtype=torch.bool)
    if any(lengths):
        targets = [i for (_, ids), m in zip(continuations, lengths) for i in ids[len(ids) - m :]]
        values, best = token_log_probabilities(
            lm.module,
            torch.cat(list(states)),
            torch.tensor(targets, device=lm.module.device),
            lm.text_tokenizer.vocab_size,
        )
    split = zip(continuations, values.split(lengths), best.split(lengths), strict=True)
    for (num_cut, ids), value, greedy in split:
        unscored: list[float | None] = [None] * (len(ids) - len(value))
        log_p = (*unscored, *value.tolist())
        yield SequenceScore(tuple(ids), log_p, bool(greedy.all()), num_cut)


def _num_cut(lm: TextModel, around: int, context: int, continuation: int, truncate: bool) -> int:
    """Return the number of context tokens to cut, so that an item fits the context length.

    `around`, `context` and `continuation` are the numbers of tokens that the model reads: of
    special tokens and text after a continuation, of the context, and of the longest continuation.

    Raises:
        SpecError: the continuation alone is too long, or the context is too long and `truncate` is
            False.
    """
    limit = lm.context_length
    needed = around + context + continuation
    if limit is None or needed <= limit:
        return 0
    if needed - limit > context:
        raise SpecError(
            f"a continuation alone needs {around + continuation} of the model's {limit} positions: "
            "shorten it."
        )
    if not truncate:
        raise SpecError(
            f"context and continuation need {needed} of the model's {limit} positions: shorten the "
            "context, or cut its left with truncate=True."
        )
    return needed - limit
