"""XLNet's permutation language modelling of the reader's text."""

from __future__ import annotations

import numpy as np

from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Page, Table, bilingual
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
    """Targets are predicted one after another in a random order, each from all known before.

    Args:
        text: Texts, each a row.
        probability: Share of tokens that are predicted; 1/6 in XLNet, here more, for a short text.
        max_span: Tokens in a row that are chosen together, at most; 5 in XLNet.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of targets and order.
    """
    texts = text or ["The cat sat on the mat and it slept."]
    chosen, rows = text_rows(texts, tokenizer, TEXT_SPECIALS)
    page = objective_page(
        bilingual("permutation.permutation_language"),
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
    columns = [bilingual("permutation.predicted"), bilingual("permutation.from_known_before")]
    note = bilingual("permutation.note")
    data = {**page.data, "steps": steps}
    return Page(page.title, [*page.parts, Table(columns, steps), note], data)
