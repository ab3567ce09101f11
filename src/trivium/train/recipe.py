"""The recipe: everything that a run depends on, in one structure for TOML, `--set` and Python.

A recipe consists of components: `recipe.objective` is the objective itself, `recipe.optimizer`
builds the optimizers, and `recipe.schedule` computes the learning rate from the step and the
progress. A run writes its complete recipe to its folder.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator

from trivium.adapt import add_lora, freeze
from trivium.adapt.new_tokens import find_vocabulary_tables
from trivium.config import Config
from trivium.interop.peft_format import adapter_to_peft
from trivium.models import LanguageModule
from trivium.objectives import Objective
from trivium.text.trainers import TokenizerConfig, TokenizerSource
from trivium.train.data_config import DataConfig, ExtendedTokenizer, MixConfig
from trivium.train.model_config import AdapterConfig, ModelConfig
from trivium.train.optimizers import Optimizer
from trivium.train.phases import PhaseConfig
from trivium.train.schedules import Schedule
from trivium.train.train_config import ParallelConfig, TrainConfig

TEXT_KEYS = {
    "train.batch_tokens": "train.batch_examples",
    **dict.fromkeys(("data.packing", "data.separate_documents", "data.separator"), ""),
    **dict.fromkeys(("data.text_field", "data.keep_duplicates"), ""),
    **dict.fromkeys(("data.keep_text", "train.keep_best"), ""),
}
"""Maps each key that affects only text to the corresponding key for labelled examples, or ""."""

LABELLED_KEYS = {
    "train.batch_examples": "train.batch_tokens",
    "train.eval_examples": "train.eval_tokens",
    **dict.fromkeys(("train.metric", "train.average", "data.bad_records", "data.cache"), ""),
}
"""Maps each key that affects only labelled examples to the corresponding key for text, or ""."""


class Recipe(Config):
    """The complete description of a run, for pretraining and fine-tuning alike."""

    seed: int = Field(0, description="seed of new weights, row order, noise and dropout")
    defaults: Literal["published", "fast"] | None = Field(
        None, description="defaults as published, or those that learn fastest (our own sizes)"
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
    def _check_sources(self) -> Self:
        """Raise ValueError for data sources or source names that conflict.

        For example, a recipe cannot have both `data.paths` and `[[mix]]`.
        """
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
        return self

    @model_validator(mode="after")
    def _check_adapter(self) -> Self:
        """Raise ValueError for keys that cannot be combined with an adapter, or that need one."""
        rank = self.adapter.rank
        if rank and self.model.freeze != "none":
            raise ValueError("adapter.rank freezes all but the adapter: leave model.freeze out")
        if rank and self.train.average > 1:
            raise ValueError("train.average is for runs without an adapter: leave it out")
        if rank and isinstance(self.tokenizer, ExtendedTokenizer):
            if self.adapter.save_separately:
                raise ValueError(
                    "adapter.save_separately: the base model has no rows for the new tokens of "
                    "tokenizer.extend. Leave one of them out; the whole model is saved anyway"
                )
            if any(objective.kind == "policy" for objective in self.objectives):
                raise ValueError(
                    "tokenizer.extend trains the embeddings, which an adapter's reference model "
                    "needs unchanged: add the tokens in an earlier run, or leave adapter.rank out"
                )
        if self.model.quantize is not None:
            if not rank:
                raise ValueError(
                    "model.quantize is for the frozen weights under an adapter: set adapter.rank"
                )
            if not self.model.starts_from_weights:
                raise ValueError("model.quantize is for the weights of model.init_from: set it")
            if self.train.compile or self.train.attention == "flex":
                raise ValueError(
                    "model.quantize is not for torch.compile: leave train.compile and "
                    'train.attention = "flex" out'
                )
        return self

    @model_validator(mode="after")
    def _check_keys_have_effect(self) -> Self:
        """Raise ValueError if no data source uses a key that is set in `[train]` or `[data]`."""
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
    def _check_objectives(self) -> Self:
        """Raise an error if an objective does not support the recipe's packing or tokenizer.

        This check runs before any data is read.
        """
        for objective in self.objectives:
            data = self.data
            objective.check_rows(data.packing, data.separate_documents, is_mixed=bool(self.mix))
            if isinstance(self.tokenizer, TokenizerConfig):
                objective.check_tokens(self.tokenizer.special_vocabulary)
        return self

    @model_validator(mode="after")
    def _check_phases(self) -> Self:
        """Raise ValueError if phases are out of order or have overrides that do not fit the recipe.

        For example, a phase cannot change the row length of labelled examples.
        """
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
            self.for_phase(number)
        return self

    def for_phase(self, index: int) -> Self:
        """Return the recipe with the overrides of one phase. The result has no `phases`.

        The last phase overrides nothing.
        """
        if index >= len(self.phases):
            return self.model_copy(update={"phases": ()})
        phase = self.phases[index]
        tree = {**self.to_tree(), "phases": []}
        for name in ("data", "train", "optimizer"):
            changes = getattr(phase, name)
            tree[name] = {**tree.get(name, {}), **(changes.to_tree() if changes else {})}
        if phase.objective:
            tree["objective"] = {**tree["objective"], **phase.objective}
        for source in tree.get("mix", ()) if phase.mix else ():
            source["weight"] = (phase.mix or {})[source["name"]]
        return type(self).from_tree(tree, where=f"phases[{index}]")

    @property
    def sources(self) -> tuple[MixConfig, ...]:
        """The data sources with their objectives. Without a mix, there is one source, named ""."""
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
        """The objective of each data source."""
        return tuple(source.objective for source in self.sources)

    def replace(self, **values: Any) -> Self:
        """Return a validated copy with new values for the given fields.

        The copy keeps the recorded origins of all values.
        """
        new = super().replace(**values)
        new._origins = self._origins
        return new

    def __eq__(self, other: object) -> bool:
        """Return whether two recipes have equal values, regardless of the origins of the values."""
        return isinstance(other, Recipe) and dict(self) == dict(other)

    def origin_of(self, key: str) -> str:
        """Return where the value of a dotted key comes from, such as "--set" or a paper.

        Returns "" if the origin is not recorded.
        """
        parts = key.split(".")
        paths = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self._origins[path] for path in paths if path in self._origins), "")

    def with_objectives(self, objectives: Sequence[Objective]) -> Self:
        """Return the recipe with other objectives, one per data source."""
        if not self.mix:
            return self.replace(objective=objectives[0])
        pairs = zip(self.mix, objectives, strict=True)
        return self.replace(mix=tuple(source.replace(objective=one) for source, one in pairs))

    @property
    def labelled(self) -> bool:
        """Whether any data source has labelled examples."""
        return any(objective.labelled for objective in self.objectives)

    def freeze_or_add_lora(self, model: LanguageModule, model_type: str | None = None) -> None:
        """Freeze the weights named by `model.freeze`, or add a LoRA adapter, in place.

        If the tokenizer has new tokens, the embeddings and output layers of its vocabulary are
        trained alongside the adapter. `model_type` is the Hugging Face family from which the base
        model was imported, if any.

        Raises SpecError if a name in `model.freeze` or `adapter.targets` does not exist in the
        model. Also raises SpecError if the adapter is to be saved separately, but PEFT could not
        load it.
        """
        if self.adapter.rank:
            lora = self.adapter.lora
            if isinstance(self.tokenizer, ExtendedTokenizer):
                lora = lora.replace(trained=(*lora.trained, *find_vocabulary_tables(model)))
            add_lora(model, lora, seed=self.seed)
            if self.adapter.save_separately:
                adapter_to_peft(model, self.adapter.lora, model_type)
        else:
            freeze(model, self.model.freeze)
