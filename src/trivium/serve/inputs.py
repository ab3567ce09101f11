"""Texts that are read whole: refused where they are too long, or cut where that is asked for."""

from __future__ import annotations

from trivium.errors import SpecError
from trivium.inference.embed import Pooling
from trivium.language_model import LanguageModel
from trivium.text.inputs import TextInput, encode_inputs


def fit(
    lm: LanguageModel, text: str, pair: str | None = None, *, truncate: bool, most: int
) -> TextInput:
    """A text or a pair as a model reads it.

    With `truncate` it loses tokens at its end, of a pair the longer text first.

    Raises:
        SpecError: it is longer than the model reads, and may not be cut.
    """
    limit = min(most, lm.max_length or most)
    framed = lm.settings.taught_task == "classification" or lm.spec.family != "decoder-only"
    (found,) = encode_inputs(
        lm.text_tokenizer, [(text, pair)], max_length=limit, as_documents=framed
    )
    if found.cut and not truncate:
        raise SpecError(
            f"the text has {len(found.ids) + found.cut} tokens, but this model reads at most "
            f"{limit}: shorten it, or ask for truncate."
        )
    return found


def shortened(text: str, pair: str | None, read: TextInput) -> tuple[str, str | None]:
    """A text and its pair without what was not read of them."""
    ends = [0, 0]
    for which, (_, end) in zip(read.texts, read.offsets):
        if which is not None:
            ends[which] = max(ends[which], end)
    return text[: ends[0]], None if pair is None else pair[: ends[1]]


def usual_pooling(lm: LanguageModel) -> Pooling:
    """As `LanguageModel.embed` has it: of a decoder the last token, which alone read all."""
    return "last" if lm.spec.family == "decoder-only" else "mean"
