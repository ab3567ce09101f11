"""Defaults and error messages for each kind of objective.

The defaults apply to recipe keys that are not set. If a kind has no entry in `ADVICE`, the entry of
its base class is used. If there is none, the default values of `Advice` are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_LEFT_TO_RIGHT = "is for decoders, n-gram models and RNNs that read one way"
_WITH_STATES = "an encoder (bert-mini), a decoder (llama-mini) or an RNN (lstm-mini)"
_SEQ2SEQ = 'transformer-mini, t5-mini, bart-mini or a Marian model; "chat" is for a decoder'


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Defaults and error messages for one kind of objective.

    Args:
        purpose: a phrase for the error message about unsupported models, such as "is for models
            that generate text". In the message it follows the name of the objective. If empty, the
            phrase is derived from `supported_family`.
        suggested: the models, or another objective, that this error message recommends.
        mask: the mask token in the example command that is printed after training. None if the
            objective does not train the model to fill masks.
        fast: the defaults of objective keys that differ if the recipe sets `defaults = "fast"`.
        multi_epoch_decay: whether small models that are trained from scratch need stronger weight
            decay from the second epoch.
        unigram_offset: nats added to the unigram baseline before the loss is compared with it. None
            if the loss cannot be compared with the baseline.
        steps_to_beat_unigram: the number of steps after the warm-up within which the loss should
            fall clearly below the unigram baseline. The default is about three times the number
            that `benchmarks/loss_bands.py` measures for the slowest models, which are encoders and
            post-norm decoders.
        reads_case: whether the labels depend on upper and lower case.
        batch_examples: the default of `train.batch_examples`, the number of examples per step.
        lr_factor: the factor by which the default learning rate of fine-tuning is multiplied.
        lr_range: the minimum and the maximum of the default learning rate. For a LoRA adapter both
            are ten times as large.
        dropout: the default of `model.dropout` in fine-tuning.
        epochs: the number of epochs if the recipe does not set a budget. None if it depends on the
            number of examples.
        longest: the default of `data.length`, the maximum number of tokens per row. It is reduced
            for models with a shorter context. On a CPU a micro-batch is one row of this length.
    """

    purpose: str = ""
    suggested: str = ""
    mask: str | None = None
    fast: Mapping[str, Any] = field(default_factory=dict)
    multi_epoch_decay: bool = False
    unigram_offset: float | None = 0.0
    steps_to_beat_unigram: float = 700.0
    reads_case: bool = False
    batch_examples: int = 32
    lr_factor: float = 1.0
    lr_range: tuple[float, float] = (0.0, math.inf)
    dropout: float = 0.1
    epochs: float | None = None
    longest: int = 4096


_ALIGNMENT = Advice(
    purpose="is for models that generate text",
    suggested="gpt2-mini or t5-mini",
    dropout=0.0,
    epochs=1.0,
)

ADVICE: Mapping[str, Advice] = {
    "bidirectional-lm": Advice(purpose='is for RNNs of direction "bilm"', suggested="elmo-mini"),
    "blank-filling": Advice(
        purpose='is for decoders whose positions are of kind "two-dimensional-rotary" or '
        '"two-dimensional"',
        suggested="glm-mini",
    ),
    "causal": Advice(purpose=_LEFT_TO_RIGHT, suggested="gpt2-mini", multi_epoch_decay=True),
    "denoising": Advice(suggested="t5-mini or bart-mini", mask="<mask>"),
    "fill-in-the-middle": Advice(purpose=_LEFT_TO_RIGHT, suggested="gpt2-mini"),
    "masked": Advice(mask="[MASK]", fast={"probability": 0.3}),
    "permutation": Advice(
        purpose="is for encoders that can predict tokens in any order",
        suggested="xlnet-mini",
        mask="[MASK]",
    ),
    "prefix-lm": Advice(purpose=_LEFT_TO_RIGHT, suggested="gpt2-mini"),
    "replaced-token": Advice(mask="[MASK]", unigram_offset=None),
    "sentence-pairs": Advice(
        mask="[MASK]", unigram_offset=math.log(2.0), steps_to_beat_unigram=math.inf
    ),
    "seq2seq-prefix-lm": Advice(suggested="t5-mini or bart-mini"),
    "similar-words": Advice(mask="[MASK]"),
    "span-corruption": Advice(suggested="t5-mini or bart-mini", mask="<extra_id_0>"),
    "chat": Advice(
        suggested='gpt2-mini or llama-mini; an encoder-decoder is fine-tuned with "text-to-text"',
        batch_examples=16,
    ),
    "classification": Advice(
        purpose="needs a classifier head, which this model cannot have", suggested=_WITH_STATES
    ),
    "contrastive": Advice(
        purpose="needs one vector of a text", suggested=_WITH_STATES, batch_examples=64
    ),
    "kto": replace(_ALIGNMENT, lr_factor=1 / 300, lr_range=(5e-7, 5e-6)),
    "policy": replace(
        _ALIGNMENT, purpose="", suggested="gpt2-mini or llama-mini", lr_factor=1 / 15
    ),
    "preference": replace(_ALIGNMENT, lr_factor=0.1),
    "qa": Advice(
        suggested='bert-mini; an encoder-decoder generates answers by "text-to-text"', longest=512
    ),
    "reranking": Advice(
        purpose="needs a classifier head, which this model cannot have",
        suggested=_WITH_STATES,
        longest=512,
    ),
    "reward": Advice(purpose="needs one vector of a text", suggested=_WITH_STATES, lr_factor=0.2),
    "summarization": Advice(suggested=_SEQ2SEQ, batch_examples=16),
    "tagging": Advice(
        purpose="reads a hidden state of every word",
        suggested=_WITH_STATES,
        reads_case=True,
        longest=512,
    ),
    "text-to-text": Advice(suggested=_SEQ2SEQ, batch_examples=64),
    "translation": Advice(suggested=_SEQ2SEQ, batch_examples=128, multi_epoch_decay=True),
    "tsdae": Advice(batch_examples=64),
}
"""The `Advice` for each kind of objective that does not use only the default values."""
