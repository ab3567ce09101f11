"""Token vectors that are made from the characters of a token."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trivium.errors import SpecError
from trivium.spec.part import Count, Part


class CharacterCNN(Part):
    """Convolutions over the bytes of a token, highway layers, a projection to d_model (ELMo).

        x = [relu(max_p (C_k * e + b_k))_p for every width k]     e: vectors of the bytes
        x = g relu(W x + b) + (1 - g) x,  g = sigmoid(V x + c)    `num_highways` times
        token vector = P x + d

    `filters` are the numbers of filters of widths 1, 2, 3, ... A token is `max_characters` long:
    its UTF-8 bytes, preceded by a begin mark unless the token continues a word, followed by an end
    mark, padded. Source: Kim et al. 2016; Peters et al. 2018, section 3.4, in the form of their
    code.
    """

    d_character: Count = 16
    filters: Annotated[tuple[Count, ...], Field(min_length=1)] = (32, 32, 64, 128, 256, 512, 1024)
    num_highways: Annotated[int, Field(ge=0)] = 2
    max_characters: Annotated[int, Field(ge=3, lt=2**15)] = 50

    def check(self) -> None:
        """Raise SpecError for filters that are wider than a token."""
        if len(self.filters) > self.max_characters:
            raise SpecError(
                f"filters has {len(self.filters)} widths, and a token has {self.max_characters} "
                "characters: leave the widest out, or set a larger max_characters."
            )
