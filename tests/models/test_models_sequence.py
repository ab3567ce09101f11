"""Recurrent and n-gram models: no later token leaks, padding, packing and caches change nothing."""

from __future__ import annotations

import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.models import NGramModel, RecurrentModel, build
from trivium.models.headed import HeadedModel

VOCABULARY, WIDTH, CELLS, ROWS, LENGTH = 43, 22, 17, 3, 11
DIRECTIONS = {
    "forward": spec.LMHead(tied=True, bias=True),
    "both": spec.MLMHead(),
    "two-way": spec.LMHead(tied=False),
}


def _rnn(cell: str, direction: str) -> spec.RNNSpec:
    return spec.RNNSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        cell=cell,
        d_hidden=CELLS,
        num_layers=2,
        direction=direction,
        heads=(DIRECTIONS[direction],),
    )


def _ngram(order: int, connections: str, tied: bool) -> spec.NGramSpec:
    return spec.NGramSpec(
        vocab_size=VOCABULARY,
        order=order,
        d_model=WIDTH,
        d_hidden=CELLS,
        connections=connections,
        heads=(spec.LMHead(tied=tied, bias=True),),
    )


SPECS: dict[str, spec.RNNSpec | spec.NGramSpec] = {
    f"{cell}-{direction}": _rnn(cell, direction)
    for cell in ("elman", "lstm", "gru")
    for direction in DIRECTIONS
} | {
    "ngram-5": _ngram(5, "hidden", True),
    "ngram-5-direct": _ngram(5, "direct", False),
    "ngram-3-direct-tied": _ngram(3, "direct", True),
    "ngram-2": _ngram(2, "hidden", False),
}
CAUSAL = [name for name, described in SPECS.items() if described.family == "decoder-only"]
BOTH = [name for name in SPECS if name not in CAUSAL]


def model_of(name: str) -> RecurrentModel | NGramModel:
    """Every weight random, biases and norms too."""
    model = build(SPECS[name]).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.empty(weight.shape).normal_(0.0, 0.1, generator=generator))
    return model.requires_grad_(False)


def random_ids(rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(2))


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SPECS)
def test_parameters_are_counted_from_the_description(name):
    described = SPECS[name]
    model = build(described, device="meta")
    assert isinstance(model, HeadedModel)
    assert sum(weight.numel() for weight in model.parameters()) == described.num_parameters
    assert spec.spec_from_dict(described.to_dict()) == described


