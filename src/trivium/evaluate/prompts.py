"""Prompts that fit a model, and the log-probabilities of what may follow them."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.errors import TriviumError
from trivium.inference.score import SequenceScore, encode_item, score_continuations
from trivium.language_model import LanguageModel


def continuation_scores(
    lm: LanguageModel, context: str, continuations: Sequence[str], *, after: str = ""
) -> list[SequenceScore]:
    """Scores of continuations of a context, the left of which is cut where it is too long.

    An encoder reads `after` behind each continuation; an encoder-decoder encodes the context.
    """
    family = lm.spec.family
    item = encode_item(
        lm.source_tokenizer if family == "encoder-only" else lm.text_tokenizer,
        context,
        continuations,
        after=after if family == "encoder-only" else "",
        source_tokenizer=lm.source_tokenizer if family == "encoder-decoder" else None,
    )
    return score_continuations(lm, [item], truncate=True)[0]


def truncate_left(lm: LanguageModel, prompt: str, max_new_tokens: int) -> str:
    """The end of a prompt that leaves positions for `max_new_tokens`.

    Raises:
        TriviumError: no prompt at all would fit.
    """
    limit = lm.spec.max_length
    if limit is None:
        return prompt
    tokenizer = lm.source_tokenizer
    beside = len(tokenizer.suffix_ids) if lm.spec.family == "encoder-decoder" else max_new_tokens
    room = limit - len(tokenizer.prefix_ids) - beside
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
