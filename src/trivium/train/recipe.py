"""The recipe: everything a run depends on, as one tree that TOML, `--set` and Python share.

A recipe is made of the parts themselves: `recipe.objective` is the objective, `recipe.optimizer`
builds itself, `recipe.schedule` is a function of the step. A run writes its complete recipe to its
folder.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trivium.adapt import LoRA
from trivium.config import Config, Positive
from trivium.errors import RecipeError, did_you_mean
from trivium.language_model import load
from trivium.models.initialization import fast
from trivium.objectives import OBJECTIVES, AnyObjective, Objective, default_objective
from trivium.presets import presets
from trivium.spec import AnySpec, ModelSpec, spec_from_dict
from trivium.text import AnyTokenizerConfig
from trivium.train.optimizers import OPTIMIZERS, AnyOptimizer
from trivium.train.schedules import AnySchedule

BUDGETS = ("steps", "minutes", "tokens", "epochs")
"""The keys of `[train]` that say how long a run is; a recipe has exactly one."""

Changes = Sequence[str] | Mapping[str, Any]
"""Changes of a recipe: `["train.steps=500", ...]` as `--set` takes them, or a nested dict."""


class ModelConfig(Config):
    """What is trained: a preset or a spec with new weights, or a model whose weights are kept.

    `embedding`, `encoder`, `decoder` and `d_model` change parts of the preset.
    """

    preset: str | None = Field(None, description="a preset, with new weights")
    spec: dict[str, Any] | None = Field(None, description="a whole spec, with new weights")
    init_from: str | None = Field(
        None, description="run, checkpoint, Hugging Face folder or name: weights and tokenizer"
    )
    new_weights: bool = Field(
        False, description="of init_from keep the form and the tokenizer, not the weights"
    )
    initialization: Literal["published", "fast"] = Field(
        "published", description='new weights as in the paper, or "fast": learns in fewer steps'
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="0 in pretraining, 0.1 in fine-tuning unless set"
    )
    freeze: str = Field(
        "none", description='what stays as it is: "embeddings", "encoder", "layers:N", ...'
    )
    separate_vocabularies: bool = Field(
        False, description="an encoder-decoder gets one new tokenizer for sources, one for targets"
    )
    d_model: Positive | None = Field(None, description="width of the preset's hidden states")
    embedding: dict[str, Any] | None = Field(None, description="changes of the preset's embedding")
    encoder: dict[str, Any] | None = Field(None, description="changes of the preset's encoder")
    decoder: dict[str, Any] | None = Field(None, description="changes of the preset's decoder")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        origins = [self.preset, self.spec, self.init_from]
        if sum(origin is not None for origin in origins) != 1:
            raise ValueError(
                'set exactly one of preset = "bert-small", spec = {...} and init_from = "runs/mine"'
            )
        return self

    @property
    def starts_from_weights(self) -> bool:
        """Whether training continues from trained weights."""
        return self.init_from is not None and not self.new_weights

    def build_spec(self) -> AnySpec | None:
        """The spec with the vocabulary size of the literature; None with `init_from`."""
        if self.init_from is not None:
            return None
        if self.preset is not None:
            tree = presets[self.preset].to_dict()
        else:
            tree = dict(self.spec or {})
        parts = {"d_model", "embedding", "encoder", "decoder"}
        changes = {name: value for name, value in self.to_tree().items() if name in parts}
        merge(tree, changes)
        spec = spec_from_dict(tree)
        return fast(spec) if self.initialization == "fast" and isinstance(spec, ModelSpec) else spec


class TokenizerFile(Config):
    """A tokenizer that exists."""

    kind: Literal["file"] = "file"
    path: str = Field(description="tokenizer.json, or a folder that has one")


AnyTokenizer = Annotated[AnyTokenizerConfig | TokenizerFile, Field(discriminator="kind")]


class DataConfig(Config):
    """Where text or labelled examples come from, and how they are cut."""

    paths: tuple[str, ...] = Field((), description='files, folders, globs, "hf:NAME" or shards')
    validation: float | tuple[str, ...] = Field(
        0.1, description="held-out fraction of the documents or examples, or paths"
    )
    length: Positive | None = Field(
        None, description="tokens of a row, 128 unless set; most tokens of an example, 512"
    )
    packing: Literal["pack", "truncate"] = Field(
        "pack", description="join documents and cut rows, or one row per document"
    )
    separate_documents: bool = Field(
        False, description="packed documents do not attend to each other"
    )
    separator: str = Field("blank", description='between documents of plain text: "blank", "line"')
    text_field: str = Field("text", description="column of a record that is its text")
    errors: Literal["strict", "replace"] = Field("strict", description="on invalid UTF-8")
    keep_duplicates: bool = Field(False, description="keep exact repeats of documents")
    temperature: float = Field(
        1.0, gt=0, description="sources of [[mix]] without weights: by rows ** (1 / temperature)"
    )


class MixConfig(Config):
    """One of several sources: its data, its objective, and its share of the steps."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="in figures and shards")
    paths: Annotated[tuple[str, ...], Field(min_length=1)] = Field(description="as in [data]")
    validation: float | tuple[str, ...] | None = Field(
        None, description="as in [data], whose own is used unless set"
    )
    weight: float | None = Field(
        None, gt=0, description="share of the steps, relative to the others; by rows unless set"
    )
    objective: AnyObjective = Field(description="how the model learns from this source")


