"""BERT (Devlin et al. 2018).

RoBERTa, ALBERT, ELECTRA and others reuse its mappings of options and weight names.
"""

from __future__ import annotations

from trivium.interop.family import (
    Architecture,
    Family,
    NameMap,
    Option,
    activation,
    encoder_classes,
    per_layer,
)

CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder.num_layers",
    "num_attention_heads": "encoder.layers.mixer.num_heads",
    "intermediate_size": "encoder.layers.feed_forward.d_ff",
    "hidden_act": activation("gelu", "encoder.layers.feed_forward"),
    "max_position_embeddings": Option("embedding.positions.max_length", 512),
    "type_vocab_size": Option("embedding.num_token_types", 2, at_least=1),
    "layer_norm_eps": Option(("encoder.layers.norm.eps", "embedding.norm.eps"), 1e-12),
    "hidden_dropout_prob": Option("encoder.dropout", 0.1),
    "attention_probs_dropout_prob": Option("encoder.dropout", write_only=True),
    "tie_word_embeddings": Option("heads.mlm.tied", True),
}

FIXED = {
    "embedding.positions.kind": "learned",
    "embedding.norm.kind": "layer",
    "encoder.layers.norm.kind": "layer",
    "encoder.layers.norm_placement": "post",
    "heads.mlm.dense.norm": True,
    "heads.classifier.pooling": "first",
    "heads.classifier.dense.activation": "tanh",
}

ALLOWED = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}


def weight_names(layer: NameMap, prefix: str, layer_prefix: str) -> NameMap:
    """Return the mapping of weight names for the embeddings and all layers.

    `layer` is the mapping of the weight names inside one layer.
    """
    return {
        f"{prefix}.embeddings.word_embeddings": "tokens",
        f"{prefix}.embeddings.position_embeddings": "encoder.embedding.positions",
        f"{prefix}.embeddings.token_type_embeddings": "encoder.embedding.token_types",
        f"{prefix}.embeddings.LayerNorm": "encoder.embedding.norm",
        **per_layer(layer_prefix, "encoder", layer),
    }


LAYER = {
    "attention.self.query": "mixer.query",
    "attention.self.key": "mixer.key",
    "attention.self.value": "mixer.value",
    "attention.output.dense": "mixer.output",
    "attention.output.LayerNorm": "mixer_residual.{norm}",
    "intermediate.dense": "feed_forward.up",
    "output.dense": "feed_forward.down",
    "output.LayerNorm": "feed_forward_residual.{norm}",
}

BERT = Family(
    "bert",
    architectures=encoder_classes("Bert", "ForPreTraining ForMultipleChoice")
    | {"BertForNextSentencePrediction": Architecture(("nsp",))},
    stacks=("encoder",),
    config={
        **CONFIG,
        "hidden_act": activation("gelu", "encoder.layers.feed_forward", "heads.mlm.dense"),
    },
    fixed=FIXED,
    weights=weight_names(LAYER, "bert", "bert.encoder.layer.{i}"),
    tokenizer_class="BertTokenizer",
    heads={
        "mlm": {
            "cls.predictions.transform.dense": "dense.linear",
            "cls.predictions.transform.LayerNorm": "dense.norm",
            "cls.predictions.bias": "bias",
            "cls.predictions.decoder": "",
        },
        "nsp": {"bert.pooler.dense": "pooler.linear", "cls.seq_relationship": "classifier"},
        "pooler": {"bert.pooler.dense": "linear"},
        "classifier": {"bert.pooler.dense": "dense.linear", "classifier": "classifier"},
    },
    base="bert.",
    optional_heads=("pooler",),
    expected=ALLOWED,
    # Pooler options in files converted from TensorFlow; no class reads them.
    ignored="classifier_dropout directionality pooler_fc_size pooler_num_attention_heads "
    "pooler_num_fc_layers pooler_size_per_head pooler_type",
    tied_aliases={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    buffers=(r".*\.position_ids",),
)
