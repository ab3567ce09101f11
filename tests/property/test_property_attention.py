"""Who can influence whom: no future leak, padding, packing, the two ways to attend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import (
    BIDIRECTIONAL,
    BOTH,
    CAUSAL,
    DECODERS,
    ONE_STACK,
    SOURCE_LENGTH,
    SPECS,
    VOCABULARY,
    WIDTH,
    inputs_for,
    random_ids,
    small_model,
)

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.nn import attention as attention_module
from trivium.objectives import Causal, Masked, to_device

ROWS, LENGTH = 3, 19
CPU = torch.device("cpu")
quick = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def logits_of(model, **inputs):
    return model.logits(model(**inputs))


def another(ids):
    """Ids that differ from the given ones everywhere."""
    return ids % (VOCABULARY - 1) + 1


def with_another(ids, place):
    changed = ids.clone()
    changed[:, place] = another(ids[:, place])
    return changed


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", DECODERS)
def test_no_token_sees_a_later_one(name, context):
    model, ids = small_model(name), random_ids(ROWS, LENGTH)
    with context():
        before = logits_of(model, **inputs_for(name, ids))
        for place in range(LENGTH):
            after = logits_of(model, **inputs_for(name, with_another(ids, place)))
            assert torch.equal(before[:, :place], after[:, :place]), place
            assert not torch.allclose(before[:, place], after[:, place], atol=1e-3)
            if place + 1 < LENGTH:
                assert not torch.allclose(before[:, place + 1], after[:, place + 1], atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_no_gradient_flows_to_a_later_token(name):
    model, ids = small_model(name), random_ids(1, LENGTH)
    embedded = []
    model.tokens.register_forward_hook(lambda *call: embedded.append(call[-1]))
    logits = logits_of(model, **inputs_for(name, ids))
    for place in (0, 5, LENGTH - 1):
        total = logits[:, place].sum()
        (gradient,) = torch.autograd.grad(total, embedded[-1:], retain_graph=True)
        assert not gradient[:, place + 1 :].any()
        assert gradient[:, place].any()


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_an_encoder_sees_both_ways(name):
    model, ids = small_model(name), random_ids(1, LENGTH)
    with torch.no_grad():
        before, after = (logits_of(model, input_ids=i) for i in (ids, with_another(ids, 7)))
    assert ((before - after).abs().amax(-1)[0] > 1e-6).all()


@pytest.mark.parametrize("name", BOTH)
def test_a_decoder_sees_all_of_the_source_and_the_source_nothing_of_it(name):
    model, ids = small_model(name), random_ids(1, LENGTH)
    inputs = inputs_for(name, ids)
    source = inputs["input_ids"]
    with torch.no_grad():
        before = logits_of(model, **inputs)
        for place in range(SOURCE_LENGTH):
            changed = logits_of(model, **{**inputs, "input_ids": with_another(source, place)})
            assert ((before - changed).abs().amax(-1)[0] > 1e-6).all(), place
        encoded, moved = (model.encode(i) for i in (source, with_another(source, 7)))
        assert ((encoded - moved).abs().amax(-1)[0] > 1e-6).all()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@quick
@given(lengths=st.lists(st.integers(1, LENGTH), min_size=2, max_size=4), filler=st.integers(0, 42))
def test_padding_changes_nothing(name, context, lengths, filler):
    model, longest = small_model(name), max(lengths)
    ids = random_ids(len(lengths), longest)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    inputs = inputs_for(name, torch.where(real, ids, filler), real=real)
    with context():
        together = logits_of(model, **inputs)
        for row, length in enumerate(lengths):
            short = {key: value[row : row + 1, :length] for key, value in inputs.items()}
            if name in BOTH:
                short["input_ids"] = inputs["input_ids"][row : row + 1]
            masks = [key for key in short if key.endswith("mask")]
            alone = logits_of(model, **{k: v for k, v in short.items() if k not in masks})
            torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@quick
@given(lengths=st.lists(st.integers(1, 13), min_size=2, max_size=4), filler=st.integers(0, 42))
def test_padding_of_the_source_changes_nothing(name, context, lengths, filler):
    model, longest = small_model(name), max(lengths)
    source, targets = random_ids(len(lengths), longest, seed=2), random_ids(len(lengths), 7)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    with context():
        together = logits_of(
            model,
            input_ids=torch.where(real, source, filler),
            attention_mask=real.long(),
            decoder_input_ids=targets,
        )
        for row, length in enumerate(lengths):
            alone = logits_of(
                model,
                input_ids=source[row : row + 1, :length],
                decoder_input_ids=targets[row : row + 1],
            )
            torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ONE_STACK)
@quick
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_packed_documents_equal_separate_ones(name, lengths, seed):
    """Inputs, labels and losses of documents packed in a row are those of each alone."""
    model = small_model(name)
    documents = np.repeat(np.arange(1, len(lengths) + 1), lengths)[None]
    ids = random_ids(1, documents.size, seed=seed).numpy()
    rows = RowBatch(ids, np.array([documents.size]), documents)
    objective = Causal() if name in CAUSAL else Masked.for_vocabulary(VOCABULARY, 1, [0, 1])
    packed = objective.prepare(rows, RowRandom(seed, [0]))
    assert packed.labels is not None
    separate, labels = 0.0, 0
    for number in range(1, len(lengths) + 1):
        here = documents[0] == number
        alone = Batch(input_ids=packed.input_ids[:, here], labels=packed.labels[:, here])
        if name in CAUSAL:
            assert alone.labels is not None
            assert alone.labels[0, -1] == NO_LOSS
        loss = objective.loss(model, to_device(alone, CPU))
        separate, labels = separate + loss.sum.item(), labels + loss.count
    together = objective.loss(model, to_device(packed, CPU))
    assert together.count == labels
    assert together.sum.item() == pytest.approx(separate, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", [*BIDIRECTIONAL, *BOTH])
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_packed_sources_equal_separate_ones(name, context):
    model, ids = small_model(name), random_ids(1, 13)
    documents = torch.tensor([[1] * 3 + [2] * 7 + [3] * 3])
    positions = torch.tensor([[*range(3), *range(7), *range(3)]])
    with context():
        packed = model.encode(ids, document_ids=documents, position_ids=positions)
        pieces = [model.encode(piece) for piece in ids.split([3, 7, 3], 1)]
    torch.testing.assert_close(packed, torch.cat(pieces, 1), rtol=1e-4, atol=2e-5)


def test_packed_documents_would_differ_without_their_boundaries():
    model, ids = small_model("llama"), random_ids(1, 10)
    documents = torch.tensor([[1] * 4 + [2] * 6])
    with torch.no_grad():
        apart = logits_of(model, input_ids=ids, document_ids=documents)
        joined = logits_of(model, input_ids=ids)
    assert torch.allclose(apart[:, :4], joined[:, :4], atol=1e-5)
    assert not torch.allclose(apart[:, 4:], joined[:, 4:], atol=1e-2)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_document_in_two_pieces_is_one(name):
    """In a row by itself, where documents may attend one by one, as beside another row."""
    model, ids = small_model(name), random_ids(1, 9).expand(2, -1)
    documents = torch.tensor([[1] * 3 + [2] * 2 + [1] * 4] * 2)
    with torch.no_grad():
        alone = model(ids[:1], document_ids=documents[:1])
        beside = model(ids, document_ids=documents)
    torch.testing.assert_close(alone, beside[:1], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("picked", ["few", "most", "one row"])
def test_the_hidden_states_of_some_positions_are_those_picked_from_all(name, picked):
    """However much of the last layer is skipped for the others, gradients are the same too."""
    selected = {
        "few": torch.tensor([0, 7, 8, 30, 56]),
        "most": torch.arange(0, ROWS * LENGTH)[torch.arange(ROWS * LENGTH) % 5 > 0],
        "one row": torch.tensor([LENGTH, LENGTH + 3]),
    }[picked]
    real = torch.arange(LENGTH) < torch.tensor([[19], [13], [19]])
    found = []
    for chosen in (None, selected):
        model = small_model(name)
        hidden = model(**inputs_for(name, random_ids(ROWS, LENGTH), real=real), select=chosen)
        hidden = hidden if chosen is not None else hidden.flatten(0, 1)[selected]
        (hidden * torch.arange(WIDTH)).sum().backward()
        gradients = {n: w.grad for n, w in model.named_parameters() if w.grad is not None}
        found.append((hidden.detach(), gradients))
    (whole, gradients), (some, some_gradients) = found
    torch.testing.assert_close(some, whole, rtol=1e-4, atol=2e-5)
    assert gradients.keys() == some_gradients.keys()
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for weight_name, gradient in gradients.items():
        difference = (gradient - some_gradients[weight_name]).abs().max()
        assert difference <= 4e-6 * largest, weight_name


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("limit", ["none", "padding", "documents"])
def test_the_explicit_way_equals_the_kernel(name, limit, monkeypatch):
    """With gradients a CPU writes the product out; without them it calls PyTorch's kernel."""
    model, ids = small_model(name), random_ids(ROWS, LENGTH)
    real = torch.arange(LENGTH) < torch.tensor([[19], [11], [5]])
    inputs = inputs_for(name, ids, real=real if limit == "padding" else None)
    if limit == "documents":
        length = inputs["input_ids"].shape[1]
        inputs["document_ids"] = torch.arange(length)[None].expand(ROWS, -1) // 5
    explicit = logits_of(model, **inputs)
    with torch.no_grad():
        kernel = logits_of(model, **inputs)
    monkeypatch.setattr(attention_module, "_EXPLICIT_SCORES", 0)
    kernel_with_gradients = logits_of(model, **inputs)
    seen = real if limit == "padding" else torch.ones_like(real)
    torch.testing.assert_close(explicit[seen], kernel[seen], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(kernel_with_gradients[seen], kernel[seen], rtol=1e-4, atol=2e-5)
