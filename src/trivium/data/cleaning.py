"""Cleaning of raw text with published quality filters for web pages (from `datatrove`).

The steps are language identification, quality filters (Gopher: Rae et al. 2021, table A1; C4:
Raffel et al. 2019, section 2.2; FineWeb: Penedo et al. 2024, section 3.6) and removal of
near-duplicates by MinHash (Broder 1997; 14 buckets of 8 hashes of 5-grams, as in FineWeb). The
thresholds were chosen for English web pages. For other languages, filters that depend on English
are not applied.
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
# Text that the C4 filter removes from within kept lines.
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_FILE_BYTES = 1 << 28
_BATCH = 64
_BATCHES_AT_ONCE = 64
_LANGUAGE_CHARACTERS = 2000
# ISO 639 macrolanguages. py3langid distinguishes their languages, but not reliably.
_MACROLANGUAGES = {"ar": ("ary", "arz"), "ms": ("id",), "no": ("nn",), "zh": ("wuu", "yue")}
_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class CleanOptions(ReadOptions):
    """Options for reading and cleaning texts.

    If `language` is the ISO 639 code of a macrolanguage, its member languages are kept, too. For
    example, "zh" also keeps documents in "yue". The detection of near-duplicates needs about one
    kilobyte of memory per kept document.
    """

    language: str = option("en", "the language to keep (ISO 639 code), several as de,fr, or any")
    near_duplicates: bool = option(True, "drop near-duplicates of earlier documents (MinHash)")
    rules: tuple[str, ...] = option(RULES, "the quality rules to apply")
    processes: int = option(1, "the number of processes that apply the rules")

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
    """The statistics of a cleaning run: how many documents were kept and dropped, and why.

    Args:
        documents: the number of documents read.
        kept: the number of documents kept.
        characters: the number of characters read.
        kept_characters: the number of characters kept.
        removed_lines: the number of lines that the C4 filter removed from kept documents.
        dropped: for each reason, such as "gopher: short document", the number of documents dropped.
        samples: for each reason, the beginnings of some dropped documents. The key "c4: lines" has
            samples of removed lines.
    """

    documents: int = 0
    kept: int = 0
    characters: int = 0
    kept_characters: int = 0
    removed_lines: int = 0
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    samples: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def most_common(self) -> list[tuple[str, int]]:
        """Return pairs (reason, number of dropped documents), the most frequent reason first."""
        return sorted(self.dropped.items(), key=lambda item: -item[1])

    def count_dropped(self, reason: str, text: str) -> None:
        """Count a dropped document under `reason`, and keep a sample of its text."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self._add_sample(reason, text)

    def count_kept(self, text: str, cleaned: str) -> None:
        """Count a kept document, and the lines that were removed from it.

        `text` is the original text, and `cleaned` is the text without these lines.
        """
        self.kept += 1
        self.kept_characters += len(cleaned)
        self.removed_lines += text.count("\n") - cleaned.count("\n")
        if len(self.samples.get(REMOVED_LINES, ())) < _NUM_SAMPLES:
            kept = {line.strip() for line in cleaned.split("\n")}
            for line in map(str.strip, _CITATION.sub("", text).split("\n")):
                if line and line not in kept:
                    self._add_sample(REMOVED_LINES, line)

    def _add_sample(self, reason: str, text: str) -> None:
        """Store the beginning of a text as a sample if `reason` has fewer than `_NUM_SAMPLES`."""
        samples = self.samples.setdefault(reason, [])
        if len(samples) < _NUM_SAMPLES:
            samples.append(shorten(" ".join(text.split()), 200))


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of cleaning one document.

    Args:
        text: the cleaned text; empty if the document is dropped.
        reason: the reason for dropping the document; empty if it is kept.
        buckets: one MinHash value per bucket. Documents that share a value are near-duplicates.
    """

    text: str
    reason: str = ""
    buckets: tuple[int, ...] = ()


def clean(
    paths: Paths,
    out: str | Path,
    options: CleanOptions = CleanOptions(),
    *,
    overwrite: bool = False,
    progress: Callable[[CleanReport], None] | None = None,
) -> CleanReport:
    """Clean documents, and write the kept documents to the folder `out` as JSON lines.

    The folder also gets a `report.json`, which contains the returned report.

    Args:
        paths: the sources, as for `read_documents`.
        out: the folder to create. Its files `00000.jsonl`, ... keep the order of the sources.
        options: the options for reading and cleaning.
        overwrite: whether to replace the output of an earlier call in `out`.
        progress: a function that is called with the current report after every few thousand
            documents.

    Raises:
        DataError: a source cannot be read, `out` contains other files, or no document is kept.
        MissingExtraError: the extra "clean" is not installed.
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()) and not (overwrite and (out / REPORT).is_file()):
        raise DataError(f"{out} is not empty: choose another --out, or --overwrite earlier output.")
    _build_filters(options)  # raise MissingExtraError before anything is read
    report, seen, number = CleanReport(), set[int](), 0
    with replace_folder(out) as folder:
        for document, outcome in _clean_documents(read_documents(paths, options), options):
            report.documents += 1
            report.characters += len(document.text)
            if outcome.reason:
                report.count_dropped(outcome.reason, document.text)
            elif not seen.isdisjoint(outcome.buckets):
                report.count_dropped(english("reason.near_duplicate"), document.text)
            else:
                record = {"text": outcome.text, "source": document.source}
                # Files have a limited size, so that several jobs can each prepare some of them.
                with (folder / f"{number:05}.jsonl").open("ab") as file:
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
                    number += file.tell() > _FILE_BYTES
                report.count_kept(document.text, outcome.text)
            seen.update(outcome.buckets)
            if progress is not None and not report.documents % (_BATCH * _BATCHES_AT_ONCE):
                progress(report)
        if not report.kept:
            raise DataError(
                f"none of {report.documents:,} documents is kept; dropped: "
                f"{', '.join(f'{k} ({n:,})' for k, n in report.most_common()[:3])}. The rules "
                "are for web pages: choose some by --rule, or --rule none; or another --language. "
                f'Dropped first: "{shorten(next(iter(report.samples.values()))[0])}"'
            )
        write_json(folder / REPORT, dataclasses.asdict(report))
    return report


