"""How well a model predicts a text: loss, perplexity, bits per byte.

Shape letters: B windows at a time, T tokens of a window.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trivium.errors import SpecError, TriviumError
from trivium.evaluate.choices import text_tokenizer
from trivium.inference.score import (
    beginning,
    masked_log_probabilities,
    needed_mask,
    padded,
    token_log_probabilities,
)
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule, Transformer
from trivium.text import Tokenizer

Progress = Callable[[int], None]
"""Is told how many documents are done."""

# What tokenizers say where they were not told a length is far beyond this.
_NO_LENGTH = 2**24
# For positions without an end, where nothing says how long the rows were that trained them.
_WINDOW = 1024
# Windows that wait to be sorted by length, so that rows of a batch are of similar length.
_BATCHES_WAITING = 16


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Sums over texts, and the figures that papers report of them.

    Tokens, words (between white space), characters and bytes (UTF-8) are those of the texts. A
    decoder also predicts the end of each text; that is kept apart and counts only where a name
    says so, as one more token and one more word a text. Figures of different tokenizers can be
    compared by word, character and byte, not by token.

    Args:
        nats: -log p summed over the tokens of the texts; of an encoder -log p(token | all others),
            whose exponential is called pseudo-perplexity (Salazar et al. 2020).
        end_nats: the same over the ends of the texts.
        num_ends: ends that were predicted; 0 for encoders and where a tokenizer has no end.
        num_unknown: tokens that stand for what the vocabulary cannot write; where there are some,
            the figures are too good.
        window: tokens a model saw at most; None: all of a text.
        stride: how far a window moved on.
    """

    pseudo: bool
    nats: float
    num_tokens: int
    num_documents: int
    num_words: int
    num_characters: int
    num_bytes: int
    end_nats: float
    num_ends: int
    num_unknown: int
    window: int | None
    stride: int | None

    @property
    def loss(self) -> float:
        """Nats a token."""
        return _ratio(self.nats, self.num_tokens)

    @property
    def loss_with_ends(self) -> float:
        """Nats a token, ends of texts included, as training counts them."""
        return _ratio(self.nats + self.end_nats, self.num_tokens + self.num_ends)

    @property
    def per_token(self) -> float:
        """exp(nats a token)."""
        return _exponential(self.loss)

    @property
    def per_word(self) -> float:
        """exp(nats a word), which splitting words into tokens leaves as it is."""
        return _exponential(_ratio(self.nats, self.num_words))

    @property
    def per_word_with_ends(self) -> float:
        """exp(nats a word), every end one more word, as word-level models count sentence ends."""
        return _exponential(_ratio(self.nats + self.end_nats, self.num_words + self.num_ends))

    @property
    def bits_per_byte(self) -> float:
        """Bits a byte of UTF-8: what a compressor with this model would need."""
        return _ratio(self.nats / math.log(2), self.num_bytes)

    @property
    def bits_per_character(self) -> float:
        """Bits a character."""
        return _ratio(self.nats / math.log(2), self.num_characters)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        kind = "pseudo_perplexity" if self.pseudo else "perplexity"
        found: dict[str, Any] = {
            "loss": self.loss,
            f"{kind}_per_token": self.per_token,
            f"{kind}_per_word": self.per_word,
            "bits_per_byte": self.bits_per_byte,
            "bits_per_character": self.bits_per_character,
        }
        if self.num_ends:
            found["loss_with_ends"] = self.loss_with_ends
            found[f"{kind}_per_word_with_ends"] = self.per_word_with_ends
        counts = ("tokens", "documents", "words", "characters", "bytes", "ends", "unknown")
        found |= {f"num_{name}": getattr(self, f"num_{name}") for name in counts}
        return {**found, "window": self.window, "stride": self.stride}


class Window(NamedTuple):
    """Tokens `start` to `stop` of a text are seen together; those from `first` on are scored."""

    start: int
    first: int
    stop: int


