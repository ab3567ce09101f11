"""Small models of every family, with distinct primes for axes, and rows to feed them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from hugging_face import normal
from torch import Tensor

from trivium import spec
from trivium.choice import Choice
from trivium.models import LanguageModule, build

VOCABULARY, SOURCE_VOCABULARY, WIDTH, MAX_LENGTH = 43, 53, 22, 37
SOURCE_LENGTH = 11


def small_spec(name: str) -> spec.TransformerSpec:
    """One of SPECS: small enough for thousands of passes, and no term of it is trivial."""
    return SPECS[name]


def small_model(name: str, *, seed: int = 0) -> LanguageModule:
    """The model of a small spec with every weight random, norms and biases included."""
    return random_model(ALL_SPECS[name], seed=seed)


def random_model(described: spec.Spec, *, seed: int = 0) -> LanguageModule:
    """A model with every weight random, norms and biases included."""
    model = build(described, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            noise = 0.2 * normal(weight.shape, generator)
            norm = weight.ndim == 1 and weight_name.endswith("weight")
            weight.copy_(1.0 + noise if norm else noise)
    return model.eval()


def random_ids(rows: int, length: int, *, seed: int = 0) -> Tensor:
    """Int64 [B, T], none of them 0 (padding)."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.integers(1, VOCABULARY, (rows, length)))


def inputs_for(
    name: str, ids: Tensor, *, real: Tensor | None = None, seed: int = 17
) -> dict[str, Tensor]:
    """Inputs of a model whose output positions are those of `ids` [B, T].

    For an encoder-decoder they go to the decoder, and the encoder reads rows of their own. `real`
    [B, T] says which of the ids are no padding.
    """
    masks = {} if real is None else {"attention_mask": real.long()}
    if name not in BOTH:
        return {"input_ids": ids, **masks}
    target = {f"decoder_{key}": value for key, value in {"input_ids": ids, **masks}.items()}
    return {"input_ids": random_ids(len(ids), SOURCE_LENGTH, seed=seed), **target}


def _attention(**changes) -> spec.Attention:
    return spec.Attention(num_heads=3, head_dim=10).replace(**changes)


def _rotary(**changes) -> spec.Attention:
    rotary = {"bias": False, "positions": spec.Rotary(base=100.0)}
    return _attention(**{**rotary, **changes})


def _stack(**changes) -> spec.Stack:
    """GPT-2's: attention and feed-forward with biases, LayerNorm first."""
    described = spec.Stack.from_mixers(
        num_layers=2,
        mixer=_attention(),
        feed_forward=_GELU_TANH,
        norm=spec.LayerNorm(),
        norm_placement="pre",
    )
    return described.with_layers(**changes)


def _model(**parts) -> spec.TransformerSpec:
    return spec.TransformerSpec(vocab_size=VOCABULARY, d_model=WIDTH, **parts)


def _transformer(norm_placement: spec.NormPlacement, **changes) -> spec.TransformerSpec:
    """Vaswani et al. 2017, with stacks of different depth."""
    block = _stack(norm_placement=norm_placement, mixer=_attention(bias=False), feed_forward=_RELU)
    return _model(
        embedding=spec.Embedding(positions=spec.Sinusoidal(), scale=WIDTH**0.5),
        encoder=block.replace(num_layers=3),
        decoder=block,
        heads=(spec.LMHead(tied=True),),
        initialization=spec.Xavier(),
    ).replace(**changes)


def _t5(feed_forward: spec.MLP, head: spec.LMHead) -> spec.TransformerSpec:
    bias = spec.RelativeBias(num_buckets=8, max_distance=13)
    block = _stack(
        mixer=_attention(bias=False, scale=1.0, positions=bias),
        feed_forward=feed_forward,
        norm=spec.RMSNorm(),
    )
    return _model(
        embedding=spec.Embedding(),
        encoder=block,
        decoder=block.replace(num_layers=3),
        heads=(head,),
        initialization=spec.FanIn(),
    )


