"""Perplexity and bits per byte of texts, one function for each family of models.

Shape letters: B windows, T tokens of a window.
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

# Where nothing says how long the training rows were.
_WINDOW = 1024


@dataclass
class Perplexity:
    """Sums over texts, and the figures that papers report.

    Tokens, words (separated by white space), characters and bytes (UTF-8) are those of the texts.
    The end of each text, which a decoder predicts too, is kept apart and counts only in
    `loss_with_ends`. Figures of different tokenizers compare by word, character and byte.

    Args:
        pseudo: of an encoder, -log p(token | all others): pseudo-perplexity (Salazar et al. 2020).
        window: tokens a model attends to at most; None: all before a token.
        stride: tokens a window moves on by.
        nats: -log p summed over the tokens of the texts; `end_nats` over their ends.
        num_unknown: tokens outside the vocabulary; figures are too good where there are some.
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
        """Nats per token."""
        return _ratio(self.nats, self.num_tokens)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: loss in nats per token, without and with ends of texts; perplexity; bits.

        Perplexity is per token, and per word or, of mostly Chinese or Japanese, per character.

        Raises DataError where no token was scored.
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
            f"{kind}_per_token": _exponential(self.loss),
            f"{kind}_per_{unit}": _exponential(_ratio(self.nats, count)),
            "bits_per_byte": _ratio(self.nats / math.log(2), self.num_bytes),
            "bits_per_character": _ratio(self.nats / math.log(2), self.num_characters),
        }
        if self.num_ends:
            total, count = self.nats + self.end_nats, self.num_tokens + self.num_ends
            figures["loss_with_ends"] = _ratio(total, count)
        names = ("documents", "tokens", "words", "characters", "bytes", "ends", "unknown")
        numbers = {f"num_{name}": getattr(self, f"num_{name}") for name in names}
        if unit == "character":
            del numbers["num_words"]
        return figures | numbers


