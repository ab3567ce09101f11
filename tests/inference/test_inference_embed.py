"""Vectors of texts, by the formula of sentence-transformers in float64."""

from __future__ import annotations

import pytest
import torch
from task_models import as_ours, theirs
from their_tokenizers import SAMPLES
from their_tokenizers import theirs as their_tokenizer

from trivium.errors import SpecError
from trivium.inference.embed import embed_texts

transformers = pytest.importorskip("transformers")

TEXTS = [text for text in SAMPLES if text and len(text) < 70]


@pytest.fixture(scope="module")
def bert():
    return theirs("BertModel")


def by_formula(hf, family: str, pooling: str) -> torch.Tensor:
    """Sentence-transformers' Pooling over a padded batch, with the mask."""
    inputs = their_tokenizer(family)(TEXTS, padding=True, return_tensors="pt")
    mask = inputs["attention_mask"]
    kept = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        hidden = hf(**kept).last_hidden_state.double()
    match pooling:
        case "first":
            return hidden[:, 0]
        case "last":
            return hidden[torch.arange(len(hidden)), mask.sum(1) - 1]
    expanded = mask[..., None].expand(hidden.shape).double()
    return (hidden * expanded).sum(1) / expanded.sum(1).clamp(min=1e-9)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_pooling_of_an_encoder(bert, pooling):
    model = as_ours(bert, "bert")
    found = model.embed(TEXTS, pooling=pooling, normalize=False)
    wanted = by_formula(bert, "bert", pooling)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
    assert found.dtype == torch.float32
    lengths = wanted.norm(dim=1, keepdim=True)
    found = model.embed(TEXTS, pooling=pooling)
    torch.testing.assert_close(found.double(), wanted / lengths, atol=1e-5, rtol=1e-4)


def test_an_encoder_takes_the_mean_and_a_decoder_the_last(bert):
    model = as_ours(bert, "bert")
    assert torch.equal(model.embed(TEXTS), model.embed(TEXTS, pooling="mean"))
    hf = theirs("GPT2Model")
    decoder = as_ours(hf, "gpt2")
    torch.testing.assert_close(
        decoder.embed(TEXTS, normalize=False).double(),
        by_formula(hf, "gpt2", "last"),
        atol=1e-4,
        rtol=1e-4,
    )
    assert torch.equal(decoder.embed(TEXTS), decoder.embed(TEXTS, pooling="last"))


def test_one_by_one_and_together(bert):
    model = as_ours(bert, "bert")
    together = model.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(model.embed(text), vector, atol=1e-5, rtol=1e-4)
    assert model.embed([]).shape == (0, 22)


def test_half_precision_weights_are_summed_in_float32(bert):
    model = as_ours(bert, "bert")
    model.module.to(torch.bfloat16)
    ids = [[7, 9, 11] * 20]
    found = embed_texts(model.module, ids, pooling="mean", normalize=False)[0]
    with torch.no_grad():
        wanted = model.module(torch.tensor(ids))[0].double().mean(0)
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=1e-6)


def test_what_cannot_be(bert):
    with pytest.raises(SpecError, match="pooling is 'max'"):
        as_ours(bert, "bert").embed("a", pooling="max")
    both = as_ours(theirs("BartModel"), "roberta")
    with pytest.raises(SpecError, match="an encoder with a decoder and cannot embed"):
        both.embed("a")
    long = "word " * 100
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than the 61 tokens"):
        as_ours(bert, "bert").embed(["a", long])
