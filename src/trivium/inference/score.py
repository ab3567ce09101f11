"""How probable a text is under a model: sums of natural logarithms (nats).

Shape letters: B rows, T tokens, M scored tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.fill_mask import document_ids, vocabulary_log_probabilities
from trivium.inference.generate import end_ids
from trivium.models import LanguageModule
from trivium.nn.positions import check_length
from trivium.text import Tokenizer

Ids = Sequence[int]

_POSITIONS_AT_ONCE = 512  # Bounds the logits in memory: positions x vocabulary.
_ROWS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class TextScore:
    """The tokens of a text and log p of each in nats; None where nothing stands before the first.

    For an encoder these are log p(token | all others), for a decoder log p(token | those before).
    """

    ids: tuple[int, ...]
    log_probabilities: tuple[float | None, ...]

    @property
    def total(self) -> float:
        """The sum over the tokens: log-probability, or pseudo-log-likelihood of an encoder."""
        return math.fsum(value for value in self.log_probabilities if value is not None)

    @property
    def num_tokens(self) -> int:
        """How many tokens the sum is over."""
        return sum(value is not None for value in self.log_probabilities)


def score_texts(
    model: LanguageModule,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    batch_size: int = _ROWS_AT_ONCE,
) -> list[TextScore]:
    """Score many texts, rows of similar length together.

    A decoder predicts the first token from what documents begin with in training, else from the
    end of text before it; with neither it is not counted. The end of the text is not scored. With
    `batch_size` 1 a text's numbers depend on nothing but the text; in larger batches the last
    digits may depend on what it is computed with (`score_continuations` never does).

    Raises:
        SpecError: a text longer than the model's positions, or an encoder-decoder, which scores
            answers to a source: `score_continuations`.
        TokenizerError: an encoder whose tokenizer has no mask token.
        TriviumError: batch_size below 1.
    """
    if batch_size < 1:
        raise TriviumError(f"batch_size is {batch_size}, but must be 1 or more.")
    if model.spec.family == "encoder-decoder":
        raise SpecError(
            "this model has an encoder and a decoder and scores what it writes given what it "
            "reads: say what it reads."
        )
    score = _score_masked if model.spec.family == "encoder-only" else _score_causal
    return score(model, tokenizer, texts, batch_size)


def score_causal(model: LanguageModule, tokenizer: Tokenizer, text: str) -> float:
    """Sum of log p(token | tokens before it) over the tokens of a text; see `score_texts`."""
    return score_texts(model, tokenizer, [text])[0].total


def score_masked(model: LanguageModule, tokenizer: Tokenizer, text: str) -> float:
    """Pseudo-log-likelihood: sum of log p(token | all others), each masked in turn.

    Source: Salazar et al. 2020, equation 1. It is no probability of the text, but ranks texts.
    """
    return score_texts(model, tokenizer, [text])[0].total


def beginning(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the first token of a text is predicted from: as texts begin in training, else an end."""
    return tuple(tokenizer.prefix_ids or sorted(end_ids(tokenizer))[:1])


def needed_mask(tokenizer: Tokenizer) -> int:
    """The id of the mask.

    Raises:
        TokenizerError: the tokenizer has no mask token.
    """
    if tokenizer.mask_id is None:
        raise TokenizerError(
            "this tokenizer has no mask token, which scoring with an encoder needs."
        )
    return tokenizer.mask_id


