"""T5's span corruption of the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import WITH_SENTINELS, objective_page, text_rows
from trivium.explain.page import Bilingual, Page
from trivium.objectives.span_corruption import SpanCorruption

SUMMARY = Bilingual(
    "what T5's loss sees: spans behind sentinels", "T5 的损失看到什么：片段遮蔽与哨兵词元"
)

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
    objective = SpanCorruption.parse({"probability": probability, "mean_span": mean_span})
    noise, spans = objective.noise_size(int(rows.lengths[0]))
    return objective_page(
        Bilingual("Span corruption", "片段遮蔽（Span Corruption）"),
        objective,
        chosen,
        rows,
        Bilingual(
            f"Of {rows.lengths[0]} tokens {noise} are taken out in {spans} spans, a number that "
            "follows from the length alone. A row begins with tokens that stay and ends with a "
            "span, as in the released code of T5. The decoder pays for sentinels, too; no sentinel "
            "closes the last span, in textbooks neither, where the paper's figure has one.",
            f"{rows.lengths[0]} 个词元中有 {noise} 个被取出，分为 {spans} 个片段，"
            "数目只取决于行的长度。"
            "与 T5 公开的代码一样，每行以保留的词元开头、以片段结尾。"
            "哨兵词元本身也计入解码器的损失；"
            "最后一个片段之后没有收尾的哨兵（教材的例子也没有，论文的图中则有一个）。",
        ),
        seed=seed,
    )