_RELU = spec.MLP(d_ff=29, activation="relu")
_GELU = spec.MLP(d_ff=29, activation="gelu")
_GELU_TANH = spec.MLP(d_ff=29, activation="gelu_tanh")
_GATED_GELU = spec.MLP(d_ff=29, activation="gelu", gated=True, bias=False)
_SWIGLU = spec.MLP(d_ff=29, activation="silu", gated=True, bias=False)
_TINY_EPS = spec.LayerNorm(eps=1e-12)
_NO_BIAS = spec.LayerNorm(bias=False)
_POST = _stack(feed_forward=_GELU, norm=_TINY_EPS, norm_placement="post")
_LLAMA = _stack(
    mixer=_rotary(num_heads=6, num_kv_heads=2), feed_forward=_SWIGLU, norm=spec.RMSNorm()
)
_OFFSET = spec.Learned(max_length=MAX_LENGTH, offset=2)
_POSITIONS = spec.Learned(max_length=MAX_LENGTH)
_MASKED = spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True))
_NARROW = spec.Factorised(width=13)
_TIED = (spec.LMHead(tied=True),)
_LLAMA3 = spec.Llama3Scaling(factor=8.0, original_max_length=31)

SPECS = {
    "bert": _model(
        embedding=spec.Embedding(positions=_POSITIONS, num_token_types=2, norm=_TINY_EPS),
        encoder=_POST,
        heads=(_MASKED, spec.NSPHead()),
    ),
    "roberta": _model(
        embedding=spec.Embedding(positions=_OFFSET, num_token_types=1, norm=spec.LayerNorm()),
        encoder=_POST.with_layers(norm=spec.LayerNorm()),
        heads=(_MASKED,),
    ),
    "albert": _model(
        embedding=spec.Embedding(
            factorised=_NARROW, positions=_POSITIONS, num_token_types=2, norm=_TINY_EPS
        ),
        encoder=_POST.with_layers(num_layers=3, num_layer_groups=1, feed_forward=_GELU_TANH),
        heads=(spec.MLMHead(dense=spec.Dense(activation="gelu_tanh", norm=True)), spec.NSPHead()),
    ),
    "electra": _model(
        embedding=spec.Embedding(
            factorised=_NARROW, positions=_POSITIONS, num_token_types=2, norm=_TINY_EPS
        ),
        encoder=_POST,
        heads=(_MASKED, spec.ReplacedTokenHead()),
    ),
    "deberta": _model(
        embedding=spec.Embedding(norm=spec.LayerNorm()),
        encoder=_POST.with_layers(
            mixer=_attention(positions=spec.Disentangled(span=4)), norm=spec.LayerNorm()
        ),
        heads=(_MASKED.replace(mask_decoder_positions=_POSITIONS),),
    ),
    "modernbert": _model(
        embedding=spec.Embedding(norm=_NO_BIAS),
        encoder=_stack(
            num_layers=3,
            mixer=(
                _rotary(positions=spec.Rotary(base=1000.0)),
                _rotary(pattern=spec.Sliding(window=2)),
            ),
            feed_forward=_GATED_GELU,
            norm=_NO_BIAS,
            first_norm=False,
        ),
        heads=(spec.MLMHead(dense=spec.Dense(activation="gelu", bias=False, norm=True)),),
    ),
    "gpt1": _model(
        embedding=spec.Embedding(positions=_POSITIONS),
        decoder=_stack(norm_placement="post"),
        heads=_TIED,
    ),
    "gpt2": _model(
        embedding=spec.Embedding(positions=_POSITIONS),
        decoder=_stack(),
        heads=_TIED,
        initialization=spec.Normal(residual_init="scaled"),
    ),
    "gpt3": _model(
        embedding=spec.Embedding(positions=_POSITIONS),
        decoder=_stack(
            num_layers=3, mixer=(_attention(), _attention(pattern=spec.Sliding(window=3)))
        ),
        heads=_TIED,
    ),
    "opt": _model(
        embedding=spec.Embedding(
            factorised=spec.Factorised(width=13, bias=False, projected="tokens"), positions=_OFFSET
        ),
        decoder=_stack(feed_forward=_RELU, norm_placement="post"),
        heads=_TIED,
    ),
    "llama": _model(embedding=spec.Embedding(), decoder=_LLAMA, heads=(spec.LMHead(tied=False),)),
    "llama31": _model(
        embedding=spec.Embedding(),
        decoder=_LLAMA.with_layers(
            mixer=_rotary(
                num_heads=6, num_kv_heads=2, positions=spec.Rotary(base=500.0, scaling=_LLAMA3)
            )
        ),
        heads=_TIED,
    ),
    "mistral": _model(
        embedding=spec.Embedding(),
        decoder=_LLAMA.with_layers(
            mixer=_rotary(num_heads=6, num_kv_heads=2, pattern=spec.Sliding(window=3))
        ),
        heads=(spec.LMHead(tied=False),),
    ),
    "alibi": _model(
        embedding=spec.Embedding(norm=spec.LayerNorm()),
        decoder=_stack(mixer=_attention(positions=spec.ALiBi())),
        heads=_TIED,
    ),
    "gpt-neox": _model(
        embedding=spec.Embedding(),
        decoder=_stack(
            mixer=_attention(positions=spec.Rotary(base=100.0, partial_rotary_factor=0.4)),
            block=spec.ParallelLayers(norms="separate"),
        ),
        heads=(spec.LMHead(tied=False),),
    ),
    "palm": _model(
        embedding=spec.Embedding(),
        decoder=_stack(
            mixer=_rotary(num_kv_heads=1),
            feed_forward=_SWIGLU,
            norm=_NO_BIAS,
            block=spec.ParallelLayers(norms="shared"),
        ),
        heads=(spec.LMHead(tied=True, scale=WIDTH**-0.5),),
        initialization=spec.FanIn(),
    ),
    "chatglm": _model(
        embedding=spec.Embedding(norm=spec.LayerNorm()),
        decoder=_stack(
            mixer=_attention(head_dim=12, positions=spec.TwoDimensionalRotary(base=100.0)),
            norm_placement="post",
            residual_multiplier=0.5,
        ),
        heads=_TIED,
    ),
    "qwen3": _model(
        embedding=spec.Embedding(),
        decoder=_LLAMA.with_layers(
            mixer=_rotary(num_heads=6, num_kv_heads=2, qk_norm=spec.RMSNorm())
        ),
        heads=_TIED,
    ),
    "gemma2": _model(
        embedding=spec.Embedding(scale=WIDTH**0.5),
        decoder=_stack(
            num_layers=3,
            mixer=(
                _rotary(soft_cap=1.7, scale=0.3, pattern=spec.Sliding(window=3)),
                _rotary(soft_cap=1.7, scale=0.3),
            ),
            feed_forward=_GATED_GELU,
            norm=spec.RMSNorm(offset=1),
            norm_placement="sandwich",
        ),
        heads=(spec.LMHead(tied=True, soft_cap=2.3),),
    ),
    "gpt-oss": _model(
        embedding=spec.Embedding(),
        decoder=_stack(
            num_layers=3,
            mixer=(
                _rotary(num_heads=6, num_kv_heads=2, sinks=True, pattern=spec.Sliding(window=3)),
                _rotary(num_heads=6, num_kv_heads=2, sinks=True),
            ),
            feed_forward=spec.MLP(
                d_ff=29, activation=spec.Swish(beta=1.7), gated=True, clamp=0.3, up_offset=1
            ),
            norm=spec.RMSNorm(),
        ),
        heads=(spec.LMHead(tied=False),),
    ),
    "sliding": _model(
        embedding=spec.Embedding(positions=spec.Sinusoidal(), scale=WIDTH**0.5),
        decoder=_stack(
            num_layers=3,
            mixer=(_attention(pattern=spec.Sliding(window=2)), _rotary()),
            feed_forward=_SWIGLU,
            norm=spec.RMSNorm(),
            norm_placement="post",
        ),
        heads=_TIED,
    ),
    "transformer": _transformer("post"),
    "transformer-pre": _transformer("pre"),
    "transformer-two-vocabularies": _transformer("post", source_vocab_size=SOURCE_VOCABULARY),
    "t5": _t5(
        spec.MLP(d_ff=29, activation="relu", bias=False), spec.LMHead(tied=True, scale=WIDTH**-0.5)
    ),
    "t511": _t5(
        spec.MLP(d_ff=29, activation="gelu_tanh", gated=True, bias=False), spec.LMHead(tied=False)
    ),
    "bart": _model(
        embedding=spec.Embedding(positions=_OFFSET, norm=spec.LayerNorm()),
        encoder=_POST.with_layers(norm=spec.LayerNorm()),
        decoder=_POST.with_layers(norm=spec.LayerNorm(), num_layers=3),
        heads=(spec.LMHead(tied=True, bias=True),),
    ),
    "marian": _model(
        embedding=spec.Embedding(
            positions=spec.Sinusoidal(layout="halves", max_length=MAX_LENGTH), scale=WIDTH**0.5
        ),
        encoder=_stack(norm_placement="post", feed_forward=spec.MLP(d_ff=29, activation="silu")),
        decoder=_stack(norm_placement="post", feed_forward=spec.MLP(d_ff=29, activation="silu")),
        heads=(spec.LMHead(tied=True, bias=True),),
    ),
}
# Numbers of required fields, by the names that parts usually give them.
_FIELDS = {
    "num_heads": 3,
    "head_dim": 10,
    "value_dim": 7,
    "rotary_dim": 4,
    "kv_rank": 13,
    "d_ff": 29,
    "activation": "gelu",
    "expert": _GELU,
    "num_experts": 5,
    "d_inner": 19,
    "dt_rank": 5,
    "window": 3,
    "pattern": spec.Sliding(window=3),
    "span": 3,
    "rank": 5,
    "stride": 3,
    "block_size": 2,
    "num_random": 1,
    "num_summary": 1,
    "memory": 5,
    "patterns": (spec.Sliding(window=3),) * 3,
    "max_length": MAX_LENGTH,
    "factor": 3.0,
    "original_max_length": MAX_LENGTH,
    "short_factor": (1.0, 1.3, 2.0, 3.0, 5.0),
    "long_factor": (1.0, 2.0, 4.0, 8.0, 9.0),
}


