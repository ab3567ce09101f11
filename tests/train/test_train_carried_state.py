"""Rows in the order of the text, each with the state that the row before has left."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from batches import CPU, FACTS, Records, row_stream
from double import double_precision
from small_models import VOCABULARY, random_model

from trivium import spec
from trivium.data.batch import IGNORE_INDEX
from trivium.data.row_order import contiguous_rows
from trivium.data.rows import Rows
from trivium.errors import RecipeError
from trivium.models import build
from trivium.objectives.causal import Causal
from trivium.presets import presets
from trivium.spec import TransformerXLAttention, TransformerXLPositions
from trivium.train.carried_state import create_carried_state
from trivium.train.loader import BatchStream, Loader
from trivium.train.recipe_loading import load_recipe
from trivium.train.trainer import Trainer, TrainStep, compute_validation_losses, forward_backward

CARRY = Causal(carry_state=True)


def trainer_of(model, stream, micro_batch_tokens, **changes: Any) -> Trainer:
    train = {"steps": 2, "eval_every": 1, "save_every": 1}
    recipe = load_recipe(
        "lstm-tiny",
        {
            "train": {**train, **changes},
            "schedule": {"kind": "constant", "warmup": 0},
            "optimizer": {"kind": "adamw", "lr": 1e-2},
        },
    )
    return Trainer(
        recipe,
        TrainStep(model),
        Loader([stream], [1.0], seed=0, micro_batch_tokens=micro_batch_tokens),
        recipe.optimizer.build(model),
        callbacks=[Records()],
        device=CPU,
        precision=torch.float32,
        started=0.0,
        carried=create_carried_state(model, stream),
    )


def rnn(cell) -> spec.RNNSpec:
    return spec.RNNSpec(
        vocab_size=VOCABULARY, d_model=23, cell=cell, d_hidden=29, num_layers=2,
        heads=(spec.LMHead(tied=True, bias=True),),
    )  # fmt: skip


def test_lanes_read_every_row_in_its_order():
    for rows, text_streams in ((37, 7), (35, 7), (7, 7), (3, 7), (11, 2), (5, 1)):
        steps = -(-rows // text_streams)
        taken = np.stack(
            [contiguous_rows(step, text_streams, rows)[0] for step in range(2 * steps)]
        )
        assert (taken[:steps] == taken[steps:]).all()
        assert (np.diff(taken[:steps], axis=0) == 1).all()
        assert set(taken.ravel().tolist()) == set(range(rows))
        keys = [contiguous_rows(step, text_streams, rows)[1] for step in range(2 * steps)]
        assert np.concatenate(keys).tolist() == list(range(2 * steps * text_streams))


@pytest.mark.parametrize("cell", ["elman", "elman-logistic", "lstm", "gru"])
@double_precision()
def test_the_loss_of_a_row_is_that_of_the_whole_text_before_it(cell):
    """Also of the held-out rows, in the next epoch, and where a step is computed once more."""
    stream = row_stream(CARRY)  # 37 rows of 11 tokens, 7 lanes: an epoch is six steps
    starts = contiguous_rows(0, 7, 37)[0]
    model = random_model(rnn(cell))
    trainer = trainer_of(model, stream, 33, eval_tokens=7 * 5 * 11)
    text_streams = torch.from_numpy(stream.data.split.tokens[starts[:, None] * 11 + np.arange(66)])  # type: ignore[union-attr]
    log_p = model.logits(model(text_streams)).log_softmax(-1)[:, :-1]
    nats = -log_p.gather(2, text_streams[:, 1:, None])[..., 0].detach()
    by_row = [nats[:, 11 * step : 11 * step + 10].sum().item() for step in range(6)]
    for step in (0, 1, 1, 2, 3, 4, 5, 6, 7):
        batch = trainer.loader.step(step)
        assert [len(text_stream) for text_stream in batch.text_streams] == [3, 3, 1]
        loss = forward_backward(trainer, batch, step)["loss"]
        assert loss.item() == pytest.approx(by_row[step % 6], rel=1e-9), (cell, step)
    for _ in range(2):
        held_out = compute_validation_losses(trainer, [stream])["valid_loss"]
        assert held_out == pytest.approx(sum(by_row[:5]) / (7 * 5 * 10), rel=1e-9)
    loss = forward_backward(trainer, trainer.loader.step(8), 8)["loss"]
    assert loss.item() == pytest.approx(by_row[2], rel=1e-9)


class Answers(Causal):
    """The loss of answers alone: token 6 after a 2, 7 after a 3."""

    kind: None = None

    def prepare(self, rows, rng, vocabulary):
        batch = super().prepare(rows, rng, vocabulary)
        labels = np.where(np.isin(batch.labels, (6, 7)), batch.labels, IGNORE_INDEX)
        return dataclasses.replace(batch, labels=labels)


def questions(least, most, count) -> np.ndarray:
    """Facts, 2 or 3, each with a question, 5, and its answer after so many other tokens, 4."""
    generator, ids = np.random.default_rng(least), []
    for _ in range(count):
        fact = int(generator.integers(2))
        ids += [2 + fact, *[4] * int(generator.integers(least, most)), 5, 6 + fact]
    return np.array(ids)


def segments() -> spec.TransformerSpec:
    """A small Transformer-XL with a memory of 16 tokens."""
    attention = TransformerXLAttention(
        num_heads=2, head_dim=8, positions=TransformerXLPositions(), memory=16
    )
    stack = presets["transformer-xl-tiny"].decoder.with_layers(  # type: ignore[union-attr]
        num_layers=1, mixer=attention, feed_forward=spec.MLP(d_ff=32, activation="relu")
    )
    return spec.TransformerSpec(
        vocab_size=VOCABULARY, d_model=23, embedding=spec.Embedding(scale=5.0), decoder=stack,
        heads=(spec.LMHead(tied=True, bias=True),),
    )  # fmt: skip


@pytest.mark.parametrize(
    "described",
    [rnn("lstm").replace(num_layers=1, scale=5.0), segments()],
    ids=["lstm", "transformer-xl"],
)
def test_what_was_said_before_the_row_is_known_with_state_alone(described):
    losses = []
    for carry in (True, False):
        objective = Answers(carry_state=carry)
        streams = [
            BatchStream("", objective, Rows(ids, 8), FACTS, rows_per_step=20)
            for ids in (questions(0, 14, 4000), questions(9, 14, 400))
        ]
        model = build(described, seed=0)
        trainer = trainer_of(model, streams[0], 160, eval_tokens=4000)
        for step in range(200):
            forward_backward(trainer, trainer.loader.step(step), step)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in trainer.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        losses.append(compute_validation_losses(trainer, streams[1:])["valid_loss"])
    assert losses[0] < 0.3 < 0.6 < losses[1], described.kind  # log 2 is 0.69


def test_state_is_refused_where_it_means_nothing():
    mix = [{"name": "a", "paths": ["a"], "objective": {"kind": "causal", "carry_state": True}}]
    for changes, message in (
        ({"data": {"separate_documents": True}}, r"leave data\.separate_documents out"),
        ({"data": {"packing": "truncate"}}, r'leave data\.packing = "truncate" out'),
        ({"objective": {"context": 3}}, "keeps earlier text that context would discard"),
        ({"objective": {"kind": "classification"}}, 'carry_state is a key of .* = "causal", '),
    ):
        objective = {"carry_state": True, **changes.get("objective", {})}
        with pytest.raises(RecipeError, match=message):
            load_recipe("lstm-tiny", {**changes, "objective": objective})
    with pytest.raises(RecipeError, match=r"leave \[\[mix\]\] out"):
        load_recipe("lstm-tiny", {"mix": mix})


@pytest.mark.parametrize("preset", ["gpt2-tiny", "ngram-tiny"])
def test_models_without_state_are_refused(preset):
    with pytest.raises(RecipeError, match="needs a model whose state continues from row to row"):
        CARRY.heads(presets[preset])


@pytest.mark.parametrize("preset", ["elmo-tiny", "bilstm-tiny"])
def test_networks_that_read_both_ways_are_refused(preset):
    with pytest.raises(RecipeError, match="RNNs that read one way"):
        CARRY.heads(presets[preset])
