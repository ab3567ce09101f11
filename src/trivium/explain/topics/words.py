"""How hard words come apart: split at spaces, by the Penn Treebank's rules, by each tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from trivium.data.samples import SAMPLES, sample
from trivium.explain.page import Bilingual, Page, Table
from trivium.explain.tokens import texts_or_default
from trivium.text import Tokenizer
from trivium.text.reservoir import read_blocks

SUMMARY = Bilingual("the same text under each tokenizer", "同一段文本在各种词元分析器下的切分")

_TEXTS = ["I don't know", "father-in-law", "Abwasserbehandlungsanlage", "我今天去了商店。"]
_VOCAB_SIZE = 6000
_COLUMNS = [Bilingual("way", "方法"), Bilingual("number", "词元数"), Bilingual("tokens", "词元")]
_TRAINED = Bilingual(
    f"The tokenizers are trained for this page, each with {_VOCAB_SIZE} tokens, on the beginning "
    "of the bundled English and Chinese articles; --tokenizer takes yours. ▁ is a space.",
    f"这些词元分析器是为本页临时训练的：词表大小 {_VOCAB_SIZE}，语料是随附的中英文文章的开头部分；"
    "用 --tokenizer 可换成自己的。▁ 表示空格。",
)
_MISSING = Bilingual(
    "The Penn Treebank's rules need nltk: pip install nltk.",
    "宾州树库（Penn Treebank）的切分规则需要 nltk：pip install nltk。",
)


def explain(texts: list[str] | None = None, *, tokenizer: list[Path] | None = None) -> Page:
    """Split texts at spaces, by rules, and by tokenizers of every kind.

    Args:
        texts: Texts or words. Default: don't, father-in-law, Abwasserbehandlungsanlage, and a
            sentence in Chinese.
        tokenizer: A file, or the folder of a run, in place of those trained on bundled text;
            repeatable.
    """
    texts = texts_or_default(texts, _TEXTS)
    ways: dict[str, Callable[[str], Iterable[str]]] = {"text.split()": str.split}
    notes = [] if tokenizer else [_TRAINED]
    try:
        from nltk.tokenize.treebank import TreebankWordTokenizer

        ways["Penn Treebank"] = TreebankWordTokenizer().tokenize
    except ModuleNotFoundError:
        notes.append(_MISSING)
    tokenizers = {str(path): Tokenizer.load(path) for path in tokenizer or ()}
    for name, one in (tokenizers or _trained()).items():
        ways[name] = lambda text, one=one: one.encode(text, add_special_tokens=False).tokens
    facts = {t: {name: [*way(t)] for name, way in ways.items()} for t in texts}
    tables = [
        Table(_COLUMNS, [[name, len(cut), " ".join(cut)] for name, cut in cuts.items()], text)
        for text, cuts in facts.items()
    ]
    return Page(Bilingual("Where words are cut", "词在哪里切开"), [*tables, *notes], facts)


@functools.cache  # The playground asks again and again.
def _trained() -> dict[str, Tokenizer]:
    """A tokenizer of every kind."""
    corpus = [next(read_blocks([sample(language)])) for language in SAMPLES]
    options = {"vocab_size": _VOCAB_SIZE, "progress": False}
    return {kind: Tokenizer.train(kind, texts=corpus, **options) for kind in Tokenizer.kinds}
