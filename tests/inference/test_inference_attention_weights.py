"""Attention weights against those of `transformers`, and what holds for every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from generating_models import BART_SIZES
from hugging_face import ours_of, randomize
from small_models import BOTH, SPECS, inputs_for, random_ids, small_model

from trivium import spec
from trivium.errors import SpecError
from trivium.inference.attention_weights import attention_weights
from trivium.models import build

pytestmark = pytest.mark.usefixtures("double_precision")

VOCABULARY, POSITIONS = 101, 37
HF_MODELS: dict[str, dict[str, Any]] = {
    "BertModel": {
        "hidden_size": 21,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 29,
    },
    "LlamaForCausalLM": {
        "hidden_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "intermediate_size": 37,
    },
    "MistralForCausalLM": {
        "hidden_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 37,
        "sliding_window": 5,
    },
    "GptOssForCausalLM": {
        "hidden_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "intermediate_size": 37,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "sliding_window": 5,
        "experts_implementation": "eager",
    },
    "T5ForConditionalGeneration": {
        "d_model": 26,
        "d_kv": 11,
        "d_ff": 41,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 3,
        "relative_attention_num_buckets": 10,
        "relative_attention_max_distance": 7,
    },
    "BartForConditionalGeneration": BART_SIZES,
}


def hf_model(name: str) -> Any:
    """A random model of `transformers` with eager attention."""
    import transformers

    kind = name.removesuffix("Model").partition("For")[0]
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **HF_MODELS[name])
    config._attn_implementation = "eager"
    return randomize(getattr(transformers, name)(config), seed=7)


def padded(rows: int, length: int, shortest: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([[length], *[[shortest]] * (rows - 1)])
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < lengths).long()}


def test_weights_equal_transformers():
    for name in HF_MODELS:
        hf = hf_model(name)
        inputs = padded(2, 13, 7)
        if hf.config.is_encoder_decoder:
            inputs |= {f"decoder_{key}": value for key, value in padded(2, 11, 5).items()}
        if name == "BertModel":
            inputs["token_type_ids"] = (torch.arange(13) > 4).long().expand(2, -1)
        with torch.no_grad():
            expected = hf(**inputs, output_attentions=True, use_cache=False)
        results = attention_weights(ours_of(hf), **inputs)
        if hf.config.is_encoder_decoder:
            pairs = [
                (results.encoder, expected.encoder_attentions, "attention_mask"),
                (results.decoder, expected.decoder_attentions, "decoder_attention_mask"),
                (results.cross, expected.cross_attentions, "decoder_attention_mask"),
            ]
        else:
            assert not results.cross
            assert not (results.encoder and results.decoder)
            pairs = [(results.encoder or results.decoder, expected.attentions, "attention_mask")]
        for ours, theirs, mask in pairs:
            real = inputs[mask].bool()
            assert len(ours) == len(theirs) > 0
            for layer, other in zip(ours, theirs):
                rows, wanted = layer.transpose(1, 2)[real], other.transpose(1, 2)[real]
                torch.testing.assert_close(rows, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "described"), SPECS.items(), ids=SPECS)
def test_weights_of_every_family_sum_to_one_and_leave_no_hooks(name, described):
    model = small_model(name).bfloat16()
    results = attention_weights(model, **inputs_for(name, random_ids(2, 7)))
    for kind, stack in (("encoder", described.encoder), ("decoder", described.decoder)):
        weights = getattr(results, kind)
        assert len(weights) == (0 if stack is None else stack.num_layers)
        for layer, attention in zip(weights, stack.attentions if stack else ()):
            queries = 11 if kind == "encoder" and name in BOTH else 7
            assert layer.shape == (2, attention.num_heads, queries, queries)
            assert layer.dtype == torch.get_default_dtype()
            sums = layer.sum(-1)
            if attention.sinks:  # the rest is the weight of the sink
                assert (sums > 0).all()
                assert (sums < 1).all()
            else:
                torch.testing.assert_close(sums, torch.ones_like(sums))
            if kind == "decoder":
                assert not layer.triu(1).any()
    assert len(results.cross) == (len(results.decoder) if name in BOTH else 0)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_in_training_mode_drops_nothing_and_every_model_stays_in_its_mode():
    model, ids = build(small_model("bert").spec.with_dropout(0.5), seed=0), random_ids(2, 7)
    assert model.training
    first, again = (attention_weights(model, ids).encoder for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert model.training
    attention_weights(model.eval(), ids)
    assert not any(module.training for module in model.modules())


def test_what_a_hook_of_the_model_runs_is_not_recorded():
    """A server decodes other requests before a forward pass."""
    model, ids = small_model("gpt2"), random_ids(2, 7)
    alone = attention_weights(model, ids).decoder
    model.register_forward_pre_hook(lambda module, _: module.forward(ids[:1, :3]))
    for layer, expected in zip(attention_weights(model, ids).decoder, alone, strict=True):
        assert torch.equal(layer, expected)


def test_a_model_without_attention_is_refused():
    model = build(spec.RNNSpec(vocab_size=13, d_model=7, cell="gru", d_hidden=7, num_layers=1))
    with pytest.raises(SpecError, match="no attention"):
        attention_weights(model, torch.tensor([[1, 2]]))
