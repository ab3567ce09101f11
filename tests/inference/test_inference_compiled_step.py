"""Compiled layers write what the others write, for any number of texts of any lengths."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from small_models import random_ids, small_model, small_spec
from test_inference_engine import (
    GREEDY,
    SAMPLED,
    prompts_of,
    requests_of,
    start_of,
    written,
)

from trivium.adapt.lora import LoRA, add_lora
from trivium.adapt.quantize import pack, quantize
from trivium.errors import TriviumError
from trivium.inference.beam import Beams, decode_all
from trivium.inference.drafts import PromptLookup
from trivium.models import build, compiled_step
from trivium.models.compiled_step import CompiledStep
from trivium.models.transformer import Memory
from trivium.nn import compiled as compiling
from trivium.nn.inference_linear import InferenceLinear, PackedLinear
from trivium.nn.quantized import Int8Linear
from trivium.nn.sums import summed_rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not compiling.has_compiler(), reason="there is no C++ compiler"),
]

# Grouped queries that turn, in a packed model; biases of scores and a source; slopes, in 8 bits;
# biases everywhere, in a packed model with a source.
FORMS = {
    "llama": pack,
    "t5": lambda model: None,
    "alibi": lambda model: quantize(model, 8),
    "bart": pack,
}


def made(name: str, seed: int = 3):
    model = small_model(name, seed=seed).eval()
    FORMS[name](model)
    return model


@pytest.fixture(scope="module", params=list(FORMS))
def pair(request):
    """A model, and the same compiled."""
    model, compiled = made(request.param), made(request.param)
    compiled.compile_step()
    return model, compiled


@pytest.fixture
def steps(pair, monkeypatch) -> list[int]:
    """How many texts every compiled step had."""
    seen, run = [], CompiledStep.__call__

    def hear(step, stack, tokens, *rest):
        seen.append(len(tokens))
        return run(step, stack, tokens, *rest)

    monkeypatch.setattr(CompiledStep, "__call__", hear)
    return seen


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_same_texts_whatever_joins_and_leaves(pair, steps, rows, sampling):
    model, compiled = pair
    requests = requests_of(model, sampling)
    expected = written(model, requests, rows=rows)
    assert not steps
    assert written(compiled, requests, rows=rows) == expected
    assert max(steps) == min(rows, len(requests))
    assert len(set(steps)) >= min(rows, 3)


def test_hidden_states_are_those_of_the_plain_layers(pair, steps):
    """To the rounding of sums, also far from the sizes that were compiled."""
    model, compiled = pair
    for texts, length in ((1, 2), (1, 30), (2, 300), (8, 30), (9, 30), (17, 30)):
        length, states = min(length, (model.spec.max_length or length + 1) - 1), []
        for each in (model, compiled):
            cache, read = each.new_cache(texts, length + 1), {"decoder_input_ids": None}
            ids = random_ids(texts, length + 1, seed=length)
            with torch.inference_mode():
                if each.encoder is not None:
                    source = random_ids(texts, 5, seed=1)
                    read = {"decoder_input_ids": ids[:, :-1]}
                    each(source, cache=cache, **read)
                    read = {"decoder_input_ids": ids[:, -1:]}
                    states.append(each(source, cache=cache, **read))
                else:
                    each(ids[:, :-1], cache=cache)
                    states.append(each(ids[:, -1:], cache=cache))
        torch.testing.assert_close(states[1], states[0], atol=2e-5, rtol=2e-5)
    assert steps == [1, 1, 2, 8, 9, 17]


def test_guesses_go_the_plain_way(pair):
    model, compiled = pair
    requests = requests_of(model)
    expected = written(model, requests, draft=PromptLookup())
    assert written(compiled, requests, draft=PromptLookup()) == expected


@pytest.mark.parametrize("count", [1, 7])
def test_beams_find_the_same_texts(pair, steps, count):
    """What an encoder read of a text is there once for all its beams."""
    model, compiled = pair
    prompts, start = prompts_of(model)[:count], start_of(model)
    options = {"beams": Beams(num_beams=3), "max_new_tokens": 7, "decoder_start": start}
    expected = decode_all(model, prompts, **options)
    assert not steps
    found = decode_all(compiled, prompts, **options)
    assert [[text.ids for text in texts] for texts in found] == [
        [text.ids for text in texts] for texts in expected
    ]
    # Prompts of a decoder stand behind padding, unless there is one.
    assert (max(steps, default=0) == 3 * count) == (bool(start) or count == 1)


def test_hidden_states_of_beams_are_those_of_the_plain_layers(pair, steps):
    """Few and many texts of few and many sources or beginnings, of which some are padded."""
    model, compiled = pair
    sizes = ((1, 2), (1, 9), (2, 1), (2, 4), (9, 2), (8, 4), (1, 20))
    for sources, beams in sizes:
        source, ids = random_ids(sources, 6, seed=1), random_ids(sources * beams, 9, seed=2)
        real = torch.arange(6) < torch.arange(sources).remainder(5)[:, None] + 2
        rows = torch.arange(sources).repeat_interleave(beams)
        states = []
        for each in (model, compiled):
            cache, read, memory = each.new_cache(sources, 9), each, {}
            with torch.inference_mode():
                if each.encoder is not None:
                    hidden = each.encode(source, attention_mask=real)
                    read, memory = each.decode, {"memory": Memory(hidden, real)}
                read(ids[::beams, :1], cache=cache, **memory)
                cache.reorder(rows)
                if memory:
                    memory = {"memory": Memory(hidden[:0], real[rows])}
                for place in range(1, 9):
                    last = read(ids[:, place : place + 1], cache=cache, **memory)
                states.append(last)
        torch.testing.assert_close(states[1], states[0], atol=2e-5, rtol=2e-5)
    assert steps == [sources * beams for sources, beams in sizes for _ in range(8)]


def test_what_was_compiled_once_is_found_again(pair, monkeypatch):
    def again(*given, **options):
        raise AssertionError("compiled again")

    monkeypatch.setattr(torch.export, "export", again)
    name = next(name for name, one in FORMS.items() if made(name).spec == pair[0].spec)
    for seed in (3, 4):
        plain, other = made(name, seed), made(name, seed)
        other.compile_step()
        requests = requests_of(other)
        assert written(other, requests) == written(plain, requests)


def names_of(model, monkeypatch) -> list[str]:
    """What its compiled functions are called."""
    names = []

    def record(module, given, varying, *, of=None):
        names.append(compiling._name(module, given, varying, of))
        return lambda given: found if isinstance(found := module(*given), list) else [found]

    monkeypatch.setattr(compiled_step, "compiled", record)
    model.eval().compile_step()
    return names


def test_what_differs_in_its_code_has_another_name(monkeypatch):
    """Numbers that are no weights stand in what is compiled; weights do not."""
    spec = small_spec("llama")
    decoder = spec.decoder
    rotary = decoder.attention.positions
    opening, *layers = names_of(build(spec, seed=1), monkeypatch)
    assert names_of(build(spec, seed=2), monkeypatch) == [opening, *layers]
    for changes in (
        {"attention": decoder.attention.replace(scale=0.3)},
        {"attention": decoder.attention.replace(positions=rotary.replace(base=123.0))},
        {"feed_forward": decoder.feed_forward.replace(activation="relu")},
        {"norm": decoder.norm.replace(eps=1e-3)},
    ):
        changed = build(spec.replace(decoder=decoder.replace(**changes)), seed=1)
        other, *others = names_of(changed, monkeypatch)
        assert other != opening
        turned = changed.decoder.spec.attention.positions != rotary
        assert (others == layers) if turned else not {*others} & {*layers}
    adapted = [build(spec, seed=1) for _ in range(2)]
    for model, alpha in zip(adapted, (4.0, 8.0), strict=True):
        add_lora(model, LoRA(rank=2, alpha=alpha))
    first, second = (names_of(model, monkeypatch) for model in adapted)
    assert not {*first} & {*second}
    monkeypatch.setattr(torch, "__version__", "another")
    assert not {opening, *layers} & {*names_of(build(spec, seed=1), monkeypatch)}


def test_each_model_and_each_layer_has_its_own_weights(pair, steps):
    """A copy is not compiled, and changing it changes nothing of the other."""
    model, compiled = pair
    other = copy.deepcopy(compiled)
    requests = requests_of(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    assert other.decoder.step is None
    assert written(other, requests) != written(model, requests)
    assert not steps
    assert written(compiled, requests) == written(model, requests)


@torch.inference_mode()
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(67, 31), (8, 512), (1, 1000), (7, 64), (23, 9)])
def test_a_single_row_is_a_sum(shape, biased, capability, monkeypatch):
    """As exact as any product of float32; more rows are multiplied as before."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    weight, bias = torch.randn(shape), torch.nn.Parameter(torch.randn(shape[0]))
    layer = PackedLinear(weight, bias if biased else None)
    before = layer.num_bytes
    x = torch.randn(3, shape[1])
    several = layer(x)
    assert layer.keep_rows()
    layer.rows.compile_sums()
    assert layer.num_bytes <= max(before, 2 * weight.nbytes)
    torch.testing.assert_close(layer(x), several, rtol=1e-5, atol=1e-5)
    for row in (x[:1], x[None, :1], x.T.contiguous().T[2:]):
        found = layer(row)
        assert found.shape == (*row.shape[:-1], shape[0])
        exact = row.double() @ weight.double().T + (bias.double() if biased else 0.0)
        spread = row.double().norm() * weight.double().norm(dim=1) + 1.0
        assert float(((found - exact).abs() / spread).max()) < 5e-7
    other = copy.deepcopy(layer).double().float()  # what is put in order again is as it was
    assert other.rows is None
    torch.testing.assert_close(other(x), several, rtol=1e-5, atol=1e-5)


