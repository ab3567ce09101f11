"""Causal language modelling: the shift by one, and where it stops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import CAUSAL, VOCABULARY, random_ids, small_model
from torch.nn import functional as F

from trivium import spec
from trivium.data import RowBatch, RowRandom
from trivium.models import build
from trivium.objectives import Causal, to_device

NONE = RowRandom(0, [0])


def rows_of(ids, lengths=None, documents=None):
    ids = np.array(ids)
    return RowBatch(
        ids,
        np.full(len(ids), ids.shape[1]) if lengths is None else np.array(lengths),
        None if documents is None else np.array(documents),
    )


def test_the_example_of_the_docstring():
    """Once upon a time -> upon a time, and nothing for the last."""
    batch = Causal().prepare(rows_of([[11, 12, 13, 14]]), NONE)
    assert batch.input_ids.tolist() == [[11, 12, 13, 14]]
    assert batch.labels.tolist() == [[12, 13, 14, -100]]
    assert list(batch.arrays()) == ["input_ids", "labels"]


def test_truncated_rows_have_no_label_in_their_padding():
    batch = Causal().prepare(
        rows_of([[11, 12, 13, 14], [21, 22, 0, 0], [31, 0, 0, 0]], [4, 2, 1]), NONE
    )
    assert batch.labels.tolist() == [
        [12, 13, 14, -100],
        [22, -100, -100, -100],
        [-100, -100, -100, -100],
    ]
    assert batch.attention_mask is None


def test_documents_kept_apart_do_not_tell_of_each_other():
    batch = Causal().prepare(
        rows_of([[11, 12, 21, 22, 23, 31, 0]], [6], [[1, 1, 2, 2, 2, 3, 0]]), NONE
    )
    assert batch.labels.tolist() == [[12, -100, 22, 23, -100, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2, 0, 0]]
    assert batch.document_ids.tolist() == [[1, 1, 2, 2, 2, 3, 0]]


def test_preparing_leaves_the_rows_alone():
    rows = rows_of([[11, 12, 13]])
    Causal().prepare(rows, NONE)
    assert rows.input_ids.tolist() == [[11, 12, 13]]


@pytest.mark.parametrize("name", CAUSAL)
def test_the_loss_is_the_cross_entropy_of_the_next_tokens(name):
    model, ids = small_model(name), random_ids(3, 17)
    rows = rows_of(ids.numpy(), [17, 11, 2])
    batch = Causal().prepare(rows, NONE)
    loss = Causal().loss(model, to_device(batch, torch.device("cpu")))
    logits = model.logits(model(ids))
    expected = sum(
        F.cross_entropy(logits[row, : length - 1], ids[row, 1:length], reduction="sum")
        for row, length in enumerate((17, 11, 2))
    )
    assert loss.count == 16 + 10 + 1
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)


def test_to_device_keeps_every_array_and_finds_the_labels():
    batch = Causal().prepare(
        rows_of([[11, 12, 21], [31, 32, 33]], [3, 3], [[1, 1, 2], [1, 1, 1]]), NONE
    )
    tensors = to_device(batch, torch.device("cpu"))
    assert set(tensors.inputs) == {"input_ids", "position_ids", "document_ids"}
    for name, tensor in tensors.inputs.items():
        assert tensor.tolist() == getattr(batch, name).tolist()
        assert tensor.dtype == torch.int64
    assert tensors.label_positions.tolist() == [0, 3, 4]
    assert tensors.targets.tolist() == [12, 32, 33]


def test_the_example_of_a_limited_context():
    batch = Causal(context=2).prepare(rows_of([[11, 12, 13, 14]]), NONE)
    assert batch.document_ids.tolist() == [[1, 1, 2, 2]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1]]
    assert batch.labels.tolist() == [[12, 13, 14, -100]]


def test_windows_begin_anew_with_every_document():
    batch = Causal(context=3).prepare(
        rows_of(
            [[11, 12, 13, 14, 21, 22, 23, 24, 25], [31, 32, 0, 0, 0, 0, 0, 0, 0]],
            [9, 2],
            [[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 0, 0, 0, 0, 0, 0, 0]],
        ),
        NONE,
    )
    assert batch.document_ids.tolist() == [[1, 1, 1, 2, 3, 3, 3, 4, 4], [1, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.labels[0].tolist() == [12, 13, 14, -100, 22, 23, 24, 25, -100]
    assert batch.labels[1, :3].tolist() == [32, -100, -100]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_rows_have_windows(length):
    ids = [[11, 12, 13][:length] + [0] * (5 - length)]
    batch = Causal(context=2).prepare(rows_of(ids, [length]), NONE)
    assert batch.num_labels == length - 1
    assert batch.document_ids.tolist() == [[1, 1, 2][:length] + [0] * (5 - length)]


def sequence_model(kind):
    common = {"vocab_size": VOCABULARY, "heads": (spec.LMHead(tied=False),)}
    if kind == "ngram":
        return build(spec.NGramSpec(d_model=7, order=4, d_hidden=13, **common), seed=3).eval()
    described = spec.RNNSpec(d_model=11, cell=kind, d_hidden=17, num_layers=2, **common)
    return build(described, seed=3).eval()


@pytest.mark.parametrize("name", [*CAUSAL, "lstm", "ngram"])
@pytest.mark.parametrize("context", [1, 3, 5])
def test_a_token_is_told_from_so_many_before_it(name, context):
    """A hidden state depends on the tokens of its window up to it, and on nothing else."""
    model = small_model(name) if name in CAUSAL else sequence_model(name)
    batch = Causal(context=context).prepare(rows_of(random_ids(1, 17).numpy()), NONE)
    inputs = to_device(batch, torch.device("cpu")).inputs
    ids = inputs.pop("input_ids")
    seen = torch.zeros(17, 17, dtype=torch.bool)
    with torch.no_grad():
        before = model(ids, **inputs)
        for place in range(17):
            changed = ids.clone()
            changed[0, place] = ids[0, place] % (VOCABULARY - 1) + 1
            seen[:, place] = (model(changed, **inputs) != before).any(-1)[0]
    window = torch.arange(17) // context
    allowed = (window[:, None] == window).tril()
    assert int(allowed.sum(1).max()) == context
    assert not (seen & ~allowed).any()
    # A narrow pattern of the model's own may see less than the window.
    assert seen.diagonal().all()
    if name in ("gpt1", "gpt2", "llama", "alibi", "lstm"):
        assert (seen == allowed).all()
