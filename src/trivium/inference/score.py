"""Log-probabilities of texts: continuations of a context, which may be empty.

The unit of computation is one context with its continuations, so that scores do not depend on what
else is scored: there is no batch size.

Shape letters: C continuations, L longest one, M scored tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.forward import (
    Ids,
    encode_sources,
    extend,
    pad_rows,
    prefill,
    vocabulary_log_probabilities,
    windows_around,
)
from trivium.inference.text_model import TextModel, start_ids
from trivium.models import LanguageModule, Transformer
from trivium.nn.positions import check_length
from trivium.text import Tokenizer
from trivium.text.symbols import is_unspaced

_LOGITS_AT_ONCE = 512  # Positions whose logits [V] are held at the same time.
_POSITIONS_AT_ONCE = 8192  # Rows x length of one forward pass.


class ScoreItem(NamedTuple):
    """A context and the continuations to score, as ids without special tokens around them.

    `after` follows every continuation; only an encoder, which is bidirectional, reads it.
    """

    context: Ids
    continuations: Sequence[Ids]
    after: Ids = ()


@dataclass(frozen=True, slots=True)
class SequenceScore:
    """Log-probabilities of one continuation's tokens, in nats.

    Args:
        ids: the tokens.
        log_probabilities: of a decoder log p(token | tokens before), of an encoder log p(token |
            all others) (Salazar et al. 2020); None for a first token that nothing precedes.
        greedy: whether each token is the most probable one of its position.
        num_cut: tokens that were cut from the left of a context that was too long.
    """

    ids: tuple[int, ...]
    log_probabilities: tuple[float | None, ...]
    greedy: bool = True
    num_cut: int = 0

    @property
    def total(self) -> float:
        """The sum: log-probability, or pseudo-log-likelihood of an encoder."""
        return math.fsum(value for value in self.log_probabilities if value is not None)

    @property
    def num_tokens(self) -> int:
        """Tokens that the sum is over."""
        return sum(value is not None for value in self.log_probabilities)


def score_text(lm: TextModel, text: str) -> SequenceScore:
    """The score of a whole text: the continuation of an empty context; its end is not scored.

    Raises:
        SpecError: a text longer than the model's context length, or an encoder-decoder, whose
            outputs are scored given a source: `score_continuations`.
        TokenizerError: an encoder whose tokenizer has no mask token.
    """
    if lm.module.spec.family == "encoder-decoder":
        raise SpecError(
            "an encoder-decoder scores outputs given a source: use score_continuations with both."
        )
    ids = lm.text_tokenizer.encode(text, add_special_tokens=False).ids
    return score_continuations(lm, [ScoreItem((), [ids])])[0][0] if ids else SequenceScore((), ())


def score_continuations(
    lm: TextModel, items: Sequence[ScoreItem], *, truncate: bool = False
) -> list[list[SequenceScore]]:
    """Scores of every continuation of every item, in their order.

    A decoder reads the context once, begun as documents begin in training; an empty context where
    nothing begins documents is the end of the text before, and where no token ends texts either,
    the first token is not scored. An encoder-decoder reads the context as a document, its decoder
    generates the continuation. An encoder reads context, continuation and `after` as one document
    and predicts each token of the continuation with it masked, of a longer text in the window
    around it.

    Args:
        lm: a model with a head over the vocabulary.
        items: contexts with their continuations.
        truncate: cut the left of contexts that are too long for the model, by the same number
            of tokens for all continuations of an item.

    Raises:
        SpecError: an item that does not fit.
        TokenizerError: an encoder whose tokenizer has no mask token.
        TriviumError: an item without continuations, or one without tokens.
    """
    match lm.module.spec.family:
        case "decoder-only":
            score = _score_causal
        case "encoder-only":
            score = _score_masked
        case "encoder-decoder":
            score = _score_outputs
    results = []
    for number, item in enumerate(items, start=1):
        if not item.continuations or not all(item.continuations):
            raise TriviumError(
                f"item {number}: it needs continuations, each of at least one token."
            )
        try:
            results.append(score(lm, item, truncate))
        except SpecError as error:
            raise SpecError(f"item {number}: {error}") from None
    return results


def encode_item(
    tokenizer: Tokenizer,
    context: str,
    continuations: Sequence[str],
    *,
    after: str = "",
    source_tokenizer: Tokenizer | None = None,
) -> ScoreItem:
    """The ids of a context and its continuations, encoded as the texts they form together.

    Spaces at the end of the context belong to the continuations, as tokenizers see them. The
    context is what all encodings begin with, up to its last character; a token across the border
    belongs to the continuation.

    >>> from trivium.text import Tokenizer
    >>> texts = ["the cat sat on the mat"]
    >>> words = Tokenizer.train("whitespace", texts=texts, vocab_size=10, progress=False)
    >>> item = encode_item(words, "the cat", [" sat on", " sat"])
    >>> [words.decode(ids) for ids in (item.context, *item.continuations)]
    ['the cat', 'sat on', 'sat']

    Args:
        source_tokenizer: of an encoder-decoder: the context is its source and encoded alone.

    Raises:
        TokenizerError: a continuation without tokens.
    """
    stem, whole, borders = context.rstrip(), [], []
    for text in continuations:
        joined = text.strip() if source_tokenizer else context + text
        encoding, border = tokenizer.encode(joined, add_special_tokens=False), 0
        if not source_tokenizer:
            beyond = (i for i, (_, end) in enumerate(encoding.offsets) if end > len(stem))
            border = next(beyond, len(encoding.ids))
        if not encoding.ids[border:]:
            raise TokenizerError(f"the continuation {text!r} has no tokens: nothing to score.")
        whole.append(encoding.ids)
        borders.append(border)
    shared = min(borders, default=0)
    while shared and len({tuple(ids[:shared]) for ids in whole}) > 1:
        shared -= 1
    context_ids = whole[0][:shared] if whole else ()
    if source_tokenizer:
        context_ids = source_tokenizer.encode(stem.lstrip(), add_special_tokens=False).ids
    after_ids = tokenizer.encode(after, add_special_tokens=False).ids if after else ()
    return ScoreItem(context_ids, [ids[shared:] for ids in whole], after_ids)


def continuation_scores(
    lm: TextModel, context: str, continuations: Sequence[str], *, after: str = ""
) -> list[SequenceScore]:
    """Scores of continuations of a context, the left of which is cut where it is too long.

    An encoder reads `after` behind each continuation; an encoder-decoder encodes the context.
    """
    source = lm.source_tokenizer if lm.module.spec.family == "encoder-decoder" else None
    item = encode_item(
        lm.text_tokenizer, context, continuations, after=after, source_tokenizer=source
    )
    return score_continuations(lm, [item], truncate=True)[0]


def score_after(lm: TextModel, context: str, text: str) -> SequenceScore:
    """`continuation_scores` of one text alone.

    A space is put between context and text unless there is one, or a character beside it is of a
    script that is written without spaces.

    Raises:
        TriviumError: an empty context.
    """
    if not context:
        raise TriviumError("the context is empty: leave it out.")
    if text and not any(each.isspace() or is_unspaced(each) for each in (context[-1], text[0])):
        text = f" {text}"
    return continuation_scores(lm, context, [text])[0]


def token_log_probabilities(
    module: LanguageModule, hidden: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Log p of each target, float64, and whether it is the most probable token, on the CPU.

    Shape: hidden [M, D], targets int64 [M] -> [M], bool [M].
    """
    values, best = [], []
    for states, target in zip(hidden.split(_LOGITS_AT_ONCE), targets.split(_LOGITS_AT_ONCE)):
        scores = vocabulary_log_probabilities(module, states, vocab_size)
        values.append(scores.gather(-1, target[:, None])[:, 0])
        best.append(scores.argmax(-1) == target)
    return torch.cat(values).double().cpu(), torch.cat(best).cpu()


