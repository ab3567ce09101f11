"""Float32 and bfloat16 against float64 of the same weights."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from double import BFLOAT16, FLOAT32, relative_error
from small_models import inputs_for, random_ids, random_model, small_model
from torch import Tensor
from torch.nn import functional as F
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

from trivium import spec
from trivium.errors import SpecError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.nn.loss import linear_cross_entropy
from trivium.nn.norm import build_norm
from trivium.presets import presets
from trivium.text import Tokenizer

SETTINGS = Settings(config={"decoder_start_token_id": 0})


@functools.cache
def wordpiece() -> Tokenizer:
    """A tokenizer with the special tokens of encoders."""
    texts = ["The weather was cloudy yesterday, but today it's rainy."] * 5
    return Tokenizer.train("wordpiece", texts=texts, vocab_size=199, progress=False)


def logits_in_steps(model, name: str, inputs: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The logits of `ids` [B, T], decoded token by token."""
    cache = model.new_cache(*ids.shape)
    # A cache on a CPU is float32 at least, whatever the model's precision.
    assert cache.states[0].tensors[0].dtype == torch.promote_types(model.dtype, torch.float32)
    if name == "t5":
        cache.set_encoder_output(torch.arange(len(ids)), model.encode(inputs["input_ids"]))
        steps = [model(decoder_input_ids=i, cache=cache) for i in ids.split(1, 1)]
    else:
        steps = [model(i, cache=cache) for i in ids.split(1, 1)]
    return model.logits(torch.cat(steps, 1))


@pytest.mark.parametrize("name", ["llama", "t5"])
@torch.no_grad()
def test_models_in_low_precision_are_roughly_the_same(name):
    ids = random_ids(2, 11)
    model, inputs = small_model(name), inputs_for(name, ids)
    exact = small_model(name).double()
    expected = exact.logits(exact(**inputs))
    single = model.logits(model(**inputs))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model.logits(model(**inputs))
    low = small_model(name).bfloat16()
    pure = low.logits(low(**inputs))
    cached = logits_in_steps(low, name, inputs, ids)
    assert [each.dtype for each in (single, pure)] == [torch.float32, torch.bfloat16]
    assert relative_error(single, expected) < FLOAT32
    for actual in (mixed, pure, cached):
        assert relative_error(actual, expected) < BFLOAT16


def test_the_loss_sums_in_float32():
    targets = torch.randint(31, (13,))
    for dtype, autocast in ((torch.float32, True), (torch.bfloat16, False)):
        shapes = ((13, 7), (31, 7), (31,))
        features, weight, bias = inputs = [
            torch.randn(shape).to(dtype).requires_grad_() for shape in shapes
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = linear_cross_entropy(features, weight, bias, targets)
        actual = [loss, *torch.autograd.grad(loss, inputs)]
        assert [tensor.dtype for tensor in actual] == [torch.float32] + [dtype] * 3
        double = [tensor.detach().double().requires_grad_() for tensor in inputs]
        total = F.cross_entropy(F.linear(*double), targets, reduction="sum")
        expected = [total, *torch.autograd.grad(total, double)]
        for one, exact in zip(actual, expected, strict=True):
            assert relative_error(one, exact) < BFLOAT16
        assert loss.item() == pytest.approx(total.item(), rel=0.03)


def run_everything(lm: LanguageModel) -> set[str]:
    """Use the model in every way that it supports. Returns the names of these ways."""
    text, able = "The weather was cloudy", set(lm.capabilities)
    both = lm.spec.family == "encoder-decoder"
    ids = [[5 + i % 89 for i in range(min(193, lm.max_length or 193))]]
    decoder = {"decoder_input_ids": [[0, 5]]} if both else {}
    calls = {
        "logits": lambda: lm.logits(ids, **decoder),
        "generate": lambda: lm.generate([text, "It"], max_new_tokens=5, temperature=0.7, seed=3),
        "translate": lambda: lm.translate([text, "It"], num_beams=2, max_new_tokens=5),
        "fill_mask": lambda: lm.fill_mask("The [MASK] was"),
        "score": lambda: lm.score("It", text) if both else lm.score(text),
        "classify": lambda: lm.classify(text),
        "next_sentence": lambda: lm.next_sentence(text, "It rained."),
        "tag": lambda: lm.tag([text.split()]),
        "answer": lambda: lm.answer("What?", text),
        "embed": lambda: lm.embed([text, "It"]),
    }
    for name in able:
        calls[name]()
    if "embed" in able:
        lm.embed_tokens([text])
    with contextlib.suppress(SpecError):  # no layer of it is attention
        lm.attention_weights(ids, **decoder)
    if "generate" in able:
        assert "".join(lm.stream(text, max_new_tokens=3, seed=3)) is not None
    return able


TASK_HEADS = {
    "classifier": spec.ClassifierHead(num_labels=2, pooling="mean"),
    "tagger": spec.TaggerHead(num_labels=2),
    "span": spec.SpanHead(),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [name for name in presets if name.endswith("-tiny")])
@pytest.mark.filterwarnings("ignore")
def test_every_family_does_all_that_it_can_in_low_precision(name, dtype):
    """Also with the heads of tasks."""
    tokenizer = wordpiece()
    described = presets[name].replace(vocab_size=tokenizer.vocab_size)
    lm = LanguageModel(described, random_model(described).to(dtype), tokenizer, SETTINGS)
    assert run_everything(lm)
    for head in TASK_HEADS.values():
        try:
            with_head = described.with_heads((head,))
        except SpecError:
            continue
        model = LanguageModel(with_head, random_model(with_head).to(dtype), tokenizer, SETTINGS)
        run_everything(model)


@pytest.mark.parametrize("seed", range(3))
def test_gemmas_norm_is_as_exact_as_theirs_in_bfloat16(seed):
    generator = torch.Generator().manual_seed(seed)
    theirs = Gemma2RMSNorm(37, eps=1e-6).bfloat16()
    theirs.weight.data.normal_(0.0, 0.3, generator=generator)
    ours = build_norm(spec.RMSNorm(eps=1e-6, offset=1), 37).bfloat16()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(501, 37, generator=generator).bfloat16()
    exact = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6)
    exact = exact * (1.0 + theirs.weight.double())
    assert ours(x).dtype == torch.bfloat16
    for error in (lambda y: (y - exact) / exact, lambda y: ((y - exact) / exact).mean(0)):
        # Roundings that differ by one cancel out in the mean of many rows, a rounded weight not.
        mine, other = (error(norm(x).double()).abs().mean() for norm in (ours, theirs))
        assert mine <= 1.05 * other
