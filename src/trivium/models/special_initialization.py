"""Where training starts: the weights that a spec's `Initialization` draws from a seed.

Three of them are our own, for short runs. They set attention and learned positions that it reads,
and nothing in them stays fixed: training changes all of it.

- "position_offsets": every head starts as attention to one fixed distance: head 0 to the previous
  token, head 1 to the next one, and so on. A network otherwise spends most of a short run on
  finding out which tokens are neighbours. The idea that heads specialise in fixed offsets is from
  observations of trained BERTs (Clark et al. 2019, What Does BERT Look At?); the
  rotation of sinusoids by a distance is from Vaswani et al. 2017, section 3.5. Measured: masked
  loss of a small BERT after 240 s on two cores 6.39 -> 4.94.
- "copy_heads": for encoder-decoders. A decoder first learns which tokens are frequent, which takes
  one direction, the same for every token; an encoder then learns to produce that direction alone,
  and a short run never recovers. So heads of the first layers add neighbours to a token (offsets
  as above), and cross-attention finds the decoder's tokens, with their neighbours, among the
  encoder's: what the induction heads of Olsson et al. 2022 learn, as a start.
- "diagonal": for encoder-decoders that read sinusoids. What a word translates is mostly near the
  same position, so that alignments which prefer the diagonal are found from less text (Dyer,
  Chahuneau and Smith 2013). Head 0 of every cross-attention starts there, the others at -1, +1,
  -2, ... from it. Measured: BLEU of a small Marian after 240 steps 15.9 -> 22.0.

In a "zero" start the matrices that add to the residual stream are zero, so that every block is the
identity at first (as in Fixup, Zhang et al. 2019, and ReZero, Bachlechner et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.models.base_model import LanguageModule
from trivium.models.heads import DenseLayer
from trivium.models.heads.vocabulary import MaskedHead
from trivium.models.initialization import FanIn, Normal, WeightStart, Xavier, draw_uniform
from trivium.models.ngram import NGramModel
from trivium.models.rnn import RecurrentModel, RNNSpec
from trivium.models.stack import Embedding
from trivium.models.transformer import ModelSpec, Transformer, TransformerStack
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.part import PartModule
from trivium.nn.positions.learned import LearnedPositions
from trivium.nn.positions.relative_bias import BucketTable, relative_buckets
from trivium.nn.positions.rotary import Rotary
from trivium.nn.positions.sinusoidal import SinusoidalPositions
from trivium.nn.sinusoids import frequencies, sinusoids

_SINUSOID_BASE = 10_000.0
_SINUSOID_AMPLITUDE = 2.0 * 2.0**0.5  # twice the size of token vectors
_ROTARY_BIAS, _ROTARY_PAIRS = 2.5, 8  # size of the biases; how many of the fastest pairs have one
_NEIGHBOUR_WEIGHT = 0.7  # of a neighbour that is added to a token
_OWN_DISTANCE_BIAS = 5.0  # relative bias of a head's own distance; of all others 0
_DIAGONAL_SCORES = 3.0  # factor of the scores of sinusoids


def with_fast_initialization(model: ModelSpec) -> ModelSpec:
    """The same model with the start that learns faster in short runs; see the module's docstring.

    Encoders get position offsets where their positions allow it; encoder-decoders get copy heads,
    those with a Xavier start and sinusoids diagonal cross-attention.
    A normal start also becomes a "zero" one whose matrices, and in encoder-decoders token vectors,
    have deviation d_model^-0.5. A fan-in start (T5) keeps its deviations.

    Raises:
        SpecError: no faster start is known: of decoders, and of encoder-decoders whose positions
            allow neither.
    """
    start, attention = model.initialization, "random"
    if model.family == "encoder-only" and model.allows_position_offsets:
        attention = "position_offsets"
    elif model.allows_copy_heads:
        attention = "copy_heads"
    std = round(model.d_model**-0.5, 4)
    match start:
        case Normal() if model.family == "encoder-only":
            start = start.replace(std=std, residual_init="zero", attention=attention)
        case Normal() if attention == "copy_heads":
            start = start.replace(
                std=std, embedding_std=std, residual_init="zero", attention=attention
            )
        case FanIn() if attention == "copy_heads":
            start = start.replace(attention=attention)
        case Xavier() if model.allows_diagonal:
            start = start.replace(attention="diagonal")
        case _:
            raise SpecError(
                'initialization = "fast" is for encoders, for encoder-decoders with learned '
                "positions or relative biases that start normal or fan-in, and for those with "
                f"sinusoids that start xavier; this model is {model.family} and starts "
                f'{start.kind}: leave "published".'
            )
    return model.replace(initialization=start)


@torch.no_grad()
def initialize(model: LanguageModule, seed: int) -> None:
    """Draw the starting weights of a model from a seed, the same on every device.

    A model of another class draws all of them in its `reset_parameters`.
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, Transformer):
        _initialize_transformer(model, generator)
    elif isinstance(model, RecurrentModel | NGramModel):
        _initialize_earlier(model, generator)
    for module in model.modules():
        if isinstance(module, PartModule):
            module.reset_parameters(generator)


