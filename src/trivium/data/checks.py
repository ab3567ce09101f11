"""Checks of texts and token shards for common problems, such as duplicates or a wrong encoding.

Documents and lines are compared by their 64-bit hashes. The checks need about 100 bytes of memory
per distinct document or line.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from trivium.data.documents import LONG_BYTES, join_texts, make_no_text_error
from trivium.data.shards import TRAIN, VALIDATION, Shards
from trivium.data.splitting import CorpusOptions, hash_text, plan_corpus
from trivium.errors import DataError, shorten
from trivium.messages import english
from trivium.text import Tokenizer
from trivium.text.symbols import is_unspaced

MESSAGE_LENGTH = 500
_NUM_SAMPLES, _SAMPLE_LENGTH = 3, 80
_MAX_REPEATS = 1000  # repeated texts that are kept; the most frequent ones are printed
_BATCH = 1000
_MAX_WORD_LENGTH = 20  # characters
_LONG_LINE = 40  # characters; shorter lines may be headings, which are repeated in good text, too
# U+FFFD, or typical character pairs of UTF-8 text that was decoded as Latin-1.
_WRONG_CHARACTERS = re.compile("\ufffd|\u00c3[\u0080-\u00bf]|\u00e2\u20ac")
# Document separators in published corpora.
_MARKER = re.compile(
    r"<\|(?:end_?of_?(?:text|document|doc)|eo[sdt]|end)\|>|</(?:s|doc)>|<eo[sd]>|\[(?:EOS|SEP)\]",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, for example that 3 of 100 documents are duplicates.

    A check looks for items with a certain property, and finds it in `count` of `total` items. If
    the fraction count / total is above `limit`, there is a problem, and `advice` says how to fix
    it. If `limit` is None, the finding is never a problem, and `advice` explains why. `samples` are
    examples of items with the property.
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
        """Create a finding with texts from the message catalog.

        Args:
            check: the name of a message in the section `[finding]` of the catalog.
            count: the number of items with the property that the check looks for.
            total: the number of all items.
            limit: the fraction above which there is a problem; None if there never is.
            advice: the name of a message in the section `[advice]`; empty for no advice.
            samples: examples of items with the property.
            values: the values to insert into both messages.
        """
        words = english(f"finding.{check}", **values)
        what_to_do = english(f"advice.{advice}", **values) if advice else ""
        return cls(words, count, total, limit, what_to_do, tuple(samples))

    @property
    def share(self) -> float:
        """The fraction of items that have the property, count / total."""
        return self.count / self.total if self.total else 0.0

    @property
    def wrong(self) -> bool:
        """Whether there is a problem to fix, because `share` is above `limit`."""
        return self.limit is not None and self.share > self.limit


def check_texts(
    paths: Sequence[str], options: CorpusOptions, tokenizer: Tokenizer | None = None
) -> list[Finding]:
    """Check raw texts for problems. Returns one finding per check.

    The texts are read and split as in `prepare`. Sources that cannot be read become a finding.

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
                digest = hash_text(text)
                split = plan.assign_split(source, digest)
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
        raise DataError("\n".join(unreadable.samples) or str(make_no_text_error(plan.sources)))
    # A single document is read as two parts, for training and validation.
    count = words.num_texts = 1 if plan.cut else documents.total
    findings = [
        Finding.of("documents", count, count, None, "single_document" if count == 1 else ""),
        unreadable.to_finding("unreadable", len(plan.sources), 0, "remove"),
        encoding.to_finding("wrong_encoding", count, 0, "convert"),
        headings.to_finding("repeated_short_lines", None, "headings_repeat"),
        lines.to_finding("repeated_long_lines", 0.1, "clean", size=_LONG_LINE),
        *words.to_findings("separator"),
    ]
    if not plan.cut:
        findings.insert(3, documents.to_finding("repeated_documents", None, "dropped"))
    for marker, times in markers.most_common(1):
        if times > 1 and marker not in options.separator:
            advice = "separator_marker"
            findings.append(Finding.of("markers", times, times, None, advice, marker=marker))
    if options.separator == "blank" and not plan.cut:
        findings.append(
            Finding.of("long_documents", num_long, count, None, "separator_line", size=LONG_BYTES)
        )
    if VALIDATION in plan.names:
        findings.append(documents.to_overlap_finding("documents_in_both", 0))
        findings.append(lines.to_overlap_finding("lines_in_both", 0.1))
    return findings


def check_shards(shards: Shards, tokenizer: Tokenizer) -> list[Finding]:
    """Check the documents and tokens of token shards. Returns one finding per check.

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
        documents.to_finding("repeated_documents", None, "same_tokens"),
        *words.to_findings("separator_of_shards"),
    ]
    if VALIDATION in shards.names:
        findings.append(documents.to_overlap_finding("documents_in_both", 0))
    return findings


class Cases:
    """Counts texts that have a certain problem, and keeps the first few texts as samples."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.count = 0
        self.samples: list[str] = []
        for text in texts:
            self.add(text)

    def add(self, text: str, limit: int = _SAMPLE_LENGTH) -> None:
        """Count a text. The first few texts are kept as samples of at most `limit` characters."""
        self.count += 1
        if self.count <= _NUM_SAMPLES:
            self.samples.append(shorten_sample(text, limit))

    def to_finding(
        self, check: str, total: int, limit: float | None, advice: str, **values: object
    ) -> Finding:
        """Create a finding from the count and the samples.

        The arguments are those of `Finding.of`.
        """
        return Finding.of(check, self.count, total, limit, advice, self.samples, **values)


