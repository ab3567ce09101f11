"""Asking a model to choose: every option scored after its context, the best one taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trivium.errors import TokenizerError
from trivium.inference.continuations import OptionScore, encode_item, score_continuations
from trivium.language_model import LanguageModel
from trivium.text import Tokenizer

Normalise = Literal["sum", "token", "byte"]
NORMALISATIONS: tuple[Normalise, ...] = ("sum", "token", "byte")

_NORMAL_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """The options of one question and what a model thinks of each."""

    options: tuple[str, ...]
    scores: tuple[OptionScore, ...]

    def values(self, normalise: Normalise) -> list[float]:
        """What the options are compared by: nats in all, a token, or a byte of UTF-8."""
        match normalise:
            case "sum":
                return [score.log_probability for score in self.scores]
            case "token":
                return [s.log_probability / max(s.num_tokens, 1) for s in self.scores]
            case _:
                sizes = [len(option.strip().encode()) for option in self.options]
                return [s.log_probability / max(n, 1) for s, n in zip(self.scores, sizes)]

    def best(self, normalise: Normalise) -> int | None:
        """The index of the best option; None where another is exactly as good."""
        values = self.values(normalise)
        top = max(values)
        return values.index(top) if values.count(top) == 1 else None

    @property
    def num_cut(self) -> int:
        """Tokens that were cut from the left of the context."""
        return max(score.num_cut for score in self.scores)

    def to_dict(self) -> list[dict[str, Any]]:
        """One object an option, for JSON."""
        return [
            {
                "option": option,
                "log_probability": score.log_probability,
                "num_tokens": score.num_tokens,
                "greedy": score.greedy,
            }
            for option, score in zip(self.options, self.scores, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many, such as an accuracy, with the 95 % interval of Wilson (1927)."""

    right: int
    count: int

    @property
    def value(self) -> float:
        """right / count, 0 to 1; not a number where nothing was counted."""
        return self.right / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """(p + z^2/2n -+ z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.96."""
        if not self.count:
            return math.nan, math.nan
        share, weight = self.value, _NORMAL_95**2 / self.count
        middle = share + weight / 2
        spread = math.sqrt(weight * (share * (1 - share) + weight / 4))
        low, high = (middle - spread) / (1 + weight), (middle + spread) / (1 + weight)
        return max(low, 0.0), min(high, 1.0)

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        low, high = self.interval
        return {"accuracy": self.value, "low": low, "high": high, "count": self.count}


def score_choice(
    lm: LanguageModel,
    context: str,
    options: Sequence[str],
    *,
    after: str = "",
    blank: str | None = None,
) -> ChoiceScores:
    """What a model thinks of each option after a context, as a decoder would read on.

    An encoder-decoder reads the context and says the option; an encoder scores the option's tokens
    given all others. Contexts that are too long are cut from the left, and it is counted.

    Args:
        lm: the model with its tokenizer.
        context: what is read; blanks at its end are moved to the options.
        options: what may come next, with the blank that parts it from the context, if any.
        after: what stands behind the option, which only an encoder reads.
        blank: for an encoder-decoder that fills blanks: what stands in place of the option in what
            it reads, `after` behind it, and before the option in what it says, such as
            "<extra_id_0>" for a T5 that was only pretrained.

    Raises:
        SpecError: an option longer than the model's positions.
        TokenizerError: the model has no tokenizer, or the tokenizer no mask for an encoder.
    """
    tokenizer = text_tokenizer(lm)
    apart = lm.spec.family == "encoder-decoder"
    said = tuple(options)
    if apart and blank is not None:
        context, after = f"{context.rstrip()} {blank}{after}", ""
        said = tuple(f"{blank} {option.strip()}" for option in options)
    item = encode_item(tokenizer, context, said, after=after, apart=apart)
    (scores,) = score_continuations(
        lm.module, [item], tokenizer=tokenizer, decoder_start=lm.decoder_start(tokenizer), cut=True
    )
    return ChoiceScores(tuple(options), tuple(scores))


def text_tokenizer(lm: LanguageModel) -> Tokenizer:
    """The tokenizer of a model.

    Raises:
        TokenizerError: it has none.
    """
    if lm.tokenizer is None:
        raise TokenizerError(
            "this model was loaded without a tokenizer, which text needs: put a tokenizer.json "
            "into its folder."
        )
    return lm.tokenizer
