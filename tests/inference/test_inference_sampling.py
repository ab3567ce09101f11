"""Sampling against the processors and warpers of `transformers`."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trivium.errors import TriviumError
from trivium.inference import Sampling
from trivium.inference.sampling import (
    History,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    most_probable,
    penalize_repetition,
    sample,
)

BATCH, VOCAB = 5, 97


@pytest.fixture
def logits():
    return torch.randn(BATCH, VOCAB) * 3


@pytest.fixture
def input_ids():
    return torch.randint(VOCAB, (BATCH, 11))


def seen_in(input_ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(BATCH, VOCAB, dtype=torch.bool).scatter(1, input_ids, True)


@pytest.mark.parametrize("k", [1, 2, 7, VOCAB, 1000])
def test_top_k(logits, input_ids, k):
    logits[0, :9] = logits[0].max()  # ties
    assert torch.equal(keep_top_k(logits, k), TopKLogitsWarper(k)(input_ids, logits))


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p(logits, input_ids, p):
    assert torch.equal(keep_top_p(logits, p), TopPLogitsWarper(p)(input_ids, logits))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
def test_min_p(logits, input_ids, share):
    assert torch.equal(keep_min_p(logits, share), MinPLogitsWarper(share)(input_ids, logits))


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3, 5.0])
def test_repetition_penalty(logits, input_ids, penalty):
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(input_ids, logits.clone())
    ours = penalize_repetition(logits, seen_in(input_ids), penalty)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("temperature", "k", "p", "share"), [(0.5, 13, 0.9, 0.05), (1.7, 40, 0.6, 0.01), (1, 5, 1, 0)]
)
def test_all_together_in_the_order_of_transformers(logits, input_ids, temperature, k, p, share):
    theirs = LogitsProcessorList(
        [
            TemperatureLogitsWarper(float(temperature)),
            TopKLogitsWarper(k),
            TopPLogitsWarper(float(p)),
            MinPLogitsWarper(float(share)),
        ]
    )(input_ids, logits)
    ours = Sampling(temperature, k, p, share).restrict(logits)
    assert torch.equal(ours, theirs)


def test_greedy_takes_the_best_after_the_penalty():
    logits, history = torch.tensor([2.0, 1.9, -1.0]), History([0], 3, torch.device("cpu"))
    for sampling, best in ((Sampling(0.0), 0), (Sampling(0.0, repetition_penalty=1.5), 1)):
        assert sampling.choose(sampling.prefer(logits, history)[None], []).tolist() == [best]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_most_probable_is_the_first_of_the_largest(logits, dtype):
    logits = logits.to(dtype)
    logits[1] = -torch.inf
    logits[2, [11, 60]] = 99.0
    for given in (logits, logits[:, ::2], logits[:1], logits[:0]):
        with torch.inference_mode():
            found = most_probable(given.clone() if given.is_contiguous() else given)
        assert torch.equal(found, given.argmax(-1))
    assert torch.equal(most_probable(logits.requires_grad_()), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-40, 1e-6])
def test_no_temperature_is_too_low(temperature):
    logits = torch.tensor([[2.0, 1.9, -1.0]])
    sampling = Sampling(temperature, top_p=0.9, min_p=0.1)
    assert sampling.choose(logits, [torch.Generator()]).tolist() == [0]


def test_frequencies_are_the_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]])
    generator = torch.Generator().manual_seed(0)
    rows = 20_011
    drawn = sample(logits.expand(rows, -1), [generator] * rows)
    found = drawn.bincount(minlength=4) / rows
    torch.testing.assert_close(found, logits.softmax(-1)[0], atol=0.015, rtol=0.0)
    assert found[3] == 0


def test_a_row_depends_on_its_own_generator_only(logits):
    def generators(seeds):
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    together = sample(logits, generators(range(BATCH)))
    alone = [sample(logits[i : i + 1], generators([i])) for i in range(BATCH)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
    ],
)
def test_settings_out_of_range(settings):
    with pytest.raises(TriviumError, match=next(iter(settings))):
        Sampling(**settings)
