"""Cleaning raw text as the papers of large models describe it, by the rules of `datatrove`.

Language, quality rules (Gopher: Rae et al. 2021, table A1; C4: Raffel et al. 2019, section 2.2;
FineWeb: Penedo et al. 2024, section 3.6) and near-duplicates by MinHash (Broder 1997; 14 buckets of
8 hashes of 5-grams as FineWeb). The rules' numbers are for English web pages: of other languages
those that depend on English are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from trivium.config import option
from trivium.data.documents import Document, ReadOptions, read_documents
from trivium.data.sources import Paths
from trivium.errors import DataError, did_you_mean, require_extra, shorten
from trivium.files import replace_folder, write_json
from trivium.messages import english
from trivium.text.symbols import WORD

RULES = ("gopher-repetition", "gopher", "c4", "fineweb")
REPORT = "report.json"
_NUM_SAMPLES = 5
REMOVED_LINES = "c4: lines"
# What C4's rules take out of lines that stay.
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_FILE_BYTES = 1 << 28
_BATCH = 64
_BATCHES_AT_ONCE = 64
_LANGUAGE_CHARACTERS = 2000
# Macrolanguages of ISO 639 and their languages that py3langid tells apart, mostly by chance.
_MACROLANGUAGES = {"ar": ("ary", "arz"), "ms": ("id",), "no": ("nn",), "zh": ("wuu", "yue")}
_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class CleanOptions(ReadOptions):
    """How texts are read and cleaned.

    The code of a macrolanguage of ISO 639 keeps all of its languages: "zh" also "yue". To know
    near-duplicates takes about a kilobyte of memory for every document that is kept.
    """

    language: str = option("en", "the language to keep (ISO 639), several as de,fr, or any")
    near_duplicates: bool = option(True, "drop what nearly repeats an earlier document (MinHash)")
    rules: tuple[str, ...] = option(RULES, "which of the rules to apply")
    processes: int = option(1, "processes that apply the rules")

    def __post_init__(self) -> None:
        ReadOptions.__post_init__(self)
        for rule in self.rules:
            if rule not in RULES:
                raise DataError(
                    f'there is no rule "{rule}"; there are {", ".join(RULES)}.'
                    f"{did_you_mean(rule, RULES)}"
                )


@dataclasses.dataclass
class CleanReport:
    """What was read and kept, and what every step dropped: by "step: reason", with samples.

    `removed_lines` are those that the rules of C4 take out of documents that are kept, with samples
    under "c4: lines".
    """

    documents: int = 0
    kept: int = 0
    characters: int = 0
    kept_characters: int = 0
    removed_lines: int = 0
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    samples: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def most_common(self) -> list[tuple[str, int]]:
        """What was dropped, the most first."""
        return sorted(self.dropped.items(), key=lambda item: -item[1])

    def drop(self, why: str, text: str) -> None:
        """Count a document that is dropped."""
        self.dropped[why] = self.dropped.get(why, 0) + 1
        self._add_sample(why, text)

    def keep(self, text: str, cleaned: str) -> None:
        """Count a document that is kept, and the lines that were taken out of it."""
        self.kept += 1
        self.kept_characters += len(cleaned)
        self.removed_lines += text.count("\n") - cleaned.count("\n")
        if len(self.samples.get(REMOVED_LINES, ())) < _NUM_SAMPLES:
            kept = {line.strip() for line in cleaned.split("\n")}
            for line in map(str.strip, _CITATION.sub("", text).split("\n")):
                if line and line not in kept:
                    self._add_sample(REMOVED_LINES, line)

    def _add_sample(self, why: str, text: str) -> None:
        samples = self.samples.setdefault(why, [])
        if len(samples) < _NUM_SAMPLES:
            samples.append(shorten(" ".join(text.split()), 200))


@dataclasses.dataclass(frozen=True, slots=True)
class _Verdict:
    """A document's text where it is kept, why it is dropped, and its MinHash of every bucket."""

    text: str
    why: str = ""
    buckets: tuple[int, ...] = ()


