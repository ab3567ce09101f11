"""A Hugging Face family: a mapping of options, a mapping of weight names, and hooks for the rest.

The mappings go from Hugging Face's names (`hf`) to the names in a `TransformerSpec` or in the
`state_dict` of a Trivium module (`local`). Import and export use the same mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trivium.errors import CheckpointError, SpecError
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.activations import Swish
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention

ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "tanh": "tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python": "gelu",
    "linear": "identity",
    "quick_gelu": Swish(beta=1.702),
    "swish": "silu",
}
"""Activation in Hugging Face -> in Trivium; others are refused. Export writes the first match."""


@dataclass(frozen=True)
class Option:
    """An option of `config.json` and the spec fields that it sets.

    Args:
        fields: dotted paths, such as "decoder.layers.feed_forward.d_ff", "heads.mlm.tied" or, for
            every stack, "stacks.layers.norm.eps". Fields of a stack or head that an architecture
            lacks are skipped.
        default: the value if the file does not set the option, or a function that computes this
            value from the other options. Without a default the option is required.
        values: Hugging Face value -> value in the spec; export writes the first match.
        at_least: the smallest number that the classes of `transformers` support; export refuses a
            spec with a smaller one.
        write_only: export writes the option, but import does not read it (several dropout options
            of a family correspond to a single `dropout` in Trivium).
    """

    fields: str | tuple[str, ...]
    default: Any = None
    values: Mapping[Any, Any] | None = None
    at_least: int | None = None
    write_only: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The dotted paths of the spec fields that the option sets, always as a tuple."""
        return (self.fields,) if isinstance(self.fields, str) else self.fields

    def resolve_default(self, config: ConfigReader) -> Any:
        """Return the default of the option, computed from other options if it is a function."""
        return self.default(config) if callable(self.default) else self.default


def activation(default: str, *parts: str) -> Option:
    """Return an `Option` that sets the activation function of the spec parts at the paths `parts`.

    `default` is the Hugging Face name of the activation if the file does not set the option.
    """
    return Option(tuple(f"{part}.activation" for part in parts), default, ACTIVATIONS)


def kv_heads_option(missing: int | None = None, num_heads: int | None = None) -> Option:
    """Return the `Option` for the number of key-value heads; null means as many as query heads.

    `missing` is the number of key-value heads if the file lacks the option (None: as many as query
    heads). `num_heads` is the number of query heads if the file does not set it.
    """

    def default(config: ConfigReader) -> int:
        """Return the default number of key-value heads.

        This is `missing` if set and if the file lacks the option, else the number of query heads.
        """
        heads = config.require("num_attention_heads", num_heads)
        return missing if missing and "num_key_value_heads" not in config.file_keys else heads

    return Option("decoder.layers.mixer.num_kv_heads", default)


class SpecTree:
    """A `TransformerSpec` under construction, whose fields are set by their dotted paths.

    >>> tree = SpecTree(stacks=("decoder",), heads=("lm",))
    >>> tree.set("decoder.layers.norm.eps", 1e-6)
    >>> tree.get("decoder.layers.norm")
    {'eps': 1e-06}
    """

    def __init__(self, stacks: tuple[str, ...], heads: tuple[str, ...]) -> None:
        self.stacks, self.heads = stacks, heads
        self._root: dict[str, Any] = {"embedding": {}}

    def set(self, path: str, value: Any) -> None:
        """Set the spec field at a dotted path.

        A path that starts with "stacks" sets the field in both the encoder and the decoder.
        """
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

    def repeat_per_mixer(self, stack: str, mixers: Sequence[Any]) -> None:
        """Replace the single layer of a stack with copies of it, one for each mixer in `mixers`."""
        layer = self._root[stack]["layers"]
        self._root[stack]["layers"] = [{**layer, "mixer": mixer} for mixer in mixers]

    def get(self, path: str) -> Any:
        """Return the value of the spec field at a dotted path, or None if it is not set."""
        node: Any = self._root
        for name in path.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def build(self) -> TransformerSpec:
        """Return the finished `TransformerSpec`; `head_dim` defaults to d_model / num_heads.

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
                attention_only = is_table and mixer.setdefault("kind", "attention") == "attention"
                if attention_only and "head_dim" not in mixer:
                    mixer["head_dim"] = head_dim(tree["d_model"], mixer["num_heads"])
        tree["heads"] = [{"kind": kind, **(self.get(f"heads.{kind}") or {})} for kind in self.heads]
        return TransformerSpec.from_dict(tree)


def head_dim(d_model: int, num_heads: int) -> int:
    """Return the dimension of an attention head, d_model / num_heads.

    Raises CheckpointError if `d_model` is not a multiple of `num_heads`.
    """
    if num_heads < 1 or d_model % num_heads:
        raise CheckpointError(
            f"config.json: a width of {d_model} is not a multiple of {num_heads} heads."
        )
    return d_model // num_heads


def attention_of(spec: TransformerSpec) -> Attention:
    """Return the first layer's attention spec. Raises SpecError if any layer has another mixer."""
    if not spec.attention_only:
        raise SpecError(f"mixer = {spec.stacks[0].mixers[0].kind!r}")
    return spec.stacks[0].attentions[0]


