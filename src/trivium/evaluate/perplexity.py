"""Perplexity and bits per byte of texts, for decoders, recurrent models and encoders.

Texts are scored in windows of token ids, each token once.
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

# The window if the model does not specify a length.
_DEFAULT_WINDOW = 1024


@dataclass
class Perplexity:
    """The summed log-probabilities of texts, from which perplexity and bits per byte follow.

    A decoder also predicts the end of each text. Ends are counted separately and are included only
    in `loss_with_ends`. Models with different tokenizers can be compared by the perplexity per word
    or character, or by the bits per byte.

    Args:
        pseudo: whether the values are pseudo-perplexities of an encoder, from
            log p(token | all other tokens) (Salazar et al. 2020).
        window: the maximum number of tokens that the model attends to; None: no limit.
        stride: the number of tokens between the starts of consecutive windows.
        nats: the sum of -log p over the tokens of the texts, without ends.
        end_nats: the sum of -log p over the ends of the texts.
        num_tokens: the number of scored tokens, without ends.
        num_ends: the number of scored ends.
        num_unknown: the number of unknown tokens. If there are any, the perplexity is too low.
        num_documents: the number of texts.
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
        """The loss in nats per token, without ends."""
        return _divide(self.nats, self.num_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics and the counts as a dict for JSON.

        The metrics are the loss in nats per token (without and with ends), the perplexity per
        token and per word, and the bits per byte and per character. For texts that are mostly
        Chinese or Japanese, the perplexity is per character instead of per word.

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
    """A window of token ids, of which those from the index `first` on are scored.

    The last `ends` ids mark the end of a text.
    """

    ids: list[int]
    first: int
    ends: int


def perplexity(
    lm: LanguageModel,
    texts: Iterable[str],
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """Compute the perplexity of texts. Every token is scored once, and texts are independent.

    A text longer than the window is split into overlapping windows. Each token is scored in the
    first window that contains it. RNNs and n-gram models read whole texts without a window.

    A decoder predicts the first token from the token that starts a document in training, or else
    from the end-of-text token. If there is neither, the first token is not scored. An encoder
    predicts each token from all other tokens of the window: each token is masked in its own
    forward pass.

    Args:
        lm: the model.
        texts: the texts.
        window: the number of tokens per window; default: the model's number of positions or its
            training length, otherwise 1024.
        stride: the number of tokens between the starts of consecutive windows; default: half of
            the window.
        batch_size: the number of windows per batch. It may change the last digits of the result.
        progress: called after every batch with the number of tokens scored so far.

    Raises:
        SpecError: the model is an encoder-decoder, which assigns no probability to a text alone.
        TriviumError: an invalid window or stride.
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
    scored = (row for ids in _encode(lm, texts, result) for row in rows(lm, ids, window, stride))
    # Many windows are sorted by length before they are batched, so that there is little padding.
    while chunk := list(itertools.islice(scored, 16 * batch_size)):
        chunk.sort(key=lambda row: -len(row.ids))
        for start in range(0, len(chunk), batch_size):
            score(lm, chunk[start : start + batch_size], result)
            if progress:
                progress(result.num_tokens)
    return result


def rolling_log_probability(lm: LanguageModel, text: str) -> float:
    """Return log p(text) in nats for a text of any length, with the windows of the harness.

    The end of the text is not scored. Each window predicts as many tokens as the model has
    positions. The last window has as much context as fits. Encoders, recurrent models and n-gram
    models are scored as in `perplexity`.
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


def iter_windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, first scored index, stop) of windows over `count` tokens.

    Each token is scored in exactly one window.

    >>> list(iter_windows(7, 4, 2))
    [(0, 0, 4), (2, 4, 6), (4, 6, 7)]
    """
    scored = 0
    for start in range(0, count, stride):
        stop = min(start + window, count)
        yield start, scored, stop
        scored = stop
        if stop == count:
            return


def _split_decoder_windows(
    lm: LanguageModel, ids: list[int], window: int | None, stride: int
) -> Iterator[ScoredWindow]:
    """Yield the windows of a decoder for a text between its start and end tokens.

    If `window` is None, there is one window with the whole text.
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
    """Yield the windows of an encoder for a text. Each window has special tokens around it."""
    assert window is not None
    template = lm.source_template
    capacity = window - template.num_special(paired=False)
    if capacity < 1:
        raise TriviumError(
            f"window is {window}: there is no room for text, only for special tokens."
        )
    for start, first, stop in iter_windows(len(ids), capacity, min(stride, capacity)):
        row = [*template.before, *ids[start:stop], *template.after]
        yield ScoredWindow(row, first - start + len(template.before), 0)


@torch.inference_mode()
def _score_causal(lm: LanguageModel, rows: Sequence[ScoredWindow], result: Perplexity) -> None:
    """Add the log-probability of each token given the earlier tokens of its window to the result.

    Padding has no effect, because it is on the right and no token attends to later tokens.
    """
    ids, _ = pad_rows([row.ids[:-1] for row in rows], lm.module.device)
    for row, states in zip(rows, lm.module(ids)):
        _add_nats(
            lm, states[row.first - 1 : len(row.ids) - 1], row.ids[row.first :], row.ends, result
        )


@torch.inference_mode()
def _score_recurrent(lm: LanguageModel, rows: Sequence[ScoredWindow], result: Perplexity) -> None:
    """Add the log-probability of each token given all earlier tokens of its text to the result.

    A text is read in parts of `_DEFAULT_WINDOW` tokens. The recurrent state is carried from one
    part to the next.
    """
    for row in rows:
        cache = lm.module.new_cache(1, len(row.ids))
        for start in range(0, len(row.ids) - 1, _DEFAULT_WINDOW):
            stop = min(start + _DEFAULT_WINDOW, len(row.ids) - 1)
            ids = torch.tensor([row.ids[start:stop]], device=lm.module.device)
            hidden = lm.module(ids, cache=cache)[0]
            first = max(start + 1, row.first)
            ends = max(0, stop + 1 - max(len(row.ids) - row.ends, first))
            _add_nats(lm, hidden[first - 1 - start :], row.ids[first : stop + 1], ends, result)


@torch.inference_mode()
def _score_masked(lm: LanguageModel, rows: Sequence[ScoredWindow], result: Perplexity) -> None:
    """Add the log-probability of each token given all other tokens of its window to the result.

    Each token is masked in its own row of a batch.
    """
    suffix = len(lm.source_template.after)
    for row in rows:
        positions = range(row.first, len(row.ids) - suffix)
        hidden = masked_states(lm, row.ids, positions, None)
        _add_nats(lm, hidden, row.ids[row.first : positions.stop], 0, result)


def _add_nats(
    lm: LanguageModel, hidden: torch.Tensor, targets: list[int], ends: int, result: Perplexity
) -> None:
    """Add -log p of M target tokens, given hidden states [M, D], to the sums of the result.

    The last `ends` targets mark the end of a text and are added to `end_nats`.
    """
    if not targets:
        return
    ids = torch.tensor(targets, device=hidden.device)
    values, _ = token_log_probabilities(lm.module, hidden, ids, lm.text_tokenizer.vocab_size)
    split = len(targets) - ends
    result.nats -= float(values[:split].sum())
    result.end_nats -= float(values[split:].sum())
    result.num_tokens += split
    result.num_ends += ends


def _encode(lm: LanguageModel, texts: Iterable[str], result: Perplexity) -> Iterator[list[int]]:
    """Yield the token ids of every text, and add its words, characters and bytes to the result."""
    tokenizer = lm.text_tokenizer
    for text in texts:
        ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
        result.num_documents += 1
        result.num_words += len(text.split())
        result.num_characters += len(text)
        result.num_unspaced += len(UNSPACED.findall(text))
        result.num_bytes += len(text.encode())
        result.num_unknown += 0 if tokenizer.unk_id is None else ids.count(tokenizer.unk_id)
        yield ids


def _resolve_window(lm: LanguageModel, window: int | None) -> int | None:
    """Return the window to use; None for recurrent and n-gram models, which need no window.

    Raises TriviumError if the given window is less than 2 or more than the model's positions.
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
    """Divide a sum by a count; NaN if the count is 0."""
    return total / count if count else math.nan


def _bounded_exp(value: float) -> float:
    """Return exp(value); infinity instead of an overflow error."""
    return math.exp(value) if value < 709 else math.inf
