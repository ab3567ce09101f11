"""Random encoder-decoders of `transformers` whose texts depend on the source and vary."""

from __future__ import annotations

import torch
from hugging_face import normal
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)
from translation import END, PAD, START

VOCAB, POSITIONS = 101, 31
IDS = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": START}
BLOCKS = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": POSITIONS,
    "scale_embedding": True,
    **IDS,
}


def hf_t5(projection: str) -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=VOCAB,
        d_model=24,
        d_kv=7,
        d_ff=29,
        num_layers=3,  # theirs has room in its cache for as many decoder layers, no more
        num_decoder_layers=2,
        num_heads=3,
        relative_attention_num_buckets=10,
        relative_attention_max_distance=7,
        feed_forward_proj=projection,
        **IDS,
    )
    return T5ForConditionalGeneration(config)


def hf_marian(**changes) -> MarianMTModel:
    own = {"vocab_size": VOCAB, "activation_function": "swish"}
    return MarianMTModel(MarianConfig(**{**own, **BLOCKS, **changes}))


SEPARATE = {
    "vocab_size": 61,
    "decoder_vocab_size": VOCAB,
    "share_encoder_decoder_embeddings": False,
}
THEIRS = {
    "t5": lambda: hf_t5("relu"),
    "t511": lambda: hf_t5("gated-gelu"),
    "bart": lambda: BartForConditionalGeneration(BartConfig(vocab_size=VOCAB, **BLOCKS)),
    "marian": hf_marian,
    "marian, two vocabularies": lambda: hf_marian(**SEPARATE),
}


def lively(name: str):
    """Theirs with weights that let both the source and the tokens so far decide what comes next.

    From plain random ones a tied model mostly says its last token again, or one all the time.
    """
    hf, generator = THEIRS[name](), torch.Generator().manual_seed(2)
    for weight_name, weight in hf.named_parameters():
        if not weight.requires_grad:
            continue
        noise = normal(weight.shape, generator)
        last = "decoder" in weight_name and weight_name.endswith("final_layer_norm.weight")
        if weight.ndim == 1 and not last:
            noise = 0.1 * noise + float(weight_name.endswith("weight"))
        elif "fc2" in weight_name or ".wo." in weight_name:
            noise = 1.8 * noise
        elif "encoder_attn.out" in weight_name:
            noise = 0.15 * noise
        elif not any(table in weight_name for table in ("shared", "embed")) and not last:
            noise = 0.3 * noise
        weight.data.copy_(noise)
    if isinstance(hf, MarianMTModel):
        bias = hf.final_logits_bias
        bias.copy_(0.3 * normal(bias.shape, generator))
    return hf.eval()
