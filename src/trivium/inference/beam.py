"""Beam search: the most probable texts that a model can generate.

Shape letters: K beams, R rows of a decode step (all beams of all prompts), V vocabulary.
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
from trivium.inference.forward import Ids, check_prompt, extend, length_batches, prefill
from trivium.inference.sampling import repeating_tokens
from trivium.inference.sampling_params import check_bounds, check_options, option
from trivium.inference.text_model import GenerationRules, TextModel


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
        check_options(self)
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
    max_new_tokens: int | Sequence[int],
    rules: GenerationRules | None = None,
    batch_tokens: int = 32768,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of every prompt, or outputs for every source, best first.

    A text ends at a stop id, after `max_new_tokens`, or at the model's context length. As with
    `Engine` it depends on the prompts beside it by rounding only.

    Args:
        lm: a model with a decoder.
        prompts: ids a decoder continues, or sources an encoder reads; at least one id each.
        params: options of the search.
        max_new_tokens: tokens to generate at most, for all prompts or for each; those that
            `decoder_start` forces after its first one count, as in `transformers`.
        rules: stop ids, decoder start and so on; None: those of the model.
        batch_tokens: tokens of one batch: padded prompts and new tokens, for every beam.
        progress: called after every batch with the prompts done and their number.

    Returns:
        At most `params.num_return` hypotheses per prompt.

    Raises:
        SpecError: a prompt that is empty or longer than the model's context length.
        TriviumError: max_new_tokens below 1, or more beams than the vocabulary has ids.
    """
    rules = rules or lm.generation_rules
    limits = max_new_tokens
    if not isinstance(limits, Sequence):
        limits = [limits] * len(prompts)
    check_bounds("max_new_tokens", min(limits, default=1), {"ge": 1})
    if params.num_beams > rules.vocab_size:
        raise TriviumError(
            f"num_beams is {params.num_beams}, but the vocabulary has {rules.vocab_size} ids."
        )
    for prompt in prompts:
        check_prompt(lm.module, prompt)
    lengths = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
    results: dict[int, list[Hypothesis]] = {}
    for batch in length_batches(lengths, batch_tokens // params.num_beams):
        states = [
            _BeamState(
                rules.decoder_start or prompts[i],
                rules.max_tokens(prompts[i], limits[i], lm.module.spec.max_length),
            )
            for i in batch
        ]
        search = _Search(lm, [prompts[i] for i in batch], states, params, rules)
        results.update(zip(batch, search.run(), strict=True))
        if progress is not None:
            progress(len(results), len(prompts))
    return [results[index] for index in range(len(prompts))]


class _Beam(NamedTuple):
    """An unfinished text: its new ids and the sum of their log-probabilities."""

    ids: tuple[int, ...]
    log_p: float


class _Candidate(NamedTuple):
    """One more token for a beam, and the sum of log-probabilities with it."""

    log_p: float
    beam: int
    token_id: int


@dataclass
class _BeamState:
    """The search for one prompt: K beams, and the best K hypotheses so far.

    Args:
        decoder_prompt: what the decoder reads before the first new token.
        limit: new tokens at most.
    """

    decoder_prompt: Ids
    limit: int
    beams: list[_Beam] = field(default_factory=lambda: [_Beam((), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)

    @property
    def length(self) -> int:
        """New tokens so far."""
        return len(self.beams[0].ids)


class _Search:
    """One batch. Rows of the model are the beams of the unfinished prompts, K after K.

    As in `transformers`, of the best candidates of a prompt only the first K may end a text, K
    others stay beams, and the token that ends a text counts towards its length.
    """

    def __init__(
        self,
        lm: TextModel,
        prompts: Sequence[Ids],
        states: Sequence[_BeamState],
        params: BeamSearchParams,
        rules: GenerationRules,
    ) -> None:
        self.params, self.rules, self._module = params, rules, lm.module
        self._prompts, self._states = prompts, states
        longest = max(len(state.decoder_prompt) + state.limit for state in states) - 1
        self._cache = lm.module.new_cache(len(prompts) * params.num_beams, longest)
        self._stops, self._banned = sorted(rules.stop_ids), sorted(rules.banned_ids)

    @torch.inference_mode()
    def run(self) -> list[list[Hypothesis]]:
        """The hypotheses of every prompt, best first."""
        states, start = list(self._states), self.rules.decoder_start
        hidden = prefill(self._module, self._cache, range(len(states)), self._prompts, start)
        while True:
            width = len(states[0].beams)
            unfinished, rows = [], []
            for index, (state, candidates) in enumerate(
                zip(states, self._candidates(self._module.logits(hidden), states), strict=True)
            ):
                origins = self._advance(state, candidates)
                if not self._is_final(state):
                    unfinished.append(state)
                    rows += [index * width + beam for beam in origins]
            if not unfinished:
                break
            if rows != list(range(len(rows))):
                source = torch.tensor(rows, device=self._module.device)
                target = torch.arange(len(rows), device=source.device)
                # Rows of one prompt hold equal keys and values of its source: these are copied
                # only where a row changes its prompt.
                moved = width == 1 or len(unfinished) != len(states)
                self._cache.copy(source, target, copy_memory=moved)
            states = unfinished
            tokens = [beam.ids[-1] for state in states for beam in state.beams]
            last = torch.tensor(tokens, device=self._module.device)[:, None]
            hidden = extend(self._module, self._cache, last)[:, -1]
        return [state.finished[: self.params.num_return] for state in self._states]

    def _candidates(
        self, logits: Tensor, states: Sequence[_BeamState]
    ) -> Iterator[list[_Candidate]]:
        """The best candidates of each prompt from logits [R, V], best first.

        At least as many as there are beams do not end a text.
        """
        log_p = self._log_probabilities(logits, states)
        vocab_size = log_p.shape[1]
        before = torch.tensor([[beam.log_p for beam in state.beams] for state in states])
        sums = log_p.unflatten(0, before.shape) + before.to(log_p.device)[..., None]
        count = min((1 + len(self._stops)) * self.params.num_beams, sums[0].numel())
        best = sums.flatten(1).topk(count)
        for values, indices in zip(best.values.tolist(), best.indices.tolist()):
            yield [
                _Candidate(value, *divmod(index, vocab_size))
                for value, index in zip(values, indices)
            ]

    def _log_probabilities(self, logits: Tensor, states: Sequence[_BeamState]) -> Tensor:
        """Float32 [R, V] with minus infinity for what may not come next."""
        log_p = logits.float().log_softmax(-1)[:, : self.rules.vocab_size]
        log_p[:, self._banned] = -torch.inf
        if self.rules.num_forced + states[0].length < self.params.min_new_tokens:
            log_p[:, self._stops] = -torch.inf
        rows = iter(log_p)
        for state in states:
            forced_id = self.rules.forced_id(state.length, state.limit)
            for beam, row in zip(state.beams, rows):
                if forced_id is not None:
                    row.fill_(-torch.inf)[forced_id] = 0.0
                elif self.params.no_repeat_ngram:
                    ids = [*state.decoder_prompt, *beam.ids]
                    repeating = repeating_tokens(ids, self.params.no_repeat_ngram)
                    row[[i for i in repeating if i < len(row)]] = -torch.inf
        return log_p

    def _advance(self, state: _BeamState, candidates: Sequence[_Candidate]) -> list[int]:
        """Finish hypotheses and extend beams by a token: which beam each of them continues."""
        num_beams, beams, origins = self.params.num_beams, [], []
        length = self.rules.num_forced + state.length + 1
        for rank, (log_p, beam, token_id) in enumerate(candidates):
            ids = state.beams[beam].ids
            stops = token_id in self.rules.stop_ids
            if stops or state.length + 1 >= state.limit:
                if rank < num_beams and log_p > -math.inf:
                    new_ids = ids if stops else (*ids, token_id)
                    score = log_p / length**self.params.length_penalty
                    state.finished.append(Hypothesis(new_ids, score))
            elif len(beams) < num_beams:
                beams.append(_Beam((*ids, token_id), log_p))
                origins.append(beam)
        state.finished = sorted(state.finished, key=lambda one: -one.score)[:num_beams]
        while len(beams) < num_beams:  # fewer candidates than beams: beams that cannot win
            beams.append(_Beam((*state.beams[0].ids, 0), -math.inf))
            origins.append(0)
        state.beams = beams
        return origins

    def _is_final(self, state: _BeamState) -> bool:
        """Whether the search for a prompt ends, by `early_stopping`.

        With False, as in `transformers`, an estimate: that no beam is better at its present length.
        """
        params, best = self.params, state.beams[0].log_p
        if state.length >= state.limit:
            return True
        full = len(state.finished) == params.num_beams
        worst = state.finished[-1].score if full else -math.inf
        if params.num_beams == 1 or params.early_stopping is True:
            return full or best == -math.inf
        length = state.length
        if params.early_stopping == "never" and params.length_penalty > 0.0:
            length = state.limit
        return best / (self.rules.num_forced + length) ** params.length_penalty <= worst
