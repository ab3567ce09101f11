"""What truncation takes from examples is counted in every task, and no end follows a cut target."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from labelled_tasks import FAMILIES, KINDS, TO_TARGET, examples_of, record
from overfit_tasks import untrained

from trivium.data.batch import IGNORE_INDEX
from trivium.data.encoded import has_target
from trivium.errors import DataError
from trivium.evaluate.perplexity import Perplexity, perplexity
from trivium.objectives import LabelledObjective
from trivium.objectives.task_metrics import compute_perplexity

pytestmark = pytest.mark.usefixtures("double_precision")

LIMIT = 16
WINDOWED = ("tagging", "qa")
# Tasks whose examples end with a response that a long prompt leaves no room for.
RESPONDING = ("chat", "preference", "kto", "reward")


def encoded_of(kind, folder, records, limit, family=""):
    """The encoded examples of some records for a model that reads `limit` tokens at once."""
    examples = examples_of(kind, folder / "a.jsonl", records)
    objective = LabelledObjective.kinds[kind].from_tree({"kind": kind})
    assert isinstance(objective, LabelledObjective)
    objective, lm = untrained(objective, examples, family or FAMILIES[kind])
    config = {**lm.settings.config, **({} if limit is None else {"trained_length": limit})}
    lm.settings = dataclasses.replace(lm.settings, config=config)
    return objective.encode(examples, lm), examples, objective, lm


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "policy"])
def test_what_is_cut_is_what_the_rows_lack(kind, tmp_path):
    sizes = (3, 2, 40, 2, 61, 30)
    records = [
        record(kind, n, size=3 if kind in RESPONDING else size, response=size)
        for n, size in enumerate(sizes)
    ]
    whole, *_ = encoded_of(kind, tmp_path, records, None)
    assert len(whole.truncations) == len(records)
    assert not whole.truncations[:, (0, 2)].any()
    assert (whole.truncations[:, 1] > 0).all()
    short, *_ = encoded_of(kind, tmp_path, records, LIMIT)
    assert len(short.truncations) == len(records)
    if kind in WINDOWED:
        assert not short.truncations[:, 0].any()
        assert len(short) > len(records)
        return
    assert has_target(short.truncations).all()
    assert len(short) == len(records)
    lacking = whole.lengths - short.lengths
    if kind == "kto":  # beside each response is that of another prompt
        lacking = np.array([0, 0, *short.truncations[2:3, 0], 0, *short.truncations[4:, 0]])
    assert short.truncations[:, 0].tolist() == lacking.tolist()
    assert [bool(cut) for cut in short.truncations[:, 0]] == [size > 20 for size in sizes]
    assert short.truncations[:, 1].tolist() == whole.truncations[:, 1].tolist()


@pytest.mark.parametrize("kind", RESPONDING)
def test_examples_without_a_target_are_left_out_and_counted(kind, tmp_path):
    records = [record(kind, n, size=3 if n % 3 else 40) for n in range(7)]
    encoded, *_ = encoded_of(kind, tmp_path, records, LIMIT)
    assert has_target(encoded.truncations).tolist() == [bool(n % 3) for n in range(7)]
    assert len(encoded) == 4
    encoded.store([encoded, encoded], tmp_path / "stored")
    again = type(encoded).open(tmp_path / "stored")
    assert (len(again), again.truncations.tolist()) == (8, [*encoded.truncations.tolist()] * 2)


def test_a_question_whose_answer_is_whole_in_no_window_is_left_out(tmp_path):
    records = [record("qa", n, size=40) for n in range(4)]
    records[1]["answers"] = [records[1]["context"]]
    encoded, *_ = encoded_of("qa", tmp_path, records, LIMIT)
    assert has_target(encoded.truncations).tolist() == [True, False, True, True]
    whole, *_ = encoded_of("qa", tmp_path, [r for n, r in enumerate(records) if n != 1], LIMIT)
    assert len(encoded) == len(whole)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *((kind, "t5") for kind in (*TO_TARGET, "preference", "kto", "classification")),
        *((kind, "gpt2") for kind in ("chat", "preference", "kto", "classification")),
        ("tsdae", "bert"),
    ],
)
def test_no_end_follows_a_target_that_is_cut(kind, family, tmp_path):
    """A model would learn to stop in the middle of a sentence."""
    for is_long in (False, True):
        is_text = kind in ("classification", "tsdae")
        size, response = (50, 2) if is_long and is_text else (3, 50 if is_long else 1)
        records = [record(kind, n, size=size, response=response) for n in range(4)]
        if kind == "classification" and family == "t5":
            for one in records:
                one["label"] += " x" * (50 if is_long else 0)
        encoded, _, _, lm = encoded_of(kind, tmp_path, records, LIMIT, family)
        labels = encoded.take(range(len(encoded))).labels
        if kind in ("preference", "kto"):  # two rows side by side
            labels = np.concatenate([row[row != IGNORE_INDEX] for row in labels])
        end = lm.text_tokenizer.vocabulary.sep_id if family == "bert" else lm.text_tokenizer.eos_id
        assert (labels != IGNORE_INDEX).sum() > 4
        assert bool(encoded.truncations[:, 0].any()) == is_long
        assert (end in labels) != is_long


@pytest.mark.parametrize("kind", ["chat", "preference"])
def test_perplexity_of_no_token_is_refused(kind, tmp_path):
    records = [record(kind, n, size=40) for n in range(3)]
    _, examples, objective, lm = encoded_of(kind, tmp_path, records, LIMIT)
    with pytest.raises(DataError, match="there is no token to compute a perplexity of"):
        objective.evaluate(lm, examples)


def test_perplexity_of_no_text_is_refused(tmp_path):
    *_, lm = encoded_of("chat", tmp_path, [record("chat", n) for n in range(3)], None)
    for texts in ([], [""]):
        result = perplexity(lm, texts)
        if not result.num_tokens:
            with pytest.raises(DataError, match=r"no token of .* documents can be scored"):
                result.to_dict()
    with pytest.raises(DataError):
        Perplexity().to_dict()
    with pytest.raises(DataError):
        compute_perplexity(0.0, 0)
