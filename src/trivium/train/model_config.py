"""The model to train: the keys of `[model]`, and of `[adapter]` for training an adapter."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from trivium.adapt import LoRA
from trivium.adapt.quantize import BaseQuantization
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
"""The keys of `[model]` that name the origin of the model; a recipe sets exactly one of them."""


class ModelConfig(Config):
    """The model to train: a preset or a spec with random weights, or an existing model.

    `embedding`, `encoder`, `decoder`, `d_model` and `cell` override parts of the preset. Their
    fields are listed in "Parts of a model" in the documentation. Overrides that set relative
    positions in attention remove the preset's absolute positions.
    """

    preset: str | None = Field(None, description="a preset, with new weights")
    spec: dict[str, Any] | None = Field(None, description="a whole spec, with new weights")
    init_from: str | None = Field(
        None, description="run, checkpoint, Hugging Face folder or name: weights and tokenizer"
    )
    new_weights: bool = Field(
        False, description="keep the architecture and tokenizer of init_from, not its weights"
    )
    initialization: Literal["published", "fast"] = Field(
        "published", description='of new weights: as in the paper, or "fast" (most with an encoder)'
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="default: 0 for text and small new translators, else by task"
    )
    freeze: str = Field(
        "none", description='frozen weights: "embeddings", "encoder", "layers:N", ...'
    )
    quantize: BaseQuantization | None = Field(
        None,
        description='quantise the frozen weights under an adapter: "nf4" (4 bits, QLoRA) or "int8"',
    )
    separate_vocabularies: bool = Field(
        False,
        description="an encoder-decoder gets separate new tokenizers for sources and targets; "
        "`export` needs a joint tokenizer",
    )
    d_model: PositiveInt | None = Field(None, description="width of the preset's hidden states")
    cell: str | None = Field(None, description="cell of an RNN preset, as in RNNSpec")
    embedding: dict[str, Any] | None = Field(None, description="changes to the preset's embedding")
    encoder: dict[str, Any] | None = Field(None, description="changes to the preset's encoder")
    decoder: dict[str, Any] | None = Field(None, description="changes to the preset's decoder")

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        """Raise ValueError unless exactly one of `preset`, `spec` and `init_from` is set."""
        if sum(getattr(self, origin) is not None for origin in ORIGINS) != 1:
            raise ValueError(
                'set exactly one of preset = "bert-small", spec = {...} and init_from = "runs/mine"'
            )
        if self.init_from is not None and self.initialization == "fast":
            raise ValueError('initialization = "fast" is for a preset or a spec, not for init_from')
        return self

    @property
    def starts_from_weights(self) -> bool:
        """Whether training starts from the weights of an existing model (`init_from`)."""
        return self.init_from is not None and not self.new_weights

    def _get_preset_overrides(self) -> dict[str, Any]:
        """Return the overrides of the preset or spec as a dict with keys such as `d_model`."""
        parts = {"d_model", "cell", "embedding", "encoder", "decoder"}
        return self.model_dump(include=parts, exclude_none=True)

    def _resize_preset(self) -> dict[str, Any]:
        """Return the preset as a nested dict, resized to the user's width, heads and layers.

        Dimensions that depend on these three, such as the feed-forward width, are recomputed.
        """
        spec = presets[str(self.preset)]
        heads, layers = dict[str, int](), dict[str, int]()
        for slot, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            for sizes, path in (
                (heads, ("layers", "mixer", "num_heads")),
                (layers, ("num_layers",)),
            ):
                number = _get_value(stack, path)
                if isinstance(number, int) and 0 < number <= 1000:
                    sizes[slot] = number
        if not isinstance(spec, TransformerSpec) or not (heads or layers or self.d_model):
            return spec.to_dict()
        return resize_spec(spec, self.d_model or spec.d_model, heads, layers).to_dict()

    @property
    def changes_preset(self) -> bool:
        """Whether the recipe overrides any part of the preset."""
        return self.preset is not None and bool(self._get_preset_overrides())

    def derived_dimensions(self) -> list[tuple[str, Any, Any]]:
        """Return the dimensions of the preset that are recomputed because others are overridden.

        Each entry is a tuple (key, value in the preset, new value).
        """
        if self.preset is None:
            return []
        given = {".".join(path) for path, _ in _iter_leaves(self._get_preset_overrides())}
        changed = changed_keys(presets[self.preset].to_dict(), self._resize_preset())
        return list(dict.fromkeys(each for each in changed if each[0] not in given))

    def build_spec(self) -> Spec | None:
        """Build the spec of the model, with the published vocabulary size.

        Returns None if the model is loaded (`init_from`). Raises RecipeError if the spec is not
        valid.
        """
        if self.init_from is not None:
            return None
        tree = copy.deepcopy(self.spec or {}) if self.preset is None else self._resize_preset()
        changes = self._get_preset_overrides()
        if _sets_relative_positions(changes) and "embedding" in tree:
            tree["embedding"].pop("positions", None)
        for stack in ("encoder", "decoder"):
            for name in ("first_layers", "layers"):
                layers = tree.get(stack, {}).get(name)
                if isinstance(layers, list) and isinstance(changes.get(stack, {}).get(name), dict):
                    _override_layers(layers, changes[stack].pop(name))
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
    """LoRA (Hu et al. 2021): trains low-rank updates of some matrices instead of all weights."""

    rank: int = Field(0, ge=0, description="rank of the updates; 0: train the model itself")
    alpha: float = Field(16.0, gt=0, description="the update is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the adapters' inputs")
    targets: tuple[str, ...] = Field(
        ("query", "value"),
        description='linear layers by parts of their paths ("decoder.*.value"), or "all-linear"',
    )
    save_separately: bool = Field(False, description="also save the adapter in PEFT's format")

    @property
    def lora(self) -> LoRA:
        """The LoRA adapter with these settings."""
        return LoRA(rank=self.rank, alpha=self.alpha, dropout=self.dropout, targets=self.targets)


def _get_value(tree: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of keys in nested dicts, or None if the path does not exist."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _sets_relative_positions(changes: Mapping[str, Any]) -> bool:
    """Return whether overrides of a preset set relative positions in the attention of any layer."""
    layers = [changes.get(stack, {}).get("layers") or {} for stack in ("encoder", "decoder")]
    tables = [one for each in layers for one in (each if isinstance(each, list) else [each])]
    mixers = [table.get("mixer") for table in tables if isinstance(table, Mapping)]
    return any(isinstance(mixer, Mapping) and mixer.get("positions") for mixer in mixers)


def _override_layers(layers: list[dict[str, Any]], overrides: Mapping[str, Any]) -> None:
    """Apply overrides to the layers of a stack, given as nested dicts, in place.

    Each key is set in every layer that has this field. If no layer has the field, the key is set in
    all layers, so that the validation of the spec reports it.
    """
    parts = [Layer.model_validate(layer) for layer in layers]
    for path, value in _iter_leaves(overrides):
        takers = [number for number, layer in enumerate(parts) if _has_field(layer, path)]
        for number in takers or range(len(layers)):
            tree = value
            for name in reversed(path):
                tree = {name: tree}
            merge_changes(layers[number], copy.deepcopy(tree))


def _iter_leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield every leaf of a nested dict as a pair: its path (a tuple of keys) and its value.

    A dict with the key `kind` counts as a leaf.
    """
    for name, value in tree.items():
        if isinstance(value, Mapping) and "kind" not in value:
            yield from _iter_leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _has_field(config: Any, path: tuple[str, ...]) -> bool:
    """Return whether a configuration has the nested field at a path of field names."""
    *parents, name = path
    for parent in parents:
        config = getattr(config, parent, None)
    return name in getattr(type(config), "model_fields", ())
