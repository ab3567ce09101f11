"""Permutation language modelling: what is predicted, what is seen, and that it is learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from double import double_precision
from small_models import VOCABULARY, WIDTH, random_ids, random_model, small_spec

from trivium import spec
from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.models import build
from trivium.objectives import default_objective, to_device
from trivium.objectives.permutation import Permutation
from trivium.presets import presets
from trivium.spec import XLNetPositions
from trivium.text.vocabulary import Vocabulary

VOCAB = Vocabulary(size=VOCABULARY, special_ids=(0, 1), pad_id=0, mask_id=1)
CPU = torch.device("cpu")


def xlnet() -> spec.TransformerSpec:
    attention = spec.Attention(num_heads=3, head_dim=10, bias=False, positions=XLNetPositions())
    encoder = small_spec("bert").encoder
    assert encoder is not None
    return spec.TransformerSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(query_stream=True),
        encoder=encoder.with_layers(mixer=attention),
        heads=(spec.MLMHead(),),
    )


def test_targets_are_a_sixth_in_a_random_order_and_specials_are_known_in_it():
    generator = np.random.default_rng(0)
    ids = generator.integers(2, VOCABULARY, (61, 512))
    ids[:, ::50] = 1
    rows = RowBatch(ids, np.full(61, 512) - np.arange(61))
    batch = Permutation(perm_size=128).prepare(rows, RowRandom(7, np.arange(61)), VOCAB)
    order, predicted, labels = batch.order, batch.predicted, batch.labels
    assert order is not None
    assert predicted is not None
    assert labels is not None
    is_asked = labels != IGNORE_INDEX
    share = is_asked.sum() / (rows.lengths.sum() * 0.98)
    assert share == pytest.approx(1 / 6, rel=0.06)
    for row in range(61):
        columns = predicted[row][is_asked[row]]
        assert (labels[row][is_asked[row]] == ids[row, columns]).all()
        unknown = np.flatnonzero(order[row])
        specials = np.flatnonzero((ids[row] == 1) & (np.arange(512) < rows.lengths[row]))
        assert {*unknown} == {*columns} | {*specials}
        assert not {*columns} & {*specials}
        assert len({*order[row, unknown]}) == len(unknown)
        parts = unknown[order[row, unknown].argsort()] // 128
        assert (np.diff(parts) >= 0).all()
        # Inside a part the order is random: about half of the neighbours are in reverse.
        assert 0.2 < (np.diff(unknown[order[row, unknown].argsort()]) < 0).mean() < 0.7


@double_precision()
def test_no_token_sees_its_own_content_before_it_is_known():
    model, ids = random_model(xlnet()), random_ids(1, 11)
    order = torch.tensor([[0, 3, 0, 1, 5, 2, 0, 4, 0, 0, 0]])
    columns = torch.arange(11)[None]
    with torch.no_grad():
        before = model(ids, order=order, predicted=columns)[0]
        hidden = {}
        for changed in range(11):
            other = ids.clone()
            other[0, changed] = (ids[0, changed] + 1) % VOCABULARY
            moved = (model(other, order=order, predicted=columns)[0] - before).abs().amax(1) > 1e-9
            hidden[changed] = moved
    for changed, moved in hidden.items():
        assert torch.equal(moved, order[0] > order[0, changed]), changed


@double_precision()
def test_one_batch_is_learned_by_heart():
    model = build(xlnet(), seed=0)
    ids = random_ids(4, 24).numpy()
    rows = RowBatch(np.maximum(ids, 2), np.full(4, 24))
    objective = Permutation()
    batch = to_device(objective.prepare(rows, RowRandom(0, np.arange(4)), VOCAB), CPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        loss = objective.loss(model, batch)["loss"] / len(batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5


def test_it_is_for_models_that_can_be_asked():
    assert isinstance(default_objective(presets["xlnet-tiny"]), Permutation)
    with pytest.raises(RecipeError, match="in any order: use xlnet-mini"):
        Permutation().heads(presets["bert-tiny"])
    Permutation(carry_state=True).heads(presets["xlnet-tiny"])
    with pytest.raises(RecipeError, match="whose state continues from row to row"):
        Permutation(carry_state=True).heads(xlnet())
