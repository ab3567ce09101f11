"""Policy gradient: against all texts there are, its samples, and runs that are resumed."""

from __future__ import annotations

import html
import json
import os
import re
import signal

import numpy as np
import pytest
import torch
from policies import CPU, END, PROMPTS, model
from run_settings import assert_equal_runs, quiet, settings

from trivium.adapt.lora import LoRA, add_lora
from trivium.data.batch import IGNORE_INDEX
from trivium.errors import DataError, RecipeError
from trivium.language_model import LanguageModel
from trivium.model_folder import checkpoints
from trivium.model_loading import load
from trivium.objectives import to_device
from trivium.objectives.advantages import clipped_value_loss
from trivium.objectives.example_checks import check_examples
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.responses import Prompt
from trivium.presets import presets
from trivium.train import defaults
from trivium.train.distributed import SINGLE_PROCESS
from trivium.train.recipe_loading import build_recipe
from trivium.train.trainer import Interrupted
from trivium.workflows.training import finetune


def test_samples_follow_from_weights_and_seed():
    lm = model()
    rewards = ({"kind": "regex", "pattern": "b"},)
    objective = PolicyGradient(num_generations=6, max_new_tokens=4, rewards=rewards)
    rows = objective.encode(PROMPTS, lm).take(range(3))
    batches = [rows.to_batch().slice_rows(0, 2), rows.to_batch().slice_rows(2, 3)]
    one, same, other = (
        objective.rollout(lm, lm.module, batches, seed, SINGLE_PROCESS.map) for seed in (5, 5, 6)
    )
    for name, array in one.arrays().items():
        assert np.array_equal(array, same.arrays()[name]), name
    assert one.input_ids.shape != other.input_ids.shape or (one.input_ids != other.input_ids).any()
    width = one.labels.shape[1]
    metrics = dict(zip(objective._metric_names, one.metrics.T))
    for ids, labels, ended, length, reward in zip(
        one.input_ids, one.labels, metrics["terminated"], metrics["length"], metrics["reward_regex"]
    ):
        response = labels[labels != IGNORE_INDEX].tolist()
        assert (response[-1] == END) == bool(ended) or len(response) == 4
        assert len(response) == length
        assert ids[1 : len(response)].tolist() == response[:-1]
        text = lm.tokenizer.decode([each for each in response if each != END])
        assert reward == ("b" in text)
    first = one.advantages[np.arange(18), (one.labels != IGNORE_INDEX).argmax(1)]
    assert first.reshape(3, 6).sum(1) == pytest.approx(0, abs=1e-5)
    tensors, counts = to_device(one, CPU), objective.loss_denominators(one)
    terms = objective.loss(lm.module, tensors)
    assert terms.keys() == counts.keys()
    assert {name for name, w in objective.term_weights().items() if w} == {"policy", "k3", "value"}
    # The ratio is 1, to the last bit, and the model is its reference.
    advantages = torch.tensor(first)[tensors.label_positions // width]
    assert float(terms["policy"].detach()) == -float(advantages.sum())
    logp, *_ = objective._compute_logps(lm.module, tensors)
    reference = tensors.extras["reference_logps"].flatten()[tensors.label_positions]
    assert float((logp.detach() - reference).abs().max()) < 1e-4
    assert abs(float(terms["kl"])) < 1e-3
    # The base of an adapter is the reference, with no copy of it.
    adapted = model()
    add_lora(adapted.module, LoRA(rank=2))
    with_adapter = PolicyGradient(**dict(objective))
    with_adapter.encode(PROMPTS, adapted)
    with torch.no_grad():
        for name, weight in adapted.module.named_parameters():
            weight.add_(1.0 if name.endswith("lora_b") else 0.0)
    now, _ = with_adapter._compute_rollout_logps(adapted.module, one, SINGLE_PROCESS.map)
    arrays = with_adapter._compute_token_arrays(
        adapted, adapted.module, one, np.zeros(18), SINGLE_PROCESS.map
    )
    base = arrays["reference_logps"][one.labels != IGNORE_INDEX]
    assert with_adapter._reference is None
    assert np.abs(now - base).max() > 0.01
    assert base == pytest.approx(reference.double().numpy(), abs=1e-5)
    metrics = objective.evaluate(lm, PROMPTS)
    assert metrics.main == "reward"
    assert metrics.values["reward"] == np.mean([row["reward"] for row in metrics.predictions])


def test_several_updates_are_bounded():
    """By the probabilities that the first update, whose ratios are 1, has computed."""
    lm = model(torch.float64)
    keys = {"clip": 0.1, "beta": 0.0, "max_new_tokens": 4}
    rewards = ({"kind": "regex", "pattern": "b"},)
    objective = PolicyGradient(num_generations=4, num_iterations=2, rewards=rewards, **keys)
    rows = objective.encode(PROMPTS, lm).take(range(6)).to_batch()
    batch = objective.rollout(lm, lm.module, [rows], 1, SINGLE_PROCESS.map)
    parts = [to_device(batch.slice_rows(*ends), CPU) for ends in ((0, 5), (5, 24))]
    logps, advantage = [], []
    for part in parts:
        terms = objective.loss(lm.module, part)
        assert terms["clipped"] == 0
        column = part.extras["advantages"].flatten()
        advantage.append(column[part.label_positions].double())
        assert float(terms["policy"].detach()) == -float(advantage[-1].sum())
        logps.append(objective._compute_logps(lm.module, part)[0].detach())
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in lm.module.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    for part, before, a in reversed([*zip(parts, logps, advantage)]):
        terms = objective.loss(lm.module, part)
        now = objective._compute_logps(lm.module, part)[0].detach()
        assert -float(terms["entropy"]) == pytest.approx(float(before.sum()), rel=1e-12)
        expected, clipped = 0.0, 0
        for ratio, one in zip((now - before).exp().tolist(), a.tolist()):
            bound = 1.1 if one > 0 else 0.9
            beyond = ratio > bound if one > 0 else ratio < bound
            expected -= one * (bound if beyond else ratio)
            clipped += beyond and one != 0
        assert float(terms["policy"].detach()) == pytest.approx(expected, rel=1e-9)
        assert terms["clipped"] == clipped > 0


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, -3.3])
@pytest.mark.parametrize("kl", ["reward", "k3"])
@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "ppo"])
def test_equal_rewards_give_no_advantage(algorithm, kl, reward, monkeypatch):
    """Though the model has moved from its reference by so little as a weight decay moves it."""
    lm = model(torch.float64)
    objective = PolicyGradient(algorithm=algorithm, kl=kl, num_generations=4, max_new_tokens=4)
    if algorithm == "ppo":
        lm.module = objective.build(lm.spec, seed=3, device=CPU).double()
    rows = objective.encode(PROMPTS, lm).take(range(6)).to_batch()
    with torch.no_grad():
        for weight in lm.module.parameters():
            weight.mul_(1 - 1e-9)
    metrics = PolicyGradient._compute_rollout_metrics

    def equal(self, responses, group):
        known = metrics(self, responses, group)
        return known | {"reward": np.full_like(known["reward"], reward)}

    monkeypatch.setattr(PolicyGradient, "_compute_rollout_metrics", equal)
    batch = objective.rollout(lm, lm.module, [rows], 1, SINGLE_PROCESS.map)
    assert np.abs(batch.advantages).max() < (1e-6 if algorithm == "rloo" else 1e-12)


def test_learns_what_is_rewarded():
    lm = model()
    objective = PolicyGradient(beta=0.0, num_generations=16, max_new_tokens=4)
    batches = [objective.encode(PROMPTS, lm).take(range(3)).to_batch()]
    optimizer = torch.optim.AdamW(lm.module.parameters(), lr=2e-3)
    before = objective.evaluate(lm, PROMPTS).values
    for step in range(15):
        batch = objective.rollout(lm, lm.module, batches, step, SINGLE_PROCESS.map)
        loss = objective.loss(lm.module, to_device(batch, CPU))["policy"] / batch.num_rows
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = objective.evaluate(lm, PROMPTS).values
    assert before["reward"] < 0.4 < 0.9 < after["reward"]


def test_values_and_advantages_of_tokens():
    """Sums of the paper, the returns that they leave, and the model that is kept."""
    objective = PolicyGradient(
        algorithm="ppo", num_generations=1, beta=0.2, gamma=0.9, gae_lambda=0.7, max_new_tokens=4
    )
    plain = model(torch.float64)
    module = objective.build(plain.spec, seed=1, device=CPU).double()
    policy = objective.models_to_save(module)[""]
    assert policy.state_dict().keys() == plain.module.state_dict().keys()
    assert {*module.state_dict()} - {*policy.state_dict()} == {
        "heads.tagger.classifier.weight", "heads.tagger.classifier.bias",
    }  # fmt: skip
    policy.load_state_dict(plain.module.state_dict())
    module.load_state_dict(objective.initial_values(module), strict=False)
    assert not any(weight.any() for weight in module.heads["tagger"].parameters())
    torch.manual_seed(1)
    lm = LanguageModel(plain.spec, policy, plain.tokenizer)
    rows = objective.encode(PROMPTS, lm).take(range(9)).to_batch()
    assert objective._reference is not None
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    batch = objective.rollout(lm, module, [rows], 1, SINGLE_PROCESS.map)
    width, tensors = batch.labels.shape[1], to_device(batch, CPU)
    hidden = module(**tensors.inputs)
    values = module.logits(hidden, head="tagger")[..., 0].detach().numpy()
    expected, returns = np.zeros((9, width)), np.zeros((9, width))
    real = batch.labels != IGNORE_INDEX
    for row in range(9):
        columns = np.flatnonzero(real[row])
        logits = module.logits(hidden[row, columns])[:, :5].log_softmax(-1)
        logp = logits[range(len(columns)), batch.labels[row, columns]].detach().numpy()
        r = -0.2 * (logp - batch.reference_logps[row, columns])
        r[-1] += batch.metrics[row, 0]
        v = [*values[row, columns], 0.0]
        d = [r[t] + 0.9 * v[t + 1] - v[t] for t in range(len(r))]
        for t, column in enumerate(columns):
            expected[row, column] = sum(0.63 ** (k - t) * d[k] for k in range(t, len(r)))
            returns[row, column] = expected[row, column] + v[t]
    centred = expected[real] - expected[real].mean()
    expected[real] = centred / (centred.var() * len(centred) / (len(centred) - 1)) ** 0.5
    wanted = {"advantages": expected, "values": np.where(real, values, 0), "returns": returns}
    for name, array in wanted.items():
        assert getattr(batch, name) == pytest.approx(array, abs=1e-5)
    terms, counts = objective.loss(module, tensors), objective.loss_denominators(batch)
    assert terms.keys() == counts.keys()
    assert counts["policy"] == counts["value"] == real.sum()
    # The bound is on the same side of the return, or does not count.
    before, target = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([2.0, -2.0, 0.1])
    losses = clipped_value_loss(torch.tensor([1.0, 1.0, 0.2]), before, target, 0.5)
    assert losses.tolist() == pytest.approx([1.125, 4.5, 0.005])


def test_a_run_that_is_stopped_after_every_step_is_bit_equal(tmp_path, monkeypatch):
    data = tmp_path / "a.jsonl"
    rows = [{"prompt": f"{n} plus {n}", "answer": n} for n in range(14)]
    user = {"role": "user", "content": "what is it"}
    rows[3] = {"messages": [user, {"role": "assistant", "content": "ab"}], "answer": "ab"}
    data.write_text("\n".join(map(json.dumps, rows)))
    changes = settings(steps=4, log_every=1, eval_every=3, save_every=2, eval_examples=3, average=2)
    changes["train"] |= {"batch_tokens": None, "eval_tokens": None, "batch_examples": 4}
    changes["model"]["dropout"] = 0.0
    length = {"kind": "length", "target": 5, "weight": 0.5}
    rewards = [length, {"kind": "exact"}]
    changes["objective"] = {"max_new_tokens": 5, "num_iterations": 2, "rewards": rewards}
    changes["objective"] |= {"algorithm": "ppo", "num_generations": 2}
    run, whole = tmp_path / "run", tmp_path / "whole"
    keys = {"model": "gpt2-tiny", "data": data, "changes": changes, "console": quiet()}
    finished = finetune("policy", out=whole, **keys)
    draw, has_values = PolicyGradient.rollout, []

    def stopped(*arguments):  # Ctrl-C in every step
        os.kill(os.getpid(), signal.SIGTERM)
        batch = draw(*arguments)
        has_values.append(bool(batch.values.any()))
        return batch

    monkeypatch.setattr(PolicyGradient, "rollout", stopped)
    for step in range(1, 4):
        with pytest.raises(Interrupted, match=f"step {step} is saved"):
            finetune("policy", out=run, resume="auto", **keys)
    resumed = finetune("policy", out=run, resume="auto", **keys)
    assert_equal_runs(resumed, finished)
    assert (has_values[0], has_values[-1]) == (False, True)  # the value head starts at 0
    logged = [one for one in finished.read_metrics() if "train_loss" in one]
    names = {
        "reward",
        "reward_length",
        "reward_exact",
        "kl",
        "entropy",
        "frac_reward_zero_std",
        "length",
        "terminated",
    }
    names |= {"distinct_2", "clipped", "value"}
    assert {f"train_{name}" for name in names} <= logged[0].keys()
    assert logged[0]["train_kl"] == pytest.approx(0, abs=1e-3)
    # The values are there in training alone.
    for folder in (whole, next(checkpoints(finished.checkpoints))):
        assert [*load(folder).module.heads] == ["lm"]
    first, last = (one["samples"] for one in finished.read_metrics() if "samples" in one)
    assert [one["prompt"] for one in first] == [one["prompt"] for one in last]
    page = finished.report.read_text("utf-8")
    for one in first:
        assert html.escape(one["prompt"]) in page
        assert f"{one['reward']:.4f}" in page
    assert '"title": "kl"' in page
    assert re.search(r'class="verdict.*">reward 0\.\d+ on \d validation examples', page)


