"""A Hugging Face family: a table of options, a table of weights, and hooks for the rest.

Every table maps Hugging Face names (`hf` in the code) to names of fields in a `TransformerSpec` or
of tensors in a Trivium `state_dict` (`local` in the code). The same tables serve both import and
export.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trivium.errors import CheckpointError, SpecError
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention

ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}
"""Hugging Face -> Trivium activation. Export writes the first match; others are refused."""


@dataclass(frozen=True)
class Option:
    """An option of `config.json` and the spec fields that it sets.

    Args:
        fields: dotted paths, such as "decoder.layers.feed_forward.d_ff", "heads.mlm.tied" or, for
            every stack, "stacks.layers.norm.eps". Fields of a stack or head that an architecture
            lacks are skipped.
        default: the value if the file does not set the option, or a function that computes this
            value from the other options. Without a default the option is required.
        values: Hugging Face value -> value of the spec field; export writes the first match.
        write_only: whether the option is only written, not read (a family may have several dropout
            options, but a stack has one `dropout` field).
    """

    fields: str | tuple[str, ...]
    default: Any = None
    values: Mapping[Any, Any] | None = None
    write_only: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """`fields` as a tuple."""
        return (self.fields,) if isinstance(self.fields, str) else self.fields

    def default_in(self, config: ConfigReader) -> Any:
        """Return the default value, computed from the other options if it depends on them."""
        return self.default(config) if callable(self.default) else self.default


def activation(default: str, *parts: str) -> Option:
    """Return the `Option` that sets the activation of the modules at these dotted paths."""
    return Option(tuple(f"{part}.activation" for part in parts), default, ACTIVATIONS)


def num_kv_heads(missing: int | None = None, num_heads: int | None = None) -> Option:
    """Return the `Option` for the number of key and value heads.

    If a file sets the option to null, there are as many key and value heads as query heads.
    `missing` is the number of key and value heads if a file lacks the option (None: as many as
    query heads). `num_heads` is the number of query heads if the file does not set it.
    """

    def default(config: ConfigReader) -> int:
        heads = config.require("num_attention_heads", num_heads)
        return missing if missing and "num_key_value_heads" not in config.named else heads

    return Option("decoder.layers.mixer.num_kv_heads", default)


class SpecTree:
    """A `TransformerSpec` under construction: nested dictionaries whose fields are set by dotted
    paths.

    >>> tree = SpecTree(stacks=("decoder",), heads=("lm",))
    >>> tree.set("decoder.layers.norm.eps", 1e-6)
    >>> tree.get("decoder.layers.norm")
    {'eps': 1e-06}
    """

    def __init__(self, stacks: tuple[str, ...], heads: tuple[str, ...]) -> None:
        self.stacks, self.heads = stacks, heads
        self._root: dict[str, Any] = {"embedding": {}}

    def set(self, path: str, value: Any) -> None:
        """Set the field at a path; "stacks" as its first part means both encoder and decoder."""
        slot, _, rest = path.partition(".")
        if slot == "stacks":
            self.set(f"encoder.{rest}", value)
            self.set(f"decoder.{rest}", value)
            return
        *parents, name = path.split(".")
        node = self._root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value

    def set_mixers(self, stack: str, mixers: Sequence[Any]) -> None:
        """Replace the only layer of a stack with one copy per mixer that uses this mixer."""
        layer = self._root[stack]["layers"]
        self._root[stack]["layers"] = [{**layer, "mixer": mixer} for mixer in mixers]

    def get(self, path: str) -> Any:
        """Return the value of the field at a dotted path, or None if it is not set."""
        node: Any = self._root
        for name in path.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def build(self) -> TransformerSpec:
        """Return the finished spec. If `head_dim` is not set, it is d_model / num_heads.

        Raises SpecError for invalid values, and CheckpointError if d_model is not a multiple of
        num_heads.
        """
        tree = {
            name: node for name, node in self._root.items() if name not in ("encoder", "decoder")
        }
        for stack in self.stacks:
            tree[stack] = self._root[stack]
            layers = tree[stack]["layers"]
            for layer in [layers] if isinstance(layers, dict) else layers:
                if layer["feed_forward"] is not None:
                    layer["feed_forward"].setdefault("kind", "mlp")
                mixer = layer["mixer"]
                is_table = isinstance(mixer, dict)
                attends = is_table and mixer.setdefault("kind", "attention") == "attention"
                if attends and "head_dim" not in mixer:
                    mixer["head_dim"] = head_dim(tree["d_model"], mixer["num_heads"])
        tree["heads"] = [{"kind": kind, **(self.get(f"heads.{kind}") or {})} for kind in self.heads]
        return TransformerSpec.from_dict(tree)


def head_dim(d_model: int, num_heads: int) -> int:
    """Return the width of an attention head, d_model / num_heads.

    Raises CheckpointError if `d_model` is not a multiple of `num_heads`.
    """
    if num_heads < 1 or d_model % num_heads:
        raise CheckpointError(
            f"config.json: a width of {d_model} is not a multiple of {num_heads} heads."
        )
    return d_model // num_heads


def attention_of(spec: TransformerSpec) -> Attention:
    """Return the first layer's attention. Raises SpecError if any layer has no attention."""
    if not spec.attends:
        raise SpecError(f"mixer = {spec.stacks[0].mixers[0].kind!r}")
    return spec.stacks[0].attentions[0]