def keep_one_row(layer, monkeypatch):
    """With AVX-512, where other products are fast, no row is kept."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert layer.keep_rows() == 0
    assert layer.rows is None
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert layer.keep_rows() == 1
    layer.rows.compile_sums()


@torch.inference_mode()
@pytest.mark.parametrize("shape", [(67, 31), (8, 512), (3, 64)])
def test_a_single_row_is_a_sum_in_bfloat16(shape, monkeypatch):
    """Added up in float32."""
    weight = torch.randn(shape).bfloat16()
    bias = torch.nn.Parameter(torch.randn(shape[0]).bfloat16())
    layer = PackedLinear(weight, bias)
    x = torch.randn(3, shape[1]).bfloat16()
    several = layer(x)
    keep_one_row(layer, monkeypatch)
    assert torch.equal(layer(x), several)
    exact = x[:1].double() @ weight.double().T + bias.double()
    spread = x[:1].double().norm() * weight.double().norm(dim=1) + 1.0
    assert float(((layer(x[:1].float()) - exact).abs() / spread).max()) < 5e-7
    found = layer(x[None, :1])
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found[0].double(), exact, rtol=2**-8, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(67, 31), (8, 512), (3, 64)])
def test_a_single_row_is_a_sum_in_8_bits(shape, biased, monkeypatch):
    """Rounded as it is for the integer product of several rows, added up in float32."""
    bias = torch.nn.Parameter(torch.randn(shape[0])) if biased else None
    layer = Int8Linear(torch.randn(shape), bias)
    x, before = torch.randn(3, shape[1]), layer.num_bytes
    several = layer(x)
    keep_one_row(layer, monkeypatch)
    assert layer.num_bytes >= before + shape[0] * shape[1]
    assert torch.equal(layer(x), several)
    largest, steps = x.abs().amax(1, keepdim=True), layer._packed.steps
    rounded = (x / largest * steps).round().double() * largest.double() / steps
    exact = rounded @ layer.whole(torch.float64).T + (bias.double() if biased else 0.0)
    spread = x.double().norm(dim=1, keepdim=True) * layer.whole(torch.float64).norm(dim=1) + 1.0
    for row in range(3):
        found = layer(x[None, row : row + 1])
        assert found.shape == (1, 1, shape[0])
        assert float(((found[0] - exact[row]).abs() / spread[row]).max()) < 2e-6
    zeros = layer(torch.zeros(shape[1]))
    assert torch.equal(zeros, bias if biased else torch.zeros(shape[0]))
    assert layer(x[:1].bfloat16()).dtype == torch.bfloat16
    assert copy.deepcopy(layer).float().rows is None


@torch.inference_mode()
@pytest.mark.parametrize("texts", [1, 2])
def test_bfloat16_is_as_near_to_float64_as_without_compiling(texts):
    exact, model, compiled = (small_model("llama", seed=3).eval() for _ in range(3))
    for each in (model, compiled):
        pack(each.bfloat16())
    compiled.compile_step()
    states, ids = [], random_ids(texts, 31, seed=1)
    for each in (exact.double(), model, compiled):
        cache = each.new_cache(texts, 31)
        each(ids[:, :-1], cache=cache)
        states.append(each(ids[:, -1:], cache=cache).double())
    plain, found = ((state - states[0]).norm() for state in states[1:])
    assert 0.0 < found < 1.5 * plain < 0.05 * states[0].norm()


def test_rows_are_kept_once_and_shared_with_token_vectors(pair):
    model, compiled = pair
    for layer in (x for x in model.modules() if isinstance(x, InferenceLinear)):
        assert layer.rows is None
    layers = {n: x for n, x in compiled.named_modules() if isinstance(x, InferenceLinear)}
    kept = [name for name, layer in layers.items() if layer.rows is not None]
    eight_bits = any(isinstance(layer, Int8Linear) for layer in layers.values())
    if not layers or not summed_rows(torch.int8 if eight_bits else torch.float32):
        assert not kept
        return
    assert all(name.startswith(("decoder.", "heads.lm")) for name in kept)
    assert not any("cross_attention.key" in name for name in kept)
    head = compiled.heads["lm"]
    assert "heads.lm.product" in kept
    if not eight_bits:
        table = compiled.tokens.weight.data_ptr()
        assert (head.product.rows.weight.data_ptr() == table) == head.tied


def test_nothing_is_compiled_where_layers_forget():
    model = small_model("sliding")
    model.compile_step()
    assert model.decoder.step is None
    small_model("bert").compile_step()


def test_no_compiler_and_no_cpu_are_said(monkeypatch):
    with pytest.raises(TriviumError, match="for a CPU alone, but the model is on meta"):
        small_model("llama").to("meta").compile_step()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TriviumError, match="install g\\+\\+ or clang\\+\\+"):
        small_model("llama").compile_step()


def test_what_the_compiler_says_is_said(monkeypatch, tmp_path):
    """And nothing half-written is left."""

    def fail(program, *, package_path):
        raise RuntimeError("\nno space left")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiling.compiled_folder()
    with pytest.raises(TriviumError, match="could not compile a layer: no space left"):
        small_model("llama").compile_step()
    assert not list(folder.iterdir())
    # What is damaged is compiled again.
    monkeypatch.setattr(compiling, "_name", lambda *given: "same")
    (folder / "same.pt2").write_bytes(b"no archive")
    with pytest.raises(TriviumError, match="no space left"):
        small_model("llama").compile_step()