def perplexity(
    lm: LanguageModel,
    texts: Iterable[str],
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> Perplexity:
    """Score every token of some texts once.

    A text longer than the window is read by one that moves on by `stride`: each token is scored
    in the first window that holds it, so it is given at least window - stride tokens before it
    (all there are, in the first window). A recurrent or n-gram model reads on without a window. A
    decoder predicts the first token from what documents begin with in training, else from the end
    of text; with neither it is not scored. An encoder predicts each token from all others of its
    window, masked in turn: one pass a token.

    Args:
        lm: a decoder, an encoder with a head over the vocabulary, or a recurrent or n-gram model.
        texts: each is a document of its own.
        window: tokens seen together, with those that begin and end a text; None: as many as the
            model has positions or its settings say it was trained with, else 1024.
        stride: tokens a window moves on by; None: half of the window.
        batch_size: windows at a time; more can change the last digits.
        progress: told after every text.

    Raises:
        SpecError: an encoder-decoder, which predicts an answer to a source and no text.
        TriviumError: a window or stride that is impossible.
    """
    tokenizer = text_tokenizer(lm)
    if lm.spec.family == "encoder-decoder":
        raise SpecError(
            "this model has an encoder and a decoder: it predicts an answer to what it reads, and "
            "has no perplexity of a text alone. Score answers with --given, or ask it with "
            "`trivium prompt`."
        )
    window = _window(lm, window)
    stride = max(1, (window or _WINDOW) // 2) if stride is None else stride
    if window is not None and not 1 <= stride < window:
        raise TriviumError(
            f"stride is {stride}, but must be 1 to {window - 1}, less than the window of {window}."
        )
    scorer = _Masked if lm.spec.family == "encoder-only" else _Causal
    totals = scorer(lm.module, tokenizer, window, stride, batch_size)
    counts = [0, 0, 0, 0, 0]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        totals.add(ids)
        unknown = 0 if tokenizer.unk_id is None else ids.count(tokenizer.unk_id)
        new = (1, len(text.split()), len(text), len(text.encode()), unknown)
        counts = [old + more for old, more in zip(counts, new, strict=True)]
        if progress:
            progress(counts[0])
    totals.finish()
    return Perplexity(
        pseudo=lm.spec.family == "encoder-only",
        nats=-math.fsum(totals.values),
        num_tokens=totals.count,
        num_documents=counts[0],
        num_words=counts[1],
        num_characters=counts[2],
        num_bytes=counts[3],
        end_nats=-math.fsum(totals.end_values),
        num_ends=totals.end_count,
        num_unknown=counts[4],
        window=window,
        stride=None if window is None else stride,
    )


def strided_windows(count: int, window: int, stride: int) -> Iterator[Window]:
    """Windows over `count` tokens, each token scored in the first that holds it.

    >>> [tuple(window) for window in strided_windows(7, 4, 2)]
    [(0, 0, 4), (2, 4, 6), (4, 6, 7)]
    """
    scored = 0
    for start in range(0, count, stride):
        stop = min(start + window, count)
        yield Window(start, scored, stop)
        scored = stop
        if stop == count:
            return


def rolling_windows(count: int, positions: int) -> Iterator[Window]:
    """Windows that predict `positions` tokens each, the last with as much before it as fits.

    The last token of a window is not read, so it may be one beyond the model's positions. This is
    the rule of lm-evaluation-harness.

    >>> [tuple(window) for window in rolling_windows(11, 4)]
    [(0, 0, 5), (4, 5, 9), (6, 9, 11)]
    """
    scored = min(count, positions + 1)
    yield Window(0, 0, scored)
    while scored < count:
        stop = min(scored + positions, count)
        yield Window(stop - positions - 1, scored, stop)
        scored = stop


def rolling_log_probability(lm: LanguageModel, text: str) -> float:
    """log p of a text of any length in nats, by `rolling_windows`; its end is not scored.

    An encoder and a model without positions score it as `perplexity` does.
    """
    limit = _window(lm, None)
    if lm.spec.family != "decoder-only" or limit is None:
        return -perplexity(lm, [text], batch_size=1).nats
    tokenizer = text_tokenizer(lm)
    before = beginning(tokenizer)
    whole = [*before, *tokenizer.encode(text, add_special_tokens=False).ids]
    totals = _Causal(lm.module, tokenizer, limit, limit, 1)
    totals.add_windows(whole, rolling_windows(len(whole), limit), max(1, len(before)), 0)
    totals.finish()
    return math.fsum(totals.values)


def _window(lm: LanguageModel, asked: int | None) -> int | None:
    """The window to use; None for a model that reads on without one."""
    if asked is not None and asked < 2:
        raise TriviumError(f"window is {asked}, but must be 2 or more.")
    if not isinstance(lm.module, Transformer) and lm.spec.family == "decoder-only":
        return None
    limit = lm.spec.max_length
    if asked is not None:
        if limit is not None and asked > limit:
            raise TriviumError(f"window is {asked}, but this model has {limit} positions.")
        return asked
    told = (limit, lm.max_length, lm.settings.config.get("max_position_embeddings"))
    usable = (length for length in told if isinstance(length, int) and 1 < length < _NO_LENGTH)
    return min(usable, default=_WINDOW)


class _Totals(ABC):
    """Sums over the windows of texts, which are scored a batch at a time."""

    def __init__(
        self,
        model: LanguageModule,
        tokenizer: Tokenizer,
        window: int | None,
        stride: int,
        batch_size: int,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.window, self.stride, self.batch_size = window, stride, batch_size
        self.values: list[float] = []
        self.end_values: list[float] = []
        self.count = self.end_count = 0
        self.waiting: list[tuple[list[int], int, int]] = []

    @abstractmethod
    def add(self, ids: Sequence[int]) -> None:
        """Take the ids of one text."""

    @abstractmethod
    def score(self, batch: Sequence[tuple[list[int], int, int]]) -> None:
        """Score rows of ids from their `first` token on, of which the last `ends` end a text."""

    def wait(self, row: list[int], first: int, ends: int) -> None:
        """Keep a row until there are enough of them."""
        self.waiting.append((row, first, ends))
        if len(self.waiting) >= self.batch_size * _BATCHES_WAITING:
            self.finish()

    def finish(self) -> None:
        """Score what waits, rows of similar length together."""
        rows = sorted(self.waiting, key=lambda row: -len(row[0]))
        self.waiting = []
        for start in range(0, len(rows), self.batch_size):
            self.score(rows[start : start + self.batch_size])

    def count_in(self, values: Tensor, ends: int) -> None:
        """Add log-probabilities, of which the last `ends` are of the end of a text."""
        text = values[: len(values) - ends]
        self.values.append(math.fsum(text.tolist()))
        self.end_values.append(math.fsum(values[len(values) - ends :].tolist()))
        self.count += len(text)
        self.end_count += ends


class _Causal(_Totals):
    """Each token given those before it in its window; rows hold the targets shifted by one."""

    def add(self, ids: Sequence[int]) -> None:
        before, after = beginning(self.tokenizer), self.tokenizer.suffix_ids
        whole, unscored = [*before, *ids, *after], max(1, len(before))
        if self.window is None and len(whole) > _WINDOW:
            self._read_on(whole, unscored, len(after))
            return
        windows = strided_windows(len(whole), self.window or len(whole), self.stride)
        self.add_windows(whole, windows, unscored, len(after))

    def add_windows(
        self, whole: list[int], windows: Iterable[Window], unscored: int, num_ends: int
    ) -> None:
        """Take the windows of one text, which begins with `unscored` ids and ends with others."""
        for start, first, stop in windows:
            first = max(first, unscored)
            if first < stop:
                ends = max(0, min(stop - first, stop - (len(whole) - num_ends)))
                self.wait(whole[start:stop], first - start, ends)

    @torch.inference_mode()
    def score(self, batch: Sequence[tuple[list[int], int, int]]) -> None:
        device = self.model.device
        ids, _ = padded([row[:-1] for row, _, _ in batch], device)
        hidden = self.model(ids)  # no token sees the padding after its row
        states = [hidden[i, first - 1 : len(row) - 1] for i, (row, first, _) in enumerate(batch)]
        targets = [index for row, first, _ in batch for index in row[first:]]
        values, _ = token_log_probabilities(
            self.model,
            torch.cat(states),
            torch.tensor(targets, device=device),
            self.tokenizer.vocab_size,
        )
        for part, (_, _, ends) in zip(values.split(list(map(len, states))), batch, strict=True):
            self.count_in(part, ends)

    @torch.inference_mode()
    def _read_on(self, ids: list[int], unscored: int, num_ends: int) -> None:
        """A model whose state goes on: a text of any length, a piece at a time."""
        device = self.model.device
        read: Callable[..., Tensor] = self.model  # every model takes the kind of cache it makes
        cache = self.model.new_cache(1, len(ids))
        for start in range(0, len(ids) - 1, _WINDOW):
            stop = min(start + _WINDOW, len(ids) - 1)
            hidden = read(torch.tensor([ids[start:stop]], device=device), cache=cache)[0]
            first = max(start + 1, unscored)
            targets = torch.tensor(ids[first : stop + 1], device=device)
            values, _ = token_log_probabilities(
                self.model, hidden[first - 1 - start :], targets, self.tokenizer.vocab_size
            )
            self.count_in(values, max(0, min(len(values), stop + 1 - (len(ids) - num_ends))))


class _Masked(_Totals):
    """Each token given all others of its window."""

    def add(self, ids: Sequence[int]) -> None:
        prefix, suffix = self.tokenizer.prefix_ids, self.tokenizer.suffix_ids
        assert self.window is not None
        content = self.window - len(prefix) - len(suffix)
        if content < 1:
            raise TriviumError(f"window is {self.window}, which leaves no room for text.")
        stride = min(self.stride, content)
        for start, first, stop in strided_windows(len(ids), content, stride):
            row = [*prefix, *ids[start:stop], *suffix]
            self.wait(row, first - start + len(prefix), 0)

    def score(self, batch: Sequence[tuple[list[int], int, int]]) -> None:
        suffix = len(self.tokenizer.suffix_ids)
        scored = masked_log_probabilities(
            self.model,
            [row for row, _, _ in batch],
            [range(first, len(row) - suffix) for row, first, _ in batch],
            mask_id=needed_mask(self.tokenizer),
            vocab_size=self.tokenizer.vocab_size,
        )
        for values, _ in scored:
            self.count_in(values, 0)


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan


def _exponential(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf
