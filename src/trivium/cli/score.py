"""`trivium score`: log-probabilities of texts.

Examples:

  trivium score runs/gpt "The cat sat." "The cat sit."

  trivium score runs/gpt --context "The capital of France is" " Paris" " Rome"

  trivium score runs/gpt "The cat sat." --per-token

  cat lines.txt | trivium score runs/mine --json
"""

from __future__ import annotations

from typing import Any

from trivium.cli import _options as opt
from trivium.cli._shared import known_texts, load, read_texts, show


def score(
    model: opt.Model,
    texts: opt.Texts = None,
    context: str | None = None,
    per_token: bool = False,
    symbols: opt.Symbols = False,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """The log-probability of every text in nats, a tab, the text: one line each.

    A decoder sums log p(token | tokens before), an encoder log p(token | all others), an
    encoder-decoder log p(token | source, tokens before), which needs --context. The token that ends
    a text is not scored; the loss of training has it.

    Args:
        context: Score the texts as continuations of this, or as outputs of an encoder-decoder for
            it. Context and text are tokenized as one string; no space is added between them.
        per_token: Also every token, one per line.
    """
    lm = load(model, device=device).reading(special_tokens)
    from trivium.inference.score import score_text

    tokenizer = lm.text_tokenizer
    lm.require("score")
    for text in known_texts(read_texts(texts), lm.text_tokenizer):
        scored = score_text(lm, text, context)
        record: dict[str, Any] = {"text": text, **({"context": context} if context else {})}
        record |= {"log_probability": scored.total, "num_tokens": scored.num_tokens}
        if context:
            record |= {"greedy": scored.greedy, "num_cut": scored.num_cut}
        line = f"{scored.total:.4f}\t{text}"
        if per_token:
            vocabulary = tokenizer.tokens if symbols else tokenizer.readable_tokens
            tokens = [vocabulary[token_id] for token_id in scored.ids]
            pairs = list(zip(tokens, scored.log_probabilities))
            record["tokens"] = [{"token": t, "log_probability": value} for t, value in pairs]
            rows = (f"  {'-' if value is None else f'{value:.4f}'}\t{t}" for t, value in pairs)
            line = "\n".join([line, *rows])
        show(record, line, as_json=as_json)
