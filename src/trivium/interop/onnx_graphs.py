"""The modules that become ONNX graphs: an encoder with its head, a decoder, an encoder-decoder.

Each module calls the model's own modules and takes keys and values as explicit inputs. The names of
inputs and outputs are those of Optimum and transformers.js.

Shape letters: B batch, T new tokens, P tokens in the cache, S positions of the encoder, K key-value
heads, H head_dim, D d_model, V vocabulary, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.models import Transformer
from trivium.models.heads.text import Pooling, pool
from trivium.nn.mixers.attention import Attention
from trivium.nn.sequence_info import EncoderOutput, SequenceInfo
from trivium.nn.state import Cache, CacheSlice, CrossAttentionCache, State

Axes = Mapping[int, str]
_BATCH, _LENGTH = "batch_size", "sequence_length"
_SOURCE, _PAST = "encoder_sequence_length", "past_sequence_length"
_TOTAL = "total_sequence_length"
_TEXT: Axes = {0: _BATCH, 1: _LENGTH}
# Sizes of the example inputs. They differ, so that no two axes are taken for one.
_EXAMPLE = {_BATCH: 2, _LENGTH: 3, _SOURCE: 7, _PAST: 5, _TOTAL: 3 + 5}


@dataclass(frozen=True)
class Graph:
    """A module that becomes one ONNX file.

    Args:
        module: the module, which returns a tuple of tensors.
        inputs: the example inputs of `forward`, in its order, by their names in the file.
        outputs: the names of the outputs, in order.
        axes: the names of the axes of variable length, for each input and output.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]
    axes: Mapping[str, Axes]


class TextGraph(nn.Module):
    """Token ids to the outputs of the heads: a model that reads the whole text at once.

    With `pooling`, and in a model without logits, the first outputs are `last_hidden_state` and
    `sentence_embedding`, the embedding that `embed` returns.

    Args:
        model: a model with one stack.
        pooling: how hidden states become an embedding; None: only a model without logits has
            embeddings, the mean of its hidden states.
        normalize: whether embeddings are scaled to length 1.
    """

    def __init__(
        self, model: Transformer, pooling: Pooling | None = None, *, normalize: bool = True
    ) -> None:
        super().__init__()
        self.model, self.normalize = model, normalize
        self.pooling: Pooling = pooling or "mean"
        self.kinds = [head.kind for head in model.spec.heads if head.predicts]
        self.outputs = [name for kind in self.kinds for name in _HEAD_OUTPUTS[kind]]
        if pooling is not None or not {"logits", "start_logits"} & {*self.outputs}:
            self.outputs = ["last_hidden_state", "sentence_embedding", *self.outputs]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the outputs named in `outputs`, in float32.

        Args:
            input_ids: int64 [B, T].
            attention_mask: int64 [B, T], 0 for padding, which is on the right in a decoder.
            token_type_ids: int64 [B, T]; only for a model with token types.
        """
        mask = attention_mask.bool()
        hidden = self.model(input_ids, attention_mask=mask, token_type_ids=token_type_ids)
        named = {"last_hidden_state": hidden}
        if "sentence_embedding" in self.outputs:
            named["sentence_embedding"] = self._embed(hidden, mask)
        for kind in self.kinds:
            y = self.model.logits(hidden, kind, attention_mask=mask)
            parts = y.unbind(-1) if kind == "span" else [y]
            named |= dict(zip(_HEAD_OUTPUTS[kind], parts, strict=True))
        if "replaced-token" in self.kinds:
            named["logits"] = named["logits"].squeeze(-1)
        return tuple(named[name].float() for name in self.outputs)

    def _embed(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return embeddings of texts, [B, D], for hidden states [B, T, D] and their mask [B, T]."""
        vectors = pool(hidden, mask, self.pooling)
        if "vector" in self.model.heads:
            vectors = self.model.heads["vector"](vectors)
        return F.normalize(vectors, dim=-1) if self.normalize else vectors


# The outputs of each kind of head, as in the classes of `transformers`.
_HEAD_OUTPUTS: Mapping[str, Sequence[str]] = {
    "mlm": ["logits"],
    "lm": ["logits"],
    "classifier": ["logits"],
    "tagger": ["logits"],
    "replaced-token": ["logits"],
    "span": ["start_logits", "end_logits"],
    "nsp": ["seq_relationship_logits"],
    "pooler": ["pooler_output"],
}


class EncoderGraph(nn.Module):
    """The encoder of an encoder-decoder: token ids to `last_hidden_state`."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        """Return the encoder's output [B, S, D] in float32, for int64 [B, S] inputs."""
        hidden = self.model.encode(input_ids, attention_mask=attention_mask.bool())
        return (hidden.float(),)


