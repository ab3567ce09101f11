"""Presets: published totals, released configurations, and small sizes built like the large ones."""

from __future__ import annotations

from typing import Any

import pytest
from released_configs import CLASSES, CONFIGS

from trivium.errors import SpecError
from trivium.interop.families import FAMILIES
from trivium.interop.spec_config import read_spec, simplify
from trivium.models import active_parameters, build, num_parameters
from trivium.presets import catalogue, did_you_mean_preset, is_own_size, presets
from trivium.spec import Normal, TransformerSpec

transformers = pytest.importorskip("transformers")

PUBLISHED = {
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "gpt1": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-34b": 33_743_970_304,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    # Without the correction bias of 256 experts in 58 layers, and without the MTP module.
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-70m": 70_426_624,
    "pythia-6.9b": 6_857_302_016,
    "bloom-560m": 559_214_592,
    "bloom-176b": 176_247_271_424,
    "gemma-2b": 2_506_172_416,  # KerasHub, as the four below
    "gemma-7b": 8_537_680_896,
    "phi-3-mini": 3_821_079_552,
    "falcon-rw-1b": 1_311_625_216,
    "gemma2-2b": 2_614_341_888,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "olmo-1b": 1_176_764_416,
    "olmo-7b": 6_888_095_744,
    "stablelm-3b": 2_795_443_200,  # the model card
    "phi-1.5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi-4-mini": 3_836_021_760,
    # The weights in transformers; the model card prints 6,053,381,344.
    "gpt-j-6b": 6_050_882_784,
    "gpt-neo-125m": 125_198_592,
    "gpt-neo-1.3b": 1_315_575_808,
    "gpt-neo-2.7b": 2_651_307_520,
    "granite-3.1-2b": 2_533_531_648,
    "granite-3.1-8b": 8_170_848_256,
    "smollm3-3b": 3_075_098_624,
    "glm-4-9b": 9_399_951_360,
    "olmo3-7b": 7_298_011_136,
    "olmo3-32b": 32_233_522_176,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "qwen2-0.5b": 494_032_768,
    "qwen2-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    # PEFT counts 6,245,533,696 in the released model with a LoRA adapter of 1,949,696.
    "chatglm2-6b": 6_243_584_000,
    "mamba-130m": 129_135_360,
    "mamba-370m": 371_516_416,
    "mamba-790m": 793_204_224,
    "mamba-1.4b": 1_372_178_432,
    "mamba-2.8b": 2_768_345_600,
    "mamba2-130m": 128_989_632,
    # 2 V D + 13 D^2 L + D (11 L + 4), Peng et al. 2023, section 4.
    "rwkv-169m": 169_342_464,
    "rwkv-430m": 430_397_440,
    "rwkv-1.5b": 1_515_106_304,
    "rwkv-3b": 2_984_627_200,
    "rwkv-7b": 7_392_649_216,
    "rwkv-14b": 14_148_597_760,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-xxl": 11_135_332_352,
    "mt5-small": 300_176_768,
    "mt5-base": 582_401_280,
    "mbart-50-large": 610_879_488,
    "m2m100-418m": 483_905_536,
    "m2m100-1.2b": 1_239_470_080,
    "nllb-600m": 615_073_792,
    "nllb-1.3b": 1_370_638_336,
    "nllb-3.3b": 3_344_863_232,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
}
# Totals that papers print rounded, in millions: Brown et al. 2020, table D.1; Lieber et al. 2021,
# table 1; Chowdhery et al. 2022, table 1; Vaswani et al. 2017, table 3; Lan et al. 2019, table 1;
# Warner et al. 2024; Dai et al. 2019, table 1; the code of Du et al. 2022; Turc et al. 2019, table
# 1, where a BERT is counted without the heads that pretraining adds; Child et al. 2019, table 1,
# whose 95 million have no vector for each of the 12,288 positions; Rae et al. 2021, table 1;
# Hoffmann et al. 2022, tables A9 and 4; Parmar et al. 2024, section 2; the cards of the released
# DistilBERTs; Conneau et al. 2019, and the card of nomic-embed-text-v2-moe for XLM-RoBERTa of the
# base size; Goyal et al. 2021; Nussbaum et al. 2024; the README of Ettin; Yang et al. 2024; OpenAI
# 2025, table 1; Almazrouei et al. 2023; Dao and Gu 2024; Xue et al. 2020, table 1; Zhang
# et al. 2019, section 6.
ROUNDED = {
    "gpt3-125m": (125, 0.005),
    "gpt3-350m": (356, 0.005),
    "gpt3-760m": (760, 0.005),
    "gpt3-1.3b": (1_320, 0.005),
    "gpt3-2.7b": (2_650, 0.005),
    "gpt3-6.7b": (6_660, 0.005),
    "gpt3-13b": (12_850, 0.005),
    "gpt3-175b": (174_600, 0.005),
    "jurassic1-large": (7_500, 0.001),
    "jurassic1-jumbo": (178_000, 0.005),
    "palm-8b": (8_630, 0.001),
    "palm-62b": (62_500, 0.001),
    "palm-540b": (540_350, 0.001),
    "gopher-44m": (44, 0.01),
    "gopher-7.1b": (7_100, 0.005),
    "gopher-280b": (280_000, 0.002),
    "chinchilla-425m": (425, 0.002),
    "chinchilla-16b": (16_183, 0.0001),
    "chinchilla-70b": (70_000, 0.002),
    "nemotron-4-15b": (3_200 + 12_500, 0.005),
    "qwen2-57b-a14b": (57_000, 0.01),
    "gpt-oss-20b": (20_910, 0.0005),
    "gpt-oss-120b": (116_830, 0.0005),
    "falcon-7b": (7_000, 0.015),
    "falcon-40b": (40_000, 0.035),
    "mamba2-370m": (370, 0.005),
    "mamba2-780m": (780, 0.001),
    "mamba2-1.3b": (1_300, 0.035),
    "mamba2-2.7b": (2_700, 0.001),
    "mt5-large": (1_200, 0.025),
    "mt5-xl": (3_700, 0.015),
    "mt5-xxl": (13_000, 0.01),
    "pegasus-large": (568, 0.0015),
    "transformer-base": (65, 0.04),
    "transformer-big": (213, 0.01),
    "albert-base": (12, 0.03),
    "albert-large": (18, 0.03),
    "albert-xlarge": (60, 0.03),
    "sparse-transformer-enwik8": (95, 0.07),
    "longformer-base": (149, 0.005),
    "longformer-large": (435, 0.005),
    "modernbert-base": (149, 0.005),
    "modernbert-large": (395, 0.005),
    "distilbert-base": (67, 0.005),
    "distilbert-base-cased": (65.8, 0.001),
    "distilbert-base-multilingual-cased": (134, 0.015),
    "xlm-roberta-base": (278, 0.005),
    "xlm-roberta-large": (550, 0.02),
    "xlm-roberta-xl": (3_500, 0.006),
    "xlm-roberta-xxl": (10_700, 0.002),
    "nomic-bert": (137, 0.005),
    "ettin-decoder-17m": (17, 0.01),
    "ettin-decoder-32m": (32, 0.005),
    "ettin-decoder-68m": (68, 0.01),
    "ettin-decoder-150m": (150, 0.005),
    "ettin-decoder-400m": (400, 0.015),
    "ettin-decoder-1b": (1_000, 0.035),
    "transformer-xl-base": (151, 0.005),
    "chatglm-6b": (6_200, 0.005),  # the README of THUDM/ChatGLM-6B
    "glm-base": (110, 0.01),
    "glm-large": (335, 0.005),
    # Released: 100 and 350 in layers, and a table of 50,265 tokens.
    "deberta-base": (100 + 38.6, 0.01),
    "deberta-large": (350 + 51.5, 0.02),
}
# Without heads, as KerasHub counts what was released.
BODIES = {
    "deberta-v3-xsmall": 70_682_112,
    "deberta-v3-small": 141_304_320,
    "deberta-v3-base": 183_831_552,
    "deberta-v3-large": 434_012_160,
}

