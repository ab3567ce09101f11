"""Prompts that fit a model: the end of a text, cut between tokens."""

from __future__ import annotations

from trivium.errors import TriviumError
from trivium.language_model import LanguageModel


def truncate_left(lm: LanguageModel, prompt: str, max_new_tokens: int) -> str:
    """The end of a prompt that leaves positions for `max_new_tokens`.

    Raises:
        TriviumError: no prompt at all would fit.
    """
    limit = lm.spec.max_length
    if limit is None:
        return prompt
    tokenizer = lm.source_tokenizer
    room = limit - len(tokenizer.prefix_ids)
    if lm.spec.family == "encoder-decoder":
        room -= len(tokenizer.suffix_ids)
    else:
        room -= max_new_tokens
    if room < 1:
        raise TriviumError(
            f"max_new_tokens is {max_new_tokens}: no prompt fits beside it into the model's "
            f"{limit} positions."
        )
    offsets = tokenizer.encode(prompt, add_special_tokens=False).offsets
    # The rest of a text may have a token more than it had inside the text.
    rest, excess = prompt, max(0, len(offsets) - room)
    while rest and len(tokenizer.encode(rest, add_special_tokens=False).ids) > room:
        rest = prompt[offsets[excess][0] :] if excess < len(offsets) else ""
        excess += 1
    return rest
