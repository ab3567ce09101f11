"""An objective of one's own: recipes find it by its kind, and its keys are checked like others."""

from __future__ import annotations

from typing import Literal

import pytest
from own_kinds import own_kinds

from trivium.errors import RecipeError, TriviumError
from trivium.objectives import Objective
from trivium.objectives.advice import ADVICE, Advice
from trivium.objectives.causal import Causal
from trivium.presets import presets
from trivium.train import Recipe, load_recipe

pytestmark = pytest.mark.usefixtures("double_precision")


def test_a_recipe_reads_and_writes_it(tmp_path):
    with own_kinds():

        class Weighted(Causal):
            kind: Literal["weighted"] = "weighted"
            weight: float = 1.0

        recipe = load_recipe("gpt2-tiny", ["objective.kind=weighted", "objective.weight=2"])
        assert recipe.objective == Weighted(weight=2.0)
        file = tmp_path / "recipe.toml"
        file.write_text(recipe.to_toml(), encoding="utf-8")
        assert load_recipe(file) == recipe
        mix = [{"paths": ["a"], "objective": {"kind": kind}} for kind in ("weighted", "causal")]
        assert load_recipe("gpt2-tiny", {"mix": mix}).objectives == (Weighted(), Causal())
        assert load_recipe("gpt2-tiny").objective == Causal()
        assert isinstance(recipe.replace(objective=Weighted(weight=3.0)), Recipe)
        with pytest.raises(
            RecipeError, match=r'unknown key "objective.wieght". Did you mean objective.weight.'
        ):
            load_recipe("gpt2-tiny", ["objective.kind=weighted", "objective.wieght=2"])
        with pytest.raises(
            RecipeError, match=r'objective.kind = "weigthed".*Did you mean "weighted"'
        ):
            load_recipe("gpt2-tiny", ["objective.kind=weigthed"])
        with pytest.raises(TriviumError, match='Taken and Weighted are both of kind "weighted"'):

            class Taken(Causal):
                kind: Literal["weighted"] = "weighted"


def test_it_has_the_defaults_of_the_kind_that_it_extends():
    assert ADVICE.keys() <= Objective.kinds.keys()
    with own_kinds():

        class Weighted(Causal):
            kind: Literal["weighted"] = "weighted"

        class Faster(Weighted):
            kind: Literal["faster"] = "faster"

        assert Faster.advice() is ADVICE["causal"]
    assert Objective.advice() == Advice()
    encoder = presets["bert-tiny"]
    with pytest.raises(RecipeError, match=r"trains encoder-decoder models: use t5-mini or bart"):
        Objective.kinds["denoising"]().heads(encoder)