def first_mlp(spec: TransformerSpec) -> MLP:
    """Return the first layer's MLP spec. Raises SpecError for another feed-forward network."""
    network = spec.stacks[0].every_layer[0].feed_forward
    if not isinstance(network, MLP):
        raise SpecError(f"feed_forward = {network and network.kind!r}")
    return network


def _do_nothing(*_: object) -> None:
    """Do nothing; used for the missing direction of a `Hook` that only reads or only writes."""


@dataclass(frozen=True)
class Hook:
    """A conversion between options and spec fields that no mapping of names can express.

    Args:
        read: a function that reads options and sets spec fields (import). May raise
            CheckpointError.
        write: a function that writes the options of a spec (export). May raise SpecError.
    """

    read: Callable[[ConfigReader, SpecTree], None] = _do_nothing
    write: Callable[[TransformerSpec, dict[str, Any]], None] = _do_nothing


NameMap = Mapping[str, str | tuple[str, ...]]
"""Mapping of weight names: Hugging Face -> module or tensor in Trivium. `{i}` is a layer's index (a
layer group's if layers share weights), `{e}` an expert's, `{h}` a head's, and `{norm}` the place of
norms in residual connections. A tuple names the parts of a fused matrix, whose rows are
concatenated."""


QKV = ("mixer.query", "mixer.key", "mixer.value")
"""The names that the parts of a fused QKV projection have inside a layer."""


def per_layer(hf: str, stack: str, layer: NameMap) -> dict[str, str | tuple[str, ...]]:
    """Return the mapping of weight names for all layers of a stack.

    `layer` is the mapping for the names inside one layer. Hugging Face names get the prefix `hf`,
    and names in Trivium the prefix of a layer of `stack`.
    """

    def local(name: str) -> str:
        """Return the full `state_dict` name of a weight, given its name inside a layer."""
        return f"{stack}.layers.{{i}}.{name}"

    return {
        f"{hf}.{name}": local(part) if isinstance(part, str) else tuple(map(local, part))
        for name, part in layer.items()
    }


HeadNameMap = Mapping[str, str]
"""Mapping of a head's weight names: Hugging Face -> inside the head; "" is the head itself."""


@dataclass(frozen=True)
class Architecture:
    """A model class of `transformers`, e.g. BertForMaskedLM.

    Args:
        heads: the kinds of heads that the class has.
        stacks: the stacks that the class has, if they differ from those of the family.
        base: the name prefix of all weights except heads, if it differs from that of the family.
        fixed: spec fields that have the same value in every model of this class.
        weights: kind of head -> mapping of its weight names, if it differs from the family's.
    """

    heads: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    base: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, HeadNameMap] = field(default_factory=dict)


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


def hf_classes(family: str, suffixes: str) -> dict[str, Architecture]:
    """Return class name -> `Architecture` for model classes of `transformers`.

    The class names all begin with the same word and end with one of several suffixes, which are
    given in one string and separated by spaces.
    """
    return {family + name: _CLASSES[name] for name in suffixes.split()}


_TASK_SUFFIXES = "ForSequenceClassification ForTokenClassification ForQuestionAnswering"


def encoder_classes(family: str, others: str = "") -> dict[str, Architecture]:
    """Return class name -> `Architecture` for the model classes that most encoders have.

    `others` contains the suffixes of further class names, separated by spaces.
    """
    return hf_classes(family, f"Model ForMaskedLM {_TASK_SUFFIXES} {others}")


def decoder_classes(family: str, span_base: str = "") -> dict[str, Architecture]:
    """Return class name -> `Architecture` for the model classes that most decoders have.

    `span_base` is the name prefix of all weights except heads in the question-answering class, if
    it differs from that of the family.
    """
    span = {f"{family}ForQuestionAnswering": Architecture(("span",), base=span_base)}
    return hf_classes(family, f"ForCausalLM Model {_TASK_SUFFIXES}") | span


