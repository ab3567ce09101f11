"""How probable a text is under a model: sums of natural logarithms (nats)."""

from __future__ import annotations

import torch

from trivium.errors import TokenizerError
from trivium.inference.fill_mask import document_ids, vocabulary_log_probabilities
from trivium.inference.generate import end_ids
from trivium.models import LanguageModule
from trivium.nn.positions import check_length
from trivium.text import Tokenizer

_POSITIONS_AT_ONCE = 512  # Bounds the logits in memory: positions x vocabulary.
_ROWS_AT_ONCE = 32


@torch.inference_mode()
def score_causal(model: LanguageModule, tokenizer: Tokenizer, text: str) -> float:
    """Sum of log p(token | tokens before it) over the tokens of a text, for a decoder.

    The first token is predicted from what documents begin with in training, else from the end of
    text before it; with neither it is not counted. The end of the text is not scored.

    Raises:
        SpecError: the text is longer than the model's positions.
    """
    context = list(tokenizer.prefix_ids) or sorted(end_ids(tokenizer))[:1]
    ids = [*context, *tokenizer.encode(text, add_special_tokens=False).ids]
    check_length(len(ids) - 1, model.spec.max_length)
    first = max(len(context), 1)
    if len(ids) <= first:
        return 0.0
    hidden = model(torch.tensor([ids[:-1]], device=model.device))[0, first - 1 :]
    targets = torch.tensor(ids[first:], device=model.device)
    total = 0.0
    for states, wanted in zip(hidden.split(_POSITIONS_AT_ONCE), targets.split(_POSITIONS_AT_ONCE)):
        scores = vocabulary_log_probabilities(model, states, tokenizer.vocab_size)
        total += float(scores.gather(-1, wanted[:, None]).double().sum())
    return total


@torch.inference_mode()
def score_masked(model: LanguageModule, tokenizer: Tokenizer, text: str) -> float:
    """Pseudo-log-likelihood: sum of log p(token | all others), each masked in turn, for an encoder.

    Source: Salazar et al. 2020, equation 1. It is no probability of the text, but ranks texts.

    Raises:
        TokenizerError: the tokenizer has no mask token.
        SpecError: the text is longer than the model's positions.
    """
    mask = tokenizer.mask_id
    if mask is None:
        raise TokenizerError(
            "this tokenizer has no mask token, which scoring with an encoder needs."
        )
    ids = torch.tensor(document_ids(tokenizer, text), device=model.device)
    check_length(len(ids), model.spec.max_length)
    places = torch.arange(
        len(tokenizer.prefix_ids), len(ids) - len(tokenizer.suffix_ids), device=model.device
    )
    total = 0.0
    for chunk in places.split(_ROWS_AT_ONCE):
        if not len(chunk):
            continue
        rows = torch.arange(len(chunk), device=model.device)
        masked = ids.repeat(len(chunk), 1)
        masked[rows, chunk] = mask
        hidden = model(masked)[rows, chunk]
        scores = vocabulary_log_probabilities(model, hidden, tokenizer.vocab_size)
        total += float(scores.gather(-1, ids[chunk][:, None]).double().sum())
    return total
