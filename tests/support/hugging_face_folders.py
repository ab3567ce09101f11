"""Small `transformers` models and tokenizers, saved to folders as users have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hugging_face import randomize

from trivium.text import Tokenizer

TEXT = [
    "The weather was cloudy yesterday, but today it's rainy.",
    "今天天气很好。我们去公园。",
    "Été à Zürich: 3,5 °C ☃ und Straße.",
]
SAMPLES = [*TEXT, "unseen wörds, 明天 & <b>", "  two  spaces\tand a tab\n"]
VOCAB = 331


def tokenizer_of(kind: str) -> Tokenizer:
    """A small one of a kind; all ids are below VOCAB."""
    specials = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    return Tokenizer.train(
        kind,
        texts=TEXT * 5,
        vocab_size=293 if kind == "byte-bpe" else 113,
        special_tokens=None if kind == "wordpiece" else specials,
        progress=False,
    )


def bert(transformers: Any, name: str = "BertForMaskedLM", **options: Any) -> Any:
    config = {
        "vocab_size": VOCAB,
        "hidden_size": 22,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 29,
        "max_position_embeddings": 61,
        **options,
    }
    return randomize(getattr(transformers, name)(transformers.BertConfig(**config)), seed=3)


def gpt2(transformers: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=26,
        n_layer=2,
        n_head=2,
        n_inner=31,
        n_positions=61,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return randomize(transformers.GPT2LMHeadModel(config), seed=5)


def llama(transformers: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=28,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=37,
        max_position_embeddings=61,
    )
    return randomize(transformers.LlamaForCausalLM(config), seed=7)


def t5(transformers: Any) -> Any:
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=26,
        d_kv=11,
        d_ff=41,
        num_layers=2,
        num_heads=3,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    )
    return randomize(transformers.T5ForConditionalGeneration(config), seed=11)


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "t5": t5}


def inputs_of(hf_model: Any) -> dict[str, torch.Tensor]:
    """Two rows of ids."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCAB, (2, 13), generator=generator)
    inputs = {"input_ids": ids}
    if hf_model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, VOCAB, (2, 7), generator=generator)
    return inputs


@torch.no_grad()
def logits_of(hf_model: Any) -> torch.Tensor:
    return hf_model.eval()(**inputs_of(hf_model)).logits


def save_pickled(hf_model: Any, folder: Path, *, zipped: bool = True) -> Path:
    """As `transformers` once did: a state dict that repeats tied weights."""
    hf_model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.save(
        hf_model.state_dict(),
        folder / "pytorch_model.bin",
        _use_new_zipfile_serialization=zipped,
    )
    return folder