def token_log_probabilities(
    model: LanguageModule, hidden: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Log p of each target, float64, and whether it is the most probable token, both on the CPU.

    Shape: hidden [M, D], targets int64 [M] -> [M], bool [M].
    """
    values, best = [], []
    for states, wanted in zip(hidden.split(_POSITIONS_AT_ONCE), targets.split(_POSITIONS_AT_ONCE)):
        scores = vocabulary_log_probabilities(model, states, vocab_size)
        values.append(scores.gather(-1, wanted[:, None])[:, 0])
        best.append(scores.argmax(-1) == wanted)
    return torch.cat(values).double().cpu(), torch.cat(best).cpu()


@torch.inference_mode()
def masked_log_probabilities(
    model: LanguageModule,
    rows: Sequence[Ids],
    places: Sequence[Sequence[int]],
    *,
    mask_id: int,
    vocab_size: int,
    batch_size: int = _ROWS_AT_ONCE,
) -> list[tuple[Tensor, Tensor]]:
    """Log p(token | all others of its row) at some places of every row, each masked in turn.

    One pass over a row for each place, `batch_size` of them at a time; as in
    `token_log_probabilities`, with one pair of tensors a row.
    """
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    asked = [(row, place) for row in order for place in places[row]]
    values = {row: torch.empty(len(places[row]), dtype=torch.float64) for row in order}
    best = {row: torch.empty(len(places[row]), dtype=torch.bool) for row in order}
    filled = dict.fromkeys(order, 0)
    for start in range(0, len(asked), batch_size):
        chunk = asked[start : start + batch_size]
        ids, real = padded([rows[row] for row, _ in chunk], model.device)
        lines = torch.arange(len(chunk), device=model.device)
        columns = torch.tensor([place for _, place in chunk], device=model.device)
        targets = ids[lines, columns]
        ids[lines, columns] = mask_id
        hidden = model(ids, attention_mask=real, select=lines * ids.shape[1] + columns)
        found, greedy = token_log_probabilities(model, hidden, targets, vocab_size)
        for number, (row, _) in enumerate(chunk):
            values[row][filled[row]], best[row][filled[row]] = found[number], greedy[number]
            filled[row] += 1
    return [(values[row], best[row]) for row in range(len(rows))]


def padded(rows: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Rows padded on the right, int64 [B, T], and which ids are real; None where all are."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(longest) < lengths[:, None]
    return ids.to(device), None if bool(real.all()) else real.to(device)


@torch.inference_mode()
def _score_causal(
    model: LanguageModule, tokenizer: Tokenizer, texts: Sequence[str], batch_size: int
) -> list[TextScore]:
    before = beginning(tokenizer)
    texts_ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    rows = [[*before, *ids] for ids in texts_ids]
    for row in rows:
        check_length(len(row) - 1, model.spec.max_length)
    found: dict[int, TextScore] = {}
    first = max(len(before), 1)
    for chunk in _similar(rows, batch_size):
        scored = [rows[index] for index in chunk if len(rows[index]) > first]
        values = iter(_next_token(model, scored, first, tokenizer.vocab_size) if scored else ())
        for index in chunk:
            ids = texts_ids[index]
            known = next(values) if len(rows[index]) > first else []
            missing: list[float | None] = [None] * (len(ids) - len(known))
            found[index] = TextScore(tuple(ids), (*missing, *known))
    return [found[index] for index in range(len(texts))]


def _next_token(
    model: LanguageModule, rows: Sequence[Ids], first: int, vocab_size: int
) -> list[list[float]]:
    """Log p of the tokens of each row from `first` on; no token sees the padding after its row."""
    ids, _ = padded([row[:-1] for row in rows], model.device)
    hidden = model(ids)
    states = torch.cat([hidden[i, first - 1 : len(row) - 1] for i, row in enumerate(rows)])
    targets = [index for row in rows for index in row[first:]]
    values, _ = token_log_probabilities(
        model, states, torch.tensor(targets, device=model.device), vocab_size
    )
    return [part.tolist() for part in values.split([len(row) - first for row in rows])]


def _score_masked(
    model: LanguageModule, tokenizer: Tokenizer, texts: Sequence[str], batch_size: int
) -> list[TextScore]:
    mask = needed_mask(tokenizer)
    rows = [document_ids(tokenizer, text) for text in texts]
    for row in rows:
        check_length(len(row), model.spec.max_length)
    first, after = len(tokenizer.prefix_ids), len(tokenizer.suffix_ids)
    places = [range(first, len(row) - after) for row in rows]
    scored = masked_log_probabilities(
        model, rows, places, mask_id=mask, vocab_size=tokenizer.vocab_size, batch_size=batch_size
    )
    return [
        TextScore(tuple(row[first : len(row) - after]), tuple(values.tolist()))
        for row, (values, _) in zip(rows, scored, strict=True)
    ]


def _similar(rows: Sequence[Ids], batch_size: int) -> Iterator[list[int]]:
    """The rows in batches, the longest first."""
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
