"""Token embeddings from characters: convolutions, highway layers and a projection (ELMo).

Shape letters: V vocabulary, U tokens, L characters of a token, E d_character, F filters, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.part import Count, Part, PartModule


class CharacterCNN(Part):
    """Spec of token embeddings from a character CNN with highway layers (ELMo).

        x = [relu(max_p (C_k * e + b_k)_p) for every width k]     e: byte embeddings
        x = g relu(W x + b) + (1 - g) x,  g = sigmoid(V x + c)    `num_highways` times
        token embedding = P x + d

    The characters of a token are its UTF-8 bytes. A begin-of-word character precedes them unless
    the token continues a word, and an end-of-word character follows them. The result is padded or
    truncated to `max_characters`.

    Args:
        d_character: the width of a byte embedding, E.
        filters: the numbers of convolution filters of widths 1, 2, 3, ...
        num_highways: the number of highway layers.
        max_characters: the number of characters of a token, including the begin-of-word and
            end-of-word characters and padding.

    Source: Kim et al. 2016; Peters et al. 2018, section 3.4, in the form of their code.
    """

    d_character: Count = 16
    filters: Annotated[tuple[Count, ...], Field(min_length=1)] = (32, 32, 64, 128, 256, 512, 1024)
    num_highways: Annotated[int, Field(ge=0)] = 2
    max_characters: Annotated[int, Field(ge=3, lt=2**15)] = 50

    def check(self) -> None:
        """Raise SpecError if a convolution filter is wider than `max_characters`."""
        if len(self.filters) > self.max_characters:
            raise SpecError(
                f"filters has {len(self.filters)} widths, and a token has {self.max_characters} "
                "characters: leave the widest out, or set a larger max_characters."
            )


_BEGIN, _END, _PADDING = 256, 257, 258  # ids after those of the 256 bytes


class CharacterEmbedding(PartModule):
    """Module of a `CharacterCNN`. The embedding of each distinct token is computed once per batch.

    `character_ids`, int16 [V, L], contains the characters of every token of the vocabulary. They
    are set by `set_character_ids`. Until then, the characters of a token are the digits of its id.
    """

    character_ids: Tensor

    def __init__(self, part: CharacterCNN, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.part, width = part, sum(part.filters)
        self.characters = nn.Embedding.from_pretrained(
            torch.empty(_PADDING + 1, part.d_character), freeze=False
        )
        self.convolutions = nn.ModuleList(
            nn.Conv1d(part.d_character, count, size) for size, count in enumerate(part.filters, 1)
        )
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(part.num_highways))
        self.transforms = nn.ModuleList(nn.Linear(width, width) for _ in range(part.num_highways))
        self.project = nn.Linear(width, d_model)
        shape = vocab_size, part.max_characters
        self.register_buffer("character_ids", torch.empty(shape, dtype=torch.int16))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the weights as in the authors' code, and reset `character_ids`.

        Byte embeddings are uniform in +-1, and filters are uniform in +-0.05 (Kim et al. 2016).
        Matrices are normal with standard deviation F^-0.5. The biases of the highway gates are -2,
        and other biases are 0.
        """
        nn.init.uniform_(self.characters.weight, -1.0, 1.0, generator=generator)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(weight, -2.0 if name.startswith("gates.") else 0.0)
            elif name.startswith("convolutions."):
                nn.init.uniform_(weight, -0.05, 0.05, generator=generator)
            elif not name.startswith("characters."):
                nn.init.normal_(weight, 0.0, weight.shape[1] ** -0.5, generator=generator)
        names = [str(index).encode() for index in range(len(self.character_ids))]
        self.set_character_ids(names, [False] * len(names))

    def set_character_ids(self, tokens: Sequence[bytes], continues_word: Sequence[bool]) -> None:
        """Set the characters of the tokens with the ids 0, 1, 2, ..., one per item of `tokens`.

        Args:
            tokens: the UTF-8 bytes of each token.
            continues_word: for each token, whether it continues a word.
        """
        longest = self.part.max_characters
        rows = np.full((len(tokens), longest), _PADDING, dtype=np.int16)
        for row, data, inside in zip(rows, tokens, continues_word, strict=True):
            begin = [] if inside else [_BEGIN]
            characters = [*begin, *data[: longest - len(begin) - 1], _END]
            row[: len(characters)] = characters
        self.character_ids[: len(rows)] = torch.from_numpy(rows)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of token ids: int64 [...] -> [..., D]."""
        ids, place = input_ids.unique(return_inverse=True)
        return F.embedding(place, self.read(self.character_ids[ids]))

    def read(self, characters: Tensor) -> Tensor:
        """Compute token embeddings from character ids: int16 [U, L] -> [U, D]."""
        # Windows after the longest token contain only padding and are equal: one of them suffices
        # for the maximum.
        longest = int((characters != _PADDING).sum(1).max()) + len(self.convolutions)
        letters = self.characters(characters[:, :longest].long()).transpose(1, 2)  # [U, E, L]
        pooled = [convolution(letters).max(-1).values for convolution in self.convolutions]
        x = torch.cat(pooled, -1).relu()
        for gate, transform in zip(self.gates, self.transforms, strict=True):
            x = x.lerp(transform(x).relu(), gate(x).sigmoid())
        return self.project(x)
