"""A small run folder as training writes it, made by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

RECIPE = """seed = 0
[model]
preset = "bert-tiny"
dropout = 0.1
[objective]
kind = "masked"
[optimizer]
lr = 5e-05
[train]
batch_tokens = 40960
"""
SPEC = {
    "vocab_size": 13,
    "d_model": 7,
    "encoder": {
        "num_layers": 3,
        "norm": {"kind": "layer"},
        "norm_order": "post",
        "attention": {"num_heads": 2, "head_dim": 5, "num_kv_heads": 1},
        "feed_forward": {"d_ff": 11, "activation": "gelu", "gated": False},
        "dropout": 0.1,
    },
}
TOKENIZER = {
    "added_tokens": [{"content": "[PAD]", "special": True}, {"content": "[MASK]", "special": True}],
    "model": {
        "type": "WordPiece",
        "continuing_subword_prefix": "##",
        "vocab": {"[PAD]": 0, "[MASK]": 1, "a": 2, "the": 3, "##ing": 4, "<b>": 5, "\u5929": 6},
    },
}
FACTS = {
    "unigram_loss": 7.0,
    "num_parameters": 12345,
    "bytes_per_token": 4.25,
    "documents": 17,
    "device": "a <fast> machine",
    "samples": [{"step": 40, "prompt": "<script>x</script> [MASK]", "output": "sun & moon"}],
    "torch": "2.13.0",
}


def losses(*valid: float) -> list[dict[str, Any]]:
    """Records of a run: a log line every 10 steps, an evaluation after every second one."""
    records: list[dict[str, Any]] = []
    for index, loss in enumerate(valid, start=1):
        for step in (20 * index - 10, 20 * index):
            where = {"step": step, "tokens": 100 * step, "seconds": step / 10}
            speed = {"lr": 1e-3 / step, "grad_norm": 1.5, "tokens_per_second": 1000.0 + step}
            records.append({**where, "train_loss": loss + 0.125, **speed})
        records.append({"step": 20 * index, "tokens": 2000 * index, "seconds": 2.0 * index})
        records[-1]["valid_loss"] = loss
    return records


class RunMaker:
    """Writes run folders below a temporary one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(
        self,
        name: str = "mine",
        *,
        metrics: list[dict[str, Any]] | None = None,
        facts: dict[str, Any] | None = None,
        recipe: str = RECIPE,
    ) -> Path:
        folder = self.root / name
        folder.mkdir()
        records = losses(6.5, 5.25, 4.5) if metrics is None else metrics
        (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
        (folder / "recipe.toml").write_text(recipe)
        (folder / "spec.json").write_text(json.dumps(SPEC))
        (folder / "facts.json").write_text(json.dumps(FACTS if facts is None else facts))
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        header = {
            "__metadata__": {"format": "pt"},
            "embedding.tokens.weight": {"dtype": "F32", "shape": [13, 7]},
            "embedding.norm.weight": {"dtype": "F32", "shape": [7]},
            "stack.layers.0.attention.query.weight": {"dtype": "F32", "shape": [10, 7]},
            "stack.layers.0.attention_residual.norm.weight": {"dtype": "F32", "shape": [7]},
            "stack.layers.0.feed_forward.up.weight": {"dtype": "F32", "shape": [11, 7]},
            "heads.mlm.bias": {"dtype": "F32", "shape": [13]},
        }
        data = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)
        return folder
