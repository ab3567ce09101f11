"""Many inputs of different lengths: each as if alone, whatever stands beside it."""

from __future__ import annotations

import pytest
import torch
from small_models import MAX_LENGTH, ONE_STACK, random_ids, small_model
from task_models import theirs

from trivium.errors import SpecError
from trivium.inference.batches import hidden_states
from trivium.models import build
from trivium.spec import RNNSpec

LENGTHS = [5, 1, 13, 7, 7, 2, 11, 13]


def inputs_of(lengths) -> list[list[int]]:
    return [random_ids(1, n, seed=i)[0].tolist() for i, n in enumerate(lengths)]


def collected(model, inputs, **options):
    found, sizes = {}, []
    with torch.no_grad():
        for numbers, hidden, real in hidden_states(model, inputs, **options):
            sizes.append(tuple(hidden.shape[:2]))
            for row, number in enumerate(numbers):
                assert real[row].tolist() == [
                    n < len(inputs[number]) for n in range(len(real[row]))
                ]
                found[number] = hidden[row, : len(inputs[number])]
    return [found[number] for number in range(len(inputs))], sizes


@pytest.mark.parametrize("name", ONE_STACK)
def test_every_input_as_if_alone(name):
    model, inputs = small_model(name), inputs_of(LENGTHS)
    together, sizes = collected(model, inputs, batch_tokens=40)
    assert max(rows * length for rows, length in sizes) <= 40
    assert len(sizes) < len(inputs)
    alone, sizes = collected(model, inputs, batch_tokens=1)
    assert [rows for rows, _ in sizes] == [1] * len(inputs)
    for mine, other, ids in zip(together, alone, inputs, strict=True):
        with torch.no_grad():
            wanted = model(torch.tensor([ids]))[0]
        torch.testing.assert_close(other, wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_recurrent_models_too(direction):
    spec = RNNSpec(
        vocab_size=43, d_model=17, cell="lstm", d_hidden=19, num_layers=2, direction=direction
    )
    model, inputs = build(spec, seed=3).eval(), inputs_of(LENGTHS)
    together, _ = collected(model, inputs)
    for mine, ids in zip(together, inputs, strict=True):
        with torch.no_grad():
            wanted = model(torch.tensor([ids]))[0]
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)


def test_sentence_types_reach_models_that_have_them():
    inputs = inputs_of([7, 3])
    types = [[0, 0, 0, 1, 1, 1, 1], [0, 1, 1]]
    model = small_model("bert")
    found, _ = collected(model, inputs, type_ids=types)
    for mine, ids, kinds in zip(found, inputs, types, strict=True):
        with torch.no_grad():
            wanted = model(torch.tensor([ids]), token_type_ids=torch.tensor([kinds]))[0]
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found[0], collected(model, inputs)[0][0], atol=1e-3)
    roberta = small_model("roberta")
    assert torch.equal(
        collected(roberta, inputs, type_ids=types)[0][1], collected(roberta, inputs)[0][1]
    )


def test_an_encoder_decoder_reads_an_input_on_both_sides():
    from hugging_face import ours_of

    hf = theirs("BartModel")
    inputs = [[5, 9, 7, 2], [4, 2], [8, 8, 3, 5, 6, 2]]
    found, _ = collected(ours_of(hf), inputs, decoder_start=[2, 7])
    for mine, ids in zip(found, inputs, strict=True):
        with torch.no_grad():
            wanted = hf(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)


def test_an_input_longer_than_the_positions():
    with pytest.raises(SpecError, match=f"positions end at {MAX_LENGTH}"):
        collected(small_model("bert"), inputs_of([3, MAX_LENGTH + 1]))
