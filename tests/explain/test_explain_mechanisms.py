"""Numbers of the topics on mechanisms, beside formulas, PyTorch and transformers."""

from __future__ import annotations

import math

import pytest
import torch
from support.overfit_tasks import word_tokenizer
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.t5.modeling_t5 import T5Attention

from trivium.errors import TriviumError
from trivium.explain import Grid, explain
from trivium.explain.topics import additive_attention, block, gpt, grouped_query, rnn
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets


def of(numbers) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def saved(family: str, folder) -> str:
    """A tiny model of three words that is not trained."""
    tokenizer = word_tokenizer(family, ["the cat sat"])
    spec = presets[f"{family}-tiny"].replace(vocab_size=tokenizer.vocab_size)
    LanguageModel(spec, build(spec, seed=0), tokenizer).save(folder)
    return str(folder)


def test_attention_is_that_of_pytorch():
    data = explain("attention").data
    q, k, v = (of(data[name]) for name in "qkv")
    torch.testing.assert_close(of(data["heads"]), F.scaled_dot_product_attention(q, k, v))
    plain = F.scaled_dot_product_attention(q[0], k[0], v[0], scale=1.0)[2]
    torch.testing.assert_close(of(data["attention"]), plain)
    # x_3 = (1, 1, 0, 0) with the first two columns of W_Q.
    assert data["q"][0][2] == pytest.approx([2.0, 1.0])
    assert data["e"] == pytest.approx([4.0, 4.0, 3.0, 5.0])
    e = of(data["e"]).exp()
    torch.testing.assert_close(of(data["alpha"]), e / e.sum())


@pytest.mark.parametrize(
    ("family", "kinds"), [("bert", ["encoder"]), ("t5", ["encoder", "decoder", "cross"])]
)
def test_attention_of_a_model(family, kinds, tmp_path):
    model = saved(family, tmp_path)
    page = explain("attention", "the cat sat", model=model, target="the cat", head=1)
    assert [*page.data] == kinds
    assert sum(isinstance(part, Grid) for part in page.parts) == len(page.data)
    rows = of(page.data["encoder"]["head 1"]).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
    with pytest.raises(TriviumError, match="no layer 0: choose 1 to"):
        explain("attention", "the cat", model=model, layer=0)


def test_a_text_without_a_model_is_refused():
    with pytest.raises(TriviumError, match="give --model"):
        explain("attention", "the cat")


def test_masks():
    data = explain("mask", "a b c d", prefix=2, window=1).data
    masks = {name: fact["mask"] for name, fact in data.items()}
    assert masks["padding"] == [[1, 1, 1, 1, 0, 0]] * 6
    assert masks["cross-attention"] == [[1, 1, 1, 1, 0, 0]] * 4
    assert masks["prefix"] == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert masks["packed documents"] == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert masks["sliding window"] == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_positions():
    data = explain("positions", 32).data
    assert data["sinusoids"][3][4] == pytest.approx(math.sin(3 / 10_000 ** (4 / 32)), abs=1e-6)
    assert data["sinusoids"][3][5] == pytest.approx(math.cos(3 / 10_000 ** (4 / 32)), abs=1e-6)
    theta = [10_000 ** (-2 * i / 32) for i in range(16)]
    assert data["rotary_theta"] == pytest.approx(theta, rel=1e-6)
    # Of q = k = 1 every pair gives 2 cos(distance theta).
    expected = [sum(math.cos(distance * t) for t in theta) / 16 for distance in range(201)]
    assert data["rotary_scores"] == pytest.approx(expected, abs=1e-5)
    assert data["alibi_slopes"] == [2.0**-n for n in range(1, 9)]


def test_buckets_are_those_of_transformers_and_not_of_the_book():
    data = explain("positions").data
    before = -torch.tensor(data["t5_distances"])
    for side, both in (("encoder", True), ("decoder", False)):
        theirs = T5Attention._relative_position_bucket(before, bidirectional=both).tolist()
        assert data["t5_buckets"][side] == theirs
    book = dict(zip(data["t5_distances"], data["book_buckets"]))
    assert (book[7], book[8], book[9], book[128]) == (7, 8, 13, 148)
    assert max(data["t5_buckets"]["encoder"]) == 15


