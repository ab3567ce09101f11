"""Small streams of rows and of examples, and a callback that only keeps what is logged."""

from __future__ import annotations

import numpy as np
import torch
from small_models import VOCABULARY

from trivium.data.encoded import EncodedExamples
from trivium.data.rows import Rows
from trivium.objectives import Objective
from trivium.objectives.causal import Causal
from trivium.text.vocabulary import Vocabulary
from trivium.train.callback import Callback
from trivium.train.loader import BatchStream

FACTS = Vocabulary(size=VOCABULARY, mask_id=4, special_ids=(0, 1, 2, 3, 4))
CPU = torch.device("cpu")


class Split:
    """A split in memory, of documents of 17 tokens without ends."""

    name, prefix_ids, suffix_ids, num_documents = "train", (), (), 1

    def __init__(self, size, seed=0):
        self.tokens = np.random.default_rng(seed).integers(5, VOCABULARY, size)
        self.num_tokens = size

    def rows_at(self, starts, lengths, *, pad_id=0):
        return rows_of(self.tokens, starts, lengths, pad_id)

    def documents_at(self, starts, length):
        return (starts[:, None] + np.arange(length)) // 17


def rows_of(tokens, starts, lengths, pad_id):
    """Rows of consecutive tokens, padded to the longest row."""
    rows = np.full((len(starts), max(lengths, default=0)), pad_id)
    for row, start, length in zip(rows, starts, lengths, strict=True):
        row[:length] = tokens[start : start + length]
    return rows


class LabelledCausal(Causal):
    """Encoded examples with labels of their own."""

    kind: None = None
    labelled = True

    def prepare(self, rows, rng, vocabulary):
        return rows.to_batch()


def row_stream(objective: Objective, seed=3, name="", rows=37) -> BatchStream:
    source = Rows(Split(rows * 11, seed), 11)  # type: ignore[arg-type]
    return BatchStream(name, objective, source, FACTS, seed=seed, rows_per_step=7)


def example_stream(objective: Objective) -> BatchStream:
    generator = np.random.default_rng(1)
    ids = [generator.integers(5, VOCABULARY, n).tolist() for n in generator.integers(2, 23, 41)]
    examples = EncodedExamples({"input_ids": ids, "labels": ids})
    return BatchStream("b", objective, examples, FACTS, seed=4, rows_per_step=13)


class Records(Callback):
    """A callback that keeps what is logged."""

    def __init__(self):
        self.records = []

    def on_log(self, record):
        self.records.append(record)
