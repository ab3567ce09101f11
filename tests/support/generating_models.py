"""Models that generate: random ones of `transformers`, the same as ours, and both their texts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hugging_face import normal, ours_of
from lively_models import THEIRS, lively
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from translation import PAD, START

from trivium.inference.engine import Engine
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import GenerationRules
from trivium.models import LanguageModule
from trivium.text import Tokenizer
from trivium.text.inputs import SpecialTokenTemplate

VOCAB, POSITIONS = 101, 61
BART_SIZES = {
    "d_model": 22,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": 37,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
PROMPTS = [[7, 3, 11, 5], [13], [17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59], [7, 9]]


@functools.cache
def letters() -> Tokenizer:
    """A byte-level tokenizer."""
    texts = [
        "the quick brown fox jumps over the lazy dog; \u00e9t\u00e9 \u5929\u6c14 \U0001f600"
    ] * 3
    return Tokenizer.train("byte-bpe", texts=texts, vocab_size=300, progress=False)


@dataclass
class TinyTextModel:
    """A `TextModel` without files, settings or a vocabulary of its own."""

    module: LanguageModule
    generation_rules: GenerationRules
    text_tokenizer: Tokenizer
    source_tokenizer: Tokenizer

    @property
    def max_length(self) -> int | None:
        return self.module.spec.max_length

    context_length = max_length

    @property
    def source_template(self) -> SpecialTokenTemplate:
        return SpecialTokenTemplate(self.source_tokenizer)


def text_model(
    module: LanguageModule, tokenizer: Tokenizer | None = None, **rules: Any
) -> TinyTextModel:
    """A module as a `TextModel`; an encoder-decoder starts with START."""
    both = module.spec.family == "encoder-decoder"
    settings = {"decoder_start": (START,) if both else (), **rules}
    rule = GenerationRules(**{"vocab_size": module.spec.vocab_size, **settings})
    tokenizer = tokenizer or letters()
    return TinyTextModel(module, rule, tokenizer, tokenizer)


def run(
    lm: Any, prompts: Sequence[Sequence[int]], params: SamplingParams, **engine: Any
) -> list[GenerationRequest]:
    """All prompts through one engine; prompt i has seed i."""
    generating = Engine(lm, **engine)
    requests = [
        GenerationRequest(p, params.replace(seed=(params.seed or 0) + i))
        for i, p in enumerate(prompts)
    ]
    for request in requests:
        generating.add(request)
    assert sorted(map(id, generating.run())) == sorted(map(id, requests))
    return requests


def hf_gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=24, n_layer=3, n_head=3)
    return GPT2LMHeadModel(config)


def hf_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


HF_DECODERS = {"gpt2": hf_gpt2, "llama": hf_llama}
HF_MODELS = [*HF_DECODERS, *THEIRS]


def with_normal_weights(hf: Any) -> Any:
    """Matrices and tables drawn anew, wide enough for texts that vary."""
    generator = torch.Generator().manual_seed(0)
    for weight in hf.parameters():
        if weight.ndim > 1:
            weight.data.copy_(0.4 * normal(weight.shape, generator))
    return hf.eval()


def hf_pair(name: str) -> tuple[Any, LanguageModule]:
    """A model of `transformers`, and the same as ours, in the default precision."""
    return _hf_pair(name, torch.get_default_dtype())


@functools.cache
def _hf_pair(name: str, dtype: torch.dtype) -> tuple[Any, LanguageModule]:
    hf = lively(name) if name in THEIRS else with_normal_weights(HF_DECODERS[name]())
    return hf, ours_of(hf)


def hf_generate(
    hf: Any, prompts: Sequence[Sequence[int]], start: Sequence[int] = (), **config: Any
) -> Any:
    """`generate` of transformers on prompts, one batch."""
    longest = max(map(len, prompts))
    rows, real = [], []
    for prompt in prompts:
        padding = longest - len(prompt)
        ids, ones = list(prompt), [1] * len(prompt)
        rows.append([*ids, *[PAD] * padding] if start else [*[PAD] * padding, *ids])
        real.append([*ones, *[0] * padding] if start else [*[0] * padding, *ones])
    inputs = {"attention_mask": torch.tensor(real)}
    if start:
        inputs["decoder_input_ids"] = torch.tensor([list(start[:1])] * len(prompts))
        config = {"decoder_start_token_id": start[0], **config}
    hf.generation_config = GenerationConfig(
        pad_token_id=PAD, return_dict_in_generate=True, output_scores=True, **config
    )
    return hf.generate(torch.tensor(rows), **inputs), 1 if start else longest


def until(ids: Sequence[int], stop_ids: Sequence[int]) -> list[int]:
    """The ids before the first stop id."""
    return list(ids[: next((i for i, x in enumerate(ids) if x in stop_ids), len(ids))])
