"""The recipe of fine-tuning: the same kind of tree as for pretraining, with a task in it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trivium.errors import RecipeError
from trivium.train.recipe import (
    OptimizerSection,
    Positive,
    RunSection,
    ScheduleSection,
    Section,
    Share,
    apply_changes,
)

TaskKind = Literal[
    "classification", "tagging", "qa", "translation", "text-to-text", "summarization", "lm"
]


_WRITING = ("translation", "text-to-text", "summarization")
# Which tasks a key means something to.
_TASKS_OF: dict[str, tuple[str, ...]] = {
    "text_field": ("classification",),
    "pair_field": ("classification",),
    "label_field": ("classification",),
    "labels": ("classification",),
    "pooling": ("classification",),
    "lm_weight": ("classification",),
    "class_weights": ("classification", "tagging"),
    "column": ("tagging",),
    "repair_iob": ("tagging",),
    "stride": ("qa",),
    "source_field": (*_WRITING, "lm"),
    "target_field": (*_WRITING, "lm"),
    "prefix": (*_WRITING, "classification"),
    "smoothing": _WRITING,
    "metric": _WRITING,
    "bleu_tokenizer": _WRITING,
    "beams": _WRITING,
    "length_penalty": _WRITING,
    "responses_only": ("lm",),
}


class TaskSection(Section):
    """What is taught, and how its examples are read.

    Fields and columns are found by their usual names unless given. `labels`: "classes",
    "multi-label" or "numbers", told from the data unless given. `pooling`: the vector that is
    classified ("first", "last", "mean"). `lm_weight` is lambda of the mixed loss L_task + lambda
    L_LM of decoders. `class_weights` "balanced" lets rare classes count more. `repair_iob` mends
    chunk tags that begin with I-. `smoothing` is that of labels of translation. `prefix` is put
    before every source. `metric` of translation and summarization: "bleu", "rouge" or "exact".
    `responses_only`: of conversations only what the assistant says is learned.
    """

    kind: TaskKind
    text_field: str | None = None
    pair_field: str | None = None
    label_field: str | None = None
    labels: Literal["classes", "multi-label", "numbers"] | None = None
    column: int | str | None = None
    source_field: str | None = None
    target_field: str | None = None
    prefix: str = ""
    pooling: Literal["first", "last", "mean"] | None = None
    lm_weight: Share | None = None
    class_weights: Literal["none", "balanced"] = "none"
    repair_iob: bool = True
    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    stride: Positive = 128
    metric: Literal["bleu", "rouge", "exact"] | None = None
    bleu_tokenizer: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] = "13a"
    beams: Positive = 4
    length_penalty: float = 1.0
    responses_only: bool = True

    @model_validator(mode="after")
    def _only_keys_of_the_task(self) -> Self:
        for key, tasks in _TASKS_OF.items():
            if (
                self.kind not in tasks
                and getattr(self, key) != type(self).model_fields[key].default
            ):
                raise ValueError(
                    f"{key} means nothing to {self.kind}, only to {', '.join(tasks)}: leave it out"
                )
        return self


class StartSection(Section):
    """What training starts from.

    `start`: a run, a checkpoint, a Hugging Face folder or name, or a preset, which starts from
    random weights. `weights` "random" keeps the model's form and tokenizer alone. `freeze`: "none",
    "embeddings", "body", "encoder", "layers:N" or "all-but-norms-and-biases".
    """

    start: str
    weights: Literal["start", "random"] = "start"
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    freeze: str = "none"


class AdapterSection(Section):
    """LoRA: `rank` 0 trains the model itself. `keep_apart` also saves the adapter by itself."""

    rank: Annotated[int, Field(ge=0)] = 0
    alpha: Annotated[float, Field(gt=0)] = 16.0
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: tuple[str, ...] = ("query", "value")
    keep_apart: bool = False


class NewTokenizerSection(Section):
    """For presets: a tokenizer that exists (`path`), or one trained on the task's own text.

    `separate`: sources and targets of an encoder-decoder get one each, of `vocab_size` tokens; the
    one at `path`, if given, is that of targets.
    """

    path: str | None = None
    kind: Literal["whitespace", "bpe", "byte-bpe", "unigram", "wordpiece"] | None = None
    vocab_size: Positive | None = None
    lowercase: bool = False
    separate: bool = False


class ExamplesSection(Section):
    """Where examples come from and how they are cut.

    `validation` is a fraction of `paths`, or files. `length`: tokens that are read of an example
    (of source and target, each), and by the model from then on; None: all, but 512 where some are
    longer.
    `mix`: further sources of tasks that write, each with paths, a prefix and fields of its own;
    where one has `validation` files, these are what is judged by, in place of a fraction.
    """

    paths: tuple[str, ...] = ()
    validation: float | tuple[str, ...] = 0.1
    length: Positive | None = None
    mix: tuple[dict[str, Any], ...] = ()


class FinetuneTrainSection(RunSection):
    """How long and in what steps.

    `batch` is examples a step. An evaluation is due every `eval_every` steps (None: once an epoch,
    but not within 10 steps and no later than after 500), on `eval_examples` of the validation
    examples (None: all, or 400 of texts to be written), with a checkpoint every `save_every` (None:
    as often). Training ends early after `patience` evaluations without a better one. The best
    weights are kept; with `average` above 1 the mean of so many last checkpoints is tried too.
    """

    batch: Positive | None = None
    patience: Positive | None = None
    average: Positive = 1
    eval_every: Positive | None = None
    eval_examples: Positive | None = None
    save_every: Positive | None = None


class FinetuneRecipe(Section):
    """Fine-tuning on paper."""

    seed: int = 0
    task: TaskSection
    model: StartSection
    adapter: AdapterSection = AdapterSection()
    tokenizer: NewTokenizerSection = NewTokenizerSection()
    data: ExamplesSection = ExamplesSection()
    optimizer: OptimizerSection = OptimizerSection(betas=(0.9, 0.999))
    schedule: ScheduleSection = ScheduleSection(kind="linear", final=0.0)
    train: FinetuneTrainSection = FinetuneTrainSection()

    @model_validator(mode="after")
    def _only_writing_is_mixed(self) -> Self:
        if self.data.mix and self.task.kind not in _WRITING:
            raise ValueError(
                f"data.mix means nothing to {self.task.kind}, only to {', '.join(_WRITING)}: "
                "name all files in data.paths"
            )
        return self


def load_finetune_recipe(
    tree: dict[str, Any] | str | os.PathLike[str], changes: Sequence[str] | dict[str, Any] = ()
) -> FinetuneRecipe:
    """A recipe from a tree or a TOML file, with changes applied.

    Raises:
        RecipeError: no such file, an unknown key, or a value that does not fit.
    """
    source = "recipe"
    if not isinstance(tree, dict):
        source = os.fspath(tree)
        try:
            tree = tomllib.loads(Path(source).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RecipeError(f"{source}: no such recipe file.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RecipeError(f"{source}: not valid TOML: {error}") from None
    apply_changes(tree, changes)
    return FinetuneRecipe.from_dict(tree, source=source)
