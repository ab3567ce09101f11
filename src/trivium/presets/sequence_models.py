"""Models before the Transformer: n-gram models, RNNs, ELMo, Bahdanau's encoder-decoder.

Without token embeddings and output projection, the sizes `-tiny` and `-mini` have about as many
parameters as the Transformers with these size names.
"""

from __future__ import annotations

from trivium.models.attention_rnn import AttentionRNNSpec
from trivium.models.heads.vocabulary import LMHead, MLMHead
from trivium.models.ngram import NGramSpec
from trivium.models.ngram_counts import NGramCountsSpec
from trivium.models.rnn import Cell, RNNSpec
from trivium.nn.character_embedding import CharacterCNN
from trivium.presets.preset import Preset


def _ngram(order: int, d_model: int, d_hidden: int) -> Preset:
    """Return a preset of a neural n-gram model, which predicts a token from `order` - 1 tokens."""
    spec = NGramSpec(
        vocab_size=16_384,
        order=order,
        d_model=d_model,
        d_hidden=d_hidden,
        heads=(LMHead(tied=True, bias=True),),
    )
    return Preset(spec, f"after {_BENGIO}", order - 1)


def _rnn(
    cell: Cell, d_model: int, d_hidden: int, paper: str, *, bidirectional: bool = False
) -> Preset:
    """Return a preset of a two-layer RNN with the given kind of cell.

    A `bidirectional` RNN has an MLM head. Otherwise it is a causal language model.
    """
    spec = RNNSpec(
        vocab_size=16_384,
        d_model=d_model,
        cell=cell,
        d_hidden=d_hidden,
        num_layers=2,
        direction="both" if bidirectional else "forward",
        scale=float(d_model**0.5),
        heads=(MLMHead() if bidirectional else LMHead(tied=True, bias=True),),
    )
    return Preset(spec, f"after {paper}", 128)


def _elmo(
    d_model: int,
    d_hidden: int,
    characters: CharacterCNN,
    paper: str,
    vocab_size: int = 16_384,
    length: int = 128,
) -> Preset:
    """Return an ELMo preset: a character CNN and two layers of forward and backward LSTMs.

    The cell clipping and the sampled softmax of the authors' code are left out.
    """
    spec = RNNSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        cell="lstm",
        d_hidden=d_hidden,
        num_layers=2,
        d_projection=d_model if d_model < d_hidden else None,
        direction="bilm",
        connections="residual",
        characters=characters,
        heads=(LMHead(tied=False, bias=True),),
    )
    return Preset(spec, paper, length)


def _penn_treebank(d_hidden: int, dropout: float) -> Preset:
    """Return a preset of a word-level LSTM for the Penn Treebank, unrolled for 35 time steps."""
    spec = RNNSpec(
        vocab_size=10_000,
        d_model=d_hidden,
        cell="lstm",
        d_hidden=d_hidden,
        num_layers=2,
        dropout=dropout,
        heads=(LMHead(tied=False, bias=True),),
    )
    return Preset(spec, "Zaremba et al. 2014 (Recurrent Neural Network Regularization)", 35)


def _bahdanau(d_model: int, d_hidden: int) -> Preset:
    """Return a preset of Bahdanau's encoder-decoder RNN with attention. The LM head is tied."""
    spec = AttentionRNNSpec(
        vocab_size=16_384,
        d_model=d_model,
        d_hidden=d_hidden,
        d_attention=d_hidden,
        d_readout=d_model,
        initialization="glorot",
        heads=(LMHead(tied=True, bias=True),),
    )
    return Preset(spec, f"after {_BAHDANAU}", 128)


_BAHDANAU = "Bahdanau et al. 2015 (Neural Machine Translation by Jointly Learning to Align)"
_BENGIO = "Bengio et al. 2003 (A Neural Probabilistic Language Model)"
_COUNTS = "Chen and Goodman 1998 (An Empirical Study of Smoothing Techniques)"
_ELMAN = "Elman 1990 and Mikolov et al. 2010 (RNNLM)"
_LSTM = "Hochreiter and Schmidhuber 1997 (LSTM)"
_GRU = "Cho et al. 2014 (GRU)"
_BIRNN = "Schuster and Paliwal 1997 (bidirectional RNN)"
_ELMO = "Peters et al. 2018 (ELMo)"

_FEW_FILTERS = CharacterCNN(filters=(16, 32, 64, 128), max_characters=24)

PRESETS: dict[str, Preset] = {
    "bahdanau-tiny": _bahdanau(128, 128),
    "bahdanau-mini": _bahdanau(256, 256),
    "bahdanau-rnnsearch": Preset(
        AttentionRNNSpec(
            vocab_size=30_000,
            source_vocab_size=30_000,
            d_model=620,
            d_hidden=1000,
            d_attention=1000,
            d_readout=500,
            heads=(LMHead(tied=False),),
        ),
        _BAHDANAU,
        50,
    ),
    "ngram-add-k": Preset(
        NGramCountsSpec(vocab_size=16_384, order=2, smoothing="add-k", k=0.01), _COUNTS, None
    ),
    "ngram-kneser-ney": Preset(NGramCountsSpec(vocab_size=16_384, order=5), _COUNTS, None),
    "ngram-tiny": _ngram(5, 128, 512),
    "ngram-mini": _ngram(5, 256, 2048),
    "ngram-ap-news": Preset(
        NGramSpec(
            vocab_size=17_964,
            order=6,
            d_model=100,
            d_hidden=60,
            connections="direct",
            heads=(LMHead(tied=False, bias=True),),
        ),
        _BENGIO,
        5,
    ),
    "rnn-tiny": _rnn("elman", 128, 352, _ELMAN),
    "rnn-mini": _rnn("elman", 256, 896, _ELMAN),
    "lstm-tiny": _rnn("lstm", 128, 176, _LSTM),
    "lstm-mini": _rnn("lstm", 256, 448, _LSTM),
    "lstm-medium": _penn_treebank(650, 0.5),
    "lstm-large": _penn_treebank(1500, 0.65),
    "gru-tiny": _rnn("gru", 128, 208, _GRU),
    "gru-mini": _rnn("gru", 256, 512, _GRU),
    "birnn-tiny": _rnn("elman", 128, 224, _BIRNN, bidirectional=True),
    "birnn-mini": _rnn("elman", 256, 576, _BIRNN, bidirectional=True),
    "bilstm-tiny": _rnn("lstm", 128, 104, _BIRNN, bidirectional=True),
    "bilstm-mini": _rnn("lstm", 256, 272, _BIRNN, bidirectional=True),
    "bigru-tiny": _rnn("gru", 128, 120, _BIRNN, bidirectional=True),
    "bigru-mini": _rnn("gru", 256, 320, _BIRNN, bidirectional=True),
    "elmo-tiny": _elmo(128, 128, _FEW_FILTERS, f"after {_ELMO}"),
    "elmo-mini": _elmo(256, 256, _FEW_FILTERS, f"after {_ELMO}"),
    "elmo": _elmo(512, 4096, CharacterCNN(), _ELMO, 793_471, length=20),
}
