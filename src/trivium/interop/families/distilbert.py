"""DistilBERT (Sanh et al. 2019): BERT without token types and without a pooler."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.bert import BERT, CONFIG, FIXED
from trivium.interop.family import (
    MULTIPLE_CHOICE,
    NameMap,
    Option,
    activation,
    encoder_classes,
    per_layer,
)

_EPS = 1e-12
_LAYER: NameMap = {
    "attention.q_lin": "mixer.query",
    "attention.k_lin": "mixer.key",
    "attention.v_lin": "mixer.value",
    "attention.out_lin": "mixer.output",
    "sa_layer_norm": "mixer_residual.{norm}",
    "ffn.lin1": "feed_forward.up",
    "ffn.lin2": "feed_forward.down",
    "output_layer_norm": "feed_forward_residual.{norm}",
}

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    architectures={**encoder_classes("DistilBert"), "DistilBertForMultipleChoice": MULTIPLE_CHOICE},
    config={
        "vocab_size": Option("vocab_size", 30_522),
        "dim": Option("d_model", 768),
        "n_layers": Option("encoder.num_layers", 6),
        "n_heads": Option("encoder.layers.mixer.num_heads", 12),
        "hidden_dim": Option("encoder.layers.feed_forward.d_ff", 3072),
        "activation": activation("gelu", "encoder.layers.feed_forward", "heads.mlm.dense"),
        "max_position_embeddings": CONFIG["max_position_embeddings"],
        "dropout": Option("encoder.dropout", 0.1),
        "attention_dropout": Option("encoder.dropout", write_only=True),
        "tie_word_embeddings": CONFIG["tie_word_embeddings"],
    },
    fixed={
        **FIXED,
        "encoder.layers.norm.eps": _EPS,
        "embedding.norm.eps": _EPS,
        "heads.classifier.dense.activation": "relu",
    },
    weights={
        "distilbert.embeddings.word_embeddings": "tokens",
        "distilbert.embeddings.position_embeddings": "encoder.embedding.positions",
        "distilbert.embeddings.LayerNorm": "encoder.embedding.norm",
        **per_layer("distilbert.transformer.layer.{i}", "encoder", _LAYER),
    },
    heads={
        "mlm": {
            "vocab_transform": "dense.linear",
            "vocab_layer_norm": "dense.norm",
            "vocab_projector": "",
        },
        "classifier": {"pre_classifier": "dense.linear", "classifier": "classifier"},
    },
    base="distilbert.",
    optional_heads=(),
    expected={"output_past": True},
    # The table of sinusoidal positions is saved as any other table.
    ignored="qa_dropout seq_classif_dropout sinusoidal_pos_embds",
    tied_aliases={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    tokenizer_class="DistilBertTokenizer",
)
