"""The summary of a run: results compared with a baseline, and advice if learning has stalled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trivium.messages import display_width, padded, translate_english, translated
from trivium.report.run_files import RunFiles, to_float

# In nats. A model with a loss closer than this to the unigram baseline has learned little more than
# token frequencies.
_PLATEAU = 0.25
# In nats. If the last loss exceeds the best one by more than this, the increase is not just noise.
_OVERFITTING = 0.05
# If the main metric of a task (0 to 1) is below this, the model has learned nothing. The limit is
# higher for generated texts, because any text of the right language has some overlap.
_NOTHING_LEARNED, _NOTHING_GENERATED = 0.01, 0.05
MAX_UNKNOWN_FRACTION = 0.01
"""The fraction of unknown tokens above which a warning is printed."""
_TABLE_ROWS = 20


@dataclass(frozen=True)
class EvaluationPoint:
    """The results of one evaluation during training.

    Args:
        step: the training step.
        train_loss: the last logged training loss in nats; None if there is none.
        valid_loss: the validation loss in nats; None for policy optimization.
        metric: the value of the task's main metric; None for pretraining.
    """

    step: int
    train_loss: float | None
    valid_loss: float | None
    metric: float | None = None


@dataclass(frozen=True)
class Summary:
    """The summary of a run.

    Args:
        evaluations: the evaluations during training.
        best: the best evaluation; None if there are no evaluations.
        loss: the validation loss of the best evaluation, or the last training loss if there are no
            evaluations.
        verdict: the assessment of the run in sentences: results, warnings and advice.
        stuck: whether the model is hardly better than a trivial baseline.
    """

    evaluations: tuple[EvaluationPoint, ...]
    best: EvaluationPoint | None
    loss: float | None
    verdict: str
    stuck: bool

    @property
    def perplexity(self) -> float:
        """The perplexity that corresponds to `loss` in nats per token."""
        return math.exp(min(self.loss or 0.0, 700.0))


def summarize(run: RunFiles) -> Summary:
    """Summarize the results of a run, with warnings and advice."""
    evaluations = tuple(_list_evaluations(run))
    best = min(evaluations, key=lambda point: _make_sort_key(run, point), default=None)
    train = [loss for _, loss in run.get_curve("train_loss")]
    loss = best.valid_loss if best else (train[-1] if train else None)
    if run.metric is not None and best is not None:
        sentences, stuck = _judge_finetuning(run, run.metric, evaluations, best)
    else:
        sentences, stuck = _judge_pretraining(run, evaluations, best, loss)
    sentences += [_describe_unknown_tokens(run), *_list_warnings(run), _describe_progress(run)]
    verdict = translated("join.space").join(filter(None, sentences))  # Chinese has no space there
    return Summary(evaluations, best, loss, verdict, stuck)


def format_summary(run: RunFiles) -> str:
    """Return a run's summary as plain text: a table of evaluations, the results and the verdict."""
    summary, metric, unit = summarize(run), run.metric, run.unit
    best, unigram = summary.best, run.get_metadata("unigram_loss")
    columns = ("step", "training_loss", "validation_loss")
    head = [translated(f"report.{one}") for one in columns]
    head += [metric] if metric else []
    rows = [head]
    count = min(len(summary.evaluations), _TABLE_ROWS)
    spread = np.linspace(0, len(summary.evaluations) - 1, count).round().astype(int)
    for point in (summary.evaluations[index] for index in spread):
        values = [point.train_loss, point.valid_loss, point.metric][: len(head) - 1]
        rows.append([f"{point.step:,}", *("" if v is None else f"{v:.4f}" for v in values)])
    widths = [max(9, display_width(name)) for name in head]
    table = [" | ".join(padded(*cell, right=True) for cell in zip(row, widths)) for row in rows]
    table.insert(1, "-+-".join("-" * width for width in widths))
    if count < len(summary.evaluations):
        every = len(summary.evaluations)
        table.append(translated("summary.some_evaluations", count=count, every=every))
    lines = [run.name, "", *([*table, ""] if count else [])]
    shown = {}
    if best is not None:
        by_loss = best.metric is None
        value = f"{best.valid_loss:.4f} {unit}" if by_loss else f"{metric} {best.metric:.4f}"
        shown["best"] = translated("summary.at_step", value=value, step=best.step)
    elif summary.loss is not None:
        value = f"{summary.loss:.4f} {unit}"
        shown["training_loss"] = translated("summary.no_evaluation", value=value)
    if run.evaluation:
        shown["metrics"] = ", ".join(
            f"{name} {one:.4f}" for name, one in run.validation_metrics.items()
        )
    if unigram is not None:
        shown["unigram_baseline"] = f"{unigram:.4f} {unit}"
    shown["verdict"] = summary.verdict
    for label, words in shown.items():
        lines.append(f"{padded(translated(f'label.{label}'), 16)}  {words}")
    return "\n".join(lines)


