"""Small sizes of every family, and configurations beside the plain one, for `hf_models.py`."""

from __future__ import annotations

import math
from typing import Any

VOCABULARY = 43

_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 22,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 29,
    "max_position_embeddings": 31,
    "type_vocab_size": 3,
}
_ALBERT = {**_BERT, "num_hidden_layers": 3, "embedding_size": 17}
_MODERNBERT = {
    **{n: v for n, v in _BERT.items() if n != "type_vocab_size"},
    "hidden_size": 28,
    "num_hidden_layers": 4,
    "local_attention": 6,
    **{f"{role}_token_id": None for role in ("bos", "cls", "sep", "eos")},
    "pad_token_id": 0,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
_GPT = {"vocab_size": VOCABULARY, "n_positions": 31, "n_embd": 26, "n_layer": 2, "n_head": 2}
_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 29,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 97,
    **_TOKENS,
}
_DEEPSEEK = {
    **_LLAMA,
    "num_hidden_layers": 3,
    "num_key_value_heads": 6,
    "first_k_dense_replace": 1,
    "q_lora_rank": 11,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
    "moe_intermediate_size": 9,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "experts_implementation": "eager",
}
_GEMMA3 = {
    **_LLAMA,
    "num_hidden_layers": 3,
    "head_dim": 10,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 7,
}
_OPT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 22,
    "ffn_dim": 29,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 31,
    "word_embed_proj_dim": 22,
    **_TOKENS,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 22,
    "d_kv": 7,
    "d_ff": 29,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 11,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 22,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 11,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": 37,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_XLNET = {
    "vocab_size": VOCABULARY,
    "d_model": 22,
    "n_layer": 2,
    "n_head": 2,
    "d_inner": 29,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
