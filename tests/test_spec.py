"""The description of a model: what follows from it, and what it refuses."""

from __future__ import annotations

import copy
import json
import typing

import pytest
import torch
from pydantic import ValidationError
from small_models import SPECS
from torch.utils.flop_counter import FlopCounterMode

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build
from trivium.presets import presets
from trivium.spec import ModelSpec, spec_from_dict

ALL = {**SPECS, **presets}
LLAMA, BERT = presets["llama-tiny"].to_dict(), presets["bert-tiny"].to_dict()


@pytest.mark.parametrize("name", ALL)
def test_to_dict_and_back(name):
    described = ALL[name]
    through_json = json.loads(json.dumps(described.to_dict()))
    assert spec_from_dict(through_json) == described
    assert None not in described.to_dict().values()


@pytest.mark.parametrize("name", SPECS)
def test_num_parameters_is_what_is_built(name):
    model = build(SPECS[name], device="meta")
    assert sum(w.numel() for w in model.parameters()) == SPECS[name].num_parameters


PARTS = [
    part
    for part in vars(spec).values()
    if isinstance(part, type) and issubclass(part, spec.Part) and part is not spec.Part
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_what_may_be_absent_is_absent_unless_given(part):
    """TOML has no null and `to_dict` leaves None out, so a missing field must mean None."""
    for name, field in part.model_fields.items():
        if type(None) in typing.get_args(field.annotation):
            assert field.default is None, name


def test_family_follows_from_the_slots():
    bert, gpt2 = presets["bert-tiny"], presets["gpt2-tiny"]
    assert (bert.family, gpt2.family) == ("encoder-only", "decoder-only")
    both = bert.replace(decoder=gpt2.decoder)
    assert both.family == "encoder-decoder"
    assert both.stacks == (bert.encoder, gpt2.decoder)


def test_max_length_is_that_of_learned_positions():
    assert presets["bert-base"].max_length == 512
    assert presets["gpt2"].max_length == 1024
    assert presets["llama-7b"].max_length is None


def test_attentions_repeat_as_a_pattern():
    stack = SPECS["modernbert"].encoder
    assert stack is not None
    kinds = [attention.pattern.kind for attention in stack.attentions]
    assert kinds == ["full", "sliding", "full"]
    assert presets["llama-tiny"].stacks[0].attention_of(1).kv_heads == 2


def test_a_spec_is_frozen_and_replaced():
    described = presets["gpt2"]
    with pytest.raises(ValidationError):
        described.d_model = 3  # type: ignore[misc]
    changed = described.replace(vocab_size=97)
    assert (changed.vocab_size, described.vocab_size) == (97, 50_257)
    assert hash(changed) != hash(described)


# Path, value, and what the message must name. None removes the entry.
IMPOSSIBLE = [
    ("vocab_size", 0, "vocab_size"),
    ("vocab_size", "many", "vocab_size"),
    ("d_model", -1, "d_model"),
    ("d_model", None, "d_model"),
    ("decoder", None, "encoder, a decoder"),
    ("width", 3, "width"),
    ("decoder.layers", 3, "layers"),
    ("decoder.num_layers", 0, "num_layers"),
    ("decoder.attention", [], "attention"),
    ("decoder.attention.num_heads", 0, "num_heads"),
    ("decoder.attention.num_kv_heads", 3, "num_kv_heads=3"),
    ("decoder.attention.head_dim", 7, "head_dim=7"),
    ("decoder.attention.scale", -1.0, "scale"),
    ("decoder.attention.pattern", {"kind": "sliding", "window": 0}, "window"),
    ("decoder.attention.pattern", {"kind": "sparse"}, "pattern"),
    ("decoder.attention.positions.base", 0.0, "base"),
    ("decoder.feed_forward.d_ff", 0, "d_ff"),
    ("decoder.feed_forward.activation", "sine", "activation"),
    ("decoder.norm.eps", -1.0, "eps"),
    ("decoder.norm.kind", "batch", "norm"),
    ("decoder.norm_order", "middle", "norm_order"),
    ("decoder.dropout", 1.0, "dropout"),
    ("decoder.dropout", -0.1, "dropout"),
    ("embedding.positions", {"kind": "learned", "max_length": 0}, "max_length"),
    ("embedding.positions", {"kind": "sinusoidal", "base": -1.0}, "base"),
    ("embedding.num_token_types", -1, "num_token_types"),
    ("embedding.scale", float("nan"), "scale"),
    ("heads", [{"kind": "lm", "tied": True}, {"kind": "lm", "tied": False}], "heads"),
    ("heads", [{"kind": "oracle"}], "heads"),
    ("heads", [{"kind": "lm"}], "tied"),
    ("initialization.std", -1.0, "std"),
    ("initialization.branches", "half", "branches"),
]


@pytest.mark.parametrize(("path", "value", "named"), IMPOSSIBLE)
def test_an_impossible_spec_names_the_field(path, value, named):
    tree = copy.deepcopy(LLAMA)
    *parents, key = path.split(".")
    table = tree
    for parent in parents:
        table = table[parent]
    if value is None:
        del table[key]
    else:
        table[key] = value
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_dict(tree)
    message = str(caught.value)
    assert named in message
    for parent in parents:
        assert parent in message
    assert "\n" not in message
    assert len(message) < 300, message


def test_parts_made_by_hand_are_checked_too():
    with pytest.raises(SpecError, match=r"num_heads=5.*num_kv_heads=2"):
        spec.Attention(num_heads=5, head_dim=8, num_kv_heads=2)
    with pytest.raises(SpecError, match=r"Learned: max_length"):
        spec.Learned(max_length=0)
    with pytest.raises(SpecError, match="neither was given"):
        ModelSpec(vocab_size=5, d_model=3, embedding=spec.Embedding())
    with pytest.raises(SpecError, match="d_model"):
        presets["gpt2"].replace(d_model=0)
    with pytest.raises(SpecError, match="colour"):
        presets["gpt2"].replace(colour=0)
    with pytest.raises(SpecError, match="model description"):
        ModelSpec.from_dict([1])  # type: ignore[arg-type]


@pytest.mark.parametrize("labelled", [1.0, 0.25])
@pytest.mark.parametrize("name", ["bert-mini", "modernbert-mini", "gpt2-mini", "llama-mini"])
def test_flops_are_those_that_pytorch_counts(name, labelled):
    """Within 6 %: left out are the head's own dense layer, the other half of causal attention,
    and that on a CPU the last attention asks for few labelled positions alone."""
    described = presets[name].replace(vocab_size=4001)
    model, rows, length = build(described), 2, 64
    ids = torch.zeros(rows, length, dtype=torch.int64)
    positions = torch.arange(int(rows * length * labelled))
    with FlopCounterMode(display=False) as counter:
        hidden = model(ids, select=positions)
        model.vocabulary_loss(hidden, torch.zeros_like(positions)).backward()
    found = counter.get_total_flops() / (rows * length)
    assert described.flops_per_token(length, labelled=labelled) == pytest.approx(found, rel=0.06)


def test_flops_of_attention_are_exact_where_nothing_is_causal():
    """Growth with length leaves nothing but the two products of attention."""
    described = presets["bert-tiny"].replace(vocab_size=31)
    counts = []
    for length in (32, 96):
        model, ids = build(described), torch.zeros(1, length, dtype=torch.int64)
        positions = torch.arange(length)
        with FlopCounterMode(display=False) as counter:
            hidden = model(ids, select=positions)
            model.vocabulary_loss(hidden, torch.zeros_like(positions)).backward()
        counts.append(counter.get_total_flops() / length)
    expected = described.flops_per_token(96) - described.flops_per_token(32)
    assert counts[1] - counts[0] == pytest.approx(expected, rel=1e-9)
