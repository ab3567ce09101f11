"""Answers that a model writes by itself, up to a stop."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.errors import TriviumError
from trivium.evaluate.choices import text_tokenizer
from trivium.language_model import LanguageModel


def write_until(
    lm: LanguageModel,
    prompt: str,
    stops: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> tuple[str, int]:
    """What a model writes after a prompt, before the first of `stops`.

    A prompt that leaves no room for `max_new_tokens` is cut from the left.

    Returns:
        The text, and how many tokens of the prompt were cut.

    Raises:
        TriviumError: max_new_tokens leaves no room for any prompt, or the model does not write.
    """
    kept, num_cut = _fitting(lm, prompt, max_new_tokens)
    pieces = lm.stream(
        kept,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    text = ""
    for piece in pieces:
        text += piece
        if any(stop in text for stop in stops):
            break
    ends = [text.find(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else text, num_cut


def _fitting(lm: LanguageModel, prompt: str, max_new_tokens: int) -> tuple[str, int]:
    """The end of a prompt that fits, and how many tokens were cut from its left."""
    limit, tokenizer = lm.spec.max_length, text_tokenizer(lm)
    if limit is None:
        return prompt, 0
    around = len(tokenizer.prefix_ids)
    if lm.spec.family == "encoder-decoder":
        room = limit - around - len(tokenizer.suffix_ids)
    else:
        room = limit - around - max_new_tokens
    if room < 1:
        raise TriviumError(
            f"max_new_tokens is {max_new_tokens}, which leaves no room for a prompt within the "
            f"model's {limit} positions."
        )
    offsets = tokenizer.encode(prompt, add_special_tokens=False).offsets
    # Cut anywhere, a text may be encoded in a few tokens more.
    kept, excess = prompt, max(0, len(offsets) - room)
    while excess and len(tokenizer.encode(kept, add_special_tokens=False).ids) > room:
        kept = prompt[offsets[excess][0] :] if excess < len(offsets) else ""
        excess += 1
    return kept, len(offsets) - len(tokenizer.encode(kept, add_special_tokens=False).ids)
