"""Recurrent language models and encoders: Elman's network, LSTM, GRU, bidirectional ones, ELMo.

Shape letters: B batch, T positions, M selected positions, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.base_model import LanguageModule, build_heads, empty_table, refuse
from trivium.nn.character_embedding import CharacterEmbedding
from trivium.nn.recurrent import CellState, RecurrentLayers, Sequences
from trivium.nn.state import Cache, State


class RecurrentStack(nn.Module):
    """One direction through a text: the layers, and a matrix to d_model where widths differ."""

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
        sequences: Sequences | None = None,
        backward: bool = False,
        state: CellState | None = None,
        select: Tensor | None = None,
        every_layer: bool = False,
    ) -> tuple[Any, CellState]:
        """Token vectors [B, T, D] -> hidden states [B, T, D] or [M, D], and the last states.

        With `every_layer` a list of what layers make, as wide as token vectors, and of these first.
        """
        x = F.dropout(tokens, self.dropout, self.training)
        options: dict[str, Any] = {"sequences": sequences, "backward": backward, "state": state}
        if every_layer:
            outputs, after = self.layers.every_layer(x, **options)
            return [tokens, *outputs], after
        x, after = self.layers(x, **options)
        if select is not None:
            x = x.flatten(0, 1).index_select(0, select)
        return self.project(F.dropout(x, self.dropout, self.training)), after


class RecurrentModel(LanguageModule, of=spec.RNNSpec):
    """An RNN that reads forward, both ways in every layer, or in two separate directions (ELMo).

    The heads of a task read both directions of ELMo, [B, T, 2D]: their last layers or, with a head
    "scalar-mix", all of them, the token vectors twice.
    """

    def __init__(self, model: spec.RNNSpec) -> None:
        super().__init__()
        self.spec = model
        if model.characters is None:
            self.tokens = empty_table(model.vocab_size, model.d_model)
        else:
            self.tokens = CharacterEmbedding(model.characters, model.vocab_size, model.d_model)
        self.rnn = RecurrentStack(model)
        self.backward_rnn = RecurrentStack(model) if model.direction == "two-way" else None
        self.heads = build_heads(model)

    @property
    def blocks(self) -> Iterator[RecurrentStack]:
        """The RNN, and ELMo's backward one."""
        return (part for part in (self.rnn, self.backward_rnn) if part is not None)

    def stack_weights(self) -> list[list[list[nn.Parameter]]]:
        """See `LanguageModule.stack_weights`."""
        stacks = [rnn.layers.weights() for rnn in self.blocks]
        for layers, rnn in zip(stacks, self.blocks, strict=True):
            layers[-1] += rnn.project.parameters()
        return stacks

    def set_character_ids(self, tokenizer: Any) -> None:
        """See `LanguageModule.set_character_ids`."""
        if isinstance(self.tokens, CharacterEmbedding):
            self.tokens.set_character_ids(tokenizer.token_bytes, tokenizer.continues_word())

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """See `LanguageModule.new_cache`. States have a size of their own, whatever the length."""
        rnn = self.spec
        if rnn.family == "encoder-only":
            return super().new_cache(slots, slot_length)
        widths = (rnn.d_state, rnn.d_hidden) if rnn.cell == "lstm" else (rnn.d_state,)
        parts = (
            torch.zeros(slots, rnn.num_layers, width, dtype=self.dtype, device=self.device)
            for width in widths
        )
        return Cache(slots, slot_length, [State(*parts)], device=self.device)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        select: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the last layer, [B, T, D], or [M, D] with `select`; of ELMo's forward
        model, or of an encoder what its heads read.

        Arguments are as in `Transformer.read`. Padding leaves the state as it was, document 0 is
        padding, and every document begins with a state of zeros. `position_ids` are not needed.
        Gradients end at what a cache holds.

        Raises:
            SpecError: a mask or documents together with a cache.
        """
        tokens = self._vectors(input_ids)
        if cache is None:
            sequences = find_sequences(input_ids, attention_mask, document_ids)
            if self.spec.two_way and self.spec.family == "encoder-only":
                hidden = self._task_states(tokens, sequences)
                return hidden if select is None else hidden.flatten(0, 1).index_select(0, select)
            return self.rnn(tokens, sequences=sequences, select=select)[0]
        refuse("a cache takes no", attention_mask=attention_mask, document_ids=document_ids)
        span = cache.begin(len(input_ids), input_ids.shape[1], slots, lengths)
        state, read, sequences = cache.states[0], span, None
        if (real := span.real(input_ids.device)) is not None:
            sequences = Sequences.find(real)
            slots = span.slots(len(input_ids), input_ids.device)
            read = replace(span, rows=slots[sequences.rows])  # those with any token
        before = tuple(part.transpose(0, 1).contiguous() for part in state.read(read))
        hidden, after = self.rnn(tokens, sequences=sequences, state=before, select=select)
        state.write(read, *(part.transpose(0, 1) for part in after))
        cache.advance(span)
        return hidden

    def two_ways(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the forward and the backward model of ELMo: [B, 2, T, D].

        At a position the first has read all tokens up to it and predicts the next one; the second
        has read all tokens from it on and predicts the one before.

        Raises:
            SpecError: the model is not "two-way".
        """
        if self.backward_rnn is None:
            raise SpecError(
                f'this model has direction "{self.spec.direction}": a bidirectional language model '
                'needs direction "two-way".'
            )
        sequences = find_sequences(input_ids, attention_mask, document_ids)
        return torch.stack(self._two_ways(self._vectors(input_ids), sequences), 1)

    def _two_ways(
        self, tokens: Tensor, sequences: Sequences | None, *, every_layer: bool = False
    ) -> tuple[Any, Any]:
        """What the forward and the backward stack make of token vectors."""
        assert self.backward_rnn is not None
        options: dict[str, Any] = {"sequences": sequences, "every_layer": every_layer}
        forward, _ = self.rnn(tokens, **options)
        backward, _ = self.backward_rnn(tokens, backward=True, **options)
        return forward, backward

    def _task_states(self, tokens: Tensor, sequences: Sequences | None) -> Tensor:
        """What the heads of a task read: token vectors [B, T, D] -> [B, T, 2D]."""
        if "scalar-mix" not in self.heads:
            return torch.cat(self._two_ways(tokens, sequences), -1)
        layers = zip(*self._two_ways(tokens, sequences, every_layer=True))
        mixed = self.heads["scalar-mix"](torch.cat(pair, -1) for pair in layers)
        return F.dropout(mixed, self.spec.dropout, self.training)

    def _vectors(self, input_ids: Tensor) -> Tensor:
        tokens = self.tokens(input_ids)
        return tokens if self.spec.scale == 1.0 else tokens * self.spec.scale


def find_sequences(
    input_ids: Tensor, attention_mask: Tensor | None, document_ids: Tensor | None
) -> Sequences | None:
    """The texts of a batch [B, T]; None where every row is one text from end to end."""
    if attention_mask is None and document_ids is None:
        return None
    real = torch.ones_like(input_ids, dtype=torch.bool)
    if attention_mask is not None:
        real = attention_mask.bool()
    if document_ids is not None:
        real = real & (document_ids != 0)
    return Sequences.find(real, document_ids)
