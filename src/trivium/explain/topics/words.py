"""How hard words come apart: split at spaces, by the Penn Treebank's rules, by each tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trivium.data.samples import SAMPLES, sample
from trivium.explain.page import Bilingual, Page, Part, Table
from trivium.text import Tokenizer
from trivium.text.reservoir import read_blocks

SUMMARY = Bilingual("the same text under each tokenizer", "同一段文本在各种词元分析器下的切分")

_TEXTS = ["I don't know", "father-in-law", "Abwasserbehandlungsanlage", "我今天去了商店。"]
_VOCAB_SIZE = 6000
_TRAINED = Bilingual(
    f"The tokenizers are trained for this page, each with {_VOCAB_SIZE} tokens, on a page of the "
    "bundled English and Chinese articles; --tokenizer takes yours, of a run or a file. ▁ is a "
    "space, \\xe6 a byte that is no whole character.",
    f"这些词元分析器是为本页临时训练的：词表大小 {_VOCAB_SIZE}，语料是随附的中英文文章的开头部分；"
    "用 --tokenizer 可换成自己的文件或训练目录。▁ 表示空格，\\xe6 之类是不成完整字符的字节。",
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
    ways: dict[str, Callable[[str], Sequence[str]]] = {"text.split()": str.split}
    treebank = _treebank()
    if treebank is not None:
        ways["Penn Treebank"] = treebank
    if tokenizer:
        tokenizers = {str(path): Tokenizer.load(path) for path in tokenizer}
    else:
        corpus = [next(read_blocks([sample(language)])) for language in SAMPLES]
        tokenizers = {
            kind: Tokenizer.train(kind, texts=corpus, vocab_size=_VOCAB_SIZE, progress=False)
            for kind in Tokenizer.kinds
        }
    for name, one in tokenizers.items():
        ways[name] = lambda text, one=one: one.encode(text, add_special_tokens=False).tokens
    columns = [
        Bilingual("way", "方法"),
        Bilingual("number", "词元数"),
        Bilingual("tokens", "词元"),
    ]
    parts, facts = list[Part](), {}
    for text in texts or _TEXTS:
        facts[text] = {name: [*split(text)] for name, split in ways.items()}
        rows = [[name, len(tokens), " ".join(tokens)] for name, tokens in facts[text].items()]
        parts.append(Table(columns, rows, text))
    notes = [*([] if tokenizer else [_TRAINED]), *([] if treebank else [_MISSING])]
    return Page(Bilingual("Where words are cut", "词在哪里切开"), [*parts, *notes], facts)


def _treebank() -> Callable[[str], Sequence[str]] | None:
    """The tokenizer of the Penn Treebank, which needs no data; None without nltk."""
    try:
        from nltk.tokenize.treebank import TreebankWordTokenizer
    except ModuleNotFoundError:
        return None
    return TreebankWordTokenizer().tokenize
