"""Batches as pure functions of the step: order, sources by weight, micro-batches, exact losses."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from batches import CPU, LabelledCausal, Records, example_stream, row_stream
from double import double_precision
from small_models import SPECS, VOCABULARY, random_ids, random_model, small_model

from trivium import spec
from trivium.data.batch import IGNORE_INDEX, Batch
from trivium.data.row_order import shuffled_rows_from
from trivium.errors import RecipeError
from trivium.models import build
from trivium.objectives import LossTerms, to_device
from trivium.objectives.causal import Causal
from trivium.objectives.denoising import Denoising
from trivium.objectives.masked import Masked
from trivium.objectives.sentence_pairs import SentencePairs
from trivium.objectives.span_corruption import SpanCorruption
from trivium.objectives.tensor_batch import token_losses
from trivium.presets import presets
from trivium.spec import Experts
from trivium.text.vocabulary import Vocabulary
from trivium.train.distributed import SINGLE_PROCESS, Parallel
from trivium.train.hardware import _free_cgroup_memory, free_memory
from trivium.train.loader import Loader, equal_part_size, group_by_length
from trivium.train.loss_meter import LossMeter
from trivium.train.memory import fit_memory, reuse_micro_batch_size
from trivium.train.recipe_loading import load_recipe
from trivium.train.trainer import Trainer, TrainState, TrainStep, forward_backward

# Special tokens of every kind.
ALL_KINDS = Vocabulary(
    size=VOCABULARY,
    special_ids=(0, 2, 3, 4, *range(33, VOCABULARY)),
    pad_id=0,
    cls_id=2,
    sep_id=3,
    mask_id=4,
    bos_id=2,
    eos_id=3,
    sentinel_ids=tuple(range(33, VOCABULARY)),
    decoder_start_id=0,
)


def test_an_epoch_has_every_row_once_and_a_step_is_always_the_same():
    loader = Loader([row_stream(Causal())], [1.0], seed=0, micro_batch_tokens=33)
    rows = np.concatenate(
        [part.input_ids for n in range(37) for part in loader.step(n).micro_batches]
    )
    assert len({row.tobytes() for row in rows}) == 37
    assert len(rows) == 7 * 37
    again = Loader([row_stream(Causal())], [1.0], seed=0, micro_batch_tokens=33).step(5)
    for one, other in zip(loader.step(5).micro_batches, again.micro_batches, strict=True):
        assert (one.input_ids == other.input_ids).all()
    assert [part.num_rows for part in again.micro_batches] == [3, 3, 1]
    assert again.loss_denominators == {"loss": 70}
    ahead = loader.steps_from(5)
    assert next(ahead).num_tokens == 77
    assert (
        next(ahead).micro_batches[0].input_ids == loader.step(6).micro_batches[0].input_ids
    ).all()
    ahead.close()
    assert loader.steps_per_epoch() == pytest.approx(37 / 7)


def test_noise_differs_between_epochs_rows_and_seeds_and_is_fixed_for_each():
    def masks(step, seed=3):
        """Which tokens of each row are masked in step `step`, which is one epoch."""
        stream = dataclasses.replace(row_stream(Masked(probability=0.5)), rows_per_step=37)
        stream = dataclasses.replace(stream, seed=seed)
        (batch,) = stream.step(step, 10**6).micro_batches
        indices, _ = shuffled_rows_from(seed, step * 37, 37, 37)
        assert batch.labels is not None
        return (batch.labels != IGNORE_INDEX)[np.argsort(indices)]

    first, second, other = masks(0), masks(1), masks(0, seed=4)
    assert (masks(0) == first).all()
    for one in (second, other, np.roll(first, 1, axis=0)):  # the epoch, the seed, the row
        assert 0.3 < (one != first).mean() < 0.7
        assert len({row.tobytes() for row in one}) > 30


def test_held_out_rows_are_spread_over_the_split_and_always_the_same():
    stream = dataclasses.replace(row_stream(Masked(probability=0.5), rows=401), seed=0)
    [(batch,)] = [one.micro_batches for one in stream.validation_batches(31 * 11)]
    [(again,)] = [one.micro_batches for one in stream.validation_batches(31 * 11)]
    assert all((batch.arrays()[name] == again.arrays()[name]).all() for name in batch.arrays())
    plain = dataclasses.replace(row_stream(Causal(), rows=401))
    [(batch,)] = [one.micro_batches for one in plain.validation_batches(31 * 11)]
    whole = plain.data.take(np.arange(401)).input_ids  # type: ignore[union-attr]
    taken = [int((whole == row).all(axis=1).argmax()) for row in batch.input_ids]
    assert len(set(taken)) == 31
    # Thirds of the split have some ten each; five standard deviations are 13.
    assert min(np.bincount(np.array(taken) * 3 // 401, minlength=3)) >= 3


class Counted(LabelledCausal):
    """Counts the rows that are prepared."""

    kind: None = None
    prepared: ClassVar[list[int]] = []

    def prepare(self, rows, rng, vocabulary):
        self.prepared.append(rows.num_rows)
        return super().prepare(rows, rng, vocabulary)


class OfWholeSteps(Counted):
    kind: None = None
    needs_whole_step: ClassVar[bool] = True


class TogetherPrepared(Counted):
    kind: None = None
    prepares_steps: ClassVar[bool] = True


@pytest.mark.parametrize("objective", [Counted(), OfWholeSteps(), TogetherPrepared()])
@pytest.mark.parametrize("labelled", [True, False])
def test_held_out_data_is_bounded_and_prepared_piece_by_piece(objective, labelled):
    make = example_stream if labelled else functools.partial(row_stream, rows=4000)
    if labelled and objective.prepares_steps:
        pytest.skip("examples that are prepared together are of whole steps")
    stream = make(objective)
    size, mean = len(stream.data), 11 if not labelled else float(stream.data.lengths.mean())
    for limit, tokens in ((None, 1 << 40), (7, 1 << 40), (None, round(9.5 * mean)), (5, 60)):
        expected = min(limit or size, size, max(1, int(tokens / mean)))
        objective.prepared.clear()
        pieces = stream.validation_batches(tokens, limit)
        first = next(pieces)
        assert sum(objective.prepared) <= 1024  # nothing is prepared ahead
        rows = [part.num_rows for one in (first, *pieces) for part in one.micro_batches]
        assert sum(rows) == expected
        assert sum(objective.prepared) == expected
        for size_of in (2, 3):
            alone = Counter(next(iter(stream.validation_batches(tokens, limit))).loss_denominators)
            several = [
                [*stream.validation_batches(tokens, limit, process(i, size_of))]
                for i in range(size_of)
            ]
            assert len({sum(len(one.micro_batch_weights) for one in each) for each in several}) == 1
            counts = [one.loss_denominators["loss"] for each in several for one in each]
            whole = [
                one.loss_denominators["loss"] for one in stream.validation_batches(tokens, limit)
            ]
            assert sum(counts) == sum(whole)
            assert alone


@pytest.mark.parametrize("objective", [LabelledCausal(), OfWholeSteps(), TogetherPrepared()])
@pytest.mark.parametrize("make", [row_stream, example_stream])
@pytest.mark.parametrize("epochs", [0.3, 1, 2, 2.5])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_run_of_epochs_takes_every_row_so_often_and_no_more(objective, make, epochs, processes):
    if make is example_stream and objective.prepares_steps:
        pytest.skip("examples that are prepared together are of whole steps")
    stream = make(objective)
    taken = math.ceil(epochs * len(stream.data) - 1e-6)
    stream = dataclasses.replace(stream, num_taken=taken)
    loader = Loader([stream], [1.0], seed=0, micro_batch_tokens=33)
    steps = SimpleNamespace(
        recipe=SimpleNamespace(train=SimpleNamespace(steps=None, epochs=epochs), phases=()),
        loader=loader,
    )
    number = Trainer.budget_steps.fget(steps)  # type: ignore[attr-defined]
    seen: Counter[bytes] = Counter()
    for step in range(number):
        for rank in range(processes):
            batch = stream.step(
                step, 33, process(rank, processes) if processes > 1 else SINGLE_PROCESS
            )
            for (_, weight), part in zip(
                batch.micro_batch_weights, batch.micro_batches, strict=True
            ):
                if weight:
                    seen.update(_rows_of(part))
    assert sum(seen.values()) == taken
    assert len(seen) == min(taken, len(stream.data))
    assert {*seen.values()} <= {math.floor(epochs), math.ceil(epochs)}


def _rows_of(batch: Batch) -> list[bytes]:
    """What tells rows apart, without padding."""
    mask = batch.attention_mask
    lengths = [batch.input_ids.shape[1]] * batch.num_rows if mask is None else mask.sum(axis=1)
    return [ids[:n].tobytes() for ids, n in zip(batch.input_ids, lengths)]


def test_processes_prepare_their_own_micro_batches_and_nothing_else():
    objectives = (
        *(Causal(), Masked(), SpanCorruption(mean_span=2.0), Denoising()),
        *(SentencePairs(), SentencePairs(pairs="order")),
    )
    for objective in objectives:
        stream = dataclasses.replace(row_stream(objective), vocabulary=ALL_KINDS, rows_per_step=13)
        whole = stream.step(3, 33)
        parts = [stream.step(3, 33, process(rank, 2)) for rank in range(2)]
        assert [part.micro_batch_weights for part in parts] == [
            ((0, 1.0), (2, 1.0), (4, 1.0)),
            ((1, 1.0), (3, 1.0), (4, 0.0)),
        ]
        for part in parts:
            for (number, _), batch in zip(
                part.micro_batch_weights, part.micro_batches, strict=True
            ):
                expected = whole.micro_batches[number].arrays()
                assert batch.arrays().keys() == expected.keys()
                assert all((batch.arrays()[k] == expected[k]).all() for k in expected), objective
        for name in ("num_tokens", "loss_denominators"):
            counts = [Counter({"n": c} if isinstance(c, int) else c) for c in (
                getattr(part, name) for part in (*parts, whole))]  # fmt: skip
            assert counts[0] + counts[1] == counts[2], (objective, name)
    prepared = []

    class Noted(Causal):
        kind: None = None

        def prepare(self, rows, rng, vocabulary):
            prepared.append(rows.num_rows)
            return super().prepare(rows, rng, vocabulary)

    row_stream(Noted()).step(0, 11, process(2, 4))
    assert prepared == [1, 1]  # of seven


def process(rank: int, size: int) -> Parallel:
    """One of several processes along the axis of data, which only shares."""
    data: Any = SimpleNamespace(size=lambda: size, get_local_rank=lambda: rank)
    return Parallel(rank=rank, size=size, data=data)


def test_dropout_differs_between_steps_micro_batches_and_seeds():
    model = random_model(SPECS["gpt2"].with_dropout(0.3))
    stream = dataclasses.replace(row_stream(Causal(), rows=1), rows_per_step=2)

    def losses(step, seed=0):
        """Of two micro-batches of the same row."""
        model.train()
        loader = Loader([stream], [1.0], seed=0, micro_batch_tokens=11)
        trainer, batch, totals = trainer_of(model, loader), loader.step(0), []
        trainer.recipe = trainer.recipe.replace(seed=seed)
        for place in range(2):
            weights, part = (batch.micro_batch_weights[place],), (batch.micro_batches[place],)
            one = dataclasses.replace(batch, micro_batch_weights=weights, micro_batches=part)
            totals.append(float(forward_backward(trainer, one, step)["loss"]))
        return totals

    assert losses(4) == losses(4)
    drawn = [*losses(4), *losses(5), *losses(4, seed=1), *losses(5, seed=1)]
    assert len({round(loss, 3) for loss in drawn}) == 8


def test_micro_batches_that_leave_processes_idle_are_warned_of():
    stream, recipe = row_stream(Causal()), load_recipe("gpt2-tiny")
    model = small_model("gpt2")

    def fitted(tokens, processes, before=None):
        train = recipe.train.replace(micro_batch_tokens=tokens)
        parallel = process(0, processes)
        chosen = reuse_micro_batch_size(recipe.replace(train=train), before or {}, parallel)
        chosen = chosen.replace(parallel=chosen.parallel.replace(data="ddp"))
        return fit_memory(chosen, model, [stream], parallel, precision=torch.float32, device=CPU)

    assert not fitted(77, 1).idle
    assert not fitted(44, 2).idle
    assert "77 leaves some of the 4 processes" in fitted(77, 4).idle
    assert "set at most 22" in fitted(77, 4).idle
    # A run goes on with the size it began with on as many processes, unless its key is changed.
    before = {"micro_batch_tokens": 11, "processes": 2, "recipe": {"train": {}}}
    sizes = [
        reuse_micro_batch_size(recipe.replace(train=recipe.train.replace(micro_batch_tokens=tokens)),
                            before, process(0, processes)).train.micro_batch_tokens
        for tokens, processes in ((None, 2), (None, 4), (22, 2))
    ]  # fmt: skip
    assert sizes == [11, None, 22]


def test_sources_are_drawn_by_weight_and_each_is_read_in_its_own_order():
    streams = [row_stream(Causal(), name="a"), example_stream(LabelledCausal())]
    loader = Loader(streams, [3.0, 1.0], seed=9, micro_batch_tokens=64)
    drawn = [loader._draw_source(n, 0) for n in range(2000)]
    # An epoch is one of the labelled examples, which a quarter of the steps are made of.
    assert loader.steps_per_epoch() == pytest.approx(4 * 41 / 13)
    share = np.mean([source == 0 for source, _ in drawn])
    assert abs(share - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 2000)
    for source in (0, 1):
        assert [n for s, n in drawn if s == source] == [
            *range(len([1 for s, _ in drawn if s == source]))
        ]
    late = Loader(streams, [3.0, 1.0], seed=9, micro_batch_tokens=64)
    assert late._draw_source(1500, 0) == drawn[1500]


def test_examples_of_a_step_keep_their_labels_whatever_the_cuts():
    stream = example_stream(LabelledCausal())
    sums = []
    for tokens in (16, 64, 4096):
        batch = stream.step(2, tokens)
        parts, count = batch.micro_batches, batch.num_tokens
        sums.append(
            sorted(int(part.input_ids[r].sum()) for part in parts for r in range(part.num_rows))
        )
        assert sum(part.num_rows for part in parts) == 13
        assert all(p.num_rows == 1 or p.input_ids.size <= tokens for p in parts)
        assert count == sum(part.num_labels for part in parts)
    assert sums[0] == sums[1] == sums[2]
    assert [len(group) for group in group_by_length(np.array([2, 9, 2, 9, 2]), 1000)] == [5]
    groups = group_by_length(np.array([20] * 9 + [900] * 4), 2000)
    assert [group.tolist() for group in groups] == [[9, 10], [11, 12], [*range(9)]]
    assert (equal_part_size(7, 3), equal_part_size(7, 7), equal_part_size(9, 4)) == (3, 7, 3)


def trainer_of(model, loader, **train) -> Trainer:
    train = {"steps": 2, "log_every": 1, "eval_every": 1, "save_every": 1, **train}
    recipe = load_recipe(
        "gpt2-tiny",
        {
            "train": train,
            "schedule": {"kind": "constant", "warmup": 0},
            "optimizer": {"kind": "adamw", "lr": 1e-9},
        },
    )
    return Trainer(
        recipe,
        TrainStep(model),
        loader,
        recipe.optimizer.build(model),
        callbacks=[Records()],
        device=CPU,
        precision=torch.float32,
        started=0.0,
    )


@pytest.mark.parametrize("objective", [Causal(), Masked(probability=0.4)], ids=["causal", "masked"])
@double_precision()
def test_gradients_do_not_depend_on_the_micro_batch(objective):
    gradients = []
    for tokens in (11, 33, 77):
        model = small_model("bert" if isinstance(objective, Masked) else "gpt2")
        loader = Loader([row_stream(objective)], [1.0], seed=0, micro_batch_tokens=tokens)
        trainer = trainer_of(model, loader)
        losses = forward_backward(trainer, loader.step(4), 4)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        gradients[-1].append(losses["loss"])
    for other in gradients[1:]:
        for one, two in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(one, two)


def test_processes_get_equal_parts_of_a_step():
    stream = dataclasses.replace(row_stream(Causal()), rows_per_step=10)
    for processes, most, rows in (
        (1, 44, 4),
        (2, 10**6, 5),
        (4, 10**6, 3),
        (4, 22, 2),
        (20, 44, 1),
    ):
        assert stream.max_balanced_micro_batch_tokens(processes, most) == rows * 11, (
            processes,
            most,
        )


class Together(LabelledCausal):
    """A step is one batch, which passes through the model in parts."""

    needs_whole_step: ClassVar[bool] = True


class OutOfMemory(Causal):
    """Fails once where a micro-batch is large, as a GPU would."""

    kind: None = None

    def loss(self, model, batch) -> LossTerms:
        if len(batch.inputs["input_ids"]) > 4:
            raise torch.cuda.OutOfMemoryError("full")
        return token_losses(model, batch)


def test_out_of_memory_halves_the_micro_batch_once_and_says_so():
    model = small_model("gpt2")
    loader = Loader([row_stream(OutOfMemory())], [1.0], seed=0, micro_batch_tokens=77)
    trainer = trainer_of(model, loader)
    state = trainer.train(TrainState())
    assert state.step == 2
    assert loader.micro_batch_tokens == 38
    # From a size that no step fills, and of examples of different lengths: halved until it helps.
    streams = map(example_stream, (LabelledCausal(), Together()))
    for stream in (row_stream(Causal()), *streams):
        loader = Loader([stream], [1.0], seed=0, micro_batch_tokens=4096)
        ahead = loader.steps_from(0)
        before = next(ahead)
        after, following = loader.halve_micro_batches(0), next(ahead)
        assert len(after.sizes) > len(before.sizes)
        # Whoever begins with the new size cuts every step in the same way.
        again = Loader([stream], [1.0], seed=0, micro_batch_tokens=loader.micro_batch_tokens)
        for number, batch in enumerate((after, following)):
            parts = zip(batch.micro_batches, again.step(number).micro_batches, strict=True)
            assert all((one.input_ids == other.input_ids).all() for one, other in parts)
        ahead.close()


def test_the_last_log_line_is_a_mean_over_as_many_steps_as_every_other():
    records = {}
    for every in (1, 3):
        loader = Loader([row_stream(Causal())], [1.0], seed=0, micro_batch_tokens=77)
        trainer = trainer_of(small_model("gpt2"), loader, steps=4, log_every=every)
        trainer.train(TrainState())
        logged = trainer.callbacks[0].records  # type: ignore[attr-defined]
        records[every] = {record["step"]: record["train_loss"] for record in logged}
    single = records[1]
    assert records[3] == {
        3: pytest.approx((single[1] + single[2] + single[3]) / 3),
        4: pytest.approx((single[2] + single[3] + single[4]) / 3),
    }


class Weighted(Causal):
    """A loss of two terms."""

    kind: None = None

    def term_weights(self):
        return {"nsp": 2.0}


def test_the_means_of_sources_and_terms():
    meter = LossMeter()
    for _ in range(3):
        losses = {"mlm": torch.tensor(8.0), "nsp": torch.tensor(0.5)}
        meter.add("a", losses, {"mlm": 2, "nsp": 1})
    meter.add("b", {"loss": torch.tensor(3.0)}, {"loss": 3})
    streams = [row_stream(Weighted(), name="a"), row_stream(Causal(), name="b")]
    means = LossMeter(saved=json.loads(json.dumps(meter.to_list()))).compute_means("valid", streams)
    assert means == {
        "valid_loss": pytest.approx(0.75 * 5.0 + 0.25),
        "valid_a": 5.0,
        "valid_a/mlm": 4.0,
        "valid_a/nsp": 0.5,
        "valid_b": 1.0,
    }
    # A source "c" has a share of the steps, but no held-out data.
    means = meter.compute_means("valid", streams, {"a": 0.2, "b": 0.6, "c": 0.2})
    assert means["valid_loss"] == pytest.approx((0.2 * 5.0 + 0.6 * 1.0) / 0.8)


def test_two_values_of_one_name_are_refused():
    meter = LossMeter()
    meter.add("", {"loss": torch.tensor(8.0), "nsp": torch.tensor(0.5)}, {"loss": 2, "nsp": 1})
    with pytest.raises(RecipeError, match="valid_loss is the name of two values"):
        meter.compute_means("valid", [row_stream(Weighted())])


def test_memory_is_that_of_the_control_group_and_too_large_models_are_refused(tmp_path):
    job, own = tmp_path / "slurm" / "job", tmp_path / "cgroup"
    job.mkdir(parents=True)

    def limit(group, most):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text("1000\n")
        (group / "memory.stat").write_text("anon 800\ninactive_file 200\n")

    own.write_text("1:cpu:/\n0::/slurm/job\n")
    assert _free_cgroup_memory(tmp_path, own) == 2**62
    limit(tmp_path, "max")
    limit(job.parent, 3000)
    limit(job, 7000)
    assert _free_cgroup_memory(tmp_path, own) == 2200  # the cache of files can be given up
    limit(tmp_path, 2000)
    assert _free_cgroup_memory(tmp_path, tmp_path / "none") == 1200
    assert free_memory(CPU) > 0
    # Eager attention keeps the scores of every layer, in float32.
    bert = presets["bert-base"]
    short, long = (bert.activation_bytes(n, 4, on_cpu=True) for n in (100, 1100))
    assert long - short == 12 * (3 * 12 * 1000 * 4)
    recipe = load_recipe("gpt2-tiny", {"optimizer.lr": 1e-3})

    def fitted(model):
        stream = row_stream(Causal(), rows=1000)
        stream = dataclasses.replace(stream, rows_per_step=1000)
        return fit_memory(
            recipe, model, [stream], SINGLE_PROCESS, precision=torch.float32, device=CPU
        )

    assert fitted(small_model("gpt2")).micro_batch_tokens == 334 * 11  # of at most 4,096 tokens
    with pytest.raises(RecipeError, match=r"one row of 11 tokens.* choose a smaller preset"):
        fitted(build(presets["llama-65b"], device="meta"))


def test_the_balance_of_experts_is_weighted_by_the_real_tokens_of_micro_batches():
    """Not by positions, of which short rows have as many as long ones."""
    expert = spec.MLP(d_ff=7, activation="tanh")
    network = Experts(num_experts=5, expert=expert, aux_loss_coef=0.3)
    stack = SPECS["llama"].decoder.with_layers(feed_forward=network)
    with double_precision():
        model = random_model(SPECS["llama"].replace(decoder=stack))
        ids, lengths = random_ids(4, 11), np.array([11, 10, 2, 3])
        mask = (np.arange(11) < lengths[:, None]).astype(np.int64)
        batch = Batch(ids.numpy(), attention_mask=mask, labels=np.where(mask, 1, IGNORE_INDEX))
        expected = total = 0.0
        for part in (batch.slice_rows(0, 2), batch.slice_rows(2, 4)):
            terms = Causal().loss(model, to_device(part, CPU))
            inputs, real = torch.from_numpy(part.input_ids), torch.from_numpy(part.attention_mask)
            _, loss = model.read(inputs, attention_mask=real)
            expected += loss.item() * int(real.sum())
            total += terms["aux_loss"].item()
    assert batch.num_tokens == 26
    assert total == pytest.approx(expected, rel=1e-9)
