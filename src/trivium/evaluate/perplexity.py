"""Perplexity and bits per byte of decoders, recurrent models and encoders on texts.

Long texts are split into overlapping windows of tokens. Each token is scored in only one window.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from trivium.errors import DataError, SpecError, TriviumError
from trivium.inference.forward import masked_states, pad_rows
from trivium.inference.score import token_log_probabilities
from trivium.inference.text_model import bos_or_eos_ids
from trivium.language_model import LanguageModel
from trivium.text.symbols import UNSPACED

# The window size in tokens if the model does not specify a length.
_DEFAULT_WINDOW = 1024


@dataclass
class Perplexity:
    """Sums of log-probabilities and counts, from which perplexity and bits per byte are computed.

    A decoder also predicts the end-of-text token after each text. These tokens are counted
    separately, and only `loss_with_ends` includes them. To compare models with different
    tokenizers, use the perplexity per word or character, or the bits per byte.

    Args:
        pseudo: whether the result is the pseudo-perplexity of an encoder (Salazar et al. 2020). Its
            log-probabilities are log p(token | all other tokens).
        window: the number of tokens per window; None if texts are not split.
        stride: the number of tokens between the starts of consecutive windows.
        nats: the sum of -log p over tokens, excluding end-of-text tokens.
        end_nats: the sum of -log p over end-of-text tokens.
        num_tokens: the number of scored tokens, excluding end-of-text tokens.
        num_ends: the number of scored end-of-text tokens.
        num_unknown: the number of unknown tokens. They make the perplexity lower than it should be.
        num_documents: the number of documents (texts).
        num_words: the number of words, separated by white space.
        num_characters: the number of characters.
        num_unspaced: the number of characters of scripts without spaces, such as Chinese.
        num_bytes: the number of UTF-8 bytes.
    """

    pseudo: bool = False
    window: int | None = None
    stride: int | None = None
    nats: float = 0.0
    end_nats: float = 0.0
    num_tokens: int = 0
    num_ends: int = 0
    num_unknown: int = 0
    num_documents: int = 0
    num_words: int = 0
    num_characters: int = 0
    num_unspaced: int = 0
    num_bytes: int = 0

    @property
    def loss(self) -> float:
        """The mean loss in nats per token, excluding end-of-text tokens."""
        return _divide(self.nats, self.num_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics and the counts as a dict for JSON.

        The metrics are the loss in nats per token (excluding and including end-of-text tokens), the
        perplexity per token and per word, and the bits per byte and per character. For texts that
        are mostly Chinese or Japanese, the perplexity is per character instead of per word.

        Raises DataError if no token was scored.
        """
        if not self.num_tokens:
            raise DataError(
                f"no token of {self.num_documents} documents can be scored, so there is no "
                "perplexity: give longer texts."
            )
        kind = "pseudo_perplexity" if self.pseudo else "perplexity"
        unit, count = "word", self.num_words
        if self.num_unspaced > 0.3 * self.num_characters:
            unit, count = "character", self.num_characters
        figures: dict[str, Any] = {
            "loss": self.loss,
            f"{kind}_per_token": _bounded_exp(self.loss),
            f"{kind}_per_{unit}": _bounded_exp(_divide(self.nats, count)),
            "bits_per_byte": _divide(self.nats / math.log(2), self.num_bytes),
            "bits_per_character": _divide(self.nats / math.log(2), self.num_characters),
        }
        if self.num_ends:
            total, count = self.nats + self.end_nats, self.num_tokens + self.num_ends
            figures["loss_with_ends"] = _divide(total, count)
        names = ("documents", "tokens", "words", "characters", "bytes", "ends", "unknown")
        numbers = {f"num_{name}": getattr(self, f"num_{name}") for name in names}
        if unit == "character":
            del numbers["num_words"]
        return figures | numbers


class ScoredWindow(NamedTuple):
    """A window of token ids. Only the ids from the index `start` onwards are scored.

    The last `num_ends` ids are end-of-text tokens.
    """

    ids: list[int]
    start: int
    num_ends: int


