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
    batch_by_length,
    check_prompt,
    extend,
    prefill,
    recompute,
    vocabulary_log_probabilities,
)
from trivium.inference.logits_processors import DecodingState, process_logits
from trivium.inference.request import FinishReason
from trivium.inference.sampling_params import BeamSearchParams, check_bounds
from trivium.inference.text_model import GenerationRules, TextModel
from trivium.models import LanguageModule


class Beam(NamedTuple):
    """An unfinished text in beam search: its new ids and the sum of their log-probabilities."""

    ids: tuple[int, ...]
    log_p: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text of beam search: its new ids without the stop id, and its score.

    The score is the sum of the new tokens' log-probabilities divided by length**length_penalty.
    Both the sum and the length include any stop id. `finish_reason` is "length" if the token limit
    ended the text.
    """

    ids: tuple[int, ...]
    score: float
    finish_reason: FinishReason = "stop"


Watch = Callable[[Sequence[Beam], Sequence[Hypothesis]], None]


def beam_search(
    lm: TextModel,
    prompts: Sequence[Ids],
    params: BeamSearchParams,
    *,
    max_new_tokens: int | Sequence[int],
    rules: GenerationRules | None = None,
    batch_tokens: int = 32768,
    progress: Callable[[int, int], None] | None = None,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Return the best continuations of every prompt (or outputs for every source), best first.

    A text ends at a stop id, after `max_new_tokens`, or at the model's context length. As with
    `Engine`, the other prompts of a batch affect a text only through rounding.

    Args:
        lm: a model with a decoder.
        prompts: the ids that a decoder continues or an encoder reads; at least one id each.
        params: the options of beam search.
        max_new_tokens: the maximum number of new tokens, for all prompts or for each prompt.
        rules: the stop ids, the decoder start and so on; None: the model's rules.
        batch_tokens: the maximum number of tokens in a batch: padded prompts and new tokens, for
            every beam.
        progress: called after every batch with the number of finished prompts and of all prompts.
        watch: called after every step of every prompt's search, with the unfinished texts and the
            finished texts of the prompt. The search for a prompt first uses a short cache. If it
            does not end there, it restarts with a longer cache, and `watch` is called for all steps
            again.

    Returns:
        At most `params.num_return` hypotheses per prompt.

    Raises:
        SpecError: a prompt is empty or longer than the model's context length, or a token id (in a
            prompt or in `logit_bias`) is out of vocabulary.
        TriviumError: `max_new_tokens` is below 1, or there are more beams than ids in the
            vocabulary.
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
    rules.check_logit_bias(params)
    for prompt in prompts:
        check_prompt(lm, prompt)
    results: dict[int, list[Hypothesis]] = {}
    # Few texts reach the limit: only their searches restart, with a cache of that length.
    usual = [min(limit, 2 * len(prompt) + 16) for limit, prompt in zip(limits, prompts)]
    for lengths in (usual, limits):
        rest = [i for i in range(len(prompts)) if i not in results]
        needed = [len(prompts[i]) + lengths[i] for i in rest]
        for batch in batch_by_length(needed, batch_tokens // params.num_beams):
            searches = {}
            for i in (rest[row] for row in batch):
                limit = rules.max_tokens(prompts[i], limits[i], lm.module.spec.max_length)
                searches[i] = _Search(prompts[i], limit, params, rules, watch=watch)
            _run_searches(lm.module, list(searches.values()), max(lengths[i] for i in searches))
            for i, search in searches.items():
                if search.is_final:
                    results[i] = search.finished[: params.num_return]
            if progress is not None:
                progress(len(results), len(prompts))
    return [results[index] for index in range(len(prompts))]


class _Candidate(NamedTuple):
    """A possible next token of a beam, and the sum of log-probabilities including this token."""

    log_p: float
    beam: int
    token_id: int


@dataclass
class _Search:
    """The beam search for one prompt: K beams, and the best K hypotheses so far.

    As in `transformers`, only the K best candidates may end a text. The K best candidates that do
    not end a text become the next beams. The stop id counts towards the length of a text.

    Args:
        prompt: the ids of the prompt, or of an encoder's source.
        limit: the maximum number of new tokens.
        params: the options of beam search.
        rules: the stop ids, the decoder start and so on.
        watch: a function called after every step; see `beam_search`.
    """

    prompt: Ids
    limit: int
    params: BeamSearchParams
    rules: GenerationRules
    beams: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)
    watch: Watch | None = None

    @property
    def decoder_prompt(self) -> Ids:
        """The ids that the decoder reads before the first new token."""
        return self.rules.decoder_start or self.prompt

    @property
    def length(self) -> int:
        """The number of new tokens in each beam so far."""
        return len(self.beams[0].ids)

    def beam_states(self) -> list[DecodingState]:
        """Return the decoding state of every beam."""
        prompts = self.decoder_prompt, self.prompt
        return [DecodingState(self.params, *prompts, beam.ids, self.limit) for beam in self.beams]

    def advance(self, candidates: Sequence[_Candidate]) -> list[int]:
        """Finish hypotheses and extend the beams. Returns the index of each new beam's parent."""
        num_beams, beams, origins = self.params.num_beams, [], []
        length = self.length + 1
        at_limit = length >= self.limit
        for rank, (log_p, beam, token_id) in enumerate(candidates):
            ids = self.beams[beam].ids
            stops = token_id in self.rules.stop_ids
            if stops or at_limit:
                if rank < num_beams and log_p > -math.inf:
                    new_ids = ids if stops else (*ids, token_id)
                    score = log_p / length**self.params.length_penalty
                    cut = at_limit and (not stops or token_id == self.rules.forced_end)
                    reason = "length" if cut else "stop"
                    self.finished.append(Hypothesis(new_ids, score, reason))
            elif len(beams) < num_beams:
                beams.append(Beam((*ids, token_id), log_p))
                origins.append(beam)
        self.finished = sorted(self.finished, key=lambda one: -one.score)[:num_beams]
        while len(beams) < num_beams:  # fewer candidates than beams: beams that cannot win
            beams.append(Beam((*self.beams[0].ids, 0), -math.inf))
            origins.append(0)
        self.beams = beams
        if self.watch is not None:
            self.watch(self.beams, self.finished)
        return origins

    @property
    def is_final(self) -> bool:
        """Whether the search has ended: at the token limit, or according to `early_stopping`.

        With `early_stopping=False`, the search ends when K hypotheses are finished and no beam,
        scored at its current length, beats the worst of them. This is a heuristic, as in
        `transformers`.
        """
        params, best, length = self.params, self.beams[0].log_p, self.length
        if length >= self.limit:
            return True
        full = len(self.finished) == params.num_beams
        worst = self.finished[-1].score if full else -math.inf
        if params.num_beams == 1 or params.early_stopping is True:
            return full or best == -math.inf
        if params.early_stopping == "never" and params.length_penalty > 0.0:
            length = self.limit
        return best / length**params.length_penalty <= worst


