"""What the encoder families share: BERT's body, heads by class, and the test for export.

A family says once which heads each class of theirs has (`HeadTable`); which class a spec becomes
is found by looking its heads up there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop.config import ACTIVATIONS, THEIR_ACTIVATIONS, Config, labels
from trivium.interop.family import Row, rows

TANH = spec.Dense(activation="tanh")
"""What stands between the first position and a classifier in BERT: its pooler."""

Heads = tuple[spec.Head, ...]


class Choices(NamedTuple):
    """What a configuration says of heads."""

    activation: spec.Activation
    tied: bool
    num_labels: int


HeadTable = Callable[[Choices], Mapping[str, Heads]]
"""The heads of every class of a family, for given choices; where two classes agree, the first is
written."""


def choices_in(config: Config, *, activation: str = "gelu") -> Choices:
    """What `config.json` says of heads; `activation` is the family's default."""
    return Choices(
        activation=config.choose("hidden_act", ACTIVATIONS, activation),
        tied=bool(config.take("tie_word_embeddings", True)),
        num_labels=config.num_labels,
    )


def choices_of(model: spec.ModelSpec, activation: spec.Activation | spec.Swish) -> Choices:
    """The same of a spec whose blocks have this activation."""
    tied, num_labels = True, 2
    for head in model.heads:
        if isinstance(head, spec.MLMHead):
            tied = head.tied
        if isinstance(head, spec.ClassifierHead | spec.TaggerHead):
            num_labels = head.num_labels
    known = "gelu" if isinstance(activation, spec.Swish) else activation
    return Choices(known, tied, num_labels)


def two_labels(config: Config, architecture: str, *architectures: str) -> None:
    """Refuse any other number of labels for classes that answer with two numbers."""
    if architecture in architectures and config.num_labels != 2:
        raise CheckpointError(
            f'config.json: "num_labels" is {config.num_labels}, which is not supported for '
            f"{architecture}; supported: 2."
        )


def with_pooler(heads: Heads, weight: str, names: Collection[str], *, taken: bool) -> Heads:
    """The heads and, where a file has a pooler that none of them holds (`taken`), the pooler."""
    return heads if taken or weight not in names else (*heads, spec.PoolerHead())


def architecture_of(
    model: spec.ModelSpec, table: Mapping[str, Heads], *, pooled: bool = False
) -> str:
    """The class of theirs with the heads of a spec; `pooled`: a pooler may stand beside them.

    Raises:
        SpecError: there is none.
    """
    wanted = _in_order(model.heads)
    for architecture, heads in table.items():
        beside = [_in_order((*heads, spec.PoolerHead()))] if pooled else []
        if wanted in (_in_order(heads), *beside):
            return architecture
    kinds = ", ".join(head.kind for head in model.heads)
    raise SpecError(f"no class of this family has these heads as described: {kinds}.")


def _in_order(heads: Heads) -> Heads:
    return tuple(sorted(heads, key=lambda head: head.kind))


def label_options(model: spec.ModelSpec) -> dict[str, Any]:
    """The names of labels, if a head of the spec has labels."""
    for head in model.heads:
        if isinstance(head, spec.ClassifierHead | spec.TaggerHead):
            return labels(head.num_labels)
    return {}


def head_dim(width: int, num_heads: int) -> int:
    """The width of a head. Raises CheckpointError where heads do not fill the width."""
    if width % num_heads:
        raise CheckpointError(
            f'config.json: "hidden_size" is {width}, which is not a multiple of '
            f'"num_attention_heads", {num_heads}.'
        )
    return width // num_heads