@pytest.mark.parametrize("name", SPECS)
def test_the_same_seed_gives_the_same_weights(name):
    first, again, other = (build(SPECS[name], seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(weight, again[key]) for key, weight in first.items())
    assert any(not torch.equal(weight, other[key]) for key, weight in first.items())
    assert all(weight.isfinite().all() for weight in first.values())


@pytest.mark.parametrize("name", SPECS)
def test_logits_and_selected_positions(name):
    model, ids = model_of(name), random_ids()
    hidden = model(ids)
    assert model.logits(hidden).shape == (ROWS, LENGTH, VOCABULARY)
    select = torch.tensor([2, 30, 7])
    near(model(ids, select=select), hidden.flatten(0, 1)[select])


@pytest.mark.parametrize("name", CAUSAL)
def test_no_later_token_is_seen(name):
    model, ids = model_of(name), random_ids()
    changed = ids.clone()
    changed[:, 5] = 1 + changed[:, 5] % (VOCABULARY - 1)
    difference = (model(changed) - model(ids)).abs().amax((0, 2))
    assert difference[:5].max() == 0.0
    assert difference[5] > 1e-3
    order = getattr(SPECS[name], "order", None)
    assert (difference[6:] > 0).sum() == (LENGTH - 6 if order is None else order - 2)


@pytest.mark.parametrize("name", BOTH)
def test_both_sides_are_seen(name):
    model, ids = model_of(name), random_ids()
    changed = ids.clone()
    changed[:, 5] = 1 + changed[:, 5] % (VOCABULARY - 1)
    assert ((model(changed) - model(ids)).abs().amax((0, 2)) > 0).all()
    with pytest.raises(SpecError, match="no cache"):
        model.new_cache(2, 5)


@pytest.mark.parametrize("name", CAUSAL)
def test_cached_equals_uncached(name):
    model, ids = model_of(name), random_ids()
    cache = model.new_cache(ROWS, LENGTH)
    pieces = [model(piece, cache=cache) for piece in ids.split([4, 1, 1, 3, 2], 1)]
    near(torch.cat(pieces, 1), model(ids))
    assert (cache.length, cache.max_length) == (LENGTH, LENGTH)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_cache_follows_its_rows(name):
    model, ids, rows = model_of(name), random_ids(), torch.tensor([2, 0, 0, 1])
    cache = model.new_cache(ROWS, LENGTH)
    model(ids[:, :6], cache=cache)
    cache.reorder(rows)
    near(model(ids[rows, 6:], cache=cache), model(ids)[rows, 6:])


@pytest.mark.parametrize("name", CAUSAL)
def test_padding_on_the_left_changes_nothing(name):
    """As batched generation has it: prompts of several lengths that end together."""
    model, ids, prompt = model_of(name), random_ids(), 7
    left = torch.tensor([5, 0, 2])
    mask = torch.arange(LENGTH) >= left[:, None]
    cache = model.new_cache(ROWS, LENGTH)
    found = [model(ids[:, :prompt], attention_mask=mask[:, :prompt], cache=cache)]
    for place in range(prompt, LENGTH):
        piece = ids[:, place : place + 1]
        found.append(model(piece, attention_mask=mask[:, : place + 1], cache=cache))
    hidden = torch.cat(found, 1)
    for row, start in enumerate(left.tolist()):
        near(hidden[row, start:], model(ids[row : row + 1, start:])[0])


@pytest.mark.parametrize("name", SPECS)
def test_padding_on_the_right_changes_nothing(name):
    model, ids = model_of(name), random_ids()
    mask = torch.arange(LENGTH) < torch.tensor([6, LENGTH, 1])[:, None]
    hidden = model(ids, attention_mask=mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        near(hidden[row, :length], model(ids[row : row + 1, :length])[0])


@pytest.mark.parametrize("name", SPECS)
def test_packed_equals_separate(name):
    model, ids = model_of(name), random_ids()
    documents = torch.tensor([[1] * 4 + [2] * 7, [1] * 11, [1] * 3 + [2] * 3 + [0] * 5])
    hidden = model(ids, document_ids=documents)
    for row, start, stop in ((0, 0, 4), (0, 4, 11), (1, 0, 11), (2, 0, 3), (2, 3, 6)):
        near(hidden[row, start:stop], model(ids[row : row + 1, start:stop])[0])


@pytest.mark.parametrize("cell", ["elman", "lstm", "gru"])
def test_two_ways_see_one_side_each(cell):
    model, ids = model_of(f"{cell}-two-way"), random_ids()
    assert isinstance(model, RecurrentModel)
    found = model.two_ways(ids)
    assert found.shape == (ROWS, 2, LENGTH, WIDTH)
    near(found[:, 0], model(ids))
    changed = ids.clone()
    changed[:, 5] = 1 + changed[:, 5] % (VOCABULARY - 1)
    moved = (model.two_ways(changed) - found).abs().amax((0, 3)) > 0
    assert moved[0].tolist() == [place >= 5 for place in range(LENGTH)]
    assert moved[1].tolist() == [place <= 5 for place in range(LENGTH)]
    documents = torch.tensor([[1] * 4 + [2] * 7])
    packed = model.two_ways(ids[:1], document_ids=documents)
    near(packed[:, :, 4:], model.two_ways(ids[:1, 4:]))


def test_what_a_sequence_model_does_not_take_is_refused():
    ids = random_ids()
    for name in ("lstm-forward", "ngram-5"):
        model = model_of(name)
        with pytest.raises(SpecError, match="token types"):
            model(ids, token_type_ids=ids)
        with pytest.raises(SpecError, match="one text a row"):
            model(ids, document_ids=ids, cache=model.new_cache(ROWS, LENGTH))
    forward = model_of("lstm-forward")
    assert isinstance(forward, RecurrentModel)
    with pytest.raises(SpecError, match="two-way"):
        forward.two_ways(ids)


def test_task_heads_read_a_recurrent_encoder():
    heads = (
        spec.ClassifierHead(num_labels=5, pooling="mean"),
        spec.TaggerHead(num_labels=3),
        spec.SpanHead(),
    )
    model = build(SPECS["gru-both"].replace(heads=heads)).eval()
    hidden = model(random_ids())
    assert model.logits(hidden, head="classifier").shape == (ROWS, 5)
    assert model.logits(hidden, head="tagger").shape == (ROWS, LENGTH, 3)
    assert model.logits(hidden, head="span").shape == (ROWS, LENGTH, 2)


def test_dropout_is_on_in_training_only():
    described = SPECS["lstm-forward"].replace(dropout=0.3)
    model, ids = build(described), random_ids()
    torch.manual_seed(0)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))