@torch.inference_mode()
def _run_searches(module: LanguageModule, searches: Sequence[_Search], max_new: int) -> None:
    """Run several searches together until each is final or has generated `max_new` tokens.

    The rows of a decode step are the beams of the unfinished searches, K consecutive rows each.
    """
    params, rules = searches[0].params, searches[0].rules
    recompute_lengths = module.spec.recompute_lengths
    ends = [len(search.decoder_prompt) + min(search.limit, max_new) for search in searches]
    cache = module.new_cache(len(searches) * params.num_beams, max(ends) - 1)
    prompts = [search.prompt for search in searches]
    hidden = prefill(module, cache, range(len(searches)), prompts, rules.decoder_start)
    while True:
        width = len(searches[0].beams)
        unfinished, rows = [], []
        all_candidates = _best_candidates(module, hidden, searches)
        for index, (search, candidates) in enumerate(zip(searches, all_candidates, strict=True)):
            origins = search.advance(candidates)
            if not search.is_final and search.length < max_new:
                unfinished.append(search)
                rows += [index * width + beam for beam in origins]
        if not unfinished:
            return
        if rows != list(range(len(rows))):
            source = torch.tensor(rows, device=module.device)
            target = torch.arange(len(rows), device=source.device)
            # All rows of a prompt have the same cross-attention keys and values, which are copied
            # only if rows move to another prompt.
            moved = width == 1 or len(unfinished) != len(searches)
            cache.copy(source, target, copy_cross_cache=moved)
        searches = unfinished
        texts = [(search.decoder_prompt, beam.ids) for search in searches for beam in search.beams]
        tokens = [ids[-1] for _, ids in texts]
        hidden = extend(module, cache, torch.tensor(tokens, device=module.device)[:, None])[:, -1]
        expired = {
            row: [*prompt, *ids]
            for row, (prompt, ids) in enumerate(texts)
            if len(prompt) + len(ids) - 1 in recompute_lengths
        }
        if expired:
            hidden[[*expired]] = recompute(module, cache, expired)


def _best_candidates(
    module: LanguageModule, hidden: Tensor, searches: Sequence[_Search]
) -> Iterator[list[_Candidate]]:
    """Yield the best candidates of each search from hidden states [R, D], best first.

    At least K candidates of each search do not end a text, unless the vocabulary is too small.
    """
    params, rules = searches[0].params, searches[0].rules
    log_p = vocabulary_log_probabilities(module, hidden, rules.vocab_size)
    process_logits(log_p, [state for search in searches for state in search.beam_states()], rules)
    before = log_p.new_tensor([beam.log_p for search in searches for beam in search.beams])
    sums = (log_p + before[:, None]).unflatten(0, (len(searches), -1))
    count = min((1 + len(rules.stop_ids)) * params.num_beams, sums[0].numel())
    best = sums.flatten(1).topk(count)
    for values, indices in zip(best.values.tolist(), best.indices.tolist()):
        yield [
            _Candidate(value, *divmod(index, log_p.shape[1]))
            for value, index in zip(values, indices)
        ]
