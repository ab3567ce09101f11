"""Presets against the sizes that were published."""

from __future__ import annotations

import pytest
import torch
from hf_weights import bert_spec, gpt2_spec, llama_spec
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from trivium.errors import SpecError
from trivium.models import build
from trivium.presets import catalogue, find, presets
from trivium.spec import Initialization

# Totals of the released checkpoints.
PUBLISHED = {
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
}


def bert(layers, width, heads):
    return BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )


def gpt2(layers, width, heads):
    return GPT2Config(n_layer=layers, n_embd=width, n_head=heads)


def llama(layers, width, heads, d_ff, kv_heads=None, vocab=32_000, theta=10_000.0, eps=1e-6):
    return LlamaConfig(
        vocab_size=vocab,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        intermediate_size=d_ff,
        rms_norm_eps=eps,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )


# The released configurations, in the words of `transformers`.
CONFIGS = {
    "bert-tiny": bert(2, 128, 2),
    "bert-mini": bert(4, 256, 4),
    "bert-small": bert(4, 512, 8),
    "bert-medium": bert(8, 512, 8),
    "bert-base": bert(12, 768, 12),
    "bert-large": bert(24, 1024, 16),
    "gpt2": gpt2(12, 768, 12),
    "gpt2-medium": gpt2(24, 1024, 16),
    "gpt2-large": gpt2(36, 1280, 20),
    "gpt2-xl": gpt2(48, 1600, 25),
    "llama-7b": llama(32, 4096, 32, 11_008),
    "llama-13b": llama(40, 5120, 40, 13_824),
    "llama-33b": llama(60, 6656, 52, 17_920),
    "llama-65b": llama(80, 8192, 64, 22_016),
    "llama2-7b": llama(32, 4096, 32, 11_008, eps=1e-5),
    "llama2-70b": llama(80, 8192, 64, 28_672, 8, eps=1e-5),
    "llama3-8b": llama(32, 4096, 32, 14_336, 8, 128_256, 500_000.0, eps=1e-5),
    "llama3-70b": llama(80, 8192, 64, 28_672, 8, 128_256, 500_000.0, eps=1e-5),
}
CLASSES = {"bert": BertForPreTraining, "gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM}
READERS = {"bert": bert_spec, "gpt2": gpt2_spec, "llama": llama_spec}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name):
    assert presets[name].num_parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_builds_as_many_parameters_from_the_same_description(name):
    config = CONFIGS[name]
    with torch.device("meta"):
        theirs = CLASSES[config.model_type](config)
    assert presets[name].num_parameters == sum(weight.numel() for weight in theirs.parameters())
    described = READERS[config.model_type](theirs)
    # Where training starts is not in their description; dropout of LLaMA is none in both.
    assert described == presets[name].replace(initialization=Initialization())


@pytest.mark.parametrize("name", presets)
def test_num_parameters_is_what_is_built(name):
    model = build(presets[name], device="meta")
    assert sum(weight.numel() for weight in model.parameters()) == presets[name].num_parameters


@pytest.mark.parametrize("name", presets)
def test_every_preset_is_whole(name):
    preset = catalogue[name]
    described = preset.spec
    assert preset.paper
    assert preset.context > 0
    assert described.max_length in (None, preset.context)
    assert described.heads
    for attention in described.stacks[0].attentions:
        assert attention.num_heads * attention.head_dim == described.d_model


@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2", "llama"])
def test_every_family_has_sizes_to_try(family):
    for size, layers, width in (("tiny", 2, 128), ("mini", 4, 256)):
        described = presets[f"{family}-{size}"]
        assert (described.stacks[0].num_layers, described.d_model) == (layers, width)


def test_the_mapping():
    assert len(presets) == len(list(presets)) == len(catalogue)
    assert "gpt2" in presets
    assert "gtp2" not in presets
    assert find("gpt2").spec is presets["gpt2"]


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(SpecError, match=r'no preset "bert-bsae".*Did you mean "bert-base"'):
        presets["bert-bsae"]
