"""Explanation of prefix language modelling, with a decoder and with an encoder-decoder."""

from __future__ import annotations

from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Heading, Page, get_text
from trivium.objectives.prefix_lm import PrefixLM, Seq2SeqPrefixLM
from trivium.text.roles import TEXT_SPECIALS


def explain(text: list[str] | None = None, *, tokenizer: str | None = None, seed: int = 0) -> Page:
    """Predict the rest of a text from its start, the prefix.

    Args:
        text: The texts; each text is a row.
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
        seed: Random seed for the lengths of the prefixes.
    """
    texts = text or ["Thank you for inviting me to your party."]
    chosen, rows = encode_rows(texts, tokenizer, TEXT_SPECIALS, add_special_tokens=False)
    title = get_text("prefix_lm.prefix_language_modelling")
    decoder = build_objective_page(title, PrefixLM.from_tree({}), chosen, rows, seed=seed)
    both = build_objective_page(title, Seq2SeqPrefixLM.from_tree({}), chosen, rows, seed=seed)
    parts = [
        Heading(get_text("prefix_lm.decoder_alone")),
        *decoder.parts,
        Heading(get_text("prefix_lm.encoder_decoder")),
        *both.parts,
        get_text("prefix_lm.note"),
    ]
    return Page(title, parts, {"decoder": decoder.data, "encoder_decoder": both.data})
