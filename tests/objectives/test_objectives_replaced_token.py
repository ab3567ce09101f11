"""Replaced tokens: what is drawn, what counts as replaced, what is shared, and both losses."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from small_models import VOCABULARY, small_spec
from torch.nn import functional as F

from trivium import spec
from trivium.data import Batch, RowBatch, RowRandom
from trivium.errors import SpecError
from trivium.models import build
from trivium.models.replaced import (
    GeneratorAndDiscriminator,
    build_with_generator,
    generator_spec,
)
from trivium.objectives import Masked, ReplacedToken, to_device
from trivium.presets import presets

CPU, MASK = torch.device("cpu"), 4


def discriminator_of(name: str = "electra") -> spec.ModelSpec:
    return small_spec(name).replace(heads=(spec.ReplacedTokenHead(),))


def model_of(name: str = "electra", fraction: float = 0.5) -> GeneratorAndDiscriminator:
    """Weights large enough for distributions that are not even."""
    model = build_with_generator(discriminator_of(name), fraction=fraction)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.empty(weight.shape).normal_(0.0, 0.2, generator=generator))
    return model.eval()


def objective_of(probability: float = 0.3, **changes) -> ReplacedToken:
    masked = Masked.for_vocabulary(
        VOCABULARY, MASK, range(5), probability=probability, mask_share=1.0, random_share=0.0
    )
    return ReplacedToken(masked, **changes)


def make_rows(rows: int = 5, length: int = 23, lengths=None, documents=None) -> RowBatch:
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (rows, length))
    lengths = np.full(rows, length) if lengths is None else np.array(lengths)
    ids[np.arange(length) >= lengths[:, None]] = 0
    return RowBatch(ids, lengths, documents)


@pytest.mark.parametrize("name", ["electra", "bert", "modernbert"])
@pytest.mark.parametrize("kind", ["full", "padded", "packed"])
def test_both_losses_are_what_the_formula_says(name, kind):
    model, objective = model_of(name), objective_of()
    lengths = [23, 17, 5, 2, 1] if kind == "padded" else None
    documents = np.repeat(np.arange(23) // 8 + 1, 5).reshape(23, 5).T if kind == "packed" else None
    rows = make_rows(lengths=lengths, documents=documents)
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)))
    loss = objective.loss(model, to_device(batch, CPU))

    inputs = {k: torch.from_numpy(v) for k, v in batch.arrays().items()}
    labels, draws = inputs.pop("labels"), inputs.pop("text_labels")
    original = torch.from_numpy(rows.input_ids)
    with torch.no_grad():
        logits = model.generator.logits(model.generator(**inputs)).double()
        told = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        sums = logits.softmax(-1).cumsum(-1)
        drawn = (sums <= draws[..., None]).sum(-1)
        shown = torch.where(labels >= 0, drawn, original)
        scores = model.discriminator.logits(
            model.discriminator(**(inputs | {"input_ids": shown})), head="replaced-token"
        )[..., 0].double()
        replaced = (shown != original).double()
        chance = torch.sigmoid(scores)
        each = -(replaced * chance.log() + (1 - replaced) * (1 - chance).log())
    real = torch.arange(23) < torch.from_numpy(rows.lengths)[:, None]
    (other,) = loss.others
    assert (loss.name, other.name, other.weight) == ("generator", "discriminator", 50.0)
    assert (loss.count, other.count) == objective.counts(batch)
    assert objective.counts(batch) == (int((labels >= 0).sum()), int(real.sum()))
    assert loss.sum.item() == pytest.approx(told.item(), rel=1e-5)
    assert other.sum.item() == pytest.approx(each[real].sum().item(), rel=1e-5)
    assert 0 < replaced.sum() <= loss.count


def test_draws_have_the_generators_probabilities():
    model = model_of()
    hidden = 2.0 * torch.randn(1, model.generator.spec.d_model)
    count = 60_013
    draws = torch.from_numpy(RowRandom(0, [5]).uniform(count, 16)[0].astype(np.float32))
    drawn = model.sample(hidden.expand(count, -1), draws)
    expected = model.generator.logits(hidden)[0].double().softmax(-1).tolist()
    found = torch.bincount(drawn, minlength=VOCABULARY).tolist()
    for times, share in zip(found, expected, strict=True):
        assert abs(times - count * share) < 5 * math.sqrt(count * share * (1 - share)) + 1
    assert max(expected) > 0.1


@pytest.mark.parametrize("draw", [0.0, 1.0 - 2.0**-24])
def test_the_outermost_draws_stay_within_the_vocabulary(draw):
    model = model_of()
    hidden = 9.0 * torch.ones(1, model.generator.spec.d_model)
    assert 0 <= int(model.sample(hidden, torch.tensor([draw]))) < VOCABULARY


def test_what_has_no_probability_is_never_drawn():
    model = model_of()
    with torch.no_grad():
        model.generator.get_parameter("heads.mlm.bias")[:5] = -1e4
    hidden = torch.zeros(1, model.generator.spec.d_model)
    assert int(model.sample(hidden, torch.zeros(1))) == 5


def test_large_vocabularies_are_sampled_in_pieces(monkeypatch):
    model = model_of()
    hidden, draws = torch.randn(101, model.generator.spec.d_model), torch.rand(101)
    whole = model.sample(hidden, draws)
    monkeypatch.setattr("trivium.models.replaced._SAMPLED_AT_ONCE", 5 * VOCABULARY)
    assert torch.equal(model.sample(hidden, draws), whole)
    assert len(model.sample(hidden[:0], draws[:0])) == 0


def test_a_token_drawn_right_is_not_replaced():
    """A generator that is always right leaves nothing to find."""
    model, objective = model_of(), objective_of()
    rows = RowBatch(np.full((5, 23), 7), np.full(5, 23))
    bias = model.generator.get_parameter("heads.mlm.bias")
    with torch.no_grad():
        bias[7] = 1e4
    batch = to_device(objective.prepare(rows, RowRandom(0, np.arange(5))), CPU)
    (found,) = objective.loss(model, batch).others
    true = torch.from_numpy(rows.input_ids)
    scores = model.discriminator.logits(model.discriminator(true), head="replaced-token")
    assert found.sum.item() == pytest.approx(F.softplus(scores).sum().item(), rel=1e-5)


def test_the_split_of_a_batch_changes_nothing():
    model, objective = model_of(), objective_of()
    rows = make_rows(lengths=[23, 17, 5, 2, 1])
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)))
    with torch.no_grad():
        whole = objective.loss(model, to_device(batch, CPU))
        parts = [objective.loss(model, to_device(batch.rows(i, i + 2), CPU)) for i in (0, 2, 4)]
    for n in (0, 1):
        assert sum(p.terms[n].count for p in parts) == whole.terms[n].count
        together = sum(float(p.terms[n].sum) for p in parts)
        assert together == pytest.approx(float(whole.terms[n].sum), rel=1e-5)


def test_the_noise_of_a_row_is_its_own():
    objective, rows = objective_of(), make_rows(lengths=[23, 17, 5, 2, 1])
    positions = np.array([8, 2**40, 3, 0, 77])
    whole = objective.prepare(rows, RowRandom(1, positions))
    for row, length in enumerate(rows.lengths):
        alone = RowBatch(rows.input_ids[row : row + 1, :length], rows.lengths[row : row + 1])
        single = objective.prepare(alone, RowRandom(1, positions[row : row + 1]))
        for name in ("input_ids", "labels", "text_labels"):
            assert (getattr(single, name)[0] == getattr(whole, name)[row, :length]).all()
    assert whole.text_labels is not None
    assert whole.text_labels.dtype == np.float32
    assert whole.text_labels.max() < 1.0


@pytest.mark.parametrize("length", [1, 2, 3])
def test_rows_without_a_masked_token(length):
    model, objective = model_of(), objective_of(0.0)
    batch = objective.prepare(make_rows(2, length), RowRandom(0, [0, 1]))
    loss = objective.loss(model, to_device(batch, CPU))
    assert loss.count == 0
    assert loss.sum.item() == 0.0
    assert loss.others[0].count == 2 * length
    assert loss.others[0].sum.isfinite()


def test_a_row_of_special_tokens_alone():
    rows = RowBatch(np.full((2, 7), 3), np.full(2, 7))
    batch = objective_of(0.9).prepare(rows, RowRandom(0, [0, 1]))
    assert objective_of(0.9).counts(batch) == (0, 14)


def test_gradients_reach_what_they_should():
    """Of the discriminator's loss nothing goes to the generator but through what they share."""
    model, objective = model_of().train(), objective_of()
    batch = to_device(objective.prepare(make_rows(), RowRandom(0, np.arange(5))), CPU)
    loss = objective.loss(model, batch)
    loss.others[0].sum.backward()
    assert all(weight.grad is None for weight in model.generator.parameters())
    assert all(weight.grad is not None for weight in model.discriminator.parameters())
    model.zero_grad(set_to_none=True)
    objective.loss(model, batch).sum.backward()
    assert all(weight.grad is not None for weight in model.generator.parameters())
    shared = {n for n, w in model.discriminator.named_parameters() if w.grad is not None}
    assert shared == {
        "tokens.weight",
        "encoder.embedding.positions.weight",
        "encoder.embedding.token_types.weight",
        "encoder.embedding.norm.weight",
        "encoder.embedding.norm.bias",
    }


