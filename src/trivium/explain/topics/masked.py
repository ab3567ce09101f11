"""Masked language modelling of the reader's text, and how often each replacement comes."""

from __future__ import annotations

import numpy as np

from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Bilingual, Page, Table
from trivium.objectives.masked import Masked
from trivium.text.roles import BERT_SPECIALS
from trivium.text.vocabulary import Vocabulary

SUMMARY = Bilingual("what a masked language model's loss sees", "掩码语言模型的损失看到什么")

_TEXT = "I love you because you are kind and the dog and the cat are friends of yours."


def explain(
    text: list[str] | None = None,
    *,
    probability: float = 0.15,
    whole_words: bool = False,
    max_span: int = 1,
    tokenizer: str | None = None,
    seed: int = 0,
    draws: int = 2000,
) -> Page:
    """Mask the reader's text as training does, twice, and count what happens in many draws.

    Args:
        text: Texts, each a row.
        probability: Share of tokens that are predicted.
        whole_words: Choose whole words.
        max_span: Tokens in a row chosen together, at most.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of the draws.
        draws: Times that all texts are masked for the counts.
    """
    keys = {"probability": probability, "whole_words": whole_words, "max_span": max_span}
    objective = Masked.parse(keys)
    chosen, rows = text_rows(text or [_TEXT], tokenizer, BERT_SPECIALS, draws=2)
    page = objective_page(
        Bilingual("Masked language modelling", "掩码语言模型（MLM）"),
        objective,
        chosen,
        rows,
        seed=seed,
    )
    shares = count_shares(objective, rows, chosen.vocabulary, seed=seed, draws=draws)
    same = objective.random_share / len(chosen.vocabulary.regular_ids)
    left = 1.0 - objective.mask_share - objective.random_share
    table = Table(
        [
            Bilingual("of many draws", "多次抽取"),
            Bilingual("share", "比例"),
            Bilingual("expected", "期望"),
        ],
        [
            [
                Bilingual("chosen, of all tokens", "被选中（占全部词元）"),
                shares["chosen"],
                probability,
            ],
            [Bilingual("[MASK]", "替换为 [MASK]"), shares["masked"], objective.mask_share],
            [
                Bilingual("another token", "替换为其他词元"),
                shares["replaced"],
                objective.random_share - same,
            ],
            [Bilingual("unchanged", "保持不变"), shares["kept"], left + same],
        ],
    )
    return Page(page.title, [*page.parts, table, _NOTE], {**page.facts, "shares": shares})


_NOTE = Bilingual(
    "Of the chosen tokens 80 % become [MASK], 10 % a token drawn from the whole vocabulary, which "
    "may be the token itself (more often in a small vocabulary), and 10 % stay. The loss is on the "
    "chosen positions alone. They are drawn anew whenever a row is seen (RoBERTa); BERT drew "
    "them once for ten copies of the text.",
    "被选中的词元中，80% 替换为 [MASK]，"
    "10% 替换为从整个词表中随机抽取的词元（也可能恰好抽到它自己，"
    "词表越小越常见），10% 保持不变。损失只在被选中的位置上计算。每次读到一行都重新抽取掩码"
    "（RoBERTa 的动态掩码）；BERT 则是把文本复制十份，事先抽取一次。",
)


def count_shares(
    objective: Masked, rows: RowBatch, vocabulary: Vocabulary, *, seed: int, draws: int
) -> dict[str, float]:
    """The share of tokens that are chosen, and of these what became of them."""
    numbers = np.arange(draws) % rows.num_rows
    repeated = RowBatch(rows.input_ids[numbers], rows.lengths[numbers])
    batch = objective.prepare(repeated, RowRandom(seed, np.arange(draws)), vocabulary)
    assert batch.labels is not None
    chosen = batch.labels != IGNORE_INDEX
    real = ~vocabulary.is_special[repeated.input_ids]
    masked = chosen & (batch.input_ids == vocabulary.mask_id)
    kept = chosen & (batch.input_ids == batch.labels)
    count = max(1, int(chosen.sum()))
    return {
        "chosen": float(chosen.sum() / real.sum()),
        "masked": float(masked.sum() / count),
        "replaced": float((chosen & ~masked & ~kept).sum() / count),
        "kept": float(kept.sum() / count),
    }