def perplexity(
    lm: LanguageModel,
    texts: Iterable[str],
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """Compute the perplexity of a model on the given texts.

    Every token is scored once. Its context never extends beyond its own text. A text longer than
    the window is split into overlapping windows. Each token is scored in the first window that
    contains it. RNNs and n-gram models read whole texts without a window.

    A decoder predicts the first token of a text from the start token, or else from the end-of-text
    token. If the tokenizer has neither, the first token is not scored. An encoder predicts each
    token from all other tokens of the window, with one forward pass per masked token.

    Args:
        lm: the model.
        texts: the texts to score.
        window: the number of tokens per window; default: the maximum length of the model, or 1024
            if it is unknown.
        stride: the number of tokens between the starts of consecutive windows; default: half of the
            window.
        batch_size: the number of windows per batch. It may change the last digits of the result.
        progress: called after every batch with the number of tokens scored so far.

    Raises:
        SpecError: the model is an encoder-decoder, which gives a probability only to the output for
            an input.
        TriviumError: the window or the stride is invalid.
    """
    family = lm.spec.family
    if family == "encoder-decoder":
        raise SpecError(
            "this model is an encoder-decoder: it predicts an output given an input, and has no "
            "perplexity of a text alone. Evaluate it on pairs, or with few-shot prompts."
        )
    window = _resolve_window(lm, window)
    stride = max(1, (window or _DEFAULT_WINDOW) // 2) if stride is None else stride
    if window is not None and not 1 <= stride < window:
        raise TriviumError(
            f"stride is {stride}, but must be at least 1 and less than the window of {window}."
        )
    result = Perplexity(family == "encoder-only", window, None if window is None else stride)
    rows, score = _split_decoder_windows, _score_causal
    if result.pseudo:  # The batch of an encoder contains one window, with each token masked once.
        rows, score, batch_size = _split_encoder_windows, _score_masked, 1
    elif window is None:
        score = _score_recurrent
    scored = (row for ids in _tokenize(lm, texts, result) for row in rows(lm, ids, window, stride))
    # Many windows are sorted by length before they are batched, so that there is little padding.
    while chunk := list(itertools.islice(scored, 16 * batch_size)):
        chunk.sort(key=lambda row: -len(row.ids))
        for start in range(0, len(chunk), batch_size):
            score(lm, chunk[start : start + batch_size], result)
            if progress:
                progress(result.num_tokens)
    return result


def compute_rolling_logprob(lm: LanguageModel, text: str) -> float:
    """Return log p(text) in nats for a text of any length, as lm-evaluation-harness computes it.

    The text is split into windows. In each window, as many tokens are predicted as the model has
    positions. In the last window, only the remaining tokens are predicted, and earlier tokens fill
    the window as context. The end-of-text token is not scored. Encoders, recurrent models and
    n-gram models are scored as in `perplexity`.
    """
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    size = _resolve_window(lm, None)
    if lm.spec.family != "decoder-only" or size is None:
        return -perplexity(lm, [text], batch_size=1).nats
    ids = lm.text_tokenizer.encode(text, add_special_tokens=False).ids
    before, *ids = [*bos_or_eos_ids(lm.text_tokenizer), *ids] or [0]
    result = Perplexity()
    windows = get_rolling_token_windows(ids, before, max_seq_len=size, context_len=1)
    for context, continuation in map(make_disjoint_window, windows):
        row = ScoredWindow([*context, *continuation], len(context), 0)
        _score_causal(lm, [row], result)
    return -result.nats


def iter_windows(num_tokens: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Split `num_tokens` tokens into overlapping windows.

    Yields (start, first scored index, stop) for each window. Each token is scored in exactly one
    window.

    >>> list(iter_windows(7, 4, 2))
    [(0, 0, 4), (2, 4, 6), (4, 6, 7)]
    """
    scored = 0
    for start in range(0, num_tokens, stride):
        stop = min(start + window, num_tokens)
        yield start, scored, stop
        scored = stop
        if stop == num_tokens:
            return


def _split_decoder_windows(
    lm: LanguageModel, ids: list[int], window: int | None, stride: int
) -> Iterator[ScoredWindow]:
    """Add start and end tokens to the ids of a text, and split the ids into decoder windows.

    If `window` is None, there is only one window.
    """
    before, after = bos_or_eos_ids(lm.text_tokenizer), lm.text_tokenizer.suffix_ids
    whole = [*before, *ids, *after]
    unscored, end = max(1, len(before)), len(whole) - len(after)
    for start, first, stop in iter_windows(len(whole), window or len(whole), stride):
        first = max(first, unscored)
        if first < stop:
            yield ScoredWindow(whole[start:stop], first - start, max(0, stop - max(end, first)))


def _split_encoder_windows(
    lm: LanguageModel, ids: list[int], window: int | None, stride: int
) -> Iterator[ScoredWindow]:
    """Split the ids of a text into encoder windows, each surrounded by special tokens."""
    assert window is not None
    template = lm.source_template
    capacity = window - template.count_special(paired=False)
    if capacity < 1:
        raise TriviumError(
            f"window is {window}: there is no room for text, only for special tokens."
        )
    for start, first, stop in iter_windows(len(ids), capacity, min(stride, capacity)):
        row = [*template.before, *ids[start:stop], *template.after]
        yield ScoredWindow(row, first - start + len(template.before), 0)


@torch.inference_mode()
def _score_causal(lm: LanguageModel, batch: Sequence[ScoredWindow], totals: Perplexity) -> None:
    """Score a batch of windows with a decoder, and add the log-probabilities to `totals`.

    Each token is predicted from the earlier tokens of its window. Padding has no effect, because it
    is on the right, and tokens attend only to earlier tokens.
    """
    ids, _ = pad_rows([row.ids[:-1] for row in batch], lm.module.device)
    for row, states in zip(batch, lm.module(ids)):
        _add_nll(
            lm, states[row.start - 1 : len(row.ids) - 1], row.ids[row.start :], row.num_ends, totals
        )


@torch.inference_mode()
def _score_recurrent(lm: LanguageModel, batch: Sequence[ScoredWindow], totals: Perplexity) -> None:
    """Score a batch of texts with a recurrent model, and add the log-probabilities to `totals`.

    Each token is predicted from all earlier tokens of its text. The text is processed in chunks of
    `_DEFAULT_WINDOW` tokens, and the recurrent state is carried over between chunks.
    """
    for row in batch:
        cache = lm.module.new_cache(1, len(row.ids))
        for start in range(0, len(row.ids) - 1, _DEFAULT_WINDOW):
            stop = min(start + _DEFAULT_WINDOW, len(row.ids) - 1)
            ids = torch.tensor([row.ids[start:stop]], device=lm.module.device)
            hidden = lm.module(ids, cache=cache)[0]
            first = max(start + 1, row.start)
            num_ends = max(0, stop + 1 - max(len(row.ids) - row.num_ends, first))
            _add_nll(lm, hidden[first - 1 - start :], row.ids[first : stop + 1], num_ends, totals)


@torch.inference_mode()
def _score_masked(lm: LanguageModel, batch: Sequence[ScoredWindow], totals: Perplexity) -> None:
    """Score a batch of windows with an encoder, and add the log-probabilities to `totals`.

    Each token is predicted from all other tokens of its window. The encoder reads one copy of the
    window per token, in which only this token is masked.
    """
    suffix = len(lm.source_template.after)
    for row in batch:
        positions = range(row.start, len(row.ids) - suffix)
        hidden = masked_states(lm, row.ids, positions, None)
        _add_nll(lm, hidden, row.ids[row.start : positions.stop], 0, totals)


def _add_nll(
    lm: LanguageModel, hidden: torch.Tensor, targets: list[int], num_ends: int, totals: Perplexity
) -> None:
    """Add the negative log-likelihood of target tokens to the sums in `totals`.

    `targets` are M token ids, and `hidden` are the hidden states [M, D] that predict them. The last
    `num_ends` targets are end-of-text tokens, which are added to `end_nats`.
    """
    if not targets:
        return
    ids = torch.tensor(targets, device=hidden.device)
    values, _ = token_log_probabilities(lm.module, hidden, ids, lm.text_tokenizer.vocab_size)
    split = len(targets) - num_ends
    totals.nats -= float(values[:split].sum())
    totals.end_nats -= float(values[split:].sum())
    totals.num_tokens += split
    totals.num_ends += num_ends


def _tokenize(lm: LanguageModel, texts: Iterable[str], totals: Perplexity) -> Iterator[list[int]]:
    """Yield the token ids of each text, and count its words, characters and bytes in `totals`."""
    tokenizer = lm.text_tokenizer
    for text in texts:
        ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
        totals.num_documents += 1
        totals.num_words += len(text.split())
        totals.num_characters += len(text)
        totals.num_unspaced += len(UNSPACED.findall(text))
        totals.num_bytes += len(text.encode())
        totals.num_unknown += 0 if tokenizer.unk_id is None else ids.count(tokenizer.unk_id)
        yield ids


def _resolve_window(lm: LanguageModel, window: int | None) -> int | None:
    """Return the window size to use; None for recurrent and n-gram models, which need no window.

    Raises TriviumError if `window` is less than 2 or exceeds the model's number of positions.
    """
    if window is not None and window < 2:
        raise TriviumError(f"window is {window}, but must be at least 2.")
    if not lm.spec.stacks and lm.spec.family == "decoder-only":
        return None
    limit = lm.spec.max_length
    if window is None:
        return lm.max_length or _DEFAULT_WINDOW
    if limit is not None and window > limit:
        raise TriviumError(f"window is {window}, but this model has {limit} positions.")
    return window


def _divide(total: float, count: int) -> float:
    """Return `total` divided by `count`, or NaN if the count is 0."""
    return total / count if count else math.nan


def _bounded_exp(value: float) -> float:
    """Return exp(value), or infinity instead of an overflow error."""
    return math.exp(value) if value < 709 else math.inf
