"""Explanation of the loss: cross-entropy in nats, perplexity and bits per byte."""

from __future__ import annotations

import math

import torch

from trivium.errors import TriviumError
from trivium.evaluate.perplexity import perplexity
from trivium.explain.page import Formula, Heading, Page, Part, Table, Token, TokenRow, get_text
from trivium.inference.score import score_text
from trivium.model_loading import load
from trivium.nn.loss import cross_entropy

_TEXT = "The cat sat on the mat."
# Validation losses of the BERT in a textbook after 1,000 and 10,000 steps; its vocabulary size.
_BOOK, _VOCABULARY = {1_000: 6.558231, 10_000: 4.549236}, 30_522


def explain(
    logits: list[float] | None = None,
    *,
    label: int = 1,
    text: str = _TEXT,
    model: str | None = None,
) -> Page:
    """Compute the loss at one position, and the loss of a model on a text.

    Args:
        logits: The logits, one per token of the vocabulary. Default: 3 1 0 -1.
        label: The position of the correct token among the logits, counted from 1.
        text: The text that the model scores.
        model: A run or a model folder.
    """
    logits = logits or [3.0, 1.0, 0.0, -1.0]
    if not 1 <= label <= len(logits):
        raise TriviumError(
            f"label is {label}, but there are {len(logits)} logits: give 1 to {len(logits)}."
        )
    z = torch.tensor(logits)
    nats = cross_entropy(z[None], torch.tensor([label - 1])).sum.item()
    probabilities = z.softmax(-1).tolist()
    rows = [
        [f"{i}" + (" *" if i == label else ""), logit, math.exp(logit), p, -math.log(p)]
        for i, (logit, p) in enumerate(zip(logits, probabilities), start=1)
    ]
    book = [[get_text("loss.all_alike_ln_30522"), math.log(_VOCABULARY)]]
    for step, loss in _BOOK.items():
        book.append([get_text("loss.bert_steps", step=step), loss])
    perplexities = get_text("loss.perplexity")
    data = {"logits": logits, "probabilities": probabilities, "nats": nats}
    parts: list[Part] = [
        Formula(
            "p_i = exp(z_i) / sum_j exp(z_j)\nloss = -ln p_label = ln(sum_j exp(z_j)) - z_label"
        ),
        Table(
            [get_text("loss.entry"), "z", "exp(z)", "p", "-ln p"],
            rows,
            get_text("loss.one_position_label"),
        ),
        Table(
            [get_text("loss.nats"), get_text("loss.bits"), perplexities],
            [[nats, nats / math.log(2), math.exp(nats)]],
        ),
        get_text("loss.perplexity_note"),
        Table(
            [get_text("loss.book_training"), get_text("shared.loss"), perplexities],
            [[name, loss, f"{math.exp(loss):,.1f}"] for name, loss in book],
        ),
        Heading(get_text("loss.text")),
        Formula(
            "loss = -(1 / n) sum_i ln p(x_i | x_1 ... x_(i-1))\n"
            "PPL  = exp(loss)\n"
            "BPB  = n loss / (ln 2 * bytes)"
        ),
        get_text("loss.bits_per_byte_note"),
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
            TokenRow(tokens, get_text("loss.ln_p_every_token")),
            Table(["", ""], [[name, value] for name, value in whole.items() if value is not None]),
        ]
        data["text"] = whole
    return Page(get_text("loss.loss_language_model"), parts, data)
