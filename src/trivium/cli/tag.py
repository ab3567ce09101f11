"""`trivium tag`: tag every word of a text: names (NER), parts of speech (POS).

Examples:

  trivium tag runs/names "Ada Lovelace was born in London."

  cat sentences.txt | trivium tag runs/pos --json
"""

from __future__ import annotations

from trivium.cli import _options as opt
from trivium.cli._shared import load, show, text_batches


def tag(
    model: opt.Model,
    texts: opt.Texts = None,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """Every word as word/TAG, one line per text; with --json also entities, merged from IOB tags.

    Words are separated by spaces, with the marks at their ends as words of their own; Chinese and
    Japanese characters are words, unless the model was trained on longer ones.
    """
    lm = load(model, device=device).reading(special_tokens)
    from trivium.inference.tag import merge_entities

    for batch in text_batches(texts, lm.source_tokenizer):
        for text, words in zip(batch, lm.tag(batch)):
            line = " ".join(f"{word.word}/{word.tag}" for word in words)
            record = {"text": text, "words": words, "entities": merge_entities(words, text)}
            show(record, line, as_json=as_json)
