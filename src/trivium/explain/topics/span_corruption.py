"""T5's span corruption of the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import WITH_SENTINELS, objective_page, text_rows
from trivium.explain.page import Page, bilingual
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
    """Spans become sentinels, and the decoder generates them after their sentinels.

    Args:
        text: Texts, each a row.
        probability: Share of tokens in spans; 0.15 in T5, here more, for a short text.
        mean_span: Mean tokens of a span; 3 in T5.
        tokenizer: A tokenizer with sentinels, or a model's folder. Default: words.
        seed: Of the spans.
    """
    chosen, rows = text_rows(text or [_TEXT], tokenizer, WITH_SENTINELS, draws=2, ends=False)
    objective = SpanCorruption.from_tree({"probability": probability, "mean_span": mean_span})
    noise, spans = objective.noise_size(int(rows.lengths[0]))
    return objective_page(
        bilingual("span_corruption.span_corruption"),
        objective,
        chosen,
        rows,
        bilingual("span_corruption.note", length=rows.lengths[0], noise=noise, spans=spans),
        seed=seed,
    )
