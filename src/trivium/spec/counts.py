"""How many trained numbers a description stands for, without building anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.spec.head_input import HeadInput
from trivium.spec.parts import (
    Attention,
    ClassifierHead,
    Dense,
    Embedding,
    FeedForward,
    Head,
    LayerNorm,
    Learned,
    LMHead,
    MLMHead,
    Norm,
    NSPHead,
    PoolerHead,
    RelativeBias,
    ReplacedTokenHead,
    SpanHead,
    Stack,
    TaggerHead,
)

if TYPE_CHECKING:
    from trivium.spec.model import ModelSpec


def count_parameters(spec: ModelSpec) -> int:
    """Every trained number, tied and shared ones once."""
    total = (spec.vocab_size + (spec.source_vocab_size or 0)) * spec.d_embedding
    for stack in spec.stacks:
        total += _embedding_parameters(spec.embedding, spec.d_model)
        total += _stack_parameters(stack, spec.d_model, cross=spec.crosses(stack))
    return total + sum(head_parameters(head, spec.head_input) for head in spec.heads)


def attention_parameters(attention: Attention, width: int) -> int:
    """Those of one attention."""
    queries = attention.num_heads * attention.head_dim
    keys = attention.kv_heads * attention.head_dim
    return (
        _linear(width, queries, attention.bias)
        + 2 * _linear(width, keys, attention.bias)
        + _linear(queries, width, attention.has_output_bias)
    )


def feed_forward_parameters(feed_forward: FeedForward, width: int) -> int:
    """Those of one feed-forward network."""
    inward = _linear(width, feed_forward.d_ff, feed_forward.bias) * (1 + feed_forward.gated)
    return inward + _linear(feed_forward.d_ff, width, feed_forward.bias)


def _linear(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + outputs * bias


def _norm_parameters(norm: Norm, width: int) -> int:
    return width * (1 + (isinstance(norm, LayerNorm) and norm.bias))


def _embedding_parameters(embedding: Embedding, width: int) -> int:
    """All but the token vectors, which stacks share."""
    total, inner, factorised = 0, width, embedding.factorised
    if factorised:
        total += _linear(factorised.width, width, factorised.bias)
        inner = factorised.width if factorised.projected == "sum" else width
    if isinstance(embedding.positions, Learned):
        total += (embedding.positions.max_length + embedding.positions.offset) * inner
    if embedding.norm:
        total += _norm_parameters(embedding.norm, inner)
    return total + embedding.num_token_types * inner


def _stack_parameters(stack: Stack, width: int, *, cross: bool) -> int:
    norm = _norm_parameters(stack.norm, width)
    total = norm if stack.norm_order == "pre" else 0
    total -= 0 if stack.first_norm else norm
    for layer in range(stack.distinct_layers):
        total += attention_parameters(stack.attention_of(layer), width) * (1 + cross)
        total += norm * (2 + cross) + feed_forward_parameters(stack.feed_forward, width)
    for attention in stack.attentions:
        if isinstance(attention.positions, RelativeBias):
            return total + attention.positions.num_buckets * attention.num_heads
    return total


def _dense_parameters(dense: Dense | None, given: HeadInput, outputs: int) -> int:
    if dense is None:
        return 0
    norm = _norm_parameters(given.norm, outputs) if dense.norm and given.norm else 0
    return _linear(given.d_model, outputs, dense.bias) + norm


def head_parameters(head: Head, given: HeadInput) -> int:
    """Those of one head; tied matrices are not its own."""
    width, vocabulary = given.d_model, given.vocab_size
    match head:
        case LMHead(tied=tied, bias=bias):
            narrowed = width * given.d_embedding if given.narrows else 0
            return narrowed + vocabulary * (bias + (not tied) * given.d_embedding)
        case MLMHead(dense=dense, tied=tied, bias=bias):
            table = 0 if tied else vocabulary * given.d_embedding
            return _dense_parameters(dense, given, given.d_embedding) + table + vocabulary * bias
        case PoolerHead():
            return _linear(width, width, True)
        case NSPHead():
            return _linear(width, width, True) + _linear(width, 2, True)
        case ClassifierHead(num_labels=labels, dense=dense, bias=bias):
            return _dense_parameters(dense, given, width) + _linear(width, labels, bias)
        case TaggerHead(num_labels=labels, dense=dense):
            return _dense_parameters(dense, given, width) + _linear(width, labels, True)
        case SpanHead(dense=dense):
            return _dense_parameters(dense, given, width) + _linear(width, 2, True)
        case ReplacedTokenHead():
            return _linear(width, width, True) + _linear(width, 1, True)