def _initialize_transformer(model: Transformer, generator: torch.Generator) -> None:
    start = model.spec.initialization
    weights: WeightStart = start.build(model)
    kinds = nn.LayerNorm | nn.RMSNorm | nn.GroupNorm
    scales = {id(norm.weight) for norm in model.modules() if isinstance(norm, kinds)}
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.fill_(1.0 if id(weight) in scales else 0.0)
        else:
            weights.draw(name, weight, generator)
    if isinstance(start, Normal) and start.residual_init == "zero":
        for head in model.heads.values():
            if isinstance(head, MaskedHead) and isinstance(head.dense, DenseLayer):
                _set_to_identity(head.dense.linear)
    for stack in model.stacks:
        if start.attention == "position_offsets":
            _attend_to_offsets(stack, weights.embedding_std)
        elif start.attention == "copy_heads":
            _copy_tokens(stack, model.spec.embedding, weights.embedding_std)
        elif start.attention == "diagonal":
            _attend_to_diagonal(stack)


def _initialize_earlier(model: RecurrentModel | NGramModel, generator: torch.Generator) -> None:
    """Token vectors uniform in +-0.1 (Zaremba et al. 2014), matrices from inputs as Glorot and
    Bengio 2010, recurrent ones uniform in +-d_hidden^-0.5 as PyTorch's, which forget at first;
    biases 0, but 1 for the forget gates of an LSTM (Jozefowicz et al. 2015).

    An n-gram model has the tables, matrices and biases alone."""
    is_lstm = isinstance(model.spec, RNNSpec) and model.spec.cell == "lstm"
    hidden, tables = model.spec.d_hidden, {id(table) for table in model.vocabulary_tables}
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            if ".bias_ih_" in name and is_lstm:
                weight[hidden : 2 * hidden] = 1.0
        elif id(weight) in tables:
            draw_uniform(weight, 0.1, generator)
        elif ".weight_hh_" in name:
            draw_uniform(weight, hidden**-0.5, generator)
        else:
            outputs = hidden if ".weight_ih_" in name else len(weight)  # of one gate
            draw_uniform(weight, math.sqrt(6.0 / (outputs + weight.shape[1])), generator)


def _set_to_identity(linear: nn.Linear) -> None:
    """h + 3, so that gelu(h + 3) is almost h + 3; the LayerNorm after it subtracts the 3."""
    nn.init.eye_(linear.weight)
    if linear.bias is not None:
        nn.init.constant_(linear.bias, 3.0)


def _attend_to_offsets(stack: TransformerStack, embedding_std: float) -> None:
    """Start every head as attention to one distance.

    Keys read the sinusoids of their position, queries those of their own position rotated by the
    head's distance, so that the dot product is largest there. Learned positions start as
    sinusoids for it. With rotary positions constant biases of queries and keys are enough.
    """
    positions = stack.embedding.positions
    if isinstance(positions, LearnedPositions):
        _write_sinusoids(stack, positions.weight, embedding_std, positions.weight.shape[1])
    for attention in _self_attentions(stack):
        rotary = attention.part.positions
        if isinstance(rotary, Rotary):
            attention.query.weight.zero_()
            attention.key.weight.zero_()
            _set_rotary_biases(attention, rotary, causal=stack.causal)
        else:
            _read_sinusoids(attention, _distances(attention, causal=stack.causal))


