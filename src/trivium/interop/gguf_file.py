"""Write a decoder or an embedding model to a GGUF file, which llama.cpp and Ollama read.

The weights go by their Hugging Face names to those of GGUF, through the table of the package
`gguf`. `ARCHITECTURES` has what is different between families. The rules are those of llama.cpp's
converter (`convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from trivium.errors import SpecError, require_extra
from trivium.interop.convert import to_hugging_face
from trivium.interop.gguf_tokenizer import GGUFTokenizer, convert_tokenizer, convert_wordpiece
from trivium.interop.settings import Settings
from trivium.models import LanguageModule, Transformer
from trivium.text import Tokenizer

GGUF_FILE = "model.gguf"
WeightType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
WEIGHT_TYPES: tuple[WeightType, ...] = get_args(WeightType)
_DEFAULT_CONTEXT = 2048  # of a model with RoPE that was never trained; as in transformers
_MAX_F16 = 65504.0
_F32_TENSORS = ("position_embd.weight", "token_types.weight", "ffn_gate_inp.weight")
_VOCABULARY_TENSORS = ("token_embd.weight", "output.weight")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)(\..*)")


@dataclass(frozen=True)
class LlamaCppFamily:
    """How llama.cpp computes a family of decoders.

    Args:
        name: the name of the architecture in llama.cpp.
        fixed: the values of options of `config.json` that llama.cpp does not read, and with which
            alone it computes; options that a config lacks are not compared.
        interleaves: whether RoPE rotates adjacent dimensions in llama.cpp, so that the rows of the
            query and key projections are reordered.
        transposed: the ends of the names of weights that Hugging Face stores as [in, out].
        norm_offset: added to the weights of norms, which Hugging Face stores without it.
        constants: further whole numbers of the file, by their key without the architecture.
        reads_rope_factors: whether llama.cpp reads the tensor `rope_freqs.weight` (Llama 3.1).
    """

    name: str
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    interleaves: bool = False
    transposed: tuple[str, ...] = ()
    norm_offset: float = 0.0
    constants: Mapping[str, int] = field(default_factory=dict)
    reads_rope_factors: bool = False


_SILU, _TANH_GELU = ("silu", "swish"), ("gelu_new", "gelu_pytorch_tanh")
_LLAMA = LlamaCppFamily(
    "llama", fixed={"hidden_act": _SILU}, interleaves=True, reads_rope_factors=True
)
ARCHITECTURES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": LlamaCppFamily("qwen2", fixed={"hidden_act": _SILU}),
    "qwen3": LlamaCppFamily("qwen3", fixed={"hidden_act": _SILU, "attention_bias": (False,)}),
    "qwen3_moe": LlamaCppFamily(
        "qwen3moe",
        fixed={
            "hidden_act": _SILU,
            "attention_bias": (False,),
            "norm_topk_prob": (True,),
            "mlp_only_layers": ([],),
            "decoder_sparse_step": (1,),
        },
    ),
    "olmo2": LlamaCppFamily("olmo2", fixed={"hidden_act": _SILU, "attention_bias": (False,)}),
    "gemma": LlamaCppFamily("gemma", fixed={"hidden_act": _TANH_GELU}, norm_offset=1.0),
    "granite": LlamaCppFamily(
        "granite",
        fixed={"hidden_act": _SILU, "attention_bias": (False,), "mlp_bias": (False,)},
        interleaves=True,
        reads_rope_factors=True,
    ),
    "starcoder2": LlamaCppFamily(
        "starcoder2", fixed={"hidden_act": _TANH_GELU, "use_bias": (True,)}
    ),
    "phi": LlamaCppFamily("phi2", fixed={"hidden_act": _TANH_GELU, "qk_layernorm": (False,)}),
    "phi3": LlamaCppFamily(
        "phi3",
        fixed={"hidden_act": _SILU},
        constants={"attention.sliding_window": 0},  # without it, llama.cpp assumes Phi-3-mini's
    ),
    "stablelm": LlamaCppFamily(
        "stablelm",
        fixed={"hidden_act": _SILU, "qk_layernorm": (False,), "use_parallel_residual": (False,)},
    ),
    "gpt2": LlamaCppFamily(
        "gpt2",
        fixed={
            "activation_function": _TANH_GELU,
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
        },
        transposed=("attn.c_attn.weight", "c_proj.weight", "c_fc.weight"),
    ),
}
"""The decoders that can be written, by their `model_type` in Hugging Face."""
ENCODERS = {
    # llama.cpp computes all kinds of GELU as the one with tanh, which is equal up to 0.0005.
    "bert": LlamaCppFamily("bert", fixed={"hidden_act": ("gelu", *_TANH_GELU)})
}
"""The encoders that can be written for embeddings."""
_BERT_HEADS = ("cls.", "bert.pooler.", "pooler.")

# Key of GGUF -> the options of `config.json` that may have its value.
_UINT32 = {
    "{arch}.embedding_length": ("hidden_size", "n_embd"),
    "{arch}.block_count": ("num_hidden_layers", "n_layer"),
    "{arch}.feed_forward_length": ("intermediate_size", "n_inner"),
    "{arch}.attention.head_count": ("num_attention_heads", "n_head"),
    "{arch}.attention.head_count_kv": ("num_key_value_heads",),
    "{arch}.attention.key_length": ("head_dim",),
    "{arch}.attention.value_length": ("head_dim",),
    "{arch}.vocab_size": ("vocab_size",),
    "{arch}.expert_count": ("num_local_experts", "num_experts"),
    "{arch}.expert_used_count": ("num_experts_per_tok",),
    "{arch}.expert_feed_forward_length": ("moe_intermediate_size",),
}
_FLOAT32 = {
    "{arch}.attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "{arch}.attention.layer_norm_epsilon": ("layer_norm_epsilon", "norm_epsilon", "layer_norm_eps"),
    "{arch}.attention.scale": ("attention_multiplier",),
    "{arch}.embedding_scale": ("embedding_multiplier",),
    "{arch}.residual_scale": ("residual_multiplier",),
    "{arch}.logit_scale": ("logits_scaling",),
}


def write_gguf(
    file: Path,
    module: LanguageModule,
    tokenizer: Tokenizer | None,
    settings: Settings,
    *,
    weight_type: WeightType = "f16",
    max_length: int | None = None,
    pooling: str = "mean",
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
        pooling: how an encoder's hidden states become an embedding: mean, first or last.
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
    config, tensors = _convert_model(module, settings)
    family = {**ARCHITECTURES, **ENCODERS}[config["model_type"]]
    encodes = config["model_type"] in ENCODERS
    if tokenizer is None:
        raise SpecError("this model has no tokenizer, which a GGUF file needs.")
    if encodes:
        converted = convert_wordpiece(tokenizer, config["vocab_size"])
    else:
        converted = convert_tokenizer(tokenizer, settings, config["vocab_size"])
    context = _context_length(config, max_length)
    writer = gguf.GGUFWriter(file, family.name)
    writer.add_type("model")
    writer.add_name(name)
    file_types = {"f32": "ALL_F32", **{each: f"MOSTLY_{each.upper()}" for each in WEIGHT_TYPES[1:]}}
    writer.add_file_type(int(gguf.LlamaFileType[file_types[weight_type]]))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(context)
    for keys, add in ((_UINT32, writer.add_uint32), (_FLOAT32, writer.add_float32)):
        for key, options in keys.items():
            values = [config[option] for option in options if config.get(option) is not None]
            if values:
                add(key.format(arch=family.name), values[0])
    for key, constant in family.constants.items():
        writer.add_uint32(f"{family.name}.{key}", constant)
    if encodes:
        kinds = {"mean": "MEAN", "first": "CLS", "last": "LAST"}
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType[kinds[pooling]])
        writer.add_token_type_count(config["type_vocab_size"])
    tensors = {**_add_rope(writer, family, config), **tensors}
    _add_tokenizer(writer, converted, settings)
    _write_tensors(writer, _name_tensors(family, config, tensors), weight_type)
    writer.close()
    return converted, context


def _convert_model(
    module: LanguageModule, settings: Settings
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of a model under their Hugging Face names.

    The heads of an encoder are left out, with a warning.

    Raises SpecError if llama.cpp cannot compute this model.
    """
    families = (
        f"Families that can be written: {', '.join(ARCHITECTURES)}; for embeddings: "
        f"{', '.join(ENCODERS)}."
    )
    if not isinstance(module, Transformer) or module.spec.family == "encoder-decoder":
        raise SpecError(f"only decoders and encoders can be written to a GGUF file. {families}")
    encodes = module.spec.family == "encoder-only"
    heads = [head.kind for head in module.spec.heads]
    if not encodes and heads != ["lm"]:
        raise SpecError(
            "llama.cpp generates with a language-model head alone; this model has: "
            f"{', '.join(heads) or 'no head'}."
        )
    if encodes and not {"mlm", "pooler"}.issuperset(heads):
        raise SpecError(
            "llama.cpp computes embeddings with an encoder, without a head; this model has: "
            f"{', '.join(heads)}."
        )
    config, tensors = to_hugging_face(module, settings.config.get("model_type"))
    kind = config["model_type"]
    if kind not in (ENCODERS if encodes else ARCHITECTURES):
        raise SpecError(f'this model of the family "{kind}" cannot be written as GGUF. {families}')
    if encodes:
        if heads:
            warnings.warn(
                f"llama.cpp computes embeddings with this model; its head ({', '.join(heads)}) is "
                "not written.",
                stacklevel=4,
            )
        kept = {name: each for name, each in tensors.items() if not name.startswith(_BERT_HEADS)}
        tensors = {name.removeprefix(f"{kind}."): each for name, each in kept.items()}
    for option, values in {**ARCHITECTURES, **ENCODERS}[kind].fixed.items():
        if config.get(option, values[0]) not in values:
            raise SpecError(
                f'llama.cpp computes the family "{kind}" only with {option} = {values[0]!r}; this '
                f"model has {config[option]!r}. {families}"
            )
    return config, tensors