# Sizes whose heads together are not as wide as the model.
NOT_FILLED = (
    *("t5-3b", "t5-11b", "t5-v1.1-small", "palm-540b", "gemma2-2b", "gemma2-9b", "gemma2-27b"),
    *("qwen3-0.6b", "qwen3-4b", "qwen3-32b", "gemma3-1b"),
    *("gemma-7b", "mt5-small", "umt5-small"),
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-20b", "gpt-oss-120b"),
)
# Family -> the size that its small ones are like; those of ModernBERT are made for short runs,
# and those of Gemma 3 have fewer windows before a full layer.
LIKE = {
    "transformer": "transformer-base",
    "bert": "bert-base",
    "roberta": "roberta-base",
    "albert": "albert-base",
    "electra": "electra-base",
    "deberta": "deberta-base",
    "deberta-v3": "deberta-v3-base",
    "gpt1": "gpt1",
    "gpt2": "gpt2",
    "gpt3": "gpt3-125m",
    "opt": "opt-125m",
    "llama": "llama-7b",
    "llama1": "llama-7b",
    "mistral": "mistral-7b",
    "mixtral": "mixtral-8x7b",
    "deepseek-v2": "deepseek-v2",
    "deepseek-v3": "deepseek-v3",
    "jurassic1": "jurassic1-large",
    "pythia": "pythia-70m",
    "palm": "palm-8b",
    "gopher": "gopher-44m",
    "chinchilla": "chinchilla-70b",
    "bloom": "bloom-560m",
    "gemma2": "gemma2-2b",
    "olmo2": "olmo2-7b",
    "qwen2": "qwen2-1.5b",
    "qwen3": "qwen3-0.6b",
    "chatglm": "chatglm-6b",
    "chatglm2": "chatglm2-6b",
    "t5": "t5-small",
    "t5-v1.1": "t5-v1.1-small",
    "bart": "bart-base",
    "marian": "marian-opus-mt",
    "xlnet": "xlnet-base",
    "mamba": "mamba-130m",
    "rwkv": "rwkv-169m",
    "glm": "glm-base",
    "longformer": "longformer-base",
    "bigbird": "bigbird-base",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name):
    """Nothing is allocated: not even 405 billion parameters take a second."""
    assert num_parameters(presets[name]) == PUBLISHED[name]


