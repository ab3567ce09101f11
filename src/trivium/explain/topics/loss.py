"""Cross-entropy from logits to nats, perplexity and bits per byte."""

from __future__ import annotations

import math

import torch

from trivium.errors import TriviumError
from trivium.evaluate.perplexity import perplexity
from trivium.explain.page import Bilingual, Formula, Heading, Page, Part, Table, Token, TokenRow
from trivium.inference.score import score_text
from trivium.model_loading import load
from trivium.nn.loss import cross_entropy

SUMMARY = Bilingual(
    "cross-entropy, perplexity, bits per byte", "损失：交叉熵、困惑度与每字节比特数"
)

_TEXT = "The cat sat on the mat."
# Validation losses of a book's BERT after 1,000 and 10,000 steps; its vocabulary.
_BOOK, _VOCABULARY = {1_000: 6.558231, 10_000: 4.549236}, 30_522


def explain(
    logits: list[float] | None = None,
    *,
    label: int = 1,
    text: str = _TEXT,
    model: str | None = None,
) -> Page:
    """Compute the loss of one position, and of a text that a model reads.

    Args:
        logits: One for each entry of the vocabulary. Default: 3 1 0 -1.
        label: Which entry, from 1 on, is the token of the text.
        text: What the model scores.
        model: A run or a model folder.
    """
    logits = logits or [3.0, 1.0, 0.0, -1.0]
    if not 1 <= label <= len(logits):
        raise TriviumError(f"label is {label}: there are {len(logits)} logits, counted from 1.")
    z = torch.tensor(logits)
    nats = cross_entropy(z[None], torch.tensor([label - 1])).sum.item()
    probabilities = z.softmax(-1).tolist()
    rows = [
        [f"{i}" + (" *" if i == label else ""), one, math.exp(one), p, -math.log(p)]
        for i, (one, p) in enumerate(zip(logits, probabilities), start=1)
    ]
    book = [[Bilingual("all alike: ln 30522", "均匀猜测：ln 30522"), math.log(_VOCABULARY)]]
    for step, loss in _BOOK.items():
        book.append([Bilingual(f"BERT, {step} steps", f"BERT，{step} 步"), loss])
    perplexities = Bilingual("perplexity", "困惑度")
    facts = {"logits": logits, "probabilities": probabilities, "nats": nats}
    parts: list[Part] = [
        Formula(
            "p_i = exp(z_i) / sum_j exp(z_j)\nloss = -ln p_label = ln(sum_j exp(z_j)) - z_label"
        ),
        Table(
            [Bilingual("entry", "词"), "z", "exp(z)", "p", "-ln p"],
            rows,
            Bilingual("One position; * is the label", "一个位置；* 为标签"),
        ),
        Table(
            [Bilingual("nats", "奈特"), Bilingual("bits", "比特"), perplexities],
            [[nats, nats / math.log(2), math.exp(nats)]],
        ),
        Bilingual(
            "A perplexity of 2 is a choice between two tokens of equal probability.",
            "困惑度为 2，相当于在两个同样可能的词元之间选择。",
        ),
        Table(
            [
                Bilingual("a book's training", "教材的训练结果"),
                Bilingual("loss", "损失"),
                perplexities,
            ],
            [[name, loss, f"{math.exp(loss):,.1f}"] for name, loss in book],
        ),
        Heading(Bilingual("Of a text", "一段文本")),
        Formula(
            "loss = -(1 / n) sum_i ln p(x_i | x_1 ... x_(i-1))\n"
            "PPL  = exp(loss)\n"
            "BPB  = n loss / (ln 2 * bytes)"
        ),
        Bilingual(
            "Of different tokenizers losses and perplexities (PPL) do not compare, bits per byte "
            "of UTF-8 (BPB) do.",
            "词元分析器不同时，损失和困惑度（PPL）不能直接比较；UTF-8 每字节的比特数（BPB）可以。",
        ),
    ]
    if model is not None:
        lm = load(model, device="cpu")
        score, whole = score_text(lm, text), perplexity(lm, [text]).to_dict()
        tokens = [
            Token(
                lm.text_tokenizer.readable_tokens[i], "" if p is None else f"{-p:.2f}", "predicted"
            )
            for i, p in zip(score.ids, score.log_probabilities)
        ]
        parts += [
            TokenRow(tokens, Bilingual("-ln p of every token", "每个词元的 -ln p")),
            Table(["", ""], [[name, value] for name, value in whole.items() if value is not None]),
        ]
        facts["text"] = whole
    return Page(Bilingual("The loss of a language model", "语言模型的损失"), parts, facts)
