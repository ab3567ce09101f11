"""Checks that count common problems of texts and of token shards.

Documents and lines are compared by 64-bit hashes, which take about 100 bytes of memory for each
different document or line.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from trivium.data.documents import LONG_BYTES, join_texts, no_text
from trivium.data.shards import TRAIN, VALIDATION, Shards
from trivium.data.splitting import CorpusOptions, plan_corpus, text_digest
from trivium.errors import DataError, shorten
from trivium.messages import english
from trivium.text import Tokenizer
from trivium.text.symbols import is_unspaced

MESSAGE_LENGTH = 500
_NUM_SAMPLES, _SAMPLE_LENGTH = 3, 80
_KEPT_REPEATS = 1000  # of which the most frequent ones are shown
_BATCH = 1000
_LONGEST_WORD = 20  # characters
_LONG_LINE = 40  # characters; shorter ones may be headings, which repeat in good text too
# U+FFFD, or UTF-8 that was read as Latin-1: capital A with tilde and a control character or sign.
_WRONG_CHARACTERS = re.compile("\ufffd|\u00c3[\u0080-\u00bf]|\u00e2\u20ac")
# What separates documents in published corpora.
_MARKER = re.compile(
    r"<\|(?:end_?of_?(?:text|document|doc)|eo[sdt]|end)\|>|</(?:s|doc)>|<eo[sd]>|\[(?:EOS|SEP)\]",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: `count` cases of `total`.

    Something is wrong if the share of cases is above `limit`; `advice` says what to do about it.
    Without a limit nothing is wrong, and `advice` says why the cases do no harm.
    """

    check: str
    count: int
    total: int
    limit: float | None
    advice: str = ""
    samples: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        check: str,
        count: int,
        total: int,
        limit: float | None,
        advice: str,
        samples: Sequence[str] = (),
        **values: object,
    ) -> Self:
        """Create a finding from identifiers.

        Args:
            check: a name in `[finding]` of the catalog.
            count: the cases.
            total: what they are cases of.
            limit: the share from which on the cases are wrong, or None.
            advice: a name in `[advice]`; empty: nothing is to be done.
            samples: some of the cases.
            values: those of both texts.
        """
        words = english(f"finding.{check}", **values)
        what_to_do = english(f"advice.{advice}", **values) if advice else ""
        return cls(words, count, total, limit, what_to_do, tuple(samples))

    @property
    def share(self) -> float:
        """The share of cases in the total."""
        return self.count / self.total if self.total else 0.0

    @property
    def wrong(self) -> bool:
        """Whether something should be done."""
        return self.limit is not None and self.share > self.limit


def check_texts(
    paths: Sequence[str], options: CorpusOptions, tokenizer: Tokenizer | None = None
) -> list[Finding]:
    """Check raw text as `prepare` reads and splits it.

    If only some sources cannot be read, this is a finding.

    Raises DataError if a path is missing, or if no source can be read.
    """
    options = dataclasses.replace(options, errors="replace")
    plan = plan_corpus(paths, options)
    documents, headings, lines = Repeats(), Repeats(), Repeats()
    unreadable, encoding, words = Cases(), Cases(), Words(tokenizer)
    markers: Counter[str] = Counter()
    num_long = 0
    for source in plan.sources:
        try:
            for text in join_texts(plan.read_parts(source, options)):
                digest = text_digest(text)
                split = plan.assign(source, digest)
                num_long += len(text.encode()) > LONG_BYTES
                documents.add(digest, split, text)
                markers.update(_MARKER.findall(text))
                for line in filter(None, map(str.strip, text.split("\n"))):
                    repeats = lines if len(line) >= _LONG_LINE else headings
                    repeats.add(hash(line), split, line)
                if match := _WRONG_CHARACTERS.search(text):
                    encoding.add(f"{source.name}: {text[max(0, match.start() - 20) :]}")
                words.add(text)
        except DataError as error:
            unreadable.add(str(error), MESSAGE_LENGTH)
    if not documents.total:
        raise DataError("\n".join(unreadable.samples) or str(no_text(plan.sources)))
    # The only document is read in two parts, of which the second is held out.
    count = words.num_texts = 1 if plan.cut else documents.total
    findings = [
        Finding.of("documents", count, count, None, "single_document" if count == 1 else ""),
        unreadable.finding("unreadable", len(plan.sources), 0, "remove"),
        encoding.finding("wrong_encoding", count, 0, "convert"),
        headings.finding("repeated_short_lines", None, "headings_repeat"),
        lines.finding("repeated_long_lines", 0.1, "clean", size=_LONG_LINE),
        *words.findings("separator"),
    ]
    if not plan.cut:
        findings.insert(3, documents.finding("repeated_documents", None, "dropped"))
    for marker, often in markers.most_common(1):
        if often > 1 and marker not in options.separator:
            advice = "separator_marker"
            findings.append(Finding.of("markers", often, often, None, advice, marker=marker))
    if options.separator == "blank" and not plan.cut:
        findings.append(
            Finding.of("long_documents", num_long, count, None, "separator_line", size=LONG_BYTES)
        )
    if VALIDATION in plan.names:
        findings.append(documents.overlap("documents_in_both", 0))
        findings.append(lines.overlap("lines_in_both", 0.1))
    return findings


