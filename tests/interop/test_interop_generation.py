"""Texts that `generate` finds by beam search, against `transformers` in many families."""

from __future__ import annotations

import functools

import pytest
import torch
from hf_models import VOCABULARY, Case, hf_model
from hugging_face import ours_of
from transformers import GenerationConfig

from trivium import LanguageModel
from trivium.errors import TriviumError
from trivium.inference.speculative import PromptLookup
from trivium.interop.settings import Settings
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

WORDS = [f"w{number}" for number in range(VOCABULARY - 2)]
STOPS = [7, 9]
DECODERS = [
    *("OpenAIGPTLMHeadModel", "GPT2LMHeadModel", "OPTForCausalLM", "LlamaForCausalLM"),
    *("MistralForCausalLM", "MixtralForCausalLM", "BloomForCausalLM", "GPTNeoXForCausalLM"),
    *("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"),
    *("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    *("Gemma3ForCausalLM", "Olmo2ForCausalLM", "GlmForCausalLM", "ModernBertDecoderForCausalLM"),
    *("PhiForCausalLM", "StableLmForCausalLM", "Starcoder2ForCausalLM"),
    *("OlmoForCausalLM", "Olmo3ForCausalLM", "NemotronForCausalLM"),
    *("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"),
]
BOTH = ["T5ForConditionalGeneration", "BartForConditionalGeneration"]
# Ours, and what the same options are called there.
SETTINGS = [
    {"num_beams": 2},
    {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"num_beams": 3, "no_repeat_ngram": 2, "min_new_tokens": 5},
    {"num_beams": 3, "repetition_penalty": 1.7},
    {"num_beams": 1},
]
THEIRS = {"no_repeat_ngram": "no_repeat_ngram_size"}
PROMPTS = ["w5 w11 w3", "w17"]


@functools.cache
def words() -> Tokenizer:
    special = ["<unk>", "</s>"]
    return Tokenizer.train(
        "whitespace",
        texts=[" ".join(WORDS)] * 3,
        vocab_size=VOCABULARY,
        special_tokens=special,
        progress=False,
    )


def language_model(hf) -> LanguageModel:
    settings = Settings(generation={"eos_token_id": STOPS, "decoder_start_token_id": 0})
    module = ours_of(hf)
    return LanguageModel(module.spec, module, words(), settings)


@pytest.mark.parametrize("name", DECODERS + BOTH)
def test_generate_searches_with_beams_as_transformers(name):
    hf = hf_model(Case(name, {}))
    lm, found = language_model(hf), set()
    stops = sorted(lm.generation_rules.stop_ids)  # the tokenizer's is among them
    for options in SETTINGS:
        config = {THEIRS.get(key, key): value for key, value in options.items()}
        hf.generation_config = GenerationConfig(
            pad_token_id=0, eos_token_id=stops, decoder_start_token_id=0, **config
        )
        for prompt in PROMPTS:
            ids = torch.tensor([lm.prompting.prompts([prompt])[0]])
            mask = torch.ones_like(ids)
            out = hf.generate(ids, attention_mask=mask, max_new_tokens=9)[0].tolist()
            new = out[1 if name in BOTH else ids.shape[1] :]
            new = new[: next((i for i, one in enumerate(new) if one in stops), len(new))]
            text = lm.generate(prompt, max_new_tokens=9, **options)
            assert text.split() == words().decode(new).split(), (options, prompt)
            found.add(text)
    assert len(found) > 2
    assert lm.generate(PROMPTS, num_beams=3) == [lm.generate(p, num_beams=3) for p in PROMPTS]


# RoPE whose frequencies change when a text grows beyond 8 tokens.
GROWING_ROPES = {
    "dynamic": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 100.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": [1.0, 1.1, 1.3, 2.0],
        "long_factor": [1.0, 1.5, 4.0, 8.0],
        "original_max_position_embeddings": 8,
    },
}


@pytest.mark.parametrize("kind", GROWING_ROPES)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "OlmoForCausalLM"])
def test_cached_texts_that_grow_beyond_the_original_length(name, kind):
    """Cached keys keep their frequencies, later tokens have those of the length so far."""
    changes = {"head_dim": 8, "max_position_embeddings": 8, "rope_parameters": GROWING_ROPES[kind]}
    hf = hf_model(Case(name, changes))
    lm = language_model(hf)
    stops = sorted(lm.generation_rules.stop_ids)
    for prompt in ("w5 w11 w3", "w17", "w4 w8 w15 w16 w23 w30 w6 w9 w21 w2 w1"):
        hf(torch.ones(1, 2, dtype=torch.long))  # their model remembers its longest text
        ids = torch.tensor([lm.prompting.prompts([prompt])[0]])
        hf.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=stops)
        mask = torch.ones_like(ids)
        out = hf.generate(ids, attention_mask=mask, max_new_tokens=24)[0, ids.shape[1] :].tolist()
        new = out[: next((i for i, one in enumerate(out) if one in stops), len(out))]
        text = lm.generate(prompt, max_new_tokens=24, temperature=0)
        assert text.split() == words().decode(new).split()


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "temperature": 0.7},
        {"num_beams": 3, "top_k": 5},
        {"num_beams": 3, "top_p": 0.9},
        {"num_beams": 3, "min_p": 0.1},
        {"num_beams": 3, "stop": "w3"},
        {"num_beams": 3, "choices": ["w3"]},
        {"num_beams": 3, "seed": 1},
        {"num_beams": 3, "top_logprobs": 2},
        {"num_beams": 3, "draft": PromptLookup()},
        {"num_beams": 0},
        {"num_beams": VOCABULARY + 1},
        {"num_beams": "four"},
        {"num_beams": 2, "num_return": 3},
        {"num_beams": 2, "early_stopping": "soon"},
        {"length_penalty": 1.0},
        {"num_beamz": 3},
        {"do_sample": True},
    ],
    ids=lambda options: " ".join(f"{name}={type(one).__name__}" for name, one in options.items()),
)
def test_what_generate_cannot_do_with_beams_is_refused(options):
    lm = language_model(hf_model(Case("GPT2LMHeadModel", {})))
    with pytest.raises(TriviumError, match="|".join(options)):
        lm.generate("w5", **options)


def test_streams_have_no_beams():
    lm = language_model(hf_model(Case("GPT2LMHeadModel", {})))
    with pytest.raises(TriviumError, match="num_beams is not an option of sampling"):
        lm.stream("w5", num_beams=2)
