"""The recipe: everything a run depends on, as one tree that TOML, `--set` and Python share.

A recipe is made of the parts themselves: `recipe.objective` is the objective, `recipe.optimizer`
builds itself, `recipe.schedule` is a function of the step and the budget used. A run writes its
complete recipe to its folder.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveInt,
    PrivateAttr,
    SerializeAsAny,
    field_validator,
    model_validator,
)

from trivium.adapt import add_lora, freeze
from trivium.config import Config, merge_changes
from trivium.errors import RecipeError, SpecError
from trivium.files import check_encoding
from trivium.interop.peft_format import adapter_to_peft
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.initialization import with_fast_initialization
from trivium.models.resizing import changed_keys, resize_spec
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import Layer
from trivium.nn.part import FieldError
from trivium.objectives import Objective
from trivium.presets import presets
from trivium.text.literals import SpecialTokens
from trivium.text.trainers import TokenizerConfig, TokenizerSource
from trivium.train.adapter_config import AdapterConfig
from trivium.train.optimizers import Optimizer
from trivium.train.phases import PhaseConfig
from trivium.train.schedules import Schedule

BUDGETS = ("steps", "minutes", "tokens", "epochs")
"""The keys of `[train]` that say how long a run is; a recipe has exactly one."""

ORIGINS = ("preset", "spec", "init_from")
"""The keys of `[model]` that say where it comes from; a recipe has exactly one."""


def as_list(value: Any) -> Any:
    """A list of a single string; anything else as it is."""
    return [value] if isinstance(value, str) else value


TEXT_KEYS = {
    "train.batch_tokens": "train.batch_examples",
    **dict.fromkeys(("data.packing", "data.separate_documents", "data.separator"), ""),
    **dict.fromkeys(("data.text_field", "data.keep_duplicates"), ""),
    **dict.fromkeys(("data.keep_text", "train.keep_best"), ""),
}
"""Keys that have an effect on text only -> the key for labelled examples, or ""."""

LABELLED_KEYS = {
    "train.batch_examples": "train.batch_tokens",
    "train.eval_examples": "train.eval_tokens",
    **dict.fromkeys(("train.metric", "train.average", "data.bad_records"), ""),
}
"""Keys that have an effect on labelled examples only -> the key for text, or ""."""

DataParallelism = Literal["ddp", "fsdp"]
"""Every process holds the whole model, or a shard of weights, gradients and optimizer state."""

PathList = Annotated[tuple[str, ...], BeforeValidator(as_list)]
"""Paths; one may be written as a string."""


class ModelConfig(Config):
    """What is trained: a preset or a spec with new weights, or a model whose weights are kept.

    `embedding`, `encoder`, `decoder`, `d_model` and `cell` change parts of the preset; "Parts of a
    model" lists what they take. Relative positions in attention replace its absolute ones.
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
        "published", description='new weights as in the paper, or "fast" (most with an encoder)'
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="0 for text and small new translators, else by the task"
    )
    freeze: str = Field(
        "none", description='what stays as it is: "embeddings", "encoder", "layers:N", ...'
    )
    separate_vocabularies: bool = Field(
        False,
        description="an encoder-decoder gets one new tokenizer for sources, one for targets; "
        "`export` needs a joint one",
    )
    d_model: PositiveInt | None = Field(None, description="width of the preset's hidden states")
    cell: str | None = Field(None, description="of an RNN preset, as in RNNSpec")
    embedding: dict[str, Any] | None = Field(None, description="changes of the preset's embedding")
    encoder: dict[str, Any] | None = Field(None, description="changes of the preset's encoder")
    decoder: dict[str, Any] | None = Field(None, description="changes of the preset's decoder")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if sum(getattr(self, origin) is not None for origin in ORIGINS) != 1:
            raise ValueError(
                'set exactly one of preset = "bert-small", spec = {...} and init_from = "runs/mine"'
            )
        if self.init_from is not None and self.initialization == "fast":
            raise ValueError('initialization = "fast" is for a preset or a spec, not for init_from')
        return self

    @property
    def starts_from_weights(self) -> bool:
        """Whether training continues from trained weights."""
        return self.init_from is not None and not self.new_weights

    def _changes(self) -> dict[str, Any]:
        """The keys that change parts of a preset or spec."""
        parts = {"d_model", "cell", "embedding", "encoder", "decoder"}
        return self.model_dump(include=parts, exclude_none=True)

    def _resized_preset(self) -> dict[str, Any]:
        """The preset, with the sizes that follow from a changed width or number of heads."""
        spec = presets[str(self.preset)]
        heads, layers = dict[str, int](), dict[str, int]()
        for slot, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            for sizes, path in (
                (heads, ("layers", "mixer", "num_heads")),
                (layers, ("num_layers",)),
            ):
                number = _value_at(stack, path)
                if isinstance(number, int) and 0 < number <= 1000:
                    sizes[slot] = number
        if not isinstance(spec, TransformerSpec) or not (heads or layers or self.d_model):
            return spec.to_dict()
        return resize_spec(spec, self.d_model or spec.d_model, heads, layers).to_dict()

    @property
    def changes_preset(self) -> bool:
        """Whether the model is the preset with changed parts, not the preset itself."""
        return self.preset is not None and bool(self._changes())

    def derived_sizes(self) -> list[tuple[str, Any, Any]]:
        """The sizes of the preset that follow from changed ones: key, value before, and now."""
        if self.preset is None:
            return []
        given = {".".join(path) for path, _ in _leaves(self._changes())}
        changed = changed_keys(presets[self.preset].to_dict(), self._resized_preset())
        return list(dict.fromkeys(each for each in changed if each[0] not in given))

    def build_spec(self) -> Spec | None:
        """The spec with the vocabulary size of the literature; None with `init_from`."""
        if self.init_from is not None:
            return None
        tree = copy.deepcopy(self.spec or {}) if self.preset is None else self._resized_preset()
        changes = self._changes()
        if _sets_relative_positions(changes) and "embedding" in tree:
            tree["embedding"].pop("positions", None)
        for stack in ("encoder", "decoder"):
            for name in ("first_layers", "layers"):
                layers = tree.get(stack, {}).get(name)
                if isinstance(layers, list) and isinstance(changes.get(stack, {}).get(name), dict):
                    _change_layers(layers, changes[stack].pop(name))
        merge_changes(tree, changes)
        try:
            spec = Spec.from_dict(tree)
        except FieldError as error:
            key = ".".join(filter(None, ("model.spec" if self.spec else "model", error.path)))
            raise RecipeError(f"{key}: {error.problem}") from None
        if self.initialization == "published":
            return spec
        if not isinstance(spec, TransformerSpec):
            raise RecipeError('model.initialization = "fast" is for Transformers: leave it out.')
        try:
            return with_fast_initialization(spec)
        except SpecError as error:
            raise RecipeError(f"[model] {error}") from None


