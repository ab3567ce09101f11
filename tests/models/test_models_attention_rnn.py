"""The recurrent encoder-decoder with attention equals the formulas of Bahdanau et al. 2015."""

from __future__ import annotations

import pytest
import torch
from small_models import SOURCE_VOCABULARY, VOCABULARY, small_model
from torch import sigmoid, softmax, tanh
from translation import padded_pairs

from trivium.inference.attention_weights import attention_weights
from trivium.models import AttentionRNN, build
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")


def gru(weights, direction, x):
    """States of the encoder after each token, in the form of cuDNN."""
    w, u, b, c = (
        weights[f"encoder.cells.{name}_l0{direction}"]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    state, states = torch.zeros(u.shape[1]), []
    for one in x:
        (wr, wz, wn), (ur, uz, un) = (w @ one + b).chunk(3), (u @ state + c).chunk(3)
        z = sigmoid(wz + uz)
        state = (1 - z) * tanh(wn + sigmoid(wr + ur) * un) + z * state
        states.append(state)
    return torch.stack(states)


def of_the_paper(weights, source, target):
    """Readouts t [T, R] and attention [T, S] of one pair, token by token, with sums spelled out."""
    w = {name.removeprefix("decoder."): value for name, value in weights.items()}
    x, y = weights["source_tokens.weight"][source], weights["tokens.weight"][target]
    backward = gru(weights, "_reverse", x.flip(0)).flip(0)
    h = torch.cat((gru(weights, "", x), backward), 1)
    s = tanh(w["start.weight"] @ backward[0] + w["start.bias"])
    readouts, attention = [], []
    for before in y:
        key = [w["key.weight"] @ one + w["key.bias"] for one in h]
        e = torch.stack([w["score"] @ tanh(w["query.weight"] @ s + one) for one in key])
        a = softmax(e, 0)
        c = sum(share * one for share, one in zip(a, h))
        wz, wr, wn = (w["inputs.weight"] @ before + w["inputs.bias"]).chunk(3)
        cz, cr, cn = (w["attended.weight"] @ c).chunk(3)
        uz, ur = (w["gates.weight"] @ s).chunk(2)
        z, r = sigmoid(wz + uz + cz), sigmoid(wr + ur + cr)
        s = (1 - z) * s + z * tanh(wn + w["candidate.weight"] @ (r * s) + cn)
        both = w["readout.weight"] @ torch.cat((s, before, c)) + w["readout.bias"]
        readouts.append(torch.maximum(both[::2], both[1::2]))
        attention.append(a)
    return torch.stack(readouts), torch.stack(attention)


@torch.no_grad()
def test_readouts_and_attention_are_those_of_the_paper():
    model, pairs = small_model("bahdanau"), padded_pairs(VOCABULARY, SOURCE_VOCABULARY)
    hidden, weights = model(**pairs), attention_weights(model, **pairs).cross[0]
    lengths = [pairs[f"{side}attention_mask"].sum(1).tolist() for side in ("", "decoder_")]
    for row, (source, target) in enumerate(zip(*lengths)):
        ids = pairs["input_ids"][row, :source], pairs["decoder_input_ids"][row, :target]
        readouts, attention = of_the_paper(model.state_dict(), *ids)
        torch.testing.assert_close(hidden[row, :target], readouts, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            weights[row, 0, :target, :source], attention, rtol=1e-9, atol=1e-9
        )
        assert not weights[row, 0, :target, source:].any()


def test_weights_start_as_published():
    described = presets["bahdanau-rnnsearch"].replace(d_hidden=96, vocab_size=500)
    model = build(described, seed=3)
    assert isinstance(model, AttentionRNN)
    decoder = model.decoder
    for weight in (decoder.candidate.weight, *decoder.gates.weight.chunk(2)):
        torch.testing.assert_close(weight @ weight.T, torch.eye(96))
    for weight, std in ((decoder.query.weight, 0.001), (decoder.readout.weight, 0.01)):
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.05)
    assert not decoder.score.any()