class ScoredRow(NamedTuple):
    """Token ids of a window; those from `first` on are scored, the last `ends` end a text."""

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
    """Score every token of some texts once; each text is a document of its own.

    A text longer than the window is read in windows that move on by `stride`: each token is scored
    in the first window that holds it. An RNN or n-gram model reads on without a window. A decoder
    predicts the first token from what documents begin with in training, else from the end of text;
    with neither it is not scored. An encoder predicts each token from all others of its window,
    masked in turn: one forward pass per token.

    Args:
        window: tokens of a window; default: the model's positions or training length, else 1024.
        stride: tokens a window moves on by; default: half of the window.
        batch_size: windows of a batch; another one may change the last digits.
        progress: called with the number of tokens that are scored, after every batch.

    Raises:
        SpecError: an encoder-decoder, which has no probability of a text alone.
        TriviumError: a window or stride that is impossible.
    """
    family = lm.spec.family
    if family == "encoder-decoder":
        raise SpecError(
            "this model is an encoder-decoder: it predicts an output given an input, and has no "
            "perplexity of a text alone. Evaluate it on pairs, or with few-shot prompts."
        )
    window = _window(lm, window)
    stride = max(1, (window or _WINDOW) // 2) if stride is None else stride
    if window is not None and not 1 <= stride < window:
        raise TriviumError(
            f"stride is {stride}, but must be at least 1 and less than the window of {window}."
        )
    result = Perplexity(family == "encoder-only", window, None if window is None else stride)
    rows, score = _causal_rows, _score_causal
    if result.pseudo:  # a window is a batch of its own: every token masked in turn
        rows, score, batch_size = _masked_rows, _score_masked, 1
    elif window is None:
        score = _score_recurrent
    scored = (row for ids in _counted(lm, texts, result) for row in rows(lm, ids, window, stride))
    # Batches are made of many rows sorted by length, so that they hold little padding.
    while some := list(itertools.islice(scored, 16 * batch_size)):
        some.sort(key=lambda row: -len(row.ids))
        for start in range(0, len(some), batch_size):
            score(lm, some[start : start + batch_size], result)
            if progress:
                progress(result.num_tokens)
    return result


def rolling_log_probability(lm: LanguageModel, text: str) -> float:
    """log p of a text of any length in nats, its end not scored, in the harness's windows.

    Each window predicts as many tokens as the model has positions; the last one has all the
    context that fits. Models without positions, and encoders, score as in `perplexity`.
    """
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    size = _window(lm, None)
    if lm.spec.family != "decoder-only" or size is None:
        return -perplexity(lm, [text], batch_size=1).nats
    ids = lm.text_tokenizer.encode(text, add_special_tokens=False).ids
    before, *ids = [*bos_or_eos_ids(lm.text_tokenizer), *ids] or [0]
    result = Perplexity()
    windows = get_rolling_token_windows(ids, before, max_seq_len=size, context_len=1)
    for context, continuation in map(make_disjoint_window, windows):
        row = ScoredRow([*context, *continuation], len(context), 0)
        _score_causal(lm, [row], result)
    return -result.nats


def strided_windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(start, first scored, stop) of windows over `count` tokens, each token scored once.

    >>> list(strided_windows(7, 4, 2))
    [(0, 0, 4), (2, 4, 6), (4, 6, 7)]
    """
    scored = 0
    for start in range(0, count, stride):
        stop = min(start + window, count)
        yield start, scored, stop
        scored = stop
        if stop == count:
            return


def _causal_rows(
    lm: LanguageModel, ids: list[int], window: int | None, stride: int
) -> Iterator[ScoredRow]:
    """The windows of a text between what begins and what ends it; one without a window."""
    before, after = bos_or_eos_ids(lm.text_tokenizer), lm.text_tokenizer.suffix_ids
    whole = [*before, *ids, *after]
    unscored, end = max(1, len(before)), len(whole) - len(after)
    for start, first, stop in strided_windows(len(whole), window or len(whole), stride):
        first = max(first, unscored)
        if first < stop:
            yield ScoredRow(whole[start:stop], first - start, max(0, stop - max(end, first)))


def _masked_rows(
    lm: LanguageModel, ids: list[int], window: int | None, stride: int
) -> Iterator[ScoredRow]:
    """The windows of an encoder, each between the special tokens around a text."""
    assert window is not None
    template = lm.source_template
    capacity = window - template.num_special(paired=False)
    if capacity < 1:
        raise TriviumError(f"window is {window}: it has no room for text beside special tokens.")
    for start, first, stop in strided_windows(len(ids), capacity, min(stride, capacity)):
        row = [*template.before, *ids[start:stop], *template.after]
        yield ScoredRow(row, first - start + len(template.before), 0)


@torch.inference_mode()
def _score_causal(lm: LanguageModel, rows: Sequence[ScoredRow], result: Perplexity) -> None:
    """Each token given those before it in its window; no token attends to padding after it."""
    ids, _ = pad_rows([row.ids[:-1] for row in rows], lm.module.device)
    for row, states in zip(rows, lm.module(ids)):
        _add(lm, states[row.first - 1 : len(row.ids) - 1], row.ids[row.first :], row.ends, result)


@torch.inference_mode()
def _score_recurrent(lm: LanguageModel, rows: Sequence[ScoredRow], result: Perplexity) -> None:
    """Each token given all before it: the state is carried from one part of a text to the next."""
    for row in rows:
        cache = lm.module.new_cache(1, len(row.ids))
        for start in range(0, len(row.ids) - 1, _WINDOW):
            stop = min(start + _WINDOW, len(row.ids) - 1)
            ids = torch.tensor([row.ids[start:stop]], device=lm.module.device)
            hidden = lm.module(ids, cache=cache)[0]
            first = max(start + 1, row.first)
            ends = max(0, stop + 1 - max(len(row.ids) - row.ends, first))
            _add(lm, hidden[first - 1 - start :], row.ids[first : stop + 1], ends, result)


@torch.inference_mode()
def _score_masked(lm: LanguageModel, rows: Sequence[ScoredRow], result: Perplexity) -> None:
    """Each token given all others of its window, masked in turn."""
    suffix = len(lm.source_template.after)
    for row in rows:
        positions = range(row.first, len(row.ids) - suffix)
        hidden = masked_states(lm, row.ids, positions, None)
        _add(lm, hidden, row.ids[row.first : positions.stop], 0, result)


def _add(
    lm: LanguageModel, hidden: torch.Tensor, targets: list[int], ends: int, result: Perplexity
) -> None:
    """Add the nats of targets [M] given their hidden states [M, D]; the last are ends of a text."""
    if not targets:
        return
    ids = torch.tensor(targets, device=hidden.device)
    values, _ = token_log_probabilities(lm.module, hidden, ids, lm.text_tokenizer.vocab_size)
    split = len(targets) - ends
    result.nats -= float(values[:split].sum())
    result.end_nats -= float(values[split:].sum())
    result.num_tokens += split
    result.num_ends += ends


def _counted(lm: LanguageModel, texts: Iterable[str], result: Perplexity) -> Iterator[list[int]]:
    """The token ids of every text, whose units are counted on the way."""
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


def _window(lm: LanguageModel, window: int | None) -> int | None:
    """The window to use; None for a model that reads on without one."""
    if window is not None and window < 2:
        raise TriviumError(f"window is {window}, but must be at least 2.")
    if not lm.spec.stacks and lm.spec.family == "decoder-only":
        return None
    limit = lm.spec.max_length
    if window is None:
        return lm.max_length or _WINDOW
    if limit is not None and window > limit:
        raise TriviumError(f"window is {window}, but this model has {limit} positions.")
    return window


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan


def _exponential(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf
