"""Every kind of reward on responses, and messages that name the response."""

from __future__ import annotations

import json

import pytest
from overfit_tasks import untrained
from run_settings import quiet, settings

from trivium.data.records import Record
from trivium.errors import DataError, RecipeError
from trivium.objectives.classification import LabelledText, TextClassification
from trivium.objectives.preference_pairs import Preference
from trivium.objectives.reward_model import Reward
from trivium.rewards import RewardFunction, Sample, build_reward_names, compute_scores
from trivium.workflows.training import finetune


def sample(response: str, ended: bool = True, **record) -> Sample:
    where = f"a.jsonl, line {len(response)}"
    return Sample("2+2=", response, f"2+2= {response}", Record(record, where), (), ended)


SAMPLES = [sample("4", answer=4), sample("4", False, answer="4"), sample("so 5", answer=" 4 ")]


def scores(*trees: dict) -> list[list[float]]:
    rewards = [RewardFunction.kinds[tree["kind"]].from_tree(tree) for tree in trees]
    for one in rewards:
        one.open()
    return compute_scores(rewards, SAMPLES).T.tolist()


def test_what_is_right_has_a_form_or_a_length(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    with pytest.raises(RecipeError, match="TRIVIUM_RUN_CODE=1"):
        scores({"kind": "python", "function": f"{file}:size"})
    monkeypatch.setenv("TRIVIUM_RUN_CODE", "1")
    file.write_text(
        "def bad(prompts, responses, records):\n"
        "    return [1.0] * len(responses[1:])\n"
        "def nan(prompts, responses, records):\n"
        "    return [float('nan') if len(r) > 1 else 0 for r in responses]\n"
        "def own(prompts, responses, records):\n"
        "    return [int(r) + len(p) + len(c) for p, r, c in zip(prompts, responses, records)]\n"
        "def size(prompts, responses, records):\n"
        "    return [len(p) for p in prompts]\n"
    )
    found = scores(
        {"kind": "exact"},
        {"kind": "regex", "pattern": r"^\d+$"},
        {"kind": "length", "target": 3},
        {"kind": "python", "function": f"{file}:size"},
    )
    assert found[0] == [1, 0, 0]
    assert found[1] == [1, 1, 0]
    assert found[2] == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert found[3] == [4, 4, 4]
    kinds = [
        RewardFunction.kinds["exact"](),
        RewardFunction.kinds["length"](target=1),
        RewardFunction.kinds["exact"](column="b"),
    ]
    assert build_reward_names(kinds) == ("exact", "length", "exact_2")
    for name, problem in (
        ("bad", 'has 2 values for 3 responses; .* a.jsonl, line 1, response "4"'),
        ("nan", 'is nan, not a finite number, for a.jsonl, line 4, response "so 5"'),
        ("own", r'failed with ValueError\(.*\) for a.jsonl, line 4, response "so 5"'),
        ("none", "mine.py has no function none"),
    ):
        with pytest.raises(RecipeError, match=problem):
            scores({"kind": "python", "function": f"{file}:{name}"})
    with pytest.raises(RecipeError, match="there is no file"):
        scores({"kind": "python", "function": f"{tmp_path}/no.py:f"})
    with pytest.raises(RecipeError, match="not a regular expression: "):
        scores({"kind": "regex", "pattern": "("})
    for record in ({"answer": " "}, {"answer": None}, {"b": "c"}):
        with pytest.raises(DataError, match="answer"):
            kinds[0].check_record(Record(record, "a.jsonl, line 1"))


def test_what_a_model_says(tmp_path):
    folder = str(tmp_path / "labels")
    examples = [LabelledText(text, None, label, "x") for text, label in (("4", "a"), ("5", "b"))]
    _, classifier = untrained(TextClassification(), examples, "bert")
    classifier.save(folder)
    [found] = scores({"kind": "label", "model": folder, "label": "b"})
    assert found[:2] == pytest.approx([classifier.classify("4").scores["b"]] * 2)
    [found] = scores({"kind": "label", "model": folder, "label": "b", "with_prompt": True})
    assert found[2] == pytest.approx(classifier.classify("2+2= so 5").scores["b"])
    pairs = [Preference("2+2=", " 4", " so 5", "x")]
    _, judge = untrained(Reward(), pairs, "gpt2")
    judge.save(tmp_path / "judge")
    [found] = scores({"kind": "model", "model": str(tmp_path / "judge")})
    assert found[2] == pytest.approx(judge.classify("2+2= so 5").score, abs=1e-6)
    messages = ({"role": "user", "content": "2+2="}, {"role": "assistant", "content": "4"})
    reward = RewardFunction.kinds["model"](model=str(tmp_path / "judge"))
    chat = Sample("2+2=", "4", "", Record({}, "x"), messages)
    assert compute_scores([reward], [chat]).shape == (1, 1)
    with pytest.raises(RecipeError, match=r'has no label "c"; it has .*a'):
        scores({"kind": "label", "model": folder, "label": "c"})
    with pytest.raises(RecipeError, match=r'has labels, not one number: .* "label"'):
        scores({"kind": "model", "model": folder})


def test_a_run_goes_on_with_the_same_code_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVIUM_RUN_CODE", "1")
    file, data = tmp_path / "mine.py", tmp_path / "a.jsonl"
    code = "def own(prompts, responses, records):\n    return [len(one) for one in responses]\n"
    file.write_text(code)
    data.write_text("\n".join(json.dumps({"prompt": f"{n} plus {n}"}) for n in range(6)))
    changes = settings(steps=1, batch_examples=4, batch_tokens=None, eval_tokens=None)
    reward = {"kind": "python", "function": f"{file}:own"}
    changes["objective"] = {"rewards": [reward], "max_new_tokens": 2, "num_generations": 2}
    keys = {"out": tmp_path / "run", "console": quiet()}
    finetune("policy", model="gpt2-tiny", data=data, changes=changes, **keys)
    file.write_text(f"{code}\n")
    with pytest.raises(RecipeError, match=r"changed since this run began: mine.py"):
        finetune("", resume=True, **keys)
