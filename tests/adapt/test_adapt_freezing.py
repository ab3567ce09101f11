"""Which parameters are frozen, by part and by pattern."""

from __future__ import annotations

import pytest
import torch
from small_models import ALL_SPECS, random_ids, small_model

from trivium.adapt import LoRA, add_lora, freeze
from trivium.errors import SpecError
from trivium.models import build
from trivium.spec import RNNSpec


def frozen(model):
    return {name for name, weight in model.named_parameters() if not weight.requires_grad}


@pytest.mark.parametrize("name", ALL_SPECS)
def test_parts_of_every_family(name):
    model = small_model(name)
    names = {path for path, _ in model.named_parameters()}
    freeze(model, "embeddings")
    assert {path for path in names if path.startswith("tokens.")} <= frozen(model)
    assert not any("layers" in path or "heads" in path for path in frozen(model))
    assert freeze(model, "none") == (sum(p.numel() for p in model.parameters()), 0)
    if any("layers" in path for path in names):
        freeze(model, "layers:1")
        layers = {path for path in frozen(model) if "layers" in path}
        assert layers
        assert all(".layers.0." in path or "_l0" in path for path in layers)
        assert not any(".cells.1." in path for path in layers)
    if any(path.startswith("heads.") for path in names):
        freeze(model, "body")
        assert frozen(model) == {path for path in names if not path.startswith("heads.")}


@pytest.mark.parametrize("direction", ["forward", "both", "bilm"])
def test_layer_1_of_an_rnn_is_not_layer_10(direction):
    model = build(
        RNNSpec(vocab_size=7, d_model=2, cell="gru", d_hidden=2, num_layers=11, direction=direction)
    )
    freeze(model, "layers:2")
    if direction == "bilm":  # every layer is a module
        cells = {path.split(".cells.")[1][0] for path in frozen(model) if "cells" in path}
        assert cells == {"0", "1"}
        assert not any(".cells.10." in path for path in frozen(model))
        return
    cells = {path.split("_l")[1] for path in frozen(model) if "cells" in path}
    backward = {"0_reverse", "1_reverse"} if direction == "both" else set()
    assert cells == {"0", "1"} | backward


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("bart", {"encoder", "tokens"}),
        ("transformer-two-vocabularies", {"encoder", "source_tokens"}),
        ("bert", {"encoder", "tokens"}),
    ],
)
def test_the_encoder_with_its_table(name, parts):
    model = small_model(name)
    freeze(model, "encoder")
    assert {path.split(".")[0] for path in frozen(model)} == parts


def test_patterns_of_names():
    model = small_model("bert")
    freeze(model, "*.weight, !*norm.weight, !heads.*")
    assert "encoder.layers.1.mixer.query.weight" in frozen(model)
    assert all(path.endswith("weight") and "norm" not in path for path in frozen(model))


def test_a_frozen_part_stays_and_the_rest_learns():
    model, ids = small_model("llama"), random_ids(2, 7)
    freeze(model, "layers:1")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.lm_loss(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    changed = {n for n, weight in model.state_dict().items() if not torch.equal(weight, before[n])}
    assert changed == set(before) - frozen(model)


def test_what_cannot_be_frozen_is_refused():
    for name, patterns, message in (
        ("gpt2", "body", "leaves nothing"),
        ("gpt2", "*", "leaves nothing"),
        ("gpt2", "encoder", "matches no parameter"),
        ("gpt2", "embedings", 'Did you mean "embeddings"'),
        ("gpt2", "layers:3", "matches no parameter"),
        ("ngram", "layers:1", "matches no parameter"),
    ):
        model = small_model(name)
        with pytest.raises(SpecError, match=message):
            freeze(model, patterns)
        assert not frozen(model)
    model = small_model("gpt2")
    add_lora(model, LoRA())
    with pytest.raises(SpecError, match="freezes its base"):
        freeze(model, "embeddings")
