"""Sequence-to-sequence tasks: translation, summarization, and text-to-text with prefixes."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from trivium.data.batch import IGNORE_INDEX
from trivium.data.encoded import EncodedExamples, Sequences, Truncations
from trivium.data.records import (
    RECORD_SUFFIXES,
    Record,
    RecordOptions,
    json_type,
    read_header,
    read_records,
)
from trivium.data.schema import Fields, Schema, Slot, format_layout
from trivium.data.sources import file_format, list_sources
from trivium.errors import DataError, RecipeError
from trivium.files import open_text
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.objectives.conversations import append_input
from trivium.objectives.labelled import LabelledObjective
from trivium.objectives.task_metrics import Metrics, Mistake, read_prediction
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, token_losses
from trivium.text.symbols import LETTERS, is_cjk, is_unspaced

PAIR = Fields(
    "source target input?",
    (("source", "target"), ("source", "targets")),
    (
        ("src", "tgt"),
        *(("document", "summary"), ("article", "summary"), ("article", "highlights")),
        *(("dialogue", "summary"), ("text", "summary"), ("question", "answer")),
        *(("input", "output"), ("prompt", "response"), ("prompt", "completion")),
        *(("instruction", "output"), ("instruction", "output", "input"), ("0", "1")),
    ),
    both_in="translation",
)
_TARGET_LIMITS = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
}
_IF_DATA = (
    "give numbers in place of names (--set objective.source_field=0 --set objective.target_field=1)"
    "; a .tsv of source and target needs neither"
)


@dataclass(frozen=True, slots=True)
class SourceTarget:
    """A source text with its target texts.

    The model is trained on the first target. All targets are used as references for the metrics.
    `where` is the file and line of the example. If `reverse` is true, the source is the target in
    the file, and vice versa.
    """

    source: str
    targets: tuple[str, ...]
    where: str
    reverse: bool = False

    @property
    def group_key(self) -> str:
        """The key by which examples are grouped when splitting the data: the source in the file.

        Pairs with equal sources are in the same split. If `reverse` is true, the source in the file
        is the first target of the example. If models are trained for both directions, a pair is
        therefore in the same split for both.
        """
        return self.targets[0] if self.reverse else self.source


class SourceToTarget(LabelledObjective):
    """Base class of tasks in which an encoder-decoder reads a source x and generates a target y.

    L = - sum_t log P(y_t | y_1 ... y_(t-1), x)

        input_ids          the cat sleeps </s>
        decoder_input_ids  <s> le chat dort
        labels             le chat dort </s>

    Source: Vaswani et al. 2017, section 3, and section 5.4 for label smoothing; Raffel et al. 2019,
    section 2.4, for prefixes.
    """

    example_type: ClassVar[type | None] = SourceTarget
    supported_family: ClassVar[str | None] = "encoder-decoder"
    generates: ClassVar[bool] = True

    fields: ClassVar[Sequence[Slot]] = (PAIR,)
    source_field: str | int | None = Field(
        None,
        description="column of the source: its name, or its index from 0 in a table without a "
        "header; default: usual names such as source, target",
    )
    target_field: str | int | None = Field(
        None, description="column of the target; a list contains several references"
    )
    reverse: bool = Field(False, description="swap sources and targets")
    prefix: str = Field("", description='text before every source, such as "summarize: "')
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing in training")
    num_beams: int = Field(4, gt=0, description="number of beams in generation")
    length_penalty: float = Field(
        1.0, description="beam scores are divided by the length to this power"
    )

    def records(
        self, paths: Sequence[str], options: RecordOptions
    ) -> Iterator[Record | SourceTarget]:
        """Yield the examples of two parallel plain text files, or the records of other files.

        If a table has no header, its first two columns are the source and the target.

        Raises:
            DataError: with file and line, if a source or target is missing or blank.
        """
        sources = list_sources(paths, RECORD_SUFFIXES).sources
        files = [one.name for one in sources]
        formats = [file_format(one.name) for one in sources if one.kind == "file"]
        plain = sum(suffix not in RECORD_SUFFIXES for suffix in formats)
        if plain and len(files) != 2:
            raise DataError(
                f"{', '.join(files[:5])}: which lines belong together? Give two plain files, line "
                "by line source and target (--data text.en --data text.fr); or files with both, "
                ".tsv or .jsonl; or several [[mix]] sources."
            )
        if plain > 1:
            yield from map(self._apply_direction, _read_parallel(*files, options=options))
            return
        for file in files:
            header = self._choose_column_names(file, options.encoding)
            yield from read_records(file, dataclasses.replace(options, header=header))

    def read_example(self, record: Record) -> SourceTarget:
        """Read a source and its targets from a record.

        If `reverse` is set, the source and the first target are swapped.
        """
        source = append_input(record, record.text(record.columns["source"]))
        targets = _read_targets(record, record.columns["target"])
        return self._apply_direction(SourceTarget(source, targets, record.where))

    def _apply_direction(self, example: SourceTarget) -> SourceTarget:
        """Swap the source and the first target of an example if `reverse` is set."""
        if not self.reverse:
            return example
        return SourceTarget(example.targets[0], (example.source,), example.where, reverse=True)

    def _choose_column_names(self, path: str, encoding: str) -> list[str] | None:
        """Return the column names "0", "1", ... if a table has no header, otherwise None.

        It is assumed that there is no header if the recipe gives column indices, or if the first
        line of a .tsv file does not contain known column names.
        """
        cells = () if path.startswith("hf:") else read_header(path, encoding)
        fields = (self.source_field, self.target_field)
        numbered = any(
            isinstance(field, int) or (field and field.isdecimal() and field not in cells)
            for field in fields
        )
        if cells and file_format(path) == ".tsv" and fields == (None, None):
            numbered = not self.record_schema.fits(cells)
            if numbered and all(cell.isascii() and cell.isidentifier() for cell in cells):
                warnings.warn(
                    f"line 1 of {path} ({', '.join(cells)}) is read as an example; if it is a "
                    f"header, add --set objective.source_field={cells[0]}",
                    stacklevel=2,
                )
        return [str(i) for i in range(len(cells))] if cells and numbered else None

    @property
    def record_schema(self) -> Schema:
        """The columns of a record with a source and a target.

        In a table without a header, the columns are named "0", "1", ...
        """
        return dataclasses.replace(super().record_schema, if_data=_IF_DATA)

    def input_text(self, example: SourceTarget) -> str:
        """Return the source of an example."""
        return example.source

    def add_settings(self, settings: Settings, examples: Sequence[SourceTarget]) -> Settings:
        """Return the model settings with the prefix and the beam search options of this task.

        Length and n-gram limits that an earlier task has set are removed.
        """
        search = {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
        kept = {k: v for k, v in settings.generation.items() if k not in _TARGET_LIMITS}
        settings = settings.with_task(self.kind, prefix=self.prefix)
        return dataclasses.replace(settings, generation={**kept, **search})

    def encode(self, examples: Sequence[SourceTarget], lm: LanguageModel) -> EncodedExamples:
        """Encode each source, including the prefix, with its first target."""
        return encode_pairs(lm, [(self.prefix + one.source, one.targets[0]) for one in examples])

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the summed cross-entropy of the target tokens, in nats.

        Label smoothing is applied only during training.
        """
        smoothing = self.label_smoothing if model.training else 0.0
        return token_losses(model, batch, smoothing=smoothing)

    def source_texts(self, examples: Sequence[SourceTarget]) -> Iterator[str]:
        """Yield every source text with the task prefix prepended: the input of the encoder."""
        return (self.prefix + one.source for one in examples)

    def target_texts(self, examples: Sequence[SourceTarget]) -> Iterator[str]:
        """Yield every target text of the examples, including additional references."""
        return (target for one in examples for target in one.targets)

    def predict(self, lm: LanguageModel, examples: Sequence[SourceTarget]) -> list[str]:
        """Generate a text for each source with beam search."""
        # In a mixture, the settings of `lm` may be those of another source.
        lm = copy.copy(lm)
        lm.settings = self.add_settings(lm.settings, examples)
        with warnings.catch_warnings():  # at first, outputs often reach the maximum length
            warnings.simplefilter("ignore")
            return lm.translate([one.source for one in examples])

    def compute_metrics(
        self, predictions: Sequence[str], examples: Sequence[SourceTarget], lm: LanguageModel
    ) -> Metrics:
        """Return the metrics of the task, and the fraction of exact matches.

        A generated text is an exact match if it equals one of its targets.
        """
        metrics, scores = self.compute_text_metrics(predictions, [one.targets for one in examples])
        exact = [
            text.strip() in {target.strip() for target in one.targets}
            for text, one in zip(predictions, examples)
        ]
        values = {**metrics.values, "exact_match": sum(exact) / max(1, len(exact))}
        rows = [
            {"source": one.source, "target": one.targets[0], "predicted": text}
            for one, text in zip(examples, predictions)
        ]
        wrong = sorted((i for i, right in enumerate(exact) if not right), key=scores.__getitem__)
        mistakes = [
            Mistake(examples[i].where, examples[i].source, examples[i].targets[0], predictions[i])
            for i in wrong
        ]
        return dataclasses.replace(metrics, values=values).with_examples(rows, mistakes)

    def compute_text_metrics(
        self, predicted: Sequence[str], references: Sequence[Sequence[str]]
    ) -> tuple[Metrics, list[float]]:
        """Compute the metrics of the task, except exact match.

        Also returns one score per generated text. The wrong texts with the lowest scores are listed
        first.

        Args:
            predicted: the generated texts.
            references: one or more reference texts for each generated text.
        """
        return Metrics({}), [0.0] * len(predicted)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a `translate` command for a validation source text with the task prefix."""
        source = read_prediction(run).get("source", "a text of yours")
        return f"translate {run} {shlex.quote(lm.settings.task_prefixes[0] + source)}"


class Translation(SourceToTarget):
    """Machine translation (Vaswani et al. 2017), evaluated with BLEU and chrF from sacrebleu."""

    metric_libraries: ClassVar[Sequence[str]] = ("sacrebleu",)
    kind: Literal["translation"] = "translation"
    bleu_tokenizer: Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] = (
        Field("auto", description="sacrebleu's tokenizer; auto: zh, char or 13a, by the targets")
    )

    def compute_text_metrics(
        self, predicted: Sequence[str], references: Sequence[Sequence[str]]
    ) -> tuple[Metrics, list[float]]:
        """Compute BLEU (Papineni et al. 2002) and chrF2 (Popovic 2015).

        Also returns the chrF2 score of each text. All values are between 0 and 1.
        """
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        tokenizer = self.bleu_tokenizer
        if tokenizer == "auto":
            tokenizer = choose_bleu_tokenizer([one[0] for one in references])
        try:
            # With `force`, sacrebleu does not warn about texts that look tokenized.
            bleu = BLEU(tokenize=tokenizer, force=True)
        except RuntimeError as error:
            raise RecipeError(
                f'objective.bleu_tokenizer = "{tokenizer}" needs a dictionary: pip install '
                f"'sacrebleu[{tokenizer[:2]}]', or choose \"char\"."
            ) from error
        chrf = CHRF()
        # Stream i contains reference i of every text, or None if a text has fewer references.
        most = max(map(len, references))
        streams = [[one[i] if i < len(one) else None for one in references] for i in range(most)]
        values = {
            "bleu": bleu.corpus_score(predicted, streams).score / 100,  # type: ignore[arg-type]
            "chrf": chrf.corpus_score(predicted, streams).score / 100,  # type: ignore[arg-type]
        }
        signatures = f"BLEU {bleu.get_signature()}", f"chrF {chrf.get_signature()}"
        scores = [
            chrf.sentence_score(text, list(one)).score / 100
            for text, one in zip(predicted, references)
        ]
        return Metrics(values, notes=signatures), scores


class Summarization(SourceToTarget):
    """Abstractive summarization, evaluated with ROUGE (Lin 2004) from rouge_score."""

    metric_libraries: ClassVar[Sequence[str]] = ("rouge_score",)
    kind: Literal["summarization"] = "summarization"

    def compute_text_metrics(
        self, predicted: Sequence[str], references: Sequence[Sequence[str]]
    ) -> tuple[Metrics, list[float]]:
        """Compute the mean F1 of ROUGE-L, ROUGE-1, ROUGE-2 and ROUGE-Lsum.

        Also returns the ROUGE-L F1 of each text. If a text has several references, the best score
        is used.
        """
        from rouge_score.rouge_scorer import RougeScorer

        names = ("rouge_l", "rouge1", "rouge2", "rouge_lsum")
        kinds = ("rougeL", "rouge1", "rouge2", "rougeLsum")
        # The default tokenizer of rouge_score drops all letters except a to z.
        ascii_only = all(text.isascii() for one in references for text in one)
        scorer = RougeScorer(kinds, tokenizer=None if ascii_only else _UnicodeTokenizer())
        scores = [scorer.score_multi(one, text) for text, one in zip(predicted, references)]
        values = {
            name: float(sum(score[kind].fmeasure for score in scores)) / max(1, len(scores))
            for name, kind in zip(names, kinds)
        }
        note = english("note.rouge_ascii" if ascii_only else "note.rouge_any_script")
        return Metrics(values, notes=(note,)), [score["rougeL"].fmeasure for score in scores]


class TextToText(SourceToTarget):
    """Any task with text as input and output (Raffel et al. 2019), evaluated by exact match."""

    kind: Literal["text-to-text"] = "text-to-text"


class _UnicodeTokenizer:
    """A tokenizer for rouge_score that supports all scripts.

    Every Chinese or Japanese character is a word.
    """

    def tokenize(self, text: str) -> list[str]:
        """Split a text into lowercase words."""
        return LETTERS.findall(text.lower())


def choose_bleu_tokenizer(texts: Sequence[str]) -> Literal["13a", "zh", "char"]:
    r"""Choose the sacrebleu tokenizer for the language of the texts. Returns its name.

    The name is "zh" for Chinese, "char" for other scripts without spaces between words, and "13a"
    for all other scripts.

    >>> choose_bleu_tokenizer(["\u4f60\u597d"]), choose_bleu_tokenizer(["how are you"])
    ('zh', '13a')
    """
    letters = [letter for text in texts[:1000] for letter in text if letter.isalpha()]
    han = sum(map(is_cjk, letters))
    others = sum(map(is_unspaced, letters)) - han
    if others > 0.05 * len(letters):
        return "char"
    return "zh" if han > 0.3 * len(letters) else "13a"


def encode_pairs(lm: LanguageModel, pairs: Sequence[tuple[str, str]]) -> EncodedExamples:
    """Encode pairs (source, target) as training examples for an encoder-decoder."""
    rows, truncations = pair_rows(lm, pairs)
    return EncodedExamples.with_targets(rows, truncations, pad_id=lm.text_tokenizer.pad_id)


def pair_rows(lm: LanguageModel, pairs: Sequence[tuple[str, str]]) -> tuple[Sequences, Truncations]:
    """Encode pairs (source, target) as token ids and labels for an encoder-decoder.

    Sources get the special tokens of `lm.source_template`, and targets an end-of-text token. Texts
    longer than `lm.max_length` tokens are truncated at the end. A truncated target has no
    end-of-text token.

    Returns:
        The token ids and labels of all pairs, by field of `RowBatch`; and the truncation counts of
        every pair (see `EncodedExamples`).

    Raises:
        RecipeError: the tokenizer has no end-of-text token.
    """
    tokenizer, reader, limit = lm.text_tokenizer, lm.source_tokenizer, lm.max_length
    ends = (tokenizer.eos_id, *tokenizer.suffix_ids[-1:], *sorted(lm.settings.ids("eos_token_id")))
    end = next((token_id for token_id in ends if token_id is not None), None)
    if end is None:
        raise RecipeError(
            "this tokenizer has no token that ends a text, but targets need one: use a tokenizer "
            "with </s> or [SEP]."
        )
    rules = lm.generation_rules
    start = list(rules.target_start)
    template = lm.source_template
    source_limit = None if limit is None else max(1, limit - template.count_special(paired=False))
    target_limit = None if limit is None else max(1, limit - len(start))
    sources = reader.encode_ids_batch([source for source, _ in pairs])
    targets = tokenizer.encode_ids_batch([target for _, target in pairs])
    ended = [[*ids, end][:target_limit] for ids in targets]
    forced = [IGNORE_INDEX] * len(rules.forced_start)
    truncations = []
    for source, target, kept in zip(sources, targets, ended):
        target_cut = len(target) + 1 - len(kept)
        source_cut = 0 if source_limit is None else max(0, len(source) - source_limit)
        truncations.append((source_cut + target_cut, len(target) + 1, target_cut))
    rows = {
        "input_ids": [[*template.before, *ids[:source_limit], *template.after] for ids in sources],
        "decoder_input_ids": [[*start, *ids[:-1]] for ids in ended],
        "labels": [[*forced, *ids] for ids in ended],
    }
    return rows, truncations


def _read_targets(record: Record, column: str) -> tuple[str, ...]:
    """Read the targets from a column, which contains a text, a number, or a list of them.

    Raises DataError if there is no target.
    """
    value: Any = record.value_with_class_names(column)
    values = value if isinstance(value, list) else [value]
    for target in values or [None]:
        if json_type(target) not in ("a string", "a number"):
            raise DataError(f"{record.locate(column)} is {json_type(target)}: it needs a target.")
    return tuple(map(str, values))


def _read_parallel(src_path: str, tgt_path: str, options: RecordOptions) -> Iterator[SourceTarget]:
    """Yield a source-target pair for each line of two parallel text files.

    Lines that are blank in both files are skipped. Raises DataError if a line is blank or missing
    in only one of the files.
    """
    sources, targets = (_read_text_lines(src_path, options), _read_text_lines(tgt_path, options))
    if options.report is not None:
        options.report.add_layout(
            format_layout({"source": src_path, "target": tgt_path}, ()), src_path
        )
    rows = itertools.zip_longest(sources, targets, fillvalue="")
    for number, (source, target) in enumerate(rows, start=1):
        if bool(source.strip()) != bool(target.strip()):
            problem = (
                f"{src_path} has {len(sources)} lines and {tgt_path} has {len(targets)}; line by "
                f"line they are source and target, but {tgt_path if source.strip() else src_path}, "
                f"line {number} is blank or missing. Fill it in, or remove the line from both."
            )
            options.count_or_raise(DataError(problem))
        elif source.strip():
            yield SourceTarget(source, (target,), f"{src_path}, line {number}")


def _read_text_lines(path: str, options: RecordOptions) -> list[str]:
    """Read the lines of a text file. Blank lines at the end are dropped.

    Raises DataError if the file is empty.
    """
    with open_text(path, errors=options.errors, encoding=options.encoding) as file:
        lines = file.read().rstrip().split("\n")
    if not lines[-1]:
        raise DataError(f"{path} is empty: it contains no text.")
    return lines