def _parts_in(part: spec.Part) -> Iterator[spec.Part]:
    """A part and all that it is made of."""
    yield part
    for value in dict(part).values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, spec.Part):
                yield from _parts_in(each)


def small_part(kind: type[Choice]) -> Choice:
    """A part of a kind with usual numbers in its required fields."""
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    assert required <= _FIELDS.keys(), (
        f"{kind.__name__}: give {required - _FIELDS.keys()} a default, or a number in _FIELDS"
    )
    return kind(**{name: _FIELDS[name] for name in required})


def _spec_of(part: Choice) -> spec.TransformerSpec:
    """A decoder with this part in its place, or an encoder if it reads both sides of a token."""
    embedding, stack = spec.Embedding(positions=_POSITIONS), _stack()
    match part:
        case spec.Mixer():
            stack = stack.with_layers(mixer=part)
        case spec.Positions():
            stack = stack.with_layers(mixer=_attention(positions=part))
        case spec.RotaryScaling():
            stack = stack.with_layers(
                mixer=_rotary(positions=spec.Rotary(base=100.0, scaling=part))
            )
        case spec.Norm():
            stack = stack.with_layers(norm=part)
        case spec.Pattern():
            stack = stack.with_layers(mixer=_attention(pattern=part))
        case spec.FeedForward():
            stack = stack.with_layers(feed_forward=part)
        case spec.BlockKind():
            stack = stack.with_layers(block=part)
        case spec.AbsolutePositions():
            embedding = embedding.replace(positions=part)
    if all(mixer.supports_decoder for mixer in stack.mixers):
        return _model(embedding=embedding, decoder=stack, heads=_TIED)
    return _model(embedding=embedding, encoder=stack, heads=(_MASKED,))


