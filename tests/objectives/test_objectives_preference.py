"""Preferences: pairs of texts and messages, rewards and losses by the formulas of the papers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from overfit_tasks import encode_with_references, overfit, untrained

from trivium.data.batch import IGNORE_INDEX
from trivium.data.row_order import RowRandom
from trivium.errors import DataError, RecipeError
from trivium.objectives import to_device
from trivium.objectives.kto import KTO, UnpairedPreference
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.preference import PreferenceOptimization, compute_preference_losses
from trivium.objectives.preference_pairs import Preference
from trivium.objectives.reward_model import Reward
from trivium.presets import presets
from trivium.train import defaults
from trivium.train.loader import split_into_slices
from trivium.train.recipe_loading import build_recipe
from trivium.train.run_warnings import RunHistory

CPU = torch.device("cpu")
PAIRS = [
    Preference("who wrote it", " Ada did", " go away and never come back", "x, line 1", 0.5),
    Preference("what is red", " a rose is red", " nothing", "x, line 2"),
    Preference("hi", " ho", " he he he", "x, line 3", 1.5),
]


def read(folder, record, objective=None):
    path = folder / "a.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    (one,) = (objective or Reward()).read([str(path)])
    return one


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_reads_texts_and_messages(tmp_path):
    one = read(tmp_path, {"question": "q", "chosen": "a", "rejected": "b", "margin": "2"})
    assert (one.prompt, one.chosen, one.rejected, one.margin, one.group_key) == (
        "q",
        "a",
        "b",
        2,
        "q",
    )
    whole = "Human: why?\n\nAssistant: "
    one = read(tmp_path, {"chosen": whole + "because", "rejected": whole + "begone"})
    assert (one.prompt, one.chosen, one.rejected) == (whole[:-1], " because", " begone")
    user, yes, no = message("user", "q"), message("assistant", "yes"), message("assistant", "no")
    for record in (
        {"prompt": [user], "chosen": [yes], "rejected": [no]},
        {"prompt": [user], "chosen": "yes", "rejected": "no"},
        {"prompt": "q", "chosen": [yes], "rejected": [no]},
        {"prompt": "anything", "chosen": [user, yes], "rejected": [user, no]},
        {"chosen": [user, yes], "rejected": [user, no]},
    ):
        one = read(tmp_path, record)
        assert (one.prompt, one.chosen, one.rejected) == ((user,), (yes,), (no,)), record
    longer = read(tmp_path, {"chosen": [user, yes], "rejected": [user, yes, user, no]})
    assert (longer.prompt, longer.chosen) == ((user,), (yes,))
    for record, problem in (
        ({"prompt": "q", "chosen": "a"}, "no column for the rejected"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "are the same: .*bad_records=skip"),
        ({"prompt": "q", "chosen": "a", "rejected": " "}, '"rejected" of .*line 1 is blank'),
        ({"prompt": 3, "chosen": "a", "rejected": "b"}, "is a number, not a list of messages"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": "x"}, "a string, not a finite"),
    ):
        with pytest.raises(DataError, match=problem):
            read(tmp_path, record)
    [finding] = Reward().find_problems([Preference("q", "longer", "long", "x")] * 9)
    assert (finding.count, finding.total, finding.wrong) == (9, 9, True)
    both = [Preference("q", "a", "bc", "x"), Preference("q", "abc", "d", "x")]
    assert not Reward().find_problems(both)[0].wrong


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def formulas(p, q, n, beta, gamma, e) -> dict[str, float]:
    """Of log p and log q of the chosen and the rejected response, and their tokens."""
    h = (p[0] - q[0]) - (p[1] - q[1])
    mean = [p[0] / n[0], p[1] / n[1]]
    simpo = beta * mean[0] - beta * mean[1] - gamma
    odds = [math.exp(each) / (1 - math.exp(each)) for each in mean]
    return {
        "sigmoid": -(1 - e) * log_sigmoid(beta * h) - e * log_sigmoid(-beta * h),
        "hinge": max(0.0, 1 - beta * h),
        "ipo": (h - 1 / (2 * beta)) ** 2,
        "simpo": -(1 - e) * log_sigmoid(simpo) - e * log_sigmoid(-simpo),
        "orpo": -beta * log_sigmoid(math.log(odds[0] / odds[1])),
    }


def test_losses_are_those_of_the_papers():
    policy = torch.tensor([[-3.1, -9.2], [-7.7, -2.3], [-11.9, -40.0]], dtype=torch.float64)
    reference = torch.tensor([[-4.0, -8.1], [-5.9, -3.3], [-13.5, -16.0]], dtype=torch.float64)
    tokens = torch.tensor([[3, 7], [5, 2], [13, 11]])
    for beta, e in ((0.1, 0.0), (0.7, 0.2)):
        rows = zip(policy.tolist(), reference.tolist(), tokens.tolist())
        expected = [formulas(*row, beta, 0.3, e) for row in rows]
        for kind in expected[0]:
            smoothed = kind in ("sigmoid", "simpo")
            keys = {"loss_type": kind, "beta": beta, "gamma": 0.3}
            objective = PreferenceOptimization(**keys, label_smoothing=e if smoothed else 0.0)
            losses = compute_preference_losses(objective, policy, reference, tokens)
            assert losses.tolist() == pytest.approx([one[kind] for one in expected], rel=1e-12)
    with pytest.raises(RecipeError, match="label_smoothing is not for"):
        PreferenceOptimization.from_tree({"loss_type": "ipo", "label_smoothing": 0.1})


def batch_of(objective, lm, examples):
    rows = encode_with_references(objective, examples, lm).take(range(len(examples)))
    return objective.prepare(rows, RowRandom(0, [0] * len(examples)), lm.tokenizer.vocabulary)


def terms_of(objective, lm, examples):
    batch = batch_of(objective, lm, examples)
    counts = objective.loss_denominators(batch)
    terms = objective.loss(lm.module, to_device(batch, CPU))
    assert terms.keys() == counts.keys()
    return {name: float(term.detach()) / counts[name] for name, term in terms.items()}


def line(number):
    """The first entries of log line `number`, from 1."""
    return {"step": 10 * number, "tokens": 0, "lr": 1.0, "train_loss": 0.5}


def test_bad_signs_are_called_out_once():
    def warnings(*records, loss_type="sigmoid"):
        history = RunHistory(PreferenceOptimization(loss_type=loss_type))
        rows = enumerate(records, start=1)
        found = [
            history.find_warning({**line(n), "train_preference": loss, "train_chosen": chosen})
            for n, (loss, chosen) in rows
        ]
        return [text.partition(" (")[0].partition(":")[0] for text in found if text]

    assert warnings((0.69, 0.1), *[(0.6, 0.3)] * 9) == []
    assert warnings(*[(0.6931, 0.0)] * 9) == ["the loss is still ln 2 after 50 steps"]
    fallen = "the chosen responses are less probable than at the start"
    assert warnings(*[(0.5, -3.0)] * 9) == [fallen]
    assert warnings((0.96, 0.0), (0.8, 0.0)) == ["the first loss is 0.960, not ln 2 = 0.693"]
    assert warnings((0.96, 0.0), *[(0.6931, -3.0)] * 9, loss_type="ipo") == []


def test_bad_signs_of_kto_and_policies_are_called_out_once():
    def signs(objective, **columns):
        """The beginning of every warning, for values of 12 records."""
        history = RunHistory(objective)
        rows = ({f"train_{name}": value(n) for name, value in columns.items()} for n in range(12))
        found = [history.find_warning({**line(n), **row}) for n, row in enumerate(rows, start=1)]
        return [" ".join(text.split()[:3]) for text in found if text]

    def kto(good, loss, **keys):
        return signs(KTO(**keys), kto=loss, desirable=good)

    assert kto(lambda n: 0.01 * n, lambda n: 0.49) == []
    assert kto(lambda n: 1e-5, lambda n: 0.5) == ["the loss is"]
    assert kto(lambda n: -0.2 * n, lambda n: 0.49) == ["the desirable responses"]
    assert kto(lambda n: -0.2 * n, lambda n: 0.49, undesirable_weight=2.0) == []

    def policy(**columns):
        healthy = {  # sums, rewarded where they are right, with a divergence of 4 nats in the end
            "policy": lambda n: 0.001,
            "reward": lambda n: 0.04 + 0.05 * n + 0.004 * (-1) ** n,
            "frac_reward_zero_std": lambda n: 0.76 - 0.04 * n,
            "kl": lambda n: 0.4 * n,
            "length": lambda n: 3.4 - 0.01 * n,
            "terminated": lambda n: 0.99,
            "distinct_2": lambda n: 0.56 - 0.01 * n,
        }
        return signs(PolicyGradient(max_new_tokens=10), **{**healthy, **columns})

    assert policy() == []
    assert policy(frac_reward_zero_std=lambda n: 0.97) == ["in 97% of"]
    assert policy(kl=lambda n: 4.0 * n) == ["the KL divergence"]
    assert policy(distinct_2=lambda n: 0.9 / (n + 1)) == ["responses repeat themselves"]
    assert policy(length=lambda n: min(10, 3 + n)) == ["responses grew from"]
    assert policy(length=lambda n: 9.9) == []
    assert policy(terminated=lambda n: 0.2) == ["the model ends"]
    noise = [0.041, 0.052, 0.038, 0.047, 0.044, 0.039, 0.051, 0.043, 0.048, 0.036, 0.045, 0.042]
    assert policy(reward=noise.__getitem__) == []
    assert policy(reward=lambda n: noise[n] - 0.01 * n) == ["the reward falls"]
    falling = {"reward": lambda n: noise[n] - 0.01 * n, "kl": lambda n: 30.0}
    both = policy(frac_reward_zero_std=lambda n: 0.9 * (n < 5), **falling)
    assert both == ["in 90% of", "the KL divergence", "the reward falls"]
    assert RunHistory(PolicyGradient()).find_warning({"step": 9, "valid_reward": 0.3}) is None


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_the_first_loss_is_ln_2_and_labels_are_the_responses(family):
    objective, lm = untrained(PreferenceOptimization(), PAIRS, family)
    terms = terms_of(objective, lm, PAIRS)
    assert terms["preference"] == pytest.approx(math.log(2), abs=1e-5)
    assert abs(terms["margin"]) + abs(terms["chosen"]) < 1e-3
    batch = batch_of(objective, lm, PAIRS[:1])
    for part, response in zip(np.split(batch.labels[0], 2), ("Ada did", PAIRS[0].rejected)):
        target = part[part != IGNORE_INDEX].tolist()
        assert target[-1] == lm.tokenizer.eos_id
        assert lm.tokenizer.decode(target[:-1]) == response.strip()
    # Of pairs alone, and of another order, the same: padding counts for nothing.
    scores = [(sum(n), logp) for logp, n in objective.predict(lm, PAIRS)]
    alone = [objective.predict(lm, [one])[0] for one in PAIRS]
    for (size, logp), (other, n) in zip(scores, alone):
        assert (size, logp) == (sum(n), pytest.approx(other, rel=1e-4))
    # As the method that users call has it.
    prompt, response = ("who wrote it", " Ada did") if family == "gpt2" else ("hi", "ho")
    number = 0 if family == "gpt2" else 2
    total = lm.score(response.strip(), context=prompt)
    assert scores[number][1][0] < total  # and the end of the text
    with torch.no_grad():
        for weight in lm.module.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    moved = terms_of(objective, lm, PAIRS)
    assert moved["margin"] == pytest.approx(0, abs=1e-3)  # encoded anew: its own reference


@pytest.mark.parametrize(
    ("family", "options"),
    [("gpt2", {"loss_type": "orpo"}), ("t5", {"beta": 0.5, "sft_weight": 0.2})],
    ids=["gpt2-orpo", "t5-sigmoid"],
)
def test_overfits_preferences(family, options):
    objective = PreferenceOptimization(**options)
    objective, lm, _ = overfit(objective, PAIRS, family, steps=25, lr=5e-3)
    metrics = objective.evaluate(lm, PAIRS)
    assert metrics.values["accuracy"] == 1.0
    assert metrics.values["ranking_accuracy"] == 1.0
    assert metrics.values["perplexity"] < 3
    seen = PreferenceOptimization().evaluate(lm, PAIRS)  # without a reference
    assert seen.main == "ranking_accuracy"


def test_preferences_need_a_model_that_generates_and_have_defaults():
    with pytest.raises(RecipeError, match="for models that generate text"):
        PreferenceOptimization().heads(presets["bert-mini"])
    tree = {"model": {"preset": "gpt2-tiny"}, "objective": {"kind": "preference"}}
    recipe = build_recipe(tree | {"data": {"paths": ["a"]}})
    complete = defaults.complete(recipe, presets["gpt2-tiny"], num_examples=64)
    rate = defaults.finetuning_learning_rate(presets["gpt2-tiny"], new_weights=True, adapted=False)
    assert (complete.model.dropout, complete.train.epochs) == (0.0, 1.0)
    assert complete.optimizer.lr == pytest.approx(rate / 10, rel=0.01)


@pytest.mark.parametrize(
    ("loss_type", "weight"),
    [("sigmoid", 0.0), ("ipo", 0.0), ("hinge", 0.0), ("simpo", 0.0), ("orpo", 1.0)],
)
def test_only_orpo_trains_on_the_chosen_response_by_default(loss_type, weight):
    """The loss of each paper, unless the recipe sets a weight."""
    objective = PreferenceOptimization(loss_type=loss_type).infer_keys(presets["gpt2-tiny"], PAIRS)
    assert objective.term_weights()["sft"] == weight


def test_conversations_are_written_by_the_chat_template():
    user, yes = message("user", "who wrote it"), message("assistant", "Ada did")
    before = (user, yes, message("user", "hi"))
    pair = Preference(before, (message("assistant", "ho"),), (message("assistant", "he he"),), "x")
    objective, lm = untrained(PreferenceOptimization(), [*PAIRS, pair], "gpt2")
    labels = batch_of(objective, lm, [pair]).labels[0]
    texts = [
        lm.tokenizer.decode(half[half != IGNORE_INDEX].tolist()) for half in np.split(labels, 2)
    ]
    assert [text.split()[:2] for text in texts] == [["ho"], ["he", "he"]]


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_rewards_are_those_of_bradley_and_terry(family):
    objective, lm = untrained(Reward(center=0.01), PAIRS, family)
    terms = terms_of(objective, lm, PAIRS)
    r = np.array(objective.predict(lm, PAIRS)).reshape(-1, 2)
    margins = [one.margin for one in PAIRS]
    losses = [-log_sigmoid(a - b - m) for (a, b), m in zip(r, margins)]
    assert terms["pairs"] == pytest.approx(np.mean(losses), rel=1e-3)
    assert terms["center"] == pytest.approx(np.mean(r.sum(1) ** 2), rel=1e-3)
    assert objective.term_weights() == {"center": 0.01}
    objective, lm, _ = overfit(objective, PAIRS, family, steps=40, lr=3e-3)
    metrics = objective.evaluate(lm, PAIRS)
    assert metrics.values["accuracy"] == 1.0
    chosen, rejected = (one.score for one in lm.classify(["hi ho", "hi he he he"]))
    assert metrics.predictions[2]["reward"] == pytest.approx(chosen, rel=1e-3)
    assert chosen > rejected
    assert metrics.mistakes == ()


def test_rewards_need_one_vector_of_a_text():
    with pytest.raises(RecipeError, match="needs one vector of a text"):
        Reward().heads(presets["t5-mini"])


JUDGEMENTS = [
    UnpairedPreference("who wrote it", " Ada did", True, "x, line 1"),
    UnpairedPreference("who wrote it", " go away and never come back", False, "x, line 2"),
    UnpairedPreference("what is red", " a rose is red", True, "x, line 3"),
    UnpairedPreference("hi", " he he he", False, "x, line 4"),
    UnpairedPreference("hi", " ho", True, "x, line 5"),
]


def test_judgements_one_by_one(tmp_path):
    one = read(tmp_path, {"prompt": "q", "completion": "a", "label": "False"}, KTO())
    assert (one.prompt, one.response, one.is_desirable) == ("q", "a", False)
    user, yes = message("user", "q"), message("assistant", "yes")
    one = read(tmp_path, {"completion": [user, yes], "label": 1}, KTO())
    assert (one.prompt, one.response, one.is_desirable) == ((user,), (yes,), True)
    with pytest.raises(DataError, match=r'is "5": give true or 1 .* false or 0'):
        read(tmp_path, {"prompt": "q", "completion": "a", "label": 5}, KTO())
    with pytest.raises(DataError, match=r"all 2 responses are desirable, .* compares both"):
        KTO().infer_keys(presets["gpt2-tiny"], [one, one])
    ratio = torch.tensor([1.3, -0.4, 0.2], dtype=torch.float64)
    for others, point in (([0.9, 0.5, 0.1], 0.5), ([-3.0, 1.0, 0.5], 0.0)):
        other, good = torch.tensor(others, dtype=torch.float64), torch.tensor([1, 0, 1]) > 0
        losses = KTO(beta=0.3, desirable_weight=1.2, undesirable_weight=0.7).compute_losses(
            ratio, other, good
        )
        gains = [0.3 * (r - point) * s for r, s in zip(ratio.tolist(), (1, -1, 1))]
        expected = [w * (1 - 1 / (1 + math.exp(-gain))) for w, gain in zip((1.2, 0.7, 1.2), gains)]
        assert losses.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_step_of_judgements_in_parts_is_one_step(family):
    objective, lm = untrained(KTO(), JUDGEMENTS, family)
    batch = batch_of(objective, lm, JUDGEMENTS)
    first = terms_of(objective, lm, JUDGEMENTS)
    assert first["kto"] == pytest.approx(0.5, abs=1e-4)
    rows = objective.predict(lm, JUDGEMENTS)
    tensors = to_device(batch, CPU)
    tensors.sequence_labels[:, :2] -= torch.arange(5)[:, None] / 4  # as if it had learned
    gradients = []
    for slices in ((), split_into_slices(batch, 20)):
        assert len(slices) != 1
        terms = objective.loss(lm.module, replace(tensors, slices=slices))
        terms["kto"].backward()
        gradients.append([terms["kto"].item(), terms["desirable"].item()])
        gradients.append([float(p.grad.abs().sum()) for p in lm.module.parameters()])
        lm.module.zero_grad()
    assert gradients[:2] == [pytest.approx(one, rel=1e-3, abs=1e-4) for one in gradients[2:]]
    if family == "gpt2":
        return
    objective, lm, _ = overfit(objective, JUDGEMENTS, family, steps=30, lr=3e-3)
    after = objective.predict(lm, JUDGEMENTS)
    for one, (before, _), (now, _) in zip(JUDGEMENTS, rows, after):
        assert (now > before) == one.is_desirable
    assert objective.evaluate(lm, JUDGEMENTS).values["auc"] == 1.0
