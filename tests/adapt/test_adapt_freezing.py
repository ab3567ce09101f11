"""Freezing: which parameters each word means, counted from the spec, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
from small_models import BIDIRECTIONAL, SPECS, VOCABULARY, inputs_for, random_ids, small_model

from trivium import spec
from trivium.adapt import LoRA, ParameterCounts, add_lora, freeze
from trivium.errors import SpecError
from trivium.models import build
from trivium.optim.optimizers import adamw

LABELS = spec.ClassifierHead(num_labels=5, pooling="first")


def trained(model):
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def frozen(model):
    return {name for name, weight in model.named_parameters() if not weight.requires_grad}


def rnn(**changes):
    described = {
        "vocab_size": VOCABULARY,
        "d_model": 7,
        "cell": "lstm",
        "d_hidden": 5,
        "num_layers": 3,
        "heads": (spec.LMHead(tied=False),),
    }
    return build(spec.RNNSpec(**{**described, **changes}))


@pytest.mark.parametrize("name", SPECS)
def test_none_trains_all_of_it_again(name):
    model = small_model(name)
    freeze(model, "embeddings")
    assert freeze(model, "none") == ParameterCounts(model.spec.num_parameters, 0)
    assert not frozen(model)


def test_embeddings_are_tables_positions_types_and_their_norm():
    model = small_model("bert")
    counts = freeze(model, "embeddings")
    assert counts.frozen == (VOCABULARY + 37 + 2 + 1 + 1) * 22
    assert counts.trained == model.spec.num_parameters - counts.frozen
    assert {name.split(".")[0] for name in frozen(model)} == {"tokens", "encoder"}
    two = small_model("transformer-two-vocabularies")
    freeze(two, "embeddings")
    assert frozen(two) == {"tokens.weight", "source_tokens.weight"}


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_the_body_is_the_encoder_of_an_encoder(name):
    model = build(SPECS[name].replace(heads=(LABELS,)))
    assert freeze(model, "body") == ParameterCounts(5 * 22 + 5, model.spec.num_parameters - 115)
    left = trained(model)
    freeze(model, "none")
    freeze(model, "encoder")
    assert trained(model) == left == {
        "heads.classifier.classifier.weight",
        "heads.classifier.classifier.bias",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["bart", "t5", "transformer-two-vocabularies"])
def test_what_a_frozen_encoder_says_stays_the_same(name):
    model = small_model(name)
    freeze(model, "encoder")
    assert all(name.startswith(("decoder.", "heads.", "tokens.")) for name in trained(model))
    inputs = inputs_for(name, random_ids(2, 7))
    before = model.encode(inputs["input_ids"]).detach()
    answer = model(**inputs).detach()
    steps(model, name, 2)
    assert torch.equal(model.encode(inputs["input_ids"]), before)
    assert not torch.allclose(model(**inputs), answer)


def steps(model, name, number):
    optimizers = adamw(model, lr=1e-2, weight_decay=0.1)
    ids = random_ids(3, 7, seed=9)
    for _ in range(number):
        loss = model.vocabulary_loss(model(**inputs_for(name, ids)).flatten(0, 1), ids.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", ["gpt3", "bart", "t5"])
def test_lowest_layers_are_those_of_every_stack_with_what_is_below(name):
    model = small_model(name)
    freeze(model, "layers:1")
    for path in (path for path, _ in model.named_parameters() if ".layers." in path):
        assert (path in frozen(model)) == (".layers.0." in path)
    assert "tokens.weight" in frozen(model)
    assert {n for n in frozen(model) if ".layers." not in n} == {
        n for n, _ in model.named_parameters() if n.startswith("tokens") or ".embedding." in n
    }
    freeze(model, "layers:2")
    layers = {name for name in frozen(model) if ".layers." in name}
    assert layers == {n for n, _ in model.named_parameters() if re.search(r"\.layers\.[01]\.", n)}


def test_layers_that_share_weights_are_frozen_together():
    model = small_model("albert")
    with pytest.raises(SpecError, match="allowed: none, embeddings, layers:3, encoder"):
        freeze(model, "layers:1")
    freeze(model, "layers:3")
    assert all(name.startswith("heads.") for name in trained(model))
    described = SPECS["albert"]
    assert described.encoder is not None
    pairs = described.encoder.replace(num_layers=6, num_distinct=3)
    model = build(described.replace(encoder=pairs))
    with pytest.raises(SpecError, match=re.escape("layers:2, ..., layers:6")):
        freeze(model, "layers:3")
    freeze(model, "layers:4")
    blocks = {name.split(".")[2] for name in frozen(model) if ".layers." in name}
    assert blocks == {"0", "1"}


def test_layers_of_a_recurrent_network():
    model = rnn(direction="both", heads=(spec.MLMHead(tied=False),))
    freeze(model, "layers:2")
    cells = {name for name in frozen(model) if "cells" in name}
    assert len(cells) == 2 * 2 * 4
    assert all(re.search(r"_l[01](_reverse)?$", name) for name in cells)
    assert frozen(model) - cells == {"tokens.weight"}
    ids = random_ids(2, 7)
    model.train().vocabulary_loss(model(ids).flatten(0, 1), ids.flatten()).backward()
    assert {n for n, w in model.named_parameters() if w.grad is not None} == trained(model)


def test_an_n_gram_model_has_no_layers():
    model = build(
        spec.NGramSpec(
            vocab_size=VOCABULARY, d_model=7, order=3, d_hidden=11, heads=(spec.LMHead(tied=False),)
        )
    )
    freeze(model, "embeddings")
    assert frozen(model) == {"tokens.weight", "before"}
    with pytest.raises(SpecError, match="allowed: none, embeddings, body, all-but"):
        freeze(model, "layers:1")


@pytest.mark.parametrize("name", SPECS)
def test_all_but_norms_and_biases(name):
    model = small_model(name)
    freeze(model, "all-but-norms-and-biases")
    heads = ("heads.nsp", "heads.replaced-token")
    for path, weight in model.named_parameters():
        assert weight.requires_grad == (weight.ndim == 1 or path.startswith(heads)), path
    before = {path: weight.detach().clone() for path, weight in model.named_parameters()}
    steps(model, name, 2)
    for path, weight in model.named_parameters():
        assert weight.requires_grad or torch.equal(weight, before[path])


@pytest.mark.parametrize(
    ("name", "what", "message"),
    [
        ("gpt2", "encoder", r"allowed: none, embeddings, layers:1, layers:2, body, all-but"),
        ("bert", "layers:3", r'"layers:3".*layers:1, layers:2, encoder, body'),
        ("bert", "layers:0", r"allowed"),
        ("bert", "layers:two", r"allowed"),
        ("bert", "embedings", r'Did you mean "embeddings"'),
        ("bert", "norms", r"allowed"),
        ("gpt2", "body", r'"body" leaves nothing'),
    ],
)
def test_what_cannot_be_frozen(name, what, message):
    model = small_model(name)
    with pytest.raises(SpecError, match=message):
        freeze(model, what)
    assert not frozen(model)


def test_an_adapter_says_itself_what_is_trained():
    model = small_model("bert")
    add_lora(model, LoRA())
    with pytest.raises(SpecError, match="LoRA"):
        freeze(model, "embeddings")
