"""Configurations of `transformers` as its models were released: preset -> config."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.presets import presets

transformers = pytest.importorskip("transformers")


def of(name: str, **options: Any) -> transformers.PretrainedConfig:
    return getattr(transformers, f"{name}Config")(**options)


def bert(layers, width, name="Bert", **options):
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    return of(name, num_attention_heads=width // 64, **sizes, **options)


def roberta(layers, width, name="Roberta", length=512, **options):
    return of(
        name,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=length + 2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        **options,
    )


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def deepseek_v2(layers, width, heads, d_ff, expert, **options):
    return of(
        "DeepseekV2",
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=d_ff,
        moe_intermediate_size=expert,
        num_experts_per_tok=6,
        first_k_dense_replace=1,
        rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        **options,
    )


def longformer(layers, width):
    """The vocabulary is RoBERTa's, which the config of `transformers` does not have unasked."""
    return roberta(layers, width, "Longformer", 4096, vocab_size=50_265)


def albert(layers, width, heads):
    return of(
        "Albert",
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )


def electra(layers, width, embedding):
    return of(
        "Electra",
        num_hidden_layers=layers,
        hidden_size=width,
        embedding_size=embedding,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )


def ettin_decoder(layers, width, d_ff):
    kinds = ("full_attention", "sliding_attention")
    rope = {kind: {"rope_type": "default", "rope_theta": 160_000.0} for kind in kinds}
    return modernbert(layers, width, d_ff, "ModernBertDecoder", rope_parameters=rope)


def modernbert(layers, width, d_ff, name="ModernBert", **options):
    return of(
        name,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=d_ff,
        **options,
    )


