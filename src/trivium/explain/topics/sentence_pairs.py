"""BERT's next-sentence prediction and ALBERT's sentence order on the reader's texts."""

from __future__ import annotations

from typing import Literal

from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Bilingual, Page
from trivium.objectives.sentence_pairs import SentencePairs
from trivium.text.roles import BERT_SPECIALS

SUMMARY = Bilingual(
    "what BERT's loss sees of pairs of sentences", "下一句预测（NSP）的损失看到什么"
)

_TEXTS = ["I love you. Because you are wonderful.", "Dinner is ready. The soup is so nice."]


def explain(
    text: list[str] | None = None,
    *,
    pairs: Literal["nsp", "order"] = "nsp",
    tokenizer: str | None = None,
    seed: int = 0,
) -> Page:
    """Texts are cut in two; half of the second segments are replaced, or the two exchanged.

    Args:
        text: Texts of two sentences or more, each a document. Negatives come from the others.
        pairs: nsp is BERT's, order ALBERT's.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of the draws.
    """
    chosen, rows = text_rows(text or _TEXTS, tokenizer, BERT_SPECIALS, draws=2)
    return objective_page(
        Bilingual("Sentence pairs", "句子对：下一句预测（NSP）与句子顺序预测（SOP）"),
        SentencePairs.parse({"pairs": pairs}),
        chosen,
        rows,
        Bilingual(
            "The label of the row is 0 where the second segment follows the first, else 1, as in "
            "the released code of BERT; textbooks also write 1 for what follows. Tokens are masked "
            "as for a masked language model, and the two losses are added.",
            "整行的标签：第二段确实接在第一段之后为 0，否则为 1，与 BERT 公开的代码一致；"
            "有的教材反过来用 1 "
            "表示连续。词元的掩码方式与掩码语言模型相同，两个损失相加。",
        ),
        seed=seed,
    )
