"""Recurrent language models and encoders: Elman RNN, LSTM, GRU, bidirectional RNNs, ELMo.

Shape letters: B batch, T positions, M selected positions, D d_model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.models.base_model import LanguageModule, Spec, build_heads, refuse
from trivium.models.heads import Head, HeadInput
from trivium.models.heads.scalar_mix import ScalarMix
from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Initializer, init_uniform
from trivium.models.special_initialization import SpecialInits
from trivium.nn.character_embedding import CharacterCNN, CharacterEmbedding
from trivium.nn.norm import LayerNorm
from trivium.nn.part import Count, DropoutRate, NumLayers, Positive, empty_embedding
from trivium.nn.recurrent import CellState, RecurrentLayers, Sequences
from trivium.nn.sequence_info import gather
from trivium.nn.state import Cache, State

Cell = Literal["elman", "elman-relu", "elman-logistic", "lstm", "gru"]


class RNNSpec(Spec):
    """The spec of a recurrent network: Elman RNN, LSTM, GRU, bidirectional RNN or ELMo.

    `cell` is that of Elman 1990, Hochreiter and Schmidhuber 1997 (LSTM) or Cho 2014 (GRU). The
    activation of the Elman cell is tanh, or ReLU with "elman-relu", or the logistic function with
    "elman-logistic" (as in Mikolov et al. 2010).

    `direction` "forward" is a left-to-right language model. "both" is an encoder in which every
    layer is bidirectional (Schuster and Paliwal 1997). "bilm" is a forward and a backward
    language model that share token embeddings and output matrix (ELMo, Peters et al. 2018). With
    task heads instead of an LM head, a "bilm" model is an encoder. Its hidden states are then the
    concatenated ones of both language models, from the last layer or, with a head "scalar-mix",
    from all layers.

    Token embeddings have width `d_model`, cells `d_hidden`. Hidden states of another width than
    `d_model` are projected to `d_model`. With `d_projection`, every LSTM output is projected to
    that width, also before the recurrent matrices (Sak et al. 2014). With `connections` "residual",
    every layer except the first adds its input to its output. Token embeddings are multiplied by
    `scale`, because tied embeddings start small and cells learn slowly from small inputs. With
    `characters`, token embeddings are computed from the characters of a token. Dropout is applied
    to token embeddings, between layers and to hidden states, but not to recurrent connections
    (Zaremba et al. 2014).
    """

    kind: Literal["rnn"] = "rnn"
    cell: Cell
    d_hidden: Count
    num_layers: NumLayers
    d_projection: Count | None = None
    direction: Literal["forward", "both", "bilm"] = "forward"
    connections: Literal["plain", "residual"] = "plain"
    characters: CharacterCNN | None = None
    scale: Positive = 1.0
    dropout: DropoutRate = 0.0

    def check(self) -> None:
        """Raise SpecError if a head does not fit the direction, or `d_projection` the cell."""
        super().check()
        for head in self.heads:
            if (reason := self._misfit_reason(head)) is not None:
                raise SpecError(
                    f'an RNN of direction "{self.direction}" has no {head.kind} head{reason}.'
                )
            if self.characters and getattr(head, "tied", False):
                raise SpecError(
                    f"characters: the {head.kind} head cannot be tied to token vectors that are "
                    "made from characters: set its tied = false."
                )
        if self.d_projection and (self.cell != "lstm" or self.d_projection >= self.d_hidden):
            raise SpecError(
                f"d_projection = {self.d_projection} is for an LSTM of more cells (d_hidden); this "
                f'is "{self.cell}" with {self.d_hidden}: leave it out.'
            )

    def _misfit_reason(self, head: Head) -> str | None:
        """Return why a head does not fit the direction, as the end of an error; None if it fits."""
        is_lm = isinstance(head, LMHead)
        if self.direction == "both":
            return ': it is an encoder; take an mlm head, or direction "forward"' if is_lm else None
        if head.needs_bidirectional:
            return ': it predicts from one side; take an lm head, or direction "both"'
        if self.is_bilm and is_lm and len(self.heads) > 1:
            return " beside others: it has that head alone, or those of tasks"
        return None

    @property
    def family(self) -> Literal["encoder-only", "decoder-only"]:
        """The architecture: encoder-only if bidirectional, or a biLM without LM head.

        A biLM with an LM head counts as decoder-only, because its forward model generates text.
        """
        encodes = self.direction == "both" or (self.is_bilm and not _has_lm_head(self.heads))
        return "encoder-only" if encodes else "decoder-only"

    @property
    def is_bilm(self) -> bool:
        """Whether the model combines a forward and a backward language model (biLM, as in ELMo)."""
        return self.direction == "bilm"

    @property
    def carries_state(self) -> bool:
        """Whether a row can start with the final state of the row before: the RNN is causal."""
        return self.direction == "forward"

    def with_heads(self, heads: tuple[Head, ...]) -> Self:
        """Return a copy of the spec with these heads; a biLM adds its scalar mix to task heads."""
        if self.scalar_mix is not None and not _has_lm_head(heads):
            heads = (*heads, self.scalar_mix)
        return super().with_heads(heads)

    @property
    def scalar_mix(self) -> ScalarMix | None:
        """The scalar mix of a biLM's layers, if the layers have width `d_model`; otherwise None."""
        fits = self.is_bilm and self.d_layer_output == self.d_model
        return ScalarMix(num_layers=self.num_layers + 1) if fits else None

    @property
    def d_layer_output(self) -> int:
        """The width of a layer's output at each position (both directions together)."""
        return (self.d_projection or self.d_hidden) * (2 if self.direction == "both" else 1)

    def activation_bytes(
        self, length: int, item: int, *, on_cpu: bool, recompute: bool = False
    ) -> int:
        """Return the number of activation bytes per token kept for the backward pass in training.

        Gates (before and after activation), states and outputs are at most 10 numbers per cell, in
        float32. See `Spec.activation_bytes`.
        """
        directions = 1 if self.direction == "forward" else 2
        numbers = 10 * self.d_hidden * self.num_layers * directions + 6 * self.d_model * directions
        if (part := self.characters) is not None:  # as if every token occurred once
            numbers += part.max_characters * part.d_character
            numbers += (4 + 6 * part.num_highways) * sum(part.filters)
        return 4 * numbers

    @property
    def head_config(self) -> HeadInput:
        """The sizes and settings for building heads; a biLM encoder has width 2 d_model."""
        reads_both = self.is_bilm and self.family == "encoder-only"
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_model * (2 if reads_both else 1),
            d_embedding=self.d_model,
            norm=LayerNorm(),
            dropout=self.dropout,
        )

    def build(self) -> RecurrentModel:
        """Return the module with uninitialized weights (see `Spec.build`)."""
        return RecurrentModel(self)


