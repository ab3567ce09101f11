"""Beam search: the most probable texts that a model can generate.

Shape letters: K beams, R rows of a decode step (all beams of all prompts), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from trivium.errors import TriviumError
from trivium.inference.forward import (
    Ids,
    check_prompt,
    extend,
    length_batches,
    prefill,
    vocabulary_log_probabilities,
)
from trivium.inference.logits_processors import DecodingState, process_logits
from trivium.inference.request import FinishReason
from trivium.inference.sampling_params import BeamSearchParams, check_bounds
from trivium.inference.text_model import GenerationRules, TextModel


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text: its new ids without the one that ended it, and its score.

    The score is the sum of log p of the new tokens divided by length**length_penalty; the token
    that ends the text counts. `finish_reason` is "length" where the limit ended the text.
    """

    ids: tuple[int, ...]
    score: float
    finish_reason: FinishReason = "stop"


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
        max_new_tokens: tokens to generate at most, for all prompts or for each.
        rules: stop ids, decoder start and so on; None: those of the model.
        batch_tokens: tokens of one batch: padded prompts and new tokens, for every beam.
        progress: called after every batch with the prompts done and their number.

    Returns:
        At most `params.num_return` hypotheses per prompt.

    Raises:
        SpecError: a prompt that is empty or longer than the model's context length, or a biased id
            that does not exist.
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
    rules.check_bias(params)
    for prompt in prompts:
        check_prompt(lm, prompt)
    lengths = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
    results: dict[int, list[Hypothesis]] = {}
    for batch in length_batches(lengths, batch_tokens // params.num_beams):
        states = [
            _BeamState(
                prompts[i],
                rules.decoder_start or prompts[i],
                rules.max_tokens(prompts[i], limits[i], lm.module.spec.max_length),
            )
            for i in batch
        ]
        search = _Search(lm, states, params, rules)
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
        prompt: as the user set it; an encoder's source.
        decoder_prompt: what the decoder reads before the first new token.
        limit: new tokens at most.
    """

    prompt: Ids
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
        states: Sequence[_BeamState],
        params: BeamSearchParams,
        rules: GenerationRules,
    ) -> None:
        self.params, self.rules, self._module, self._states = params, rules, lm.module, states
        longest = max(len(state.decoder_prompt) + state.limit for state in states) - 1
        self._cache = lm.module.new_cache(len(states) * params.num_beams, longest)

    @torch.inference_mode()
    def run(self) -> list[list[Hypothesis]]:
        """The hypotheses of every prompt, best first."""
        states, start = list(self._states), self.rules.decoder_start
        prompts = [state.prompt for state in states]
        hidden = prefill(self._module, self._cache, range(len(states)), prompts, start)
        while True:
            width = len(states[0].beams)
            unfinished, rows = [], []
            for index, (state, candidates) in enumerate(
                zip(states, self._candidates(hidden, states), strict=True)
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
        self, hidden: Tensor, states: Sequence[_BeamState]
    ) -> Iterator[list[_Candidate]]:
        """The best candidates of each prompt from hidden states [R, D], best first.

        At least as many as there are beams do not end a text.
        """
        log_p = vocabulary_log_probabilities(self._module, hidden, self.rules.vocab_size)
        decoding = [
            DecodingState(self.params, state.decoder_prompt, state.prompt, beam.ids, state.limit)
            for state in states
            for beam in state.beams
        ]
        process_logits(log_p, decoding, self.rules)
        before = [beam.log_p for state in states for beam in state.beams]
        sums = (log_p + log_p.new_tensor(before)[:, None]).unflatten(0, (len(states), -1))
        count = min((1 + len(self.rules.stop_ids)) * self.params.num_beams, sums[0].numel())
        best = sums.flatten(1).topk(count)
        for values, indices in zip(best.values.tolist(), best.indices.tolist()):
            yield [
                _Candidate(value, *divmod(index, log_p.shape[1]))
                for value, index in zip(values, indices)
            ]

    def _advance(self, state: _BeamState, candidates: Sequence[_Candidate]) -> list[int]:
        """Finish hypotheses and extend beams by a token: which beam each of them continues."""
        num_beams, beams, origins = self.params.num_beams, [], []
        length = state.length + 1
        at_limit = length >= state.limit
        for rank, (log_p, beam, token_id) in enumerate(candidates):
            ids = state.beams[beam].ids
            stops = token_id in self.rules.stop_ids
            if stops or at_limit:
                if rank < num_beams and log_p > -math.inf:
                    new_ids = ids if stops else (*ids, token_id)
                    score = log_p / length**self.params.length_penalty
                    cut = at_limit and (not stops or token_id == self.rules.forced_end)
                    reason = "length" if cut else "stop"
                    state.finished.append(Hypothesis(new_ids, score, reason))
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
        return best / length**params.length_penalty <= worst
