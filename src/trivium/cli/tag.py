"""`trivium tag`: tag the words of texts: named entities (NER) or parts of speech (POS).

Examples:

  trivium tag runs/names "Ada Lovelace was born in London."

  cat sentences.txt | trivium tag runs/pos --json
"""

from __future__ import annotations

from trivium.cli import _options as opt
from trivium.cli._shared import load, print_result, read_text_batches


def tag(
    model: opt.Model,
    texts: opt.Texts = None,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """Print the words of each text as word/TAG, one line per text.

    --json also prints the entities, merged from IOB tags. A text is split at spaces; punctuation
    marks at the ends of words are separate words. Each Chinese or Japanese character is a word,
    unless the model was trained on longer words.
    """
    lm = load(model, device=device).reading(special_tokens)
    from trivium.inference.tag import merge_entities

    for batch in read_text_batches(texts, lm.source_tokenizer):
        for text, words in zip(batch, lm.tag(batch)):
            line = " ".join(f"{word.word}/{word.tag}" for word in words)
            record = {"text": text, "words": words, "entities": merge_entities(words, text)}
            print_result(record, line, as_json=as_json)