def test_norm_of_the_listing():
    x, results = of([1, 2, 3, 6]), explain("norm", [1, 2, 3, 6]).data["results"]
    listing = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(of(results["Norm"]), listing)
    torch.testing.assert_close(of(results["LayerNorm"]), F.layer_norm(x, [4]))
    torch.testing.assert_close(listing, of(results["LayerNorm"]) * 0.75**0.5, rtol=0, atol=1e-5)


def test_norms_with_trained_weights():
    x, g, b = of([1, 2, 3, 6]), of([1, 2, 0.5, 1]), of([0, 0, 1, -1])
    page = explain("norm", [1, 2, 3, 6], weight="1 2 0.5 1", bias="0 0 1 -1")
    results = {name: of(row) for name, row in page.data["results"].items()}
    torch.testing.assert_close(results["LayerNorm"], F.layer_norm(x, [4], g, b))
    torch.testing.assert_close(results["RMSNorm"], F.rms_norm(x, [4], g, eps=1e-6) + b)
    torch.testing.assert_close(results["RMSNorm (1 + w)"], F.rms_norm(x, [4], g, eps=1e-6))
    for text in ("1 2", "1 2 3 many"):
        with pytest.raises(TriviumError, match="give 4 numbers separated by spaces"):
            explain("norm", [1, 2, 3, 6], weight=text)


def test_activations():
    data = explain("activation", [0.1, 10.0]).data
    x = of(data["x"])
    for beta in (0.1, 10.0):
        swish = x / (1 + (-beta * x).exp())
        torch.testing.assert_close(of(data["values"][f"Swish, beta = {beta:g}"]), swish)
    gelu = x * (1 + torch.erf(x / 2**0.5)) / 2
    torch.testing.assert_close(of(data["values"]["GELU"]), gelu)


def test_the_feed_forward_network_step_by_step():
    data = explain("feed-forward", [1.0, -1.0, 2.0]).data
    relu = [*map(of, data["ReLU"].values())]
    torch.testing.assert_close(relu[1], relu[0].relu())
    steps = data["SwiGLU"]
    gate, value = of(steps["x W"]), of(steps["x V"])
    torch.testing.assert_close(of(steps["Swish(x W) * x V"]), gate * gate.sigmoid() * value)


