"""DeBERTa's enhanced mask decoder, against the formulas of He et al. 2020, section 3.2."""

from __future__ import annotations

import pytest
import torch
import transformers
from double import double_precision
from small_models import MAX_LENGTH, random_ids, random_model, small_spec
from torch.nn.functional import gelu, layer_norm

from trivium import spec
from trivium.errors import SpecError
from trivium.language_model import LanguageModel
from trivium.models import Transformer
from trivium.nn.positions.disentangled import embedding_indices

HEADS, HEAD_DIM, LENGTH = 3, 10, 11


def decoder_layer(model: Transformer, query, hidden):
    """One text: queries I, [T, D], keys and values of H, [T, D]."""
    assert model.encoder is not None
    block, table = model.encoder.every_layer[-1], model.encoder.tables.get_parameter("0.weight")
    weights = dict(block.named_parameters())

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def heads(name, x):
        return linear(f"mixer.{name}", x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(0, 1)

    def norm(name, x):
        norm = getattr(block, name).post_norm
        return layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)

    q, k, v = heads("query", query), heads("key", hidden), heads("value", hidden)
    place = torch.arange(len(hidden))
    delta = embedding_indices(place[:, None] - place, spec.Disentangled(span=4))
    scores = q @ k.mT
    scores += torch.einsum("nih,nijh->nij", q, heads("key", table)[:, delta])
    scores += torch.einsum("njh,nijh->nij", k, heads("query", table)[:, delta])
    mixed = (scores / (3 * HEAD_DIM) ** 0.5).softmax(-1) @ v
    x = norm("mixer_residual", query + linear("mixer.output", mixed.transpose(0, 1).flatten(1)))
    inner = gelu(linear("feed_forward.up", x))
    return norm("feed_forward_residual", x + linear("feed_forward.down", inner))


@double_precision()
@torch.no_grad()
def test_masks_are_decoded_by_two_runs_of_the_last_layer_whose_queries_know_positions():
    model, ids = random_model(small_spec("deberta")), random_ids(2, LENGTH)
    assert isinstance(model, Transformer)
    assert model.encoder is not None
    inputs = []
    hook = model.encoder.layers[-1].register_forward_pre_hook(
        lambda _, arguments: inputs.append(arguments[0])
    )
    plain = model.encode(ids)
    hook.remove()
    late = model.get_parameter("heads.mlm.mask_decoder_positions.weight")[:LENGTH]
    states, gather_positions = model(ids), torch.tensor([3, 4, 17])
    for row, hidden in enumerate(inputs[0]):
        query = hidden + late
        for _ in range(2):
            query = decoder_layer(model, query, hidden)
        torch.testing.assert_close(states[row], query, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            plain[row], decoder_layer(model, hidden, hidden), rtol=1e-9, atol=1e-9
        )
    torch.testing.assert_close(
        model(ids, gather_positions=gather_positions),
        states.flatten(0, 1)[gather_positions],
        rtol=1e-9,
        atol=1e-9,
    )


def test_it_is_for_encoders_without_a_norm_before_attention_and_as_long_as_its_table():
    model = small_spec("deberta")
    assert model.max_length == MAX_LENGTH
    assert model.replace(heads=()).max_length is None
    assert model.encoder is not None
    with pytest.raises(
        SpecError, match=r"mask_decoder_positions of \"mlm\" are for an encoder alone"
    ):
        model.replace(encoder=model.encoder.with_layers(norm_placement="pre"))


@double_precision()
@torch.no_grad()
def test_it_stays_behind_in_an_export(tmp_path):
    model = random_model(small_spec("deberta").replace(d_model=HEADS * HEAD_DIM))
    assert isinstance(model, Transformer)
    with pytest.warns(UserWarning, match=r"class has a mask decoder.*is the encoder"):
        folder = LanguageModel(model.spec, model).save_hf(tmp_path / "hf")
    theirs, ids = transformers.AutoModel.from_pretrained(folder).eval(), random_ids(2, LENGTH)
    hidden = theirs.double()(ids).last_hidden_state
    torch.testing.assert_close(hidden, model.encode(ids), rtol=1e-9, atol=1e-9)