def specs_of_other_kinds() -> dict[str, spec.TransformerSpec]:
    """A small spec of every registered kind that none of SPECS has."""
    used = {type(part) for described in SPECS.values() for part in _parts_in(described)}
    choices: tuple[type[Choice], ...] = (
        spec.Mixer,
        spec.Positions,
        spec.AbsolutePositions,
        spec.RotaryScaling,
        spec.Norm,
        spec.Pattern,
        spec.FeedForward,
        spec.BlockKind,
    )
    kinds = [kind for choice in choices for kind in choice.kinds.values() if kind not in used]
    return {kind.__name__: _spec_of(small_part(kind)) for kind in kinds}


# As DeepSeek-V3, with the gate of Qwen2-MoE.
_GROUPED_EXPERTS = spec.Experts(
    num_experts=6,
    top_k=3,
    expert=_SWIGLU,
    shared=_SWIGLU.replace(d_ff=31),
    shared_gate=True,
    scores="sigmoid",
    scale=2.5,
    corrected=True,
    num_groups=3,
    top_k_groups=2,
    scores_per_group=2,
)

TRANSFORMERS = {**SPECS, **specs_of_other_kinds(), "grouped-experts": _spec_of(_GROUPED_EXPERTS)}
BIDIRECTIONAL = [name for name, each in TRANSFORMERS.items() if each.family == "encoder-only"]
CAUSAL = [name for name, each in TRANSFORMERS.items() if each.family == "decoder-only"]
ONE_STACK = BIDIRECTIONAL + CAUSAL