class Repeats:
    """Counts how often each document or line occurs in each split, to find duplicates."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {TRAIN: Counter(), VALIDATION: Counter()}
        self._texts: dict[int, str] = {}

    def add(self, key: int, split: str, text: str) -> None:
        """Count one occurrence of a document or line in a split. `key` is the hash of `text`."""
        counts = self._counts[split]
        counts[key] += 1
        if len(self._texts) < _MAX_REPEATS and counts[key] == 2:
            self._texts[key] = shorten_sample(text)

    @property
    def total(self) -> int:
        """The total number of documents or lines in both splits, including duplicates."""
        return sum(counts.total() for counts in self._counts.values())

    def to_finding(self, check: str, limit: float | None, advice: str, **values: object) -> Finding:
        """Create a finding about duplicates within each split.

        The samples are the most frequent duplicates, with their counts. The arguments are those of
        `Finding.of`.
        """
        repeats = self.total - sum(len(counts) for counts in self._counts.values())
        frequency = {key: sum(one[key] for one in self._counts.values()) for key in self._texts}
        first = sorted(frequency, key=lambda key: -frequency[key])[:_NUM_SAMPLES]
        samples = [f"{frequency[key]:,} x {self._texts[key]}" for key in first]
        return Finding.of(check, repeats, self.total, limit, advice, samples, **values)

    def to_overlap_finding(self, check: str, limit: float) -> Finding:
        """Create a finding about validation documents (or lines) that also occur in training."""
        train, validation = self._counts[TRAIN], self._counts[VALIDATION]
        count = sum(number for key, number in validation.items() if key in train)
        return Finding.of(check, count, validation.total(), limit, "scores_too_good")


class Words:
    """Counts the tokens in texts, and the texts that consist of a single token.

    Without a tokenizer, it counts only the texts that consist of a single word.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._pending: list[str] = []
        self.short = Cases()
        self.num_texts = 0
        self.counts = np.zeros(tokenizer.vocab_size if tokenizer else 0, dtype=np.int64)

    def add(self, text: str) -> None:
        """Add the tokens of a text to the token counts.

        If the text is a single token (or word), it is also added to `short`.
        """
        self.num_texts += 1
        self._pending.append(text)
        if len(self._pending) == _BATCH:
            self._count_pending()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Add the tokens of texts to the token counts. Returns the number of tokens in each text.

        Unlike `add`, this method does not update the number of single-token texts, since target
        texts are often single words. Returns [] if there is no tokenizer.
        """
        encoded = self._tokenizer.encode_ids_batch(texts) if self._tokenizer else []
        ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int64)
        self.counts += np.bincount(ids, minlength=len(self.counts))
        return [len(each) for each in encoded]

    def _count_pending(self) -> None:
        """Tokenize the texts that `add` has collected, and update all counts."""
        texts, self._pending = self._pending, []
        is_short = (
            map(_is_single_word, texts)
            if self._tokenizer is None
            else [length <= 1 for length in self.count_tokens(texts)]
        )
        for text in itertools.compress(texts, is_short):
            self.short.add(text)

    def to_findings(self, advice: str) -> list[Finding]:
        """Create findings about single-token texts, unknown tokens and unused vocabulary entries.

        `advice` names the advice for single-token texts. Without a tokenizer, there is only a
        finding about single-word texts.
        """
        self._count_pending()
        tokenizer = self._tokenizer
        if tokenizer is None:
            return [self.short.to_finding("one_word", self.num_texts, 0.01, advice)]
        special = list(tokenizer.special_ids)
        unk_id = tokenizer.unk_id
        # GPT-2 uses one token as both unk and eos.
        has_unknown = unk_id is not None and unk_id != tokenizer.eos_id
        unknown = int(self.counts[unk_id]) if has_unknown else 0
        self.counts[special] = 0
        total = int(self.counts.sum()) + unknown
        unused = int((self.counts == 0).sum()) - len(special)
        size = len(self.counts) - len(special)
        return [
            self.short.to_finding("one_token", self.num_texts, 0.01, advice),
            Finding.of("unknown_tokens", unknown, total, 0.01, "train_tokenizer"),
            Finding.of("unused_tokens", unused, size, 0.5, "smaller_vocabulary"),
        ]


def _is_single_word(text: str) -> bool:
    """Return whether a text is a single word.

    In a script that is written without spaces, only a single character counts as a word.
    """
    is_word = len(text) <= _MAX_WORD_LENGTH and len(text.split()) == 1
    return is_word and not any(map(is_unspaced, text.strip()[1:]))


def shorten_sample(text: str, limit: int = _SAMPLE_LENGTH) -> str:
    """Return the beginning of a text on one line, with at most `limit` characters."""
    return shorten(" ".join(text.split()), limit)
