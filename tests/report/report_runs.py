"""Small run folders as training writes them, made by hand."""

from __future__ import annotations

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
_STACK = {"num_layers": 3, "layers": [{"norm_placement": "post"}]}
SPEC = {"vocab_size": 13, "d_model": 7, "encoder": _STACK}
VOCABULARY = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 7, "a": 2, "the": 3, "##ing": 4, "<b>": 5, "天": 6}
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": VOCABULARY[token],
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for token in ("[PAD]", "[MASK]")
    ],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": VOCABULARY,
    },
}
FACTS = {
    "unigram_loss": 7.0,
    "default_lr": 1e-3,
    "num_parameters": 12345,
    "bytes_per_token": 4.25,
    "documents": 17,
    "valid_tokens": 1999,
    "device": "a <fast> machine",
    "samples": [{"step": 40, "prompt": "<script>x</script> [MASK]", "output": "sun & moon"}],
    "torch": "2.13.0",
}


def losses(*valid: float) -> list[dict[str, Any]]:
    """Records of a run: a log line every 10 steps, an evaluation after every second one."""
    records: list[dict[str, Any]] = []
    for index, loss in enumerate(valid, start=1):
        for step in (20 * index - 10, 20 * index):
            position = {"step": step, "tokens": 100 * step, "seconds": step / 10}
            speed = {"lr": 1e-3 / step, "grad_norm": 1.5, "tokens_per_second": 1000.0 + step}
            records.append({**position, "train_loss": loss + 0.125, **speed})
        records.append({"step": 20 * index, "tokens": 2000 * index, "seconds": 2.0 * index})
        records[-1]["valid_loss"] = loss
    return records