def _list_warnings(run: RunFiles) -> Iterator[str]:
    """Yield the warnings logged during training, and a sentence about skipped steps, if any."""
    for record in run.metrics:
        if "warning" in record:
            step, warning = record.get("step"), translate_english(str(record["warning"]))
            yield translated("verdict.warned", step=step, warning=warning)
    skipped = max((count for _, count in run.get_curve("skipped_steps")), default=0)
    if skipped:
        yield translated("verdict.skipped_steps", count=skipped)


def _describe_progress(run: RunFiles) -> str:
    """Return a sentence about the progress of an unfinished run.

    Returns an empty string if the run is finished.
    """
    if not run.unfinished:
        return ""
    step, steps = run.get_last("step") or 0, run.get_setting("train", "steps")
    if steps:
        return translated("verdict.unfinished_of", step=step, steps=steps)
    return translated("verdict.unfinished", step=step)


def _find_majority_label(run: RunFiles) -> tuple[str, float] | None:
    """Return a pair: the most frequent validation label, and the fraction of examples that have it.

    Returns None if the label counts are unknown.
    """
    labels, counts = run.evaluation.get("labels"), run.evaluation.get("confusion")
    if not labels or not counts or len(labels) != len(counts):
        return None
    sizes = [sum(row) for row in counts]
    return str(labels[sizes.index(max(sizes))]), max(sizes) / max(1, sum(sizes))


def _list_evaluations(run: RunFiles) -> list[EvaluationPoint]:
    """Return the evaluations of a run, from the log records of metrics.jsonl."""
    points: list[EvaluationPoint] = []
    train: float | None = None
    for record in run.metrics:
        train = to_float(record.get("train_loss")) or train
        step, valid = to_float(record.get("step")), to_float(record.get("valid_loss"))
        metric = to_float(record.get(f"valid_{run.metric}"))
        if step is not None and (valid, metric) != (None, None):
            points.append(EvaluationPoint(int(step), train, valid, metric))
    return points


def _make_sort_key(run: RunFiles, point: EvaluationPoint) -> float:
    """Return the sort key of an evaluation; the best evaluation has the smallest key.

    Evaluations are sorted by the main metric, or by the validation loss if there is no metric.
    """
    if point.metric is None:
        return math.inf if point.valid_loss is None else point.valid_loss
    return -point.metric if run.higher_is_better else point.metric


def _judge_finetuning(
    run: RunFiles, metric: str, evaluations: tuple[EvaluationPoint, ...], best: EvaluationPoint
) -> tuple[list[str], bool]:
    """Return a list of sentences about a fine-tuned run, and whether the run is stuck.

    A run is stuck if the model has learned nothing, or if its accuracy is not higher than that of
    always predicting the most frequent label.
    """
    if run.score is None:
        value = translated("verdict.not_measured") if best.metric is None else f"{best.metric:.4f}"
        return [translated("verdict.so_far", metric=metric, value=value, step=best.step)], False
    examples = to_float(run.evaluation.get("num_examples"))
    examples = examples or run.get_metadata("valid_examples")
    result, count = f"{metric} {run.score:.4f}", len(evaluations)
    if metric.endswith("bleu"):
        result += f" ({100 * run.score:.1f} BLEU)"
    if examples:
        result = translated("verdict.on_examples", result=result, count=examples)
    if count > 1:
        result = translated("verdict.best_weights", result=result, step=best.step, count=count)
    generated = metric.endswith(("bleu", "rouge_l"))
    least = _NOTHING_GENERATED if generated else _NOTHING_LEARNED
    # A reward can be any number, so a small one does not mean that nothing was learned.
    if run.higher_is_better and metric != "reward" and run.score < least:
        nothing = translated("verdict.nothing_learned", result=result)
        return [nothing, _suggest_finetuning_changes(run)], True
    majority = _find_majority_label(run)
    if metric != "accuracy" or majority is None:
        return [translated("verdict.result", result=result)], False
    label, share = majority
    if run.score > share:
        better = translated("verdict.above_majority", result=result, label=label, share=share)
        return [better], False
    no_better = translated("verdict.below_majority", result=result, label=label, share=share)
    return [no_better, _suggest_finetuning_changes(run)], True


