"""Weights of 8 and 4 bits: what they stand for, products with them, what whole models lose."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from small_models import BOTH, CAUSAL, SPECS, VOCABULARY, inputs_for, random_ids, small_model

from trivium import spec
from trivium.adapt import LoRA, add_lora
from trivium.adapt.quantize import quantize
from trivium.cli import main
from trivium.errors import SpecError, TriviumError
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.models.heads import VocabularyHead
from trivium.nn.attention import Attention
from trivium.nn.inference_linear import InferenceLinear
from trivium.nn.quantized import GROUP, quantized_linear
from trivium.text import Tokenizer

OUTPUTS, INPUTS = 67, 3 * GROUP
PRECISIONS = (torch.float32, torch.bfloat16)
STEPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
# Into how many steps the largest number of a row is parted: without VNNI, half as many.
ROUNDED = 127 if torch.cpu._is_vnni_supported() else 63


def matrix(outputs=OUTPUTS, inputs=INPUTS):
    """Outputs of very different size, one of them zero."""
    weight = torch.randn(outputs, inputs) * torch.logspace(-3, 2, outputs)[:, None]
    weight[outputs // 2] = 0.0
    return weight


def linear(bits, *, outputs=OUTPUTS, inputs=INPUTS):
    weight = matrix(outputs, inputs)
    return weight, quantized_linear(weight, torch.nn.Parameter(torch.randn(outputs)), bits)


def told(layer, x):
    """The formula in float64."""
    weight = layer.whole(torch.float64)
    return x.double() @ weight.T + layer.bias.double()


def sizes(layer, x):
    """Sum of |w x|, what rounding errors are measured against; [..., O]."""
    return x.double().abs() @ layer.whole(torch.float64).abs().T + layer.bias.double().abs()


def test_int8_is_at_most_half_a_step_off():
    weight, layer = linear(8)
    step = weight.abs().amax(1, keepdim=True) / 127 * (1 + 2**-7)
    assert bool(((layer.whole(torch.float64) - weight).abs() <= step / 2 + 1e-30).all())
    error = (layer.whole(torch.float64) - weight)[0] / step[0]
    assert 0.2 < error.square().mean().sqrt() < 0.35  # uniform: 12^-0.5


def test_int4_is_at_most_half_a_step_of_its_group_off():
    weight, layer = linear(4)
    grouped = weight.unflatten(1, (-1, GROUP))
    low, high = grouped.aminmax(dim=2, keepdim=True)
    # Half a step, and the offset has the precision of bfloat16.
    bound = (high - low) / 15 * (0.5 + 2**-6) + torch.maximum(low.abs(), high.abs()) * 2**-7
    error = layer.whole(torch.float32).unflatten(1, (-1, GROUP)) - grouped
    assert bool((error.abs() <= bound + 1e-30).all())


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 5, 19, 301])
def test_the_plain_way_is_the_formula(rows, bits, dtype):
    _, layer = linear(bits)
    layer.unpack()
    x = torch.randn(rows, INPUTS).to(dtype)
    found = layer(x)
    assert found.dtype == dtype
    error = (found.double() - told(layer, x)).abs()
    assert bool((error <= sizes(layer, x) * 32 * STEPS[dtype] + 1e-20).all())


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 5, 19, 301])
def test_int8_products_round_each_row_and_nothing_else(rows, dtype):
    _, layer = linear(8)
    x = (torch.randn(rows, INPUTS) * torch.logspace(-2, 2, rows)[:, None]).to(dtype)
    # Each number is off by half a step of the largest of its row, and not all one way.
    step = 1 / ROUNDED * x.double().abs().amax(1, keepdim=True)
    weight = layer.whole(torch.float64)
    found = layer(x)
    assert found.dtype == dtype
    error = (found.double() - told(layer, x)).abs() - sizes(layer, x) * 4 * STEPS[dtype]
    assert bool((error <= step / 2 * weight.abs().sum(1) * (1 + 2**-10) + 1e-20).all())
    usual = step * (weight.square().sum(1) / 12).sqrt()
    assert bool((error <= 6 * usual + 1e-20).all())


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 5, 19])
def test_int4_products_are_those_of_its_matrix(rows, dtype):
    _, layer = linear(4)
    x = torch.randn(rows, INPUTS).to(dtype)
    found = layer(x)
    assert found.dtype == dtype
    error = (found.double() - told(layer, x)).abs()
    assert bool((error <= sizes(layer, x) * 4 * STEPS[torch.bfloat16] + 1e-20).all())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_plain_way_is_nearly_the_fast_one(rows, bits):
    _, layer = linear(bits)
    x = torch.randn(rows, INPUTS)
    fast, plain = layer(x), layer.plain(x)
    sized = sizes(layer, x) + 1e-20
    assert bool(((fast - plain).abs() < 0.01 * sized).all())
    before = layer.whole(torch.float32)
    layer.unpack()
    assert bool(((layer(x) - plain).abs() < 1e-5 * sized).all())
    assert torch.equal(layer.whole(torch.float32), before)
    layer.pack()
    assert torch.equal(layer(x), fast)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_says_the_same_in_every_company(bits):
    _, layer = linear(bits)
    x = torch.randn(11, INPUTS)
    x[7] *= 1e4
    alone = torch.cat([layer(row[None]) for row in x])
    # But where a number stands between two steps.
    near = (layer(x) - alone).abs() <= 1e-5 * sizes(layer, x)
    assert near.all(1).float().mean() > 0.8


def test_zero_rows_no_rows_and_one_input():
    _, layer = linear(8)
    assert torch.equal(layer(torch.zeros(3, INPUTS)), layer.bias.detach().expand(3, -1))
    assert layer(torch.zeros(2, 0, INPUTS)).shape == (2, 0, OUTPUTS)
    assert layer(torch.randn(INPUTS)).shape == (OUTPUTS,)
    _, narrow = linear(8, outputs=3, inputs=1)
    x = torch.randn(5, 1)
    torch.testing.assert_close(narrow(x), told(narrow, x).float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 5])
def test_processors_without_vnni_round_to_7_bits(rows, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False, raising=False)
    _, layer = linear(8)
    x = torch.randn(rows, INPUTS)
    step = 1 / 63 * x.double().abs().amax(1, keepdim=True)
    usual = step * (layer.whole(torch.float64).square().sum(1) / 12).sqrt()
    error = (layer(x).double() - told(layer, x)).abs()
    assert bool((error <= 6 * usual + 1e-5 * sizes(layer, x) + 1e-20).all())


def test_processors_of_other_kinds_keep_what_is_read(monkeypatch):
    monkeypatch.setattr("trivium.nn.quantized._has_integer_products", lambda: False)
    _, layer = linear(8)
    x = torch.randn(5, INPUTS)
    assert layer.codes is not None
    assert layer.codes.dtype == torch.int8
    error = (layer(x) - told(layer, x)).abs()
    assert bool((error <= 1e-5 * sizes(layer, x) + 1e-20).all())


@pytest.mark.parametrize("bits", [8, 4])
def test_moving_changes_no_weight(bits):
    _, layer = linear(bits)
    before, answer = layer.whole(torch.float32), layer(torch.ones(2, INPUTS))
    for dtype in (torch.bfloat16, torch.float32):
        layer.to(dtype)
        assert torch.equal(layer.whole(torch.float32), before)
    copied = copy.deepcopy(layer).to(torch.float32)
    assert torch.equal(copied.whole(torch.float32), before)
    assert layer(torch.ones(2, INPUTS)).shape == answer.shape
    with torch.no_grad():
        assert layer.to("meta").bias.device.type == "meta"


def stand_ins(model):
    """A model as `quantize` leaves it, and one with plain matrices that are the same numbers."""
    plain = copy.deepcopy(model)
    found = quantize(model, 8)
    quantized = {n: m for n, m in model.named_modules() if isinstance(m, InferenceLinear)}
    assert found.matrices == len(quantized)
    with torch.no_grad():
        for name, layer in quantized.items():
            weight = layer.whole(torch.float32)
            if name.endswith(".joint"):
                parts = parts_of(plain.get_submodule(name.removesuffix(".joint")))
                for part, rows in zip(parts, weight.split([len(part.weight) for part in parts])):
                    part.weight.copy_(rows)
                continue
            head = plain.get_submodule(name.removesuffix(".product"))
            if isinstance(head, VocabularyHead):
                head.weight = torch.nn.Parameter(weight)
            else:
                head.weight.copy_(weight)
    return plain


def parts_of(module):
    """The layers that one product stands for, in its order."""
    if isinstance(module, Attention):
        return module.query, module.key, module.value
    return module.gate, module.up


def unpacked(model):
    for module in model.modules():
        if isinstance(module, InferenceLinear):
            module.unpack()


@pytest.mark.parametrize("name", SPECS)
def test_every_family_computes_with_its_new_matrices(name):
    model = small_model(name)
    table = model.tokens.weight.detach().clone()
    ids = random_ids(2, 13, seed=5)
    inputs = inputs_for(name, ids)
    with torch.inference_mode():
        before = model.logits(model(**inputs))
        plain = stand_ins(model)
        found, wanted = model.logits(model(**inputs)), plain.logits(plain(**inputs))
    assert torch.equal(model.tokens.weight, table)
    spread = wanted.std()
    assert (found - wanted).square().mean().sqrt() < 0.1 * 127 / ROUNDED * spread
    assert 1e-3 * spread < (found - before).square().mean().sqrt() < 0.15 * spread
    unpacked(model)
    with torch.inference_mode():
        exact = model.logits(model(**inputs))
    torch.testing.assert_close(exact, wanted, rtol=1e-3, atol=1e-3 * float(spread))
    targets = random_ids(2, 13, seed=7)
    with torch.no_grad():
        hidden = model(**inputs).flatten(0, 1)
        losses = [m.vocabulary_loss(hidden, targets.flatten()) for m in (model, plain)]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*CAUSAL, *BOTH])
def test_all_of_the_blocks_and_the_vocabulary_are_quantised(name):
    model = small_model(name)
    quantize(model)
    kept = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert not {n for n in kept if ".layers." in n}
    assert all(head.product is not None and head.weight is None for head in model.heads.values())


def test_an_ngram_model_and_heads_of_tasks():
    described = spec.NGramSpec(
        vocab_size=VOCABULARY, d_model=7, order=3, d_hidden=11, heads=(spec.LMHead(tied=False),)
    )
    model = build(described)
    assert quantize(model).matrices == 2
    assert model.logits(model(random_ids(2, 5))).shape == (2, 5, VOCABULARY)
    bert = small_model("bert")
    nsp = copy.deepcopy(bert.heads["nsp"].state_dict())
    quantize(bert)
    assert all(torch.equal(nsp[name], w) for name, w in bert.heads["nsp"].state_dict().items())


@pytest.mark.parametrize(("bits", "share"), [(8, 0.27), (4, 0.18)])
def test_memory_is_that_of_small_integers(bits, share):
    model = build(wide())
    matrices = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    numbers = sum(m.weight.numel() for m in matrices.values()) + model.tokens.weight.numel()
    found = quantize(model, bits)
    assert found.bytes_before == 4 * numbers
    assert found.bytes_after / found.bytes_before < share
    layers = [m for m in model.modules() if isinstance(m, InferenceLinear)]
    # Queries, keys and values of a layer are one product.
    together = 2 * model.spec.decoder.num_layers
    assert len(layers) == len(matrices) - together + 1 == found.matrices
    assert sum(layer.num_bytes for layer in layers) == found.bytes_after
    assert not any(w.ndim > 1 for layer in layers for w in layer.parameters())
    unpacked(model)
    for layer in layers:
        assert layer.codes.dtype == (torch.int8 if bits == 8 else torch.uint8)
        assert layer.codes.nbytes <= layer.num_bytes


def wide():
    """A decoder whose every width int4 can group."""
    return spec.ModelSpec(
        vocab_size=101,
        d_model=64,
        embedding=spec.Embedding(positions=spec.Learned(max_length=61)),
        decoder=spec.Stack(
            num_layers=2,
            attention=spec.Attention(num_heads=2, head_dim=32),
            feed_forward=spec.FeedForward(d_ff=96, activation="gelu_tanh"),
            norm=spec.LayerNorm(),
            norm_order="pre",
        ),
        heads=(spec.LMHead(tied=True),),
    )


TEXTS = [
    "the small cat sat on the old mat and looked at the grey bird",
    "a bird sang in the tree while the dog slept on the mat",
    "the old dog and the small cat looked at a tree",
    "in the grey morning a cat sang and the bird looked on",
]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A decoder that knows its few texts well, as a folder, and those texts as a file."""
    words = sorted({word for text in TEXTS for word in text.split()})
    tokenizer = Tokenizer.train(
        "whitespace",
        texts=TEXTS,
        vocab_size=len(words) + 2,
        special_tokens=["<unk>", "</s>"],
        progress=False,
    )
    model = build(wide().replace(vocab_size=tokenizer.vocab_size), seed=1)
    end = tokenizer.token_to_id("</s>")
    rows = [[end, *tokenizer.encode(text, add_special_tokens=False).ids] for text in TEXTS]
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[end] * (longest - len(row))] for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        loss = model.vocabulary_loss(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        (loss / ids[:, 1:].numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("learned")
    LanguageModel(model.spec, model, tokenizer).save(folder / "model")
    (folder / "texts.txt").write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("kind", "dtype"), [("int8", None), ("int8", torch.bfloat16), ("int4", None)]
)
def test_greedy_texts_stay_mostly_the_same(learned, kind, dtype):
    stored = load(learned / "model", dtype=dtype)
    small = load(learned / "model", dtype=dtype, quantize=kind)
    prompts = [" ".join(text.split()[:number]) for text in TEXTS for number in (1, 2, 4)]
    before = stored.generate(prompts, max_new_tokens=9, temperature=0.0)
    after = small.generate(prompts, max_new_tokens=9, temperature=0.0)
    pairs = [p for a, b in zip(before, after) for p in zip(a.split(), b.split(), strict=False)]
    assert len(pairs) > 60
    assert np.mean([a == b for a, b in pairs]) > (0.95 if kind == "int8" else 0.8)
    together = small.generate(prompts, max_new_tokens=9, temperature=0.0)
    assert together == [small.generate(p, max_new_tokens=9, temperature=0.0) for p in prompts]


def test_eval_shows_what_it_costs(learned, capsys, tmp_path):
    out = tmp_path / "results.json"
    arguments = [str(learned / "model"), str(learned / "texts.txt"), "--quantize"]
    assert main(["eval", *arguments, "int8", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["stored", "int8", "change"]
    shown = next(line.split() for line in lines if "perplexity_per_token" in line)
    (found,) = json.loads(out.read_text(encoding="utf-8"))
    ratio = found["int8"]["perplexity_per_token"] / found["perplexity_per_token"]
    assert shown[1:3] == [
        f"{number['perplexity_per_token']:.4f}" for number in (found, found["int8"])
    ]
    assert float(shown[3].rstrip("%")) == pytest.approx(100 * (ratio - 1), abs=0.01)
    assert abs(math.log(ratio)) < 0.02
    assert found["int8"]["num_tokens"] == found["num_tokens"]
    assert main(["eval", *arguments, "int4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1e-6 < abs(found["int4"]["loss"] / found["loss"] - 1) < 0.2


def test_generate_takes_it_and_a_wrong_word_is_usage(learned, capsys):
    arguments = ["generate", str(learned / "model"), "the small", "--greedy"]
    assert main([*arguments, "--quantize", "int8", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the small")
    assert main([*arguments, "--quantize", "int5"]) == 2


def test_a_quantised_model_is_not_saved(learned, tmp_path):
    small = load(learned / "model", quantize="int8")
    for save in (small.save, small.save_hf):
        with pytest.raises(SpecError, match="quantised weights cannot be saved or exported"):
            save(tmp_path / "new")
        assert not list((tmp_path / "new").glob("[!.]*"))


def rnn():
    described = {"vocab_size": VOCABULARY, "d_model": 7, "cell": "lstm", "d_hidden": 5}
    return build(spec.RNNSpec(**described, num_layers=2, heads=(spec.LMHead(tied=False),)))


def adapted():
    model = small_model("gpt2")
    add_lora(model, LoRA())
    return model


def done():
    model = small_model("gpt2")
    quantize(model)
    return model


@pytest.mark.parametrize(
    ("made", "bits", "message"),
    [
        (rnn, 8, "recurrent model are inside PyTorch's own cells"),
        (adapted, 8, "merge it first"),
        (done, 8, "quantised already"),
        (lambda: small_model("gpt2"), 5, "8 or 4 bits, not to 5"),
    ],
)
def test_what_cannot_be_quantised(made, bits, message):
    model = made()
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(SpecError, match=message):
        quantize(model, bits)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("rows", [1, 19])
def test_int4_fills_up_the_last_group(rows):
    weight, layer = linear(4, outputs=5, inputs=GROUP + 1)
    assert layer.whole(torch.float32).shape == weight.shape
    x = torch.randn(rows, GROUP + 1)
    error = (layer(x) - told(layer, x)).abs()
    assert bool((error <= sizes(layer, x) * 4 * STEPS[torch.bfloat16]).all())
    model = small_model("gpt2")
    quantize(model, 4)
    assert model.logits(model(random_ids(2, 7))).shape == (2, 7, VOCABULARY)


def test_loading_knows_two_words(learned):
    with pytest.raises(TriviumError, match=r'"int9".*int8, int4'):
        load(learned / "model", quantize="int9")  # type: ignore[arg-type]