SEQUENCE_SPECS: dict[str, spec.Spec] = {
    "elman": spec.RNNSpec(
        vocab_size=VOCABULARY, d_model=WIDTH, cell="elman", d_hidden=13, num_layers=1, heads=_TIED
    ),
    "lstm": spec.RNNSpec(
        vocab_size=VOCABULARY, d_model=WIDTH, cell="lstm", d_hidden=13, num_layers=2, heads=_TIED
    ),
    "gru": spec.RNNSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        cell="gru",
        d_hidden=WIDTH,
        num_layers=2,
        scale=3.0,
        heads=(spec.LMHead(tied=False, bias=True),),
    ),
    "bilstm": spec.RNNSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        cell="lstm",
        d_hidden=13,
        num_layers=2,
        direction="both",
        heads=(spec.MLMHead(),),
    ),
    "elmo": spec.RNNSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        cell="lstm",
        d_hidden=29,
        num_layers=2,
        d_projection=WIDTH,
        direction="bilm",
        connections="residual",
        characters=spec.CharacterCNN(filters=(3, 5, 7), max_characters=6),
        heads=(spec.LMHead(tied=False, bias=True),),
    ),
    "ngram": spec.NGramSpec(vocab_size=VOCABULARY, order=4, d_model=7, d_hidden=13, heads=_TIED),
    "ngram-direct": spec.NGramSpec(
        vocab_size=VOCABULARY,
        order=5,
        d_model=7,
        d_hidden=13,
        connections="direct",
        heads=(spec.LMHead(tied=False),),
    ),
    "bahdanau": spec.AttentionRNNSpec(
        vocab_size=VOCABULARY,
        source_vocab_size=SOURCE_VOCABULARY,
        d_model=WIDTH,
        d_hidden=13,
        d_attention=7,
        d_readout=WIDTH,
        heads=(spec.LMHead(tied=False, bias=True),),
    ),
}
ALL_SPECS: dict[str, spec.Spec] = {**TRANSFORMERS, **SEQUENCE_SPECS}
BOTH = [name for name, each in ALL_SPECS.items() if each.family == "encoder-decoder"]
DECODERS = CAUSAL + BOTH
GENERATING = [name for name, each in ALL_SPECS.items() if each.family != "encoder-only"]