def feed_forward_of(spec: TransformerSpec) -> MLP:
    """Return the first layer's MLP. Raises SpecError if its feed-forward network is not an MLP."""
    network = spec.stacks[0].every_layer[0].feed_forward
    if not isinstance(network, MLP):
        raise SpecError(f"feed_forward = {network and network.kind!r}")
    return network


def _nothing(*_: object) -> None:
    """Do nothing. This is the default for a direction that a hook does not need."""


@dataclass(frozen=True)
class Hook:
    """A conversion that no table can express: one function for each direction.

    Args:
        read: a function that reads options and sets spec fields (import). May raise
            CheckpointError.
        write: a function that writes the options of a spec (export). May raise SpecError.
    """

    read: Callable[[ConfigReader, SpecTree], None] = _nothing
    write: Callable[[TransformerSpec, dict[str, Any]], None] = _nothing


Weights = Mapping[str, str | tuple[str, ...]]
"""Hugging Face name -> Trivium name of a module or tensor. `{i}` is a layer index (or layer-group
index if layers share weights), `{e}` an expert index, `{norm}` the norm's name in residual
connections. A tuple means that the file stores these matrices as one, fused along the rows."""


QKV = ("mixer.query", "mixer.key", "mixer.value")
"""The names, inside a layer, of the matrices in a fused QKV projection."""


def in_layers(hf: str, stack: str, layer: Weights) -> dict[str, str | tuple[str, ...]]:
    """Return the weights of every layer of a stack, given one layer's weights and file prefix."""

    def local(name: str) -> str:
        return f"{stack}.layers.{{i}}.{name}"

    return {
        f"{hf}.{name}": local(part) if isinstance(part, str) else tuple(map(local, part))
        for name, part in layer.items()
    }


HeadWeights = Mapping[str, str]
"""Hugging Face name -> Trivium name inside a head; the Trivium name "" is the head itself."""


@dataclass(frozen=True)
class Architecture:
    """A model class of `transformers`, e.g. BertForMaskedLM.

    Args:
        heads: the kinds of heads that the class has.
        stacks: the stacks that the class has, if they differ from those of the family.
        base: the prefix of all weights except heads, if it differs from that of the family.
        fixed: spec fields that have the same value in every model of this class.
        weights: kind of head -> names of its weights, if they differ from those of the family.
    """

    heads: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    base: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, HeadWeights] = field(default_factory=dict)


# The head returns one score for each candidate text.
MULTIPLE_CHOICE = Architecture(("classifier",), fixed={"heads.classifier.num_labels": 1})

_CLASSES = {
    "Model": Architecture(),
    "LMHeadModel": Architecture(("lm",)),
    "ForCausalLM": Architecture(("lm",)),
    "ForConditionalGeneration": Architecture(("lm",)),
    "ForMaskedLM": Architecture(("mlm",)),
    "ForPreTraining": Architecture(("mlm", "nsp")),
    "ForSequenceClassification": Architecture(("classifier",)),
    "ForMultipleChoice": MULTIPLE_CHOICE,
    "ForTokenClassification": Architecture(("tagger",)),
    "ForQuestionAnswering": Architecture(("span",)),
}


def classes(family: str, names: str) -> dict[str, Architecture]:
    """Return the model classes of a family, given their suffixes, such as "Model ForMaskedLM"."""
    return {family + name: _CLASSES[name] for name in names.split()}


_TASKS = "ForSequenceClassification ForTokenClassification ForQuestionAnswering"


def encoder_classes(family: str, others: str = "") -> dict[str, Architecture]:
    """Return the model classes of most encoders, and classes with the suffixes in `others`."""
    return classes(family, f"Model ForMaskedLM {_TASKS} {others}")


