"""Attention probabilities against those of `transformers`, and what must hold of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hugging_face import ours_of, randomize
from small_models import BOTH, SPECS, inputs_for, random_ids, small_model

from trivium import spec
from trivium.errors import SpecError
from trivium.inference.attention_weights import attention_weights
from trivium.models import build

VOCABULARY, POSITIONS = 101, 37
BART = {
    "d_model": 22,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
THEIRS: dict[str, dict[str, Any]] = {
    "BertModel": {
        "hidden_size": 21,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 29,
        "max_position_embeddings": POSITIONS,
    },
    "GPT2LMHeadModel": {
        "n_embd": 26,
        "n_layer": 3,
        "n_head": 2,
        "n_inner": 31,
        "n_positions": POSITIONS,
    },
    "LlamaForCausalLM": {
        "hidden_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "intermediate_size": 37,
        "max_position_embeddings": POSITIONS,
    },
    "MistralForCausalLM": {
        "hidden_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 37,
        "max_position_embeddings": POSITIONS,
        "sliding_window": 5,
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
    "BartForConditionalGeneration": BART,
}


def their_model(name: str) -> Any:
    """One of their models with random weights, which computes its attention in plain steps."""
    import transformers

    kind = name.removesuffix("Model").removesuffix("LMHead").partition("For")[0]
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **THEIRS[name])
    config._attn_implementation = "eager"
    return randomize(getattr(transformers, name)(config), seed=7)


def padded(rows: int, length: int, shortest: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([[length], *[[shortest]] * (rows - 1)])
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < lengths).long()}


@pytest.mark.parametrize("name", THEIRS)
def test_probabilities_are_those_of_transformers(name):
    hf = their_model(name)
    inputs = padded(2, 13, 7)
    if hf.config.is_encoder_decoder:
        inputs |= {f"decoder_{key}": value for key, value in padded(2, 11, 5).items()}
    if name == "BertModel":
        inputs["token_type_ids"] = (torch.arange(13) > 4).long().expand(2, -1)
    with torch.no_grad():
        theirs = hf(**inputs, output_attentions=True, use_cache=False)
    ours = attention_weights(ours_of(hf), **inputs)
    if hf.config.is_encoder_decoder:
        pairs = [
            (ours.encoder, theirs.encoder_attentions, "attention_mask"),
            (ours.decoder, theirs.decoder_attentions, "decoder_attention_mask"),
            (ours.cross, theirs.cross_attentions, "decoder_attention_mask"),
        ]
    else:
        one = ours.encoder or ours.decoder
        assert not ours.cross
        assert not (ours.encoder and ours.decoder)
        pairs = [(one, theirs.attentions, "attention_mask")]
    for mine, other, mask in pairs:
        real = inputs[mask].bool()
        assert len(mine) == len(other) > 0
        for layer, expected in zip(mine, other):
            assert layer.shape == expected.shape
            found, wanted = layer.transpose(1, 2)[real], expected.transpose(1, 2)[real]
            torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_every_family_shares_out_its_attention(name):
    model, shape = small_model(name), SPECS[name]
    inputs = inputs_for(name, random_ids(2, 7))
    found = attention_weights(model, **inputs)
    stacks = {"encoder": shape.encoder, "decoder": shape.decoder}
    for kind, stack in stacks.items():
        weights = getattr(found, kind)
        assert len(weights) == (0 if stack is None else stack.num_layers)
        for layer, attention in zip(weights, stack.attentions if stack else ()):
            queries = 11 if kind == "encoder" and name in BOTH else 7
            assert layer.shape == (2, attention.num_heads, queries, queries)
            torch.testing.assert_close(layer.sum(-1), torch.ones_like(layer[..., 0]))
            if kind == "decoder":
                assert not layer.triu(1).any()
    assert len(found.cross) == (len(found.decoder) if name in BOTH else 0)
    assert all(layer.shape[2:] == (7, 11) for layer in found.cross)


def test_the_model_is_not_touched_and_its_weights_are_not_copied(monkeypatch):
    """Others may be using it at the same time."""
    model, ids = small_model("t5"), random_ids(1, 7)
    listeners: list[Any] = []
    register = torch.nn.Module.register_forward_pre_hook

    def noted(module, *given, **options):
        listeners.append(module)
        return register(module, *given, **options)

    monkeypatch.setattr(torch.nn.Module, "register_forward_pre_hook", noted)
    attention_weights(model, ids, decoder_input_ids=ids)
    assert len(listeners) == 2 + 2 * 3
    mine = {*model.modules()}
    addresses = {weight.data_ptr() for weight in model.parameters()}
    assert not mine & {*listeners}
    assert {w.data_ptr() for each in listeners for w in each.parameters()} < addresses
    with pytest.raises(SpecError, match="decoder_input_ids"):
        attention_weights(small_model("llama"), ids, decoder_input_ids=ids)


def test_weights_in_half_precision_give_probabilities_in_single():
    model = small_model("gpt2").bfloat16()
    found = attention_weights(model, random_ids(1, 7))
    assert {layer.dtype for layer in found.decoder} == {torch.float32}


def test_a_model_without_attention_says_so():
    model = build(spec.RNNSpec(vocab_size=13, d_model=7, cell="gru", d_hidden=7, num_layers=1))
    with pytest.raises(SpecError, match="no Transformer"):
        attention_weights(model, torch.tensor([[1, 2]]))
