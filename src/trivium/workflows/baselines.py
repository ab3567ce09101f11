"""What models that only count reach on the validation text of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivium.data import NO_LOSS, RowRandom, Shards
from trivium.data.shards import TRAIN
from trivium.evaluate.counts import KneserNey, Unigram
from trivium.objectives import Causal
from trivium.train.validation import Validation

BASELINES = "baselines.json"
_ORDER = 5
# Seconds of work; more text makes the counts better, but slowly.
_MOST_TOKENS = 2_000_000


def count_losses(shards: Shards, validation: Validation) -> dict[str, Any]:
    """Mean nats a token of count models, on the rows and tokens that a run is judged by.

    `tokens` is how much of the training text was counted: no more than its first two million.
    """
    split, vocab_size = shards.split(TRAIN), shards.manifest.vocab_size
    tokens = split.tokens_at(np.arange(min(split.num_tokens, _MOST_TOKENS)))
    rows = validation.rows.take(validation.indices, with_documents=validation.separate_documents)
    labels = Causal().prepare(rows, RowRandom(0, validation.indices)).labels
    assert labels is not None
    judged = labels[:, :-1] != NO_LOSS
    order = min(_ORDER, len(tokens))
    models = {
        "unigram": Unigram(tokens, vocab_size),
        "n_gram": KneserNey(tokens, vocab_size, order=order),
    }
    losses = {
        name: -float(model.log_probabilities(rows.input_ids)[judged].mean())
        for name, model in models.items()
    }
    return {**losses, "order": order, "tokens": len(tokens), "judged": int(judged.sum())}
