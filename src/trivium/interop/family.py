"""What a Hugging Face family is: one table of options, one of weights, and hooks for the rest.

Names on the left of every table are those of Hugging Face (`hf`), names on the right are those of
a `ModelSpec` or of a `state_dict` here (`local`). Both directions follow from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trivium.errors import CheckpointError, SpecError
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import ModelSpec
from trivium.nn.feed_forwards.feed_forward import FeedForward
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
"""hf -> local; of several hf names the first is written, others of `trivium.nn` cannot be."""


@dataclass(frozen=True)
class Option:
    """An option of `config.json` and the fields of a spec that it sets.

    Args:
        fields: dotted, such as "decoder.layers.feed_forward.d_ff", "heads.mlm.tied" or, for every
            stack, "stacks.layers.norm.eps". Those of a stack or head that an architecture lacks are
            skipped.
        default: the value where the file has none, or a function of the other options. Without
            one the option is required.
        values: hf value -> local value; the first match is written.
        write_only: not read, only written (several dropouts of a family are one `dropout` here).
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
        """The default, given the other options."""
        return self.default(config) if callable(self.default) else self.default


def activation(default: str, *parts: str) -> Option:
    """Return the option for the activation of the parts of a spec at these dotted paths."""
    return Option(tuple(f"{part}.activation" for part in parts), default, ACTIVATIONS)


def num_kv_heads(missing: int | None = None, num_heads: int | None = None) -> Option:
    """Return the option for key and value heads; null means as many as query heads.

    `missing` and `num_heads` are the numbers of a file that names neither; without `missing` there
    are as many as query heads.
    """

    def default(config: ConfigReader) -> int:
        heads = config.require("num_attention_heads", num_heads)
        return missing if missing and "num_key_value_heads" not in config.named else heads

    return Option("decoder.layers.mixer.num_kv_heads", default)


class SpecTree:
    """A `ModelSpec` under construction: nested dictionaries, set by dotted paths.

    >>> tree = SpecTree(stacks=("decoder",), heads=("lm",))
    >>> tree.set("decoder.layers.norm.eps", 1e-6)
    >>> tree.get("decoder.layers.norm")
    {'eps': 1e-06}
    """

    def __init__(self, stacks: tuple[str, ...], heads: tuple[str, ...]) -> None:
        self.stacks, self.heads = stacks, heads
        self._root: dict[str, Any] = {"embedding": {}}

    def set(self, path: str, value: Any) -> None:
        """Set a field; "stacks" is the encoder and the decoder."""
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
        """Make layers that differ in their mixers of the one layer that was set so far."""
        layer = self._root[stack]["layers"]
        self._root[stack]["layers"] = [{**layer, "mixer": mixer} for mixer in mixers]

    def get(self, path: str) -> Any:
        """The value of a field, or None."""
        node: Any = self._root
        for name in path.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def build(self) -> ModelSpec:
        """The spec of the stacks and heads; where no `head_dim` is set it is d_model / num_heads.

        Raises SpecError for values that do not fit.
        """
        tree = {
            name: node for name, node in self._root.items() if name not in ("encoder", "decoder")
        }
        for stack in self.stacks:
            tree[stack] = self._root[stack]
            layers = tree[stack]["layers"]
            for layer in [layers] if isinstance(layers, dict) else layers:
                if layer["feed_forward"] is not None:
                    layer["feed_forward"].setdefault("kind", "feed-forward")
                mixer = layer["mixer"]
                is_table = isinstance(mixer, dict)
                attends = is_table and mixer.setdefault("kind", "attention") == "attention"
                if attends and "head_dim" not in mixer:
                    mixer["head_dim"] = head_dim(tree["d_model"], mixer["num_heads"])
        tree["heads"] = [{"kind": kind, **(self.get(f"heads.{kind}") or {})} for kind in self.heads]
        return ModelSpec.from_dict(tree)


def head_dim(d_model: int, num_heads: int) -> int:
    """Width of a head where all heads together fill the model's width.

    Raises CheckpointError where they do not.
    """
    if num_heads < 1 or d_model % num_heads:
        raise CheckpointError(
            f"config.json: a width of {d_model} is not a multiple of {num_heads} heads."
        )
    return d_model // num_heads


def attention_of(spec: ModelSpec) -> Attention:
    """The attention of the first layer. Raises SpecError for a model that has other mixers."""
    if not spec.attends:
        raise SpecError(f"mixer = {spec.stacks[0].mixers[0].kind!r}")
    return spec.stacks[0].attentions[0]


def feed_forward_of(spec: ModelSpec) -> FeedForward:
    """The feed-forward network of the first stack. Raises SpecError for one of another kind."""
    network = spec.stacks[0].every_layer[0].feed_forward
    if not isinstance(network, FeedForward):
        raise SpecError(f"feed_forward = {network and network.kind!r}")
    return network


def _nothing(*_: object) -> None:
    """Half of a hook for one direction alone."""


@dataclass(frozen=True)
class Hook:
    """What a table cannot say: one function each way.

    Args:
        read: takes options and sets fields. May raise CheckpointError.
        write: adds options for a spec. May raise SpecError.
    """

    read: Callable[[ConfigReader, SpecTree], None] = _nothing
    write: Callable[[ModelSpec, dict[str, Any]], None] = _nothing


Weights = Mapping[str, str | tuple[str, ...]]
"""hf -> local names of modules or tensors. `{i}` is the number of a layer, or of a distinct one
where layers share weights, `{e}` that of an expert, `{norm}` the place of norms in residual
connections; a tuple is a fused matrix, the rows of its parts one after the other."""


