"""Filling of masks: an encoder predicts single tokens, a decoder fills gaps of any length.

Sources: Devlin et al. 2018 (masks); Raffel et al. 2019 (sentinels); Lewis et al. 2019 (BART's mask
for any number of tokens); Du et al. 2022 (GLM's blanks).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import TokenizerError, TriviumError, shorten
from trivium.inference.beam import beam_search
from trivium.inference.forward import Ids, check_prompt, masked_states, vocabulary_log_probabilities
from trivium.inference.sampling_params import BeamSearchParams, check_bounds
from trivium.inference.text_model import TextModel, encoder_ids
from trivium.text import Tokenizer
from trivium.text.inputs import SpecialTokenTemplate
from trivium.text.symbols import MASK_PATTERN, MASK_SPELLINGS, WORDPIECE_PREFIX, is_cjk

# Tokenizer kinds whose tokens do not include the space before a word: the text's spaces stay.
_SPACELESS_KINDS = ("wordpiece", "whitespace")

_TOKENS_PER_GAP, _MIN_BEAMS = 12, 5


@dataclass(frozen=True, slots=True)
class MaskFill:
    """One way to fill a mask: the filled text, the token and its probability (0 to 1).

    For a model with a decoder, the token is the text that fills the gap, and the score is a
    probability per token: the geometric mean over all generated tokens, including end tokens.
    """

    sequence: str
    token: str
    score: float


@torch.inference_mode()
def fill_masks(lm: TextModel, text: str, *, top_k: int = 5) -> list[list[MaskFill]]:
    """Return the `top_k` most probable tokens for every mask of a text.

    Each mask is filled while the other masks stay masked. If the text is longer than the model
    reads at once, the model reads a window around each mask. As in `transformers`, the softmax
    includes all rows of the embedding matrix, with special tokens and padding.

    Raises:
        TokenizerError: the tokenizer has no mask token.
        TriviumError: the text has no mask, or top_k is below 1.
    """
    tokenizer = _mask_tokenizer(lm)
    if tokenizer.mask_id is None:
        raise TokenizerError(
            "this tokenizer has no mask token, so the model was not trained to fill masks."
        )
    check_bounds("top_k", top_k, {"ge": 1})
    text = normalize_masks(tokenizer, text)
    ids = encoder_ids(tokenizer, text)
    positions = [i for i, token_id in enumerate(ids) if token_id == tokenizer.mask_id]
    if not positions:
        raise no_mask_error(text, tokenizer.roles["mask"])
    hidden = masked_states(lm, ids, positions, lm.max_length)
    scores = vocabulary_log_probabilities(lm.module, hidden, tokenizer.vocab_size).exp()
    fills = []
    for position, row in zip(positions, scores):
        best = row.topk(min(top_k, len(row)))
        fills.append(
            [
                MaskFill(
                    _fill_position(tokenizer, text, ids, position, token_id),
                    _token_text(tokenizer, token_id),
                    score,
                )
                for score, token_id in zip(best.values.tolist(), best.indices.tolist())
            ]
        )
    return fills


def _mask_tokenizer(lm: TextModel) -> Tokenizer:
    """Return the source tokenizer, which parses masks and sentinels in texts as special tokens."""
    tokenizer = lm.source_tokenizer
    if not tokenizer.split_special_tokens:
        return tokenizer
    marks = [tokenizer.tokens[index] for index in tokenizer.sentinel_ids]
    marks += [*MASK_SPELLINGS, tokenizer.roles.get("mask", "")]
    return tokenizer.reading("text", control=marks)


def normalize_masks(tokenizer: Tokenizer, text: str) -> str:
    """Replace other spellings of a mask in a text, such as <mask>, with the tokenizer's mask token.

    A spelling that is another special token of the tokenizer is not replaced.
    """
    mask = tokenizer.roles.get("mask")
    if mask is None:
        return text
    other = tokenizer.special_tokens.keys() & {*MASK_SPELLINGS} - {mask}
    return MASK_PATTERN.sub(lambda match: match[0] if match[0] in other else mask, text)


def no_mask_error(text: str, mask: str) -> TriviumError:
    """Return the error to raise for a text without the mask token `mask`."""
    chinese = any(map(is_cjk, text))
    example = f"\u5929{mask}\u5f88\u597d\u3002" if chinese else f"The weather was {mask} today."
    return TriviumError(
        f"there is no {mask} in the text {shorten(text)!r}: write {mask} for the token to predict, "
        f'such as "{example}"'
    )


def _fill_position(tokenizer: Tokenizer, text: str, ids: Ids, position: int, token_id: int) -> str:
    """Return the text with a token in place of the mask at `position` of `ids`."""
    if tokenizer.kind not in _SPACELESS_KINDS:
        # Keep other masks, which decoding would drop together with the special tokens.
        dropped = {*tokenizer.special_ids} - {tokenizer.mask_id}
        filled = [*ids[:position], token_id, *ids[position + 1 :]]
        kept = [each for each in filled if each not in dropped]
        return tokenizer.decode(kept, skip_special_tokens=False)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    start, end = encoding.offsets[position - len(SpecialTokenTemplate(tokenizer).before)]
    before, token = text[:start], tokenizer.tokens[token_id]
    if tokenizer.vocabulary.continues_word[token_id]:
        before = before.rstrip()
        token = _token_text(tokenizer, token_id).removeprefix(WORDPIECE_PREFIX)
    return before + token + text[end:]


def _token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """Return a token as text, or in its display form if it is empty or an incomplete character."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return tokenizer.readable_tokens[token_id] if not text or "\ufffd" in text else text


