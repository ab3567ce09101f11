"""Kinds that a user defines: a model of them is built, saved, trained and cached as any other."""

from __future__ import annotations

import json
from typing import ClassVar, Literal

import pytest
import torch
from own_kinds import own_kinds
from small_models import MAX_LENGTH, SPECS, VOCABULARY, WIDTH, random_ids, random_model

from trivium import nn, spec
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.nn.mixers import MixerModule
from trivium.nn.positions import PositionsModule, distances
from trivium.nn.state import State

pytestmark = pytest.mark.usefixtures("double_precision")


def define_fading() -> spec.Mixer:
    class Fading(spec.Mixer):
        """h_t = r h_t-1 + x_t, and an output matrix."""

        supports_encoder: ClassVar[bool] = False
        kind: Literal["fading"] = "fading"

        def activation_numel(self, length, *, item, on_cpu, dropout):
            return 1

        def build(self, d_model, *, dropout=0.0, num_layers=1):
            return FadingModule(self, d_model)

    class FadingModule(MixerModule):
        parallel = {"output": "row"}  # noqa: RUF012

        def __init__(self, part, width, dropout=0.0, num_layers=1):
            super().__init__(part, width, dropout, num_layers)
            self.rate = torch.nn.Parameter(torch.empty(width))
            self.output = torch.nn.Linear(width, width)

        def reset_parameters(self, generator):
            torch.nn.init.constant_(self.rate, 0.5)

        def new_state(self, slots, length, like):
            return State(like.new_zeros(slots, len(self.rate)))

        def forward(self, x, sequence, state=None, prepared=None):
            h, real = torch.zeros_like(x[:, 0]), sequence.is_token
            if sequence.cache_slice is not None:
                real = sequence.cache_slice.is_token(x.device)
                (h,) = state.read(sequence.cache_slice)
            steps = []
            for t, new in enumerate(x.unbind(1)):
                if sequence.documents is not None and t:
                    same = sequence.documents[:, t] == sequence.documents[:, t - 1]
                    h = h * same[:, None]
                after = self.rate * h + new
                h = after if real is None else torch.where(real[:, t, None].bool(), after, h)
                steps.append(h)
            if sequence.cache_slice is not None:
                state.write(sequence.cache_slice, h)
            return self.output(torch.stack(steps, 1))

    return Fading()


def define_lean() -> spec.Positions:
    class Lean(spec.Positions):
        """The first dimension of a query times the distance of a key."""

        has_scores: ClassVar[bool] = True
        kind: Literal["lean"] = "lean"

        def build(self, attention, d_model):
            return LeanScores(attention, d_model)

    class LeanScores(PositionsModule):
        def prepare(self, sequence, keys, table):
            return 0.1 * distances(sequence, keys)[:, None]

        def scores(self, query, key, prepared):
            return query[..., :1] * prepared

    return Lean()


def define_even() -> spec.Pattern:
    class Even(spec.Pattern):
        kind: Literal["even"] = "even"

        def allows(self, query, key):
            return (query - key) % 2 == 0

    return Even()


def define_counted() -> spec.FeedForward:
    class Counted(spec.FeedForward):
        has_aux_loss: ClassVar[bool] = True
        kind: Literal["counted"] = "counted"
        size: float = 3.0

        def activation_numel(self, width):
            return 1

        def build(self, d_model):
            return CountedNetwork(self, d_model)

    class CountedNetwork(nn.FeedForwardModule):
        def __init__(self, part, width):
            super().__init__(part, width)
            self.weight = torch.nn.Parameter(torch.empty(width, width))

        def forward(self, x, sequence, state):
            return torch.tanh(x @ self.weight), self.part.size * x.square().mean()

    return Counted()