def _has_lm_head(heads: tuple[Head, ...]) -> bool:
    """Return whether `heads` contains an LM head."""
    return any(isinstance(head, LMHead) for head in heads)


class RecurrentStack(nn.Module):
    """One recurrent network: its layers, and a projection to d_model if the widths differ."""

    def __init__(self, model: RNNSpec) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.layers = RecurrentLayers(model)
        self.project: nn.Module = nn.Identity()
        if model.d_layer_output != model.d_model:
            self.project = nn.Linear(model.d_layer_output, model.d_model)

    def forward(
        self,
        tokens: Tensor,
        *,
        sequences: Sequences | None = None,
        backward: bool = False,
        state: CellState | None = None,
        gather_positions: Tensor | None = None,
        every_layer: bool = False,
    ) -> tuple[Any, CellState]:
        """Return hidden states [B, T, D] and the final cell states, for token embeddings [B, T, D].

        With `gather_positions`, hidden states are [M, D]. With `every_layer`, they are a list: the
        token embeddings, then the output of each layer, without the projection.
        """
        x = F.dropout(tokens, self.dropout, self.training)
        options: dict[str, Any] = {"sequences": sequences, "backward": backward, "state": state}
        if every_layer:
            outputs, after = self.layers.every_layer(x, **options)
            return [tokens, *outputs], after
        x, after = self.layers(x, **options)
        x = F.dropout(gather(x, gather_positions), self.dropout, self.training)
        return self.project(x), after


