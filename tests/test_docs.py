"""The reference pages say what the program does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trivium.train.recipe import load_recipe

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_reference"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "maker"),
    [
        ("cli.md", "command_line"),
        ("recipe.md", "recipe_keys"),
        ("finetune.md", "finetune_keys"),
    ],
)
def test_reference_pages_are_up_to_date(reference: ModuleType, page: str, maker: str) -> None:
    written = (DOCS / page).read_text(encoding="utf-8")
    assert written == getattr(reference, maker)(), f"run `make docs`: docs/{page} is out of date"


def test_the_textbook_recipe_is_the_textbooks() -> None:
    recipe = load_recipe("textbook-bert")
    assert recipe.model.preset == "bert-base"
    assert recipe.model.dropout == 0.1
    assert recipe.tokenizer.vocab_size == 30_522
    assert recipe.tokenizer.special_tokens == (
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"),
    )
    assert (recipe.data.length, recipe.data.validation, recipe.data.mode) == (512, 0.1, "pack")
    assert (recipe.objective.kind, recipe.objective.probability) == ("masked", 0.2)
    train = recipe.train
    assert train.budget == {"epochs": 10}
    assert train.micro_batch == 10
    assert train.batch_tokens == 10 * 8 * 512
    assert (train.log_every, train.eval_every, train.save_every) == (1000, 1000, 1000)
    assert train.eval_batch == 64
    assert load_recipe("textbook-bert", ["data.mode=truncate"]).data.mode == "truncate"