def _suggest_finetuning_changes(run: RunFiles) -> str:
    """Return a sentence that suggests what to try when a fine-tuning run has learned nothing."""
    if _describe_unknown_tokens(run):
        return translated("verdict.try_other_tokenizer")
    budgets = ("minutes", "tokens", "steps")
    budget = next((key for key in budgets if run.get_setting("train", key)), "epochs")
    return translated("verdict.try_more_examples", budget=budget)


def _describe_unknown_tokens(run: RunFiles) -> str:
    """Return a warning if the data has many unknown tokens, otherwise an empty string."""
    shares = (run.metadata.get("unknown_shares") or {}).items()
    unknown = [
        translated("verdict.share_of_side", share=share, side=translated(f"side.{side}"))
        for side, share in shares
        if share > MAX_UNKNOWN_FRACTION
    ]
    if not unknown:
        return ""
    return translated("verdict.unknown_tokens", shares=", ".join(unknown))


def _judge_pretraining(
    run: RunFiles,
    evaluations: tuple[EvaluationPoint, ...],
    best: EvaluationPoint | None,
    loss: float | None,
) -> tuple[list[str], bool]:
    """Return a list of sentences about a pretraining run, and whether the run is stuck.

    A run is stuck if its loss is hardly better than that of the unigram baseline.
    """
    if loss is None:
        return [translated("verdict.no_loss")], False
    if best is not None:
        measured = "verdict.validation_loss"
    elif run.get_metadata("valid_tokens") or run.get_metadata("valid_examples"):
        measured = "verdict.training_loss_not_evaluated"
    else:
        measured = "verdict.training_loss_nothing_held_out"
    result = translated(measured, loss=loss)
    unigram, worse = run.get_metadata("unigram_loss"), _describe_overfitting(best, evaluations)
    if unigram is None:
        return [translated("verdict.result", result=result), worse], False
    below = unigram - loss
    if below >= _PLATEAU:
        better = translated("verdict.below_unigram", result=result, below=below, unigram=unigram)
        return [better, worse], False
    if below > 0:
        words = "verdict.hardly_below_unigram"
    elif below >= -_PLATEAU:
        words = "verdict.no_better_than_unigram"
    else:
        words = "verdict.above_unigram"
    advice = "" if worse or run.unfinished else _suggest_pretraining_changes(run)
    return [translated(words, result=result, unigram=unigram), worse, advice], True


def _describe_overfitting(
    best: EvaluationPoint | None, evaluations: tuple[EvaluationPoint, ...]
) -> str:
    """Return a sentence about overfitting, if the validation loss has risen above its best value.

    If the training loss has risen as well, the sentence says so instead of naming overfitting.
    Returns an empty string if the last validation loss is close to the best one.
    """
    if best is None or best.valid_loss is None:
        return ""
    last = evaluations[-1]
    if last.valid_loss is None or last.valid_loss <= best.valid_loss + _OVERFITTING:
        return ""
    words = "verdict.overfits"
    if (last.train_loss or 0.0) > (best.train_loss or math.inf) + _OVERFITTING:
        words = "verdict.loss_rises"
    return translated(words, loss=last.valid_loss, step=best.step)


def _suggest_pretraining_changes(run: RunFiles) -> str:
    """Return a sentence that suggests what to try when a pretraining run has plateaued.

    The cheapest remedies come first. Remedies that the run already uses are omitted.
    """
    advice = [translated("verdict.longer_run")]
    lr = to_float(run.get_setting("optimizer", "lr"))
    default = run.get_metadata("default_lr")
    if lr is not None and default is not None and lr < 0.95 * default:
        advice.append(translated("verdict.higher_lr", lr=default))
    if (to_float(run.get_setting("train", "batch_tokens")) or 0) > 16_384:
        advice.append(translated("verdict.smaller_batch"))
    if (to_float(run.get_setting("model", "dropout")) or 0.0) > 0.0:
        advice.append("model.dropout = 0")
    stacks = [run.spec.get("encoder"), run.spec.get("decoder")]
    stacks = [stack for stack in stacks if isinstance(stack, dict)]
    layers = [layer for stack in stacks for layer in stack.get("layers", ())]
    if any(layer.get("norm_placement") == "post" for layer in layers):
        advice.append(translated("verdict.pre_norm_model"))
    options = translated("join.comma").join(advice[:-1]) + translated("join.or") * (len(advice) > 1)
    return translated("verdict.try", options=options + advice[-1])