def decoder_classes(family: str, span_base: str = "") -> dict[str, Architecture]:
    """Return the model classes that most decoders have.

    `span_base` is the prefix of all weights except heads in the question-answering class, if it
    differs from that of the family.
    """
    span = {f"{family}ForQuestionAnswering": Architecture(("span",), base=span_base)}
    return classes(family, f"ForCausalLM Model {_TASKS}") | span


_HEADS: Mapping[str, HeadWeights] = {
    "lm": {"lm_head": ""},
    "tagger": {"classifier": "classifier"},
    "span": {"qa_outputs": "classifier"},
}


@dataclass(frozen=True)
class Family:
    """A `model_type` of Hugging Face and its conversion in both directions.

    Args:
        model_type: the value in `config.json`.
        architectures: class name -> its description.
        stacks: "encoder", "decoder" or both.
        config: option of `config.json` -> the spec fields that it sets.
        fixed: spec fields that no option sets and that are the same in every model of the family.
        weights: the table of all weights except heads, or a function that returns it for a spec.
        aliases: alternative names of weights in files; Trivium names inside heads are complete.
            If only the Trivium name has `{e}`, the file's tensor has an additional expert axis.
        heads: kind of head -> names of its weights, if they differ from those in most families.
        base: prefix of all weights except heads in files of models with a head; files of a model
            without heads lack the prefix.
        optional_heads: kinds of heads that a file may contain although its class lacks them (BERT's
            pooler).
        expected: options that set no spec field, each with the only value that is supported.
        ignored: options without effect on the logits, separated by spaces.
        num_labels: the number of labels if the config does not set it.
        transposed: matrices stored as [in, out] (GPT's Conv1D), by the last part of their names.
        unadapted: matrices that PEFT cannot adapt because PEFT or the released code does not use
            them as linear layers, by the last part of their names.
        adapted_together: matrices of which PEFT must adapt all or none because `transformers` fuses
            them, by the last part of their names.
        by_heads: whether the rows of fused matrices are grouped by head (Q, K, V of head 0, then of
            head 1, ...).
        hf_shapes: a function that returns, for a spec, the shapes of tensors that have other axes
            in files, by the last part of their names. For `transposed` matrices such a shape splits
            [in, out] (XLNet's [in, heads, head_dim]).
        tied_aliases: tied weights that files may repeat: the name of the copy -> the name of the
            weight that the copy must equal.
        buffers: regular expressions for names of tensors in files that the model does not use.
        must_be_zero: tensors that Trivium models lack; a file may contain them only if all values
            are 0.
        hooks: conversions that the tables cannot express.
        tokenizer_class: the tokenizer class if `tokenizer_config.json` names none.
            `tokenizer_files.py` implements the rules that the files of a class do not contain.
        is_variant: whether export considers this family only after all others, so that a spec that
            another family can express is written as that family.
    """

    model_type: str
    architectures: Mapping[str, Architecture]
    stacks: tuple[str, ...]
    config: Mapping[str, str | Option]
    fixed: Mapping[str, Any]
    weights: Weights | Callable[[TransformerSpec], Weights]
    heads: Mapping[str, HeadWeights]
    base: str = ""
    aliases: Weights = field(default_factory=dict)
    optional_heads: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict)
    ignored: str = ""
    num_labels: int = 2
    transposed: tuple[str, ...] = ()
    unadapted: tuple[str, ...] = ()
    adapted_together: tuple[str, ...] = ()
    by_heads: bool = False
    hf_shapes: Callable[[TransformerSpec], Mapping[str, tuple[int, ...]]] = lambda _: {}
    tied_aliases: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    must_be_zero: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    tokenizer_class: str = ""
    is_variant: bool = False

    @property
    def options(self) -> Mapping[str, Option]:
        """The table `config`, with plain field paths converted to `Option`s."""
        return {n: Option(row) if isinstance(row, str) else row for n, row in self.config.items()}

    def stacks_of(self, architecture: str) -> tuple[str, ...]:
        """Return the stacks ("encoder", "decoder") that a class has."""
        return self.architectures[architecture].stacks or self.stacks

    def base_of(self, architecture: str) -> str:
        """Return the prefix of all weights except heads in files of a class."""
        return self.architectures[architecture].base or self.base

    def head_weights(self, architecture: str, kind: str) -> HeadWeights:
        """Return Hugging Face name -> complete Trivium name for the weights of a class's head."""
        own = self.architectures[architecture].weights
        table = own.get(kind) or self.heads.get(kind, _HEADS.get(kind, {}))
        return {hf: f"heads.{kind}.{local}".removesuffix(".") for hf, local in table.items()}
