"""Token classification: predicting a tag for every word, such as an entity or a part of speech."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch.nn import functional as F

from trivium.data.batch import IGNORE_INDEX
from trivium.data.encoded import EncodedExamples
from trivium.data.records import RECORD_SUFFIXES, Record, RecordOptions, json_type, read_records
from trivium.data.schema import Fields, Slot, format_layout
from trivium.data.sources import file_format, list_sources
from trivium.data.stored_examples import read_field
from trivium.errors import DataError, did_you_mean, shorten
from trivium.files import open_text
from trivium.inference.tag import TaggedWord, find_words
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.objectives.labelled import column_key
from trivium.objectives.task_heads import SingleStackTask, build_tagger_head
from trivium.objectives.task_metrics import (
    Metrics,
    Mistake,
    compute_class_metrics,
    find_label_id,
    find_unknown_labels,
    get_label_scores,
    read_prediction,
)
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden
from trivium.text.inputs import encode_words, join_words
from trivium.text.symbols import UNSPACED

# CoNLL-2003 contains entity tags and part-of-speech tags.
_TAGS = (("tags",), ("labels", "ner_tags"), ("pos_tags", "upos"))
_WORDS_AND_TAGS = Fields(
    "words tags",
    *([(words, tags) for tags in several] for several in _TAGS for words in ("words", "tokens")),
)
_SPANS = ("entities", "spans", "ents", "annotations", "label", "labels")
_TEXTS = ("text", "sentence", "content")
_TEXT_AND_SPANS = Fields("text spans", *([(text, s)] for s in _SPANS for text in _TEXTS))
# The keys of a span, as doccano, spaCy, Label Studio, Prodigy and transformers name them.
_START = ("start", "start_offset", "start_char", "begin")
_END = ("end", "end_offset", "end_char", "stop")
_LABEL = ("label", "labels", "type", "entity_group", "entity_type", "entity", "tag", "category")
COLUMN_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".txt", ".tsv")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# CoNLL-U's ranges of multiword tokens (1-2) and empty nodes (1.1) are not words.
_NO_WORD = re.compile(r"\d+[-.]\d+")
_LONGER_WORD = re.compile(UNSPACED.pattern * 2)
# The number of sentences in which the layout of a column file is detected.
_PROBED = 10_000
_CHUNK_TAG = re.compile(r"O|[BIESLUMW]([-_].+)?")
# The BIOES prefixes for those of BILOU (last, unit), BMES (middle) and BMEWO (whole).
_BIOES = {"L": "E", "U": "S", "M": "I", "W": "S"}
_WORD_HEADERS = {"word", "words", "token", "tokens", "form", "text"}
_TAG_HEADERS = {
    *("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "pos_tags"),
    *("upos", "xpos", "chunk", "chunk_tag", "entity", "entities", "bio", "iob"),
}


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence with one tag per word.

    `where` is the file and line of the sentence. For a sentence from a column file, `lines`
    contains the line number of each word.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str
    lines: tuple[int, ...] = ()

    @property
    def group_key(self) -> str:
        """The key by which sentences are grouped when splitting the data: all words as one text.

        Duplicate sentences are therefore in the same split (training or validation).
        """
        return " ".join(self.words)

    def locate_word(self, index: int) -> str:
        """Return the file and line of a word, for messages.

        `index` is the index of the word in the sentence, from 0.
        """
        if not self.lines:
            return f"{self.where}, word {index + 1}"
        return f"{self.where.rpartition(', line ')[0]}, line {self.lines[index]}"


class Tagging(SingleStackTask):
    """Token classification: predict the tag of a word from the hidden state of its first token.

    L = - sum over words of log P(tag | text)

        input_ids  [CLS]  Ada    Love   ##lace  wrote  [SEP]
        tags              B-PER  I-PER          O
        labels     -100   1      2      -100    0      -100

    Source: Devlin et al. 2018, section 5.3.
    """

    metric_libraries: ClassVar[Sequence[str]] = ("seqeval", "sklearn")
    example_type: ClassVar[type | None] = TaggedSentence
    kind: Literal["tagging"] = "tagging"
    inputs: ClassVar[Sequence[Fields]] = (Fields("words", ("words", "tokens")),)
    fields: ClassVar[Sequence[Slot]] = (("words and tags", (_WORDS_AND_TAGS, _TEXT_AND_SPANS)),)
    column: int | str | None = Field(
        None,
        description="tag column of a column file: its index from 0 (negative: from the end) or a "
        "name of CoNLL-U; default: upos in CoNLL-U, 2 if words are numbered, otherwise the column "
        "that a header names, or the last column",
    )
    word_column: int | None = Field(
        None,
        description="word column of a column file; default: the column that a header names, or the "
        "first column",
    )
    words_field: str | None = column_key("list of words in a record", _WORDS_AND_TAGS)
    tags_field: str | None = column_key("list of tags in a record", _WORDS_AND_TAGS, "tags")
    text_field: str | None = column_key("text of a record with spans", _TEXT_AND_SPANS)
    spans_field: str | None = column_key(
        "list of spans of a text, with character offsets", _TEXT_AND_SPANS, "spans"
    )
    repair_iob: bool = Field(True, description="convert IOB1 to IOB2: every chunk starts with B-")

    def records(
        self, paths: Sequence[str], options: RecordOptions
    ) -> Iterator[Record | TaggedSentence]:
        """Yield the sentences of column files (CoNLL, IOB2, CoNLL-U), or records of other files.

        A record contains a list of words and a list of tags, or a text and a list of spans.

        Raises:
            DataError: with file and line, for a row with a different number of columns, a missing
                column, or a word without a tag.
        """
        record_suffixes = {*RECORD_SUFFIXES} - {*COLUMN_SUFFIXES}
        for source in list_sources(paths, (*COLUMN_SUFFIXES, *record_suffixes)).sources:
            suffix = file_format(source.name)
            if source.kind == "file" and suffix == ".csv":
                raise DataError(
                    f"{source.name}: tagging reads columns separated by tabs or spaces, a word and "
                    f"its tags per line ({' '.join(COLUMN_SUFFIXES)}), or records with a list of "
                    "words and one of tags (.jsonl, .json, .parquet), not .csv."
                )
            if source.kind == "file" and suffix not in record_suffixes:
                yield from self._read_sentences(source.name, options)
            else:
                yield from read_records(source.name, options)

    def read_example(self, record: Record) -> TaggedSentence:
        """Read the words of a sentence and their tags from a record.

        IOB1 tags are not converted yet (see `repair_iob`). Raises DataError if the numbers of words
        and tags differ.
        """
        if "spans" in record.columns:
            return _read_spans(record)
        words, tags = (_read_strings(record, record.columns[name]) for name in ("words", "tags"))
        if len(words) != len(tags) or not words:
            raise DataError(
                f"{record.where} has {len(words)} words and {len(tags)} tags; every word has one "
                "tag."
            )
        return TaggedSentence(words, tags, record.where)

    def read_unlabelled(self, record: Record, lm: LanguageModel) -> TaggedSentence:
        """Read the words of a sentence from a record, without tags.

        Raises DataError if there are no words.
        """
        words = _read_strings(record, record.columns["words"])
        if not words:
            raise DataError(f"{record.where} has no words. Fill them in, or remove the record.")
        return TaggedSentence(words, (), record.where)

    def to_columns(
        self, prediction: Sequence[TaggedWord], *, in_cell: bool = False
    ) -> tuple[Any, ...]:
        """Return the predicted tags of a sentence, and the lowest of their probabilities."""
        return [word.tag for word in prediction], min(word.score for word in prediction)

    def _repair_tags(
        self, examples: Sequence[TaggedSentence], known_tags: Iterable[str]
    ) -> Sequence[TaggedSentence]:
        """Repair chunk tags so that every chunk starts with a start tag, such as "B-" in IOB2.

        The tags are returned unchanged if `repair_iob` is false, or if some of the known tags are
        not chunk tags.

        Args:
            examples: the sentences.
            known_tags: all labels of the model or all tags of the data. The tags of a single
                sentence would not be enough to detect the tagging scheme.
        """
        repair = self._choose_repair(known_tags)
        return [dataclasses.replace(one, tags=repair(one.tags)) for one in examples]

    def _choose_repair(
        self, known_tags: Iterable[str]
    ) -> Callable[[Sequence[str]], tuple[str, ...]]:
        """Return the function that repairs the tags of a sentence (see `_repair_tags`)."""
        known_tags = set(known_tags)
        if not (self.repair_iob and are_chunk_tags(known_tags)):
            return tuple
        single = "W" if any(name.startswith("W") for name in known_tags) else "S"
        return partial(to_iob2, single=single)

    def labels_by_example(self, examples: Sequence[TaggedSentence]) -> Iterator[Sequence[str]]:
        """Yield the distinct tags of every sentence, to stratify the validation split."""
        return (sorted({*one.tags}) for one in examples)

    def _read_sentences(self, path: str, options: RecordOptions) -> Iterator[TaggedSentence]:
        """Yield the sentences of a column file.

        A header, numbered words, and the columns of words and tags are detected in the first
        10,000 sentences. Raises DataError if the file has no sentence, or if a word or a tag is
        missing.
        """
        all_sentences = read_column_file(path, options)
        sentences = list(itertools.islice(all_sentences, _PROBED))
        if not sentences:
            raise DataError(f"{path} contains no sentence.")
        head = sentences[0][0][1]
        named = [
            [index for index, cell in enumerate(head) if cell.lower() in names]
            for names in (_WORD_HEADERS, _TAG_HEADERS)
        ]
        has_header = all(named)
        if has_header:
            del sentences[0][0]
        width = len(head)
        numbered = width > 2 and all(map(_has_word_numbers, sentences[:100]))
        usual = (named[0][0], named[1][-1]) if has_header else (1, 2) if numbered else (0, -1)
        word, tag = self._choose_columns(path, width, usual, numbered and width == len(CONLLU))
        if options.report is not None:
            others = [str(index) for index in range(width) if index not in (word, tag)]
            read = {"words": str(word), "tags": str(tag)}
            options.report.add_layout(format_layout(read, others), path)
        missing = ("", "_") if numbered and tag in (3, 4) else ("",)  # of upos and xpos
        # A header in another language is detected if all other cells of its column are chunk tags.
        others = {cells[tag] for rows in sentences for _, cells in rows if cells is not head}
        if head[tag].isalpha() and not head[tag].isupper() and not has_header:
            has_header = head[tag] not in others and are_chunk_tags(others)
            sentences[0] = sentences[0][has_header:]
        if has_header:
            shown = ", ".join(head)
            warnings.warn(f"{path}: the first line ({shown}) is read as a header.", stacklevel=2)
        for rows in itertools.chain(sentences, all_sentences):
            rows = [row for row in rows if not (numbered and _NO_WORD.fullmatch(row[1][0]))]
            with options.skip_invalid_records():
                for number, cells in rows:
                    if not cells[word] or cells[tag].strip() in missing:
                        what = f'tag of "{cells[word]}" is' if cells[word] else "word is"
                        raise DataError(f"{path}, line {number}: the {what} missing. Fill it in.")
                if rows:
                    yield TaggedSentence(
                        tuple(cells[word] for _, cells in rows),
                        tuple(cells[tag].strip() for _, cells in rows),
                        f"{path}, line {rows[0][0]}",
                        tuple(number for number, _ in rows),
                    )

    def _choose_columns(
        self, path: str, num_columns: int, default_columns: tuple[int, int], is_conllu: bool
    ) -> tuple[int, int]:
        """Choose the word column and the tag column of a column file. Returns their indices from 0.

        Args:
            path: the path of the file, for messages.
            num_columns: the number of columns.
            default_columns: the columns of words and tags to use if the recipe does not set them.
            is_conllu: whether the file is in CoNLL-U format.

        Raises:
            DataError: a column does not exist, or both columns are the same.
        """
        word = default_columns[0] if self.word_column is None else self.word_column
        tag = self.column
        if tag is None:
            tag = "upos" if is_conllu else default_columns[1]
        if isinstance(tag, str):
            if tag not in CONLLU or not is_conllu:
                raise DataError(
                    f'{path} has no column "{tag}"; it has {num_columns} columns: give the number '
                    f"of one (--set objective.column=N). Columns of CoNLL-U: {', '.join(CONLLU)}."
                    f"{did_you_mean(tag, CONLLU)}"
                )
            tag = CONLLU.index(tag)
        inside = -num_columns <= word < num_columns and -num_columns <= tag < num_columns
        if not inside or word % num_columns == tag % num_columns:
            raise DataError(
                f"{path} has {num_columns} columns, 0 to {num_columns - 1}: the word cannot be in "
                f"column {word} and its tag in column {tag}. A line is a word and its tag, "
                "separated by a tab or a space; choose others with --set objective.column=N "
                "objective.word_column=N."
            )
        return word % num_columns, tag % num_columns

    def label_names(self, examples: Sequence[TaggedSentence]) -> tuple[str, ...]:
        """Return all tags of the examples, "O" first.

        If the tags are chunk tags, "I-X" is included for every "B-X", even if no example contains
        "I-X".
        """
        # The repair of a tag depends only on the tag before. "O" stands for none.
        pairs = {pair for tags in read_field(examples, "tags") for pair in zip(("O", *tags), tags)}
        repair = self._choose_repair(tag for _, tag in pairs)
        names = {repair(pair)[1] for pair in pairs}
        if are_chunk_tags(names):
            inside = "M" if any(name.startswith("M") for name in names) else "I"
            names |= {inside + name[1:] for name in names if name.startswith("B")} | {"O"}
        return tuple(sorted(names, key=lambda name: (name != "O", name)))

    def add_settings(self, settings: Settings, examples: Sequence[TaggedSentence]) -> Settings:
        """Return the model settings with the tags and the option `longer_words`.

        The option is true if some Chinese or Japanese words in the examples have several
        characters.
        """
        words = itertools.chain.from_iterable(read_field(examples, "words"))
        longer = any(map(_LONGER_WORD.match, words))
        settings = settings.with_labels(self.label_names(examples))
        return settings.with_task("tagging", longer_words=longer)

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return one token classification head.

        Raises RecipeError if the objective does not support the model.
        """
        self.require_fit(spec)
        return (build_tagger_head(spec, len(labels)),)

    def encode(self, examples: Sequence[TaggedSentence], lm: LanguageModel) -> EncodedExamples:
        """Encode sentences as token ids, with a label at the first token of every word.

        A long sentence is split into several rows.
        """
        examples = self._repair_tags(examples, lm.settings.labels)
        known = {name: i for i, name in enumerate(lm.settings.labels)}
        ids = [
            [find_label_id(tag, known, one.locate_word(i)) for i, tag in enumerate(one.tags)]
            for one in examples
        ]
        tokenizer, words = lm.source_tokenizer, [one.words for one in examples]
        encoded = encode_words(tokenizer, words, max_length=lm.max_length)
        rows, types, labels = [], [], []
        for tags, parts in zip(ids, encoded):
            for part in parts:
                row = [IGNORE_INDEX] * len(part.ids)
                # If several words share a token, the token has the tag of the first word.
                for token, tag in zip(part.first_tokens, tags[part.start : part.stop]):
                    row[token] = tag if row[token] == IGNORE_INDEX else row[token]
                rows.append(part.ids)
                types.append(part.type_ids)
                labels.append(row)
        sequences = {"input_ids": rows, "labels": labels}
        if lm.spec.num_token_types > 1:
            sequences["token_type_ids"] = types
        truncations = [
            (sum(part.cut for part in parts), len(tags), 0) for tags, parts in zip(ids, encoded)
        ]
        return EncodedExamples(sequences, truncations=truncations, pad_id=tokenizer.pad_id)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the summed cross-entropy of the tags of all words, in nats."""
        hidden, terms = forward_hidden(model, batch.inputs, gather_positions=batch.label_positions)
        logits = model.logits(hidden, head="tagger").float()
        total = F.cross_entropy(logits, batch.targets, reduction="sum")
        return {"loss": total, **terms}

    def source_texts(self, examples: Sequence[TaggedSentence]) -> Iterator[str]:
        """Yield the input texts of the encoder: the words of each sentence joined into a text."""
        return (join_words(one.words)[0] for one in examples)

    def predict(
        self, lm: LanguageModel, examples: Sequence[TaggedSentence]
    ) -> list[list[TaggedWord]]:
        """Predict the tags of all words with `lm.tag`."""
        return lm.tag([list(one.words) for one in examples])

    def compute_metrics(
        self,
        predictions: list[list[TaggedWord]],
        examples: Sequence[TaggedSentence],
        lm: LanguageModel,
    ) -> Metrics:
        """Return the F1 of chunks (seqeval), or the accuracy and F1 of tags.

        Chunks are scored if all tags are chunk tags.
        """
        names = lm.settings.labels
        examples = self._repair_tags(examples, names)
        chunks = are_chunk_tags(names)
        more, notes = find_unknown_labels([one.tags for one in examples], names)
        names = (*names, *more)
        gold = [list(one.tags) for one in examples]
        predicted = [[word.tag for word in sentence] for sentence in predictions]
        if chunks:
            metrics = score_chunks(gold, predicted)
        else:
            right, answered = (
                [names.index(tag) for tags in each for tag in tags] for each in (gold, predicted)
            )
            metrics = compute_class_metrics(right, answered, names)
        mistakes = (
            Mistake(one.locate_word(i), word, tag, answer.tag, answer.score)
            for one, sentence in zip(examples, predictions)
            for i, (word, tag, answer) in enumerate(zip(one.words, one.tags, sentence))
            if tag != answer.tag
        )
        rows = (
            {"words": list(one.words), "tags": right, "predicted": tags}
            for one, right, tags in zip(examples, gold, predicted)
        )
        return dataclasses.replace(metrics, notes=notes).with_examples(rows, mistakes)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a `tag` command with the words of a validation sentence."""
        words = read_prediction(run).get("words", ["Ada", "Lovelace", "lived", "in", "London"])
        return f"tag {run} {shlex.quote(' '.join(words))}"


