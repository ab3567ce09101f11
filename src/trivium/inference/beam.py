"""Beam search: the most probable texts that a model can generate.

Shape letters: B texts, K beams, R = B * K rows of a decode step, C candidates, V vocabulary, P
longest prompt, L new tokens at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from trivium.errors import TriviumError
from trivium.inference.decoding import check_prompt, extend, prefill
from trivium.inference.sampling import forbid_repeated_ngrams
from trivium.inference.sampling_params import check_bounds, option
from trivium.inference.text_model import GenerationRules, TextModel

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text: its new ids without the one that ended it, and its score.

    The score is the sum of log p of the new tokens divided by length**length_penalty; the token
    that ends the text counts.
    """

    ids: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class BeamSearchParams:
    """Options of beam search, with the meaning they have in `transformers`.

    Raises:
        TriviumError: a value outside its bounds.
    """

    num_beams: int = option(4, "texts kept at every step; 1 is greedy", ge=1)
    length_penalty: float = option(
        1.0, "scores are divided by length to this power: above 0 favours long texts"
    )
    early_stopping: bool | Literal["never"] = option(
        False,
        "true: stop at num_beams finished texts; false: when the best unfinished one scores no "
        'better at its present length; "never": when it could not at any length',
    )
    num_return: int = option(1, "finished texts returned per prompt, at most num_beams", ge=1)
    no_repeat_ngram: int = option(0, "no n-gram of this size occurs twice; 0: any may", ge=0)
    min_new_tokens: int = option(0, "tokens before a text may end", ge=0)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_bounds(field.name, value, field.metadata)
        if self.early_stopping not in (True, False, "never"):
            raise TriviumError(
                f'early_stopping is {self.early_stopping!r}, but must be True, False or "never".'
            )
        if self.num_return > self.num_beams:
            raise TriviumError(
                f"num_return is {self.num_return}, but must be at most num_beams, {self.num_beams}."
            )

    def replace(self, **changes: Any) -> BeamSearchParams:
        """The same options with some changed."""
        return dataclasses.replace(self, **changes)


class BeamSearchOptions(TypedDict, total=False):
    """The fields of `BeamSearchParams` as keyword arguments; a test holds the two together."""

    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    num_return: int
    no_repeat_ngram: int
    min_new_tokens: int


