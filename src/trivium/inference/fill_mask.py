"""What stands behind a mask: the most probable tokens of a masked language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import TokenizerError, TriviumError
from trivium.models import LanguageModule
from trivium.nn.positions import check_length
from trivium.text import Tokenizer
from trivium.text.symbols import WORDPIECE_PREFIX

# Kinds whose tokens do not say whether a space stands before them: the text's own spaces count.
_SPACES_UNWRITTEN = ("wordpiece", "whitespace")


@dataclass(frozen=True, slots=True)
class Fill:
    """One way to fill a mask: the text with it, the token and its probability (0 to 1)."""

    sequence: str
    token: str
    score: float


@torch.inference_mode()
def fill_masks(
    model: LanguageModule, tokenizer: Tokenizer, text: str, *, top_k: int = 5
) -> list[list[Fill]]:
    """The `top_k` best fills of every mask in the text, most probable first.

    Each mask is filled alone: the others stay in the sequence, and in what the model sees. Scores
    are probabilities over the tokenizer's vocabulary, special tokens included.

    Raises:
        TokenizerError: the tokenizer has no mask token.
        TriviumError: the text has no mask, or top_k is below 1.
        SpecError: the text is longer than the model's positions.
    """
    if tokenizer.mask_id is None:
        raise TokenizerError(
            "this tokenizer has no mask token, so the model was not trained to fill masks."
        )
    if top_k < 1:
        raise TriviumError(f"top_k is {top_k}, but must be 1 or more.")
    ids = document_ids(tokenizer, text)
    places = [place for place, index in enumerate(ids) if index == tokenizer.mask_id]
    if not places:
        token = tokenizer.roles["mask"]
        raise TriviumError(
            f"there is no {token} in the text {_short(text)}: write {token} in place of the word "
            f'to predict, such as "The weather was {token} today."'
        )
    check_length(len(ids), model.spec.max_length)
    hidden = model(torch.tensor([ids], device=model.device))[0, places]
    scores = vocabulary_log_probabilities(model, hidden, tokenizer.vocab_size).exp()
    best = scores.topk(min(top_k, scores.shape[-1]), dim=-1)
    return [
        [
            Fill(_filled(tokenizer, text, ids, place, index), _token(tokenizer, index), score)
            for index, score in zip(indices, values)
        ]
        for place, indices, values in zip(places, best.indices.tolist(), best.values.tolist())
    ]


def document_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, begun and ended as documents are in training shards."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]


def vocabulary_log_probabilities(model: LanguageModule, hidden: Tensor, vocab_size: int) -> Tensor:
    """Log-softmax over the first `vocab_size` logits, in float32: [..., D] -> [..., V].

    A model's matrix may be padded beyond its tokenizer; what is there stands for no token.
    """
    return model.logits(hidden)[..., :vocab_size].float().log_softmax(-1)


def _filled(tokenizer: Tokenizer, text: str, ids: list[int], place: int, index: int) -> str:
    """The text with one token in place of the mask at `place` of `ids`."""
    if tokenizer.kind not in _SPACES_UNWRITTEN:
        return _decode_with_masks(tokenizer, [*ids[:place], index, *ids[place + 1 :]])
    encoding = tokenizer.encode(text, add_special_tokens=False)
    start, end = encoding.offsets[place - len(tokenizer.prefix_ids)]
    before, token = text[:start], tokenizer.tokens[index]
    if tokenizer.continues_word()[index]:
        before, token = before.rstrip(), _token(tokenizer, index).removeprefix(WORDPIECE_PREFIX)
    return before + token + text[end:]


def _decode_with_masks(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Decode and keep the masks that are left, which decoding would drop with special tokens."""
    hidden = {*tokenizer.special_ids} - {tokenizer.mask_id}
    kept = [index for index in ids if index not in hidden]
    return tokenizer.decode(kept, skip_special_tokens=False)


def _token(tokenizer: Tokenizer, index: int) -> str:
    """A token as people read it; as it is written in the vocabulary where it is no whole text."""
    text = tokenizer.decode([index], skip_special_tokens=False)
    return tokenizer.tokens[index] if not text or "\ufffd" in text else text


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
