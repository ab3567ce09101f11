"""The recipe: everything a run depends on, as one tree that TOML, `--set` and Python share.

A key left out is derived from the model and the data, and the run writes the complete tree back
to its folder, so that a recipe found there says all.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trivium.errors import RecipeError
from trivium.presets import find
from trivium.spec import AnySpec, spec_from_dict
from trivium.train.objective_recipe import ObjectiveSection
from trivium.train.section import Positive, Section, Share

BUDGETS = ("steps", "minutes", "tokens", "epochs")
"""How a run's length may be given, in any recipe."""


class ModelSection(Section):
    """What is trained: a preset's name or a whole spec, and the dropout to train it with.

    With `start` the weights and the tokenizer are those of a model there is, whose spec stands
    here too: `trivium pretrain FOLDER` writes both.

    Published sizes carry dropout for many passes over their text; a pretraining run that sees its
    text a few times learns faster without (Geiping and Goldstein 2022), so the default here is 0.
    """

    preset: str | None = None
    spec: dict[str, Any] | None = None
    start: str | None = None
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.preset is None) == (self.spec is None):
            raise ValueError('give either preset = "bert-small" or a [model.spec], not both')
        return self


class TokenizerSection(Section):
    """A tokenizer that exists (`path`), or how to train one on the run's own text."""

    path: str | None = None
    kind: Literal["whitespace", "bpe", "byte-bpe", "unigram", "wordpiece"] | None = None
    vocab_size: Positive | None = None
    special_tokens: tuple[str, ...] | None = None
    lowercase: bool = True
    sample_bytes: Positive = 1_000_000_000


class SourceSection(Section):
    """One of several sources.

    `paths` and `validation` are as in `[data]`, whose validation holds where this one is left out.
    `name`, that of the first path unless given, is what its shards and figures are called.
    `weight` is its share of the rows in proportion to the others'; all sources have one, or none.
    """

    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    weight: Annotated[float, Field(gt=0)] | None = None
    validation: float | str | None = None


