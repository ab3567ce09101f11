"""What is trained: the keys of `[model]`, and of `[adapter]` in place of a model's weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from trivium.adapt import LoRA
from trivium.config import Config, merge_changes
from trivium.errors import RecipeError, SpecError
from trivium.models.base_model import Spec
from trivium.models.initialization import with_fast_initialization
from trivium.models.resizing import changed_keys, resize_spec
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import Layer
from trivium.nn.part import FieldError
from trivium.presets import presets

ORIGINS = ("preset", "spec", "init_from")
"""The keys of `[model]` that say where it comes from; a recipe has exactly one."""


class ModelConfig(Config):
    """The model to train: a preset or a spec with new weights, or a model with its weights.

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


class AdapterConfig(Config):
    """LoRA (Hu et al. 2021): low-rank updates of some matrices in place of full training."""

    rank: int = Field(0, ge=0, description="0 trains the model itself")
    alpha: float = Field(16.0, gt=0, description="the update is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="of the adapters' inputs")
    targets: tuple[str, ...] = Field(
        ("query", "value"),
        description='linear layers by parts of their paths ("decoder.*.value"), or "all-linear"',
    )
    save_separately: bool = Field(False, description="also save the adapter in PEFT's format")

    @property
    def lora(self) -> LoRA:
        """The adapter to add."""
        return LoRA(rank=self.rank, alpha=self.alpha, dropout=self.dropout, targets=self.targets)


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
