"""The families of models that llama.cpp computes, and the names and layouts of their weights.

The weights go by their Hugging Face names to those of GGUF, through the table of the package
`gguf`. `ARCHITECTURES` and `ENCODERS` have what is different between families. The rules are those
of llama.cpp's converter (`convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.interop.convert import to_hf_config
from trivium.interop.families import FAMILIES
from trivium.models import LanguageModule, Transformer

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
        metadata: returns further numbers of the file for a config, by their key without the
            architecture. Raises SpecError for a config that llama.cpp cannot compute.
        reads_rope_factors: whether llama.cpp reads the tensor `rope_freqs.weight` (Llama 3.1).
        slides: whether llama.cpp computes sliding windows, which `metadata` describes.
        qkv_per_head: whether the rows of the fused query, key and value projection are sorted by
            head in Hugging Face; in llama.cpp, the queries of all heads come first.
        convert: returns the tensors of a model as llama.cpp has them, given its config and its
            tensors, both by their Hugging Face names.
        reads_mscale: whether llama.cpp reads `mscale_all_dim` of YaRN, which `metadata` describes.
        without_lora: the linear layers to which llama.cpp does not add LoRA.
        output: the tensors of the output layer that llama.cpp requires even if this layer is tied
            to the token embeddings, or missing in a model for embeddings.
    """

    name: str
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    interleaves: bool = False
    transposed: tuple[str, ...] = ()
    norm_offset: float = 0.0
    metadata: Callable[[Mapping[str, Any]], Mapping[str, float]] = lambda config: {}
    reads_rope_factors: bool = False
    slides: bool = False
    qkv_per_head: bool = False
    convert: Callable[[Mapping[str, Any], Mapping[str, Tensor]], Mapping[str, Tensor]] = (
        lambda config, tensors: tensors
    )
    reads_mscale: bool = False
    without_lora: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