@torch.inference_mode()
def _score_causal(lm: TextModel, item: ScoreItem, truncate: bool) -> list[SequenceScore]:
    module, tokenizer = lm.module, lm.text_tokenizer
    before = list(tokenizer.prefix_ids) if item.context else start_ids(tokenizer)
    longest = max(map(len, item.continuations))
    # The last token of a continuation is predicted, but not read.
    excess = _excess(module, len(before), len(item.context), longest - 1, truncate)
    context = [*before, *item.context[excess:]]
    first = 0 if context else 1
    if len(item.continuations) == 1:
        (ids,) = item.continuations
        row = [*context, *ids[:-1]]
        hidden = module(torch.tensor([row], device=module.device)) if row else None
        if hidden is not None and context:
            hidden = hidden[:, len(context) - 1 :]
        return _scores(lm, hidden, item.continuations, first, excess)
    scores: list[SequenceScore] = []
    for some in _chunks(item.continuations, len(context) + longest):
        cache = module.new_cache(len(some), max(1, len(context) + longest - 1))
        parts = []
        if context:
            state = prefill(module, cache, [0], [context])
            parts.append(state[:, None].expand(len(some), -1, -1))
            others = torch.arange(1, len(some), device=module.device)
            cache.copy(torch.zeros_like(others), others)
        if max(map(len, some)) > 1:
            rows, lengths = pad_rows([ids[:-1] for ids in some], module.device)
            parts.append(extend(module, cache, rows, lengths=lengths))
        hidden = torch.cat(parts, 1) if parts else None
        scores += _scores(lm, hidden, some, first, excess)
    return scores


