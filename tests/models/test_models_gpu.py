"""Models on a GPU compute what they compute on a CPU, cached and packed into documents too."""

from __future__ import annotations

import pytest
import torch
from small_models import ALL_SPECS, BOTH, GENERATING, inputs_for, random_ids, small_model

from trivium.models import build
from trivium.presets import presets

pytestmark = pytest.mark.gpu


def close(actual, expected, name):
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=1e-3, atol=1e-3, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("name", ALL_SPECS)
@torch.no_grad()
def test_hidden_states_with_padding_and_documents(name):
    real = torch.arange(11) < torch.tensor([[11], [4], [7]])
    documents = torch.arange(11)[None].expand(3, -1) // 4 + 1
    inputs = inputs_for(name, random_ids(3, 11), real=real)
    cases = [(inputs, real)]
    if name not in BOTH and small_model(name).spec.supports_packing:
        packed = {"input_ids": inputs["input_ids"], "document_ids": documents}
        cases.append((packed, torch.ones_like(real)))
    expected = [small_model(name)(**case)[mask] for case, mask in cases]
    model = small_model(name).cuda()
    for (case, mask), hidden in zip(cases, expected, strict=True):
        actual = model(**{key: value.cuda() for key, value in case.items()})
        close(actual[mask.cuda()], hidden, name)


@pytest.mark.parametrize("name", GENERATING)
@torch.no_grad()
def test_cached_equals_uncached(name):
    ids = random_ids(2, 11)
    model, inputs = small_model(name), inputs_for(name, ids)
    expected = model(**inputs)
    model = model.cuda()
    cache = model.new_cache(4, 13)
    slots, key = torch.tensor([3, 1], device="cuda"), "input_ids"
    if name in BOTH:
        cache.set_encoder_output(slots, model.encode(inputs["input_ids"].cuda()))
        key = "decoder_input_ids"
    parts = [
        model(**{key: part.cuda()}, cache=cache, slots=slots) for part in ids.split([5, 1, 5], 1)
    ]
    close(torch.cat(parts, 1), expected, name)
    assert cache.lengths.tolist() == [0, 11, 0, 11]


def training_step(model, rows, length):
    """The hidden states and the gradients of a batch with packed documents or padding."""
    ids = random_ids(rows, length).cuda()
    columns = torch.arange(length, device="cuda").expand(rows, -1)
    inputs = {"input_ids": ids}
    if model.spec.family == "encoder-decoder":
        inputs |= {"decoder_input_ids": ids, "attention_mask": (columns < length // 2).long()}
    else:
        inputs["document_ids"] = columns // 70 + 1
    model.zero_grad()
    hidden = model(**inputs)
    weights = torch.linspace(-1.0, 1.0, hidden.numel(), device="cuda")
    (hidden * weights.view_as(hidden)).mean().backward()
    grads = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return hidden.detach(), grads


def pair(name):
    """Two equal models of a preset on the GPU, without dropout."""
    described = presets[name].replace(vocab_size=64).with_dropout(0.0)
    return build(described, seed=0).cuda(), build(described, seed=0).cuda()


@pytest.fixture
def compiler():
    """Compile from nothing, and restore the limits that `compile_blocks` raises."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, capture_scalar_outputs=False):
        yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # of the compiler, which differ between GPUs
@pytest.mark.parametrize(
    "name", ["bert-tiny", "gpt2-tiny", "t5-tiny", "gemma2-tiny", "mixtral-tiny"]
)
@pytest.mark.parametrize("flex", [False, True])
def test_compiled_blocks(name, flex, compiler):
    model, compiled = pair(name)
    if flex:
        assert compiled.use_flex_attention() == ""
    compiled.compile_blocks(fullgraph=True)
    shapes = [(4, 256), (3, 200), (2, 150)]
    for step, shape in enumerate([*shapes, *shapes]):
        # After a batch of every kind, nothing is compiled again.
        with torch._dynamo.config.patch(error_on_recompile=step >= len(shapes)):
            actual = training_step(compiled, *shape)
        expected = training_step(model, *shape)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
