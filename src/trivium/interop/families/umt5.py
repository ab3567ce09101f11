"""UMT5 (Chung et al. 2023): mT5 with relative position biases of its own in every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.mt5 import MT5
from trivium.interop.families.t5 import t5_classes, weight_names
from trivium.interop.family import Hook, NameMap, SpecTree
from trivium.interop.hf_config import ConfigReader
from trivium.models.heads.vocabulary import LMHead
from trivium.models.transformer import TransformerSpec


def _read_lm_scale(config: ConfigReader, tree: SpecTree) -> None:
    """Read the scale of the hidden states before the LM head, as T5 has it for tied tables."""
    tied = config.require("tie_word_embeddings", True)
    tree.set("heads.lm.scale", tree.get("d_model") ** -0.5 if tied else 1.0)


def _write_lm_scale(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the scale as `tie_word_embeddings`; a head of its own is in the file."""
    scales = [head.scale for head in spec.heads if isinstance(head, LMHead)]
    config["tie_word_embeddings"] = scales != [1.0]


def _read_tables(config: ConfigReader, tree: SpecTree) -> None:
    """Give every layer a table of relative position biases."""
    for stack in tree.stacks:
        count, mixer = tree.get(f"{stack}.num_layers"), tree.get(f"{stack}.layers.mixer")
        positions = [{**mixer["positions"], "table": i} for i in range(min(count, 1000))]
        tree.repeat_per_mixer(stack, [{**mixer, "positions": each} for each in positions])


def _weight_names(spec: TransformerSpec) -> NameMap:
    """Return the mapping of weight names: T5's, with a table in every layer."""
    bias = "block.{}.layer.0.SelfAttention.relative_attention_bias"
    names = dict(weight_names(spec))
    for stack in ("encoder", "decoder"):
        names[f"{stack}.{bias.format('{i}')}"] = f"{stack}.tables.{{i}}"
        del names[f"{stack}.{bias.format(0)}"]
    return names


UMT5 = replace(
    MT5,
    model_type="umt5",
    architectures=t5_classes("UMT5"),
    weights=_weight_names,
    ignored=f"{MT5.ignored} scalable_attention",
    hooks=(*MT5.hooks, Hook(_read_lm_scale, _write_lm_scale), Hook(_read_tables)),
)
