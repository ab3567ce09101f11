"""Checks for common problems in labelled examples (`trivium check`)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from trivium.data.checks import MESSAGE_LENGTH, Cases, Finding, Repeats, Words, shorten_sample
from trivium.data.records import BadRecords, ReadReport, RecordOptions
from trivium.data.shards import TRAIN, VALIDATION
from trivium.objectives.example_split import read_examples
from trivium.objectives.labelled import LabelledObjective
from trivium.text import Tokenizer

_SHOWN_LABELS = 20  # the most frequent ones
_RARE_FRACTION = 0.02  # of all labels; with many labels, half of the mean fraction


def check_examples(
    objective: LabelledObjective,
    paths: Sequence[str],
    validation: float | Sequence[str],
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    tokenizer: Tokenizer | None = None,
    report: ReadReport | None = None,
) -> list[Finding]:
    """Check the examples of a task for common problems. Returns one finding per check.

    The examples are read and split in the same way as for training.

    Args:
        objective: the task.
        paths: the files to read.
        validation: the fraction of examples for validation, or the paths of validation files.
        encoding: the encoding of the files.
        errors: how encoding errors are handled, as in `open`.
        tokenizer: the tokenizer for checks that count tokens. If None, these checks count words.
        report: a report to fill with the names of the columns that are read.

    Raises:
        DataError: no example can be read.
    """
    bad = BadRecords()
    options = RecordOptions(errors=errors, encoding=encoding, bad=bad, report=report)
    train, validation = read_examples(objective, paths, validation, options)
    examples = [*train, *validation]
    inputs, wholes, words = Repeats(), Repeats(), Words(tokenizer)
    counts: dict[str, Counter[str]] = {TRAIN: Counter(), VALIDATION: Counter()}
    examples_by_text: dict[str, dict[tuple[str, ...], str]] = {}
    where: dict[str, str] = {}
    for index, labels in enumerate(objective.labels_by_example(examples)):
        one, names = examples[index], tuple(labels)
        split, text = TRAIN if index < len(train) else VALIDATION, objective.input_text(one)
        inputs.add(hash(text), split, text)
        fields = {**dataclasses.asdict(one), "where": None, "id": None}
        wholes.add(hash(repr(fields)), split, text)
        counts[split].update(names)
        examples_by_text.setdefault(text, {}).setdefault(names, one.where)
        where.update((label, one.where) for label in names if label not in where)
    for text in objective.source_texts(examples):
        words.add(text)
    if objective.generates:
        words.count_tokens([*objective.target_texts(examples)])
    findings = [
        _find_bad_records(bad, len(examples)),
        wholes.to_finding("repeated_examples", None, "count_again"),
    ]
    known = sorted({*counts[TRAIN], *counts[VALIDATION]})
    if known:
        total = counts[TRAIN] + counts[VALIDATION]
        most = [f"{label} ({count:,})" for label, count in total.most_common(_SHOWN_LABELS)]
        findings.append(Finding.of("labels", len(known), total.total(), None, "", most))
        findings.append(_find_disputed_labels(examples_by_text))
        findings.append(_find_case_variants(known))
        for split in (TRAIN, VALIDATION) if validation else ():
            missing = Cases(label for label in known if not counts[split][label])
            advice = "give_examples" if split == TRAIN else "hold_out_more"
            check = "labels_not_in_training" if split == TRAIN else "labels_not_in_validation"
            findings.append(missing.to_finding(check, len(known), 0, advice))
        once = Cases()
        for label in known:
            if counts[TRAIN][label] == 1:
                once.add(f"{label} ({where[label]})", MESSAGE_LENGTH)
        findings.append(once.to_finding("labels_of_one_example", len(known), 0, "give_more"))
        findings.append(
            _find_rare_labels(counts[TRAIN], objective.supports_class_weights(examples))
        )
    findings += objective.find_problems(examples)
    if validation:
        findings.append(inputs.to_overlap_finding("texts_in_both", 0))
    return [*findings, *words.to_findings("short_examples")]


def _find_bad_records(records: BadRecords, num_examples: int) -> Finding:
    """Return a finding that counts the records that could not be read as examples."""
    total = records.count + num_examples
    return Finding.of("bad_records", records.count, total, 0, "skip_bad_records", records.lines)


def _find_disputed_labels(examples_by_text: dict[str, dict[tuple[str, ...], str]]) -> Finding:
    """Return a finding that counts the texts that occur with different labels.

    `examples_by_text` maps each text to a dict. The dict maps each tuple of labels of the text to
    the file and line of the first example with these labels.
    """
    cases = Cases()
    for text, place_by_labels in examples_by_text.items():
        if len(place_by_labels) > 1:
            labels = (f"{', '.join(names)} ({where})" for names, where in place_by_labels.items())
            cases.add(f"{shorten_sample(text, 40)}: {'; '.join(labels)}", MESSAGE_LENGTH)
    return cases.to_finding("disputed_labels", len(examples_by_text), 0, "correct")


def _find_rare_labels(counts: Counter[str], has_class_weights: bool) -> Finding:
    """Return a finding that counts labels that are so rare that a model may never predict them.

    If `has_class_weights`, its advice is to set class weights.
    """
    share = min(_RARE_FRACTION, 0.5 / max(1, len(counts)))
    limit = share * counts.total()
    rare = Cases(f"{label} ({count:,})" for label, count in counts.items() if count < limit)
    advice = "weigh_labels" if has_class_weights else "give_more_of_rare"
    return rare.to_finding("rare_labels", len(counts), 0, advice, share=100 * share)


def _find_case_variants(labels: Sequence[str]) -> Finding:
    """Return a finding that counts groups of labels that differ only in upper and lower case."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(label.casefold(), []).append(label)
    cases = Cases(", ".join(group) for group in groups.values() if len(group) > 1)
    return cases.to_finding("labels_by_case", len(labels), 0, "write_alike")