def clean(
    paths: Paths,
    out: str | Path,
    options: CleanOptions = CleanOptions(),
    *,
    overwrite: bool = False,
    progress: Callable[[CleanReport], None] | None = None,
) -> CleanReport:
    """Write the documents to keep to `out` as JSON lines, with a `report.json`.

    Args:
        paths: Sources as `read_documents` takes them.
        out: The folder to make: `00000.jsonl` and so on, in the order of the sources.
        options: How texts are read and which steps are taken.
        overwrite: Replace what an earlier call wrote to `out`.
        progress: Called after every few thousand documents.

    Raises:
        DataError: A source that cannot be read, an `out` that holds something else, or nothing to
            keep.
        MissingExtraError: Without the extra "clean".
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()) and not (overwrite and (out / REPORT).is_file()):
        raise DataError(f"{out} is not empty: choose another --out, or --overwrite earlier output.")
    _rules(options)  # an optional part that is missing is an error before anything is read
    report, seen, number = CleanReport(), set[int](), 0
    with replace_folder(out) as folder:
        for document, verdict in _judged(read_documents(paths, options), options):
            report.documents += 1
            report.characters += len(document.text)
            if verdict.why:
                report.drop(verdict.why, document.text)
            elif not seen.isdisjoint(verdict.buckets):
                report.drop(english("reason.near_duplicate"), document.text)
            else:
                record = {"text": verdict.text, "source": document.source}
                # In files of a bounded size, so that parts of the corpus can be prepared apart.
                with (folder / f"{number:05}.jsonl").open("ab") as file:
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
                    number += file.tell() > _FILE_BYTES
                report.keep(document.text, verdict.text)
            seen.update(verdict.buckets)
            if progress is not None and not report.documents % (_BATCH * _BATCHES_AT_ONCE):
                progress(report)
        if not report.kept:
            raise DataError(
                f"none of {report.documents:,} documents is kept; dropped: "
                f"{', '.join(f'{why} ({n:,})' for why, n in report.most_common()[:3])}. The rules "
                "are for web pages: choose some by --rule, or --rule none; or another --language. "
                f'Dropped first: "{shorten(next(iter(report.samples.values()))[0])}"'
            )
        write_json(folder / REPORT, dataclasses.asdict(report))
    return report


def _judged(
    documents: Iterator[Document], options: CleanOptions
) -> Iterator[tuple[Document, _Verdict]]:
    """Documents with their verdicts, in order."""
    judge = functools.partial(_judge, options=options)
    if options.processes == 1:
        for document in documents:
            yield document, judge(document.text)
        return
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        while some := list(itertools.islice(documents, _BATCH * _BATCHES_AT_ONCE)):
            texts = (document.text for document in some)
            yield from zip(some, pool.map(judge, texts, chunksize=_BATCH))


def _judge(text: str, options: CleanOptions) -> _Verdict:
    """What follows from a document alone."""
    import py3langid
    from datatrove.data import Document as WebDocument

    filters, minhash = _rules(options)
    if options.language != "any":
        language = py3langid.classify(text[:_LANGUAGE_CHARACTERS])[0]
        codes = options.language.split(",")
        if language not in codes and not any(language in _MACROLANGUAGES.get(c, ()) for c in codes):
            return _Verdict("", f"language: {language}")
    document = WebDocument(text=text, id="")
    for name, rule in filters.items():
        passed = rule.filter(document)
        if passed is not True:
            return _Verdict("", f"{name}: {passed[1].removeprefix('gopher_').replace('_', ' ')}")
    buckets: tuple[int, ...] = ()
    if minhash is not None:
        shingles = minhash.get_shingles(document.text)
        if len(shingles):
            signature = enumerate(minhash.get_signature(shingles))
            buckets = tuple(hash((number, *hashes)) for number, hashes in signature)
    return _Verdict(document.text, "", buckets)


@functools.cache
def _rules(options: CleanOptions) -> tuple[dict[str, Any], Any]:
    """The quality rules by name and the MinHash, made once in every process.

    Raises MissingExtraError.
    """
    with require_extra("Cleaning", "clean"):
        import datatrove.pipeline.dedup.minhash
        import datatrove.pipeline.filters
        import datatrove.utils.hashing
        import datatrove.utils.word_tokenizers
        import py3langid  # noqa: F401

    class Words(datatrove.utils.word_tokenizers.WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return WORD.findall(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return [part for part in _SENTENCE_END.split(text) if part]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            ends = [match.start() for match in _SENTENCE_END.finditer(text)]
            return list(itertools.pairwise(sorted({0, *ends, len(text)})))

    words: Any = Words()
    rules: Any = datatrove.pipeline.filters
    all_filters = {
        "gopher-repetition": rules.GopherRepetitionFilter(language=words),
        "gopher": rules.GopherQualityFilter(language=words),
        "c4": rules.C4QualityFilter(language=words),
        "fineweb": rules.FineWebQualityFilter(language=words),
    }
    if options.language != "en":  # without English stop words, lengths of words and full stops
        limits = dict.fromkeys(("min_avg_word_length", "max_avg_word_length", "min_stop_words"))
        all_filters["gopher"] = rules.GopherQualityFilter(language=words, **limits)
        del all_filters["c4"]
    filters = {name: rule for name, rule in all_filters.items() if name in options.rules}
    if not options.near_duplicates:
        return filters, None
    minhash: Any = datatrove.pipeline.dedup.minhash
    config = minhash.MinhashConfig(hash_config=datatrove.utils.hashing.HashConfig(hash_fc="sha1"))
    return filters, minhash.MinhashDedupSignature("memory://", config, language=words)