def test_gradients_reach_further_through_gates():
    data = explain("rnn", [1.0, 0.0]).data
    assert data["hidden"][0] == pytest.approx([math.tanh(1.0), math.tanh(0.6)])
    far = [norm[60] for norm in data["gradient_norms"].values()]
    assert far == sorted(far)
    assert far[0] < 1e-12
    assert far[-1] > 0.1


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_the_steps_of_a_cell_are_those_of_pytorch(cell):
    data = explain("rnn", [1.0, -0.5, 2.0], cell=cell, distance=1).data
    made = {"elman": torch.nn.RNNCell, "gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[cell]
    theirs = made(1, 2).double()
    u, v, b = (torch.cat(list(map(of, part))) for part in zip(*rnn._WEIGHTS[cell].values()))
    with torch.no_grad():
        theirs.weight_hh.copy_(u)
        theirs.weight_ih.copy_(v)
        theirs.bias_ih.copy_(b)
        theirs.bias_hh.zero_()
        state, steps = None, {name: of(rows) for name, rows in data["steps"].items()}
        for t, x in enumerate([1.0, -0.5, 2.0]):
            state = theirs(of([[x]]), state)
            h = state[0] if cell == "lstm" else state
            torch.testing.assert_close(steps["h_t"][t], h[0])
            if cell == "lstm":
                torch.testing.assert_close(steps["c_t"][t], state[1][0])
                torch.testing.assert_close(steps["o_t"][t] * steps["c_t"][t].tanh(), h[0])
            if cell == "gru":
                before = steps["h_t"][t - 1] if t else torch.zeros(2)
                z, n = steps["z_t"][t], steps["n_t"][t]
                torch.testing.assert_close(z * before + (1 - z) * n, h[0])


def test_the_streams_of_xlnet():
    data = explain("permutation", ["the cat sat on the mat and it slept"]).data
    content, query = torch.tensor(data["content_mask"]), torch.tensor(data["query_mask"])
    tokens, order = data["rows"][0]["tokens"], torch.tensor(data["batch"]["order"][0])
    order = order[: len(tokens)]
    # perm_mask of transformers: 1 where a token does not see another; the query stream uses it, the
    # content stream uses it except that a token sees itself.
    perm_mask = (order[:, None] <= order).int()
    targets = [i for i in order.argsort().tolist() if data["rows"][0]["labels"][i]]
    assert torch.equal(query, 1 - perm_mask[targets])
    known = (order == 0).int()
    expected = ((1 - perm_mask) | torch.eye(len(tokens), dtype=torch.int) | known).int()
    assert torch.equal(content, expected)
    for (_, seen), row in zip(data["steps"], query.tolist(), strict=True):
        assert seen.split() == [token for token, visible in zip(tokens, row) if visible]


def test_a_whole_gpt_is_that_of_transformers():
    data = explain("gpt", "the cat drank the", steps=40).data
    model, losses = gpt._train(40, 0)
    assert data["losses"] == losses
    assert losses[-1] < losses[0] / 2
    config = GPT2Config(
        vocab_size=9, n_positions=6, n_embd=4, n_layer=2, n_head=2, attn_implementation="eager"
    )
    theirs = GPT2LMHeadModel(config).double().eval()
    ours, body = model.decoder, theirs.transformer
    with torch.no_grad():
        body.wte.weight.copy_(model.tokens.weight)
        body.wpe.weight.copy_(ours.embedding.positions.weight)
        for layer, block in zip(ours.layers, body.h, strict=True):
            parts = (layer.mixer.query, layer.mixer.key, layer.mixer.value)
            block.attn.c_attn.weight.copy_(torch.cat([part.weight for part in parts]).T)
            block.attn.c_attn.bias.copy_(torch.cat([part.bias for part in parts]))
            for conv, linear in (
                (block.attn.c_proj, layer.mixer.output),
                (block.mlp.c_fc, layer.feed_forward.up),
                (block.mlp.c_proj, layer.feed_forward.down),
            ):
                conv.weight.copy_(linear.weight.T)
                conv.bias.copy_(linear.bias)
            block.ln_1.load_state_dict(layer.mixer_residual.pre_norm.state_dict())
            block.ln_2.load_state_dict(layer.feed_forward_residual.pre_norm.state_dict())
        body.ln_f.load_state_dict(ours.norm.state_dict())
        output = theirs(
            torch.tensor([data["ids"]]), output_hidden_states=True, output_attentions=True
        )
    torch.testing.assert_close(of(data["logits"]), output.logits[0])
    for name, hidden in zip(("input", "block 1", "final"), output.hidden_states, strict=True):
        torch.testing.assert_close(of(data[name]), hidden[0])
    torch.testing.assert_close(of(data["alpha"]), output.attentions[0][0, 0])
    torch.testing.assert_close(of(data["middle"]) + of(data["fed"]), of(data["block 1"]))


def test_a_gpt_learns_its_four_sentences():
    probabilities = explain("gpt", "the mouse ate the").data["probabilities"]
    assert probabilities[0][1:4] == pytest.approx([0.5, 0.25, 0.25], abs=0.05)
    assert probabilities[-1][6] > 0.9
    with pytest.raises(TriviumError, match='"fish" is not in the vocabulary'):
        explain("gpt", "the fish")
    with pytest.raises(TriviumError, match="the text has 1 words: give 2 to 6"):
        explain("gpt", "the")
    with pytest.raises(TriviumError, match="steps is -1"):
        explain("gpt", steps=-1)


def test_parameters_of_llama():
    data = explain("params", "llama-7b", length=2048).data
    assert data["parameters"] == sum(data["parts"].values()) == 6_738_415_616
    assert data["parts"]["feed-forward"] == 3 * 4096 * 11008 * 32
    cache = 2 * 32 * 32 * 128 * 2 * 2048  # a slot has room for a few tokens more
    assert data["memory"]["cache"] == pytest.approx(cache, rel=1e-3)
    products = 6 * (data["parameters"] - 32_000 * 4096 - 65 * 4096)
    assert data["flops_per_token"] == products + 12 * 32 * 4096 * 1024


def test_the_loss(tmp_path):
    data = explain("loss", [3.0, 1.0, 0.0, -1.0], label=2).data
    total = sum(math.exp(z) for z in (3, 1, 0, -1))
    assert data["nats"] == pytest.approx(math.log(total) - 1, abs=1e-6)
    with pytest.raises(TriviumError, match="label is 5"):
        explain("loss", [3.0, 1.0, 0.0, -1.0], label=5)
    text = explain("loss", text="the cat sat", model=saved("gpt2", tmp_path)).data["text"]
    assert text["bits_per_byte"] == pytest.approx(text["loss"] * 3 / math.log(2) / 11)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_a_block_is_that_of_pytorch(placement):
    steps = explain("block", 2, seed=3).data["steps"][placement]
    steps = {name.partition(" = ")[0]: of(row) for name, row in steps.items()}
    layer = torch.nn.TransformerEncoderLayer(
        4, 2, 16, dropout=0.0, bias=True, norm_first=placement == "pre", batch_first=True
    ).double()
    (ours,) = block._build_blocks(placement, 1, 4, 2, torch.Generator().manual_seed(3))
    mixer, network = ours.mixer, ours.feed_forward
    with torch.no_grad():
        for weight in layer.parameters():
            if weight.ndim == 1:
                weight.zero_()
        layer.norm1.weight.fill_(1.0)
        layer.norm2.weight.fill_(1.0)
        parts = (mixer.query, mixer.key, mixer.value)
        layer.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        layer.self_attn.out_proj.weight.copy_(mixer.output.weight)
        layer.linear1.weight.copy_(network.up.weight)
        layer.linear2.weight.copy_(network.down.weight)
        x = of(block._X)[None]
        causal = torch.nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
        theirs = layer(x, src_mask=causal)[0, 2]
    torch.testing.assert_close(steps["y"], theirs)
    name = "a + g" if placement == "post" else "y"
    g = steps["g"]
    torch.testing.assert_close(steps[name], steps["a"] + g)


def test_depth_needs_residuals_and_norms():
    data = explain("block", 24).data
    top = {name: norms[-1] for name, norms in data["gradient_norms"].items()}
    assert top["f(x)"] < 1e-5
    assert top["x + f(x)"] > 1e4
    assert all(0.1 < top[name] < 10 for name in ("LN(x + f(x))", "x + f(LN(x))"))
    alike = {name: cosines[-1] for name, cosines in data["cosines"].items()}
    assert alike["LN(f(x))"] > 0.999
    assert alike["x + f(LN(x))"] < 0.9
    with pytest.raises(TriviumError, match="depth is 1: give a number of blocks from 2 to 200"):
        explain("block", 1)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_queries_are_those_of_pytorch(kv_heads):
    data = explain("grouped-query", kv_heads=kv_heads, seed=1).data
    q, k, v = (of(data[name])[None] for name in "qkv")
    assert k.shape == (1, kv_heads, 4, 2)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)[0]
    torch.testing.assert_close(of(data["heads"]), expected)
    mixer = grouped_query._build_attention(4, kv_heads, 1)
    mixed = F.linear(expected.transpose(0, 1).flatten(1), mixer.output.weight)
    torch.testing.assert_close(of(data["output"]), mixed.detach())