def _copy_tokens(stack: TransformerStack, embedding: Embedding, embedding_std: float) -> None:
    """The first layer adds neighbours to every token; cross-attention finds equal tokens."""
    positions = stack.embedding.positions
    if isinstance(positions, LearnedPositions):
        # As few dimensions as a head reads; the others are left to the tokens.
        read = 2 * (_self_attentions(stack)[0].head_dim // 2)
        _write_sinusoids(stack, positions.weight, embedding_std, read)
    for table in stack.tables:
        if isinstance(table, BucketTable):
            _bias_own_distance(table, causal=stack.causal)
    size = 1.0 if embedding.norm else embedding_std * embedding.scale
    for number, attention in enumerate(_self_attentions(stack)):
        if isinstance(positions, LearnedPositions):
            _read_sinusoids(attention, _distances(attention, causal=stack.causal))
        else:  # keys stay random: were both zero, neither would ever have a gradient
            attention.query.weight.zero_()
        if number == 0:
            attention.value.weight.copy_(_identity_slices(attention.value.weight))
            output = attention.output.weight
            # Where all heads together are wider than the stream, several add to one dimension.
            share = _NEIGHBOUR_WEIGHT * size * min(1.0, output.shape[0] / output.shape[1]) ** 0.5
            output.copy_(share * _identity_slices(output.T).T)
    for layer in stack.layers:
        if isinstance(layer.cross_attention, AttentionModule):
            _find_equal_tokens(layer.cross_attention)


def _attend_to_diagonal(stack: TransformerStack) -> None:
    """Start the heads of cross-attention at distance 0, -1, +1, -2, ... from their query."""
    positions = stack.embedding.positions
    assert isinstance(positions, SinusoidalPositions)
    for layer in stack.layers:
        attention = layer.cross_attention
        if isinstance(attention, AttentionModule):
            distances = [0, *_distances(attention, causal=False)]
            _read_sinusoids(
                attention, distances, base=positions.base, in_halves=positions.in_halves
            )
            # As if divided by the root of head_dim, whatever the spec's scale.
            attention.query.weight.mul_(
                _DIAGONAL_SCORES * attention.head_dim**-0.5 / attention.scale
            )


def _self_attentions(stack: TransformerStack) -> list[AttentionModule]:
    return [layer.mixer for layer in stack.layers]  # type: ignore[misc]


def _distances(attention: AttentionModule, *, causal: bool) -> list[int]:
    heads = range(attention.part.num_heads)
    return [_distance_of_head(head, causal=causal) for head in heads]


def _distance_of_head(head: int, *, causal: bool) -> int:
    """-1, -2, -3, ... in a decoder, else -1, +1, -2, +2, ..."""
    return -(head + 1) if causal else (head // 2 + 1) * (-1) ** (head + 1)


def _write_sinusoids(stack: TransformerStack, table: Tensor, std: float, width: int) -> None:
    waves = sinusoids(torch.arange(len(table)), _SINUSOID_BASE, table.shape[1])
    table.zero_()
    table[:, :width] = _SINUSOID_AMPLITUDE * std * waves[:, :width]
    if stack.embedding.token_types is not None:
        stack.embedding.token_types.weight.zero_()


def _read_sinusoids(
    attention: AttentionModule,
    distances: Sequence[int],
    *,
    base: float = _SINUSOID_BASE,
    in_halves: bool = False,
) -> None:
    """Set queries and keys: every head attends to its distance."""
    width = attention.query.in_features
    pairs = min(attention.head_dim, width) // 2
    frequency, read = frequencies(base, width)[:pairs], 2 * pairs
    columns = torch.arange(read)  # of sin and cos, pair by pair
    if in_halves:
        columns = torch.stack((columns[:pairs], columns[:pairs] + -(-width // 2)), 1).flatten()
    for weight in (attention.query.weight, attention.key.weight):
        weight.zero_()
    for head in attention.key.weight.unflatten(0, (-1, attention.head_dim)):
        head[:read, columns] = torch.eye(read)
    for n, head in enumerate(attention.query.weight.unflatten(0, (-1, attention.head_dim))):
        angle = frequency * distances[n]
        # The matrix that takes (sin p, cos p) of each pair to those of p + angle.
        turns = torch.stack((angle.cos(), angle.sin(), -angle.sin(), angle.cos()), -1)
        head[:read, columns] = torch.block_diag(*turns.view(-1, 2, 2))


def _set_rotary_biases(attention: AttentionModule, rotary: Rotary, *, causal: bool) -> None:
    """Change biases of queries and keys, which are zero: head n attends to its distance."""
    count = min(_ROTARY_PAIRS, attention.head_dim // 2)
    dimension = torch.arange(attention.head_dim)
    pairs = dimension.view(-1, 2).T if rotary.layout == "interleaved" else dimension.view(2, -1)
    first, second = pairs[:, :count]  # of each pair its two dimensions
    frequency = frequencies(rotary.base, attention.head_dim)[:count]
    for head in attention.key.bias.unflatten(0, (-1, attention.head_dim)):
        head[first] = _ROTARY_BIAS
    for n, head in enumerate(attention.query.bias.unflatten(0, (-1, attention.head_dim))):
        angle = frequency * _distance_of_head(n, causal=causal)
        head[first], head[second] = _ROTARY_BIAS * angle.cos(), _ROTARY_BIAS * angle.sin()


def _bias_own_distance(table: BucketTable, *, causal: bool) -> None:
    heads = table.weight.shape[1]
    distances = torch.tensor([_distance_of_head(n, causal=causal) for n in range(heads)])
    buckets = relative_buckets(distances, table.positions, bidirectional=not causal)
    table.weight.zero_()
    table.weight[buckets, torch.arange(heads)] = _OWN_DISTANCE_BIAS


def _find_equal_tokens(attention: AttentionModule) -> None:
    """Queries and keys are the same slices, so that their product is largest for equal tokens.

    Values are slices too, unmixed; the output matrix learns what becomes of them.
    """
    for projection in (attention.query, attention.key, attention.value):
        projection.weight.copy_(_identity_slices(projection.weight))
    # As if divided by the root of head_dim, whatever the spec's scale.
    attention.query.weight.mul_(attention.head_dim**-0.5 / attention.scale)


def _identity_slices(weight: Tensor) -> Tensor:
    """Head n reads dimensions n H to (n + 1) H, starting over at the end: [N H, D]."""
    rows = torch.arange(weight.shape[0])
    slices = torch.zeros_like(weight)
    slices[rows, rows % weight.shape[1]] = 1.0
    return slices
