"""Prefix language modelling: where rows are split, who is asked what, and who sees whom."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from small_models import BOTH, CAUSAL, VOCABULARY, random_ids, small_model
from torch.nn import functional as F

from trivium import spec
from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.errors import SpecError
from trivium.models import build
from trivium.objectives import Causal, PrefixLM, PrefixPairs, to_device

PAD, END, TEXT = 0, 1, 7
CPU = torch.device("cpu")
PAIRS = PrefixPairs(start_id=PAD, end_id=END, pad_id=PAD)


def make_rows(rows: int, length: int, lengths=None) -> RowBatch:
    ids = np.arange(rows * length).reshape(rows, length) + TEXT
    lengths = np.full(rows, length) if lengths is None else np.array(lengths)
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def first_labels(batch: Batch) -> np.ndarray:
    assert batch.labels is not None
    return (batch.labels != NO_LOSS).argmax(1)


def test_splits_are_even_and_the_rest_is_asked():
    count, length = 12_007, 7
    rows = make_rows(count, length)
    batch = PrefixLM().prepare(rows, RowRandom(0, np.arange(count)))
    prefix = first_labels(batch) + 1
    found = np.bincount(prefix, minlength=length)
    assert found[0] == 0
    assert len(found) == length
    for size in range(1, length):
        assert abs(found[size] - count / 6) < 5 * math.sqrt(count * 5 / 36)
    whole = Causal().prepare(rows, RowRandom(0, np.arange(count))).labels
    asked = np.arange(length) >= prefix[:, None] - 1
    assert batch.labels is not None
    assert whole is not None
    assert (batch.labels == np.where(asked, whole, NO_LOSS)).all()
    assert batch.text_labels is None


@pytest.mark.parametrize("both_ways", [True, False])
def test_the_example_of_a_decoder(both_ways):
    rows = RowBatch(np.tile([11, 12, 13, 14, 15], (50, 1)), np.full(50, 5))
    batch = PrefixLM(both_ways=both_ways).prepare(rows, RowRandom(0, np.arange(50)))
    assert batch.labels is not None
    assert [-100, 13, 14, 15, -100] in batch.labels.tolist()
    if both_ways:
        assert batch.text_labels is not None
        assert (batch.text_labels == first_labels(batch) + 1).all()


def test_the_example_of_an_encoder_decoder():
    example = [
        re.findall(rf"^ +{name} +(.*)$", PrefixPairs.__doc__ or "", re.MULTILINE)[0].split()
        for name in ("row", "input_ids", "decoder_input_ids", "labels")
    ]
    known = {"<p>": PAD, "</s>": END}
    known |= {word: index for index, word in enumerate(example[0], TEXT)}
    row, given, *wanted = ([known[word] for word in words] for words in example)
    rows = RowBatch(np.tile(row, (50, 1)), np.full(50, len(row)))
    batch = PAIRS.prepare(rows, RowRandom(0, np.arange(50)))
    assert batch.labels is not None
    assert batch.decoder_input_ids is not None
    padded = zip(
        batch.input_ids[:, : len(given)].tolist(),
        batch.decoder_input_ids[:, : len(wanted[0])].tolist(),
        batch.labels[:, : len(wanted[1])].tolist(),
        strict=True,
    )
    assert (given, *wanted) in padded


def test_nothing_is_lost_between_encoder_and_decoder():
    rows = make_rows(211, 31, np.arange(211) % 31 + 1)
    batch = PAIRS.prepare(rows, RowRandom(0, np.arange(211)))
    assert batch.attention_mask is not None
    assert batch.labels is not None
    assert batch.decoder_input_ids is not None
    sizes = []
    for row, length in enumerate(rows.lengths):
        given = batch.input_ids[row][batch.attention_mask[row] > 0].tolist()
        told = batch.labels[row][batch.labels[row] != NO_LOSS].tolist()
        assert given.pop() == END
        assert (batch.input_ids[row, len(given) + 1 :] == PAD).all()
        if length == 1:
            assert given == [rows.input_ids[row, 0]]
            assert told == []
            continue
        assert told[-1] == END
        assert given
        assert told[:-1]
        assert given + told[:-1] == rows.input_ids[row, :length].tolist()
        read = batch.decoder_input_ids[row, : len(told)].tolist()
        assert read == [PAD, *told[:-1]]
        sizes.append((len(given) + 1, len(told), *PAIRS.lengths(int(length))))
    given, told, expected, expected_told = np.mean(sizes, axis=0)
    assert given == pytest.approx(expected, rel=0.1)
    assert told == pytest.approx(expected_told, rel=0.1)


@pytest.mark.parametrize("objective", [PrefixLM(), PrefixLM(both_ways=True), PAIRS])
def test_the_split_of_a_row_is_its_own(objective):
    rows, positions = make_rows(5, 31, [31, 17, 2, 1, 31]), np.array([8, 2**40, 3, 0, 77])
    whole = objective.prepare(rows, RowRandom(1, positions))
    for row in range(5):
        length = rows.lengths[row]
        alone = RowBatch(rows.input_ids[row : row + 1, :length], rows.lengths[row : row + 1])
        single = objective.prepare(alone, RowRandom(1, positions[row : row + 1]))
        width = single.labels.shape[1]
        assert (single.labels[0] == whole.labels[row, :width]).all()
        assert (whole.labels[row, width:] == NO_LOSS).all()
        shown = single.input_ids[0]
        assert (shown == whole.input_ids[row, : len(shown)]).all()
    other = objective.prepare(rows, RowRandom(2, positions))
    assert other.labels.shape != whole.labels.shape or (other.labels != whole.labels).any()


@pytest.mark.parametrize("lengths", [[1, 1], [2, 1], [3, 2]])
@pytest.mark.parametrize("objective", [PrefixLM(), PrefixLM(both_ways=True)])
def test_short_rows_ask_for_what_there_is(objective, lengths):
    batch = objective.prepare(make_rows(2, 3, lengths), RowRandom(0, [0, 1]))
    model = small_model("gpt2")
    batch = Batch(**batch.arrays() | {"input_ids": batch.input_ids % VOCABULARY})
    for row, length in enumerate(lengths):
        asked = batch.labels[row] != NO_LOSS
        assert asked.sum() >= (length > 1)
        assert not asked[length - 1 :].any()
    if batch.num_labels:
        labels = np.where(batch.labels >= 0, batch.labels % VOCABULARY, NO_LOSS)
        tensors = to_device(Batch(**batch.arrays() | {"labels": labels}), CPU)
        assert objective.loss(model, tensors).sum.isfinite()


@pytest.mark.parametrize("name", CAUSAL)
def test_a_prefix_is_read_both_ways_and_nothing_is_told_early(name):
    """A position sees all of the prefix and what is before it; never a later target."""
    model, ids, length, prefix = small_model(name), random_ids(1, 13), 13, 6
    given = {"prefix_lengths": torch.tensor([prefix])}
    with torch.no_grad():
        before = model(ids, **given)
        seen = torch.zeros(length, length, dtype=torch.bool)
        for place in range(length):
            changed = ids.clone()
            changed[0, place] = ids[0, place] % (VOCABULARY - 1) + 1
            seen[:, place] = (model(changed, **given) != before).any(-1)[0]
    allowed = torch.ones(length, length).tril().bool()
    allowed[:, :prefix] = True
    assert not (seen & ~allowed).any()
    if all(isinstance(a.pattern, spec.Full) for a in model.spec.decoder.attentions):
        assert (seen == allowed).all()


@pytest.mark.parametrize("name", BOTH)
def test_decoders_with_an_encoder_may_have_a_prefix_too(name):
    model, ids = small_model(name), random_ids(1, 7)
    given = {"input_ids": random_ids(1, 5), "prefix_lengths": torch.tensor([3])}
    changed = ids.clone()
    changed[0, 2] = ids[0, 2] % (VOCABULARY - 1) + 1
    with torch.no_grad():
        before, after = (model(decoder_input_ids=i, **given) for i in (ids, changed))
    assert (before != after).any(-1)[0].tolist() == [True] * 7


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_cached_prefix_goes_on_as_it_began(name):
    model, ids = small_model(name), random_ids(2, 11)
    prefix = torch.tensor([7, 7])
    with torch.no_grad():
        whole = model(ids, prefix_lengths=prefix)
        cache = model.new_cache(2, 11)
        parts = [model(ids[:, :7], prefix_lengths=prefix, cache=cache)]
        parts += [model(ids[:, i : i + 1], cache=cache) for i in range(7, 11)]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_the_loss_is_the_cross_entropy_of_the_rest(name, both_ways):
    model, objective = small_model(name), PrefixLM(both_ways=both_ways)
    ids = random_ids(5, 17)
    rows = RowBatch(ids.numpy(), np.array([17, 11, 5, 2, 1]))
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)))
    loss = objective.loss(model, to_device(batch, CPU))
    expected = torch.zeros(())
    for row, length in enumerate(rows.lengths[:4]):
        prefix = int(first_labels(batch)[row]) + 1
        one = ids[row : row + 1, :length]
        given = {"prefix_lengths": torch.tensor([prefix])} if both_ways else {}
        logits = model.logits(model(one, **given))[0]
        expected += F.cross_entropy(logits[prefix - 1 : -1], one[0, prefix:], reduction="sum")
    assert loss.count == batch.num_labels
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)


def test_packed_documents_stay_apart():
    ids = random_ids(1, 11).numpy()
    documents = np.array([[1] * 4 + [2] * 7])
    rows = RowBatch(ids, np.array([11]), documents)
    model, objective = small_model("gpt2"), PrefixLM(both_ways=True)
    batch = objective.prepare(rows, RowRandom(0, [1]))
    tensors = to_device(batch, CPU)
    changed = ids.copy()
    changed[0, 0] = ids[0, 0] % (VOCABULARY - 1) + 1
    with torch.no_grad():
        before = model(**tensors.inputs, prefix_lengths=torch.tensor([6]))
        tensors.inputs["input_ids"] = torch.from_numpy(changed)
        after = model(**tensors.inputs, prefix_lengths=torch.tensor([6]))
    assert (before != after).any(-1)[0].tolist() == [True] * 4 + [False] * 7


def test_what_reads_in_order_has_no_prefix_both_ways():
    described = spec.RNNSpec(
        vocab_size=43,
        d_model=11,
        cell="lstm",
        d_hidden=17,
        num_layers=1,
        heads=(spec.LMHead(tied=False),),
    )
    batch = PrefixLM(both_ways=True).prepare(make_rows(1, 5), RowRandom(0, [0]))
    with pytest.raises(SpecError, match="both_ways"):
        PrefixLM(both_ways=True).loss(build(described), to_device(batch, CPU))
    causal = RowBatch(random_ids(3, 5).numpy(), np.full(3, 5))
    batch = PrefixLM().prepare(causal, RowRandom(0, range(3)))
    assert PrefixLM().loss(build(described), to_device(batch, CPU)).count == batch.num_labels
