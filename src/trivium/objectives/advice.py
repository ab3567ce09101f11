"""What suits each kind of objective where a recipe leaves it open, and what messages say of it.

An objective works without an entry. A kind without one has that of the kind that it extends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_READ_ONE_WAY = "is for decoders, n-gram models and RNNs that read one way"
_ANY_STATES = "an encoder (bert-mini), a decoder (llama-mini) or an RNN (lstm-mini)"
_SEQ2SEQ = 'transformer-mini, t5-mini, bart-mini or a Marian model; "chat" is for a decoder'


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Defaults and messages of a kind of objective.

    Args:
        purpose: what the objective is for or needs. The message on models that do not fit contains
            it after the name of the objective. By default it follows from the family.
        suggested: models that fit, and an objective for others, for the same message.
        mask: the mask in examples of commands; only for objectives whose models fill masks.
        fast: keys that have another default with `defaults = "fast"`.
        multi_epoch_decay: whether small new models need faster weight decay from the second epoch.
        unigram_offset: nats to add to the unigram baseline to compare the baseline with the loss;
            None: the two are not compared.
        reads_case: whether the labels depend on upper and lower case.
        batch_examples: examples per step unless the recipe sets `train.batch_examples`.
        lr_factor: what the default learning rate of fine-tuning is multiplied by.
        lr_range: the lowest and the highest default learning rate; a LoRA adapter has ten times
            these.
        dropout: dropout of fine-tuning unless the recipe sets `model.dropout`.
        epochs: epochs unless the recipe sets a budget; None: chosen by the number of examples.
        longest: the largest number of tokens of an example that are read at once, unless the recipe
            sets `data.length` or the model has fewer positions. A row of this length is a
            micro-batch on a CPU.
    """

    purpose: str = ""
    suggested: str = ""
    mask: str | None = None
    fast: Mapping[str, Any] = field(default_factory=dict)
    multi_epoch_decay: bool = False
    unigram_offset: float | None = 0.0
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
    "causal": Advice(purpose=_READ_ONE_WAY, suggested="gpt2-mini", multi_epoch_decay=True),
    "denoising": Advice(suggested="t5-mini or bart-mini", mask="<mask>"),
    "masked": Advice(mask="[MASK]", fast={"probability": 0.3}),
    "permutation": Advice(
        purpose="is for encoders that can predict tokens in any order",
        suggested="xlnet-mini",
        mask="[MASK]",
    ),
    "prefix-lm": Advice(purpose=_READ_ONE_WAY, suggested="gpt2-mini"),
    "replaced-token": Advice(mask="[MASK]", unigram_offset=None),
    "sentence-pairs": Advice(mask="[MASK]", unigram_offset=math.log(2.0)),
    "seq2seq-prefix-lm": Advice(suggested="t5-mini or bart-mini"),
    "similar-words": Advice(mask="[MASK]"),
    "span-corruption": Advice(suggested="t5-mini or bart-mini", mask="<extra_id_0>"),
    "chat": Advice(
        suggested='gpt2-mini or llama-mini; an encoder-decoder is fine-tuned with "text-to-text"',
        batch_examples=16,
    ),
    "classification": Advice(
        purpose="needs a head of its own, which this model cannot have", suggested=_ANY_STATES
    ),
    "contrastive": Advice(
        purpose="needs one vector of a text", suggested=_ANY_STATES, batch_examples=64
    ),
    "kto": replace(_ALIGNMENT, lr_factor=1 / 300, lr_range=(5e-7, 5e-6)),
    "policy": replace(
        _ALIGNMENT, purpose="", suggested="gpt2-mini or llama-mini", lr_factor=1 / 15
    ),
    "preference": replace(_ALIGNMENT, lr_factor=0.1),
    "qa": Advice(
        suggested='bert-mini; an encoder-decoder generates answers by "text-to-text"', longest=512
    ),
    "reward": Advice(purpose="needs one vector of a text", suggested=_ANY_STATES, lr_factor=0.2),
    "summarization": Advice(suggested=_SEQ2SEQ, batch_examples=16),
    "tagging": Advice(
        purpose="reads a hidden state of every word",
        suggested=_ANY_STATES,
        reads_case=True,
        longest=512,
    ),
    "text-to-text": Advice(suggested=_SEQ2SEQ, batch_examples=64),
    "translation": Advice(suggested=_SEQ2SEQ, batch_examples=128, multi_epoch_decay=True),
    "tsdae": Advice(batch_examples=64),
}
"""The advice for every kind that has other values than the defaults."""