class TrainConfig(Config):
    """How long, in which pieces, on what, and what is logged."""

    steps: Positive | None = Field(None, description="budget in steps")
    minutes: float | None = Field(None, gt=0, description="budget in minutes from the first step")
    tokens: Positive | None = Field(None, description="budget in tokens")
    epochs: float | None = Field(None, gt=0, description="budget in passes over the data")
    batch_tokens: Positive | None = Field(
        None, description="tokens per step of text; by the model's width unless set"
    )
    batch_examples: Positive | None = Field(
        None, description="labelled examples per step; by the task unless set"
    )
    micro_batch_tokens: Positive | None = Field(
        None, description="tokens that pass through the model together; by memory unless set"
    )
    precision: Literal["auto", "bf16", "fp32"] = Field("auto", description="of activations")
    device: str = Field("auto", description='"auto", "cpu" or "cuda"')
    compile: bool | None = Field(None, description="torch.compile the blocks; on a GPU unless set")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    log_every: Positive = Field(10, description="steps between log lines")
    eval_every: Positive | None = Field(
        None, description="steps between evaluations; 200, or an epoch of examples, unless set"
    )
    eval_tokens: Positive = Field(32_768, description="held-out tokens of text per evaluation")
    eval_examples: Positive | None = Field(
        None, description="held-out examples per evaluation; all, or 400 of generated text"
    )
    save_every: Positive | None = Field(
        None, description="steps between checkpoints; 500, or as eval_every, unless set"
    )
    keep_checkpoints: Positive = Field(3, description="older ones are deleted")
    patience: Positive | None = Field(
        None, description="stop after so many evaluations without a better metric"
    )
    average: Positive = Field(
        1, description="also try the mean of so many last checkpoints' weights"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events")

    @property
    def budget(self) -> tuple[str, float] | None:
        """The name of the budget and its size; None while it is open."""
        sizes = ((name, getattr(self, name)) for name in BUDGETS)
        return next(((name, size) for name, size in sizes if size is not None), None)

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        names = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(names) > 1:
            several = " and ".join(names)
            raise ValueError(f"set exactly one budget of {', '.join(BUDGETS)}, not {several}")
        return self


class AdapterConfig(Config):
    """LoRA (Hu et al. 2021): low-rank updates of some matrices in place of full training."""

    rank: int = Field(0, ge=0, description="0 trains the model itself")
    alpha: float = Field(16.0, gt=0, description="the update is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="of the adapters' inputs")
    targets: tuple[str, ...] = Field(("query", "value"), description="names of matrices")
    save_separately: bool = Field(False, description="also save the adapter in PEFT's format")

    @property
    def lora(self) -> LoRA:
        """The adapter to add."""
        return LoRA(rank=self.rank, alpha=self.alpha, dropout=self.dropout, targets=self.targets)


class Recipe(Config):
    """A run on paper, pretraining and fine-tuning alike."""

    seed: int = Field(0, description="of weights, order, noise and dropout")
    model: ModelConfig
    tokenizer: AnyTokenizer | None = None
    data: DataConfig = DataConfig.parse({})
    objective: AnyObjective | None = None
    mix: tuple[MixConfig, ...] = ()
    adapter: AdapterConfig = AdapterConfig.parse({})
    optimizer: AnyOptimizer
    schedule: AnySchedule
    train: TrainConfig = TrainConfig.parse({})

    @model_validator(mode="after")
    def _one_way_to_name_sources(self) -> Self:
        if self.mix and (self.objective is not None or self.data.paths):
            raise ValueError("set either data.paths and [objective], or several [[mix]]")
        if not self.mix and self.objective is None:
            raise ValueError('"objective" is missing')
        names = [source.name for source in self.mix]
        if "loss" in names:
            raise ValueError('a source cannot be named "loss", which metrics have already')
        if len(set(names)) < len(names):
            raise ValueError("two sources in [[mix]] have the same name")
        weights = {source.weight is None for source in self.mix}
        if len(weights) > 1:
            raise ValueError("set the weight of every source in [[mix]], or of none")
        if self.adapter.rank and self.model.freeze != "none":
            raise ValueError("adapter.rank freezes all but the adapter: leave model.freeze out")
        return self

    @property
    def sources(self) -> tuple[MixConfig, ...]:
        """The sources with their objectives; the name is "" where there is only one."""
        if self.mix:
            own = self.data.validation
            return tuple(
                source if source.validation is not None else source.replace(validation=own)
                for source in self.mix
            )
        source = MixConfig.model_construct(
            name="",
            paths=self.data.paths,
            validation=self.data.validation,
            weight=None,
            objective=self.objective,
        )
        return (source,)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objective of every source."""
        return tuple(source.objective for source in self.sources)

    def with_objectives(self, objectives: Sequence[Objective]) -> Self:
        """The recipe with other objectives, one for every source."""
        if not self.mix:
            return self.replace(objective=objectives[0])
        pairs = zip(self.mix, objectives, strict=True)
        return self.replace(mix=tuple(source.replace(objective=one) for source, one in pairs))

    @property
    def labelled(self) -> bool:
        """Whether some source has labelled examples."""
        return any(objective.labelled for objective in self.objectives)


def shipped_recipes() -> dict[str, Path]:
    """The recipes inside the package, by name."""
    folder = Path(__file__).parent.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_recipe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tree in a TOML file, or of a shipped recipe. Raises RecipeError where it is none."""
    name = os.fspath(path)
    file = shipped_recipes().get(name, Path(name))
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(shipped_recipes())
        raise RecipeError(f"{name}: no such recipe file. Shipped recipes: {known}.") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: not valid TOML: {error}") from None


def changes_tree(changes: Changes) -> dict[str, Any]:
    """Changes as one tree: a dict as it is, `key=value` texts merged in their order.

    Raises RecipeError where a text is not `section.key=value`. A value is TOML, or text where it
    is not valid TOML.

    >>> changes_tree(["train.steps=500", "model.preset=gpt2-mini"])
    {'train': {'steps': 500}, 'model': {'preset': 'gpt2-mini'}}
    """
    if isinstance(changes, Mapping):
        return dict(changes)
    if isinstance(changes, str):
        raise RecipeError(f"changes is a list such as ['train.steps=500'], not {changes!r}.")
    tree: dict[str, Any] = {}
    for change in changes:
        path, equals, text = change.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise RecipeError(f"--set takes key=value such as train.steps=500, not {change!r}.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        table = tree
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise RecipeError(f"--set {change}: {key} has a value and is not a table.")
        table[keys[-1]] = value
    return tree


def merge(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merge changes into a tree, in place; a table that gets another kind starts empty."""
    for key, value in changes.items():
        table = tree.get(key)
        if isinstance(value, Mapping) and isinstance(table, dict):
            if "kind" in value and value["kind"] != table.get("kind"):
                table.clear()
            merge(table, value)
        elif isinstance(value, Mapping):
            tree[key] = {}
            merge(tree[key], value)
        elif value is None:
            tree.pop(key, None)
        else:
            tree[key] = value


def apply_changes(tree: dict[str, Any], changes: Changes) -> None:
    """Change a recipe's tree in place.

    A new budget replaces the recipe's own, sources in `mix` replace `[objective]` and `data.paths`,
    and the other way round; a new origin of the model replaces the old one.
    """
    new = copy.deepcopy(changes_tree(changes))
    _replace_group(tree.get("train"), new.get("train"), BUDGETS)
    _replace_group(tree.get("model"), new.get("model"), ("preset", "spec", "init_from"))
    if "mix" in new:
        tree.pop("objective", None)
        tree.get("data", {}).pop("paths", None)
    elif "objective" in new or "paths" in (new.get("data") or {}):
        tree.pop("mix", None)
    merge(tree, new)


def _replace_group(table: Any, new: Any, names: Sequence[str]) -> None:
    """Drop the keys of a group of alternatives where the changes have one of them."""
    if isinstance(table, dict) and isinstance(new, Mapping) and any(name in new for name in names):
        for name in names:
            table.pop(name, None)


def load_recipe(recipe: str | os.PathLike[str] | Recipe, changes: Changes = ()) -> Recipe:
    """A recipe with changes applied, complete but for numbers that depend on the data.

    Args:
        recipe: a preset ("bert-small"), a shipped recipe ("textbook-bert"), a TOML file, a Recipe,
            or the folder of a model to continue from.
        changes: as `--set` takes them, or a nested dict.

    Raises:
        RecipeError: no such recipe or preset, an unknown key, or a value that is not allowed.
    """
    source = "recipe"
    if isinstance(recipe, Recipe):
        tree = recipe.to_tree()
    else:
        source = os.fspath(recipe)
        tree = _named_tree(source)
    return build_recipe(tree, changes, source=source)


def build_recipe(tree: dict[str, Any], changes: Changes = (), *, source: str = "recipe") -> Recipe:
    """A recipe from a tree, with changes applied and every kind that is left open chosen."""
    tree = copy.deepcopy(tree)
    apply_changes(tree, changes)
    for table in (tree.get("data"), *(tree.get("mix") or ())):
        if isinstance(table, dict):
            for key in ("paths", "validation"):
                if isinstance(table.get(key), str):
                    table[key] = [table[key]]
    _name_sources(tree.get("mix") or ())
    model = ModelConfig.parse(tree.get("model", {}), source=f"{source}, [model]")
    spec = model.build_spec()
    fill_kinds(tree, load(str(model.init_from)).spec if spec is None else spec)
    return Recipe.parse(tree, source=source)


def _named_tree(name: str) -> dict[str, Any]:
    if name in presets:
        return {"model": {"preset": name}}
    if name in shipped_recipes() or name.endswith(".toml"):
        return read_recipe(name)
    if Path(name).is_dir():
        return {"model": {"init_from": name}}
    near = did_you_mean(name, [*presets, *shipped_recipes()])
    raise RecipeError(
        f'"{name}" is no preset, no shipped recipe, no .toml file and no folder.{near} '
        "`trivium presets` lists all presets."
    )


def _name_sources(tables: Sequence[Any]) -> None:
    """Name the sources of a mix that have no name after their first path, in place."""
    names = {table.get("name") for table in tables if isinstance(table, dict)}
    for table in tables:
        if isinstance(table, dict) and "name" not in table and table.get("paths"):
            stem = Path(str(table["paths"][0]).removeprefix("hf:")).name.split(".")[0]
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "text"
            numbered = (f"{stem}-{number}" for number in itertools.count(2))
            candidates = itertools.chain((stem,), numbered)
            table["name"] = next(name for name in candidates if name not in {*names, "loss"})
            names.add(table["name"])


def fill_kinds(tree: dict[str, Any], spec: AnySpec) -> None:
    """Choose every kind that a recipe's tree leaves open, from the model's form, in place."""
    for table in tree.get("mix") or [tree]:
        objective = table.setdefault("objective", {}) if isinstance(table, dict) else None
        if isinstance(objective, dict) and "kind" not in objective:
            objective["kind"] = default_objective(spec).kind
    new = "init_from" not in tree["model"] or tree["model"].get("new_weights", False)
    both, labelled = spec.family == "encoder-decoder", _is_labelled(tree)
    optimizer = tree.setdefault("optimizer", {})
    optimizer.setdefault("kind", "muon" if both and new else "adamw")
    schedule = tree.setdefault("schedule", {})
    schedule.setdefault("kind", "linear" if labelled else "stable-decay")
    if labelled and optimizer["kind"] in OPTIMIZERS:
        for key, value in OPTIMIZERS[optimizer["kind"]].fine_tuning.items():
            optimizer.setdefault(key, value)
    if "init_from" in tree["model"]:
        return
    tokenizer = tree.setdefault("tokenizer", {})
    if "path" in tokenizer:
        tokenizer.setdefault("kind", "file")
    defaults = _tokenizer_defaults(tree, spec)
    tokenizer.setdefault("kind", defaults["kind"])
    if tokenizer["kind"] != "file" and "special_tokens" in defaults:
        tokenizer.setdefault("special_tokens", defaults["special_tokens"])


def _is_labelled(tree: dict[str, Any]) -> bool:
    return any(cls.labelled for cls in _objective_classes(tree))


def _objective_classes(tree: dict[str, Any]) -> list[type[Objective]]:
    tables = [source.get("objective", {}) for source in tree.get("mix") or ()]
    kinds = [table.get("kind", "") for table in tables or [tree["objective"]]]
    return [OBJECTIVES[kind] for kind in kinds if kind in OBJECTIVES]


def _tokenizer_defaults(tree: dict[str, Any], spec: AnySpec) -> dict[str, Any]:
    """Kind and special tokens of a new tokenizer: what an objective needs, or by the model."""
    for cls in _objective_classes(tree):
        defaults = cls.tokenizer_defaults(spec)
        if defaults:
            return defaults
    if spec.family == "encoder-decoder":
        return {"kind": "unigram", "special_tokens": ["<pad>", "</s>", "<unk>", "<s>"]}
    return {"kind": "wordpiece" if spec.family == "encoder-only" else "byte-bpe"}
