"""Specs: what follows from them, plain data and back, and what they refuse."""

from __future__ import annotations

import copy
import json
from typing import ClassVar, Literal

import pytest
from own_kinds import own_kinds
from pydantic import ValidationError
from small_models import ALL_SPECS, SPECS

from trivium import spec
from trivium.errors import SpecError, TriviumError
from trivium.presets import presets
from trivium.spec import Spec, TransformerSpec

LLAMA = SPECS["llama"].replace(
    decoder=SPECS["llama"].decoder.replace(dropout=0.1),
    embedding=spec.Embedding(positions=spec.Learned(max_length=37)),
)


@pytest.mark.parametrize(
    ("name", "described"), [*ALL_SPECS.items(), *presets.items()], ids=[*ALL_SPECS, *presets]
)
def test_plain_data_and_back(name, described):
    """Through JSON; of a Transformer also without its kind."""
    data = json.loads(json.dumps(described.to_dict()))
    assert Spec.from_dict(data) == described
    if isinstance(described, TransformerSpec):
        del data["kind"]
        assert Spec.from_dict(data) == described


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(SpecError, match='Did you mean "rnn"'):
        Spec.from_dict({"kind": "rrnn"})


def test_facts_that_follow():
    bert, gpt2, lstm = SPECS["bert"], SPECS["gpt2"], ALL_SPECS["lstm"]
    assert (bert.family, gpt2.family) == ("encoder-only", "decoder-only")
    both = bert.replace(decoder=gpt2.decoder)
    assert both.family == "encoder-decoder"
    assert both.stacks == (bert.encoder, gpt2.decoder)
    assert (gpt2.max_length, SPECS["llama"].max_length, lstm.max_length) == (37, None, None)
    reaches = [each.pattern and each.pattern.reach for each in SPECS["modernbert"].encoder.mixers]
    assert reaches == [None, 2, None]
    assert ALL_SPECS["bilstm"].family == "encoder-only"
    assert ALL_SPECS["elmo"].family == ALL_SPECS["ngram"].family == "decoder-only"
    assert all(stack.dropout == 0.3 for stack in both.with_dropout(0.3).stacks)


def test_a_spec_is_frozen_and_replaced():
    with pytest.raises(ValidationError):
        LLAMA.d_model = 3  # type: ignore[misc]
    changed = LLAMA.replace(vocab_size=97)
    assert (changed.vocab_size, LLAMA.vocab_size) == (97, 43)
    assert hash(changed) != hash(LLAMA)


# Path, value, and what the message must name. None removes the entry.
IMPOSSIBLE = [
    ("vocab_size", 0, "vocab_size"),
    ("vocab_size", "many", "vocab_size"),
    ("d_model", None, "d_model"),
    ("decoder", None, "encoder or a decoder"),
    ("width", 3, "width"),
    ("decoder.layers", 3, "layers"),
    ("decoder.first_layers", 3, "first_layers"),
    ("decoder.num_layers", 0, "num_layers"),
    ("decoder.num_layer_groups", 3, "num_layer_groups=3"),
    ("decoder.layers.mixer", [], "mixer"),
    ("decoder.layers.mixer.num_kv_heads", 4, "num_kv_heads=4"),
    ("decoder.layers.mixer.head_dim", 7, "head_dim=7"),
    ("decoder.layers.mixer.scale", -1.0, "scale"),
    ("decoder.layers.mixer.pattern", {"kind": "sliding", "window": 0}, "window"),
    ("decoder.layers.mixer.pattern", {"kind": "slidng", "window": 3}, 'Did you mean "sliding"'),
    ("decoder.layers.mixer.pattern", {"kind": ["sliding"], "window": 3}, "there is no kind"),
    ("decoder.layers.mixer.pattern", {"window": 3}, "its kind is missing"),
    ("decoder.layers.mixer.kind", "atention", 'Did you mean "attention"'),
    ("decoder.layers.mixer.positions", {"kind": "learned", "max_length": 7}, "there is no kind"),
    ("decoder.layers.feed_forward.kind", "mpl", 'Did you mean "mlp"'),
    ("decoder.layers.block", {"kind": "paralel"}, 'Did you mean "parallel"'),
    ("initialization", {"kind": "fan_in"}, 'Did you mean "fan-in"'),
    ("decoder.layers.mixer.positions.base", 0.0, "base"),
    ("decoder.layers.norm.kind", "batch", "norm"),
    ("decoder.layers.norm_placement", "middle", "norm_placement"),
    ("decoder.dropout", 1.0, "dropout"),
    ("embedding.positions", {"kind": "learned", "max_length": 0}, "max_length"),
    ("embedding.scale", float("nan"), "scale"),
    ("source_vocab_size", 7, "source_vocab_size"),
    ("heads", [{"kind": "lm", "tied": True}, {"kind": "lm", "tied": False}], "heads"),
    ("heads", [{"kind": "oracle"}], "heads"),
    ("heads", [{"kind": "lm"}], "tied"),
    ("initialization.residual_init", "half", "residual_init"),
]


def test_an_impossible_spec_names_the_field():
    for path, value, named in IMPOSSIBLE:
        tree = copy.deepcopy(LLAMA.to_dict())
        *parents, key = path.split(".")
        table = tree
        for parent in parents:
            table = table[parent]
            table = table[0] if isinstance(table, list) else table
        table[key] = value
        if value is None:
            del table[key]
        with pytest.raises(SpecError) as caught:
            TransformerSpec.from_dict(tree)
        message = str(caught.value)
        assert named in message
        assert all(parent in message for parent in parents), message
        assert "\n" not in message
        assert len(message) < 300, message