QKV = ("mixer.query", "mixer.key", "mixer.value")
"""What a fused projection holds, inside a layer."""


def in_layers(hf: str, stack: str, layer: Weights) -> dict[str, str | tuple[str, ...]]:
    """Weights of every layer of a stack; `layer` has the names inside one, `hf` is its prefix."""

    def local(name: str) -> str:
        return f"{stack}.layers.{{i}}.{name}"

    return {
        f"{hf}.{name}": local(part) if isinstance(part, str) else tuple(map(local, part))
        for name, part in layer.items()
    }


HeadWeights = Mapping[str, str]
"""hf -> local names inside a head; "" is the head itself."""


@dataclass(frozen=True)
class Architecture:
    """A class of `transformers`, e.g. BertForMaskedLM.

    Args:
        heads: the kinds of its heads.
        stacks: its stacks, where they are not those of the family.
        base: the prefix of the body's weights, where it is not that of the family.
        fixed: fields of the spec that this class alone fixes.
        weights: weights of heads, where their names are not those of the family.
    """

    heads: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    base: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, HeadWeights] = field(default_factory=dict)


# One score for each candidate text.
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
    """The usual classes of a family: its name in `transformers`, and what follows in each."""
    return {family + name: _CLASSES[name] for name in names.split()}


_TASKS = "ForSequenceClassification ForTokenClassification ForQuestionAnswering"


def encoder_classes(family: str, others: str = "") -> dict[str, Architecture]:
    """The classes that most encoders have, and `others`."""
    return classes(family, f"Model ForMaskedLM {_TASKS} {others}")


def decoder_classes(family: str, span_base: str = "") -> dict[str, Architecture]:
    """Return the classes that most decoders have.

    `span_base` is the prefix of the body's weights in the class for question answering, where it
    is not that of the family.
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
    """A `model_type` of Hugging Face, both ways.

    Args:
        model_type: the value in `config.json`.
        architectures: class name -> what it consists of.
        stacks: "encoder", "decoder" or both.
        config: option -> fields of the spec.
        fixed: fields of the spec that no option sets, the same in every model of the family.
        weights: of the body; a function of the spec where names depend on it.
        also_read: weights by other names that files may have; of heads, with a right side in full.
            Where only the right side has `{e}`, the tensor has one more axis, that of the experts.
        heads: kind of head -> its weights, where they have other names than in most families.
        base: prefix of the body's weights in files of models with a head, missing in files of the
            body alone.
        optional_heads: kinds that a file may have beside those of its class (BERT's pooler).
        expected: options of `config.json` that set no field, with the one value supported.
        ignored: options without effect on the numbers, separated by spaces.
        num_labels: how many labels a class has whose config does not say.
        transposed: last parts of the names of matrices stored as [in, out] (GPT's Conv1D).
        unadapted: last parts of the names of matrices that PEFT or the released code does not
            use as linear layers, so that they cannot have an adapter there.
        adapted_together: last parts of the names of matrices that `transformers` fuses, so that
            PEFT adapts all or none of them.
        row_vectors: vectors of V numbers stored as [1, V].
        by_heads: fused matrices have the rows of one head after those of another.
        stored: last parts of the names of tensors, and their shapes in files where these have
            other axes (XLNet's [in, heads, head_dim]); a transposed one is [in, out] there.
        copies: tied weights that files may repeat: name -> the name it must equal.
        buffers: regular expressions of tensors in files that the model does not use.
        zeros: tensors without a counterpart here, refused unless all their numbers are 0.
        hooks: what the tables cannot say.
        tokenizer_class: what reads its tokenizer where `tokenizer_config.json` names no class;
            `tokenizer_files.py` has what the class does beyond the files.
        is_variant: a spec that another family can express, too, is written as that one.
    """

    model_type: str
    architectures: Mapping[str, Architecture]
    stacks: tuple[str, ...]
    config: Mapping[str, str | Option]
    fixed: Mapping[str, Any]
    weights: Weights | Callable[[ModelSpec], Weights]
    heads: Mapping[str, HeadWeights]
    base: str = ""
    also_read: Weights = field(default_factory=dict)
    optional_heads: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict)
    ignored: str = ""
    num_labels: int = 2
    transposed: tuple[str, ...] = ()
    unadapted: tuple[str, ...] = ()
    adapted_together: tuple[str, ...] = ()
    row_vectors: tuple[str, ...] = ()
    by_heads: bool = False
    stored: Callable[[ModelSpec], Mapping[str, tuple[int, ...]]] = lambda _: {}
    copies: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    tokenizer_class: str = ""
    is_variant: bool = False

    @property
    def options(self) -> Mapping[str, Option]:
        """The table of options, every row an `Option`."""
        return {n: Option(row) if isinstance(row, str) else row for n, row in self.config.items()}

    def stacks_of(self, architecture: str) -> tuple[str, ...]:
        """The stacks of one class."""
        return self.architectures[architecture].stacks or self.stacks

    def base_of(self, architecture: str) -> str:
        """The prefix of the body's weights in files of one class."""
        return self.architectures[architecture].base or self.base

    def head_weights(self, architecture: str, kind: str) -> HeadWeights:
        """The weights of a head of one class: hf -> local, in full."""
        own = self.architectures[architecture].weights
        table = own.get(kind) or self.heads.get(kind, _HEADS.get(kind, {}))
        return {hf: f"heads.{kind}.{local}".removesuffix(".") for hf, local in table.items()}
