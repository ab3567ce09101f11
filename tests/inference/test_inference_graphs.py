"""Decode steps that are captured once: without a GPU, a recording of their kernels is replayed."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import ClassVar

import pytest
import torch
from generating_models import run, text_model
from small_models import GENERATING, SPECS, VOCABULARY, random_ids, random_model, small_model
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from trivium import spec
from trivium.errors import SpecError, TriviumError
from trivium.inference.decode_step import DecodeStep
from trivium.inference.engine import Engine
from trivium.inference.forward import extend, prefill
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.speculative import DraftModel, PromptLookup
from trivium.models import build
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")

STOP = 7
LENGTHS = (5, 1, 13, 12, 2, 7, 11)
SAMPLED = SamplingParams(temperature=1.3, top_k=17, top_p=0.9, max_new_tokens=9)
# What the CPU reads back from the GPU, or whose shape depends on values: neither can be captured.
READS_BACK = {
    "aten::_local_scalar_dense",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_dim",
    "aten::_unique2",
}


class NothingIsReadBack(TorchDispatchMode):
    """Fails at an operation that a CUDA graph cannot contain."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        by_mask = name == "aten::index" and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        assert name not in READS_BACK, name
        assert not by_mask, name
        return func(*args, **(kwargs or {}))


class Recording:
    """Takes the place of a CUDA graph: operations on fixed tensors, recorded once."""

    shapes: ClassVar[Counter[tuple[int, int]]] = Counter()

    def __init__(self, run, rows, width, device, pool):
        ids = torch.zeros(rows, width, dtype=torch.int64)
        lengths = torch.zeros(rows, dtype=torch.int64)
        with NothingIsReadBack():
            run(ids, lengths)
        self.replay = make_fx(lambda ids, lengths: run(ids, lengths))(ids, lengths)
        self.shapes[rows, width] += 1

    def __call__(self, ids, lengths):
        return self.replay(ids, lengths)


def captured_engine(lm, **options) -> Engine:
    """An engine whose decode steps are recordings."""
    engine = Engine(lm, **options)
    draft = options.get("draft")
    width = 1 if draft is None else 1 + draft.num_tokens
    engine._extend_texts = DecodeStep(
        engine._module, engine._cache, capture=Recording, max_width=width
    )
    return engine


def texts(engine: Engine, prompts) -> list[list[int]]:
    """Sampled texts of different lengths; prompt i has seed i."""
    requests = [
        engine.add(GenerationRequest(prompt, SAMPLED.replace(seed=i, max_new_tokens=3 + i % 3)))
        for i, prompt in enumerate(prompts)
    ]
    list(engine.run())
    return [request.output_ids for request in requests]


def prompts_of(module) -> list[list[int]]:
    limit = getattr(module.spec, "source_vocab_size", None) or module.spec.vocab_size
    ids = random_ids(len(LENGTHS), max(LENGTHS), seed=7) % limit
    return [row[:length] for row, length in zip(ids.tolist(), LENGTHS)]


def assert_equals_eager(module, **options) -> None:
    """Texts of a captured engine, also of one that is used again, are those of an eager one."""
    lm = text_model(module, stop_ids=frozenset({STOP}))
    prompts = prompts_of(module)
    captured = captured_engine(lm, slots=2, slot_length=29, **options)
    for some in (prompts[:2], prompts[2:]):  # longer sources the second time
        plain = Engine(lm, slots=2, slot_length=29, **options)
        assert texts(captured, some) == texts(plain, some)


FIXED = [name for name in GENERATING if small_model(name).has_fixed_shapes]
TINY = [
    name
    for name, spec in presets.items()
    if name.endswith("-tiny") and spec.family != "encoder-only"
]


@pytest.mark.parametrize("name", FIXED)
def test_a_captured_step_gives_the_same_texts(name):
    assert_equals_eager(small_model(name, seed=3))


@pytest.mark.parametrize("name", ["gpt2", "mistral", "t5"])
def test_captured_steps_verify_drafts(name):
    module = small_model(name, seed=3)
    assert_equals_eager(module, draft=PromptLookup(num_tokens=3, ngram=1))
    if module.spec.family == "decoder-only":
        assert_equals_eager(module, draft=DraftModel(module, num_tokens=2))


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_texts_whose_cached_keys_expire(name):
    """Read again beyond 7 tokens (LongRoPE), by captured steps, beside drafts, after an encoder."""
    described, factors = SPECS[name], {"short_factor": (1.0,) * 5, "long_factor": (3.0,) * 5}
    scaling = spec.LongRopeScaling(factor=2.0, original_max_length=7, **factors)
    positions = spec.Rotary(base=100.0, scaling=scaling)
    mixer = described.decoder.mixers[0].replace(head_dim=10, pattern=None, positions=positions)
    module = random_model(described.replace(decoder=described.decoder.with_layers(mixer=mixer)))
    assert module.spec.recompute_lengths == {7}
    assert_equals_eager(module, draft=PromptLookup(num_tokens=3, ngram=1))
    greedy = SamplingParams(temperature=0, max_new_tokens=12)
    lm = text_model(module)
    for request in run(lm, prompts_of(module), greedy, slots=3, slot_length=29):
        prompt, found = request.prompt_ids, request.output_ids
        for i, token_id in enumerate(found):  # without a cache
            if name == "bart":
                ids = torch.tensor([[*lm.generation_rules.decoder_start, *found[:i]]])
                hidden = module(torch.tensor([prompt]), decoder_input_ids=ids)
            else:
                hidden = module(torch.tensor([[*prompt, *found[:i]]]))
            assert int(module.logits(hidden[0, -1]).argmax()) == token_id


def test_shapes_are_rounded_so_that_few_graphs_are_captured():
    Recording.shapes.clear()
    module = small_model("gpt2", seed=3)
    engine = captured_engine(text_model(module), slots=7, slot_length=37)
    texts(engine, prompts_of(module))
    texts(engine, prompts_of(module))
    assert set(Recording.shapes) <= {(7, 1), (4, 1), (2, 1), (1, 1)}
    assert set(Recording.shapes.values()) == {1}


@pytest.mark.parametrize("name", TINY)
def test_the_decode_step_of_a_preset_reads_nothing_back(name):
    module = build(presets[name].replace(vocab_size=VOCABULARY), seed=0).eval()
    ids, found = random_ids(2, 5).tolist(), []
    with torch.inference_mode():
        for end in (None, 8) if module.has_fixed_shapes else ():
            cache = module.new_cache(2, 16)
            prefill(module, cache, [0, 1], ids, [STOP])
            arguments = torch.tensor([[3], [11]]), torch.tensor([1, 1])
            watched = NothingIsReadBack() if end else contextlib.nullcontext()
            with cache.fixed_shapes(end), watched:
                found.append(extend(module, cache, arguments[0], lengths=arguments[1]))
    if found:
        torch.testing.assert_close(*found)


def test_what_cannot_be_captured_is_refused():
    with pytest.raises(TriviumError, match="on a GPU"):
        Engine(text_model(small_model("gpt2")), cuda_graph=True)
    with pytest.raises(SpecError, match="depend on the tokens"):
        Engine(text_model(small_model("grouped-experts")), cuda_graph=True)