def check_shards(shards: Shards, tokenizer: Tokenizer) -> list[Finding]:
    """Check token shards.

    Raises DataError if a shard has changed since it was prepared.
    """
    shards.verify()
    documents, words = Repeats(), Words(tokenizer)
    for name in shards.names:
        split = shards.split(name)
        special = len(split.prefix_ids) + len(split.suffix_ids)
        for number in range(split.num_documents):
            ids = split.document(number)
            documents.add(hash(ids.tobytes()), name, f"document {number} of {name}")
            if len(ids) <= special + 1:
                words.short.add(tokenizer.decode(ids))
        words.counts += split.counts()
        words.num_texts += split.num_documents
    findings = [
        documents.finding("repeated_documents", None, "same_tokens"),
        *words.findings("separator_of_shards"),
    ]
    if VALIDATION in shards.names:
        findings.append(documents.overlap("documents_in_both", 0))
    return findings


class Cases:
    """Counts cases, and keeps the first ones."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.count = 0
        self.samples: list[str] = []
        for text in texts:
            self.add(text)

    def add(self, text: str, limit: int = _SAMPLE_LENGTH) -> None:
        """Count a case."""
        self.count += 1
        if self.count <= _NUM_SAMPLES:
            self.samples.append(sample_of(text, limit))

    def finding(
        self, check: str, total: int, limit: float | None, advice: str, **values: object
    ) -> Finding:
        """Return the cases as the result of a check; see `Finding.of`."""
        return Finding.of(check, self.count, total, limit, advice, self.samples, **values)


class Repeats:
    """Counts how often every document or line occurs in each split."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {TRAIN: Counter(), VALIDATION: Counter()}
        self._texts: dict[int, str] = {}

    def add(self, key: int, split: str, text: str) -> None:
        """Count a document or line; `key` is its hash."""
        counts = self._counts[split]
        counts[key] += 1
        if len(self._texts) < _KEPT_REPEATS and counts[key] == 2:
            self._texts[key] = sample_of(text)

    @property
    def total(self) -> int:
        """The number of documents or lines in both splits."""
        return sum(counts.total() for counts in self._counts.values())

    def finding(self, check: str, limit: float | None, advice: str, **values: object) -> Finding:
        """Return what occurs again in its own split; see `Finding.of`."""
        repeats = self.total - sum(len(counts) for counts in self._counts.values())
        often = {key: sum(one[key] for one in self._counts.values()) for key in self._texts}
        first = sorted(often, key=lambda key: -often[key])[:_NUM_SAMPLES]
        samples = [f"{often[key]:,} x {self._texts[key]}" for key in first]
        return Finding.of(check, repeats, self.total, limit, advice, samples, **values)

    def overlap(self, check: str, limit: float) -> Finding:
        """Return how much of validation occurs in training, too; see `Finding.of`."""
        train, validation = self._counts[TRAIN], self._counts[VALIDATION]
        count = sum(number for key, number in validation.items() if key in train)
        return Finding.of(check, count, validation.total(), limit, "scores_too_good")


class Words:
    """Counts the tokens of texts; without a tokenizer, the texts of a single word."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._waiting: list[str] = []
        self.short = Cases()
        self.num_texts = 0
        self.counts = np.zeros(tokenizer.vocab_size if tokenizer else 0, dtype=np.int64)

    def add(self, text: str) -> None:
        """Count the tokens of a text, and whether it is a single one."""
        self.num_texts += 1
        self._waiting.append(text)
        if len(self._waiting) == _BATCH:
            self._count_waiting()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of texts, and return the number of tokens of each text.

        Targets are only counted here, because a target of one word is nothing unusual.
        """
        encoded = self._tokenizer.encode_ids_batch(texts) if self._tokenizer else []
        ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int64)
        self.counts += np.bincount(ids, minlength=len(self.counts))
        return [len(each) for each in encoded]

    def _count_waiting(self) -> None:
        texts, self._waiting = self._waiting, []
        is_short = (
            map(_is_word, texts)
            if self._tokenizer is None
            else [length <= 1 for length in self.count_tokens(texts)]
        )
        for text in itertools.compress(texts, is_short):
            self.short.add(text)

    def findings(self, advice: str) -> list[Finding]:
        """Return the findings on short texts, unknown tokens and tokens that are never used."""
        self._count_waiting()
        tokenizer = self._tokenizer
        if tokenizer is None:
            return [self.short.finding("one_word", self.num_texts, 0.01, advice)]
        special = list(tokenizer.special_ids)
        unk_id = tokenizer.unk_id
        has_unknown = unk_id is not None and unk_id != tokenizer.eos_id  # GPT-2: one token for both
        unknown = int(self.counts[unk_id]) if has_unknown else 0
        self.counts[special] = 0
        total = int(self.counts.sum()) + unknown
        unused = int((self.counts == 0).sum()) - len(special)
        size = len(self.counts) - len(special)
        return [
            self.short.finding("one_token", self.num_texts, 0.01, advice),
            Finding.of("unknown_tokens", unknown, total, 0.01, "train_tokenizer"),
            Finding.of("unused_tokens", unused, size, 0.5, "smaller_vocabulary"),
        ]


def _is_word(text: str) -> bool:
    """Return whether a text is one word.

    In a script without spaces only a single character counts as a word.
    """
    one = len(text) <= _LONGEST_WORD and len(text.split()) == 1
    return one and not any(map(is_unspaced, text.strip()[1:]))


def sample_of(text: str, limit: int = _SAMPLE_LENGTH) -> str:
    """Return the beginning of a text on one line."""
    return shorten(" ".join(text.split()), limit)