def fill_gaps(lm: TextModel, text: str, *, top_k: int = 5) -> list[MaskFill]:
    """Return the best ways to fill all gaps of a text together, by beam search, best first.

    A model with sentinels (T5) generates each gap's sentinel followed by its content. Gaps are
    written <extra_id_0>, <extra_id_1>, ... or as masks. A model with a mask token (BART) generates
    the whole text. The content of a gap is then the generated text between the two pieces of input
    around the gap, or empty if the model has changed these pieces. The contents of several gaps are
    joined by " | ". A score is the geometric mean of the probabilities of the generated tokens.
    Duplicates are removed, so that there may be fewer than `top_k` results.

    Raises:
        TriviumError: the text has no gap, or top_k is below 1.
    """
    check_bounds("top_k", top_k, {"ge": 1})
    num_beams = max(_MIN_BEAMS, top_k)
    beams = BeamSearchParams(num_beams=num_beams, num_return=num_beams, min_new_tokens=1)
    fill = _fill_sentinels if lm.source_tokenizer.sentinel_ids else _fill_by_rewriting
    best: dict[tuple[str, str], MaskFill] = {}
    for sequence, contents, score in fill(lm, text, beams):
        joined = " | ".join(contents)
        best.setdefault((joined, sequence), MaskFill(sequence, joined, math.exp(score)))
    return list(best.values())[:top_k]


@torch.inference_mode()
def fill_blanks(lm: TextModel, text: str) -> MaskFill:
    """Fill all blanks of a text with a decoder (GLM), one after another, by greedy decoding.

    The content of a blank ends at the end token or after `_TOKENS_PER_GAP` tokens. The contents of
    several blanks are joined by " | ". The score is defined as in `fill_gaps`. Source: Du et al.
    2022, section 2.1.

    Raises:
        TokenizerError: the tokenizer has no mask token, or no token that starts or ends a blank.
        TriviumError: the text has no blank.
        SpecError: the text is longer than the model reads.
    """
    tokenizer, module = _mask_tokenizer(lm), lm.module
    start, end, mask = tokenizer.vocabulary.start_id, tokenizer.vocabulary.end_id, tokenizer.mask_id
    if start is None or end is None or mask is None:
        raise TokenizerError("blanks need tokens that mask, start and end them.")
    text = normalize_masks(tokenizer, text)
    ids = [*tokenizer.prefix_ids, *tokenizer.encode_ids_batch([text])[0], *tokenizer.suffix_ids]
    blanks = [place for place, token_id in enumerate(ids) if token_id == mask]
    if not blanks:
        raise no_mask_error(text, tokenizer.roles["mask"])
    check_prompt(lm, ids)
    room = len(ids) + (1 + _TOKENS_PER_GAP) * len(blanks)
    room = min(room, lm.max_length or room)
    cache = module.new_cache(1, room)

    def extend(ids: Ids, positions: list[tuple[int, int]], **prefix: Tensor) -> Tensor:
        """Append `ids` to the cache. Returns the log-probabilities [V] of the next token."""
        inputs = {"input_ids": ids, "position_ids": positions}
        tensors = {name: torch.tensor([x], device=module.device) for name, x in inputs.items()}
        hidden = module(**tensors, **prefix, cache=cache)[0, -1]
        return vocabulary_log_probabilities(module, hidden, tokenizer.vocab_size)

    given = torch.tensor([len(ids)], device=module.device)
    extend(ids, [(place, 0) for place in range(len(ids))], prefix_lengths=given)
    used, contents, scores = len(ids), [], []
    for blank in blanks:
        content, token_id = [], start
        while used < room and len(content) < _TOKENS_PER_GAP and token_id != end:
            best = extend([token_id], [(blank, len(content) + 1)]).max(-1)
            used, token_id = used + 1, int(best.indices)
            content.append(token_id)
            scores.append(float(best.values))
        contents.append(tokenizer.decode(content).strip())
        text = _replace_sentinel(text, tokenizer.roles["mask"], contents[-1])
    return MaskFill(text, " | ".join(contents), math.exp(sum(scores) / max(1, len(scores))))


