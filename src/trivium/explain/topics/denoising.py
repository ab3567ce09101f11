"""Explanation of denoising (BART), with each noise function of the paper applied separately."""

from __future__ import annotations

from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Heading, Page, Part, get_text
from trivium.objectives.denoising import Denoising
from trivium.text.roles import TEXT_SPECIALS

_NO_INFILLING = 1e-9
_NOISES = {
    get_text("denoising.text_infilling_sentences"): {},
    get_text("denoising.sentences_permuted"): {"probability": _NO_INFILLING},
    get_text("denoising.tokens_masked"): {"mask_tokens": 0.3},
    get_text("denoising.tokens_deleted"): {"delete_tokens": 0.3},
    get_text("denoising.document_rotated"): {"rotate_documents": 1.0},
}


def explain(text: list[str] | None = None, *, tokenizer: str | None = None, seed: int = 0) -> Page:
    """Corrupt a text for the encoder; the decoder generates the original text.

    Args:
        text: The texts; each text is a row.
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
        seed: Random seed of the noise.
    """
    texts = text or ["The cat sat on it. We saw it. It was late."]
    chosen, rows = encode_rows(texts, tokenizer, TEXT_SPECIALS)
    title = get_text("denoising.denoising")
    parts: list[Part] = []
    data = {}
    for index, (name, keys) in enumerate(_NOISES.items()):
        alone = {"probability": _NO_INFILLING, "permute_sentences": False}
        keys = keys if "probability" in keys or not keys else {**alone, **keys}
        page = build_objective_page(title, Denoising.from_tree(keys), chosen, rows, seed=seed)
        # The decoder input is the same for all noise functions.
        parts += [Heading(name), *(page.parts if index == 0 else page.parts[:1])]
        data[name.en] = page.data
    note = get_text("denoising.note")
    return Page(title, [*parts, note], data)
