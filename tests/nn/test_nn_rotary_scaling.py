"""Scaled rotary positions: against `transformers`, in slots of a cache, and of one's own kind."""

from __future__ import annotations

import json
from typing import Literal

import pytest
import torch
from own_kinds import own_kinds
from small_models import MAX_LENGTH, SPECS, VOCABULARY, random_ids, random_model
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from trivium import spec
from trivium.errors import SpecError
from trivium.interop.convert import to_hugging_face
from trivium.nn.positions.rotary import RotaryPositions
from trivium.nn.positions.sinusoidal import frequencies
from trivium.nn.sequence_info import SequenceInfo

ORIGINAL = 6
FACTORS = {"short_factor": (1.0, 1.3, 2.0, 3.0, 5.0), "long_factor": (1.0, 2.0, 4.0, 8.0, 9.0)}
DYNAMIC = spec.DynamicScaling(factor=4.0, original_max_length=ORIGINAL)
LONG_ROPE = spec.LongRopeScaling(factor=4.0, original_max_length=ORIGINAL, **FACTORS)


def theirs(scaling, base, head_dim, length):
    """The frequencies and the attention factor of `transformers`."""
    names = {
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
        "original_max_length": "original_max_position_embeddings",
    }
    numbers = scaling.model_dump(mode="json", exclude_none=True)
    rope = {names.get(name, name): value for name, value in numbers.items()}
    kind = rope.pop("kind")
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=rope.get("original_max_position_embeddings", 2048),
        rope_parameters={"rope_type": kind, "rope_theta": base, **rope},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, None, length)


