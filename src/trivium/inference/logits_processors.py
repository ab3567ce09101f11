"""Processing of logits before a token is chosen, for both sampling and beam search.

Penalties and biases are applied first. Then the logits of forbidden tokens are set to minus
infinity. As in `transformers`, the repetition penalty and the n-gram rules also consider the
decoder's prompt. Shape letters: R rows, V vocabulary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trivium.inference.constraint import Constraint
from trivium.inference.forward import Ids
from trivium.inference.sampling_params import DecodingParams
from trivium.inference.text_model import GenerationRules


class DecodingState(NamedTuple):
    """The state of a text that determines how the logits of its next token are processed.

    `prompt` contains the ids that the decoder reads before the first token of `output`. `source`
    contains the ids given by the user: an encoder's input, or the prompt again. `limit` is the
    maximum number of new tokens. If `choices` is not empty, the text must be one of the choices. If
    `constraint` is not None, it determines which tokens may follow.
    """

    params: DecodingParams
    prompt: Ids
    source: Ids
    output: Ids
    limit: int
    choices: Sequence[Ids] = ()
    constraint: Constraint | None = None

    @property
    def decoder_ids(self) -> list[int]:
        """The ids of the decoder's prompt and of all generated tokens."""
        return [*self.prompt, *self.output]


def process_logits(logits: Tensor, states: Sequence[DecodingState], rules: GenerationRules) -> None:
    """Apply penalties, biases, and rules of forbidden or forced tokens to logits [R, V] in place.

    If the text must be one of several choices, all ids that fit none of them are forbidden. The
    same applies to ids that a constraint does not allow. A constraint overrides the other rules if
    no id is left, and a text is not forced to end inside it.
    """
    forbidden: list[tuple[int, int]] = []
    for row, state in enumerate(states):
        apply_penalties(logits[row], state)
        forced_id = rules.forced_id(len(state.output), state.limit)
        if state.constraint is not None and len(state.output) >= len(rules.forced_start):
            allowed = _allowed_by_constraint(state, rules, logits.shape[1])
            logits[row].masked_fill_(~allowed.to(logits.device), -torch.inf)
        elif forced_id is not None:
            logits[row] = -torch.inf
            logits[row, forced_id] = 0.0
        elif state.choices:
            ids = list(next_choice_ids(state.choices, state.output, rules.stop_ids))
            allowed = logits[row, ids]
            logits[row] = -torch.inf
            logits[row, ids] = allowed
        else:
            ids = forbidden_ids(state, rules)
            forbidden += [(row, i) for i in ids if i < logits.shape[1]]
    if forbidden:
        rows, ids = torch.tensor(forbidden, device=logits.device).unbind(1)
        logits[rows, ids] = -torch.inf


def _allowed_by_constraint(state: DecodingState, rules: GenerationRules, size: int) -> Tensor:
    """Return which of the first `size` ids may follow in a text with a constraint, bool [`size`].

    If the constraint has an error, all ids may follow, because the engine ends the text.
    """
    assert state.constraint is not None
    allowed = state.constraint.allowed_tokens(size)
    if allowed is None:
        return torch.ones(size, dtype=torch.bool)
    remaining = allowed.clone()
    remaining[[i for i in forbidden_ids(state, rules) if i < size]] = False
    return remaining if remaining.any() else allowed


def apply_penalties(logits: Tensor, state: DecodingState) -> None:
    """Apply the penalties (repetition, presence, frequency) and biases to logits [V] in place."""
    params = state.params
    if params.repetition_penalty != 1.0:
        ids = [i for i in {*state.decoder_ids} if i < len(logits)]
        logits[ids] = penalize_repetition(logits[ids], params.repetition_penalty)
    added = defaultdict[int, float](float, params.logit_bias)
    if params.presence_penalty or params.frequency_penalty:
        for i, count in Counter(state.output).items():
            added[i] -= params.presence_penalty + params.frequency_penalty * count
    if added:
        logits[list(added)] += logits.new_tensor(list(added.values()))


def penalize_repetition(logits: Tensor, penalty: float) -> Tensor:
    """Return the logits of tokens that already occurred, changed by the repetition penalty.

    Positive logits are divided by the penalty, and negative logits are multiplied by it, as in
    `transformers`. The paper divides all logits, which makes tokens with negative logits more
    probable. Source: Keskar et al. 2019 (CTRL), section 4.1.
    """
    return torch.where(logits < 0, logits * penalty, logits / penalty)


def forbidden_ids(state: DecodingState, rules: GenerationRules) -> set[int]:
    """Return the ids that may not follow: banned ids, early stop ids, and repeated n-grams."""
    params, length = state.params, len(state.output)
    ids = set(rules.banned_ids)
    if length == len(rules.forced_start):  # the first token that is not forced
        ids |= rules.begin_banned_ids
    if length < params.min_new_tokens:
        ids |= rules.stop_ids
    if params.no_repeat_ngram:
        ids |= following_tokens(state.decoder_ids, state.decoder_ids, params.no_repeat_ngram)
    if rules.encoder_no_repeat_ngram:
        ids |= following_tokens(state.source, state.decoder_ids, rules.encoder_no_repeat_ngram)
    return ids


def following_tokens(history: Ids, ids: Ids, size: int) -> set[int]:
    """Return the tokens that, appended to `ids`, would repeat an n-gram of `history`.

    `size` is the number n of tokens in an n-gram.
    Source: Paulus et al. 2017, section 2.5 (there trigrams).

    >>> ids = [5, 6, 7, 5, 6, 8, 5, 6]
    >>> sorted(following_tokens(ids, ids, 3))
    [7, 8]
    """
    last = tuple(ids[len(ids) - size + 1 :])
    ngrams = (tuple(history[start : start + size]) for start in range(len(history) - size + 1))
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == last}


def next_choice_ids(choices: Sequence[Ids], output: Ids, stop_ids: Collection[int]) -> set[int]:
    """Return the ids that may follow `output`, so that the text can still become a choice.

    The set is empty if `output` is a choice and no longer choice begins with it. If a longer choice
    begins with it, the stop ids are included.
    """
    start, length = tuple(output), len(output)
    begun = [choice for choice in choices if tuple(choice[:length]) == start]
    following = {choice[length] for choice in begun if len(choice) > length}
    complete = any(len(choice) == length for choice in begun)
    return following | {*stop_ids} if following and complete else following
