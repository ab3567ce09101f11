"""Write a decoder or an embedding model to a GGUF file, which llama.cpp and Ollama read.

`gguf_families.py` has the families, `gguf_tokenizer.py` the tokenizers. The rules are those of
llama.cpp's converter (`convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from trivium.errors import SpecError, require_extra
from trivium.interop.convert import to_hugging_face
from trivium.interop.gguf_families import (
    ENCODERS,
    LlamaCppFamily,
    drop_heads,
    find_family,
    name_tensors,
)
from trivium.interop.gguf_tokenizer import (
    GGUFTokenizer,
    convert_encoder_tokenizer,
    convert_tokenizer,
)
from trivium.interop.settings import Settings
from trivium.models import LanguageModule, Transformer
from trivium.text import Tokenizer

GGUF_FILE = "model.gguf"
WeightType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
WEIGHT_TYPES: tuple[WeightType, ...] = get_args(WeightType)
_DEFAULT_CONTEXT = 2048  # of a model with RoPE that was never trained; as in transformers
_MAX_F16 = 65504.0
_F32_TENSORS = (
    *("position_embd.weight", "token_types.weight", "ffn_gate_inp.weight"),
    *("ssm_a", "ssm_conv1d.weight"),
)
_VOCABULARY_TENSORS = ("token_embd.weight", "output.weight")

# Key of GGUF without the architecture -> the options of `config.json` that may have its value.
_UINT32 = {
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
}
_FLOAT32 = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": (
        "layer_norm_epsilon",
        "norm_epsilon",
        "layer_norm_eps",
        "norm_eps",
    ),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
}


def write_gguf(
    file: Path,
    module: LanguageModule,
    tokenizer: Tokenizer | None,
    settings: Settings,
    *,
    weight_type: WeightType = "f16",
    max_length: int | None = None,
    pooling: str | None = None,
    name: str = "model",
) -> tuple[GGUFTokenizer, int]:
    """Write a decoder, or an encoder for embeddings, with its tokenizer to a GGUF file.

    Vectors, routers, position and type embeddings are written as f32, as llama.cpp requires. With 4
    or 5 bits, token embeddings and output matrix are written as q8_0: they lose the most. Weights
    whose rows are not a multiple of 32 cannot be quantized and are written as f16, with a warning.

    Args:
        file: the file to write.
        module: the model.
        tokenizer: its tokenizer.
        settings: its settings: end tokens, chat template, preferred family.
        weight_type: the data type of the weights.
        max_length: the maximum number of tokens that the model reads at once, if known.
        pooling: how hidden states become an embedding: mean, first or last; None for a decoder
            that generates.
        name: the name of the model in the file.

    Returns:
        The tokenizer as it was written, and the context length.

    Raises:
        SpecError: llama.cpp cannot compute this model; the message lists the families that it can.
        TokenizerError: llama.cpp cannot compute the ids of this tokenizer.
        MissingExtraError: the package `gguf` is not installed.
    """
    with require_extra("GGUF", "gguf"):
        import gguf
    model_type = settings.config.get("model_type")
    family, config = find_family(module, model_type, embeds=pooling is not None)
    tensors = _convert_weights(module, family, config)
    encodes = config["model_type"] in ENCODERS
    if tokenizer is None:
        raise SpecError("this model has no tokenizer, which a GGUF file needs.")
    if encodes:
        converted = convert_encoder_tokenizer(tokenizer, config["vocab_size"])
    else:
        wraps = None if pooling is None else settings.uses_document_tokens
        converted = convert_tokenizer(tokenizer, settings, config["vocab_size"], as_documents=wraps)
    context = _context_length(family, config, max_length)
    writer = gguf.GGUFWriter(file, family.name)
    writer.add_type("model")
    writer.add_name(name)
    add_file_type(writer, weight_type)
    writer.add_context_length(context)
    for key, number in _collect_numbers(family, config).items():
        _add_number(writer, f"{family.name}.{key}", number)
    if pooling is not None:
        kinds = {"mean": "MEAN", "first": "CLS", "last": "LAST"}
        writer.add_pooling_type(gguf.PoolingType[kinds[pooling]])
    if encodes:
        writer.add_causal_attention(False)
        writer.add_token_type_count(config.get("type_vocab_size", 1))
    factors = _add_rope(writer, family, config)
    _add_tokenizer(writer, converted, settings)
    named = itertools.chain(factors.items(), name_tensors(family, config, tensors))
    write_tensors(writer, named, weight_type)
    writer.close()
    return converted, context


def _collect_numbers(family: LlamaCppFamily, config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a model by their keys without the architecture."""
    numbers: dict[str, float] = {}
    for keys, kind in ((_UINT32, int), (_FLOAT32, float)):
        for key, options in keys.items():
            values = [config[option] for option in options if config.get(option) is not None]
            if values:
                numbers[key] = kind(values[0])
    return {**numbers, **family.metadata(config)}


def _add_number(writer: Any, key: str, number: float) -> None:
    """Write a bool, a whole number or a floating-point number."""
    if isinstance(number, bool):
        writer.add_bool(key, number)
    elif isinstance(number, int):
        writer.add_uint32(key, number)
    else:
        writer.add_float32(key, number)