_DEBERTA_V2 = {
    **_BERT,
    "pad_token_id": 0,
    "relative_attention": True,
    "position_buckets": 8,
    "max_relative_positions": 11,
    "pos_att_type": "c2p|p2c",
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
_LLAMA_OF_8 = {**_LLAMA, "hidden_size": 48}  # heads of 8, half of which is even
_QWEN_MOE = {
    **_LLAMA,
    "num_hidden_layers": 3,
    "moe_intermediate_size": 9,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "experts_implementation": "eager",
}
SIZES: dict[str, dict[str, Any]] = {
    "Bert": _BERT,
    "DebertaV2": _DEBERTA_V2,
    "Deberta": {
        **_BERT,
        "pad_token_id": 0,
        "relative_attention": True,
        "max_relative_positions": 6,
        "pos_att_type": "c2p|p2c",
        "position_biased_input": False,
    },
    "Roberta": {**_BERT, "pad_token_id": 1},
    "Longformer": {**_BERT, "pad_token_id": 1, "attention_window": 6},
    # Texts are dense here; test_interop_big_bird.py has long ones.
    "BigBird": {**_BERT, "block_size": 2, "num_random_blocks": 1},
    "Albert": _ALBERT,
    "Electra": _ALBERT,
    "ModernBert": _MODERNBERT,
    "OpenAIGPT": {**_GPT, **_TOKENS},
    "GPT2": {**_GPT, "n_inner": 31, **_TOKENS},
    "OPT": _OPT,
    "Llama": _LLAMA,
    "Mistral": {**_LLAMA, "sliding_window": 5},
    # One product for each expert: PyTorch has none of all together in float64.
    "Mixtral": {**_LLAMA, "num_local_experts": 5, "experts_implementation": "eager"},
    "DeepseekV2": {**_DEEPSEEK, "qk_nope_head_dim": 6},
    "DeepseekV3": {**_DEEPSEEK, "n_group": 3, "topk_group": 2},
    "Bloom": {"vocab_size": VOCABULARY, "hidden_size": 21, "n_layer": 2, "n_head": 3, **_TOKENS},
    "GPTNeoX": {
        "vocab_size": VOCABULARY,
        "hidden_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 29,
        "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5},
        **_TOKENS,
    },
    "Glm": {**_LLAMA, "head_dim": 8},
    "Qwen2": _LLAMA,
    "Qwen3": {**_LLAMA, "head_dim": 10},
    "Gemma2": {
        **_LLAMA,
        "num_hidden_layers": 3,
        "head_dim": 10,
        "sliding_window": 5,
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 1.7,
        "final_logit_softcapping": 2.3,
    },
    "Gemma3": _GEMMA3,
    "Gemma3Text": _GEMMA3,
    "Olmo2": _LLAMA,
    "Mamba": {
        "vocab_size": VOCABULARY,
        "hidden_size": 22,
        "num_hidden_layers": 3,
        "state_size": 5,
        "time_step_rank": 3,
        **_TOKENS,
    },
    "Rwkv": {
        "vocab_size": VOCABULARY,
        "hidden_size": 22,
        "num_hidden_layers": 3,
        "rescale_every": 0,
        **_TOKENS,
    },
    "T5": _T5,
    "Bart": _BART,
    "Marian": _BART,
    "XLNet": _XLNET,
    "Gemma": {**_LLAMA, "head_dim": 10},
    "Granite": _LLAMA,
    "SmolLM3": {**_LLAMA, "num_hidden_layers": 4},
    "Glm4": {**_LLAMA, "head_dim": 8},
    "Phi": _LLAMA_OF_8,
    "Phi3": _LLAMA,
    "StableLm": _LLAMA_OF_8,
    "Starcoder2": _LLAMA,
    "Olmo": _LLAMA,
    "Olmo3": {**_LLAMA, "num_hidden_layers": 5, "sliding_window": 5},
    "Nemotron": _LLAMA_OF_8,
    "GPTJ": {**_GPT, "n_embd": 44, "rotary_dim": 6, **_TOKENS},
    "GPTNeo": {
        "vocab_size": VOCABULARY,
        "hidden_size": 22,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 5,
        "max_position_embeddings": 31,
        **_TOKENS,
    },
    "Falcon": {
        "vocab_size": VOCABULARY,
        "hidden_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        **_TOKENS,
    },
    "Mamba2": {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_heads": 6,
        "head_dim": 8,
        "state_size": 5,
        "n_groups": 2,
        "chunk_size": 4,
        **_TOKENS,
    },
    "Qwen2Moe": {**_QWEN_MOE, "shared_expert_intermediate_size": 11},
    "Qwen3Moe": {**_QWEN_MOE, "head_dim": 10},
    "GptOss": {
        **_LLAMA,
        "num_hidden_layers": 3,
        "head_dim": 8,
        "sliding_window": 5,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "experts_implementation": "eager",
    },
    "XLMRoberta": {**_BERT, "pad_token_id": 1},
    "XLMRobertaXL": {**_BERT, "pad_token_id": 1},
    "Camembert": {**_BERT, "pad_token_id": 1},
    "DistilBert": {
        "vocab_size": VOCABULARY,
        "dim": 22,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 29,
        "max_position_embeddings": 31,
        "pad_token_id": 0,
    },
    "MPNet": {n: v for n, v in {**_BERT, "pad_token_id": 1}.items() if n != "type_vocab_size"},
    "NomicBert": {**_BERT, "hidden_size": 24, "pad_token_id": 0},
    "ModernBertDecoder": {
        **_MODERNBERT,
        "local_attention": 10,
        **{f"{role}_token_id": 2 for role in ("bos", "cls", "sep", "eos")},
    },
    "MT5": _T5,
    "UMT5": _T5,
    "Pegasus": _BART,
    "MBart": _BART,
    "M2M100": {n: v for n, v in _BART.items() if n != "forced_eos_token_id"},
    "BigBirdPegasus": {
        **{n: v for n, v in _BART.items() if n != "forced_eos_token_id"},
        # Texts are dense here; test_interop_big_bird.py has long ones.
        "block_size": 2,
        "num_random_blocks": 1,
    },
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    "max_position_embeddings": 32,
}
_YARN: dict[str, Any] = YARN_ROPE["rope_parameters"]  # type: ignore[assignment]
_MSCALE = {"truncate": False, "mscale": 1.0, "mscale_all_dim": 0.5}
_YARN_MSCALE = {**YARN_ROPE, "rope_parameters": {**_YARN, "mscale": 0.9, "mscale_all_dim": 0.7}}
_LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": [1.1, 1.3],
        "long_factor": [2.1, 3.3],
    },
    "original_max_position_embeddings": 16,
    "max_position_embeddings": 32,
}
_ALL_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
# Class -> configurations beside the plain one.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "BertForMaskedLM": [{"tie_word_embeddings": False, "hidden_act": "gelu_new"}],
    "BertForPreTraining": [{"hidden_act": "silu"}],
    "RobertaForMaskedLM": [{"tie_word_embeddings": False, "pad_token_id": 4}],
    "LongformerForMaskedLM": [{"attention_window": [4, 8], "tie_word_embeddings": False}],
    "BigBirdForMaskedLM": [
        {"attention_type": "original_full", "use_bias": False, "tie_word_embeddings": False},
        {"rescale_embeddings": True, "hidden_act": "relu", "num_random_blocks": 2},
    ],
    "AlbertForPreTraining": [{"num_hidden_layers": 4, "num_hidden_groups": 2}],
    "AlbertForMaskedLM": [{"embedding_size": 22, "tie_word_embeddings": False}],
    "ElectraForMaskedLM": [{"embedding_size": 22}, {"tie_word_embeddings": False}],
    "ModernBertForMaskedLM": [
        {**dict.fromkeys(_ALL_BIASES, True), "decoder_bias": False},
        {"tie_word_embeddings": False, "classifier_activation": "relu"},
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
    ],
    "ModernBertForSequenceClassification": [{"classifier_pooling": "mean"}],
    "DebertaForMaskedLM": [
        {"max_relative_positions": -1, "position_biased_input": True},
        {"pos_att_type": ["p2c"], "tie_word_embeddings": False},
        {"legacy": False},
        {"relative_attention": False, "pos_att_type": None, "position_biased_input": True},
    ],
    "DebertaV2ForMaskedLM": [
        {"share_att_key": False, "position_biased_input": True, "norm_rel_ebd": "none"},
        {"pos_att_type": ["p2c"], "position_buckets": -1, "max_relative_positions": 6},
        {"pos_att_type": ["c2p"], "share_att_key": False, "tie_word_embeddings": False},
        {"legacy": False, "tie_word_embeddings": False},
    ],
    "OpenAIGPTLMHeadModel": [{"afn": "relu"}],
    "GPT2LMHeadModel": [
        {"tie_word_embeddings": False, "scale_attn_weights": False},
        {"n_inner": None, "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
    ],
    "OPTForCausalLM": [
        {"word_embed_proj_dim": 17, "do_layer_norm_before": False},
        {"enable_bias": False, "tie_word_embeddings": False},
    ],
    "LlamaForCausalLM": [
        {"tie_word_embeddings": True, "num_key_value_heads": 6},
        {"head_dim": 10, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}},
        {"rope_parameters": LLAMA3_ROPE},
        YARN_ROPE,
        {**YARN_ROPE, "rope_parameters": {**_YARN, **_MSCALE}},
        {"rope_parameters": {**_YARN, "attention_factor": 1.5, "beta_fast": 8.0}},
    ],
    "MistralForCausalLM": [{"sliding_window": None, "head_dim": 10}],
    "MixtralForCausalLM": [
        {"head_dim": 10, **YARN_ROPE},
        {"num_experts_per_tok": 3, "hidden_act": "gelu", "sliding_window": 5, "head_dim": 10},
        {"num_experts_per_tok": 1, "router_aux_loss_coef": 0.3, "tie_word_embeddings": True},
    ],
    "DeepseekV2ForCausalLM": [
        {"q_lora_rank": None, "hidden_act": "gelu", "first_k_dense_replace": 0},
        {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2},
        {"routed_scaling_factor": 16.0, "num_experts_per_tok": 1, **_YARN_MSCALE},
    ],
    "DeepseekV3ForCausalLM": [
        {"q_lora_rank": None, "norm_topk_prob": False, "tie_word_embeddings": True},
        {"rope_interleave": False, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
        {"first_k_dense_replace": 2, "rms_norm_eps": 1e-3, **_YARN_MSCALE},
    ],
    "BloomForCausalLM": [{"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}],
    "GPTNeoXForCausalLM": [
        {"use_parallel_residual": False, "tie_word_embeddings": True, "hidden_act": "gelu_fast"},
        {"attention_bias": False, "rope_parameters": {"partial_rotary_factor": 1.0}},
    ],
    "GlmForCausalLM": [
        {"attention_bias": False, "tie_word_embeddings": True, "head_dim": 12},
        {"rope_parameters": {**_YARN, "partial_rotary_factor": 1.0}, "hidden_act": "gelu"},
        {"partial_rotary_factor": 0.25, "rms_norm_eps": 1e-3, "num_key_value_heads": 1},
    ],
    "Qwen2ForCausalLM": [
        YARN_ROPE,
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 100.0}},
    ],
    "Qwen3ForCausalLM": [
        {"head_dim": 8, **YARN_ROPE},
        {
            "attention_bias": True,
            "rms_norm_eps": 1e-3,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ],
    "Gemma2ForCausalLM": [
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        {"tie_word_embeddings": False, "attention_bias": True, "hidden_activation": "silu"},
    ],
    "Gemma3ForCausalLM": [
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "rope_local_base_freq": 100.0},
        {
            "rope_parameters": {
                "full_attention": {**_YARN, "factor": 3.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
        {"sliding_window_pattern": 6, "tie_word_embeddings": False, "attention_bias": True},
        {"layer_types": ["full_attention"] * 3, "hidden_activation": "silu", "rms_norm_eps": 1e-3},
    ],
    "Olmo2ForCausalLM": [
        {"tie_word_embeddings": True, "num_key_value_heads": 6, "head_dim": 10},
        {"attention_bias": True, "hidden_act": "gelu", "rms_norm_eps": 1e-3, **YARN_ROPE},
    ],
    "MambaForCausalLM": [
        {"use_bias": True, "use_conv_bias": False, "hidden_act": "gelu", "conv_kernel": 3},
        {"expand": 3, "tie_word_embeddings": False, "time_step_rank": "auto"},
    ],
    "RwkvForCausalLM": [{"intermediate_size": 29, "tie_word_embeddings": True}],
    "T5ForConditionalGeneration": [
        {"feed_forward_proj": "gated-gelu", "scale_decoder_outputs": False},
        {"feed_forward_proj": "gelu"},
    ],
    "BartForConditionalGeneration": [{"scale_embedding": True, "activation_function": "relu"}],
    "XLNetLMHeadModel": [{"tie_word_embeddings": False, "ff_activation": "relu", "mem_len": None}],
    "XLNetForSequenceClassification": [{"summary_type": "first", "summary_activation": "gelu"}],
    "GemmaForCausalLM": [
        {"hidden_act": "gelu", "attention_bias": True, "tie_word_embeddings": False},
        {"head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-3, **YARN_ROPE},
    ],
    "GraniteForCausalLM": [
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 1.7},
        {"attention_multiplier": 0.2, "attention_bias": True, "mlp_bias": True, **YARN_ROPE},
        {"tie_word_embeddings": True, "attention_multiplier": 0.5, "hidden_act": "gelu"},
    ],
    "SmolLM3ForCausalLM": [
        {
            "no_rope_layers": [0, 1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 5,
            "attention_bias": True,
        },
        {"no_rope_layer_interval": 2, "tie_word_embeddings": False, "mlp_bias": True, **YARN_ROPE},
    ],
    "Glm4ForCausalLM": [
        {"attention_bias": False, "tie_word_embeddings": True, "partial_rotary_factor": 0.75},
        {"rope_parameters": {**_YARN, "partial_rotary_factor": 1.0}, "hidden_act": "gelu"},
    ],
    "PhiForCausalLM": [
        {"qk_layernorm": True, "layer_norm_eps": 1e-3, "tie_word_embeddings": True},
        {"partial_rotary_factor": 0.75, "hidden_act": "silu", "num_key_value_heads": None},
        {"rope_parameters": {**_YARN, "partial_rotary_factor": 0.5}},
    ],
    "Phi3ForCausalLM": [
        {"sliding_window": 5, "tie_word_embeddings": True, "num_key_value_heads": 6},
        {**_LONGROPE, "hidden_act": "gelu", "rms_norm_eps": 1e-3},
        {"hidden_size": 48, "partial_rotary_factor": 0.5, "sliding_window": 4},
        {**_LONGROPE, "rope_parameters": {**_LONGROPE["rope_parameters"], "factor": 5.0}},
    ],
    "StableLmForCausalLM": [
        {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True},
        {"qk_layernorm": True, "tie_word_embeddings": True, "partial_rotary_factor": 0.75},
    ],
    "Starcoder2ForCausalLM": [
        {"use_bias": False, "sliding_window": 5, "tie_word_embeddings": False},
        {"norm_epsilon": 1e-3, "hidden_act": "gelu", "head_dim": 8, **YARN_ROPE},
        {"hidden_size": 26, "head_dim": 6, "sliding_window": 2, "num_key_value_heads": 1},
    ],
    "OlmoForCausalLM": [
        {"clip_qkv": 0.5, "attention_bias": True, "tie_word_embeddings": True},
        {"num_key_value_heads": 6, "hidden_act": "gelu", **YARN_ROPE},
    ],
    "Olmo3ForCausalLM": [
        {"tie_word_embeddings": True, "attention_bias": True, "rms_norm_eps": 1e-3},
        {
            "rope_scaling": {key: one for key, one in _YARN.items() if key != "rope_theta"},
            "rope_theta": 77.0,
            "max_position_embeddings": 32,
        },
        {"layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"]},
        {
            "head_dim": 6,
            "max_position_embeddings": 32,
            "rope_parameters": {
                "full_attention": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 77.0},
                "sliding_attention": LLAMA3_ROPE,
            },
        },
    ],
    "NemotronForCausalLM": [
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {"head_dim": 12, "partial_rotary_factor": 1.0, "hidden_act": "silu", "norm_eps": 1e-3},
        {"rope_parameters": {**_YARN, "partial_rotary_factor": 0.25}},
        {
            "hidden_size": 26,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 14,
            "partial_rotary_factor": 0.3,
        },
    ],
    "GPTJForCausalLM": [
        {"rotary_dim": 22, "n_inner": 29, "tie_word_embeddings": True},
        {"activation_function": "relu", "layer_norm_epsilon": 1e-3, "n_head": 11, "rotary_dim": 2},
    ],
    "GPTNeoForCausalLM": [
        {
            "num_layers": 3,
            "attention_types": [[["local"], 2], [["global"], 1]],
            "intermediate_size": 29,
            "window_size": 3,
        },
        {"tie_word_embeddings": False, "activation_function": "silu"},
    ],
    "FalconForCausalLM": [
        {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False},
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 3,
            "num_ln_in_parallel_attn": 1,
            "bias": True,
            "ffn_hidden_size": 29,
        },
        {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True},
        {"multi_query": False, "activation": "relu", **YARN_ROPE},
        {"alibi": True, "layer_norm_epsilon": 1e-3},
    ],
    "Mamba2ForCausalLM": [
        {"use_bias": True, "use_conv_bias": False, "hidden_act": "gelu", "conv_kernel": 3},
        {"expand": 3, "num_heads": 9, "n_groups": 3, "tie_word_embeddings": True},
        {"time_step_limit": [0.2, 0.7], "n_groups": 6},
        {"time_step_limit": [0.3, math.inf], "chunk_size": 1, "state_size": 1},
    ],
    "Qwen2MoeForCausalLM": [
        {"norm_topk_prob": True, "decoder_sparse_step": 2, "qkv_bias": False},
        {
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 3,
            "num_experts_per_tok": 4,
            **YARN_ROPE,
        },
        {"tie_word_embeddings": True, "hidden_act": "gelu", "router_aux_loss_coef": 0.3},
    ],
    "Qwen3MoeForCausalLM": [
        {"mlp_only_layers": [0, 2], "norm_topk_prob": True, "attention_bias": True},
        {"use_sliding_window": True, "sliding_window": 5, "num_experts_per_tok": 1},
        {"decoder_sparse_step": 3, "head_dim": 8, "tie_word_embeddings": True, **YARN_ROPE},
    ],
    "GptOssForCausalLM": [
        {
            "rope_parameters": {**_YARN, "truncate": False},
            "max_position_embeddings": 32,
            "swiglu_limit": 0.3,
            "swiglu_alpha": 1.1,
        },
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            "attention_bias": False,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention"] * 2 + ["sliding_attention"],
        },
    ],
    "XLMRobertaForMaskedLM": [{"tie_word_embeddings": False, "pad_token_id": 4}],
    "CamembertForMaskedLM": [{"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}],
    "XLMRobertaXLForMaskedLM": [
        {"tie_word_embeddings": False, "pad_token_id": 4},
        {"hidden_act": "relu", "layer_norm_eps": 1e-3},
    ],
    "DistilBertForMaskedLM": [
        {"tie_word_embeddings": False, "sinusoidal_pos_embds": True},
        {"activation": "relu", "n_heads": 11},
        {"activation": "quick_gelu"},
    ],
    "MPNetForMaskedLM": [
        {"tie_word_embeddings": False, "hidden_act": "relu"},
        {"layer_norm_eps": 1e-3, "num_attention_heads": 11},
    ],
    "NomicBertForMaskedLM": [
        {"head_dim": 8, "tie_word_embeddings": False, "hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}},
        {**YARN_ROPE, "num_attention_heads": 3, "max_position_embeddings": 8},
    ],
    "ModernBertDecoderForCausalLM": [
        {
            "rope_parameters": {
                "full_attention": YARN_ROPE["rope_parameters"],
                "sliding_attention": LLAMA3_ROPE,
            }
        },
        {**dict.fromkeys(_ALL_BIASES, True), "decoder_bias": False},
        {
            "tie_word_embeddings": False,
            "classifier_activation": "silu",
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ],
    "MT5ForConditionalGeneration": [
        {"feed_forward_proj": "relu", "num_decoder_layers": None},
        {"layer_norm_epsilon": 1e-3, "d_kv": 5},
    ],
    "UMT5ForConditionalGeneration": [
        {"feed_forward_proj": "relu", "num_decoder_layers": None},
        {"layer_norm_epsilon": 1e-3, "d_kv": 5},
    ],
    "PegasusForConditionalGeneration": [{"scale_embedding": True, "activation_function": "relu"}],
    "MBartForConditionalGeneration": [
        {"scale_embedding": True, "activation_function": "relu"},
        {"pad_token_id": 1, "bos_token_id": 0},
    ],
    "M2M100ForConditionalGeneration": [
        {"scale_embedding": False, "activation_function": "gelu"},
        {"pad_token_id": 1, "bos_token_id": 0},
    ],
    "BigBirdPegasusForConditionalGeneration": [
        {"attention_type": "original_full", "use_bias": True},
        {"scale_embedding": False, "activation_function": "relu", "num_random_blocks": 2},
    ],
    "MarianMTModel": [{"scale_embedding": True, "activation_function": "swish"}],
}