def define_scaled() -> spec.Norm:
    class Scaled(spec.Norm):
        """x / |x| * weight, every weight 2 at first."""

        kind: Literal["scaled"] = "scaled"
        start: float = 2.0

        def build(self, width):
            return ScaledModule(width, self.start)

    class ScaledModule(nn.PartModule):
        def __init__(self, width, start):
            super().__init__()
            self.start, self.weight = start, torch.nn.Parameter(torch.empty(width))

        def reset_parameters(self, generator):
            torch.nn.init.constant_(self.weight, self.start)

        def forward(self, x):
            return torch.nn.functional.normalize(x, dim=-1) * self.weight

    return Scaled()


@pytest.fixture
def described():
    """A decoder of four kinds of one's own: a mixer, positions, a pattern, a feed-forward."""
    decoder = SPECS["gpt2"].decoder
    assert decoder is not None
    with own_kinds():
        attention = decoder.mixers[0].replace(positions=define_lean(), pattern=define_even())
        yield SPECS["gpt2"].replace(
            decoder=decoder.with_layers(
                num_layers=3, mixer=(define_fading(), attention), feed_forward=define_counted()
            )
        )


@torch.no_grad()
def test_a_model_of_ones_own_kinds(described):
    assert spec.Spec.from_dict(json.loads(json.dumps(described.to_dict()))) == described
    assert (described.attention_only, described.supports_packing, described.has_aux_loss) == (
        False,
        True,
        True,
    )
    assert described.activation_bytes(64, 4, on_cpu=True) > 0
    start = build(described, seed=0)
    rows = [block.mixer for block in start.decoder.every_layer if hasattr(block.mixer, "rate")]
    assert len(rows) == 2
    assert all(mixer.rate.eq(0.5).all() for mixer in rows)

    model, ids = random_model(described), random_ids(2, 11)
    hidden, loss = model.read(ids)
    inputs = []
    for block in model.decoder.every_layer:
        block.feed_forward.register_forward_hook(lambda _, args, __: inputs.append(args[0]))
    assert torch.equal(model(ids), hidden)
    torch.testing.assert_close(loss, sum(3.0 * x.square().mean() for x in inputs))
    other = ids.clone()
    other[:, 6] = ids[:, 6] % (VOCABULARY - 1) + 1
    changed = (model(other) - hidden).abs().amax((0, 2)) > 1e-9
    assert changed.tolist() == [False] * 6 + [True] * 5

    cache, slots = model.new_cache(3, MAX_LENGTH), torch.tensor([2, 0])
    assert cache.max_crop == 0
    for _ in range(2):  # the second time in slots that other texts had
        parts = [model(part, cache=cache, slots=slots) for part in ids.split([5, 1, 5], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), hidden, rtol=1e-9, atol=1e-9)
        for slot in (0, 2):
            cache.free(slot)


def test_scores_and_a_pattern_of_ones_own_are_in_attention(described):
    """softmax(q k / sqrt(H) + s) over the keys that are allowed, eagerly and by the kernel."""
    module = nn.AttentionModule(described.decoder.mixers[1], WIDTH)
    x, sequence = torch.randn(2, 7, WIDTH), nn.SequenceInfo.of_length(7, causal=True)
    query, key, value = (
        layer(x).unflatten(-1, (3, 10)).transpose(1, 2)
        for layer in (module.query, module.key, module.value)
    )
    away = torch.arange(7) - torch.arange(7)[:, None]
    scores = query @ key.mT / 10**0.5 + query[..., :1] * 0.1 * away
    scores = scores.masked_fill((away > 0) | (away % 2 == 1), -torch.inf)
    expected = module.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
    for gradient in (True, False):
        with torch.set_grad_enabled(gradient):
            torch.testing.assert_close(module(x, sequence), expected, rtol=1e-9, atol=1e-9)
    weights = module.probabilities(x, sequence)
    torch.testing.assert_close(weights, scores.softmax(-1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "bert", "deberta"])