def _clean_documents(
    documents: Iterator[Document], options: CleanOptions
) -> Iterator[tuple[Document, _Outcome]]:
    """Clean documents, in several processes if `options.processes` is greater than 1.

    Yields pairs (document, outcome), in the order of the documents. Near-duplicates are not dropped
    yet.
    """
    clean_one = functools.partial(_clean_document, options=options)
    if options.processes == 1:
        for document in documents:
            yield document, clean_one(document.text)
        return
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        while batch := list(itertools.islice(documents, _BATCH * _BATCHES_AT_ONCE)):
            texts = (document.text for document in batch)
            yield from zip(batch, pool.map(clean_one, texts, chunksize=_BATCH))


def _clean_document(text: str, options: CleanOptions) -> _Outcome:
    """Apply language identification and quality filters to a document, and compute MinHash values.

    `clean` compares the MinHash values with those of earlier documents to find near-duplicates.
    """
    import py3langid
    from datatrove.data import Document as WebDocument

    filters, minhash = _build_filters(options)
    if options.language != "any":
        language = py3langid.classify(text[:_LANGUAGE_CHARACTERS])[0]
        codes = options.language.split(",")
        if language not in codes and not any(language in _MACROLANGUAGES.get(c, ()) for c in codes):
            return _Outcome("", f"language: {language}")
    document = WebDocument(text=text, id="")
    for name, rule in filters.items():
        passed = rule.filter(document)
        if passed is not True:
            return _Outcome("", f"{name}: {passed[1].removeprefix('gopher_').replace('_', ' ')}")
    buckets: tuple[int, ...] = ()
    if minhash is not None:
        shingles = minhash.get_shingles(document.text)
        if len(shingles):
            signature = enumerate(minhash.get_signature(shingles))
            buckets = tuple(hash((number, *hashes)) for number, hashes in signature)
    return _Outcome(document.text, "", buckets)


@functools.cache
def _build_filters(options: CleanOptions) -> tuple[dict[str, Any], Any]:
    """Build the quality filters and the MinHash step of `datatrove` that the options select.

    The result is cached, so that they are built once per process.

    Returns a pair: the filters by name, and the MinHash step, which is None if near-duplicates are
    kept.

    Raises MissingExtraError if the extra "clean" is not installed.
    """
    with require_extra("Cleaning", "clean"):
        import datatrove.pipeline.dedup.minhash
        import datatrove.pipeline.filters
        import datatrove.utils.hashing
        import datatrove.utils.word_tokenizers
        import py3langid  # noqa: F401

    class Words(datatrove.utils.word_tokenizers.WordTokenizer):
        """A word and sentence splitter for datatrove that supports Chinese and Japanese."""

        def word_tokenize(self, text: str) -> list[str]:
            """Split a text into words."""
            return WORD.findall(text)

        def sent_tokenize(self, text: str) -> list[str]:
            """Split a text into sentences."""
            return [part for part in _SENTENCE_END.split(text) if part]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            """Return the (start, end) character offsets of sentences."""
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
    if options.language != "en":  # no limits on word length, no English stop words, no C4
        limits = dict.fromkeys(("min_avg_word_length", "max_avg_word_length", "min_stop_words"))
        all_filters["gopher"] = rules.GopherQualityFilter(language=words, **limits)
        del all_filters["c4"]
    filters = {name: rule for name, rule in all_filters.items() if name in options.rules}
    if not options.near_duplicates:
        return filters, None
    minhash: Any = datatrove.pipeline.dedup.minhash
    config = minhash.MinhashConfig(hash_config=datatrove.utils.hashing.HashConfig(hash_fc="sha1"))
    return filters, minhash.MinhashDedupSignature("memory://", config, language=words)
