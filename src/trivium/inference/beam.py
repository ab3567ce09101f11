"""Beam search: the most probable texts that a model can generate.

Shape letters: K beams, R rows of a decode step (all beams of all texts), V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from trivium.errors import TriviumError
from trivium.inference.decoding import check_prompt, extend, prefill
from trivium.inference.sampling import repeating_tokens
from trivium.inference.sampling_params import check_bounds, option
from trivium.inference.text_model import GenerationRules, TextModel
from trivium.nn.kv_cache import KVCache

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
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_bounds(each.name, value, each.metadata)
        if self.early_stopping not in (True, False, "never"):
            raise TriviumError(
                f'early_stopping is {self.early_stopping!r}, but must be True, False or "never".'
            )
        if self.num_return > self.num_beams:
            raise TriviumError(
                f"num_return is {self.num_return}, but must be at most num_beams, {self.num_beams}."
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BeamSearchParams:
        """From a `generation_config.json`."""
        penalty = config.get("length_penalty")
        return cls(
            num_beams=config.get("num_beams") or 4,
            length_penalty=1.0 if penalty is None else penalty,
            min_new_tokens=config.get("min_new_tokens") or 0,
            early_stopping=config.get("early_stopping") or False,
            no_repeat_ngram=config.get("no_repeat_ngram_size") or 0,
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


class _Beam(NamedTuple):
    """An unfinished text: its new ids and the sum of their log-probabilities."""

    ids: tuple[int, ...]
    score: float


class _Candidate(NamedTuple):
    """One more token for a beam, and the sum of log-probabilities with it."""

    score: float
    beam: int
    token_id: int


@dataclass
class _Text:
    """The search for one prompt: K beams, and the best K hypotheses so far.

    Args:
        number: of the prompt in its batch.
        prompt: what the decoder has read before the first new token.
        limit: new tokens at most.
    """

    number: int
    prompt: Ids
    limit: int
    beams: list[_Beam] = field(default_factory=lambda: [_Beam((), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)

    @property
    def length(self) -> int:
        """New tokens so far."""
        return len(self.beams[0].ids)

    @property
    def at_last(self) -> bool:
        """Whether no token comes after the next."""
        return self.length + 1 >= self.limit


class _Search:
    """One batch. Rows of the model are the beams of the unfinished texts, K after K.

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
        self.params, self.rules, self._module, self._sources = params, rules, lm.module, prompts
        self._forced = len(rules.decoder_start[1:])
        positions = lm.module.spec.max_length
        self._texts = []
        for number, prompt in enumerate(prompts):
            read, limit = rules.decoder_start or prompt, max(1, max_new_tokens - self._forced)
            if positions is not None:  # the last token needs no position
                limit = min(limit, positions - len(read) + 1)
            self._texts.append(_Text(number, read, limit))
        longest = max(len(text.prompt) + text.limit for text in self._texts) - 1
        self._cache = lm.module.new_cache(len(prompts) * params.num_beams, longest)
        self._stops, self._banned = sorted(rules.stop_ids), sorted(rules.banned_ids)

    @torch.inference_mode()
    def run(self) -> list[list[Hypothesis]]:
        """The hypotheses of every prompt, best first."""
        texts, device = list(self._texts), self._module.device
        start = self.rules.decoder_start
        hidden = prefill(self._module, self._cache, range(len(texts)), self._sources, start)
        while True:
            width = len(texts[0].beams)
            unfinished, rows = [], []
            for index, (text, candidates) in enumerate(
                zip(texts, self._candidates(self._module.logits(hidden), texts), strict=True)
            ):
                beams = self._advance(text, candidates)
                if not self._is_final(text):
                    unfinished.append(text)
                    rows += [index * width + beam for beam in beams]
            if not unfinished:
                break
            # Beams of one text share their source: it is copied where texts change their rows.
            self._reorder(rows, memory=width == 1 or len(unfinished) != len(texts))
            texts = unfinished
            tokens = [beam.ids[-1] for text in texts for beam in text.beams]
            last = torch.tensor(tokens, device=device)[:, None]
            hidden = extend(self._module, self._cache, last)[:, -1]
        return [text.finished[: self.params.num_return] for text in self._texts]

    def _reorder(self, rows: Sequence[int], *, memory: bool) -> None:
        """Row i becomes what row `rows[i]` was."""
        if list(rows) == list(range(len(rows))):
            return
        source = torch.tensor(rows, device=self._module.device)
        target = torch.arange(len(rows), device=source.device)
        if isinstance(self._cache, KVCache):
            self._cache.copy(source, target, memory=memory)
        else:
            self._cache.copy(source, target)

    def _candidates(self, logits: Tensor, texts: Sequence[_Text]) -> list[list[_Candidate]]:
        """The best candidates of each text from logits [R, V], best first.

        As many of them do not end the text as there are beams, whatever the others do.
        """
        scores = self._log_probabilities(logits, texts)
        vocab_size = scores.shape[1]
        before = torch.tensor([[beam.score for beam in text.beams] for text in texts])
        sums = scores.unflatten(0, before.shape) + before.to(scores.device)[..., None]
        count = min((1 + len(self._stops)) * self.params.num_beams, sums[0].numel())
        best = sums.flatten(1).topk(count)
        return [
            [
                _Candidate(score, place // vocab_size, place % vocab_size)
                for score, place in zip(values, places)
            ]
            for values, places in zip(best.values.tolist(), best.indices.tolist())
        ]

    def _log_probabilities(self, logits: Tensor, texts: Sequence[_Text]) -> Tensor:
        """Float32 [R, V] with what is ruled out at minus infinity."""
        scores = logits[:, : self.rules.vocab_size].float().log_softmax(-1)
        scores[:, self._banned] = -torch.inf
        if self._forced + texts[0].length < self.params.min_new_tokens:
            scores[:, self._stops] = -torch.inf
        row = 0
        for text in texts:
            for beam in text.beams:
                if text.at_last and self.rules.forced_end is not None:
                    scores[row] = -torch.inf
                    scores[row, self.rules.forced_end] = 0.0
                elif self.params.no_repeat_ngram:
                    ids = [*text.prompt, *beam.ids]
                    repeating = repeating_tokens(ids, self.params.no_repeat_ngram)
                    scores[row, [i for i in repeating if i < self.rules.vocab_size]] = -torch.inf
                row += 1
        return scores

    def _advance(self, text: _Text, candidates: Sequence[_Candidate]) -> list[int]:
        """Finish hypotheses and extend beams by a token: which beam each of them continues."""
        num_beams, beams, origins = self.params.num_beams, [], []
        length = self._forced + text.length + 1
        for rank, (score, beam, token_id) in enumerate(candidates):
            ids = text.beams[beam].ids
            stops = token_id in self.rules.stop_ids
            if stops or text.at_last:
                if rank < num_beams and score > -math.inf:
                    kept = ids if stops else (*ids, token_id)
                    score /= length**self.params.length_penalty
                    text.finished.append(Hypothesis(kept, score))
            elif len(beams) < num_beams:
                beams.append(_Beam((*ids, token_id), score))
                origins.append(beam)
        text.finished = sorted(text.finished, key=lambda one: -one.score)[:num_beams]
        while len(beams) < num_beams:  # fewer candidates than beams: beams that cannot win
            beams.append(_Beam((*text.beams[0].ids, 0), -math.inf))
            origins.append(0)
        text.beams = beams
        return origins

    def _is_final(self, text: _Text) -> bool:
        """Whether no beam of a text can still get among its best hypotheses."""
        params, best = self.params, text.beams[0].score
        if text.length >= text.limit:
            return True
        full = len(text.finished) == params.num_beams
        worst = text.finished[-1].score if full else -math.inf
        if params.num_beams == 1 or params.early_stopping is True:
            return full or best == -math.inf
        length = text.length
        if params.early_stopping == "never" and params.length_penalty > 0.0:
            length = text.limit
        return best / (self._forced + length) ** params.length_penalty <= worst
