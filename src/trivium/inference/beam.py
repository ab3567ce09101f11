"""Beam search: the most probable texts that a model can write, and many texts fast.

Shape letters: B texts, K beams, R = B * K rows of the model, C candidates, V vocabulary, P ids that
every text began with, L new tokens at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trivium.errors import TriviumError
from trivium.inference.decoding import Decoding, check_prompts
from trivium.inference.sampling import forbid_repetition, force, largest
from trivium.models import LanguageModule


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A text that was found: its new ids, without the one that ended it, and its score.

    The score is the sum of log p of the new tokens over length**length_penalty; the end counts.
    """

    ids: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class Beams:
    """How texts are searched for; the meaning of each is that of `transformers`.

    Args:
        num_beams: texts that are kept at every step; 1 is greedy.
        length_penalty: above 0 long texts gain, below 0 short ones.
        early_stopping: True ends as soon as there are `num_beams` texts that have ended; False
            when the best one that goes on scores, at its present length, no better than they;
            "never" when it could score no better at any length.
        num_return: the best texts of each prompt that are given back.
        no_repeat_ngram: no text has so many tokens in a row twice, prompt included; 0: it may.
        min_new_tokens: tokens before a text may end.

    Raises:
        TriviumError: a number outside its range.
    """

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return: int = 1
    no_repeat_ngram: int = 0
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise TriviumError(f"num_beams is {self.num_beams}, but must be 1 or more.")
        if self.early_stopping not in (True, False, "never"):
            raise TriviumError(
                f'early_stopping is {self.early_stopping!r}, but must be True, False or "never".'
            )
        if not 1 <= self.num_return <= self.num_beams:
            raise TriviumError(
                f"num_return is {self.num_return}, but must be 1 to num_beams, {self.num_beams}."
            )
        for name in ("no_repeat_ngram", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise TriviumError(f"{name} is {getattr(self, name)}, but must be 0 or more.")


def decode_all(
    model: LanguageModule,
    prompts: Sequence[Sequence[int]],
    *,
    beams: Beams,
    max_new_tokens: int,
    batch_tokens: int = 4096,
    stop_ids: Collection[int] = (),
    vocab_size: int | None = None,
    decoder_start: Sequence[int] = (),
    banned_ids: Collection[int] = (),
    forced_bos_id: int | None = None,
    forced_eos_id: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """`beam_search` for any number of prompts, in batches of similar lengths, the longest first.

    The order is that of the prompts. What is asked twice is searched for once.

    Args:
        model: with a decoder, in evaluation mode.
        prompts: sources of an encoder-decoder, or what a decoder continues.
        beams: how texts are searched for.
        max_new_tokens: tokens to add at most.
        batch_tokens: tokens of the prompts in one batch, padding included, once for every beam.
        stop_ids: ids that end a text.
        vocab_size: ids from here on stand for nothing (a padded matrix) and are never chosen.
        decoder_start: ids every answer of an encoder-decoder begins with.
        banned_ids: ids that are never chosen.
        forced_bos_id: what every answer begins with after `decoder_start`.
        forced_eos_id: what is chosen at the last of `max_new_tokens`.
        progress: called after every batch with the prompts done and all there are.

    Raises:
        SpecError, TriviumError: as `beam_search`; batch_tokens below 1.
    """
    if batch_tokens < 1:
        raise TriviumError(f"batch_tokens is {batch_tokens}, but must be 1 or more.")
    check_prompts(model, prompts, decoder_start, max_new_tokens)
    places: dict[tuple[int, ...], list[int]] = {}
    for place, prompt in enumerate(prompts):
        places.setdefault(tuple(prompt), []).append(place)
    limit = None if decoder_start else model.spec.max_length
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    done = 0
    for batch in _batches(places, batch_tokens // beams.num_beams, limit, max_new_tokens):
        answers = beam_search(
            model,
            batch,
            beams=beams,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            vocab_size=vocab_size,
            decoder_start=decoder_start,
            banned_ids=banned_ids,
            forced_bos_id=forced_bos_id,
            forced_eos_id=forced_eos_id,
        )
        for prompt, answer in zip(batch, answers, strict=True):
            for place in places[prompt]:
                found[place] = list(answer)
                done += 1
        if progress is not None:
            progress(done, len(prompts))
    return found


def beam_search(
    model: LanguageModule,
    prompts: Sequence[Sequence[int]],
    *,
    beams: Beams,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    vocab_size: int | None = None,
    decoder_start: Sequence[int] = (),
    banned_ids: Collection[int] = (),
    forced_bos_id: int | None = None,
    forced_eos_id: int | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of every prompt, or answers to every source, best first.

    All prompts are one batch, and each text comes out as it would alone; what is finished leaves
    the batch. A text ends with an id of `stop_ids`, after `max_new_tokens`, or where the model's
    positions end.

    Args:
        model: with a decoder, in evaluation mode.
        prompts: ids, at least one each; with an encoder, what it reads.
        beams: how texts are searched for.
        max_new_tokens: tokens to add at most, a forced first one included.
        stop_ids: ids that end a text.
        vocab_size: ids from here on stand for nothing (a padded matrix) and are never chosen.
        decoder_start: ids every answer of an encoder-decoder begins with; not part of the answer.
        banned_ids: ids that are never chosen, such as Marian's padding.
        forced_bos_id: what every answer of an encoder-decoder begins with after `decoder_start`;
            not part of the answer either, but of its length, as in `transformers`.
        forced_eos_id: what is chosen at the last of `max_new_tokens`, as BART's settings say.

    Returns:
        For every prompt `beams.num_return` hypotheses.

    Raises:
        SpecError: a prompt that is empty, or longer than the model's positions; no decoder_start
            for an encoder-decoder, or one for another model.
        TriviumError: max_new_tokens below 1, or more beams than the vocabulary has ids.
    """
    check_prompts(model, prompts, decoder_start, max_new_tokens)
    if not prompts:
        return []
    forced = () if forced_bos_id is None or not decoder_start else (forced_bos_id,)
    if max_new_tokens <= len(forced):
        return [[Hypothesis((), 0.0)] for _ in prompts]
    texts = Decoding(
        model,
        prompts,
        max_new_tokens=max_new_tokens - len(forced),
        vocab_size=vocab_size,
        decoder_start=(*decoder_start, *forced),
    )
    if beams.num_beams > texts.vocab_size:
        raise TriviumError(
            f"num_beams is {beams.num_beams}, but there are only {texts.vocab_size} ids."
        )
    rules = _Rules(beams, stop_ids, banned_ids, forced_eos_id, model.device)
    with torch.inference_mode():
        search = _Search(beams, rules, texts, begun=len(forced))
        logits = texts.begin()
        while search.advance(logits):
            texts.reorder(search.rows)
            logits = texts.step(search.last)
    return search.found


def _batches(
    prompts: Collection[tuple[int, ...]], tokens: int, limit: int | None, max_new_tokens: int
) -> Iterator[list[tuple[int, ...]]]:
    """Prompts of similar lengths, the longest first, at least one in a batch.

    Where positions up to `limit` may not be enough, only those of one length: padding counts there.
    """
    batch: list[tuple[int, ...]] = []
    for prompt in sorted(prompts, key=len, reverse=True):
        if batch:
            longest = len(batch[0])
            scarce = limit is not None and longest + max_new_tokens - 1 > limit
            other = scarce and len(prompt) != longest
            if other or (len(batch) + 1) * longest > tokens:
                yield batch
                batch = []
        batch.append(prompt)
    if batch:
        yield batch


class _Rules:
    """What may come next, whatever the model says."""

    def __init__(
        self,
        beams: Beams,
        stop_ids: Collection[int],
        banned_ids: Collection[int],
        forced_eos_id: int | None,
        device: torch.device,
    ) -> None:
        self.beams, self.forced_eos_id = beams, forced_eos_id
        self.stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=device)
        self.banned = torch.tensor(sorted(banned_ids), dtype=torch.int64, device=device)

    def apply(
        self, scores: Tensor, *, texts: Tensor, left: Tensor, length: int, last: bool
    ) -> Tensor:
        """Log-probabilities [R, V] with what is ruled out at minus infinity, in place.

        Args:
            scores: [R, V].
            texts: int64 [R, P + T], the ids so far.
            left: [R, 1], padding before each.
            length: new tokens so far.
            last: no token comes after the next.
        """
        if last and self.forced_eos_id is not None:
            return force(scores, self.forced_eos_id)
        if len(self.banned):
            scores.index_fill_(1, self.banned, -torch.inf)
        if length < self.beams.min_new_tokens:
            scores.index_fill_(1, self.stops, -torch.inf)
        if self.beams.no_repeat_ngram:
            forbid_repetition(scores, texts, self.beams.no_repeat_ngram, left)
        return scores


class _Search:
    """The beams of every text that is not finished, and the best texts that have ended.

    Conventions, which `transformers` has too: of the best candidates of a text only the first K may
    end it; as many of the others as there are beams go on. A text that ends has its length with the
    end. What was found is final when `Beams.early_stopping` says so.

    Args:
        beams: how texts are searched for.
        rules: what may come next.
        texts: what the model needs; here it is only looked at.
        begun: tokens before the first that count as new.
    """

    def __init__(self, beams: Beams, rules: _Rules, texts: Decoding, *, begun: int) -> None:
        self.beams, self.rules, self._texts = beams, rules, texts
        count, device = len(texts.input_ids), texts.input_ids.device
        self.found: list[list[Hypothesis]] = [[] for _ in range(count)]
        self._places = torch.arange(count, device=device)  # [B] of the texts that are searched for
        self._begun, self._most = begun, texts.most_new_tokens
        # Prompts are looked at only for what they would repeat.
        prompts = texts.input_ids if beams.no_repeat_ngram else texts.input_ids[:, :0]
        self._width = prompts.shape[1]
        self._ids = prompts[:, None]  # [B, 1, P], then [B, K, P + T]
        self._scores = torch.zeros(count, 1, device=device)  # sums of log p: [B, 1], then [B, K]
        self._length = 0
        ended = (count, beams.num_beams)
        self._ended = torch.zeros(*ended, self._most, dtype=torch.int64, device=device)
        self._ended_lengths = torch.zeros(ended, dtype=torch.int64, device=device)
        self._ended_scores = torch.full(ended, -torch.inf, device=device)
        self.rows = self.last = self._places

    def advance(self, logits: Tensor) -> bool:
        """Take one step from logits [R, V]; False when all is found.

        Else `rows` and `last`, int64 [R], are the rows of before that go on and the ids they add.
        """
        last = self._length + 1 == self._most
        scores = self.rules.apply(
            logits.float().log_softmax(-1),
            texts=self._ids.flatten(0, 1),
            left=self._texts.left,
            length=self._begun + self._length,
            last=last,
        )
        sums, beam, chosen = self._candidates(scores)
        stops = torch.isin(chosen, self.rules.stops)
        ends = torch.ones_like(stops) if last else stops
        self._collect(sums, beam, chosen, ends, stops)
        self._length += 1
        best, kept = sums.masked_fill(ends, -torch.inf).topk(self.beams.num_beams)
        beam, chosen = beam.gather(1, kept), chosen.gather(1, kept)
        going = ~self._finished(best[:, 0])
        if last:
            going = torch.zeros_like(going)
        return self._go_on(going, best, beam, chosen)

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best C of each text, best first: sums of log p, beams and ids, [B, C] each.

        There are as many that do not end as beams, even if every beam's best are all ends.
        """
        width = self._scores.shape[1]
        count = (1 + len(self.rules.stops)) * self.beams.num_beams
        best, ids = largest(scores, min(count, scores.shape[1]))  # [R, C]
        each = best.shape[1]
        sums = (best.unflatten(0, (-1, width)) + self._scores[..., None]).flatten(1)
        best, place = sums.topk(min(count, sums.shape[1]))
        return best, place // each, ids.view(len(sums), -1).gather(1, place)

    def _collect(
        self, sums: Tensor, beam: Tensor, chosen: Tensor, ends: Tensor, stops: Tensor
    ) -> None:
        """Keep the candidates that end among the best texts that have ended."""
        first = self.beams.num_beams
        ends = ends[:, :first] & sums[:, :first].isfinite()
        if not bool(ends.any()):
            return
        length = self._length + 1
        scores = sums[:, :first] / (self._begun + length) ** self.beams.length_penalty
        scores = torch.cat((self._ended_scores, scores.masked_fill(~ends, -torch.inf)), 1)
        self._ended_scores, kept = scores.topk(first)
        lengths = length - stops[:, :first].long()  # the end is no part of the text
        self._ended_lengths = torch.cat((self._ended_lengths, lengths), 1).gather(1, kept)
        ids = torch.zeros_like(self._ended[:, :1]).repeat(1, ends.shape[1], 1)
        ids[..., : length - 1] = _rows_of(self._ids[..., self._width :], beam[:, :first])
        ids[..., length - 1] = chosen[:, :first]
        self._ended = _rows_of(torch.cat((self._ended, ids), 1), kept)

    def _finished(self, best: Tensor) -> Tensor:
        """Bool [B]: no text that goes on can still get among those that have ended."""
        beams = self.beams
        worst = self._ended_scores.amin(1)
        if beams.num_beams == 1 or beams.early_stopping is True:
            return worst.isfinite() | ~best.isfinite()
        length = self._begun + self._length
        if beams.early_stopping == "never" and beams.length_penalty > 0.0:
            length = self._begun + self._most
        return best / length**beams.length_penalty <= worst

    def _go_on(self, going: Tensor, scores: Tensor, beam: Tensor, chosen: Tensor) -> bool:
        """Hand over the texts that are finished; the others take their places."""
        width = self._scores.shape[1]
        first = torch.arange(len(going), device=beam.device) * width  # row of each text's beam 0
        if not bool(going.all()):
            self._hand_over(~going)
            scores, beam, chosen, first = scores[going], beam[going], chosen[going], first[going]
            self._places, self._ids = self._places[going], self._ids[going]
            self._ended, self._ended_lengths = self._ended[going], self._ended_lengths[going]
            self._ended_scores = self._ended_scores[going]
        self._scores = scores
        self._ids = torch.cat((_rows_of(self._ids, beam), chosen[..., None]), -1)
        self.rows, self.last = (first[:, None] + beam).flatten(), chosen.flatten()
        return len(scores) > 0

    def _hand_over(self, which: Tensor) -> None:
        rows = zip(
            self._places[which].tolist(),
            self._ended[which].tolist(),
            self._ended_lengths[which].tolist(),
            self._ended_scores[which].tolist(),
            strict=True,
        )
        for place, texts, lengths, scores in rows:
            best = [
                Hypothesis(tuple(ids[:length]), score)
                for ids, length, score in zip(texts, lengths, scores, strict=True)
                if score > -torch.inf
            ]
            self.found[place] = best[: self.beams.num_return]


def _rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """The given rows of each text: [B, N, T], int64 [B, M] -> [B, M, T]."""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))
