"""Explanation of permutation language modelling (XLNet), applied to the reader's text."""

from __future__ import annotations

import numpy as np

from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Page, Table, get_text
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
    note = get_text("permutation.note")
    data = {**page.data, "steps": steps}
    return Page(page.title, [*page.parts, Table(columns, steps), note], data)
