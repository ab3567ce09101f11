"""What the studio can make: the commands that its choices become."""

from __future__ import annotations

import shlex

import pytest

from trivium.errors import TriviumError
from trivium.objectives import task_kinds
from trivium.presets import auto_presets, presets
from trivium.studio.goals import GOALS, Choices, check_run_name, choose_run_name, split_lines
from trivium.train.recipe_loading import build_recipe, load_recipe_tree


def choose(goal="continue", **changed):
    values = {"data": ("a.txt",), "size": "small", "minutes": 2.5, **changed}
    return Choices(GOALS[goal], **values)


@pytest.mark.parametrize("goal", GOALS.values(), ids=list(GOALS))
def test_presets_tasks_and_keys_of_every_goal_exist(goal):
    assert {*goal.presets.values()} <= {*presets, *auto_presets}
    assert goal.task is None or goal.task in task_kinds()
    for size in goal.presets:
        choices = Choices(goal, ("a.txt",), size, 1.0)
        preset = goal.get_preset(size)
        tree = load_recipe_tree(auto_presets.get(preset, preset)) if goal.task is None else {}
        if goal.task is not None:
            tree = {"objective": {"kind": goal.task}, "model": {"preset": choices.model}}
        recipe = build_recipe(tree, [*choices.all_changes, 'data.paths=["a.txt"]'])
        assert (recipe.train.minutes, recipe.train.samples) == (1.0, True)


def test_the_commands():
    changes = ("optimizer.lr=1e-3", "data.encoding=gbk", "objective.kind=causal")
    text = choose(data=("a b.txt", "c"), changes=changes)
    assert shlex.join(text.build_command("runs/x")) == (
        "pretrain llama-tiny --data 'a b.txt' --data c --out runs/x --set train.minutes=2.5 "
        "--set train.samples=true --set train.eval_every=100 --set train.save_every=100 "
        "--set optimizer.lr=1e-3 --set data.encoding=gbk --set objective.kind=causal"
    )
    assert text.build_check() == ["check", "a b.txt", "c", "--set", "data.encoding=gbk", "--json"]
    measured = text.build_measurement("out")
    assert (measured["task"], measured["model"]) == (None, "llama-tiny")
    assert measured["changes"][-3:] == list(changes)
    labelled = choose("classify", base="runs/fill-1", changes=("objective.text_field=review",))
    assert shlex.join(labelled.build_command("runs/x")) == (
        "finetune classification --model runs/fill-1 --data a.txt --out runs/x "
        "--set train.minutes=2.5 --set train.samples=true --set objective.text_field=review"
    )
    assert shlex.join(labelled.build_check()) == (
        "check a.txt --task classification --set objective.text_field=review --json"
    )
    assert labelled.build_measurement("out")["model"] == "runs/fill-1"


def test_choices_that_are_refused():
    with pytest.raises(TriviumError, match="there is no text yet"):
        choose(data=())
    for minutes in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(TriviumError, match="more than 0 and at most 10,080"):
            choose(minutes=minutes)
    for change in ("--overwrite", "train.minutes", "--set=a"):
        with pytest.raises(TriviumError, match="one KEY=VALUE per line"):
            choose(changes=(change,))
    with pytest.raises(TriviumError, match="there is no size 'large' for translate"):
        _ = choose("translate", size="large").model
    for name in ("", " ", "a/b", "..", ".hidden", "-x", "a\nb", "x" * 300):
        with pytest.raises(TriviumError, match="cannot be the name of a run"):
            check_run_name(name)
    assert check_run_name(" 故事-1 ") == "故事-1"


def test_names_and_changes():
    assert choose_run_name("continue", []) == "continue-1"
    assert choose_run_name("continue", ["continue-1", "continue-3"]) == "continue-2"
    assert split_lines(" a=1 \n\n b=2") == ("a=1", "b=2")
    assert split_lines(None) == ()
