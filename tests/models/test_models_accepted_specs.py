"""What the validators of a spec accept is a model that is built and runs."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_models import SPECS, VOCABULARY, random_ids, random_model, small_part

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build
from trivium.spec import GlobalAttention, Head

ATTENTIONS = [kind for kind in spec.Mixer.kinds.values() if issubclass(kind, spec.Attention)]
CHOICES = (True, False)


def runs(described: spec.TransformerSpec) -> None:
    """Build it as it starts, and read rows with every head."""
    model = build(described, seed=0).eval()
    ids = random_ids(2, 19)
    with torch.no_grad():
        hidden = model(ids)
        for head in described.heads:
            if head.kind in ("lm", "mlm"):
                assert model.logits(hidden).shape == (2, 19, VOCABULARY)
            elif head.predicts:
                assert torch.isfinite(model.logits(hidden, head=head.kind)).all()


@pytest.mark.parametrize("kind", ATTENTIONS, ids=lambda kind: kind.__name__)
def test_a_spec_that_is_accepted_runs(kind):
    """Every kind of attention with every choice of biases, heads and norms."""
    part, accepted = small_part(kind), 0
    for bias, key_bias, output_bias in itertools.product(CHOICES, (None, *CHOICES), CHOICES):
        for changes in (
            {},
            {"num_kv_heads": 1},
            {"qk_norm": spec.RMSNorm()},
            {"qk_norm": spec.LayerNorm(), "qk_norm_over": "all-heads", "num_kv_heads": 1},
            {"qk_norm": spec.RMSNorm(weight=False), "qk_norm_place": "after-rotary"},
            {"soft_cap": 1.7},
            {"sinks": True, "num_kv_heads": 1},
        ):
            biases = {"bias": bias, "key_bias": key_bias, "output_bias": output_bias}
            base = SPECS["bert" if not kind.supports_decoder else "gpt2"]
            try:
                mixer = part.replace(**biases, **changes)
                stack = base.stacks[0].with_layers(mixer=mixer)
                described = base.replace(**{"decoder" if base.decoder else "encoder": stack})
            except SpecError:
                continue
            runs(described)
            accepted += 1
    assert accepted


@pytest.mark.parametrize("kind", Head.kinds.values(), ids=lambda kind: kind.__name__)
def test_a_head_that_is_accepted_runs(kind):
    """On encoders and decoders whose token vectors have another width, or the same."""
    accepted, sizes = 0, {"num_labels": 3, "tied": True, "num_layers": 3, "pooling": "concat"}
    sizes["layers"] = (spec.VectorLayer(width=5, activation="tanh"),)
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    dense = (None, spec.Dense(activation="gelu", norm=True))
    dense = dense if "dense" in kind.model_fields else (None,)
    for name, one, tied in itertools.product(("bert", "albert", "gpt2", "opt"), dense, CHOICES):
        given = {key: sizes[key] for key in required}
        given |= {"tied": tied} if "tied" in kind.model_fields else {}
        given |= {"dense": one} if "dense" in kind.model_fields else {}
        try:
            described = SPECS[name].replace(heads=(kind(**given),))
        except SpecError:
            continue
        runs(described)
        accepted += 1
    assert accepted or not kind.predicts


@pytest.mark.parametrize("kind", ATTENTIONS, ids=lambda kind: kind.__name__)
def test_the_bias_of_keys_is_a_choice_of_its_own(kind):
    """Also of the keys of global tokens."""
    for bias, key_bias in itertools.product(CHOICES, CHOICES):
        try:
            mixer = small_part(kind).replace(bias=bias, key_bias=key_bias)
        except SpecError:
            continue
        base = SPECS["bert" if not kind.supports_decoder else "gpt2"]
        stack = base.stacks[0].with_layers(mixer=mixer)
        model = random_model(base.replace(**{"decoder" if base.decoder else "encoder": stack}))
        names = {name.partition(".mixer.")[2] for name in model.state_dict()}
        found = {name for name in names if name.endswith(".bias") and "key" in name}
        keys = {"key.bias", "key_global.bias"} if kind is GlobalAttention else {"key.bias"}
        assert found - {"key_norm.bias"} == (keys if key_bias else set())
        assert ("query.bias" in names) == bias