def test_parts_made_by_hand_are_checked_too():
    with pytest.raises(SpecError, match=r"num_heads=5.*num_kv_heads=2"):
        spec.Attention(num_heads=5, head_dim=8, num_kv_heads=2)
    with pytest.raises(SpecError, match=r"Learned: max_length"):
        spec.Learned(max_length=0)
    with pytest.raises(SpecError, match=r"max_distance=16 must exceed num_buckets / 2"):
        spec.RelativeBias(num_buckets=32, max_distance=16)  # buckets below 0
    with pytest.raises(SpecError, match=r'd_modl: there is no such field\. Did you mean "d_model"'):
        LLAMA.replace(d_modl=8)
    with pytest.raises(SpecError, match=r"no such field\. Known: kind, d_ff, activation, gated"):
        LLAMA.decoder.every_layer[0].feed_forward.replace(colour=0)  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="model spec"):
        TransformerSpec.from_dict([1])  # type: ignore[arg-type]


def test_layers_that_share_weights_are_alike():
    stack = SPECS["t5"].encoder
    with pytest.raises(SpecError, match="give one layer"):
        stack.replace(layers=stack.layers * 2, num_layer_groups=1)
    with pytest.raises(SpecError, match="give one layer"):
        stack.replace(first_layers=stack.layers, num_layer_groups=1)


def test_first_layers_come_once_and_the_others_again_and_again():
    stack = SPECS["llama"].decoder
    a, b, c = (stack.layers[0].replace(residual_multiplier=m) for m in (1.0, 2.0, 3.0))
    described = stack.replace(num_layers=6, first_layers=a, layers=(b, c))
    assert described.every_layer == (a, b, c, b, c, b)
    assert spec.Stack.model_validate(described.model_dump()) == described
    assert stack.replace(layers=b) == stack.replace(layers=(b,))
    with pytest.raises(SpecError, match=r"2 first_layers, but num_layers=1: give fewer"):
        stack.replace(num_layers=1, first_layers=(a, b))


def test_a_mixer_is_for_the_stacks_that_it_can_be_in():
    """A mixer says whether it reads both sides, the left alone, and an encoder's output."""
    with own_kinds():

        class Left(spec.Mixer):
            supports_encoder: ClassVar[bool] = False
            kind: Literal["left"] = "left"

        class Both(spec.Mixer):
            supports_decoder: ClassVar[bool] = False
            kind: Literal["both"] = "both"

        for name, slot, mixer, message in (
            ("bert", "encoder", Left(), '"left" is causal only'),
            ("gpt2", "decoder", Both(), '"both" is bidirectional only'),
            ("bart", "decoder", Left(), '"left" has no cross-attention'),
        ):
            stack = getattr(SPECS[name], slot).with_layers(mixer=mixer)
            with pytest.raises(SpecError, match=rf"{slot}\.layers\.mixer: {message}"):
                SPECS[name].replace(**{slot: stack})
    stack = SPECS["bart"].decoder.with_layers(block=spec.ParallelLayers())
    with pytest.raises(
        SpecError, match=r'decoder\.layers\.block: "parallel" cannot attend to an encoder'
    ):
        SPECS["bart"].replace(decoder=stack)


def test_a_kind_belongs_to_one_class():
    with own_kinds():
        with pytest.raises(TriviumError, match='Wider and Attention are both of kind "attention"'):

            class Wider(spec.Attention):
                pass

        for _ in range(2):  # a class may be defined again, as in a notebook

            class Other(spec.Attention):
                kind: Literal["other"] = "other"

        assert spec.Mixer.kinds["other"] is Other
        assert "other" not in spec.Positions.kinds

        class Recurrence(spec.Mixer):
            """A choice of its own, whose members are mixers, too."""

        class Decay(Recurrence):
            kind: Literal["decay"] = "decay"

        assert Recurrence.kinds == {"decay": Decay}
        assert spec.Mixer.model_validate({"kind": "decay"}) == Decay()
    assert spec.Mixer.kinds["attention"] is spec.Attention
    with pytest.raises(ValidationError, match='no kind "other"'):
        spec.Mixer.model_validate({"kind": "other"})


def test_recurrent_specs_refuse_heads_of_the_other_direction():
    lstm = ALL_SPECS["lstm"]
    for changes, message in (
        ({"direction": "both"}, '"both" has no lm head: it is an encoder'),
        ({"heads": (spec.MLMHead(),)}, '"forward" has no mlm head: .* from one side'),
        (
            {"direction": "bilm", "heads": (*lstm.heads, spec.TaggerHead(num_labels=3))},
            '"bilm" has no lm head beside others: .* alone, or those of tasks',
        ),
        ({"direction": "bilm", "heads": (spec.MLMHead(),)}, '"bilm" has no mlm head'),
        ({"heads": (spec.ScalarMix(num_layers=3),)}, '"scalar-mix" of 3 layers: it is for'),
        ({"characters": spec.CharacterCNN()}, "the lm head cannot be tied"),
        ({"d_projection": 13}, "d_projection = 13 is for an LSTM of more cells"),
        ({"heads": (spec.LMHead(tied=True), spec.LMHead(tied=False))}, "at most one"),
        ({"cell": "peephole"}, "cell"),
    ):
        with pytest.raises(SpecError, match=message):
            lstm.replace(**changes)
    with pytest.raises(SpecError, match="order"):
        Spec.from_dict({**ALL_SPECS["ngram"].to_dict(), "order": 1})
