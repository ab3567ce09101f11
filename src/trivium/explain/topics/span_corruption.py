"""Explanation of span corruption (T5), applied to the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import WITH_SENTINELS, build_objective_page, encode_rows
from trivium.explain.page import Page, get_text
from trivium.objectives.span_corruption import SpanCorruption

_TEXT = "The man in the long coat walked to the store."


def explain(
    text: list[str] | None = None,
    *,
    probability: float = 0.3,
    mean_span: float = 1.5,
    tokenizer: str | None = None,
    seed: int = 0,
) -> Page:
    """Replace spans with sentinel tokens; the decoder generates each span after its sentinel token.

    Args:
        text: The texts; each text is a row.
        probability: Fraction of tokens to corrupt (noise density). T5 uses 0.15; a short text needs
            more.
        mean_span: Mean span length in tokens. T5 uses 3.
        tokenizer: A tokenizer file with sentinel tokens, or the folder of a model. Default: each
            word is a token.
        seed: Random seed for the choice of the spans.
    """
    chosen, rows = encode_rows(
        text or [_TEXT], tokenizer, WITH_SENTINELS, num_copies=2, add_special_tokens=False
    )
    objective = SpanCorruption.from_tree({"probability": probability, "mean_span": mean_span})
    noise, spans = objective.count_noise_spans(int(rows.lengths[0]))
    return build_objective_page(
        get_text("span_corruption.span_corruption"),
        objective,
        chosen,
        rows,
        get_text("span_corruption.note", length=rows.lengths[0], noise=noise, spans=spans),
        seed=seed,
    )