def beam_search(
    lm: TextModel,
    prompts: Sequence[Ids],
    params: BeamSearchParams,
    *,
    max_new_tokens: int,
    rules: GenerationRules | None = None,
    batch_tokens: int = 32768,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of every prompt, or outputs for every source, best first.

    A text ends at a stop id, after `max_new_tokens`, or where the model's positions end; it does
    not depend on the prompts beside it.

    Args:
        lm: a model with a decoder.
        prompts: ids a decoder continues, or sources an encoder reads; at least one id each.
        params: how is searched.
        max_new_tokens: tokens to generate at most; those that `decoder_start` forces after its
            first one count, as in `transformers`.
        rules: stop ids, decoder start and so on; None: those of the model.
        batch_tokens: positions of one batch: padded prompts and new tokens, for every beam.
        progress: called after every batch with the prompts done and their number.

    Returns:
        At most `params.num_return` hypotheses per prompt.

    Raises:
        SpecError: a prompt that is empty or longer than the model's positions.
        TriviumError: max_new_tokens below 1, or more beams than the vocabulary has ids.
    """
    rules = rules or lm.generation_rules
    check_bounds("max_new_tokens", max_new_tokens, {"ge": 1})
    if params.num_beams > rules.vocab_size:
        raise TriviumError(
            f"num_beams is {params.num_beams}, but the vocabulary has {rules.vocab_size} ids."
        )
    for prompt in prompts:
        check_prompt(lm.module, prompt, None)
    results: dict[int, list[Hypothesis]] = {}
    for batch in _batches(prompts, max_new_tokens, batch_tokens // params.num_beams):
        search = _Search(lm, [prompts[number] for number in batch], params, rules, max_new_tokens)
        results.update(zip(batch, search.run(), strict=True))
        if progress is not None:
            progress(len(results), len(prompts))
    return [results[number] for number in range(len(prompts))]


def _batches(prompts: Sequence[Ids], more: int, positions: int) -> Iterator[list[int]]:
    """Numbers of prompts of similar lengths, the longest first, at least one per batch."""
    batch: list[int] = []
    for number in sorted(range(len(prompts)), key=lambda number: -len(prompts[number])):
        if batch and (len(batch) + 1) * (len(prompts[batch[0]]) + more) > positions:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


class _Search:
    """One batch: the beams of every unfinished text, and the best finished hypotheses.

    As in `transformers`, of a text's best candidates only the first K may end it, K others go on,
    and the token that ends a text counts towards its length.
    """

    def __init__(
        self,
        lm: TextModel,
        prompts: Sequence[Ids],
        params: BeamSearchParams,
        rules: GenerationRules,
        max_new_tokens: int,
    ) -> None:
        self.params, self.rules, self._module, self._prompts = params, rules, lm.module, prompts
        device, count = lm.module.device, len(prompts)
        decoder_prompts = [rules.decoder_start] * count if rules.decoder_start else prompts
        self._forced = len(rules.decoder_start[1:])
        sizes = torch.tensor([len(prompt) for prompt in decoder_prompts])
        limits = torch.full_like(sizes, max(1, max_new_tokens - self._forced))
        if lm.module.spec.max_length is not None:  # the last token needs no position
            limits = limits.minimum(lm.module.spec.max_length - sizes + 1)
        self._cache = lm.module.new_cache(count * params.num_beams, int((sizes + limits).max()) - 1)
        self._stops = torch.tensor(sorted(rules.stop_ids), dtype=torch.int64, device=device)
        self._banned = torch.tensor(sorted(rules.banned_ids), dtype=torch.int64, device=device)
        # State of the unfinished texts, first axis B.
        self._text = torch.arange(count, device=device)
        self._limits = limits.to(device)
        self._history = _aligned(decoder_prompts, device)[:, None]  # [B, 1, P], then [B, K, P + T]
        self._prompt_width = self._history.shape[2]
        self._scores = torch.zeros(count, 1, device=device)  # sums of log p, then [B, K]
        self._length = 0  # new tokens so far
        finished = (count, params.num_beams)
        longest = int(limits.max())
        self._finished = torch.zeros(*finished, longest, dtype=torch.int64, device=device)
        self._finished_lengths = torch.zeros(finished, dtype=torch.int64, device=device)
        self._finished_scores = torch.full(finished, -torch.inf, device=device)
        self._results: list[list[Hypothesis]] = [[] for _ in prompts]

    @torch.inference_mode()
    def run(self) -> list[list[Hypothesis]]:
        """The hypotheses of every prompt."""
        slots = range(len(self._prompts))
        start = self.rules.decoder_start
        hidden = prefill(self._module, self._cache, slots, self._prompts, start)
        while True:
            texts = len(self._text)
            source, tokens = self._advance(self._module.logits(hidden))
            if not len(tokens):
                return self._results
            target = torch.arange(len(source), device=source.device)
            if not torch.equal(source, target):
                # Beams of one text share their source: only texts that move take it along.
                moves = self._length == 1 or texts != len(self._text)
                self._copy(source, target, memory=moves)
            hidden = extend(self._module, self._cache, tokens[:, None])[:, -1]

    def _copy(self, source: Tensor, target: Tensor, *, memory: bool) -> None:
        if self.rules.decoder_start:
            self._cache.copy(source, target, memory=memory)
        else:
            self._cache.copy(source, target)

    def _advance(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """One step from logits [R, V]: the rows that go on and the tokens they add, int64 [R]."""
        last = self._length + 1 >= self._limits  # [B]
        sums, beam, chosen = self._candidates(self._log_probabilities(logits, last))
        stops = torch.isin(chosen, self._stops)
        ends = stops | last[:, None]
        self._collect(sums, beam, chosen, ends, stops)
        self._length += 1
        best, kept = sums.masked_fill(ends, -torch.inf).topk(self.params.num_beams)
        beam, chosen = beam.gather(1, kept), chosen.gather(1, kept)
        return self._continue(~(self._is_final(best[:, 0]) | last), best, beam, chosen)

    def _log_probabilities(self, logits: Tensor, last: Tensor) -> Tensor:
        """Float32 [R, V] with what is ruled out at minus infinity."""
        scores = logits[:, : self.rules.vocab_size].float().log_softmax(-1)
        free = scores
        if len(self._banned):
            free = free.index_fill(1, self._banned, -torch.inf)
        if self._forced + self._length < self.params.min_new_tokens:
            free = free.index_fill(1, self._stops, -torch.inf)
        if self.params.no_repeat_ngram:
            history = self._history.flatten(0, 1)
            free = forbid_repeated_ngrams(free, history, self.params.no_repeat_ngram)
        if self.rules.forced_end is None:
            return free
        forced = torch.full_like(free, -torch.inf)
        forced[:, self.rules.forced_end] = 0.0
        beams = len(free) // len(last)
        return torch.where(last.repeat_interleave(beams)[:, None], forced, free)

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best C of each text, best first: sums of log p, beams and ids, [B, C] each.

        As many of them do not end the text as there are beams, whatever the others do.
        """
        width = self._scores.shape[1]
        count = (1 + len(self._stops)) * self.params.num_beams
        best, ids = scores.topk(min(count, scores.shape[1]))  # [R, C]
        sums = (best.unflatten(0, (-1, width)) + self._scores[..., None]).flatten(1)
        top, place = sums.topk(min(count, sums.shape[1]))
        return top, place // best.shape[1], ids.view(len(sums), -1).gather(1, place)

    def _collect(
        self, sums: Tensor, beam: Tensor, chosen: Tensor, ends: Tensor, stops: Tensor
    ) -> None:
        """Keep the candidates that end among the best finished hypotheses."""
        first = self.params.num_beams
        ends = ends[:, :first] & sums[:, :first].isfinite()
        if not bool(ends.any()):
            return
        length = self._length + 1
        scores = sums[:, :first] / (self._forced + length) ** self.params.length_penalty
        scores = torch.cat((self._finished_scores, scores.masked_fill(~ends, -torch.inf)), 1)
        self._finished_scores, kept = scores.topk(first)
        lengths = length - stops[:, :first].long()  # the stop id is no part of the text
        self._finished_lengths = torch.cat((self._finished_lengths, lengths), 1).gather(1, kept)
        ids = torch.zeros_like(self._finished[:, :1]).repeat(1, ends.shape[1], 1)
        ids[..., : length - 1] = _rows_of(self._history[..., self._prompt_width :], beam[:, :first])
        ids[..., length - 1] = chosen[:, :first]
        self._finished = _rows_of(torch.cat((self._finished, ids), 1), kept)

    def _is_final(self, best: Tensor) -> Tensor:
        """Bool [B]: no unfinished text can still get among the finished ones."""
        params, worst = self.params, self._finished_scores.amin(1)
        if params.num_beams == 1 or params.early_stopping is True:
            return worst.isfinite() | ~best.isfinite()
        length = torch.full_like(self._limits, self._forced + self._length)
        if params.early_stopping == "never" and params.length_penalty > 0.0:
            length = self._forced + self._limits
        return best / length**params.length_penalty <= worst

    def _continue(
        self, unfinished: Tensor, scores: Tensor, beam: Tensor, chosen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Hand over finished texts: the rows of the others, now the first ones, and their ids."""
        width = self._scores.shape[1]
        first = torch.arange(len(beam), device=beam.device) * width  # row of each text's beam 0
        if not bool(unfinished.all()):
            self._hand_over(~unfinished)
            scores, beam, chosen = scores[unfinished], beam[unfinished], chosen[unfinished]
            first, self._text = first[unfinished], self._text[unfinished]
            self._history, self._limits = self._history[unfinished], self._limits[unfinished]
            self._finished = self._finished[unfinished]
            self._finished_lengths = self._finished_lengths[unfinished]
            self._finished_scores = self._finished_scores[unfinished]
        self._scores = scores
        self._history = torch.cat((_rows_of(self._history, beam), chosen[..., None]), -1)
        return (first[:, None] + beam).flatten(), chosen.flatten()

    def _hand_over(self, which: Tensor) -> None:
        rows = zip(
            self._text[which].tolist(),
            self._finished[which].tolist(),
            self._finished_lengths[which].tolist(),
            self._finished_scores[which].tolist(),
            strict=True,
        )
        for number, texts, lengths, scores in rows:
            hypotheses = [
                Hypothesis(tuple(ids[:length]), score)
                for ids, length, score in zip(texts, lengths, scores, strict=True)
                if score > -torch.inf
            ]
            self._results[number] = hypotheses[: self.params.num_return]


def _aligned(rows: Sequence[Ids], device: torch.device) -> Tensor:
    """Token histories aligned at their ends, int64 [B, P]; -1 where there is no token."""
    longest = max(map(len, rows))
    padded = [[-1] * (longest - len(row)) + list(row) for row in rows]
    return torch.tensor(padded, dtype=torch.int64, device=device)


def _rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows of each text: [B, N, T], int64 [B, M] -> [B, M, T]."""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))
