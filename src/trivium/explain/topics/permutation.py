"""Explanation of permutation language modelling (XLNet), applied to the reader's text.

Shape letters: T tokens of the row, M targets.
"""

from __future__ import annotations

import numpy as np
import torch

from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Grid, Heading, Page, Table, get_text
from trivium.models.transformer import add_queries
from trivium.nn.sequence_info import SequenceInfo
from trivium.objectives.permutation import Permutation
from trivium.text.roles import TEXT_SPECIALS


def explain(
    text: list[str] | None = None,
    *,
    probability: float = 0.4,
    max_span: int = 2,
    tokenizer: str | None = None,
    seed: int = 0,
) -> Page:
    """Predict targets one after another in random order, each from all tokens known so far.

    Args:
        text: The texts; each text is a row.
        probability: Fraction of tokens to predict. XLNet uses 1/6; a short text needs more.
        max_span: Maximum number of adjacent tokens selected together. XLNet uses 5.
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
        seed: Random seed for the targets and their order.
    """
    texts = text or ["The cat sat on the mat and it slept."]
    chosen, rows = encode_rows(texts, tokenizer, TEXT_SPECIALS)
    page = build_objective_page(
        get_text("permutation.permutation_language"),
        Permutation.from_tree({"probability": probability, "max_span": max_span}),
        chosen,
        rows,
        seed=seed,
    )
    order = np.array(page.data["batch"]["order"][0])[: rows.lengths[0]]
    first = page.data["rows"][0]
    targets = [i for i in np.argsort(order, kind="stable").tolist() if first["labels"][i]]
    steps = [
        [first["labels"][i], " ".join(first["tokens"][j] for j in np.flatnonzero(order < order[i]))]
        for i in targets
    ]
    columns = [get_text("permutation.predicted"), get_text("permutation.from_known_before")]
    content, query = _compute_stream_masks(order, targets)
    tokens = [f"{token}" for token in first["tokens"][: len(order)]]
    return Page(
        page.title,
        [
            *page.parts,
            Table(columns, steps),
            get_text("permutation.note"),
            Heading(get_text("permutation.two_streams")),
            Grid(content, tokens, tokens, get_text("permutation.content_stream"), digits=False),
            Grid(
                query,
                [tokens[i] for i in targets],
                tokens,
                get_text("permutation.query_stream"),
                digits=False,
            ),
            get_text("permutation.streams_note"),
        ],
        {**page.data, "steps": steps, "content_mask": content, "query_mask": query},
    )


def _compute_stream_masks(
    order: np.ndarray, targets: list[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return which tokens are visible in each stream of XLNet: 1 for visible tokens, else 0.

    Args:
        order: the place of each token in the order, [T]; 0 for tokens that are known from the
            start.
        targets: the positions of the M targets, in the order in which they are predicted.

    Returns:
        The masks of the content stream [T, T] and of the query stream [M, T].
    """
    ranks, predicted = torch.tensor(order)[None], torch.tensor([targets], dtype=torch.long)
    info = add_queries(SequenceInfo.of_length(len(order)), ranks, predicted)
    assert info.custom is not None
    visible = info.custom[0, 0].int().tolist()
    return visible[: len(order)], visible[len(order) :]
