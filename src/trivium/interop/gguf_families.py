"""The families of models that llama.cpp computes, and the names and layouts of their weights.

The weights go by their Hugging Face names to those of GGUF, through the table of the package
`gguf`. `ARCHITECTURES` and `ENCODERS` have what is different between families. The rules are those
of llama.cpp's converter (`convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.interop.convert import to_hf_config
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
        metadata: further numbers of the file, by their key without the architecture.
        reads_rope_factors: whether llama.cpp reads the tensor `rope_freqs.weight` (Llama 3.1).
    """

    name: str
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    interleaves: bool = False
    transposed: tuple[str, ...] = ()
    norm_offset: float = 0.0
    metadata: Mapping[str, float] = field(default_factory=dict)
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
        metadata={"attention.sliding_window": 0},  # without it, llama.cpp assumes Phi-3-mini's
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


def find_family(
    module: LanguageModule, model_type: str | None
) -> tuple[LlamaCppFamily, dict[str, Any]]:
    """Return the family that computes a model in llama.cpp, and the model's `config.json`.

    `model_type` names the Hugging Face family to prefer.

    Raises:
        SpecError: llama.cpp cannot compute this model; the message lists the families that it can.
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


def drop_heads(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of an encoder without its heads, under the names of the bare model."""
    prefix = f"{config['model_type']}."
    kept = {name: each for name, each in tensors.items() if not name.startswith(_BERT_HEADS)}
    return {name.removeprefix(prefix): each for name, each in kept.items()}


def name_tensors(
    family: LlamaCppFamily, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model in llama.cpp's layout, by their names in GGUF."""
    for name, tensor in stack_experts(tensors).items():
        tensor = order_rows(family, config, name, tensor)
        if name.endswith(family.transposed):
            tensor = tensor.T
        if "norm" in name:
            tensor = tensor + family.norm_offset
        yield find_name(family, config, name), tensor


def find_name(family: LlamaCppFamily, config: Mapping[str, Any], name: str) -> str:
    """Return the name in GGUF of a tensor with a Hugging Face name."""
    import gguf

    layers = config.get("num_hidden_layers", config.get("n_layer"))
    arch = next(key for key, each in gguf.MODEL_ARCH_NAMES.items() if each == family.name)
    names = gguf.get_tensor_name_map(arch, layers)
    new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert new_name is not None, name
    return new_name


def order_rows(
    family: LlamaCppFamily, config: Mapping[str, Any], name: str, tensor: Tensor
) -> Tensor:
    """Return the rows of a weight, of a bias or of LoRA's B in llama.cpp's order.

    If RoPE rotates adjacent dimensions, the rows of each head of a query or key projection are
    reordered. They are stored as two halves; row i of each half becomes rows 2i and 2i + 1.
    """
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
