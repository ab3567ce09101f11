"""`trivium score`: compute log-probabilities of texts.

Examples:

  trivium score runs/gpt "The cat sat." "The cat sit."

  trivium score runs/gpt --context "The capital of France is" " Paris" " Rome"

  trivium score runs/gpt "The cat sat." --per-token

  cat lines.txt | trivium score runs/mine --json
"""

from __future__ import annotations

from typing import Any

from trivium.cli import _options as opt
from trivium.cli._shared import check_characters, load, print_result, read_texts


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
    """Print the log-probability of each text in nats, a tab and the text, one line per text.

    The log-probability is the sum over the tokens of the text. A decoder computes log p(token |
    previous tokens), and an encoder log p(token | all other tokens). An encoder-decoder computes
    log p(token | source, previous tokens) and needs --context. Unlike in the training loss, the
    end-of-text token is not included.

    Args:
        context: Score the texts as continuations of this text, or as outputs of an encoder-decoder
            for this source. For a decoder, context and text are tokenized as one string, without a
            space between them.
        per_token: Also print the log-probability of each token, one per line.
    """
    lm = load(model, device=device).reading(special_tokens)
    from trivium.inference.score import score_text

    tokenizer = lm.text_tokenizer
    lm.require("score")
    for text in check_characters(read_texts(texts), lm.text_tokenizer):
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
        print_result(record, line, as_json=as_json)