def _context_length(config: Mapping[str, Any], max_length: int | None) -> int:
    """Return the context length: the smallest known limit, sliding windows included.

    llama.cpp computes full attention in these families. Up to the size of the sliding window, full
    attention is the same.
    """
    lengths = (max_length, config.get("max_position_embeddings"), config.get("n_positions"))
    context = min([each for each in lengths if each is not None], default=_DEFAULT_CONTEXT)
    slides = "sliding_attention" in config.get("layer_types", ["sliding_attention"])
    window = config.get("sliding_window") if slides else None
    if window is None or window >= context:
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
    width = config["hidden_size"] // config["num_attention_heads"]
    rotary_part = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0
    rotary_dim = int(config.get("head_dim", width) * rotary_part)
    writer.add_rope_dimension_count(rotary_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn" and _is_plain_yarn(rope):
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
    writer.add_add_eos_token(tokenizer.model == "bert")
    writer.add_add_space_prefix(False)
    named = {"default": settings.chat_template, "tool_use": settings.tool_template}
    templates = [{"name": k, "template": v} for k, v in named.items() if v is not None]
    if templates:
        writer.add_chat_template(templates)


def _name_tensors(
    family: LlamaCppFamily, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of the GGUF file."""
    import gguf

    layers = config.get("num_hidden_layers", config.get("n_layer"))
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family.name)
    names = gguf.get_tensor_name_map(arch, layers)
    heads = {
        "q_proj": config.get("num_attention_heads"),
        "k_proj": config.get("num_key_value_heads"),
    }
    for name, tensor in _stack_experts(tensors).items():
        if name == "rope_freqs.weight":
            yield name, tensor
            continue
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new_name is not None, name
        projection = name.split(".")[-2]
        if family.interleaves and projection in heads:
            tensor = _interleave_halves(tensor, heads[projection])
        if name.endswith(family.transposed):
            tensor = tensor.T
        if "norm" in name:
            tensor = tensor + family.norm_offset
        yield new_name, tensor


def _stack_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack the weights of all experts of a layer to one tensor [experts, out, in]."""
    stacked: dict[str, Tensor] = {}
    parts: dict[str, list[Tensor]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            stacked[name] = tensor
        else:  # in the order of the experts
            experts = parts.setdefault(match[1] + match[3], [])
            assert len(experts) == int(match[2]), name
            experts.append(tensor)
    return stacked | {name: torch.stack(experts) for name, experts in parts.items()}


def _interleave_halves(weight: Tensor, num_heads: int | None) -> Tensor:
    """Reorder the rows of a query or key projection for RoPE on adjacent dimensions.

    The rows of each head are stored as two halves; row i of each half becomes rows 2i and 2i + 1.
    """
    assert num_heads is not None
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _write_tensors(
    writer: Any, tensors: Iterator[tuple[str, Tensor]], weight_type: WeightType
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
