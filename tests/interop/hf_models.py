"""Small random `transformers` models of every class that is read, as one table of cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hugging_face import randomize
from torch import Tensor

from trivium.models import Transformer
from trivium.nn.positions.sinusoidal import sinusoids

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 43, 13


class Case(NamedTuple):
    """A class of `transformers` and what its config has beside the small sizes of its family."""

    name: str
    changes: Mapping[str, Any]

    @property
    def id(self) -> str:
        """What pytest shows."""
        return "-".join([self.name, *self.changes])


def case_id(case: Case) -> str:
    """Return the name of a case in the ids of parametrized tests."""
    return case.id


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
    "MarianMTModel": [{"scale_embedding": True, "activation_function": "swish"}],
}
TWO_VOCABULARIES = {"decoder_vocab_size": 47, "share_encoder_decoder_embeddings": False}


def prefix_of(name: str) -> str:
    """The family's prefix in the name of a class."""
    return max((prefix for prefix in SIZES if name.startswith(prefix)), key=len)


def _sinusoids(position: Tensor, *_: Any) -> Tensor:
    """XLNet's, from the same float32 frequencies as ours: [T, 1, D]."""
    width = SIZES["XLNet"]["d_model"]
    return sinusoids(position, 1e4, width, in_halves=True)[:, None].to(torch.get_default_dtype())


def _softmax(scores: Tensor, dim: int, **_: Any) -> Tensor:
    """Longformer's, which is float32 whatever the model is."""
    return scores.softmax(dim)


transformers.XLNetModel.positional_embedding = staticmethod(_sinusoids)
_functional = SimpleNamespace(**{**vars(torch.nn.functional), "softmax": _softmax})
transformers.models.longformer.modeling_longformer.nn = SimpleNamespace(
    **{**vars(torch.nn), "functional": _functional}
)


def hf_model(case: Case, seed: int = 1) -> Any:
    """A model whose every weight is random, norms and biases included."""
    two = "QuestionAnswering" in case.name or case.name == "AlbertForPreTraining"
    options = {**SIZES[prefix_of(case.name)], "num_labels": 2 if two else 5, **case.changes}
    hf_class = getattr(transformers, case.name)
    model = hf_class(hf_class.config_class(**options)).to(torch.get_default_dtype())
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.arange(len(buffer)) % 3 / 5)
    return randomize(model, seed)


def inputs_of(case: Case) -> dict[str, Tensor]:
    """Three rows of 13, 7 and 2 tokens, padded on the right with the padding token."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [2]])
    ids = torch.randint(5, VOCABULARY, (3, LENGTH), generator=generator)
    prefix = prefix_of(case.name)
    pad = {**SIZES[prefix], **case.changes}.get("pad_token_id", 0)
    inputs = {"input_ids": ids.where(mask, pad), "attention_mask": mask.long()}
    if prefix == "XLNet" and "summary_type" not in case.changes:
        # Padded on the left: a summary reads the last position.
        inputs = {name: each.flip(1) for name, each in inputs.items()}
    if "type_vocab_size" in SIZES[prefix] or prefix == "XLNet":
        inputs["token_type_ids"] = torch.randint(0, 3, (3, LENGTH), generator=generator)
    if prefix == "Longformer":
        inputs["global_tokens"] = torch.rand(3, LENGTH, generator=generator) < 0.2
    if prefix in ("T5", "Bart", "Marian") and not is_encoder(case):
        real = torch.arange(7) < torch.tensor([[7], [5], [3]])
        targets = torch.randint(5, VOCABULARY, (3, 7), generator=generator)
        if case.name.endswith("SequenceClassification"):
            # T5 and BART read the state of </s>, which ends source and target alike.
            last = mask.sum(1, keepdim=True) - 1
            inputs["input_ids"] = inputs["input_ids"].scatter(1, last, 2)
            inputs["decoder_input_ids"] = inputs["input_ids"].roll(1, 1)
            inputs["decoder_input_ids"][:, 0] = SIZES[prefix]["decoder_start_token_id"]
            inputs["decoder_attention_mask"] = inputs["attention_mask"]
        else:
            inputs["decoder_input_ids"] = targets.where(real, 0)
            inputs["decoder_attention_mask"] = real.long()
    return inputs


def is_encoder(case: Case) -> bool:
    """Whether a class of an encoder-decoder family has the encoder alone."""
    return case.name in ("T5EncoderModel", "T5ForTokenClassification")


def local_outputs(model: Transformer, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """The logits of every head, or the hidden states where there is none."""
    hidden = model(**inputs)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    if not model.spec.heads or model.spec.heads[0].kind == "pooler":
        yield hidden
    for head in model.spec.heads:
        if head.kind == "pooler" and head != model.spec.heads[0]:
            continue  # BigBird's files have it beside other heads, which it is not read by
        yield model.logits(hidden, head=head.kind, attention_mask=mask)


def hf_outputs(model: Any, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """The same in the same order."""
    theirs = {"global_tokens": "global_attention_mask"}
    output = model(**{theirs.get(name, name): each + 0 for name, each in inputs.items()})
    if "start_logits" in output:
        yield torch.stack((output.start_logits, output.end_logits), -1)
        return
    names = ("prediction_logits", "seq_relationship_logits", "sop_logits", "logits")
    logits = [output[name] for name in names if name in output]
    pooled = output.get("pooler_output")
    yield from logits or [output.last_hidden_state, *([] if pooled is None else [pooled])]


def tolerance(name: str) -> float:
    """Of the scale, in float64. Marian's table of sinusoids is rounded to float32 when made."""
    return 1e-6 if name.startswith("Marian") else 1e-9


def assert_equal(
    local: Iterator[Tensor], hf: Iterator[Tensor], inputs: Mapping[str, Tensor], name: str = ""
) -> None:
    """Within `tolerance` of the class called `name`, at real positions."""
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    for mine, other in zip(local, hf, strict=True):
        mine = mine.squeeze(-1) if mine.ndim > other.ndim else mine
        assert mine.shape == other.shape
        if mine.shape[:2] == mask.shape:
            mine, other = mine[mask.bool()], other[mask.bool()]
        assert (mine - other).abs().max() < tolerance(name) * other.abs().max(), name
