"""Write a LoRA adapter to a GGUF file, which llama.cpp and Ollama add to the GGUF file of its base.

The tensors are those of PEFT's format with llama.cpp's names and layouts. The rules are those of
llama.cpp's converter (`convert_lora_to_gguf.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from trivium.adapt.adapter import Adapter
from trivium.errors import SpecError, require_extra
from trivium.interop.gguf_families import (
    LlamaCppFamily,
    find_family,
    find_name,
    order_rows,
    stack_experts,
)
from trivium.interop.gguf_file import add_file_type, write_tensors
from trivium.interop.peft_format import PREFIX, read_adapter_to_peft
from trivium.models import LanguageModule

ADAPTER_FILE = "adapter.gguf"
AdapterWeightType = Literal["f16", "f32", "bf16"]
ADAPTER_WEIGHT_TYPES: tuple[AdapterWeightType, ...] = get_args(AdapterWeightType)
_ENDS = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}


def write_gguf_adapter(
    file: Path,
    module: LanguageModule,
    adapter: Adapter,
    *,
    model_type: str | None = None,
    weight_type: AdapterWeightType = "f16",
) -> None:
    """Write the adapter that `with_adapter(module, adapter)` has added to a model.

    Args:
        file: the file to write.
        module: the model with the adapter.
        adapter: the adapter.
        model_type: the Hugging Face family of the base model, if it was imported.
        weight_type: the data type of the matrices A and B.

    Raises:
        SpecError: llama.cpp cannot compute the base model or this adapter.
        MissingExtraError: the package `gguf` is not installed.
    """
    with require_extra("GGUF", "gguf"):
        import gguf
    if weight_type not in ADAPTER_WEIGHT_TYPES:
        raise SpecError(
            f"a LoRA adapter is written as {', '.join(ADAPTER_WEIGHT_TYPES)}, not {weight_type}."
        )
    if adapter.weights:
        raise SpecError(
            f"this adapter also replaces {', '.join(sorted(adapter.weights)[:3])}, but an adapter "
            "in a GGUF file has only low-rank updates: export the merged model."
        )
    family, config = find_family(module, model_type, embeds=True)
    peft, tensors = read_adapter_to_peft(module, adapter, model_type)
    if peft["use_dora"]:
        raise SpecError("llama.cpp does not compute DoRA: export the merged model.")
    layers = {name.split(".")[-3] for name in tensors}
    if without := sorted(layers.intersection(family.without_lora)):
        raise SpecError(
            f"llama.cpp does not add LoRA to {', '.join(without)} in the family "
            f'"{config["model_type"]}": export the merged model.'
        )
    writer = gguf.GGUFWriter(file, family.name)
    writer.add_type("adapter")
    writer.add_name(adapter.name)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", peft["lora_alpha"])
    add_file_type(writer, weight_type)
    tensors = _with_equal_alphas(peft, tensors)
    write_tensors(writer, _name_tensors(family, config, tensors), weight_type)
    writer.close()


def _with_equal_alphas(peft: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return PEFT's tensors for one alpha, that of a GGUF file: B is multiplied by the others."""
    end = ".lora_B.weight"
    alphas = {f"{PREFIX}{module}{end}": each for module, each in peft["alpha_pattern"].items()}
    return {
        name: each * (alphas[name] / peft["lora_alpha"]) if name in alphas else each
        for name, each in tensors.items()
    }


def _name_tensors(
    family: LlamaCppFamily, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices A [r, I] and B [O, r] by their names in GGUF."""
    for name, tensor in stack_experts(tensors).items():
        end = next(each for each in _ENDS if name.endswith(each))
        weight = name.removeprefix(PREFIX).removesuffix(end) + ".weight"
        if end == ".lora_B.weight":
            tensor = order_rows(family, config, weight, tensor)
        yield find_name(family, config, weight) + _ENDS[end], tensor