def read_body(
    config: Config,
    heads: Heads,
    *,
    activation: spec.Activation,
    dropout: float = 0.1,
    offset: int = 0,
    factorised: spec.Factorised | None = None,
    num_distinct: int | None = None,
) -> spec.ModelSpec:
    """The encoder that BERT and its heirs have in common.

    Args:
        config: what the options are taken from.
        heads: the heads on top.
        activation: of the feed-forward networks.
        dropout: the family's default.
        offset: rows of the position table before that of the first position.
        factorised: token vectors of another width.
        num_distinct: blocks with weights of their own, where layers share them.
    """
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    config.only("add_cross_attention", False)
    config.ignore("attention_probs_dropout_prob", "classifier_dropout")
    if config.take("type_vocab_size", 2) < 1:
        raise CheckpointError('config.json: "type_vocab_size" is 0; these families have 1 or more.')
    norm = spec.LayerNorm(eps=config.take("layer_norm_eps", 1e-12))
    width, num_heads = config.take("hidden_size"), config.take("num_attention_heads")
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=width,
        embedding=spec.Embedding(
            factorised=factorised,
            positions=spec.Learned(
                max_length=config.take("max_position_embeddings", 512) - offset, offset=offset
            ),
            num_token_types=config.take("type_vocab_size", 2),
            norm=norm,
        ),
        encoder=spec.Stack(
            num_layers=config.take("num_hidden_layers"),
            num_distinct=num_distinct,
            attention=spec.Attention(num_heads=num_heads, head_dim=head_dim(width, num_heads)),
            feed_forward=spec.FeedForward(
                d_ff=config.take("intermediate_size"), activation=activation
            ),
            norm=norm,
            norm_order="post",
            dropout=config.take("hidden_dropout_prob", dropout),
        ),
        heads=heads,
    )


def write_body(
    model: spec.ModelSpec, table: HeadTable, *, pooled: bool = True
) -> tuple[str, dict[str, Any]]:
    """The class and the options of `read_body`; what they leave unsaid, `survives` finds.

    Raises:
        SpecError: no class has these heads, or the spec is no encoder with learned positions.
    """
    encoder, positions = model.encoder, model.embedding.positions
    if encoder is None or not isinstance(positions, spec.Learned):
        raise SpecError("this model is no encoder with learned positions.")
    choices = choices_of(model, encoder.feed_forward.activation)
    config: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": encoder.attention_of(0).num_heads,
        "intermediate_size": encoder.feed_forward.d_ff,
        "hidden_act": THEIR_ACTIVATIONS[choices.activation],
        "max_position_embeddings": positions.max_length + positions.offset,
        "type_vocab_size": model.embedding.num_token_types,
        "layer_norm_eps": encoder.norm.eps,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.dropout,
        "tie_word_embeddings": choices.tied,
        **label_options(model),
    }
    return architecture_of(model, table(choices), pooled=pooled), config


def embedding_rows(theirs: str) -> list[Row]:
    """The rows of tokens, positions, token types and their norm."""
    ours = "encoder.embedding"
    return [
        Row(f"{theirs}.word_embeddings.weight", ("tokens.weight",)),
        Row(f"{theirs}.position_embeddings.weight", (f"{ours}.positions.weight",)),
        Row(f"{theirs}.token_type_embeddings.weight", (f"{ours}.token_types.weight",)),
        *rows(f"{ours}.norm", f"{theirs}.LayerNorm"),
    ]


BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_residual.norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
"""Our names in a layer -> theirs, for BERT, RoBERTa and ELECTRA."""


def layer_rows(model: spec.ModelSpec, names: Mapping[str, str], theirs: str) -> list[Row]:
    """The rows of all layers; `theirs` has braces where the number of the layer stands."""
    assert model.encoder is not None
    return [
        row
        for i in range(model.encoder.distinct_layers)
        for ours, other in names.items()
        for row in rows(f"encoder.layers.{i}.{ours}", f"{theirs.format(i)}.{other}")
    ]


def head_rows(model: spec.ModelSpec, names: Mapping[str, Mapping[str, str]]) -> list[Row]:
    """The rows of the linear layers and norms of all heads: kind -> our name -> theirs."""
    return [
        row
        for head in model.heads
        for ours, theirs in names[head.kind].items()
        for row in rows(f"heads.{head.kind}.{ours}", theirs)
    ]


def vocabulary_rows(model: spec.ModelSpec, decoder: str, bias: str) -> list[Row]:
    """The rows of a masked LM head's matrix and bias.

    Tied, the bias stands under the name `bias`. Untied, what counts is the decoder's own, which
    older files have under `bias` alone; theirs then still holds an unused one of that name.
    """
    ours = ("heads.mlm.bias",)
    for head in model.heads:
        if isinstance(head, spec.MLMHead):
            if head.tied:
                return [Row(bias, ours)]
            return [
                Row(f"{decoder}.weight", ("heads.mlm.weight",)),
                Row(bias, ours),
                Row(f"{decoder}.bias", ours, otherwise=bias),
            ]
    return []


OLD_NORMS = {r"\bLayerNorm\.gamma$": "LayerNorm.weight", r"\bLayerNorm\.beta$": "LayerNorm.bias"}
"""What norms are called in files converted from TensorFlow, such as BERT's first."""