def _describe_gemma2(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of Gemma 2, and check the scale of its attention and its soft caps."""
    _check_gemma_scale(config, layers_of_27b=46)
    for option in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(option, 0) is None:
            raise SpecError(f"llama.cpp computes Gemma 2 only with {option}; this model has none.")
    return _describe_windows(config)


def _describe_gemma3(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of Gemma 3, and check the scale of its attention and its RoPE."""
    _check_gemma_scale(config, layers_of_27b=62)
    sliding = config["rope_parameters"]["sliding_attention"]
    if sliding["rope_type"] != "default":
        raise SpecError(
            "llama.cpp computes Gemma 3 without RoPE scaling in layers with a sliding window; this "
            f"model has {sliding['rope_type']!r}."
        )
    return {"rope.freq_base_swa": sliding["rope_theta"], **_describe_windows(config)}


def _check_gemma_scale(config: Mapping[str, Any], layers_of_27b: int) -> None:
    """Raise SpecError for another scale of attention than that which llama.cpp chooses by size."""
    width = config["head_dim"]
    if config["num_hidden_layers"] == layers_of_27b:
        width = config["hidden_size"] // config["num_attention_heads"]
    if config["query_pre_attn_scalar"] != width:
        raise SpecError(
            f"llama.cpp computes this size of Gemma only with query_pre_attn_scalar = {width}; "
            f"this model has {config['query_pre_attn_scalar']}."
        )


def _describe_windows(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the sliding window, and the period n if every nth layer has full attention.

    Raises SpecError for another order of layers.
    """
    if "sliding_attention" not in config["layer_types"]:
        return {}
    return {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": _find_period(config["layer_types"], first=1),
    }


def _describe_modernbert(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of ModernBERT, and check its RoPE."""
    ropes = config["rope_parameters"]
    if any(rope["rope_type"] != "default" for rope in ropes.values()):
        raise SpecError("llama.cpp computes ModernBERT only without RoPE scaling.")
    return {
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        "attention.sliding_window": config["local_attention"],
        "attention.sliding_window_pattern": _find_period(config["layer_types"], first=0),
    }


def _find_period(layer_types: Sequence[str], first: int) -> int:
    """Return n if every nth layer has full attention, counted from `first`, and no other layer.

    Raises SpecError for another order of layers.
    """
    slides = [kind == "sliding_attention" for kind in layer_types]
    for period in range(1, len(slides) + 2):
        if slides == [(first + layer) % period > 0 for layer in range(len(slides))]:
            return period
    raise SpecError(
        "llama.cpp computes sliding windows only if every nth layer has full attention; this model "
        f"has {', '.join(layer_types)}."
    )


def _describe_mamba(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of Mamba; llama.cpp requires those of attention too, as zeros."""
    return {
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": config["intermediate_size"],
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["time_step_rank"],
    }


def _convert_mamba(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return A = -exp(A_log), and the convolution [d_inner, d_conv] without its channel."""
    converted = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(".A_log"):
            converted[name] = -tensor.float().exp()
        elif name.endswith(".conv1d.weight"):
            converted[name] = tensor.squeeze(1)
    return converted


def _describe_deepseek_v2(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of DeepSeek-V2, and check its queries and its RoPE.

    llama.cpp caches the compressed vectors as the keys and values of a single head.
    """
    compressed, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    rank, layers = config["q_lora_rank"] or 0, config["num_hidden_layers"]
    if rank and (layers in (26, 27) or (layers, config["vocab_size"]) == (48, 128256)):
        raise SpecError(
            f"llama.cpp computes DeepSeek with {layers} layers only with q_lora_rank = None, as in "
            f"DeepSeek-V2-Lite; this model has {rank}."
        )
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": compressed + rotary,
        "attention.value_length": compressed,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotary,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": compressed,
        "attention.q_lora_rank": rank,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_gating_func": 1,  # softmax
        **_describe_mscale(config["rope_parameters"]),
    }


def _describe_deepseek_v3(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of DeepSeek-V3.

    The groups of experts are left out if all of them are used, because they then change nothing.
    """
    numbers = {
        **_describe_deepseek_v2(config),
        "expert_gating_func": 2,  # sigmoid
        "expert_weights_norm": config["norm_topk_prob"],
    }
    if config["topk_group"] < config["n_group"]:
        numbers["expert_group_count"] = config["n_group"]
        numbers["expert_group_used_count"] = config["topk_group"]
    return numbers


def _describe_mscale(rope: Mapping[str, Any]) -> dict[str, float]:
    """Return the factor of YaRN's attention scores, and check the RoPE scaling of DeepSeek."""
    kind, mscale = rope["rope_type"], rope.get("mscale_all_dim")
    if kind in ("default", "dynamic"):
        return {}
    plain = rope.get("truncate", True) and rope.get("attention_factor") is None
    if kind == "yarn" and plain and mscale is not None and rope.get("mscale") == mscale:
        return {"rope.scaling.yarn_log_multiplier": 0.1 * mscale}
    raise SpecError(
        "llama.cpp computes DeepSeek only without RoPE scaling, or with yarn with mscale = "
        "mscale_all_dim, truncate = True and no attention_factor; this model has "
        f"{', '.join(f'{name} = {value}' for name, value in rope.items())}."
    )


def _convert_deepseek(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Split W_UKV into W_UK [heads, kv_rank, head_dim] and W_UV [heads, value_dim, kv_rank]."""
    converted: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".kv_b_proj." in name:
            heads = tensor.unflatten(0, (config["num_attention_heads"], -1))
            key, value = heads.tensor_split((config["qk_nope_head_dim"],), 1)
            converted[name.replace("kv_b_proj", "k_b_proj")] = key.mT
            converted[name.replace("kv_b_proj", "v_b_proj")] = value
        else:  # gguf's table has the correction of DeepSeek-V3 as a bias
            converted[name.replace("_correction_bias", "_correction.bias")] = tensor
    return converted


def _check_nomic_bert(config: Mapping[str, Any]) -> dict[str, float]:
    """Raise SpecError for another width of the heads than that which llama.cpp computes."""
    width = config["hidden_size"] // config["num_attention_heads"]
    if config["head_dim"] != width:
        raise SpecError(
            "llama.cpp computes NomicBERT only with head_dim = hidden_size / num_attention_heads = "
            f"{width}; this model has {config['head_dim']}."
        )
    return {}


# The names in the first releases of NomicBERT, which gguf's table has.
_NOMIC_BERT_NAMES = {
    "layers.": "encoder.layers.",
    "self_attn.q_proj": "attn.Wqkv",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}


def _convert_nomic_bert(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Fuse the projections of queries, keys and values, and rename the tensors."""
    converted: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            parts = [name, name.replace("q_proj", "k_proj"), name.replace("q_proj", "v_proj")]
            tensor = torch.cat([tensors[part] for part in parts])
        for new, old in _NOMIC_BERT_NAMES.items():
            name = name.replace(new, old)
        converted[name] = tensor
    return converted


_SILU, _TANH_GELU = ("silu", "swish"), ("gelu_new", "gelu_pytorch_tanh")
# llama.cpp computes all kinds of GELU as the one with tanh, which is equal up to 0.0005.
_GELU = ("gelu", *_TANH_GELU)
_OUTPUT = "lm_head.weight"
_LLAMA = LlamaCppFamily(
    "llama", fixed={"hidden_act": _SILU}, interleaves=True, reads_rope_factors=True
)
_DEEPSEEK_V2 = LlamaCppFamily(
    "deepseek2",
    fixed={"hidden_act": _SILU, "rms_norm_eps": (1e-6,), "topk_method": ("greedy",)},
    metadata=_describe_deepseek_v2,
    convert=_convert_deepseek,
    reads_mscale=True,
    without_lora=("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
)
_GEMMA = {
    "hidden_activation": _TANH_GELU,
    "attention_bias": (False,),
    "tie_word_embeddings": (True,),
}
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
    "olmo2": LlamaCppFamily(
        "olmo2", fixed={"hidden_act": _SILU, "attention_bias": (False,)}, output=(_OUTPUT,)
    ),
    "gemma": LlamaCppFamily(
        "gemma", fixed={"hidden_act": _TANH_GELU, "tie_word_embeddings": (True,)}, norm_offset=1.0
    ),
    "gemma2": LlamaCppFamily(
        "gemma2", fixed=_GEMMA, norm_offset=1.0, metadata=_describe_gemma2, slides=True
    ),
    "gemma3_text": LlamaCppFamily(
        "gemma3", fixed=_GEMMA, norm_offset=1.0, metadata=_describe_gemma3, slides=True
    ),
    "granite": LlamaCppFamily(
        "granite",
        fixed={"hidden_act": _SILU, "attention_bias": (False,), "mlp_bias": (False,)},
        interleaves=True,
        reads_rope_factors=True,
    ),
    "starcoder2": LlamaCppFamily(
        "starcoder2", fixed={"hidden_act": _TANH_GELU, "use_bias": (True,)}
    ),
    "phi": LlamaCppFamily(
        "phi2",
        fixed={"hidden_act": _TANH_GELU, "qk_layernorm": (False,)},
        output=(_OUTPUT, "lm_head.bias"),
    ),
    "phi3": LlamaCppFamily(
        "phi3",
        fixed={"hidden_act": _SILU},
        # Without it, llama.cpp assumes the window of Phi-3-mini.
        metadata=lambda config: {"attention.sliding_window": 0},
    ),
    "stablelm": LlamaCppFamily(
        "stablelm",
        fixed={"hidden_act": _SILU, "qk_layernorm": (False,), "use_parallel_residual": (False,)},
        output=(_OUTPUT,),
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
    "gpt_neox": LlamaCppFamily(
        "gptneox",
        fixed={"hidden_act": _GELU, "attention_bias": (True,)},
        output=(_OUTPUT,),
        metadata=lambda config: {"use_parallel_residual": config["use_parallel_residual"]},
        qkv_per_head=True,
    ),
    "bloom": LlamaCppFamily(
        "bloom",
        metadata=lambda config: {"feed_forward_length": 4 * config["hidden_size"]},
        qkv_per_head=True,
    ),
    "mamba": LlamaCppFamily(
        "mamba",
        fixed={"hidden_act": _SILU, "use_bias": (False,), "use_conv_bias": (True,), "expand": (2,)},
        metadata=_describe_mamba,
        convert=_convert_mamba,
    ),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": replace(
        _DEEPSEEK_V2,
        fixed={"hidden_act": _SILU, "rms_norm_eps": (1e-6,), "rope_interleave": (True,)},
        metadata=_describe_deepseek_v3,
    ),
}
"""The decoders that can be written, by their `model_type` in Hugging Face."""
ENCODERS = {
    "bert": LlamaCppFamily("bert", fixed={"hidden_act": _GELU}),
    "modernbert": LlamaCppFamily(
        "modern-bert",
        fixed={
            "hidden_activation": _GELU,
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "norm_bias": (False,),
        },
        metadata=_describe_modernbert,
        slides=True,
    ),
    "nomic_bert": LlamaCppFamily(
        "nomic-bert",
        fixed={"hidden_act": _SILU},
        metadata=_check_nomic_bert,
        convert=_convert_nomic_bert,
        without_lora=("q_proj", "k_proj", "v_proj"),
    ),
}
"""The encoders that can be written for embeddings."""
_ENCODER_HEADS = ("cls.", "bert.pooler.", "pooler.", "head.", "decoder.")


def find_family(
    module: LanguageModule, model_type: str | None, *, embeds: bool = False
) -> tuple[LlamaCppFamily, dict[str, Any]]:
    """Return the family that computes a model in llama.cpp, and the model's `config.json`.

    `model_type` names the Hugging Face family to prefer. A decoder that `embeds` needs no head.

    Raises:
        SpecError: llama.cpp cannot compute this model; the message lists the families that it can.
    """
    families = (
        f"Families that can be written: {', '.join(ARCHITECTURES)}; for embeddings: "
        f"{', '.join(ENCODERS)}."
    )
    if not isinstance(module, Transformer):
        raise SpecError(f"only decoders and encoders can be written to a GGUF file. {families}")
    if module.spec.family == "encoder-decoder":  # tried with xllamacpp 2026.10.11549
        raise SpecError(
            "llama.cpp's server cannot generate with an encoder-decoder: it does not run the "
            'encoder, and with T5 it ends with the error "llama_encode must be called first". '
            f"{families}"
        )
    encodes = module.spec.family == "encoder-only"
    heads = [head.kind for head in module.spec.heads]
    if not encodes and heads != ["lm"] and not (embeds and not heads):
        raise SpecError(
            "llama.cpp generates with a language-model head alone; this model has: "
            f"{', '.join(heads) or 'no head'}."
        )
    if encodes and not {"mlm", "pooler"}.issuperset(heads):
        raise SpecError(
            "llama.cpp computes embeddings with an encoder, without a head; this model has: "
            f"{', '.join(heads)}."
        )
    config = to_hf_config(module.spec, model_type).options
    kind, known = config["model_type"], ENCODERS if encodes else ARCHITECTURES
    if kind not in known:
        raise SpecError(f'this model of the family "{kind}" cannot be written as GGUF. {families}')
    for option, values in known[kind].fixed.items():
        if config.get(option, values[0]) not in values:
            raise SpecError(
                f'llama.cpp computes the family "{kind}" only with {option} = {values[0]!r}; this '
                f"model has {config[option]!r}. {families}"
            )
    return known[kind], config


def drop_heads(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of an encoder without those of its heads."""
    return {name: each for name, each in tensors.items() if not name.startswith(_ENCODER_HEADS)}


def name_tensors(
    family: LlamaCppFamily, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model in llama.cpp's layout, by their names in GGUF."""
    for name, tensor in family.convert(config, stack_experts(tensors)).items():
        tensor = order_rows(family, config, name, tensor)
        if name.endswith(family.transposed):
            tensor = tensor.T
        if "norm" in name:
            tensor = tensor + family.norm_offset
        yield find_name(family, config, name), tensor


def find_name(family: LlamaCppFamily, config: Mapping[str, Any], name: str) -> str:
    """Return the name in GGUF of a tensor with a Hugging Face name."""
    names = _load_name_map(family.name, config.get("num_hidden_layers", config.get("n_layer")))
    ends = (".weight", ".bias")
    kind = config["model_type"]
    base = FAMILIES[kind].base  # left out in the names of models without a head
    if kind in ENCODERS:
        name = name.removeprefix(base)
    elif not name.startswith((base, "lm_head.")):
        name = base + name
    new_name = names.get_name(name, ends) or names.get_name(name.partition(".")[2], ends)
    assert new_name is not None, name
    return new_name


@functools.cache
def _load_name_map(name: str, layers: int) -> Any:
    """Return gguf's table of names for an architecture of llama.cpp, which is slow to build."""
    import gguf

    arch = next(key for key, each in gguf.MODEL_ARCH_NAMES.items() if each == name)
    return gguf.get_tensor_name_map(arch, layers)


def order_rows(
    family: LlamaCppFamily, config: Mapping[str, Any], name: str, tensor: Tensor
) -> Tensor:
    """Return the rows of a weight, of a bias or of LoRA's B in llama.cpp's order.

    A fused projection of queries, keys and values by head becomes those of all heads. If RoPE
    rotates adjacent dimensions, the rows of each head of a query or key projection are reordered.
    They are stored as two halves; row i of each half becomes rows 2i and 2i + 1.
    """
    if family.qkv_per_head and ".query_key_value." in name:
        count = config.get("num_attention_heads", config.get("n_head"))
        return tensor.unflatten(0, (count, 3, -1)).transpose(0, 1).flatten(0, 2)
    heads = {
        "q_proj": config.get("num_attention_heads"),
        "k_proj": config.get("num_key_value_heads"),
    }
    projection = name.split(".")[-2]
    count = heads.get(projection)
    if not family.interleaves or count is None:
        return tensor
    return tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)


def stack_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
