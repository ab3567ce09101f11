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
from trivium.inference.score import ScoreItem, score_continuations
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


def generated_words(hf, lm, prompt, **options) -> list[str]:
    """The words that their `generate` appends to a prompt, up to the first stop id."""
    hf(torch.ones(1, 2, dtype=torch.long))  # their model remembers its longest text
    stops = sorted(lm.generation_rules.stop_ids)
    ids = torch.tensor([lm.prompting.prompts([prompt])[0]])
    hf.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=stops, **options)
    mask = torch.ones_like(ids)
    out = hf.generate(ids, attention_mask=mask, max_new_tokens=24)[0, ids.shape[1] :].tolist()
    new = out[: next((i for i, one in enumerate(out) if one in stops), len(out))]
    return words().decode(new).split()


# Shorter than 8 tokens, the length at which RoPE changes; of 7, 8 and 11 tokens.
GROWING_PROMPTS = ["w5 w11 w3", "w17", "w4 w8 w15 w16 w23 w30 w6", "w2 w1 w4 w8 w15 w16 w23 w30"]
GROWING_PROMPTS.append("w4 w8 w15 w16 w23 w30 w6 w9 w21 w2 w1")
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.1, 1.3, 2.0],
    "long_factor": [1.0, 1.5, 4.0, 8.0],
}


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "OlmoForCausalLM"])
def test_cached_texts_with_dynamic_rope_that_grow_beyond_the_original_length(name):
    """Cached keys keep their frequencies, later tokens have those of the length so far."""
    rope = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 100.0}
    changes = {"head_dim": 8, "max_position_embeddings": 8, "rope_parameters": rope}
    hf = hf_model(Case(name, changes))
    lm = language_model(hf)
    for prompt in GROWING_PROMPTS:
        text = lm.generate(prompt, max_new_tokens=24, temperature=0)
        assert text.split() == generated_words(hf, lm, prompt)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    ("name", "changes", "cached"),
    [
        # Phi-3 reads a text again when it grows beyond 8 tokens, with the other factors.
        ("Phi3ForCausalLM", {"hidden_size": 48, "original_max_position_embeddings": 8}, True),
        ("Phi3ForCausalLM", {"hidden_size": 48, "original_max_position_embeddings": 8}, False),
        (
            "Phi3ForCausalLM",
            {"hidden_size": 48, "original_max_position_embeddings": 8, "sliding_window": 4},
            True,
        ),
        # Their LLaMA does not: here its texts are as without a cache.
        ("LlamaForCausalLM", {"head_dim": 8}, False),
    ],
    ids=["phi3-cached", "phi3-whole", "phi3-window", "llama-whole"],
)
def test_texts_with_longrope_that_grow_beyond_the_original_length(name, changes, cached, num_beams):
    rope = {**LONGROPE, "original_max_position_embeddings": 8}
    changes = {**changes, "max_position_embeddings": 32, "rope_parameters": rope}
    hf = hf_model(Case(name, changes))
    lm = language_model(hf)
    options = {"num_beams": num_beams} if num_beams > 1 else {"temperature": 0}
    expected = [
        generated_words(hf, lm, prompt, num_beams=num_beams, use_cache=cached)
        for prompt in GROWING_PROMPTS
    ]
    # Together, in slots that grow beyond the length at different steps.
    texts = lm.generate(GROWING_PROMPTS, max_new_tokens=24, **options)
    assert [text.split() for text in texts] == expected
    if num_beams == 1:
        drafted = lm.generate(
            GROWING_PROMPTS, max_new_tokens=24, temperature=0, draft=PromptLookup()
        )
        assert drafted == texts


def test_scores_of_continuations_that_grow_beyond_the_original_length_of_longrope():
    """A context of several continuations is read as alone, with the factors of the whole text."""
    rope = {**LONGROPE, "original_max_position_embeddings": 8}
    changes = {"head_dim": 8, "max_position_embeddings": 32, "rope_parameters": rope}
    lm = language_model(hf_model(Case("LlamaForCausalLM", changes)))
    context, continuations = [7, 11, 13, 17, 19, 23], [[29, 30, 5, 6], [8], [9, 10]]
    [together] = score_continuations(lm, [ScoreItem(context, continuations)])
    for found, ids in zip(together, continuations, strict=True):
        [[alone]] = score_continuations(lm, [ScoreItem(context, [ids])])
        assert found.total == pytest.approx(alone.total, rel=1e-9)


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