class RecurrentModel(LanguageModule):
    """A forward RNN, a bidirectional RNN, or a forward and a backward RNN (ELMo).

    ELMo's task heads read the concatenated hidden states of both RNNs, [B, T, 2D]. These are the
    outputs of the last layers or, with a head "scalar-mix", a weighted sum of all layers. The token
    embeddings, concatenated with themselves, count as the first layer.
    """

    def __init__(self, model: RNNSpec) -> None:
        super().__init__()
        self.spec = model
        if model.characters is None:
            self.tokens = empty_embedding(model.vocab_size, model.d_model)
        else:
            self.tokens = CharacterEmbedding(model.characters, model.vocab_size, model.d_model)
        self.rnn = RecurrentStack(model)
        self.backward_rnn = RecurrentStack(model) if model.direction == "bilm" else None
        self.heads = build_heads(model)

    def initializer(self) -> RecurrentInitializer:
        """Return the `Initializer` of the weights."""
        return RecurrentInitializer(self)

    @property
    def blocks(self) -> Iterator[RecurrentStack]:
        """The RNN and, in a biLM (ELMo), the backward RNN."""
        return (part for part in (self.rnn, self.backward_rnn) if part is not None)

    def layer_parameters(self) -> list[list[list[nn.Parameter]]]:
        """Return the parameters of every layer; a projection after the last belongs to the last."""
        stacks = [rnn.layers.layer_params() for rnn in self.blocks]
        for layers, rnn in zip(stacks, self.blocks, strict=True):
            layers[-1] += rnn.project.parameters()
        return stacks

    def set_character_ids(self, tokenizer: Any) -> None:
        """Set the characters of every token from a `Tokenizer`, if embeddings use characters."""
        if isinstance(self.tokens, CharacterEmbedding):
            self.tokens.set_character_ids(tokenizer.token_bytes, tokenizer.continues_word())

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """Return an empty cache of cell states, whose size does not depend on `slot_length`."""
        rnn = self.spec
        if rnn.family == "encoder-only":
            return super().new_cache(slots, slot_length)
        widths = (rnn.d_layer_output, rnn.d_hidden) if rnn.cell == "lstm" else (rnn.d_layer_output,)
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
        gather_positions: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the last layer's hidden states [B, T, D], or [M, D] with `gather_positions`.

        A biLM (ELMo) with an LM head returns the hidden states of its forward model. A biLM with
        task heads returns those of both models, [B, T, 2D]. Arguments are as in `Transformer.read`.
        Padding leaves the state unchanged, document id 0 is padding, and every document starts from
        a zero state. `position_ids` are not used. No gradient flows into the cache.

        Raises:
            SpecError: an attention mask or document ids are given together with a cache.
        """
        tokens = self._token_embeddings(input_ids)
        if cache is None:
            sequences = find_sequences(input_ids, attention_mask, document_ids)
            if self.spec.is_bilm and self.spec.family == "encoder-only":
                hidden = self._task_hidden_states(tokens, sequences)
                return gather(hidden, gather_positions)
            return self.rnn(tokens, sequences=sequences, gather_positions=gather_positions)[0]
        refuse("a cache takes no", attention_mask=attention_mask, document_ids=document_ids)
        cache_slice = cache.start_pass(len(input_ids), input_ids.shape[1], slots, lengths)
        state, read, sequences = cache.states[0], cache_slice, None
        if (real := cache_slice.is_token(input_ids.device)) is not None:
            sequences = Sequences.from_mask(real)
            slots = cache_slice.slots(len(input_ids), input_ids.device)
            read = replace(cache_slice, rows=slots[sequences.rows])  # rows with any token
        before = tuple(part.transpose(0, 1).contiguous() for part in state.read(read))
        hidden, after = self.rnn(
            tokens, sequences=sequences, state=before, gather_positions=gather_positions
        )
        state.write(read, *(part.transpose(0, 1) for part in after))
        cache.end_pass(cache_slice)
        return hidden

    def two_ways(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states [B, 2, T, D] of the forward and the backward model of a biLM.

        At position t, the forward model has read tokens up to t and predicts token t + 1. The
        backward model has read tokens from t to the end and predicts token t - 1.

        Raises:
            SpecError: the model is not a biLM (`direction` "bilm").
        """
        if self.backward_rnn is None:
            raise SpecError(
                f'this model has direction "{self.spec.direction}": a bidirectional language model '
                'needs direction "bilm".'
            )
        sequences = find_sequences(input_ids, attention_mask, document_ids)
        return torch.stack(self._run_both(self._token_embeddings(input_ids), sequences), 1)

    def _run_both(
        self, tokens: Tensor, sequences: Sequences | None, *, every_layer: bool = False
    ) -> tuple[Any, Any]:
        """Return the hidden states of the forward and of the backward RNN for token embeddings."""
        assert self.backward_rnn is not None
        options: dict[str, Any] = {"sequences": sequences, "every_layer": every_layer}
        forward, _ = self.rnn(tokens, **options)
        backward, _ = self.backward_rnn(tokens, backward=True, **options)
        return forward, backward

    def _task_hidden_states(self, tokens: Tensor, sequences: Sequences | None) -> Tensor:
        """Return the hidden states [B, T, 2D] that a biLM's task heads read.

        `tokens` are token embeddings [B, T, D].
        """
        if "scalar-mix" not in self.heads:
            return torch.cat(self._run_both(tokens, sequences), -1)
        layers = zip(*self._run_both(tokens, sequences, every_layer=True))
        mixed = self.heads["scalar-mix"](torch.cat(pair, -1) for pair in layers)
        return F.dropout(mixed, self.spec.dropout, self.training)

    def _token_embeddings(self, input_ids: Tensor) -> Tensor:
        """Return token embeddings [B, T, D], multiplied by `scale`."""
        tokens = self.tokens(input_ids)
        return tokens if self.spec.scale == 1.0 else tokens * self.spec.scale