def test_frequencies_and_attention_factors_are_those_of_transformers():
    for head_dim in (8, 10, 64, 128):
        pairs = torch.arange(head_dim // 2)
        own = {"short_factor": (1 + 0.1 * pairs).tolist(), "long_factor": (2.0 + pairs).tolist()}
        for scaling in (
            spec.LinearScaling(factor=3.0),
            spec.Llama3Scaling(factor=8.0, original_max_length=128),
            spec.DynamicScaling(factor=2.5, original_max_length=128),
            spec.YarnScaling(factor=4.0, original_max_length=128),
            spec.YarnScaling(factor=40.0, original_max_length=4096, truncate=False),
            spec.YarnScaling(factor=16.0, original_max_length=128, beta_fast=8.0, beta_slow=2.0),
            spec.YarnScaling(factor=4.0, original_max_length=9, mscale=0.7, mscale_all_dim=1.3),
            spec.YarnScaling(factor=4.0, original_max_length=128, attention_factor=1.7),
            spec.YarnScaling(factor=0.5, original_max_length=128),
            spec.LongRopeScaling(factor=4.0, original_max_length=128, **own),
            spec.LongRopeScaling(factor=1.0, original_max_length=128, attention_factor=0.8, **own),
        ):
            for base in (100.0, 10_000.0, 5e6):
                for length in (1, 127, 128, 129, 500):
                    given = torch.tensor([[float(length)]]) if scaling.needs_length else None
                    found, factor = scaling.rescale(frequencies(base, head_dim), base, given)
                    expected, multiplier = theirs(scaling, base, head_dim, length)
                    case = str((scaling, head_dim, base, length))
                    found = found.view(-1)
                    # Those that most models have are rounded alike, the others to 3 ulp.
                    rtol = 0.0 if scaling.kind in ("linear", "llama3") else 3e-7
                    torch.testing.assert_close(found, expected, rtol=rtol, atol=0.0, msg=case)
                    assert factor == pytest.approx(multiplier, rel=1e-12), case


def test_the_attention_factor_multiplies_turned_dimensions_alone():
    scaling = spec.YarnScaling(factor=4.0, original_max_length=128, attention_factor=1.7)
    x, sequence = torch.randn(2, 3, 7, 12), SequenceInfo.of_length(7)
    turned = []
    for each in (scaling, scaling.replace(attention_factor=1.0)):
        rotary = spec.Rotary(partial_rotary_factor=0.5, scaling=each)
        module = RotaryPositions(spec.Attention(num_heads=3, head_dim=12, positions=rotary), 5)
        turned.append(module.apply_rotary(x, module.prepare(sequence, sequence, None)))
    torch.testing.assert_close(turned[0][..., :6], 1.7 * turned[1][..., :6])
    assert torch.equal(turned[0][..., 6:], x[..., 6:])


def test_factors_that_do_not_fit_the_head_are_refused():
    with pytest.raises(SpecError, match=r"needs 6 short and long factors.*not \(5, 5\)"):
        spec.Attention(num_heads=3, head_dim=12, positions=spec.Rotary(scaling=LONG_ROPE))


def model_with(scaling, **changes):
    """A small LLaMA whose every weight is random."""
    llama = SPECS["llama"]
    positions = spec.Rotary(base=100.0, scaling=scaling)
    mixer = llama.decoder.mixers[0].replace(positions=positions, **changes)
    return random_model(llama.replace(decoder=llama.decoder.with_layers(mixer=mixer)))


@torch.no_grad()
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("scaling", [DYNAMIC, LONG_ROPE], ids=lambda each: each.kind)
def test_a_row_has_its_own_length(scaling):
    """Whatever rows, padding or packed documents are beside it."""
    model, ids = model_with(scaling), random_ids(3, 11)
    lengths = torch.tensor([11, 4, 8])
    real = torch.arange(11) < lengths[:, None]
    together = model(ids, attention_mask=real.long())
    packed_ids = torch.cat([row[:length] for row, length in zip(ids, lengths, strict=True)])[None]
    documents = torch.repeat_interleave(torch.tensor([1, 5, 2]), lengths)[None]
    columns = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = model(packed_ids, document_ids=documents, position_ids=columns)[0].split([11, 4, 8])
    cached = model(ids, cache=model.new_cache(3, MAX_LENGTH), lengths=lengths)
    alone = [model(row[None, :length])[0] for row, length in zip(ids, lengths, strict=True)]
    for row, length in enumerate(lengths):
        for found in (together[row, :length], packed[row], cached[row, :length]):
            torch.testing.assert_close(found, alone[row], rtol=1e-9, atol=1e-9)
    shorter = model(ids[:1, :5])[0]
    assert (shorter - alone[0][:5]).abs().max() > 1e-3  # another length is another model


@torch.no_grad()
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("scaling", [DYNAMIC, LONG_ROPE], ids=lambda each: each.kind)
def test_later_tokens_have_the_length_so_far(scaling):
    """In every slot its own, also when copied, taken back or used again, and in chunks."""
    model, ids, lengths = model_with(scaling), random_ids(3, 17), [9, 4, 6]
    expected = []
    for row, length in zip(ids, lengths, strict=True):  # alone, one token after another
        cache, columns = model.new_cache(1, MAX_LENGTH), row[None]
        parts = [model(columns[:, :length], cache=cache)]
        parts += [model(columns[:, at : at + 1], cache=cache) for at in range(length, 17)]
        expected.append(torch.cat(parts, 1)[0])
        torch.testing.assert_close(parts[0], model(columns[:, :length]))
    whole = model(ids[1:2])[0]  # whose first keys have the frequencies of 17 tokens
    assert (whole[4:] - expected[1][4:]).abs().max() > 1e-3
    slots = torch.tensor([2, 0, 3])
    cache = model.new_cache(5, MAX_LENGTH)
    model(random_ids(5, 13, seed=3), cache=cache)  # other texts, which are forgotten
    for slot in range(5):
        cache.free(slot)
    model(ids[:, :9], cache=cache, slots=slots, lengths=torch.tensor(lengths))

    def check_next(slots, rows, count):
        starts = cache.lengths[slots].tolist()
        pairs = list(zip(rows, starts, strict=True))
        new = torch.stack([ids[row, at : at + count] for row, at in pairs])
        found = model(new, cache=cache, slots=slots)
        wanted = torch.stack([expected[row][at : at + count] for row, at in pairs])
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)

    for count in (1, 1, 2):
        check_next(slots, (0, 1, 2), count)
    cache.copy(torch.tensor([2, 3]), torch.tensor([3, 1]))
    check_next(torch.tensor([3, 1]), (0, 2), 1)
    cache.crop(slots[:2], torch.tensor([7, 3]))
    check_next(torch.tensor([2, 0, 3, 1]), (0, 1, 0, 2), 2)
    cache.free(0)
    model(ids[2:, :6], cache=cache, slots=torch.tensor([0]))
    check_next(torch.tensor([0, 2]), (2, 0), 3)


def define_slower() -> spec.RotaryScaling:
    class Slower(spec.RotaryScaling):
        """Frequencies divided by the root of the length of the text."""

        needs_length = True
        kind: Literal["slower"] = "slower"
        attention_factor: float = 1.5

        def rescale(self, frequency, base, length):
            return frequency / length.sqrt(), self.attention_factor

    return Slower()


@torch.no_grad()
@pytest.mark.usefixtures("double_precision")
def test_a_scaling_of_ones_own():
    with own_kinds():
        model, ids = model_with(define_slower()), random_ids(2, 9)
        described = model.spec
        assert spec.Spec.from_dict(json.loads(json.dumps(described.to_dict()))) == described
        assert "slower" in str(described.to_dict())
        plain = model_with(spec.LinearScaling(factor=3.0), scale=1.5**2 * 10**-0.5)
        torch.testing.assert_close(model(ids), plain(ids), rtol=1e-6, atol=1e-6)
        assert (model(ids[:, :7]) - plain(ids[:, :7])).abs().max() > 1e-3
        with pytest.raises(SpecError, match='scaling of kind "slower"'):
            to_hugging_face(model)
        assert model(ids % VOCABULARY, cache=model.new_cache(2, MAX_LENGTH)).isfinite().all()