class CachedGraph(nn.Module):
    """A decoder whose keys and values of earlier tokens are inputs and outputs.

    Args:
        model: a decoder, or an encoder-decoder.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        assert model.decoder is not None
        self.model, self.decoder = model, model.decoder

    def decode(
        self,
        input_ids: Tensor,
        past: Sequence[Tensor],
        *,
        positions: Tensor | None = None,
        source: Sequence[Tensor] = (),
        encoder: EncoderOutput | None = None,
        custom: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the decoder on new tokens.

        Args:
            input_ids: int64 [B, T].
            past: the keys and values [B, K, P, H] of every layer.
            positions: int64 [B, T]; None: the indices in the row.
            source: the keys and values [B, K, S, H] of the encoder's output in every layer.
            encoder: the padding mask of the encoder's output.
            custom: bool [B, 1, 1, P + T], False for padding.

        Returns:
            Logits [B, T, V] in float32, and keys and values [B, K, P + T, H] of every layer.
        """
        before, length, dtype = past[0].shape[2], input_ids.shape[1], self.model.dtype
        columns = (before + torch.arange(length, device=input_ids.device))[None]
        cache = _GraphCache(*([part.to(dtype) for part in parts] for parts in (past, source)))
        sequence = SequenceInfo(
            positions=columns if positions is None else positions,
            columns=columns,
            causal=True,
            custom=custom,
            # `start` as a tensor, so that no branch depends on its value.
            cache_slice=CacheSlice(slice(None), columns[:, 0], length, None, before + length),
            encoder=encoder,
        )
        hidden, _ = self.decoder(self.model.tokens(input_ids), sequence, cache=cache)
        states = [part.float() for state in cache.states for part in state.tensors]
        return self.model.logits(hidden).float(), states


class DecoderGraph(CachedGraph):
    """New tokens and the keys and values of earlier ones to logits and all keys and values."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Return logits [B, T, V], and keys and values [B, K, P + T, H] of every layer.

        Args:
            input_ids: int64 [B, T], the new tokens.
            attention_mask: int64 [B, P + T], 0 for padding among earlier and new tokens.
            position_ids: int64 [B, T].
            past: the keys and values [B, K, P, H] of every layer in float32; P may be 0.
        """
        padding = attention_mask.bool()[:, None, None]
        logits, states = self.decode(input_ids, past, custom=padding, positions=position_ids)
        return (logits, *states)