def test_what_is_shared_is_kept_once():
    model = model_of()
    names = [name for name, _ in model.named_parameters()]
    assert sorted(names) == sorted(model.state_dict())
    assert not [n for n in names if n.startswith("generator.") and "tokens" in n]
    assert model.generator.tokens is model.discriminator.tokens
    total = sum(weight.numel() for weight in model.parameters())
    described = (model.generator.spec, model.discriminator.spec)
    twice = sum(
        w.numel()
        for n, w in model.discriminator.named_parameters()
        if n == "tokens.weight" or ("embedding" in n and "widen" not in n)
    )
    assert total == sum(one.num_parameters for one in described) - twice
    again = build_with_generator(model.spec, fraction=0.5, seed=9)
    again.load_state_dict(model.state_dict())
    ids = torch.from_numpy(make_rows().input_ids)
    for one, other in ((model.generator, again.generator), (model, again)):
        one, other = (getattr(m, "discriminator", m).eval() for m in (one, other))
        assert torch.equal(one(ids), other(ids))


def test_each_stands_alone_in_the_end():
    model = model_of()
    ids = torch.from_numpy(make_rows().input_ids)
    whole = model.whole_generator().eval()
    assert torch.equal(whole.logits(whole(ids)), model.generator.logits(model.generator(ids)))
    assert {name for name, _ in whole.named_parameters()} == {*build(whole.spec).state_dict()}
    alone = build(model.spec)
    alone.load_state_dict(model.discriminator.state_dict())
    assert torch.equal(alone.eval()(ids), model.discriminator(ids))


