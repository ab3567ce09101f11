"""Collect the sizes and the papers of presets, which `trivium presets` prints."""

from __future__ import annotations

from typing import Any

from trivium.models import active_parameters, num_parameters
from trivium.models.base_model import Spec
from trivium.models.transformer import TransformerSpec
from trivium.presets.preset import Preset


def preset_summary(name: str, preset: Preset) -> dict[str, Any]:
    """Return the sizes and the paper of a preset as a dict. Unknown values are None."""
    spec = preset.spec
    return {
        "name": name,
        "family": spec.family,
        "parameters": num_parameters(spec),
        "active_parameters": active_parameters(spec),
        "d_model": spec.d_model,
        "vocab_size": spec.vocab_size,
        "context": preset.context,
        "training_tokens": preset.tokens,
        "paper": preset.paper,
        **shape_summary(spec),
    }


def shape_summary(spec: Spec) -> dict[str, Any]:
    """Return the width, the number of layers and the layer sizes of a model as a dict.

    For a Transformer, `d_ff` and the numbers of attention heads are those of the last stack. If the
    stack has several mixers, the first mixer with attention heads counts.
    """
    if not isinstance(spec, TransformerSpec):
        return {
            "d_model": spec.d_model,
            "num_layers": getattr(spec, "num_layers", 1),
            "d_hidden": getattr(spec, "d_hidden", None),
        }
    stack = spec.stacks[-1]
    mixer = next((mixer for mixer in stack.mixers if hasattr(mixer, "num_heads")), None)
    heads = getattr(mixer, "num_heads", None)
    return {
        "d_model": spec.d_model,
        "encoder_layers": spec.encoder.num_layers if spec.encoder else None,
        "decoder_layers": spec.decoder.num_layers if spec.decoder else None,
        "num_heads": heads,
        "num_kv_heads": getattr(mixer, "kv_heads", heads),
        "head_dim": getattr(mixer, "head_dim", None),
        "d_ff": stack.d_ff,
    }
