"""An objective of one's own: recipes find it by its kind, and its keys are checked like others."""

from __future__ import annotations

from typing import Literal

import pytest

from trivium.errors import RecipeError
from trivium.objectives import OBJECTIVES, Objective, register
from trivium.objectives.causal import Causal
from trivium.train import Recipe, load_recipe

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.fixture
def registered(monkeypatch):
    """A registered objective, which is forgotten afterwards."""
    before = dict(OBJECTIVES)

    @register
    class Weighted(Causal):
        kind: Literal["weighted"] = "weighted"
        weight: float = 1.0

    yield Weighted
    OBJECTIVES.clear()
    OBJECTIVES.update(before)


def test_a_recipe_reads_and_writes_it(registered, tmp_path):
    recipe = load_recipe("gpt2-tiny", ["objective.kind=weighted", "objective.weight=2"])
    assert recipe.objective == registered(weight=2.0)
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(file) == recipe
    mix = [{"paths": ["a"], "objective": {"kind": kind}} for kind in ("weighted", "causal")]
    assert load_recipe("gpt2-tiny", {"mix": mix}).objectives == (registered(), Causal())
    assert load_recipe("gpt2-tiny").objective == Causal()
    assert isinstance(recipe.replace(objective=registered(weight=3.0)), Recipe)
    with pytest.raises(
        RecipeError, match=r'kind "weighted": unknown key "wieght". Did you mean weight.'
    ):
        load_recipe("gpt2-tiny", ["objective.kind=weighted", "objective.wieght=2"])
    with pytest.raises(RecipeError, match=r'objective.kind = "weigthed".*Did you mean "weighted"'):
        load_recipe("gpt2-tiny", ["objective.kind=weigthed"])


def test_it_needs_a_kind_of_its_own(registered):
    class Inherits(Causal):
        pass

    class Without(Objective):
        pass

    class Taken(Causal):
        kind: Literal["weighted"] = "weighted"

    for cls in (Inherits, Without, Taken):
        with pytest.raises(RecipeError, match=f"{cls.__name__} needs a kind of its own, other"):
            register(cls)
    assert register(registered) is registered, "a notebook may define it again"
