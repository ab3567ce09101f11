"""What `build` makes of a spec, and what the model refuses."""

from __future__ import annotations

import pytest
import torch
from small_models import (
    DECODERS,
    SOURCE_VOCABULARY,
    SPECS,
    VOCABULARY,
    inputs_for,
    random_ids,
    small_model,
    small_spec,
)
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models import Transformer, build
from trivium.models.heads import LMHead, MLMHead, NSPHead
from trivium.presets import presets


@pytest.mark.parametrize("name", SPECS)
def test_shapes(name):
    model, ids = small_model(name), random_ids(3, 11)
    hidden = model(**inputs_for(name, ids))
    assert hidden.shape == (3, 11, 22)
    assert model.logits(hidden).shape == (3, 11, VOCABULARY)
    assert model.logits(hidden[:, -1]).shape == (3, VOCABULARY)


def test_heads_are_those_of_the_spec():
    heads = small_model("bert").heads
    assert isinstance(heads["mlm"], MLMHead)
    assert isinstance(heads["nsp"], NSPHead)
    assert isinstance(small_model("gpt2").heads["lm"], LMHead)
    hidden = torch.randn(3, 5, 22)
    assert heads["nsp"](hidden).shape == (3, 2)


@pytest.mark.parametrize("name", SPECS)
def test_the_vocabulary_loss_is_the_cross_entropy_of_the_logits(name):
    model, ids = small_model(name), random_ids(3, 11)
    positions = torch.tensor([0, 7, 30, 32])
    targets = torch.tensor([5, 0, 42, 5])
    inputs = inputs_for(name, ids)
    hidden = model(**inputs, select=positions)
    loss = model.vocabulary_loss(hidden, targets)
    logits = model.logits(model(**inputs)).flatten(0, 1)[positions]
    expected = F.cross_entropy(logits, targets, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_token_types_default_to_sentence_a():
    model, ids = small_model("bert"), random_ids(2, 7)
    plain = model(ids)
    torch.testing.assert_close(plain, model(ids, token_type_ids=torch.zeros_like(ids)))
    assert not torch.allclose(plain, model(ids, token_type_ids=torch.ones_like(ids)), atol=1e-3)


def test_positions_default_to_counting_from_zero():
    model, ids = small_model("gpt2"), random_ids(2, 7)
    counted = model(ids, position_ids=torch.arange(7)[None].expand(2, -1))
    torch.testing.assert_close(model(ids), counted)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_an_input_longer_than_the_positions_is_refused(name):
    model = small_model(name)
    model(random_ids(1, 37))
    with pytest.raises(SpecError, match=r"38 tokens.*end at 37"):
        model(random_ids(1, 38))


def test_positions_without_end_have_no_limit():
    assert small_model("llama")(random_ids(1, 101)).shape == (1, 101, 22)


def test_no_vocabulary_head_is_an_error_that_says_so():
    model = build(SPECS["bert"].replace(heads=()))
    hidden = model(random_ids(1, 5))
    with pytest.raises(SpecError, match="no head; it has: none"):
        model.logits(hidden)
    with pytest.raises(SpecError, match="no lm head; it has: none"):
        model.logits(hidden, head="lm")
    with pytest.raises(SpecError, match="no head over the vocabulary"):
        model.vocabulary_loss(hidden[0], torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_decoders_input_is_for_encoder_decoders_only(name):
    model, ids = small_model(name), random_ids(2, 5)
    inputs = {"input_ids": ids} if name == "t5" else {"input_ids": ids, "decoder_input_ids": ids}
    family = small_spec(name).family
    verb = "needs" if name == "t5" else "takes no"
    with pytest.raises(SpecError, match=f"{family} and {verb} decoder_input_ids"):
        model(**inputs)


def test_shared_layers_are_one():
    model = small_model("albert")
    assert model.encoder is not None
    assert model.encoder.spec.num_layers == 3
    assert len(model.encoder.layers) == 1
    calls = []
    model.encoder.layers[0].register_forward_hook(lambda *_: calls.append(1))
    model(random_ids(1, 5))
    assert len(calls) == 3


def test_the_first_norm_may_be_that_of_the_embedding():
    model = small_model("modernbert")
    assert "encoder.layers.0.attention_residual.norm.weight" not in model.state_dict()
    assert "encoder.layers.1.attention_residual.norm.weight" in model.state_dict()


def test_two_vocabularies_are_two_tables():
    model, ids = small_model("transformer-two-vocabularies"), random_ids(2, 5)
    assert model.source_tokens is not None
    assert model.source_tokens.weight.shape == (SOURCE_VOCABULARY, 22)
    highest = torch.full((2, 7), SOURCE_VOCABULARY - 1)
    assert model.logits(model(highest, decoder_input_ids=ids)).shape == (2, 5, VOCABULARY)
    with pytest.raises(IndexError):
        small_model("transformer")(highest, decoder_input_ids=ids)


def test_meta_models_have_shapes_and_no_numbers():
    model = build(presets["llama3-70b"], device="meta")
    assert model.device.type == "meta"
    assert all(weight.is_meta for weight in model.parameters())


def test_build_leaves_the_global_random_state_free_to_be_used():
    """The weights follow from the seed alone, whatever the global generator stands at."""
    torch.manual_seed(1)
    first = build(SPECS["llama"], seed=3)
    torch.manual_seed(2)
    second = build(SPECS["llama"], seed=3)
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("name", DECODERS)
def test_tied_and_untied_heads(name):
    model, head = small_model(name), small_spec(name).heads[0]
    assert isinstance(head, spec.LMHead)
    assert ("heads.lm.weight" in model.state_dict()) is not head.tied
    hidden, weights = torch.randn(5, 22), model.state_dict()
    matrix = weights["tokens.weight" if head.tied else "heads.lm.weight"]
    if name == "opt":
        matrix = matrix @ weights["heads.lm.narrow.weight"]
    expected = head.scale * hidden @ matrix.T + weights.get("heads.lm.bias", 0.0)
    torch.testing.assert_close(model.logits(hidden), expected, rtol=1e-4, atol=1e-5)


def test_in_bfloat16_it_is_roughly_the_same():
    model, ids = small_model("llama"), random_ids(2, 11)
    with torch.no_grad():
        expected = model.logits(model(ids))
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model.logits(model(ids)).float()
        low = model.to(torch.bfloat16)
        assert isinstance(low, Transformer)
        assert low.dtype == torch.bfloat16
        pure = low.logits(low(ids)).float()
    scale = expected.abs().max()
    assert (mixed - expected).abs().max() < 0.1 * scale
    assert (pure - expected).abs().max() < 0.1 * scale


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_dropout_only_while_training(name):
    described = SPECS[name]
    stack = described.decoder
    assert stack is not None
    model, ids = build(described.replace(decoder=stack.replace(dropout=0.3))), random_ids(2, 7)
    model.eval()
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))