@torch.inference_mode()
def _score_outputs(lm: TextModel, item: ScoreItem, truncate: bool) -> list[SequenceScore]:
    module, tokenizer = lm.module, lm.source_tokenizer
    assert isinstance(module, Transformer)  # no other model has an encoder
    start = lm.generation_rules.target_start
    longest = max(map(len, item.continuations))
    check_length(len(start) + longest - 1, module.spec.max_length)
    prefix, suffix = tokenizer.prefix_ids, tokenizer.suffix_ids
    excess = _excess(module, len(prefix) + len(suffix), len(item.context), 0, truncate)
    source = [*prefix, *item.context[excess:], *suffix]
    if not source:
        raise TokenizerError("the context is empty, so that the encoder has nothing to read.")
    scores: list[SequenceScore] = []
    memory, _ = encode_sources(module, [source])
    for some in _chunks(item.continuations, len(source) + longest):
        ids, lengths = pad_rows([[*start, *ids[:-1]] for ids in some], module.device)
        cache = module.new_cache(len(some), ids.shape[1])
        slots = torch.arange(len(some), device=module.device)
        cache.set_memory(slots, memory.expand(len(some), -1, -1), None)
        hidden = extend(module, cache, ids, lengths=lengths)[:, len(start) - 1 :]
        scores += _scores(lm, hidden, some, 0, excess)
    return scores


@torch.inference_mode()
def _score_masked(lm: TextModel, item: ScoreItem, truncate: bool) -> list[SequenceScore]:
    """Every token of a continuation is masked in turn, each in a row of its own.

    A row is the whole text, or the window around the token where the text is longer than that.
    """
    module, tokenizer, device = lm.module, lm.source_tokenizer, lm.module.device
    if tokenizer.mask_id is None:
        raise TokenizerError("this tokenizer has no mask token, which scoring by an encoder needs.")
    prefix, suffix = tokenizer.prefix_ids, tokenizer.suffix_ids
    excess = 0
    if truncate:
        around = len(prefix) + len(item.after) + len(suffix)
        longest = max(map(len, item.continuations))
        excess = _excess(module, around, len(item.context), longest, truncate)
    context = [*prefix, *item.context[excess:]]
    scores = []
    for ids in item.continuations:
        row = torch.tensor([*context, *ids, *item.after, *suffix], device=device)
        positions = len(context) + torch.arange(len(ids), device=device)
        hidden = []
        length = min(len(row), lm.max_length or len(row))
        for some in positions.split(max(1, _POSITIONS_AT_ONCE // length)):
            rows = torch.arange(len(some), device=device)
            masked, columns = windows_around(
                row, some, length, prefix=len(prefix), suffix=len(suffix)
            )
            masked[rows, columns] = tokenizer.mask_id
            hidden.append(module(masked, select=rows * masked.shape[1] + columns))
        values, best = token_log_probabilities(
            module, torch.cat(hidden), row[positions], tokenizer.vocab_size
        )
        scores.append(SequenceScore(tuple(ids), tuple(values.tolist()), bool(best.all()), excess))
    return scores


def _scores(
    lm: TextModel, hidden: Tensor | None, continuations: Sequence[Ids], first: int, num_cut: int
) -> list[SequenceScore]:
    """Scores of tokens from `first` on, which hidden [C, L - first, D] predict in order."""
    lengths = [len(ids) - first for ids in continuations]
    unscored: list[float | None] = [None] * first
    if hidden is None or not any(lengths):
        return [SequenceScore(tuple(ids), tuple(unscored), True, num_cut) for ids in continuations]
    states = torch.cat([hidden[row, :length] for row, length in enumerate(lengths)])
    targets = torch.tensor(
        [token_id for ids in continuations for token_id in ids[first:]], device=states.device
    )
    vocab_size = lm.text_tokenizer.vocab_size
    values, best = token_log_probabilities(lm.module, states, targets, vocab_size)
    parts = zip(continuations, values.split(lengths), best.split(lengths), strict=True)
    return [
        SequenceScore(tuple(ids), (*unscored, *value.tolist()), bool(greedy.all()), num_cut)
        for ids, value, greedy in parts
    ]


def _excess(
    module: LanguageModule, around: int, context: int, continuation: int, truncate: bool
) -> int:
    """Tokens of the context beyond the model's context length.

    Raises:
        SpecError: the continuation alone is too long, or there is an excess without `truncate`.
    """
    limit = module.spec.max_length
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


def _chunks(continuations: Sequence[Ids], length: int) -> Iterator[Sequence[Ids]]:
    rows = max(1, _POSITIONS_AT_ONCE // length)
    for start in range(0, len(continuations), rows):
        yield continuations[start : start + rows]