class DataSection(Section):
    """Where text comes from and how it is cut.

    `mode`: "pack" joins documents and cuts rows of `length` tokens; "truncate" makes one row of
    each document. `separate_documents` keeps packed documents from seeing each other.

    Several sources stand in `[[data.mix]]`, in place of `paths`. Without weights a source is taken
    as often as it has rows to the power of 1 / `temperature` (1: every row as often as another; the
    higher, the more alike the sources; Raffel et al. 2019, section 3.5.2).
    """

    paths: tuple[str, ...] = ()
    validation: float | str = 0.1
    length: Positive = 128
    mode: Literal["pack", "truncate"] = "pack"
    separate_documents: bool = False
    separator: str = "blank"
    text_field: str = "text"
    errors: Literal["strict", "replace"] = "strict"
    keep_duplicates: bool = False
    temperature: Annotated[float, Field(gt=0)] | None = None
    mix: Annotated[tuple[SourceSection, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _sources_agree(self) -> Self:
        if self.mix is None:
            if self.temperature is not None:
                raise ValueError("temperature is for several sources: give them as [[data.mix]]")
            return self
        if self.paths:
            raise ValueError("give either paths or [[data.mix]], not both")
        weights = {source.weight is not None for source in self.mix}
        if len(weights) > 1:
            raise ValueError("give every source in [[data.mix]] a weight, or none of them")
        if weights == {True} and self.temperature is not None:
            raise ValueError("give either weights in [[data.mix]] or data.temperature, not both")
        if isinstance(self.validation, str) and any(one.validation is None for one in self.mix):
            raise ValueError(
                "with [[data.mix]] validation is a fraction; a source with held-out text of its "
                "own names it in its own validation"
            )
        names = [source.name for source in self.mix if source.name is not None]
        if len(set(names)) < len(names):
            raise ValueError("two sources in [[data.mix]] have one name")
        return self

    @property
    def sources(self) -> tuple[SourceSection, ...]:
        """The sources; one without a name where there is no mix."""
        if self.mix is not None:
            return self.mix
        return (SourceSection(paths=self.paths),) if self.paths else ()

    def shares(self, sizes: Sequence[float]) -> list[float]:
        """What part of the rows each source gives, in sum 1, of sources of these sizes."""
        exponent = 1.0 / (self.temperature or 1.0)
        weights = [
            size**exponent if source.weight is None else source.weight
            for source, size in zip(self.sources, sizes, strict=True)
        ]
        return [weight / sum(weights) for weight in weights]


class OptimizerSection(Section):
    """AdamW for everything, or Muon for the matrices of the blocks and AdamW for the rest.

    `table_lr` is for the token vectors, `matrix_lr` for what Muon trains, `lr` for all the rest.
    """

    kind: Literal["adamw", "muon"] | None = None
    lr: Annotated[float, Field(gt=0)] | None = None
    table_lr: Annotated[float, Field(gt=0)] | None = None
    betas: tuple[float, float] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    matrix_lr: Annotated[float, Field(gt=0)] = 0.02
    momentum: Share = 0.95


class ScheduleSection(Section):
    """How the learning rate moves: up over the warm-up, then down to `final` of its height.

    `warmup` is in steps, or below 1 a fraction of the run. `decay` is the last part of the run,
    in which "stable-decay" falls.
    """

    kind: Literal["constant", "linear", "cosine", "inverse-sqrt", "stable-decay"] = "stable-decay"
    warmup: Annotated[float, Field(ge=0)] | None = None
    decay: Share = 0.4
    final: Share = 0.05


class RunSection(Section):
    """How long, on what, and what is written down, whatever is trained.

    Exactly one of the budgets is given; minutes count from the start of the command, preparing
    included.
    """

    steps: Positive | None = None
    minutes: Annotated[float, Field(gt=0)] | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    device: str = "auto"
    compile: bool | None = None
    clip: Annotated[float, Field(gt=0)] = 1.0
    log_every: Positive = 10
    keep_checkpoints: Positive = 3
    tensorboard: bool = False

    @property
    def budget(self) -> dict[str, float]:
        """The budgets given, by name."""
        given = {name: getattr(self, name, None) for name in BUDGETS}
        return {name: value for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if len(self.budget) > 1:
            given = ", ".join(f"train.{name}" for name in self.budget)
            known = [name for name in BUDGETS if name in type(self).model_fields]
            allowed = f"{', '.join(known[:-1])} and {known[-1]}"
            raise ValueError(f"give one budget of {allowed}, not {given}")
        return self


class TrainSection(RunSection):
    """How long, in what pieces, and what is written down.

    Exactly one of `steps`, `minutes`, `tokens`, `epochs` is the budget; minutes count from the
    start of the command, preparing included. `batch_tokens` is global; `micro_batch` (rows at a
    time) follows from memory unless given.
    """

    tokens: Positive | None = None
    batch_tokens: Positive | None = None
    micro_batch: Positive | None = None
    eval_every: Positive = 200
    eval_tokens: Positive | None = 32_768
    eval_batch: Positive = 32
    save_every: Positive = 500


class Recipe(Section):
    """A run on paper."""

    seed: int = 0
    model: ModelSection
    tokenizer: TokenizerSection = TokenizerSection()
    data: DataSection = DataSection()
    objective: ObjectiveSection = ObjectiveSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    train: TrainSection = TrainSection()

    @property
    def spec(self) -> AnySpec:
        """The model as described, with this run's dropout and before its vocabulary is known."""
        if self.model.preset is not None:
            described = find(self.model.preset).spec
        else:
            described = spec_from_dict(self.model.spec or {})
        return described.with_dropout(self.model.dropout)


def load_recipe(
    name: str | os.PathLike[str] | Recipe, changes: Sequence[str] | dict[str, Any] = ()
) -> Recipe:
    """A recipe from a TOML file, a shipped recipe's or a preset's name, with changes applied.

    Args:
        name: "my.toml", "textbook-bert", "bert-small", or a Recipe.
        changes: `["train.lr=3e-4", ...]` as `--set` takes them, or a nested dict.

    Raises:
        RecipeError: no such recipe or preset, an unknown key, or a value that does not fit.
    """
    if isinstance(name, Recipe):
        tree = name.model_dump(mode="json", exclude_none=True)
    else:
        tree = _named_tree(os.fspath(name))
    apply_changes(tree, changes)
    return Recipe.from_dict(tree, source=str(name) if not isinstance(name, Recipe) else "recipe")


def shipped_recipes() -> dict[str, Path]:
    """The recipes inside the package, by name."""
    folder = Path(__file__).parent.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _named_tree(name: str) -> dict[str, Any]:
    shipped = shipped_recipes()
    path = shipped.get(name, Path(name))
    if path.suffix == ".toml":
        if not path.is_file():
            known = ", ".join(shipped)
            raise RecipeError(f"{name}: no such recipe file. Shipped recipes: {known}.")
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path}: not valid TOML: {error}") from None
    find(name)
    return {"model": {"preset": name}}


def _merge(tree: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _set(tree: dict[str, Any], change: str) -> None:
    """Apply one `section.key=value`; the value is TOML, or text where it is no TOML."""
    path, equals, text = change.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise RecipeError(f"--set takes key=value such as train.steps=500; given: {change!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = tree
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {change}: {key} is a value, not a table.")
    if keys[:-1] == ["train"] and keys[-1] in BUDGETS:
        # A new budget takes the place of the recipe's own.
        for budget in BUDGETS:
            table.pop(budget, None)
    if keys == ["objective", "mix"]:
        table.clear()
    elif keys[:-1] == ["objective"]:
        table.pop("mix", None)
    elif keys[:-1] == ["data"] and "task" not in tree:
        # Of pretraining; in fine-tuning both stand side by side.
        table.pop({"paths": "mix", "mix": "paths"}.get(keys[-1], ""), None)
    table[keys[-1]] = value


def apply_changes(tree: dict[str, Any], changes: Sequence[str] | dict[str, Any]) -> None:
    """Change a tree in place: `["train.lr=3e-4", ...]` as `--set` takes them, or a nested dict."""
    if isinstance(changes, dict):
        _merge(tree, changes)
    else:
        for change in changes:
            _set(tree, change)