def test_defaults_and_what_is_refused(tmp_path):
    tree = {"model": {"preset": "gpt2-tiny"}, "objective": {"kind": "policy"}}
    recipe = build_recipe(tree | {"data": {"paths": ["a"]}})
    complete = defaults.complete(recipe, presets["gpt2-tiny"], num_examples=64)
    rate = defaults.finetuning_learning_rate(presets["gpt2-tiny"], new_weights=True, adapted=False)
    assert (complete.model.dropout, complete.train.epochs) == (0.0, 1.0)
    assert complete.optimizer.lr == pytest.approx(rate / 15, rel=0.01)
    with pytest.raises(RecipeError, match=r"other sources of \[\[mix\]\] do not have"):
        PolicyGradient(algorithm="ppo").check_rows("packed", False, is_mixed=True)
    path, objective = tmp_path / "a.jsonl", PolicyGradient()
    path.write_text(json.dumps({"prompt": "a", "answer": "b"}))
    assert len(check_examples(objective, [str(path)], 0.0)) > 1
    for record, problem in (
        ({"text": "a", "answer": "b"}, "no column for the prompt"),
        ({"prompt": "a"}, 'no column "answer"'),
        ({"messages": [{"role": "assistant", "content": "a"}], "answer": "b"}, "no message"),
    ):
        path.write_text(json.dumps(record))
        with pytest.raises(DataError, match=problem):
            list(objective.read([str(path)]))
    with pytest.raises(RecipeError, match='num_generations = 1 needs algorithm = "ppo"'):
        PolicyGradient.from_tree({"num_generations": 1})
    for rewards, problem in (
        ([{"kind": "exct"}], 'Did you mean "exact"'),
        ([{"kind": "exact", "pattern": "a"}], "rewards.*pattern"),
        ([], "length 1 or more"),
        ("exact", r'a list of tables, such as \[{kind = "exact"}\]'),
        ([{"kind": "python", "function": "a.b"}], "a text that matches"),
    ):
        with pytest.raises(RecipeError, match=problem) as refused:
            PolicyGradient.from_tree({"rewards": rewards})
        assert "\n" not in str(refused.value), "one error"
    long = Prompt("a " * 5000, {}, "x, line 9")
    with pytest.raises(DataError, match="the prompt of x, line 9 has 5000 tokens"):
        objective.encode([long], model())