_Fill = tuple[str, list[str], float]
"""The filled text, the contents of its gaps, and the score of a hypothesis."""


def _fill_sentinels(lm: TextModel, text: str, beams: BeamSearchParams) -> Iterator[_Fill]:
    """Yield the fills by a model with sentinels (T5): it generates only the gaps' contents."""
    tokenizer, target, rules = _mask_tokenizer(lm), lm.text_tokenizer, lm.generation_rules
    text, names = _masks_to_sentinels(tokenizer, text)
    gaps = [token_id for name in names if (token_id := target.token_to_id(name)) is not None]
    rules = dataclasses.replace(
        rules,
        forced_start=(*rules.forced_start, gaps[0]),
        stop_ids=(rules.stop_ids | {*target.sentinel_ids}) - {*gaps},
    )
    ids, limit = encoder_ids(tokenizer, text), 1 + _TOKENS_PER_GAP * len(gaps)
    (hypotheses,) = beam_search(lm, [ids], beams, max_new_tokens=limit, rules=rules)
    for hypothesis in hypotheses:
        contents = _gap_contents(target, hypothesis.ids, gaps)
        sequence = text
        for name, content in zip(names, contents):
            sequence = _replace_sentinel(sequence, name, content)
        yield sequence, contents, hypothesis.score


def _fill_by_rewriting(lm: TextModel, text: str, beams: BeamSearchParams) -> Iterator[_Fill]:
    """Yield the fills by a model with a mask token (BART): it generates the whole text."""
    tokenizer = _mask_tokenizer(lm)
    mask = tokenizer.roles.get("mask", "")
    text = normalize_masks(tokenizer, text)
    if not mask or mask not in text:
        raise no_mask_error(text, mask or MASK_SPELLINGS[1])
    ids = encoder_ids(tokenizer, text)
    limit = len(ids) + _TOKENS_PER_GAP * text.count(mask)
    (hypotheses,) = beam_search(lm, [ids], beams.replace(no_repeat_ngram=3), max_new_tokens=limit)
    for hypothesis in hypotheses:
        sequence = lm.text_tokenizer.decode(hypothesis.ids).strip()
        yield sequence, texts_between(text.split(mask), sequence), hypothesis.score


def _masks_to_sentinels(tokenizer: Tokenizer, text: str) -> tuple[str, list[str]]:
    """Replace masks with unused sentinels. Returns the text, and all sentinels in it in order."""
    names = [tokenizer.tokens[token_id] for token_id in tokenizer.sentinel_ids]
    unused = [name for name in names if name not in text]
    if len(MASK_PATTERN.findall(text)) > len(unused):
        raise TriviumError(f"the text has more gaps than the {len(names)} sentinels.")
    text = MASK_PATTERN.sub(lambda _: unused.pop(0), text)
    gaps = sorted((name for name in names if name in text), key=text.index)
    if not gaps:
        raise no_mask_error(text, MASK_SPELLINGS[1])
    return text, gaps


def _gap_contents(tokenizer: Tokenizer, ids: Ids, gaps: Ids) -> list[str]:
    """Return the content of each gap: the text after its sentinel, or "" without sentinel."""
    contents: dict[int, list[int]] = {}
    current: list[int] = []
    for token_id in ids:
        if token_id in gaps:
            current = contents.setdefault(token_id, [])
        else:
            current.append(token_id)
    return [tokenizer.decode(contents.get(gap, [])).strip() for gap in gaps]


def _replace_sentinel(text: str, sentinel: str, content: str) -> str:
    """Replace a sentinel with the content of its gap. An empty gap leaves at most one space."""
    before, _, after = text.partition(sentinel)
    if not content:
        return before.rstrip() + (" " if before[-1:].isspace() else "") + after.lstrip()
    return before + content + after


def texts_between(pieces: Sequence[str], text: str) -> list[str]:
    """Return the parts of `text` between consecutive `pieces`; all are "" if a piece is missing.

    >>> texts_between(["The", "sat on the", "."], "The cat sat on the mat.")
    ['cat', 'mat']
    """
    first, *middle, last = (re.escape(piece.strip()) for piece in pieces)
    # Match each piece at its first occurrence, and the last piece at its last occurrence.
    contents = "".join(f"(?>(.*?){words})" for words in middle) + "(.*)"
    match = re.search(f"{first}{contents}{last}", text, re.DOTALL)
    return [one.strip() for one in match.groups()] if match else [""] * (len(pieces) - 1)