_HEAD_WEIGHTS: Mapping[str, HeadNameMap] = {
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
        config: option -> fields of the spec.
        fixed: fields of the spec that no option sets, the same in every model of the family.
        weights: mapping of the names of all weights except heads, or a function that returns this
            mapping for a spec.
        aliases: mapping of alternative weight names, which import accepts; weights of heads have
            their full names in Trivium here. If only the name in Trivium contains `{e}`, the file's
            tensor has an additional axis of experts.
        heads: kind of head -> mapping of its weight names, if it differs from that of most
            families.
        base: name prefix of all weights except heads in files of models with a head; files of a
            model without heads lack the prefix.
        optional_heads: kinds of heads that a file may contain although its class lacks them (BERT's
            pooler).
        expected: options that set no spec field, each with the only value that is supported.
        ignored: options without effect on the logits, separated by spaces.
        older_names: option in the files of early releases -> its name in `config`.
        num_labels: the number of labels if the config does not set it.
        transposed: last parts of the names of matrices stored as [in, out] (GPT's Conv1D).
        peft_unsupported: parts of the names of matrices that PEFT or the released code does not use
            as linear layers, so that PEFT cannot adapt these matrices.
        adapted_together: last parts of the names of matrices that `transformers` fuses, so that
            PEFT adapts all or none of them.
        fused_per_head: whether the rows of fused matrices are grouped by key-value head (Q, K, V
            of head 0, then of head 1, ...).
        interleaved: last parts of the names of fused tensors whose rows alternate between the parts
            (gpt-oss).
        prepare_tensors: a function that converts the tensors of a file before their names are
            mapped, such as packed numbers of four bits.
        hf_shapes: a function of the spec that returns last parts of the names of tensors -> shapes
            in files, if these have other axes. For `transposed` matrices such a shape splits [in,
            out] (XLNet's [in, heads, head_dim]).
        tied_aliases: tied weights that files may repeat: name -> the name of the weight it must
            equal.
        buffers: regular expressions for names of tensors that the model does not use.
        must_be_zero: tensors without a counterpart here, refused unless all their values are 0.
        hooks: conversions that the mappings cannot express.
        tokenizer_class: the tokenizer class if `tokenizer_config.json` names none;
            `tokenizer_files.py` implements the rules of a class that its files do not contain.
        is_variant: whether the family comes after all others in export, so that a spec that
            another family can express is written as that family.
    """

    model_type: str
    architectures: Mapping[str, Architecture]
    stacks: tuple[str, ...]
    config: Mapping[str, str | Option]
    fixed: Mapping[str, Any]
    weights: NameMap | Callable[[TransformerSpec], NameMap]
    heads: Mapping[str, HeadNameMap]
    base: str = ""
    aliases: NameMap = field(default_factory=dict)
    optional_heads: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict)
    ignored: str = ""
    older_names: Mapping[str, str] = field(default_factory=dict)
    num_labels: int = 2
    transposed: tuple[str, ...] = ()
    peft_unsupported: tuple[str, ...] = ()
    adapted_together: tuple[str, ...] = ()
    fused_per_head: bool = False
    interleaved: tuple[str, ...] = ()
    prepare_tensors: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: (
        tensors
    )
    hf_shapes: Callable[[TransformerSpec], Mapping[str, tuple[int, ...]]] = lambda _: {}
    tied_aliases: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    must_be_zero: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    tokenizer_class: str = ""
    is_variant: bool = False

    @property
    def options(self) -> Mapping[str, Option]:
        """Option name -> `Option`; a value in `config` that is only a field path is converted."""
        return {n: Option(row) if isinstance(row, str) else row for n, row in self.config.items()}

    def rename_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a file with their current names; current names take precedence."""
        older = {
            self.older_names[n]: value for n, value in options.items() if n in self.older_names
        }
        return older | {n: value for n, value in options.items() if n not in self.older_names}

    def stacks_of(self, architecture: str) -> tuple[str, ...]:
        """Return the stacks ("encoder", "decoder" or both) of a `transformers` class."""
        return self.architectures[architecture].stacks or self.stacks

    def base_prefix_of(self, architecture: str) -> str:
        """Return the name prefix that all weights except heads have in the files of a class."""
        return self.architectures[architecture].base or self.base

    def head_weight_names(self, architecture: str, kind: str) -> HeadNameMap:
        """Return the mapping of a head's weight names in a `transformers` class.

        The mapping goes from the Hugging Face name to the full name in the module.
        """
        own = self.architectures[architecture].weights
        table = own.get(kind) or self.heads.get(kind, _HEAD_WEIGHTS.get(kind, {}))
        return {hf: f"heads.{kind}.{local}".removesuffix(".") for hf, local in table.items()}
