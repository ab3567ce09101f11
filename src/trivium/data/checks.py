"""What is often wrong with data, counted: in texts and in token shards.

Documents and lines are compared by 64-bit hashes: about 100 bytes of memory for each different one.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from trivium.data.documents import LONG_ADVICE, LONG_BYTES, join_texts, no_text
from trivium.data.shards import TRAIN, VALIDATION, Shards
from trivium.data.splitting import CorpusOptions, plan_corpus, text_digest
from trivium.errors import DataError, shorten
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
    """The result of a check: `count` of `total`.

    It is wrong where its share is above `limit`; `advice` is what to do. Without a limit it is
    never wrong, and `advice` says why.
    """

    check: str
    count: int
    total: int
    limit: float | None
    advice: str = ""
    samples: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The part of the total."""
        return self.count / self.total if self.total else 0.0

    @property
    def wrong(self) -> bool:
        """Whether something should be done."""
        return self.limit is not None and self.share > self.limit


def check_texts(
    paths: Sequence[str], options: CorpusOptions, tokenizer: Tokenizer | None = None
) -> list[Finding]:
    """Check raw text as `prepare` reads and splits it.

    Raises DataError where a path is missing, or no source can be read. One that cannot be read
    among others is a finding.
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
    count = 1 if plan.cut else documents.total
    single = "there is only one: its end is held out; is the separator right?"
    findings = [
        Finding("documents", count, count, None, single if count == 1 else ""),
        unreadable.finding("unreadable sources", len(plan.sources), 0, "mend or remove them"),
        encoding.finding(
            "documents in wrong encoding", documents.total, 0, "convert the file to UTF-8"
        ),
        documents.finding("repeated documents", None, "they are dropped"),
        headings.finding("repeated short lines", None, "headings and names repeat in good text"),
        lines.finding(
            f"repeated lines of {_LONG_LINE} characters", 0.1, "notices? clean the texts"
        ),
        *words.findings("is the separator right?"),
    ]
    marker, often = max(markers.items(), key=lambda item: item[1], default=("", 0))
    if often > 1 and marker not in options.separator:
        advice = f'where it ends a document, give --separator "{marker}"'
        findings.append(Finding("markers of a document's end", often, often, None, advice))
    if options.separator == "blank":
        long = f"documents of over {LONG_BYTES:,} bytes"
        findings.append(Finding(long, num_long, documents.total, None, LONG_ADVICE))
    if plan.wants_validation:
        findings.append(documents.overlap("validation documents in training", 0))
        findings.append(lines.overlap("validation lines in training", 0.1))
    return findings


def check_shards(shards: Shards, tokenizer: Tokenizer) -> list[Finding]:
    """Check token shards.

    Raises DataError where one has changed since it was prepared.
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
        documents.finding("repeated documents", None, "they differ in what the tokenizer loses"),
        *words.findings("was the separator right?"),
    ]
    if VALIDATION in shards.names:
        findings.append(documents.overlap("validation documents in training", 0))
    return findings


class Cases:
    """How many cases there are, and the first of them."""

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

    def finding(self, check: str, total: int, limit: float | None, advice: str) -> Finding:
        """The cases as the result of a check."""
        return Finding(check, self.count, total, limit, advice, tuple(self.samples))


class Repeats:
    """How often every document or line occurs in each split."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {TRAIN: Counter(), VALIDATION: Counter()}
        self._texts: dict[int, str] = {}

    def add(self, key: int, split: str, text: str) -> None:
        """Count a document or line, which its hash identifies."""
        counts = self._counts[split]
        counts[key] += 1
        if len(self._texts) < _KEPT_REPEATS and counts[key] == 2:
            self._texts[key] = sample_of(text)

    @property
    def total(self) -> int:
        """Documents or lines of both splits."""
        return sum(counts.total() for counts in self._counts.values())

    def finding(self, check: str, limit: float | None, advice: str) -> Finding:
        """What occurs again in its own split."""
        repeats = self.total - sum(len(counts) for counts in self._counts.values())
        often = {key: sum(one[key] for one in self._counts.values()) for key in self._texts}
        first = sorted(often, key=lambda key: -often[key])[:_NUM_SAMPLES]
        samples = tuple(f"{often[key]:,} x {self._texts[key]}" for key in first)
        return Finding(check, repeats, self.total, limit, advice, samples)

    def overlap(self, check: str, limit: float) -> Finding:
        """What of validation occurs in training."""
        train, heldout = self._counts[TRAIN], self._counts[VALIDATION]
        count = sum(number for key, number in heldout.items() if key in train)
        return Finding(check, count, heldout.total(), limit, "scores will be too good")


class Words:
    """How a tokenizer encodes texts; without one, how many of them are a single word."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._waiting: list[str] = []
        self.short = Cases()
        self.num_texts = 0
        self.counts = np.zeros(tokenizer.vocab_size if tokenizer else 0, dtype=np.int64)

    def add(self, text: str) -> None:
        """Count the tokens of a text, and whether it is a single one."""
        self.num_texts += 1
        if self._tokenizer is None:
            if _is_word(text):
                self.short.add(text)
            return
        self._waiting.append(text)
        if len(self._waiting) == _BATCH:
            self._encode(self._tokenizer)

    def count_tokens(self, texts: Sequence[str]) -> None:
        """Count tokens alone: targets of one word are nothing unusual."""
        if self._tokenizer is not None:
            for ids in self._tokenizer.encode_ids_batch(texts):
                self.counts += np.bincount(ids, minlength=len(self.counts))

    def _encode(self, tokenizer: Tokenizer) -> None:
        for text, ids in zip(self._waiting, tokenizer.encode_ids_batch(self._waiting)):
            self.counts += np.bincount(ids, minlength=len(self.counts))
            if len(ids) <= 1:
                self.short.add(text)
        self._waiting.clear()

    def findings(self, advice: str) -> list[Finding]:
        """Short texts, unknown tokens and tokens that are never used."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return [self.short.finding("texts of one word", self.num_texts, 0.01, advice)]
        self._encode(tokenizer)
        special = list(tokenizer.special_ids)
        unk_id = tokenizer.unk_id
        has_unknown = unk_id is not None and unk_id != tokenizer.eos_id  # GPT-2: one token for both
        unknown = int(self.counts[unk_id]) if has_unknown else 0
        self.counts[special] = 0
        total = int(self.counts.sum()) + unknown
        unused = int((self.counts == 0).sum()) - len(special)
        size = len(self.counts) - len(special)
        return [
            self.short.finding("texts of one token", self.num_texts, 0.01, advice),
            Finding("unknown tokens", unknown, total, 0.01, "train a tokenizer on these texts"),
            Finding("tokens never used", unused, size, 0.5, "a smaller vocabulary, or other texts"),
        ]


def _is_word(text: str) -> bool:
    """Whether a text is one word; that of a script without spaces is not, but for a character."""
    one = len(text) <= _LONGEST_WORD and len(text.split()) == 1
    return one and not any(map(is_unspaced, text.strip()[1:]))


def sample_of(text: str, limit: int = _SAMPLE_LENGTH) -> str:
    """The beginning of a text on one line."""
    return shorten(" ".join(text.split()), limit)