class CrossDecoderGraph(CachedGraph):
    """The decoder of an encoder-decoder, which also caches keys and values of the encoder's output.

    One graph serves the first step and all others. In the first step the cached keys and values of
    the encoder's output have no positions (S = 0), so the graph computes them. Afterwards they have
    as many positions as the output, of which no more is to be computed.
    """

    def forward(
        self,
        encoder_attention_mask: Tensor,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        *past: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return logits [B, T, V], and keys and values of every layer.

        Args:
            encoder_attention_mask: int64 [B, S], 0 for padding.
            input_ids: int64 [B, T], the new tokens.
            encoder_hidden_states: the encoder's output [B, S, D].
            past: for every layer the keys and values of the decoder [B, K, P, H] and those of the
                encoder's output [B, K, 0 or S, H], in float32.
        """
        source = []
        pairs = zip(past[2::4], past[3::4], strict=True)
        for layer, cached in zip(self.decoder.every_layer, pairs, strict=True):
            assert layer.cross_attention is not None
            rest = encoder_hidden_states[:, cached[0].shape[2] :].to(self.model.dtype)
            new = layer.cross_attention.project_kv(rest)
            source += [torch.cat((old, more.float()), 2) for old, more in zip(cached, new)]
        own = [part for i, part in enumerate(past) if i % 4 < 2]
        encoder = EncoderOutput(None, encoder_attention_mask.bool())
        logits, states = self.decode(input_ids, own, source=source, encoder=encoder)
        pairs = zip(states[::2], states[1::2], source[::2], source[1::2], strict=True)
        return (logits, *(part for layer in pairs for part in layer))


class _PastKeyValues(State):
    """Keys and values [B, K, P, H] of earlier tokens, to which those of new tokens are appended."""

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """Return the indices of all tokens, int64 [1, P + T]. See `KVCache.columns`."""
        return torch.arange(cache_slice.end, device=new.device)[None]

    def append(self, cache_slice: CacheSlice, *new: Tensor) -> tuple[Tensor, ...]:
        """Return the earlier and the new keys and values, which are kept in `tensors`."""
        self.tensors = tuple(torch.cat(parts, 2) for parts in zip(self.tensors, new, strict=True))
        return self.tensors


class _GraphCache(Cache):
    """The inputs of a graph as a cache: keys and values of earlier tokens and of the encoder."""

    def __init__(self, past: Sequence[Tensor], source: Sequence[Tensor]) -> None:
        self.states = [_PastKeyValues(*pair) for pair in zip(past[::2], past[1::2])]
        self.cross_caches = []
        for pair in zip(source[::2], source[1::2]):
            self.cross_caches.append(CrossAttentionCache())
            self.cross_caches[-1].tensors = pair
        self.feed_forward_states = ()

    def end_pass(self, cache_slice: CacheSlice) -> None:
        """Do nothing: the lengths are in the shapes of keys and values."""


def text_graph(model: Transformer, pooling: Pooling | None, *, normalize: bool) -> Graph:
    """Return the graph of a model that reads the whole text at once."""
    module = TextGraph(model, pooling, normalize=normalize)
    names = ["input_ids", "attention_mask"]
    if model.spec.num_token_types > 1:
        names.append("token_type_ids")
    axes = dict.fromkeys(names, _TEXT)
    for name in module.outputs:
        per_text = name in ("sentence_embedding", "pooler_output", "seq_relationship_logits")
        per_text |= "classifier" in module.kinds and name == "logits"
        axes[name] = {0: _BATCH} if per_text else _TEXT
    return Graph(module, _example_inputs(names, axes, {}), module.outputs, axes)


def decoder_graph(model: Transformer) -> Graph:
    """Return the graph of a decoder with its cache."""
    sizes = _cache_sizes(model, "past_key_values.{}.{}", _PAST)
    names = ["input_ids", "attention_mask", "position_ids"]
    axes = {"input_ids": _TEXT, "attention_mask": {0: _BATCH, 1: _TOTAL}, "position_ids": _TEXT}
    return _cached_graph(DecoderGraph(model), names, axes, sizes)


def encoder_graph(model: Transformer) -> Graph:
    """Return the graph of the encoder of an encoder-decoder."""
    axes: dict[str, Axes] = {name: {0: _BATCH, 1: _SOURCE} for name in _ENCODER_NAMES}
    inputs = _example_inputs(_ENCODER_NAMES[:2], axes, {})
    return Graph(EncoderGraph(model), inputs, _ENCODER_NAMES[2:], axes)


_ENCODER_NAMES = ["input_ids", "attention_mask", "last_hidden_state"]


def cross_decoder_graph(model: Transformer) -> Graph:
    """Return the graph of the decoder of an encoder-decoder with its caches."""
    own = _cache_sizes(model, "past_key_values.{}.decoder.{}", _PAST)
    cross = _cache_sizes(model, "past_key_values.{}.encoder.{}", "encoder_past_length")
    pairs = [[*sizes.items()] for sizes in (own, cross)]
    sizes = {
        name: size
        for i in range(0, len(own), 2)
        for name, size in (*pairs[0][i : i + 2], *pairs[1][i : i + 2])
    }
    names = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    source = {0: _BATCH, 1: _SOURCE}
    axes = {"encoder_attention_mask": source, "input_ids": _TEXT, "encoder_hidden_states": source}
    return _cached_graph(CrossDecoderGraph(model), names, axes, sizes)


def _cached_graph(
    module: CachedGraph,
    names: Sequence[str],
    axes: Mapping[str, Axes],
    sizes: Mapping[str, tuple[str, int, int]],
) -> Graph:
    """Return the graph of a module with cached keys and values.

    Args:
        module: the module.
        names: the inputs before the keys and values.
        axes: their axes.
        sizes: the name of the length, the number of heads and head_dim of all keys and values.
    """
    axes = dict(axes)
    presents = []
    for name, (length, _, _) in sizes.items():
        present = name.replace("past_key_values", "present")
        presents.append(present)
        axes[name] = {0: _BATCH, 2: length}
        axes[present] = {0: _BATCH, 2: _TOTAL if length == _PAST else _SOURCE}
    axes["logits"] = _TEXT
    inputs = _example_inputs([*names, *sizes], axes, sizes, module.model.spec.d_model)
    return Graph(module, inputs, ["logits", *presents], axes)


def _cache_sizes(model: Transformer, name: str, length: str) -> dict[str, tuple[str, int, int]]:
    """Return the length, number of heads and head_dim of the keys and values of every layer."""
    assert model.spec.decoder is not None
    sizes = {}
    for i, mixer in enumerate(model.spec.decoder.mixers):
        assert isinstance(mixer, Attention)
        for part in ("key", "value"):
            sizes[name.format(i, part)] = (length, mixer.kv_heads, mixer.head_dim)
    return sizes


def _example_inputs(
    names: Sequence[str],
    axes: Mapping[str, Axes],
    sizes: Mapping[str, tuple[str, int, int]],
    d_model: int = 0,
) -> dict[str, Tensor]:
    """Return example inputs of a graph: ids and masks of ones, keys and values of zeros."""
    inputs: dict[str, Any] = {}
    for name in names:
        lengths = [_EXAMPLE.get(axis, 4) for axis in axes[name].values()]
        if name in sizes:
            _, heads, width = sizes[name]
            inputs[name] = torch.zeros(lengths[0], heads, lengths[1], width)
        elif name == "encoder_hidden_states":
            inputs[name] = torch.zeros(*lengths, d_model)
        else:
            inputs[name] = torch.ones(lengths, dtype=torch.int64)
    return inputs