def add_file_type(writer: Any, weight_type: WeightType) -> None:
    """Write the type of most weights."""
    import gguf

    name = "ALL_F32" if weight_type == "f32" else f"MOSTLY_{weight_type.upper()}"
    writer.add_file_type(int(gguf.LlamaFileType[name]))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _convert_weights(
    module: LanguageModule, family: LlamaCppFamily, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors of a model under their Hugging Face names.

    The heads of an encoder are left out, with a warning.
    """
    assert isinstance(module, Transformer)
    _, tensors = to_hugging_face(module, config["model_type"])
    if config["model_type"] in ENCODERS:
        if heads := [head.kind for head in module.spec.heads]:
            warnings.warn(
                f"llama.cpp computes embeddings with this model; its head ({', '.join(heads)}) is "
                "not written.",
                stacklevel=4,
            )
        return drop_heads(tensors)
    embeddings = module.tokens.weight.detach()
    for name in family.output:
        tied = embeddings if name.endswith("weight") else embeddings.new_zeros(len(embeddings))
        tensors.setdefault(name, tied)
    return tensors


def _context_length(
    family: LlamaCppFamily, config: Mapping[str, Any], max_length: int | None
) -> int:
    """Return the context length: the smallest known limit, sliding windows included.

    In most families llama.cpp computes full attention. Up to the size of the sliding window, full
    attention is the same.
    """
    lengths = (max_length, config.get("max_position_embeddings"), config.get("n_positions"))
    context = min([each for each in lengths if each is not None], default=_DEFAULT_CONTEXT)
    slides = "sliding_attention" in config.get("layer_types", ["sliding_attention"])
    window = config.get("sliding_window") if slides else None
    if family.slides or window is None or window >= context:
        return context
    warnings.warn(
        f"llama.cpp has no sliding window in this family: the context length is {window}, the "
        "size of the window, up to which the results are the same.",
        stacklevel=3,
    )
    return window


def _add_rope(writer: Any, family: LlamaCppFamily, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Write the options of RoPE. Returns the tensor of its factors, if there is one.

    Raises SpecError for a scaling that llama.cpp does not compute in this family.
    """
    import gguf

    rope = dict(config.get("rope_parameters") or {})
    if not rope:
        return {}
    rope = rope.get("full_attention", rope)  # RoPE by the type of layer
    width = config["hidden_size"] // config["num_attention_heads"]
    rotary_part = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0
    rotary_dim = config.get("qk_rope_head_dim") or int(config.get("head_dim", width) * rotary_part)
    writer.add_rope_dimension_count(rotary_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn" and (family.reads_mscale or _is_plain_yarn(rope)):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast", 32.0))
        writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow", 1.0))
    elif kind == "llama3" and family.reads_rope_factors:
        return {"rope_freqs.weight": _llama3_factors(rope, rotary_dim)}
    elif kind == "dynamic":  # no scaling up to `max_position_embeddings`, the context length
        pass
    elif kind != "default":
        raise SpecError(
            f'llama.cpp does not compute this RoPE scaling of type "{kind}" in the family '
            f'"{config["model_type"]}"; it computes linear, yarn (with the default attention '
            "factor) and, for llama and mistral, llama3."
        )
    return {}


def _is_plain_yarn(rope: Mapping[str, Any]) -> bool:
    """Return whether YaRN has only the options that llama.cpp reads in every family."""
    options = ("attention_factor", "mscale", "mscale_all_dim")
    return rope.get("truncate", True) and all(rope.get(option) is None for option in options)


def _llama3_factors(rope: Mapping[str, Any], head_dim: int) -> Tensor:
    """Return the factors [head_dim / 2] by which llama.cpp divides RoPE's frequencies."""
    frequency = rope["rope_theta"] ** -(
        torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    )
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 / (kept + (1.0 - kept) / factor)).float()


def _add_tokenizer(writer: Any, tokenizer: GGUFTokenizer, settings: Settings) -> None:
    """Write the tokenizer and the chat templates."""
    writer.add_tokenizer_model(tokenizer.model)
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    if tokenizer.merges:
        writer.add_token_merges(tokenizer.merges)
    for option, value in tokenizer.normalizer.items():
        writer.add_bool(f"tokenizer.ggml.normalizer.{option}", value)
    for role, index in tokenizer.special_ids.items():
        getattr(writer, f"add_{role}_token_id")(index)
    writer.add_add_bos_token(tokenizer.adds_bos)
    writer.add_add_eos_token(tokenizer.adds_eos)
    writer.add_add_space_prefix(False)
    named = {"default": settings.chat_template, "tool_use": settings.tool_template}
    templates = [{"name": k, "template": v} for k, v in named.items() if v is not None]
    if templates:
        writer.add_chat_template(templates)


def write_tensors(
    writer: Any, tensors: Iterable[tuple[str, Tensor]], weight_type: WeightType
) -> None:
    """Write the tensors, converting one at a time."""
    import gguf

    kinds, arrays, smaller = gguf.GGMLQuantizationType, [], []
    for name, tensor in tensors:
        kind = kinds[weight_type.upper()]
        if tensor.ndim == 1 or name.endswith(_F32_TENSORS):
            kind = kinds.F32
        elif tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:  # blocks of a quantized row
            kind = kinds.F16
            smaller.append(name)
        elif weight_type.startswith(("q4", "q5")) and name in _VOCABULARY_TENSORS:
            kind = kinds.Q8_0
        if kind == kinds.F16 and tensor.abs().max() > _MAX_F16:
            raise SpecError(
                f"{name} has values above {_MAX_F16:.0f}, the largest of f16: use --type bf16 or "
                'f32 (in Python weight_type="bf16").'
            )
        shape = gguf.quant_shape_to_byte_shape(tensor.shape, kind)
        writer.add_tensor_info(name, shape, np.dtype("uint8"), math.prod(shape), raw_dtype=kind)
        arrays.append((tensor, kind))
    if smaller:
        warnings.warn(
            f"{len(smaller)} weights have rows that are not a multiple of 32 and are written as "
            f"f16, not {weight_type}: {', '.join(smaller[:3])}.",
            stacklevel=3,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, kind in arrays:
        writer.write_tensor_data(gguf.quantize(tensor.float().contiguous().numpy(), kind))
