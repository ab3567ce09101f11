"""Special tokens around texts, as BERT has them."""

from __future__ import annotations

import tokenizers
from tokenizers import processors

from trivium.text.roles import token_of_role


def add_template(backend: tokenizers.Tokenizer) -> None:
    """[CLS] A [SEP], and [CLS] A [SEP] B [SEP] for pairs, where there are such tokens."""
    vocabulary = backend.get_vocab()
    cls, sep = (token_of_role(role, vocabulary) for role in ("cls", "sep"))
    if cls is not None and sep is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
        )