def find_sequences(
    input_ids: Tensor, attention_mask: Tensor | None, document_ids: Tensor | None
) -> Sequences | None:
    """Return where the sequences of a batch [B, T] are; None: each row is one unpadded sequence."""
    if attention_mask is None and document_ids is None:
        return None
    real = torch.ones_like(input_ids, dtype=torch.bool)
    if attention_mask is not None:
        real = attention_mask.bool()
    if document_ids is not None:
        real = real & (document_ids != 0)
    return Sequences.from_mask(real, document_ids)


class RecurrentInitializer(Initializer):
    """Initializer of the weights of RNNs and of the feed-forward n-gram model.

    Token embeddings and output matrices are uniform in +-0.1 (Zaremba et al. 2014). Recurrent
    matrices are uniform in +-d_hidden^-0.5 as in PyTorch, and other matrices are uniform as in
    Glorot and Bengio 2010. Biases are 0,
    except 1 for the forget gates of an LSTM (Jozefowicz et al. 2015).
    """

    def __init__(self, model: LanguageModule) -> None:
        super().__init__(None, model)
        self.tables = self.names_of(model.vocabulary_tables)

    def init_vector(self, name: str, weight: Tensor) -> None:
        """Initialize biases to 0, except to 1 for the forget gates of an LSTM."""
        super().init_vector(name, weight)
        if ".bias_ih_" in name and getattr(self.model.spec, "cell", None) == "lstm":
            hidden = self.model.spec.d_hidden
            weight[hidden : 2 * hidden] = 1.0

    def init_matrix(self, name: str, weight: Tensor, generator: torch.Generator) -> None:
        """Initialize a matrix uniformly, with the bound for its kind (see the class)."""
        hidden = self.model.spec.d_hidden
        if name in self.tables:
            bound = 0.1
        elif ".weight_hh_" in name:
            bound = hidden**-0.5
        else:
            outputs = hidden if ".weight_ih_" in name else len(weight)  # of one gate
            bound = math.sqrt(6.0 / (outputs + weight.shape[1]))
        init_uniform(weight, bound, generator)

    def special_inits(self) -> SpecialInits:
        """Yield nothing, because recurrent models have no special initialization of attention."""
        return iter(())