def _value_at(tree: Any, path: Sequence[str]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _sets_relative_positions(changes: Mapping[str, Any]) -> bool:
    """Whether the attention of a stack gets positions."""
    layers = [changes.get(stack, {}).get("layers") or {} for stack in ("encoder", "decoder")]
    tables = [one for each in layers for one in (each if isinstance(each, list) else [each])]
    mixers = [table.get("mixer") for table in tables if isinstance(table, Mapping)]
    return any(isinstance(mixer, Mapping) and mixer.get("positions") for mixer in mixers)


def _change_layers(layers: list[dict[str, Any]], changes: Mapping[str, Any]) -> None:
    """Set each key of `changes` in every layer whose part has the key, in place.

    A key that no layer has is set in all of them, so that the check of the spec names the key.
    """
    parts = [Layer.model_validate(layer) for layer in layers]
    for path, value in _leaves(changes):
        takers = [number for number, layer in enumerate(parts) if _has_field(layer, path)]
        for number in takers or range(len(layers)):
            tree = value
            for name in reversed(path):
                tree = {name: tree}
            merge_changes(layers[number], copy.deepcopy(tree))


def _leaves(changes: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """The paths of a tree and their values; a table with a kind is one value."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and "kind" not in value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _has_field(part: Any, path: tuple[str, ...]) -> bool:
    *parents, name = path
    for parent in parents:
        part = getattr(part, parent, None)
    return name in getattr(type(part), "model_fields", ())


class TokenizerFile(TokenizerSource):
    """A tokenizer that exists."""

    kind: Literal["file"] = "file"
    path: str = Field(description="tokenizer.json, or a folder that has one")


class DataConfig(Config):
    """Where text or labelled examples come from, and how they are cut."""

    paths: PathList = Field((), description='files, folders, globs, "hf:NAME" or shards')
    validation: Annotated[float | tuple[str, ...], BeforeValidator(as_list)] = Field(
        0.1, description="held-out fraction of the documents or examples, or paths"
    )
    length: PositiveInt | None = Field(
        None,
        description="of text: tokens of a row, 128 unless set; of labelled examples: most tokens "
        "that are read, the rest is cut; unless set the positions of the model, 4,096 at most, or "
        "512 where longer texts are read in windows",
    )
    packing: Literal["pack", "truncate"] = Field(
        "pack", description="join documents and cut rows, or one row per document"
    )
    separate_documents: bool = Field(
        False, description="packed documents do not attend to each other"
    )
    separator: str = Field(
        "blank", description='between documents of plain text: "blank", "line", "file", or a string'
    )
    text_field: str = Field("text", description="column of a record that is its text")
    encoding: Annotated[str, AfterValidator(check_encoding)] = Field(
        "utf-8", description="of text files, such as gb18030 or utf-16"
    )
    errors: Literal["strict", "replace"] = Field("strict", description="on invalid bytes")
    bad_records: Literal["stop", "skip"] = Field(
        "stop",
        description="labelled examples that cannot be read: an error, or counted and left out",
    )
    keep_duplicates: bool = Field(False, description="keep exact repeats of documents")
    special_tokens: SpecialTokens = Field(
        "text",
        description='what the name of a special token in the data is, such as [SEP]: "text" or '
        '"special", the control token',
    )
    keep_text: bool = Field(
        False, description="also write train.txt and validation.txt to texts/ in the run's folder"
    )
    temperature: float = Field(
        1.0, gt=0, description="sources of [[mix]] without weights: by rows ** (1 / temperature)"
    )


class MixConfig(Config):
    """One of several sources: its data, its objective, and its share of the steps.

    Every step takes its whole batch from one source, drawn by weight. A BART that learns from text
    in three steps of four, and from labelled pairs in the fourth:

    ```toml
    [model]
    preset = "bart-mini"

    [[mix]]
    name = "text"
    paths = ["corpus/"]
    weight = 3.0
    objective = { kind = "denoising" }

    [[mix]]
    name = "pairs"
    paths = ["pairs.tsv"]
    weight = 1.0
    objective = { kind = "translation" }
    ```

    Metrics are named after the source: `train_text`, `valid_pairs`, `valid_pairs/bleu`.

    With one labelled source, what the recipe leaves open is as in fine-tuning for all of them: half
    the learning rate of pretraining for new weights, a linear schedule with a warm-up of a tenth,
    the task's dropout, a budget in epochs. Set `optimizer.lr`, `[schedule]`, `model.dropout` and
    the budget where pretraining is the larger part.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="in metrics and shards")
    paths: PathList = Field(min_length=1, description="as in [data]")
    validation: Annotated[float | tuple[str, ...] | None, BeforeValidator(as_list)] = Field(
        None, description="as in [data], whose own is used unless set"
    )
    weight: float | None = Field(
        None, gt=0, description="share of the steps, relative to the others; by rows unless set"
    )
    objective: SerializeAsAny[Objective] = Field(
        description="how the model learns from this source"
    )


class TrainConfig(Config):
    """How long, in which pieces, on what, and what is logged."""

    steps: PositiveInt | None = Field(None, description="budget in steps")
    minutes: float | None = Field(
        None,
        gt=0,
        description="budget in minutes from the first step, with evaluations; those of a task are, "
        "in one process, cut to a tenth of it each, and the one at the end to a quarter more, "
        "unless eval_examples is set; not bit-equal when resumed",
    )
    tokens: PositiveInt | None = Field(None, description="budget in tokens")
    epochs: float | None = Field(
        None,
        gt=0,
        description="budget in passes over the data; in a mix, over its labelled examples",
    )
    batch_tokens: PositiveInt | None = Field(
        None, description="tokens per step of text; by the model's width unless set"
    )
    batch_examples: PositiveInt | None = Field(
        None, description="labelled examples per step; by the task unless set"
    )
    micro_batch_tokens: PositiveInt | None = Field(
        None,
        description="tokens that pass through the model together, which changes dropout and "
        "rounding only; by memory unless set",
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto",
        description="of activations; auto: what is faster (on a CPU by measurement); fp16 scales "
        "the loss, and is for GPUs without bf16",
    )
    device: str = Field("auto", description='"auto", "cpu", "cuda" or "mps" (untried)')
    compile: bool | None = Field(None, description="torch.compile the blocks; on a GPU unless set")
    attention: Literal["sdpa", "flex"] = Field(
        "sdpa",
        description="self-attention by scaled_dot_product_attention, or by FlexAttention, which "
        "keeps no scores for a trained bias (T5) or a soft cap (Gemma 2), and skips what documents "
        "and windows mask: on a GPU, with compile, not with dropout",
    )
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    gradual_unfreezing: float | None = Field(
        None, gt=0, lt=1, description="share of the run in which layers unfreeze, the last first"
    )
    skip_spikes: float | None = Field(
        None,
        gt=1,
        description="skip steps whose gradient norm is more than so many times the median of the "
        "last 100; none unless set",
    )
    log_every: PositiveInt | None = Field(
        None,
        description="steps between log lines, 10 unless set; where the output is no terminal these "
        "are all shown if it is set, else one in 20 seconds",
    )
    eval_every: PositiveInt | None = Field(
        None, description="steps between evaluations; 200, or an epoch (policies: 25), unless set"
    )
    eval_tokens: PositiveInt = Field(
        32_768, description="held-out tokens that the validation loss is measured on, evenly spaced"
    )
    eval_examples: PositiveInt | None = Field(
        None,
        description="held-out examples of each source per evaluation, evenly spaced, for metrics "
        "and loss, and in the evaluation at the end; unless set all, but 400 during training where "
        "text is generated",
    )
    save_every: PositiveInt | None = Field(
        None,
        description="steps between checkpoints; 500, or as eval_every, unless set; where "
        "steps are slow also one after half a minute and every two minutes, unless average is set "
        "or all are kept",
    )
    keep_checkpoints: PositiveInt | Literal["all"] = Field(3, description="older ones are deleted")
    keep_best: bool | None = Field(
        None,
        description="of text: end with the weights of lowest validation loss; unless set, of those "
        "after the first pass over the text, with patience of all",
    )
    metric: str | None = Field(
        None,
        description="metric by which the best weights are kept and patience counts, of the first "
        'source with labels, such as "macro_f1"; the task\'s first one unless set',
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many evaluations without a better metric, or loss of text"
    )
    average: PositiveInt = Field(
        1,
        description="on labelled examples without an adapter: also try the mean of so many last "
        "checkpoints",
    )
    verify: bool = Field(
        True, description="compare the checksums of shards and checkpoint when the run is resumed"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events")

    @property
    def budget(self) -> tuple[str, float] | None:
        """The name of the budget and its size; None while it is open."""
        sizes = ((name, getattr(self, name)) for name in BUDGETS)
        return next(((name, size) for name, size in sizes if size is not None), None)

    @property
    def most_checkpoints(self) -> int:
        """How many are kept."""
        return sys.maxsize if self.keep_checkpoints == "all" else self.keep_checkpoints

    def compiles(self, device: torch.device) -> bool:
        """Whether the blocks are compiled on this device."""
        return device.type == "cuda" if self.compile is None else self.compile

    def uses_flex(self, device: torch.device) -> bool:
        """Whether FlexAttention is chosen. Raises RecipeError if `device` does not support it."""
        if self.attention == "flex" and not (device.type == "cuda" and self.compiles(device)):
            raise RecipeError('train.attention = "flex" needs a GPU, and train.compile = true.')
        return self.attention == "flex"

    @field_validator("precision", mode="before")
    @classmethod
    def _no_fp8(cls, value: Any) -> Any:
        if value in ("fp8", "float8"):
            raise ValueError('training in fp8 is not supported: set "bf16" or leave it out')
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if len(names := [name for name in BUDGETS if getattr(self, name) is not None]) > 1:
            one = f"set exactly one budget of {', '.join(BUDGETS)}"
            raise ValueError(f"{one}, not {' and '.join(names)}")
        if self.patience is not None and self.keep_best is False:
            raise ValueError("patience counts evaluations since the best: leave keep_best out")
        return self


class ParallelConfig(Config):
    """How the processes that `torchrun` starts divide the work; one process ignores `data`."""

    data: DataParallelism | None = Field(
        None,
        description="every process holds the whole model (ddp), or a shard of weights, gradients "
        "and optimizer state (fsdp); ddp where the whole fits unless set",
    )
    tensor: PositiveInt = Field(
        1, description="processes that share each layer (tensor parallelism), with fsdp"
    )
    replicas: PositiveInt = Field(
        1,
        description="with fsdp: groups of processes, such as machines, that each hold all shards "
        "and sum their gradients once a step (HSDP)",
    )
    sequence: bool = Field(
        False, description="with tensor: divide the residual stream, too (sequence parallelism)"
    )
    activation_checkpointing: bool = Field(
        False, description="keep only the inputs of blocks, which the backward pass computes again"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.data == "ddp" and max(self.tensor, self.replicas) > 1:
            raise ValueError('tensor or replicas > 1 goes with data = "fsdp": leave data out')
        if self.sequence and self.tensor == 1:
            raise ValueError("sequence = true needs tensor > 1")
        return self


class Recipe(Config):
    """A run on paper, pretraining and fine-tuning alike."""

    seed: int = Field(0, description="of weights, order, noise and dropout")
    defaults: Literal["published", "fast"] | None = Field(
        None, description="what is left open: as published, or as learns fastest (our own sizes)"
    )
    model: ModelConfig
    tokenizer: SerializeAsAny[TokenizerSource] | None = None
    data: DataConfig = DataConfig.from_tree({})
    objective: SerializeAsAny[Objective] | None = None
    mix: tuple[MixConfig, ...] = ()
    adapter: AdapterConfig = AdapterConfig.from_tree({})
    optimizer: SerializeAsAny[Optimizer]
    schedule: SerializeAsAny[Schedule]
    train: TrainConfig = TrainConfig.from_tree({})
    parallel: ParallelConfig = ParallelConfig.from_tree({})
    phases: tuple[PhaseConfig, ...] = ()
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

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
        if self.train.average > 1 and self.adapter.rank:
            raise ValueError("train.average is for runs without an adapter: leave it out")
        return self

    @model_validator(mode="after")
    def _no_key_without_effect(self) -> Self:
        """A key of `[train]` or `[data]` that no source reads is not to pass in silence."""
        if all(objective.labelled for objective in self.objectives):
            kinds, unread = "text, but this run has labelled examples only", TEXT_KEYS
        elif not self.labelled:
            kinds, unread = "labelled examples, but this run has text only", LABELLED_KEYS
        else:
            return self
        for key, other in unread.items():
            section, _, name = key.partition(".")
            table = self.train if section == "train" else self.data
            if getattr(table, name) != type(table).model_fields[name].default:
                advice = f"set {other} instead" if other else "leave it out"
                raise ValueError(f"{key} is for {kinds}: {advice}")
        return self

    @model_validator(mode="after")
    def _objectives_fit(self) -> Self:
        """Objectives against the other tables, before any data is read."""
        for objective in self.objectives:
            data = self.data
            objective.check_rows(data.packing, data.separate_documents, is_mixed=bool(self.mix))
            if isinstance(self.tokenizer, TokenizerConfig):
                objective.check_tokens(self.tokenizer.special_vocabulary)
        return self

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        """Raise ValueError for phases out of order, or with keys that have no effect."""
        untils = [phase.until for phase in self.phases]
        if untils != sorted(set(untils)):
            raise ValueError(f"the phases end at {untils}: until must increase")
        for number, phase in enumerate(self.phases):
            keys = f"phases[{number}].{phase.row_keys[0]}" if phase.row_keys else ""
            if keys and any(one.labelled for one in self.objectives):
                raise ValueError(f"{keys} is for text only: leave it out")
            if keys and any(one.carries_state for one in self.objectives):
                raise ValueError(
                    f"{keys}: state is carried between steps of equal rows; leave it out, or set "
                    "objective.carry_state = false"
                )
            if phase.objective and self.mix:
                raise ValueError(f"phases[{number}].objective is for a run with one source")
            if phase.mix is not None and set(phase.mix) != {source.name for source in self.mix}:
                names = ", ".join(source.name for source in self.mix) or "none"
                raise ValueError(
                    f"phases[{number}].mix needs a weight for every source of [[mix]]: {names}"
                )
            decay = None if phase.optimizer is None else phase.optimizer.weight_decay
            if decay is not None and not (decay and self.optimizer.weight_decay):
                raise ValueError(
                    f"phases[{number}].optimizer.weight_decay changes optimizer.weight_decay: give "
                    "both, and both more than 0"
                )
            self.in_phase(number)
        return self

    def in_phase(self, number: int) -> Self:
        """Return the recipe of phase `number` alone; of the last part if there is no such phase."""
        if number >= len(self.phases):
            return self.model_copy(update={"phases": ()})
        phase = self.phases[number]
        tree = {**self.to_tree(), "phases": []}
        for name in ("data", "train", "optimizer"):
            changes = getattr(phase, name)
            tree[name] = {**tree.get(name, {}), **(changes.to_tree() if changes else {})}
        if phase.objective:
            tree["objective"] = {**tree["objective"], **phase.objective}
        for source in tree.get("mix", ()) if phase.mix else ():
            source["weight"] = (phase.mix or {})[source["name"]]
        return type(self).from_tree(tree, where=f"phases[{number}]")

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

    def replace(self, **values: Any) -> Self:
        """Return a validated copy with new values for the given fields, and the same origins."""
        new = super().replace(**values)
        new._origins = self._origins
        return new

    def __eq__(self, other: object) -> bool:
        """Return whether two recipes have equal values, wherever the values come from."""
        return isinstance(other, Recipe) and dict(self) == dict(other)

    def origin_of(self, key: str) -> str:
        """Return where the value of a dotted key comes from, such as "--set" or a paper."""
        parts = key.split(".")
        paths = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self._origins[path] for path in paths if path in self._origins), "")

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

    def freeze_weights(self, model: LanguageModule) -> None:
        """Freeze what is not trained, in place, and add the adapter if there is one.

        Raises SpecError for names that the model has not, or an adapter that is to be saved
        separately and that PEFT cannot read.
        """
        if self.adapter.rank:
            add_lora(model, self.adapter.lora, seed=self.seed)
            if self.adapter.save_separately:
                adapter_to_peft(model, self.adapter.lora)
        else:
            freeze(model, self.model.freeze)
