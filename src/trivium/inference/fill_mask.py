"""Predictions for masked tokens, by a masked language model (Devlin et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trivium.errors import TokenizerError, TriviumError
from trivium.inference.forward import Ids
from trivium.inference.sampling_params import check_bounds
from trivium.inference.score import vocabulary_log_probabilities
from trivium.inference.text_model import TextModel, document_ids
from trivium.text import Tokenizer
from trivium.text.symbols import WORDPIECE_PREFIX

MASK_SPELLINGS = ("[MASK]", "<mask>")
"""What a user may write for a mask, whatever the tokenizer's own mask token is."""

# Kinds whose tokens do not include the space before them: the spaces of the text stay.
_SPACES_IN_TEXT = ("wordpiece", "whitespace")


@dataclass(frozen=True, slots=True)
class MaskFill:
    """One way to fill a mask: the text with it, the token and its probability (0 to 1)."""

    sequence: str
    token: str
    score: float


@torch.inference_mode()
def fill_masks(lm: TextModel, text: str, *, top_k: int = 5) -> list[list[MaskFill]]:
    """The `top_k` most probable tokens for every mask of a text.

    Each mask is filled by itself: the others stay masked. Probabilities are over the tokenizer's
    vocabulary, special tokens included.

    Raises:
        TokenizerError: the tokenizer has no mask token.
        TriviumError: the text has no mask, or top_k is below 1.
        SpecError: the text is longer than the model's context length.
    """
    tokenizer = lm.source_tokenizer
    if tokenizer.mask_id is None:
        raise TokenizerError(
            "this tokenizer has no mask token, so the model was not trained to fill masks."
        )
    check_bounds("top_k", top_k, {"ge": 1})
    text = with_mask_token(tokenizer, text)
    ids = document_ids(tokenizer, text)
    positions = [i for i, token_id in enumerate(ids) if token_id == tokenizer.mask_id]
    if not positions:
        raise no_mask_error(text, tokenizer.roles["mask"])
    hidden = lm.module(torch.tensor([ids], device=lm.module.device))[0, positions]
    scores = vocabulary_log_probabilities(lm.module, hidden, tokenizer.vocab_size).exp()
    fills = []
    for position, row in zip(positions, scores):
        best = row.topk(min(top_k, len(row)))
        fills.append(
            [
                MaskFill(
                    _filled(tokenizer, text, ids, position, token_id),
                    _token_text(tokenizer, token_id),
                    score,
                )
                for score, token_id in zip(best.values.tolist(), best.indices.tolist())
            ]
        )
    return fills


def with_mask_token(tokenizer: Tokenizer, text: str) -> str:
    """The text with the tokenizer's mask token for every spelling of a mask."""
    mask = tokenizer.roles.get("mask")
    if mask is None:
        return text
    for spelling in MASK_SPELLINGS:
        if spelling != mask and tokenizer.token_to_id(spelling) is None:
            text = text.replace(spelling, mask)
    return text


def no_mask_error(text: str, mask: str) -> TriviumError:
    """What to say about a text without a mask."""
    short = text if len(text) <= 60 else f"{text[:57]}..."
    return TriviumError(
        f"there is no {mask} in the text {short!r}: write {mask} for the token to predict, such as "
        f'"The weather was {mask} today."'
    )


def _filled(tokenizer: Tokenizer, text: str, ids: Ids, position: int, token_id: int) -> str:
    """The text with one token for the mask at `position` of `ids`."""
    if tokenizer.kind not in _SPACES_IN_TEXT:
        # Other masks stay, which decoding would drop with the special tokens.
        dropped = {*tokenizer.special_ids} - {tokenizer.mask_id}
        filled = [*ids[:position], token_id, *ids[position + 1 :]]
        kept = [each for each in filled if each not in dropped]
        return tokenizer.decode(kept, skip_special_tokens=False)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    start, end = encoding.offsets[position - len(tokenizer.prefix_ids)]
    before, token = text[:start], tokenizer.tokens[token_id]
    if tokenizer.vocabulary.continues_word[token_id]:
        before = before.rstrip()
        token = _token_text(tokenizer, token_id).removeprefix(WORDPIECE_PREFIX)
    return before + token + text[end:]


def _token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; its symbol in the vocabulary where it is no complete text."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return tokenizer.readable_tokens[token_id] if not text or "\ufffd" in text else text