def test_a_norm_of_ones_own(name, tmp_path):
    """In blocks, after the embedding, of distances, of queries and keys, and in heads."""
    with own_kinds():
        norm, given = define_scaled(), SPECS[name]
        stack = given.decoder or given.encoder
        mixer = stack.mixers[0]
        positions = mixer.positions
        if isinstance(positions, spec.Disentangled):
            positions = positions.replace(norm=norm)
        else:
            mixer = mixer.replace(qk_norm=norm)
        stack = stack.with_layers(norm=norm, mixer=mixer.replace(positions=positions))
        slot = "decoder" if given.decoder else "encoder"
        embedding = given.embedding.replace(norm=norm)
        described = given.replace(**{slot: stack, "embedding": embedding})
        assert described.activation_bytes(64, 4, on_cpu=False) > given.activation_bytes(
            64, 4, on_cpu=False
        )
        model = build(described, seed=0)
        norms = [each for each in model.modules() if type(each).__name__ == "ScaledModule"]
        assert len(norms) >= 5
        assert all(each.weight.eq(2.0).all() for each in norms)

        ids = random_ids(2, 11)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.logits(model(ids)).logsumexp(-1).mean().backward()
        optimizer.step()
        used = [each for each in norms if each.weight.grad is not None]
        assert all(each.weight.ne(2.0).any() for each in used)
        assert len(used) >= 5
        folder = LanguageModel(described, model.float()).save(tmp_path / "model")
        again = load(folder)
        assert again.spec == described
        found, expected = again.module.double()(ids), model.double().eval()(ids)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_kinds_of_other_tests_are_forgotten():
    assert "fading" not in spec.Mixer.kinds
    assert "scaled" not in spec.Norm.kinds


def define_gated() -> spec.Attention:
    """Attention whose heads are multiplied by a gate, sigmoid(x W) (Qiu et al. 2025)."""

    class Gated(spec.Attention):
        kind: Literal["gated-attention"] = "gated-attention"

        def build(self, d_model, **options):
            return GatedModule(self, d_model, **options)

    class GatedModule(nn.AttentionModule):
        def __init__(self, part, width, dropout=0.0, num_layers=1):
            super().__init__(part, width, dropout, num_layers)
            self.gate = torch.nn.Linear(width, part.num_heads * part.head_dim)

        def head_outputs(self, x, sequence, state, prepared):
            return self._split_heads(self.gate(x).sigmoid()) * super().head_outputs(
                x, sequence, state, prepared
            )

    return Gated(num_heads=6, head_dim=10, num_kv_heads=2, positions=spec.Rotary(base=100.0))


@torch.no_grad()
def test_gated_attention_is_a_part_of_ten_lines():
    """It is drawn, saved, cached and packed as any other; only its formula is its own."""
    with own_kinds():
        gated, given = define_gated(), SPECS["llama"]
        described = given.replace(decoder=given.decoder.with_layers(mixer=gated))
        assert spec.Spec.from_dict(json.loads(json.dumps(described.to_dict()))) == described
        assert build(described, seed=0).decoder.layers[1].mixer.gate.weight.std() > 0
        model, ids = random_model(described), random_ids(2, 11)
        mixer, x = model.decoder.layers[0].mixer, torch.randn(2, 11, WIDTH)
        sequence = nn.SequenceInfo.of_length(11, causal=True)
        plain = nn.AttentionModule(mixer.part, WIDTH)
        plain.load_state_dict(mixer.state_dict(), strict=False)
        heads = (
            plain.head_outputs(x, sequence, None, plain.prepare(sequence))
            .transpose(1, 2)
            .flatten(2)
        )
        expected = mixer.output((x @ mixer.gate.weight.T + mixer.gate.bias).sigmoid() * heads)
        torch.testing.assert_close(mixer(x, sequence), expected, rtol=1e-9, atol=1e-9)
        hidden, cache = model(ids), model.new_cache(2, MAX_LENGTH)
        parts = [model(part, cache=cache) for part in ids.split([5, 1, 5], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), hidden, rtol=1e-9, atol=1e-9)
