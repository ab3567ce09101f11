"""Random `transformers` models as ours: a spec from the config, weights by an explicit name table.

Every function is strict: every tensor of theirs is used and every tensor of ours is filled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trivium import spec
from trivium.models import Transformer, build

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}

# Our name -> (their name, what to take of that tensor).
Table = dict[str, tuple[str, Callable[[Tensor], Tensor]]]


def copy_bert(hf_model: Any) -> Transformer:
    """BertModel without pooler, BertForMaskedLM or BertForPreTraining -> Transformer."""
    return _copy(hf_model, bert_spec(hf_model), bert_table(hf_model))


def copy_gpt2(hf_model: Any) -> Transformer:
    """GPT2LMHeadModel -> Transformer."""
    return _copy(hf_model, gpt2_spec(hf_model), gpt2_table(hf_model))


def copy_llama(hf_model: Any) -> Transformer:
    """LlamaForCausalLM -> Transformer."""
    return _copy(hf_model, llama_spec(hf_model), llama_table(hf_model))


def bert_spec(hf_model: Any) -> spec.ModelSpec:
    config, names = hf_model.config, dict(hf_model.named_parameters())
    norm = spec.LayerNorm(eps=config.layer_norm_eps)
    heads: list[Any] = []
    if "cls.predictions.bias" in names:
        heads.append(spec.MLMHead(activation=ACTIVATIONS[config.hidden_act]))
    if "cls.seq_relationship.weight" in names:
        heads.append(spec.NSPHead())
    return spec.ModelSpec(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=config.max_position_embeddings),
            num_token_types=config.type_vocab_size,
            norm=norm,
        ),
        encoder=spec.Stack(
            num_layers=config.num_hidden_layers,
            attention=spec.Attention(
                num_heads=config.num_attention_heads,
                head_dim=config.hidden_size // config.num_attention_heads,
            ),
            feed_forward=spec.FeedForward(
                d_ff=config.intermediate_size, activation=ACTIVATIONS[config.hidden_act]
            ),
            norm=norm,
            norm_order="post",
            dropout=config.hidden_dropout_prob,
        ),
        heads=tuple(heads),
    )


def gpt2_spec(hf_model: Any) -> spec.ModelSpec:
    config = hf_model.config
    return spec.ModelSpec(
        vocab_size=config.vocab_size,
        d_model=config.n_embd,
        embedding=spec.Embedding(positions=spec.Learned(max_length=config.n_positions)),
        decoder=spec.Stack(
            num_layers=config.n_layer,
            attention=spec.Attention(
                num_heads=config.n_head, head_dim=config.n_embd // config.n_head
            ),
            feed_forward=spec.FeedForward(
                d_ff=config.n_inner or 4 * config.n_embd,
                activation=ACTIVATIONS[config.activation_function],
            ),
            norm=spec.LayerNorm(eps=config.layer_norm_epsilon),
            norm_order="pre",
            dropout=config.resid_pdrop,
        ),
        heads=(spec.LMHead(tied=True),),
    )


def llama_spec(hf_model: Any) -> spec.ModelSpec:
    config = hf_model.config
    every_head = config.num_key_value_heads == config.num_attention_heads
    return spec.ModelSpec(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=config.num_hidden_layers,
            attention=spec.Attention(
                num_heads=config.num_attention_heads,
                num_kv_heads=None if every_head else config.num_key_value_heads,
                head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
                bias=config.attention_bias,
                positions=spec.Rotary(base=config.rope_parameters["rope_theta"]),
            ),
            feed_forward=spec.FeedForward(
                d_ff=config.intermediate_size,
                activation=ACTIVATIONS[config.hidden_act],
                gated=True,
                bias=config.mlp_bias,
            ),
            norm=spec.RMSNorm(eps=config.rms_norm_eps),
            norm_order="pre",
        ),
        heads=(spec.LMHead(tied=config.tie_word_embeddings),),
    )


def bert_table(hf_model: Any) -> Table:
    names = set(dict(hf_model.named_parameters()))
    base = "" if "embeddings.word_embeddings.weight" in names else "bert."
    rows = {
        "embedding.tokens.weight": f"{base}embeddings.word_embeddings.weight",
        "embedding.positions.weight": f"{base}embeddings.position_embeddings.weight",
        "embedding.token_types.weight": f"{base}embeddings.token_type_embeddings.weight",
        **_both("embedding.norm", f"{base}embeddings.LayerNorm"),
    }
    for i in range(hf_model.config.num_hidden_layers):
        ours, theirs = f"stack.layers.{i}", f"{base}encoder.layer.{i}"
        rows |= {
            **_both(f"{ours}.attention.query", f"{theirs}.attention.self.query"),
            **_both(f"{ours}.attention.key", f"{theirs}.attention.self.key"),
            **_both(f"{ours}.attention.value", f"{theirs}.attention.self.value"),
            **_both(f"{ours}.attention.output", f"{theirs}.attention.output.dense"),
            **_both(f"{ours}.attention_residual.norm", f"{theirs}.attention.output.LayerNorm"),
            **_both(f"{ours}.feed_forward.up", f"{theirs}.intermediate.dense"),
            **_both(f"{ours}.feed_forward.down", f"{theirs}.output.dense"),
            **_both(f"{ours}.feed_forward_residual.norm", f"{theirs}.output.LayerNorm"),
        }
    if "cls.predictions.bias" in names:
        rows |= {
            **_both("heads.mlm.dense", "cls.predictions.transform.dense"),
            **_both("heads.mlm.norm", "cls.predictions.transform.LayerNorm"),
            "heads.mlm.bias": "cls.predictions.bias",
        }
    if "cls.seq_relationship.weight" in names:
        rows |= {
            **_both("heads.nsp.pooler", "bert.pooler.dense"),
            **_both("heads.nsp.classifier", "cls.seq_relationship"),
        }
    return {ours: (theirs, _whole) for ours, theirs in rows.items()}


def gpt2_table(hf_model: Any) -> Table:
    width = hf_model.config.n_embd
    table: Table = {
        "embedding.tokens.weight": ("transformer.wte.weight", _whole),
        "embedding.positions.weight": ("transformer.wpe.weight", _whole),
        "stack.norm.weight": ("transformer.ln_f.weight", _whole),
        "stack.norm.bias": ("transformer.ln_f.bias", _whole),
    }
    for i in range(hf_model.config.n_layer):
        ours, theirs = f"stack.layers.{i}", f"transformer.h.{i}"
        for ending in ("weight", "bias"):
            for third, name in enumerate(("query", "key", "value")):
                take = _third(third, width, transposed=ending == "weight")
                table[f"{ours}.attention.{name}.{ending}"] = f"{theirs}.attn.c_attn.{ending}", take
            # Their Conv1D keeps matrices as [in, out].
            take = _transposed if ending == "weight" else _whole
            table |= {
                f"{ours}.attention.output.{ending}": (f"{theirs}.attn.c_proj.{ending}", take),
                f"{ours}.feed_forward.up.{ending}": (f"{theirs}.mlp.c_fc.{ending}", take),
                f"{ours}.feed_forward.down.{ending}": (f"{theirs}.mlp.c_proj.{ending}", take),
                f"{ours}.attention_residual.norm.{ending}": (f"{theirs}.ln_1.{ending}", _whole),
                f"{ours}.feed_forward_residual.norm.{ending}": (f"{theirs}.ln_2.{ending}", _whole),
            }
    return table


def llama_table(hf_model: Any) -> Table:
    names = set(dict(hf_model.named_parameters()))
    rows = {
        "embedding.tokens.weight": "model.embed_tokens.weight",
        "stack.norm.weight": "model.norm.weight",
    }
    if "lm_head.weight" in names:
        rows["heads.lm.weight"] = "lm_head.weight"
    parts = {
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "attention_residual.norm": "input_layernorm",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_residual.norm": "post_attention_layernorm",
    }
    for i in range(hf_model.config.num_hidden_layers):
        for ours, theirs in parts.items():
            for ending in ("weight", "bias"):
                name = f"model.layers.{i}.{theirs}.{ending}"
                if ending == "weight" or name in names:
                    rows[f"stack.layers.{i}.{ours}.{ending}"] = name
    return {ours: (theirs, _whole) for ours, theirs in rows.items()}


def translate(tensors: Mapping[str, Tensor], table: Table) -> dict[str, Tensor]:
    """Their tensors (weights or gradients) under our names; none of theirs may be left over."""
    left = set(tensors) - {theirs for theirs, _ in table.values()}
    assert not left, f"tensors of theirs that no entry of the table uses: {sorted(left)}"
    return {ours: take(tensors[theirs]) for ours, (theirs, take) in table.items()}


def gradients(hf_model: Any, table: Table) -> dict[str, Tensor]:
    """Their gradients under our names."""
    found = {}
    for name, weight in hf_model.named_parameters():
        assert weight.grad is not None, f"{name} has no gradient"
        found[name] = weight.grad
    return translate(found, table)


def _copy(hf_model: Any, description: spec.ModelSpec, table: Table) -> Transformer:
    model = build(description)
    weights = {name: weight.detach() for name, weight in hf_model.named_parameters()}
    model.load_state_dict(translate(weights, table), strict=True)
    return model.train(hf_model.training)


def _both(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.{ending}": f"{theirs}.{ending}" for ending in ("weight", "bias")}


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.T


def _third(number: int, width: int, *, transposed: bool) -> Callable[[Tensor], Tensor]:
    def take(tensor: Tensor) -> Tensor:
        part = tensor[..., number * width : (number + 1) * width]
        return part.T if transposed else part

    return take


def randomize(hf_model: Any, seed: int, std: float = 0.3) -> Any:
    """Draw every weight anew, norms and biases included, so that no term of a formula is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in hf_model.named_parameters():
            noise = torch.empty(weight.shape).normal_(0.0, std, generator=generator)
            norm = weight.ndim == 1 and name.endswith("weight")
            weight.copy_(1.0 + noise if norm else noise)
    return hf_model
