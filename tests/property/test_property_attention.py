"""Who can influence whom: no future leak, padding, packing, the cache, the two ways to attend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import BIDIRECTIONAL, CAUSAL, SPECS, VOCABULARY, random_ids, small_model

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.nn import attention as attention_module
from trivium.nn.cache import Cache
from trivium.objectives import Causal, Masked, to_device

ROWS, LENGTH = 3, 19
CPU = torch.device("cpu")
quick = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def logits_of(model, ids, **inputs):
    return model.logits(model(ids, **inputs))


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", CAUSAL)
def test_no_token_sees_a_later_one(name, context):
    model, ids = small_model(name), random_ids(ROWS, LENGTH)
    with context():
        before = logits_of(model, ids)
        for place in range(LENGTH):
            changed = ids.clone()
            changed[:, place] = ids[:, place] % (VOCABULARY - 1) + 1
            after = logits_of(model, changed)
            assert torch.equal(before[:, :place], after[:, :place]), place
            assert not torch.allclose(before[:, place], after[:, place], atol=1e-3)
            if place + 1 < LENGTH:
                assert not torch.allclose(before[:, place + 1], after[:, place + 1], atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_no_gradient_flows_to_a_later_token(name):
    model, ids = small_model(name), random_ids(1, LENGTH)
    embedded = []
    model.embedding.tokens.register_forward_hook(lambda *call: embedded.append(call[-1]))
    logits = logits_of(model, ids)
    for place in (0, 5, LENGTH - 1):
        (gradient,) = torch.autograd.grad(logits[:, place].sum(), embedded, retain_graph=True)
        assert not gradient[:, place + 1 :].any()
        assert gradient[:, place].any()


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_an_encoder_sees_both_ways(name):
    model, ids = small_model(name), random_ids(1, LENGTH)
    changed = ids.clone()
    changed[:, 7] = ids[:, 7] % (VOCABULARY - 1) + 1
    with torch.no_grad():
        moved = (logits_of(model, ids) - logits_of(model, changed)).abs().amax(-1)[0]
    assert (moved > 1e-6).all()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@quick
@given(lengths=st.lists(st.integers(1, LENGTH), min_size=2, max_size=4), filler=st.integers(0, 42))
def test_padding_changes_nothing(name, context, lengths, filler):
    model, longest = small_model(name), max(lengths)
    ids = random_ids(len(lengths), longest)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    padded = torch.where(mask, ids, filler)
    with context():
        together = logits_of(model, padded, attention_mask=mask.long())
        for row, length in enumerate(lengths):
            alone = logits_of(model, ids[row : row + 1, :length])
            torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", SPECS)
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


def test_packed_documents_would_differ_without_their_boundaries():
    model, ids = small_model("llama"), random_ids(1, 10)
    documents = torch.tensor([[1] * 4 + [2] * 6])
    with torch.no_grad():
        apart = logits_of(model, ids, document_ids=documents)
        joined = logits_of(model, ids)
    assert torch.allclose(apart[:, :4], joined[:, :4], atol=1e-5)
    assert not torch.allclose(apart[:, 4:], joined[:, 4:], atol=1e-2)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@quick
@given(pieces=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_cached_equals_uncached(name, context, pieces):
    model, total = small_model(name), sum(pieces)
    ids, stack = random_ids(ROWS, total), model.spec.decoder
    with context():
        expected = logits_of(model, ids).detach()
    cache = Cache(stack, ROWS, total, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        found = torch.cat(
            [logits_of(model, piece, cache=cache) for piece in ids.split(pieces, 1)], 1
        )
    assert cache.length == total
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "sliding"])
def test_cached_equals_uncached_with_padding_on_the_left(name):
    """Prompts of several lengths, ending together, as batched generation has them."""
    model, lengths, prompt, total = small_model(name), [7, 4, 1], 7, 12
    ids, stack = random_ids(3, total), model.spec.decoder
    real = torch.arange(total) >= prompt - torch.tensor(lengths)[:, None]
    positions = (real.cumsum(1) - 1).clamp(min=0)
    cache = Cache(stack, 3, total, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        found = []
        for start, stop in [(0, prompt), *((t, t + 1) for t in range(prompt, total))]:
            found.append(
                logits_of(
                    model,
                    ids[:, start:stop],
                    attention_mask=real[:, :stop],
                    position_ids=positions[:, start:stop],
                    cache=cache,
                )
            )
        for row, length in enumerate(lengths):
            skipped = prompt - length
            alone = logits_of(model, ids[row : row + 1, skipped:])[0]
            torch.testing.assert_close(
                torch.cat(found, 1)[row, skipped:], alone, rtol=1e-4, atol=2e-5
            )


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("limit", ["none", "padding", "documents"])
def test_the_explicit_way_equals_the_kernel(name, limit, monkeypatch):
    """With gradients a CPU writes the product out; without them it calls PyTorch's kernel."""
    model, ids = small_model(name), random_ids(ROWS, LENGTH)
    real = torch.arange(LENGTH) < torch.tensor([[19], [11], [5]])
    inputs = {
        "none": {},
        "padding": {"attention_mask": real.long()},
        "documents": {"document_ids": torch.arange(LENGTH)[None].expand(ROWS, -1) // 5},
    }[limit]
    explicit = logits_of(model, ids, **inputs)
    with torch.no_grad():
        kernel = logits_of(model, ids, **inputs)
    monkeypatch.setattr(attention_module, "_EXPLICIT_SCORES", 0)
    kernel_with_gradients = logits_of(model, ids, **inputs)
    seen = real if limit == "padding" else torch.ones_like(real)
    torch.testing.assert_close(explicit[seen], kernel[seen], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(kernel_with_gradients[seen], kernel[seen], rtol=1e-4, atol=1e-5)