def test_heads_that_cannot_be_grouped_are_refused():
    with pytest.raises(TriviumError, match="heads is 4 and kv_heads is 3"):
        explain("grouped-query", kv_heads=3)


def test_additive_attention_is_the_formula():
    data = explain("additive-attention", 4).data
    weights = {name: of(weight) for name, weight in additive_attention._WEIGHTS.items()}
    h, y = of(additive_attention._H), of(additive_attention._TOKENS)[:, None]
    s = torch.tanh(h[0, 1:])
    w_z, w_r, w = weights["inputs.weight"]
    u_z, u_r = weights["gates.weight"]
    for i in range(4):
        features = torch.tanh(weights["query.weight"] @ s + h @ weights["key.weight"].T)
        alpha = (features @ weights["score"]).softmax(0)
        c = alpha @ h
        torch.testing.assert_close(of(data["alpha"][i]), alpha)
        torch.testing.assert_close(of(data["contexts"][i]), c)
        z, r = torch.sigmoid(w_z * y[i] + u_z * s), torch.sigmoid(w_r * y[i] + u_r * s)
        new = torch.tanh(w * y[i] + r * s + weights["attended.weight"][2] @ c)
        s = (1 - z) * s + z * new
        torch.testing.assert_close(of(data["states"][i]), s)
    with pytest.raises(TriviumError, match="steps is 5: give 1 to 4"):
        explain("additive-attention", 5)