def read_column_file(path: str, options: RecordOptions) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield the sentences of a column file, each as a list of rows (line number, cells).

    Cells are separated by tabs if the first row contains a tab, otherwise by spaces. A blank line
    ends a sentence. `-DOCSTART-` lines and comments ("# ...") are skipped.

    Raises:
        DataError: the number of cells in a row differs from that in the first row.
    """
    separator, width, first = "", 0, 0
    with open_text(path, errors=options.errors, encoding=options.encoding) as file:
        numbered = enumerate((line.removesuffix("\n") for line in file), start=1)
        for is_boundary, lines in itertools.groupby(numbered, lambda row: _is_boundary(row[1])):
            if is_boundary:
                continue
            with options.skip_invalid_records():
                rows: list[tuple[int, list[str]]] = []
                for number, line in lines:
                    comment = line.startswith("# ")
                    if not width and not comment:
                        separator = "\t" if "\t" in line else " "
                    # Not split(): other white space, such as the ideographic space, can be a word.
                    cells = line.split(separator or " ")
                    if separator != "\t":
                        cells = [cell for part in cells for cell in part.split("\t") if cell]
                    if comment and (separator == "\t" or len(cells) != width):
                        continue
                    width, first = width or len(cells), first or number
                    if len(cells) != width:
                        raise DataError(
                            f"{path}, line {number} has {len(cells)} column"
                            f"{'s' * (len(cells) > 1)}, line {first} has {width}: "
                            f'"{shorten(line)}". A line is a word and its tags, separated by '
                            f"{'tabs' if separator == chr(9) else 'spaces'}; a blank line ends a "
                            "sentence."
                        )
                    rows.append((number, cells))
                if rows:
                    yield rows


def _is_boundary(line: str) -> bool:
    """Return whether a line of a column file is blank or marks the start of a document."""
    return not line.strip(" \t") or line.startswith("-DOCSTART-")


def are_chunk_tags(tags: Iterable[str]) -> bool:
    """Return whether all tags mark chunks in the scheme IOB, BIOES, BILOU, BMES or BMEWO.

    A chunk tag is "O", or a prefix (B, I, M, E, L, S, U, W) with or without a chunk type.

    >>> are_chunk_tags(["O", "B-PER", "I-PER"]), are_chunk_tags(["NOUN", "VERB"])
    (True, False)
    """
    names = set(tags)
    has_start = any(name[:1] in ("B", "I", "S", "U", "W") for name in names)
    return has_start and all(_CHUNK_TAG.fullmatch(name) for name in names)


def to_iob2(tags: Sequence[str], single: str = "S") -> tuple[str, ...]:
    """Repair the chunk tags of a sentence so that every chunk starts with B (or S, U, W).

    An I or M that follows O or a tag of another type becomes B. In the same situation, an E becomes
    `single`, the scheme's tag for a chunk of one word (S or W), and an L becomes U.

    >>> to_iob2(["I-PER", "I-PER", "O", "B-LOC", "I-PER"])
    ('B-PER', 'I-PER', 'O', 'B-LOC', 'B-PER')
    """
    opening = {"I": "B", "M": "B", "E": single, "L": "U"}
    repaired = []
    open_type: str | None = None
    for tag in tags:
        mark, chunk_type = tag[:1], tag[1:]
        if open_type != chunk_type:
            mark = opening.get(mark, mark)
        repaired.append(mark + chunk_type)
        open_type = chunk_type if mark in ("B", "I", "M") else None
    return tuple(repaired)


def score_chunks(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Metrics:
    """Compute precision, recall and F1 of chunks with seqeval, as in conlleval.

    `gold` and `predicted` contain the chunk tags of every sentence.
    """
    from seqeval.metrics import sequence_labeling

    seqeval: Any = sequence_labeling  # its stubs declare numbers as str
    right, answers = ([[*map(_to_bioes, tags)] for tags in side] for side in (gold, predicted))
    types = sorted({kind for side in (right, answers) for kind, _, _ in seqeval.get_entities(side)})
    report = {}
    if types:
        report = seqeval.classification_report(right, answers, output_dict=True, zero_division=0)
    none = {"precision": 0.0, "recall": 0.0, "f1-score": 0.0}
    micro, macro = report.get("micro avg", none), report.get("macro avg", none)
    values = {
        "f1": float(micro["f1-score"]),
        "precision": float(micro["precision"]),
        "recall": float(micro["recall"]),
        "macro_f1": float(macro["f1-score"]),
        "accuracy": float(seqeval.accuracy_score(right, answers)),
    }
    return Metrics(values, by_label=get_label_scores(report, types))


def _to_bioes(tag: str) -> str:
    """Convert a chunk tag to the BIOES scheme, with a hyphen before the type, for seqeval.

    >>> [_to_bioes(tag) for tag in ("O", "M", "U-PER", "B_DRUG_NAME")]
    ['O', 'I', 'S-PER', 'B-DRUG_NAME']
    """
    return "-".join(filter(None, (_BIOES.get(tag[0], tag[0]), tag[2:])))


def _read_spans(record: Record) -> TaggedSentence:
    """Read a text with labelled spans from a record, and convert the spans to IOB2 tags of words.

    A span that starts or ends inside a word is extended to the whole word. Spans outside the text,
    and spans that overlap an earlier span, are skipped. The numbers of extended and skipped spans
    are reported.
    """
    text, name = record.text(record.columns["text"]), record.columns["spans"]
    values = record.value_with_class_names(name) or []
    if isinstance(values, dict) and all(isinstance(one, list) for one in values.values()):
        values = [
            dict(zip(values, row)) for row in itertools.zip_longest(*values.values())
        ]  # the format of `datasets`
    if not isinstance(values, list):
        raise DataError(f'"{name}" of {record.where} is {json_type(values)}, not a list of spans.')
    spans = sorted(_parse_span(value, f'"{name}" of {record.where}') for value in values)
    words = find_words(text)
    tags = ["O"] * len(words)
    for start, end, label in spans:
        inside = [i for i, word in enumerate(words) if word.start < end and word.end > start]
        if not 0 <= start < end <= len(text) or not inside:
            record.count_in_report("data.spans_outside")
            continue
        if any(tags[i] != "O" for i in inside):
            record.count_in_report("data.spans_overlap")
            continue
        if text[start:end].strip() != text[words[inside[0]].start : words[inside[-1]].end]:
            record.count_in_report("data.spans_inside_words")
        for i in inside:
            tags[i] = f"{'B' if i == inside[0] else 'I'}-{label}"
    return TaggedSentence(tuple(word.text for word in words), tuple(tags), record.where)


def _parse_span(value: Any, location: str) -> tuple[int, int, str]:
    """Parse a span, given as a list [start, end, label] or as an object with such keys.

    Returns the character offsets of start and end, and the label. Raises DataError for any other
    format.
    """
    parts: list[Any] = value if isinstance(value, list) else []
    if isinstance(value, dict):
        parts = [
            next((value[k] for k in keys if k in value), None) for keys in (_START, _END, _LABEL)
        ]
    if len(parts) == 3 and isinstance(parts[2], list) and len(parts[2]) == 1:
        parts[2] = parts[2][0]
    types = [type(part) for part in parts]
    if types not in ([int, int, str], [int, int, int]) or not str(parts[2]).strip():
        raise DataError(
            f"{location}: {shorten(repr(value), 80)} is not a span. A span is [start, end, label], "
            'or an object such as {"start": 0, "end": 4, "label": "PER"}.'
        )
    return parts[0], parts[1], str(parts[2]).strip()


def _has_word_numbers(rows: list[tuple[int, list[str]]]) -> bool:
    """Return whether the first column numbers the words of a sentence, from 0 or 1.

    `rows` are pairs (line number, cells).
    """
    counts = [cells[0] for _, cells in rows if not _NO_WORD.fullmatch(cells[0])]
    first = 0 if counts[:1] == ["0"] else 1
    return counts == [str(number) for number in range(first, first + len(counts))]


def _read_strings(record: Record, column: str) -> tuple[str, ...]:
    """Read a list of strings from a column of a record. Integers are converted to strings.

    Raises DataError for any other value.
    """
    values = record.value_with_class_names(column)
    if not isinstance(values, list):
        raise DataError(f'"{column}" of {record.where} is {json_type(values)}, not a list.')
    for number, value in enumerate(values, start=1):
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise DataError(f'item {number} of "{column}" of {record.where} is {json_type(value)}.')
    return tuple(map(str, values))
