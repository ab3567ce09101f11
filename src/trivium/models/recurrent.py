"""Recurrent language models and encoders: Elman's network, LSTM, GRU, both ways, ELMo's two ways.

Shape letters: B batch, T positions, M selected positions, D d_model, W width of the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.headed import HeadedModel, build_heads, empty_table
from trivium.nn.recurrent import RecurrentCache, RecurrentLayers, Texts, find_texts


class Reading(nn.Module):
    """One way through a text: the layers, and a matrix to d_model where their width is another."""

    def __init__(self, model: spec.RNNSpec) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.layers = RecurrentLayers(model)
        self.project: nn.Module = nn.Identity()
        if model.d_state != model.d_model:
            self.project = nn.Linear(model.d_state, model.d_model)

    def forward(
        self,
        tokens: Tensor,
        *,
        texts: Texts | None,
        backwards: bool = False,
        cache: RecurrentCache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Token vectors [B, T, D] -> hidden states [B, T, D], or those of `select`: [M, D]."""
        x = F.dropout(tokens, self.dropout, self.training)
        x = self.layers(x, texts=texts, backwards=backwards, cache=cache)
        if select is not None:
            x = x.flatten(0, 1).index_select(0, select)
        return self.project(F.dropout(x, self.dropout, self.training))


class RecurrentModel(HeadedModel):
    """An RNN that reads forward, both ways in every layer, or two ways side by side.

    The forward pass gives hidden states as a Transformer's does; the heads are the same.
    """

    def __init__(self, model: spec.RNNSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_table(model.vocab_size, model.d_model)
        self.reading = Reading(model)
        self.back_reading = Reading(model) if model.direction == "two-way" else None
        self.heads = build_heads(model)

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """One or two readings."""
        return (part for part in (self.reading, self.back_reading) if part is not None)

    def new_cache(self, batch: int, max_length: int) -> RecurrentCache:
        """The states of `batch` texts; see `Transformer.new_cache`.

        Raises:
            SpecError: the model reads both ways.
        """
        if self.spec.direction == "both":
            raise SpecError("an encoder sees every token at once: it has no cache to go on with.")
        return RecurrentCache(batch, max_length)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: RecurrentCache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the last layer; of a two-way model those of its forward half.

        Args:
            input_ids: int64 [B, T].
            attention_mask: [B, T], nonzero where a token is real; what is not real leaves the state
                as it was. With a cache it may cover the tokens before too.
            token_type_ids: not taken: a recurrent network has no token types.
            position_ids: not needed: the state knows the order.
            document_ids: int64 [B, T], 0 for padding; each document begins with an empty state.
            cache: states after earlier tokens, replaced by those after these.
            select: int64 [M], flat positions in B * T whose hidden states are wanted.

        Returns:
            [B, T, D], or [M, D] with `select`.

        Raises:
            SpecError: token types, or documents together with a cache.
        """
        _refuse(token_type_ids, document_ids, cache)
        texts = find_texts(input_ids, attention_mask, document_ids)
        hidden = self.reading(self._vectors(input_ids), texts=texts, cache=cache, select=select)
        if cache is not None:
            cache.length += input_ids.shape[1]
        return hidden

    def two_ways(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after reading from the left and from the right; as in `forward`.

        At a position the first has read all up to it and tells the token after it, the second
        has read all from it on and tells the token before it.

        Returns:
            [B, 2, T, D].

        Raises:
            SpecError: the model does not read two ways.
        """
        if self.back_reading is None:
            raise SpecError(
                f'this model reads "{self.spec.direction}": a bidirectional language model needs '
                'direction "two-way".'
            )
        _refuse(token_type_ids, document_ids, None)
        texts, tokens = (
            find_texts(input_ids, attention_mask, document_ids),
            self._vectors(input_ids),
        )
        forward = self.reading(tokens, texts=texts)
        return torch.stack((forward, self.back_reading(tokens, texts=texts, backwards=True)), 1)

    def _vectors(self, input_ids: Tensor) -> Tensor:
        tokens = self.tokens(input_ids)
        return tokens if self.spec.scale == 1.0 else tokens * self.spec.scale


def _refuse(
    token_type_ids: Tensor | None, document_ids: Tensor | None, cache: RecurrentCache | None
) -> None:
    if token_type_ids is not None:
        raise SpecError("a recurrent model has no token types: leave token_type_ids out.")
    if document_ids is not None and cache is not None:
        raise SpecError("a cache holds one text a row: give no document_ids with it.")


@torch.no_grad()
def initialize_recurrent(model: RecurrentModel, seed: int) -> None:
    """Draw the starting weights from a seed, the same on every device.

    Token vectors uniform in +-0.1 (Zaremba et al. 2014), matrices from inputs as Glorot and Bengio
    2010, recurrent ones uniform in +-d_hidden^-0.5 as PyTorch's, which forget at first; biases 0,
    but 1 for the forget gates of an LSTM (Jozefowicz et al. 2015).
    """
    generator, hidden = torch.Generator().manual_seed(seed), model.spec.d_hidden
    tables = {id(table) for table in model.vocabulary_tables}
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            if model.spec.cell == "lstm" and ".bias_ih_" in name:
                weight[hidden : 2 * hidden] = 1.0
        else:
            rows = hidden if ".weight_ih_" in name else len(weight)
            bound = math.sqrt(6.0 / (rows + weight.shape[1]))
            if id(weight) in tables:
                bound = 0.1
            elif ".weight_hh_" in name:
                bound = hidden**-0.5
            weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