@pytest.mark.parametrize(
    ("name", "fraction"),
    [("electra-mini", 1 / 4), ("electra-base", 1 / 3), ("electra-large", 1 / 4)],
)
def test_generators_are_those_of_the_paper(name, fraction):
    found = generator_spec(presets[name], fraction)
    published = presets[f"{name}-generator"]
    assert found.replace(initialization=published.initialization) == published
    assert isinstance(found.initialization, spec.Normal)
    assert isinstance(published.initialization, spec.Normal)
    assert found.initialization.std == pytest.approx(published.initialization.std, rel=0.01)


@pytest.mark.parametrize("name", ["electra-tiny", "electra-small", "bert-mini", "modernbert-mini"])
@pytest.mark.parametrize("fraction", [1 / 8, 1 / 4, 1 / 2, 1.0])
def test_any_encoder_has_a_generator(name, fraction):
    described = presets[name].replace(vocab_size=53, heads=(spec.ReplacedTokenHead(),))
    model = build_with_generator(described, fraction=fraction)
    ids = torch.randint(0, 53, (2, 11))
    assert model.generator.logits(model.generator(ids)).shape == (2, 11, 53)
    assert abs(model.generator.spec.d_model - fraction * described.d_model) <= 16
    assert [*model.blocks][-1] is [*model.discriminator.blocks][-1]


def test_other_models_are_refused():
    with pytest.raises(SpecError, match="encoder"):
        generator_spec(presets["gpt2-tiny"])
    batch = objective_of().prepare(make_rows(), RowRandom(0, np.arange(5)))
    with pytest.raises(SpecError, match="generator"):
        objective_of().loss(build(discriminator_of()), to_device(batch, CPU))


def test_what_is_kept_and_swapped_by_the_masks_is_drawn_anew():
    """With BERT's 80/10/10 too, every chosen token is one that the generator draws."""
    masked = Masked.for_vocabulary(VOCABULARY, MASK, range(5), probability=0.5)
    objective = dataclasses.replace(objective_of(), masked=masked)
    model, batch = model_of(), None
    batch = objective.prepare(make_rows(), RowRandom(0, np.arange(5)))
    assert isinstance(batch, Batch)
    with torch.no_grad():
        model.generator.get_parameter("heads.mlm.bias")[7] = 1e4
    seen = []
    model.discriminator.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"]), with_kwargs=True
    )
    objective.loss(model, to_device(batch, CPU))
    assert batch.labels is not None
    assert (seen[0].numpy()[batch.labels >= 0] == 7).all()
