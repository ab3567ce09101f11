"""Fill-in-the-middle: the sentinel tokens of published models, and the order of the prompt.

Source: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trivium.errors import SpecError

Order = Literal["psm", "spm"]
"""Prefix, suffix, middle; or suffix, prefix, middle."""

GAP = "<FILL_ME>"
"""The placeholder with which users mark the gap in a text."""

FIM_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
"""The sentinel tokens of new tokenizers, the same as in Qwen2.5-Coder and CodeGemma."""
_PUBLISHED = (
    FIM_TOKENS,
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    (
        "<\uff5cfim\u2581begin\uff5c>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<\uff5cfim\u2581end\uff5c>",
    ),  # DeepSeek
)


@dataclass(frozen=True)
class InfillTokens:
    """The ids of the sentinel tokens that precede the prefix, the suffix and the middle."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def find(cls, special_tokens: Mapping[str, int]) -> InfillTokens:
        """Return the sentinel tokens of a vocabulary. `special_tokens` maps names to ids.

        Raises SpecError if the vocabulary has no published set of three sentinel tokens.
        """
        for names in _PUBLISHED:
            if all(name in special_tokens for name in names):
                return cls(*(special_tokens[name] for name in names))
        known = "; ".join(", ".join(names) for names in _PUBLISHED)
        raise SpecError(
            "this tokenizer has no tokens to fill in the middle of a text. They are one of "
            f"{known}. A model that starts from another one gets them with "
            "tokenizer.extend_special."
        )

    def arrange(self, prefix: Sequence[int], suffix: Sequence[int], order: Order) -> list[int]:
        """Return the ids of the prompt after which the model generates the middle.

            psm  <prefix> prefix <suffix> suffix <middle>
            spm  <prefix> <suffix> suffix <middle> prefix

        The second order is "SPM variant 2" of the paper (appendix D), as in StarCoder.
        """
        if order == "psm":
            return [self.prefix, *prefix, self.suffix, *suffix, self.middle]
        return [self.prefix, self.suffix, *suffix, self.middle, *prefix]