ACTIVE = {
    "mixtral-8x7b": 12.9,
    "mixtral-8x22b": 39.2,
    "deepseek-v2": 21.4,
    "deepseek-v3": 37.6,
    "qwen1.5-moe-a2.7b": 2.7,
    "qwen2-57b-a14b": 14.2,
    "qwen3-235b-a22b": 22.2,
}


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_published_totals_of_active_parameters(name, billions):
    """Jiang et al. 2024 and the release of 8x22B say 13 and 39 billion, DeepSeek-AI 21 and 37.

    Qwen Team 2024 and the reports of Qwen2 and Qwen3 say 2.7, 14 and 22.
    """
    assert round(active_parameters(presets[name]) / 1e9, 1) == billions


@pytest.mark.parametrize(("name", "billions"), {"gpt-oss-20b": 3.61, "gpt-oss-120b": 5.13}.items())
def test_published_totals_of_active_parameters_without_the_embedding(name, billions):
    """OpenAI 2025, table 1, whose totals have the output matrix and not the embedding."""
    spec = presets[name]
    active = active_parameters(spec) - spec.vocab_size * spec.d_model
    assert round(active / 1e9, 2) == billions


@pytest.mark.parametrize("name", BODIES)
def test_published_totals_without_heads(name):
    assert num_parameters(presets[name].replace(heads=())) == BODIES[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_published_totals_that_are_rounded(name):
    millions, tolerance = ROUNDED[name]
    assert num_parameters(presets[name]) / 1e6 == pytest.approx(millions, rel=tolerance)


@pytest.mark.parametrize(
    "name", ["jamba-mini", "modernbert-base", "gpt3-125m", "albert-base", "t5-small", "bert-base"]
)
def test_parameters_of_layers_alike_are_counted_once_each(name):
    model = build(presets[name], device="meta")
    assert num_parameters(presets[name]) == sum(w.numel() for w in model.parameters())


@pytest.mark.parametrize(("name", "config"), CONFIGS.items(), ids=CONFIGS)
def test_released_configurations_describe_the_presets(name, config):
    generates = name.endswith("-generator")
    hf_class = "ElectraForMaskedLM" if generates else CLASSES[config.model_type]
    # Weights that options depend on: T5 1.1's own matrix, Marian's bias.
    own_head = "t5-v1.1" in name or "mt5" in name
    weights = {"lm_head.weight", "final_logits_bias"} if own_head else set()
    weights |= {"final_logits_bias"} if config.model_type == "marian" else set()
    read = read_spec(FAMILIES[config.model_type], hf_class, config.to_dict(), weights)
    ours = without_bands(name)
    if not read.heads:  # DeBERTa's, which no class has: a mask decoder, replaced tokens
        ours = ours.replace(heads=())
    assert comparable(read) == comparable(ours)


def comparable(spec: Any) -> TransformerSpec:
    """What a configuration says of a model: not where training starts, nor dropout."""
    return simplify(spec).replace(initialization=Normal()).with_dropout(0.0)


def without_bands(name: str) -> Any:
    """All layers of a GPT-3 as the first: no family of Hugging Face has its sparse ones."""
    spec: Any = presets[name]
    if not name.startswith("gpt3"):
        return spec
    return spec.replace(decoder=spec.decoder.with_layers(mixer=spec.decoder.mixers[0]))


@pytest.mark.parametrize(("name", "preset"), catalogue.items(), ids=catalogue)
def test_every_preset_is_whole(name, preset):
    assert any(digit.isdigit() for digit in preset.paper), name  # a year
    assert preset.context is None or preset.context > 0
    assert preset.spec.max_length in (None, preset.context)
    assert preset.spec.heads
    if isinstance(preset.spec, TransformerSpec):
        for stack in preset.spec.stacks:
            attention = next(iter(stack.attentions), None)
            if attention is None:
                continue
            filled = attention.num_heads * attention.head_dim == preset.spec.d_model
            assert filled or name in NOT_FILLED


@pytest.mark.parametrize(("name", "preset"), catalogue.items(), ids=catalogue)
def test_presets_start_as_published(name, preset):
    """The faster initialisation is a choice of the recipe."""
    start = getattr(preset.spec, "initialization", None)
    assert getattr(start, "attention", "random") == "random"
    assert getattr(start, "residual_init", "full") in ("full", "scaled")


@pytest.mark.parametrize(("family", "published"), LIKE.items(), ids=LIKE)
def test_small_sizes_are_built_like_the_published_ones(family, published):
    """All but sizes is the same."""
    for size, num_layers, width in (("tiny", 2, 128), ("mini", 4, 256)):
        spec = presets[f"{family}-{size}"]
        assert isinstance(spec, TransformerSpec)
        assert {stack.num_layers for stack in spec.stacks} == {num_layers}
        assert spec.d_model == width
        assert traits(spec) == traits(presets[published])


def traits(spec: Any) -> list[Any]:
    embedding = spec.embedding
    values: list[Any] = [spec.vocab_size, spec.max_length, type(embedding.positions)]
    values += [embedding.num_token_types, embedding.norm, spec.initialization]
    values += [(head.kind, getattr(head, "tied", None)) for head in spec.heads]
    for stack in spec.stacks:
        first = stack.every_layer[0]
        network = getattr(first.feed_forward, "expert", first.feed_forward)
        # ChatGLM's norms of sqrt(2 L) x + f(x) are those of x + f(x) / sqrt(2 L) with less epsilon.
        eps = first.norm.eps / first.residual_multiplier**2
        norm = first.norm.replace(eps=float(f"{eps:.3g}"))
        values += [norm, first.norms, stack.first_norm, bool(stack.num_layer_groups)]
        values += [network and network.kind, stack.dropout]
        values += [getattr(network, name, None) for name in ("activation", "gated", "bias")]
        for layer in range(2):
            mixer, options = stack.mixers[layer], ("kind", "bias", "scale", "positions")
            values += [getattr(mixer, name, None) for name in options]
            values += [type(getattr(mixer, "pattern", None)), getattr(mixer, "d_state", None)]
    return values


def test_the_mapping():
    assert len(presets) == len(list(presets)) == len(catalogue)
    assert "gpt2" in presets
    assert "gtp2" not in presets
    assert catalogue["gpt2"].spec is presets["gpt2"]
    for name, near in (
        ("Bert-bsae", "bert-base"),
        ("lama65b", "llama-65b"),
        ("gtp2-mini", "gpt2-mini"),
        ("ernie-mini", ""),  # no name of another family
        ("mmaba-mini", "mamba-mini"),
        ("pegasus-mini", "pegasus-large"),
        ("prophetnet-mini", ""),
        ("swin-tiny", ""),
    ):
        assert did_you_mean_preset(name) == (near and f' Did you mean "{near}"?')
    with pytest.raises(SpecError, match=r'no preset "bert-bsae".*Did you mean "bert-base"'):
        presets["bert-bsae"]


def test_our_own_sizes_are_named_apart_from_published_ones():
    assert presets["gpt2-small"] == presets["gpt2"]
    assert num_parameters(presets["gpt2-small"]) == PUBLISHED["gpt2"]
    for name in presets:
        size = name.removesuffix("-generator").rpartition("-")[2]
        assert is_own_size(name) <= (size in ("tiny", "mini", "midi")), name
        assert (size == "midi") <= is_own_size(name), name
    for name in ("bert-small", "t5-small", "electra-small", "deberta-v3-small", "gpt2-small"):
        assert not is_own_size(name)