def deberta(name, layers, width, **options):
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    distances = {"relative_attention": True, "position_biased_input": False}
    distances["pos_att_type"] = "p2c|c2p"
    return of(name, num_attention_heads=width // 64, **sizes, **distances, **options)


def deberta_v3(layers, width):
    shared = {"position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    return deberta("DebertaV2", layers, width, layer_norm_eps=1e-7, **shared)


def gpt1(layers, width):
    return of("OpenAIGPT", n_layer=layers, n_embd=width, n_head=width // 64)


def gpt2(layers, width, heads=None, **options):
    return of("GPT2", n_layer=layers, n_embd=width, n_head=heads or width // 64, **options)


def gpt3(layers, width, heads):
    """Sparse layers have the weights of dense ones."""
    return gpt2(layers, width, heads, n_positions=2048)


def opt(layers, width, heads, **options):
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return of("OPT", ffn_dim=4 * width, **sizes, **options)


def llama(layers, width, heads, d_ff, eps=1e-6, **options):
    return of(
        "Llama",
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=d_ff,
        rms_norm_eps=eps,
        **options,
    )


def llama3(layers, width, heads, d_ff, factor=None, **options):
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 500_000.0}
    if factor:
        rope |= {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    sizes = {"vocab_size": 128_256, "num_key_value_heads": options.pop("kv", 8)}
    return llama(layers, width, heads, d_ff, 1e-5, rope_parameters=rope, **sizes, **options)


def t5(layers, width, heads, d_ff, d_kv=64, **options):
    sizes = {"num_layers": layers, "d_model": width, "num_heads": heads, "d_ff": d_ff}
    return of("T5", d_kv=d_kv, **sizes, **options)


def t5_v11(layers, width, heads, d_ff):
    return t5(layers, width, heads, d_ff, feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def both_stacks(name, layers, width, **options):
    stacks = ("encoder", "decoder")
    sizes = {f"{stack}_layers": layers for stack in stacks}
    sizes |= {f"{stack}_attention_heads": width // 64 for stack in stacks}
    sizes |= {f"{stack}_ffn_dim": 4 * width for stack in stacks}
    return of(name, d_model=width, **sizes, **options)


def marian(layers, width):
    return both_stacks(
        "Marian",
        layers,
        width,
        vocab_size=59_514,
        pad_token_id=59_513,
        decoder_start_token_id=59_513,
        max_position_embeddings=512,
        activation_function="swish",
        scale_embedding=True,
    )


def neox(layers, width, heads, **options):
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return of("GPTNeoX", intermediate_size=4 * width, **sizes, **options)


def bloom(layers, width, heads):
    return of("Bloom", n_layer=layers, hidden_size=width, n_head=heads)


def qwen(name, layers, width, heads, d_ff, **options):
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    rope = {"rope_type": "default", "rope_theta": 1e6}
    return of(name, intermediate_size=d_ff, rope_parameters=rope, **sizes, **options)


def olmo2(layers, width, heads, d_ff, **options):
    """`qwen` with the other numbers of OLMo 2."""
    own = {"vocab_size": 100_352, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096}
    config = qwen("Olmo2", layers, width, heads, d_ff, **own, **options)
    config.rope_parameters["rope_theta"] = 500_000.0
    return config


def glm(layers, width, heads, d_ff, **options):
    """ChatGLM2 and 3 with the options of GLM-4, which has the same form."""
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    own = {"vocab_size": 65_024, "rms_norm_eps": 1e-5, "max_position_embeddings": 32_768}
    return of("Glm", intermediate_size=d_ff, **sizes, **own, **options)


def xlnet(layers, width):
    sizes = {"n_layer": layers, "d_model": width, "n_head": width // 64, "d_inner": 4 * width}
    return of("XLNet", mem_len=384, **sizes)


def falcon(layers, width, **options):
    return of(
        "Falcon",
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        **options,
    )


def gpt_neo(layers, width, heads):
    types = [[["global", "local"], layers // 2]]
    sizes = {"num_layers": layers, "hidden_size": width, "num_heads": heads}
    return of("GPTNeo", attention_types=types, **sizes)


def granite(width, d_ff, base, attention_multiplier, logits_scaling):
    return of(
        "Granite",
        vocab_size=49_155,
        hidden_size=width,
        intermediate_size=d_ff,
        num_hidden_layers=40,
        num_attention_heads=32,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        rope_theta=base,
        tie_word_embeddings=True,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=attention_multiplier,
        logits_scaling=logits_scaling,
        max_position_embeddings=131_072,
    )


def olmo3(layers, width, heads, d_ff, **options):
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return of(
        "Olmo3",
        vocab_size=100_278,
        intermediate_size=d_ff,
        rms_norm_eps=1e-6,
        rope_scaling=yarn,
        max_position_embeddings=65_536,
        **sizes,
        **options,
    )


def mamba2(layers, width):
    return of(
        "Mamba2",
        vocab_size=50_288,
        num_hidden_layers=layers,
        hidden_size=width,
        num_heads=width // 32,
        n_groups=1,
        tie_word_embeddings=True,
    )


def multilingual_t5(name, layers, width, heads, d_ff, vocab_size):
    """The files say that the head is not tied, which the config of `transformers` 5 forgets."""
    sizes = {"num_layers": layers, "d_model": width, "num_heads": heads, "d_ff": d_ff}
    config = of(name, vocab_size=vocab_size, **sizes)
    config.tie_word_embeddings = False
    return config


def m2m_100(layers, width, d_ff, **options):
    stacks = ("encoder", "decoder")
    sizes = {f"{stack}_layers": layers for stack in stacks}
    sizes |= {f"{stack}_ffn_dim": d_ff for stack in stacks}
    return of("M2M100", d_model=width, **sizes, **options)


PHI_4_LONG = presets["phi-4-mini"].decoder.mixers[0].positions.scaling.long_factor

# The released configurations, in the words of `transformers`; -tiny is our own.
CONFIGS = {
    "bert-tiny": bert(2, 128),
    "bert-mini": bert(4, 256),
    "bert-small": bert(4, 512),
    "bert-medium": bert(8, 512),
    "bert-base": bert(12, 768),
    "bert-large": bert(24, 1024),
    "bert-base-cased": bert(12, 768, vocab_size=28_996),
    "bert-large-cased": bert(24, 1024, vocab_size=28_996),
    "bert-base-multilingual-uncased": bert(12, 768, vocab_size=105_879),
    "bert-base-multilingual-cased": bert(12, 768, vocab_size=119_547),
    "bert-base-chinese": bert(12, 768, vocab_size=21_128),
    "distilbert-base": of("DistilBert"),
    "distilbert-base-cased": of("DistilBert", vocab_size=28_996),
    "distilbert-base-multilingual-cased": of("DistilBert", vocab_size=119_547),
    "xlm-roberta-base": roberta(12, 768, "XLMRoberta", vocab_size=250_002),
    "xlm-roberta-large": roberta(24, 1024, "XLMRoberta", vocab_size=250_002),
    "xlm-roberta-xl": of("XLMRobertaXL"),
    "xlm-roberta-xxl": of(
        "XLMRobertaXL", num_hidden_layers=48, hidden_size=4096, intermediate_size=16_384
    ),
    "camembert-base": roberta(12, 768, "Camembert", vocab_size=32_005),
    "camembert-large": roberta(24, 1024, "Camembert", vocab_size=32_005),
    "mpnet-base": of("MPNet", max_position_embeddings=514, layer_norm_eps=1e-5),
    "nomic-bert": of("NomicBert"),
    "ettin-decoder-17m": ettin_decoder(7, 256, 384),
    "ettin-decoder-32m": ettin_decoder(10, 384, 576),
    "ettin-decoder-68m": ettin_decoder(19, 512, 768),
    "ettin-decoder-150m": ettin_decoder(22, 768, 1152),
    "ettin-decoder-400m": ettin_decoder(28, 1024, 2624),
    "ettin-decoder-1b": ettin_decoder(28, 1792, 3840),
    "roberta-tiny": roberta(2, 128),
    "roberta-base": roberta(12, 768),
    "roberta-large": roberta(24, 1024),
    "longformer-base": longformer(12, 768),
    "longformer-large": longformer(24, 1024),
    "bigbird-base": bert(12, 768, "BigBird"),
    "bigbird-large": bert(24, 1024, "BigBird"),
    "albert-tiny": albert(2, 128, 2),
    "albert-base": albert(12, 768, 12),
    "albert-large": albert(24, 1024, 16),
    "albert-xlarge": albert(24, 2048, 16),
    "albert-xxlarge": albert(12, 4096, 64),
    "electra-small": electra(12, 256, 128),
    "electra-base": electra(12, 768, 768),
    "electra-large": electra(24, 1024, 1024),
    "electra-small-generator": electra(12, 256, 128),
    "electra-base-generator": electra(12, 256, 768),
    "electra-large-generator": electra(24, 256, 1024),
    "deberta-base": deberta("Deberta", 12, 768),
    "deberta-large": deberta("Deberta", 24, 1024),
    "deberta-v3-xsmall": deberta_v3(12, 384),
    "deberta-v3-small": deberta_v3(6, 768),
    "deberta-v3-base": deberta_v3(12, 768),
    "deberta-v3-large": deberta_v3(24, 1024),
    "modernbert-base": modernbert(22, 768, 1152),
    "modernbert-large": modernbert(28, 1024, 2624),
    "gpt1-tiny": gpt1(2, 128),
    "gpt1": gpt1(12, 768),
    "gpt2": gpt2(12, 768),
    "gpt2-medium": gpt2(24, 1024),
    "gpt2-large": gpt2(36, 1280),
    "gpt2-xl": gpt2(48, 1600),
    "gpt3-125m": gpt3(12, 768, 12),
    "gpt3-350m": gpt3(24, 1024, 16),
    "gpt3-760m": gpt3(24, 1536, 16),
    "gpt3-1.3b": gpt3(24, 2048, 16),
    "gpt3-2.7b": gpt3(32, 2560, 32),
    "gpt3-6.7b": gpt3(32, 4096, 32),
    "gpt3-13b": gpt3(40, 5120, 40),
    "gpt3-175b": gpt3(96, 12_288, 96),
    "opt-tiny": opt(2, 128, 2),
    "opt-125m": opt(12, 768, 12),
    "opt-350m": opt(24, 1024, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": opt(24, 2048, 32),
    "opt-2.7b": opt(32, 2560, 32),
    "opt-6.7b": opt(32, 4096, 32),
    "opt-13b": opt(40, 5120, 40),
    "opt-30b": opt(48, 7168, 56),
    "opt-66b": opt(64, 9216, 72),
    "opt-175b": opt(96, 12_288, 96),
    "llama-7b": llama(32, 4096, 32, 11_008),
    "llama-13b": llama(40, 5120, 40, 13_824),
    "llama-33b": llama(60, 6656, 52, 17_920),
    "llama-65b": llama(80, 8192, 64, 22_016, 1e-5),
    "llama2-7b": llama(32, 4096, 32, 11_008, 1e-5),
    "llama2-13b": llama(40, 5120, 40, 13_824, 1e-5),
    "llama2-70b": llama(80, 8192, 64, 28_672, 1e-5, num_key_value_heads=8),
    "llama3-8b": llama3(32, 4096, 32, 14_336),
    "llama3-70b": llama3(80, 8192, 64, 28_672),
    "llama3.1-8b": llama3(32, 4096, 32, 14_336, 8.0),
    "llama3.1-405b": llama3(126, 16_384, 128, 53_248, 8.0),
    "llama3.2-1b": llama3(16, 2048, 32, 8192, 32.0, tie_word_embeddings=True),
    "llama3.2-3b": llama3(28, 3072, 24, 8192, 32.0, tie_word_embeddings=True),
    "mistral-7b": of("Mistral", rms_norm_eps=1e-5),
    "mixtral-8x7b": of("Mixtral", router_aux_loss_coef=0.02),
    "mixtral-8x22b": of(
        "Mixtral",
        hidden_size=6144,
        intermediate_size=16_384,
        num_hidden_layers=56,
        num_attention_heads=48,
    ),
    "deepseek-v2-lite": deepseek_v2(
        27, 2048, 16, 10_944, 1408, q_lora_rank=None, n_routed_experts=64, topk_method="greedy"
    ),
    "deepseek-v2": deepseek_v2(
        60,
        5120,
        128,
        12_288,
        1536,
        n_routed_experts=160,
        topk_method="group_limited_greedy",
        n_group=8,
        topk_group=3,
        routed_scaling_factor=16.0,
    ),
    "deepseek-v3": of("DeepseekV3", rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "mamba-130m": of("Mamba", num_hidden_layers=24),
    "mamba-2.8b": of("Mamba", num_hidden_layers=64, hidden_size=2560),
    "rwkv-169m": of("Rwkv", num_hidden_layers=12, hidden_size=768),
    "rwkv-14b": of("Rwkv", num_hidden_layers=40, hidden_size=5120),
    "gpt-neox-20b": of("GPTNeoX", hidden_act="gelu_fast"),
    "pythia-70m": neox(6, 512, 8, vocab_size=50_304),
    "pythia-12b": neox(36, 5120, 40, vocab_size=50_688),
    "bloom-560m": bloom(24, 1024, 16),
    "bloom-176b": bloom(70, 14_336, 112),
    "gemma-2b": of(
        "Gemma",
        num_hidden_layers=18,
        hidden_size=2048,
        num_attention_heads=8,
        num_key_value_heads=1,
        intermediate_size=16_384,
    ),
    "gemma-7b": of("Gemma"),
    "phi-3-mini": of("Phi3", sliding_window=2047),
    "phi-4-mini": of(
        "Phi3",
        vocab_size=200_064,
        num_attention_heads=24,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        partial_rotary_factor=0.75,
        max_position_embeddings=131_072,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [*PHI_4_LONG]},
    ),
    "falcon-rw-1b": falcon(
        *(24, 2048),
        vocab_size=50_304,
        alibi=True,
        bias=True,
        multi_query=False,
        parallel_attn=False,
    ),
    "falcon-7b": of("Falcon"),
    "falcon-40b": falcon(60, 8192, num_kv_heads=8, new_decoder_architecture=True),
    "gpt-j-6b": of("GPTJ"),
    "gpt-neo-125m": gpt_neo(12, 768, 12),
    "gpt-neo-1.3b": gpt_neo(24, 2048, 16),
    "gpt-neo-2.7b": gpt_neo(32, 2560, 20),
    "granite-3.1-2b": granite(2048, 8192, 5e6, 0.015625, 8.0),
    "granite-3.1-8b": granite(4096, 12_800, 1e7, 0.0078125, 16.0),
    "smollm3-3b": of("SmolLM3", rope_theta=5e6, max_position_embeddings=65_536),
    "glm-4-9b": of("Glm"),
    "mamba2-130m": mamba2(24, 768),
    "mamba2-2.7b": mamba2(64, 2560),
    "olmo3-7b": olmo3(32, 4096, 32, 11_008),
    "olmo3-32b": olmo3(64, 5120, 40, 27_648, num_key_value_heads=8),
    "mt5-small": multilingual_t5("MT5", 8, 512, 6, 1024, 250_112),
    "mt5-xxl": multilingual_t5("MT5", 24, 4096, 64, 10_240, 250_112),
    "umt5-small": multilingual_t5("UMT5", 8, 512, 6, 1024, 256_384),
    "umt5-base": multilingual_t5("UMT5", 12, 768, 12, 2048, 256_384),
    "umt5-xl": multilingual_t5("UMT5", 24, 2048, 32, 5120, 256_384),
    "umt5-xxl": multilingual_t5("UMT5", 24, 4096, 64, 10_240, 256_384),
    "bigbird-pegasus-large": of("BigBirdPegasus"),
    "mbart-large": of("MBart", vocab_size=250_027, scale_embedding=True),
    "mbart-50-large": of("MBart", vocab_size=250_054, scale_embedding=True),
    "m2m100-418m": m2m_100(12, 1024, 4096),
    "m2m100-1.2b": m2m_100(24, 1024, 8192),
    "nllb-600m": m2m_100(12, 1024, 4096, vocab_size=256_206),
    "nllb-1.3b": m2m_100(24, 1024, 8192, vocab_size=256_206),
    "nllb-3.3b": m2m_100(24, 2048, 8192, vocab_size=256_206),
    "pegasus-large": both_stacks(
        *("Pegasus", 16, 1024),
        vocab_size=96_103,
        max_position_embeddings=1024,
        activation_function="relu",
        scale_embedding=True,
    ),
    "gemma2-2b": of("Gemma2"),
    "gemma2-27b": of(
        "Gemma2",
        num_hidden_layers=46,
        hidden_size=4608,
        num_attention_heads=32,
        num_key_value_heads=16,
        head_dim=128,
        intermediate_size=36_864,
        query_pre_attn_scalar=144,
    ),
    "gemma3-1b": of(
        "Gemma3Text",
        vocab_size=262_144,
        hidden_size=1152,
        num_attention_heads=4,
        num_key_value_heads=1,
        intermediate_size=6912,
        sliding_window=512,
    ),
    "olmo-7b": of("Olmo"),
    "olmo-1b": of(
        "Olmo",
        num_hidden_layers=16,
        hidden_size=2048,
        num_attention_heads=16,
        intermediate_size=8192,
        tie_word_embeddings=True,
    ),
    "stablelm-3b": of("StableLm"),
    "phi-1": of("Phi"),
    "phi-1.5": of("Phi"),
    "phi-2": of(
        "Phi",
        num_hidden_layers=32,
        hidden_size=2560,
        intermediate_size=10_240,
        partial_rotary_factor=0.4,
    ),
    "starcoder2-3b": of("Starcoder2", rope_theta=999_999.4420358813, sliding_window=4096),
    "starcoder2-7b": of(
        "Starcoder2",
        num_hidden_layers=32,
        hidden_size=4608,
        num_attention_heads=36,
        num_key_value_heads=4,
        intermediate_size=18_432,
        rope_theta=1e6,
        sliding_window=4096,
    ),
    "starcoder2-15b": of(
        "Starcoder2",
        num_hidden_layers=40,
        hidden_size=6144,
        num_attention_heads=48,
        num_key_value_heads=4,
        intermediate_size=24_576,
        rope_theta=1e5,
        sliding_window=4096,
        tie_word_embeddings=False,
    ),
    "nemotron-4-15b": of("Nemotron", num_key_value_heads=8),
    "olmo2-7b": olmo2(32, 4096, 32, 11_008),
    "olmo2-13b": olmo2(40, 5120, 40, 13_824),
    "olmo2-32b": olmo2(64, 5120, 40, 27_648, num_key_value_heads=8),
    "chatglm2-6b": glm(28, 4096, 32, 13_696, num_key_value_heads=2),
    "chatglm3-6b": glm(28, 4096, 32, 13_696, num_key_value_heads=2),
    "qwen2-0.5b": qwen("Qwen2", 24, 896, 14, 4864, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen1.5-moe-a2.7b": qwen("Qwen2Moe", 24, 2048, 16, 5632),
    "qwen2-57b-a14b": qwen(
        *("Qwen2Moe", 28, 3584, 28, 18_944),
        num_key_value_heads=4,
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=2560,
        shared_expert_intermediate_size=20_480,
    ),
    "qwen3-30b-a3b": qwen(*("Qwen3Moe", 48, 2048, 32, 6144), head_dim=128, norm_topk_prob=True),
    "qwen3-235b-a22b": qwen(
        *("Qwen3Moe", 94, 4096, 64, 12_288),
        head_dim=128,
        norm_topk_prob=True,
        moe_intermediate_size=1536,
    ),
    "gpt-oss-120b": of("GptOss", router_aux_loss_coef=0.9),
    "gpt-oss-20b": of(
        "GptOss", num_hidden_layers=24, num_local_experts=32, router_aux_loss_coef=0.9
    ),
    "qwen3-8b": qwen("Qwen3", 36, 4096, 32, 12_288, num_key_value_heads=8),
    "t5-tiny": t5(2, 128, 2, 512),
    "t5-small": t5(6, 512, 8, 2048),
    "t5-base": t5(12, 768, 12, 3072),
    "t5-large": t5(24, 1024, 16, 4096),
    "t5-3b": t5(24, 1024, 32, 16_384, 128),
    "t5-11b": t5(24, 1024, 128, 65_536, 128),
    "t5-v1.1-small": t5_v11(8, 512, 6, 1024),
    "t5-v1.1-base": t5_v11(12, 768, 12, 2048),
    "t5-v1.1-large": t5_v11(24, 1024, 16, 2816),
    "t5-v1.1-xl": t5_v11(24, 2048, 32, 5120),
    "t5-v1.1-xxl": t5_v11(24, 4096, 64, 10_240),
    "bart-tiny": both_stacks("Bart", 2, 128),
    "bart-base": both_stacks("Bart", 6, 768),
    "bart-large": both_stacks("Bart", 12, 1024),
    "marian-tiny": marian(2, 128),
    "marian-opus-mt": marian(6, 512),
    "xlnet-tiny": xlnet(2, 128),
    "xlnet-base": xlnet(12, 768),
    "xlnet-large": xlnet(24, 1024),
}
CLASSES = {
    "bert": "BertForPreTraining",
    "deberta": "DebertaModel",
    "deberta-v2": "DebertaV2Model",
    "distilbert": "DistilBertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM",
    "xlm-roberta-xl": "XLMRobertaXLForMaskedLM",
    "camembert": "CamembertForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "nomic_bert": "NomicBertForMaskedLM",
    "longformer": "LongformerForMaskedLM",
    "big_bird": "BigBirdForMaskedLM",
    "albert": "AlbertForPreTraining",
    "electra": "ElectraForPreTraining",
    "modernbert": "ModernBertForMaskedLM",
    "modernbert-decoder": "ModernBertDecoderForCausalLM",
    "openai-gpt": "OpenAIGPTLMHeadModel",
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "mamba": "MambaForCausalLM",
    "rwkv": "RwkvForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "bloom": "BloomForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "falcon": "FalconForCausalLM",
    "gptj": "GPTJForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "granite": "GraniteForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "bigbird_pegasus": "BigBirdPegasusForConditionalGeneration",
    "glm": "GlmForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "phi": "PhiForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "marian": "MarianMTModel",
    "xlnet": "XLNetLMHeadModel",
}
