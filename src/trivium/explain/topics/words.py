"""Comparison of tokenizations: split at spaces, Penn Treebank rules, and each kind of tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from trivium.data.samples import SAMPLES, sample_path
from trivium.explain.page import Page, Table, get_text
from trivium.explain.tokens import choose_texts
from trivium.text import Tokenizer
from trivium.text.reservoir import read_blocks

_TEXTS = ["I don't know", "father-in-law", "Abwasserbehandlungsanlage", "我今天去了商店。"]
_VOCAB_SIZE = 6000
_COLUMNS = [get_text("words.way"), get_text("words.number"), get_text("words.tokens")]
_TRAINED = get_text("words.note", size=_VOCAB_SIZE)
_MISSING = get_text("words.treebank_note")


def explain(texts: list[str] | None = None, *, tokenizer: list[Path] | None = None) -> Page:
    """Split texts at spaces, by rules, and with every kind of tokenizer.

    Args:
        texts: Texts or words. Default: don't, father-in-law, Abwasserbehandlungsanlage, and a
            sentence in Chinese.
        tokenizer: A tokenizer file or the folder of a run, used instead of the tokenizers that are
            trained on bundled text. Repeatable.
    """
    texts = choose_texts(texts, _TEXTS)
    ways: dict[str, Callable[[str], Iterable[str]]] = {"text.split()": str.split}
    notes = [] if tokenizer else [_TRAINED]
    try:
        from nltk.tokenize.treebank import TreebankWordTokenizer

        ways["Penn Treebank"] = TreebankWordTokenizer().tokenize
    except ModuleNotFoundError:
        notes.append(_MISSING)
    tokenizers = {str(path): Tokenizer.load(path) for path in tokenizer or ()}
    for name, trained in (tokenizers or _train_tokenizers()).items():
        ways[name] = lambda text, own=trained: own.encode(text, add_special_tokens=False).tokens
    data = {t: {name: [*way(t)] for name, way in ways.items()} for t in texts}
    tables = [
        Table(_COLUMNS, [[name, len(cut), " ".join(cut)] for name, cut in cuts.items()], text)
        for text, cuts in data.items()
    ]
    return Page(get_text("words.words_cut"), [*tables, *notes], data)


@functools.cache  # The playground calls this repeatedly.
def _train_tokenizers() -> dict[str, Tokenizer]:
    """Train one tokenizer of every kind on the bundled texts.

    Returns a dict of kind -> tokenizer.
    """
    corpus = [next(read_blocks([sample_path(language)])) for language in SAMPLES]
    options = {"vocab_size": _VOCAB_SIZE, "progress": False}
    return {kind: Tokenizer.train(kind, texts=corpus, **options) for kind in Tokenizer.kinds}
