"""Small random `transformers` models with heads for tasks, as ours with a tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from hugging_face import ours_of, randomize
from their_tokenizers import ours as tokenizer_of

from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel

VOCABULARY, POSITIONS = 337, 61


def theirs(name: str, **options: Any) -> Any:
    """A model of one of their classes, every weight random."""
    import transformers

    family = name.partition("For")[0].removesuffix("Model")
    sizes: dict[str, Any] = {
        "Bert": {
            "hidden_size": 22,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 29,
            "max_position_embeddings": POSITIONS,
        },
        "GPT2": {"n_embd": 26, "n_layer": 2, "n_head": 2, "n_inner": 31, "n_positions": POSITIONS},
        "Bart": {
            "d_model": 22,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 29,
            "decoder_ffn_dim": 31,
            "max_position_embeddings": POSITIONS,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
    }[family]
    config = getattr(transformers, f"{family}Config")(vocab_size=VOCABULARY, **sizes, **options)
    torch.manual_seed(0)
    return randomize(getattr(transformers, name)(config), seed=5)


def as_ours(hf_model: Any, family: str, **config: Any) -> LanguageModel:
    """Ours with the tokenizer of a family and what its settings keep of `config.json`."""
    module = ours_of(hf_model)
    return LanguageModel(module.spec, module, tokenizer_of(family), Settings(config=config))
