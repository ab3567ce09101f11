"""A run in a few words: how good it became, against which baseline, and what to try if stuck."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trivium.messages import display_width, padded, translated
from trivium.report.run_files import RunFiles, number

# Nats. Closer than this to the unigram baseline, a model has learned little but frequencies.
_PLATEAU = 0.25
# Nats above the best evaluation at which the last one counts as worse, not as noise.
_OVERFITTING = 0.05
# A main metric of a task (accuracy, F1, ...) of 0 to 1 below which it says nothing; that of
# generated texts is higher for any text of the language.
_NOTHING_LEARNED, _NOTHING_GENERATED = 0.01, 0.05
UNKNOWN_SHARE = 0.05
"""A share of unknown tokens above which training warns of them."""
_TABLE_ROWS = 20


@dataclass(frozen=True)
class EvaluationPoint:
    """Losses in nats at one step, the training loss from the log step before; the main metric.

    A policy has no validation loss.
    """

    step: int
    train_loss: float | None
    valid_loss: float | None
    metric: float | None = None


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    `loss` is the best validation loss, without evaluations the last training loss. `stuck`: it
    learned little more than a trivial baseline knows.
    """

    evaluations: tuple[EvaluationPoint, ...]
    best: EvaluationPoint | None
    loss: float | None
    verdict: str
    stuck: bool

    @property
    def perplexity(self) -> float:
        """Of a loss in nats per token."""
        return math.exp(min(self.loss or 0.0, 700.0))


def summarize(run: RunFiles) -> Summary:
    """Sum up a run."""
    evaluations = tuple(_evaluations(run))
    best = min(evaluations, key=lambda point: _rank(run, point), default=None)
    train = [loss for _, loss in run.series("train_loss")]
    loss = best.valid_loss if best else (train[-1] if train else None)
    if run.metric is not None and best is not None:
        verdict, stuck = _task_verdict(run, run.metric, evaluations, best)
    else:
        verdict, stuck = _verdict(run, evaluations, best, loss)
    verdict += _unknown_tokens(run)
    for record in run.metrics:
        if "warning" in record:
            verdict += translated(
                " At step {step}: {warning}", step=record.get("step"), warning=record["warning"]
            )
    skipped = max((count for _, count in run.series("skipped_steps")), default=0)
    if skipped:
        verdict += translated(
            " Steps skipped for a spike of the gradient norm: {count:,.0f}.", count=skipped
        )
    if run.unfinished:
        budget = run.setting("train", "steps")
        of_all = translated(" of {steps:,}", steps=budget) if budget else ""
        verdict += translated(
            " The run has not finished: step {step:,.0f}{of_all}.",
            step=run.last("step") or 0,
            of_all=of_all,
        )
    return Summary(evaluations, best, loss, verdict, stuck)


def text_summary(run: RunFiles) -> str:
    """The table `Step | Training loss | Validation loss` and the verdict, as plain text."""
    summary, metric, unit = summarize(run), run.metric, run.unit
    best, unigram = summary.best, run.fact("unigram_loss")
    head = [translated(one) for one in ("Step", "Training loss", "Validation loss")]
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
        table.append(translated("({count} of {every} evaluations)", count=count, every=every))
    lines = [run.name, "", *([*table, ""] if count else [])]
    shown = {}
    if best is not None:
        by_loss = best.metric is None
        value = f"{best.valid_loss:.4f} {unit}" if by_loss else f"{metric} {best.metric:.4f}"
        shown["best"] = translated("{value} at step {step:,}", value=value, step=best.step)
    elif summary.loss is not None:
        value = f"{summary.loss:.4f} {unit}"
        shown["training loss"] = translated("{value}, no evaluation", value=value)
    if unigram is not None:
        shown["unigram baseline"] = f"{unigram:.4f} {unit}"
    shown["verdict"] = summary.verdict
    lines += [f"{padded(translated(label), 16)}  {words}" for label, words in shown.items()]
    return "\n".join(lines)


def _majority_label(run: RunFiles) -> tuple[str, float] | None:
    """The most frequent label of the held-out examples and its share, where it is known."""
    labels, counts = run.evaluation.get("labels"), run.evaluation.get("confusion")
    if not labels or not counts or len(labels) != len(counts):
        return None
    sizes = [sum(row) for row in counts]
    return str(labels[sizes.index(max(sizes))]), max(sizes) / max(1, sum(sizes))


def _evaluations(run: RunFiles) -> list[EvaluationPoint]:
    points: list[EvaluationPoint] = []
    train: float | None = None
    for record in run.metrics:
        train = number(record.get("train_loss")) or train
        step, valid = number(record.get("step")), number(record.get("valid_loss"))
        metric = number(record.get(f"valid_{run.metric}"))
        if step is not None and (valid, metric) != (None, None):
            points.append(EvaluationPoint(int(step), train, valid, metric))
    return points


def _rank(run: RunFiles, point: EvaluationPoint) -> float:
    """The smaller, the better: by the metric, without one by the loss."""
    if point.metric is None:
        return math.inf if point.valid_loss is None else point.valid_loss
    return -point.metric if run.higher_is_better else point.metric


def _task_verdict(
    run: RunFiles, metric: str, evaluations: tuple[EvaluationPoint, ...], best: EvaluationPoint
) -> tuple[str, bool]:
    """The metric, and whether it is no better than one label for everything."""
    if run.score is None:
        value = translated("not measured") if best.metric is None else f"{best.metric:.4f}"
        so_far = "{metric} {value} so far, at step {step:,}."
        return translated(so_far, metric=metric, value=value, step=best.step), False
    examples = number(run.evaluation.get("num_examples")) or run.fact("valid_examples")
    sentence = f"{metric} {run.score:.4f}"
    if metric.endswith("bleu"):
        sentence += f" ({100 * run.score:.1f} BLEU)"
    if examples:
        sentence += translated(" on {count:,.0f} held-out examples", count=examples)
    if len(evaluations) > 1:
        sentence += translated(
            ", with the weights of step {step:,}, best of {count}",
            step=best.step,
            count=len(evaluations),
        )
    generated = metric.endswith(("bleu", "rouge_l"))
    least = _NOTHING_GENERATED if generated else _NOTHING_LEARNED
    if run.higher_is_better and metric != "reward" and run.score < least:  # that is any number
        nothing = translated("{result}: next to nothing was learned. ", result=sentence)
        return nothing + _task_advice(run), True
    majority = _majority_label(run)
    if metric != "accuracy" or majority is None:
        return translated("{result}.", result=sentence), False
    label, share = majority
    if run.score > share:
        better = (
            '{result}. Always predicting "{label}", the most frequent label there, would give '
            "{share:.4f}."
        )
        return translated(better, result=sentence, label=label, share=share), False
    no_better = '{result}: no better than always predicting "{label}" ({share:.4f}). '
    return (
        translated(no_better, result=sentence, label=label, share=share) + _task_advice(run)
    ), True


def _task_advice(run: RunFiles) -> str:
    if _unknown_tokens(run):
        return translated(
            "Take a longer run, a model whose tokenizer knows this text, or a preset, which gets a "
            "new one."
        )
    budgets = ("minutes", "tokens", "steps")
    budget = next((key for key in budgets if run.setting("train", key)), "epochs")
    return translated(
        "Try more examples, a longer run (train.{budget}), another optimizer.lr, or a pretrained "
        "model.",
        budget=budget,
    )


def _unknown_tokens(run: RunFiles) -> str:
    """A sentence where the tokenizer does not know the text."""
    shares = (run.facts.get("unknown_shares") or {}).items()
    unknown = [
        translated("{share:.1%} of the {side}", share=share, side=translated(side))
        for side, share in shares
        if share > UNKNOWN_SHARE
    ]
    if not unknown:
        return ""
    return translated(" Tokens unknown to the tokenizer: {shares}.", shares=", ".join(unknown))


def _verdict(
    run: RunFiles,
    evaluations: tuple[EvaluationPoint, ...],
    best: EvaluationPoint | None,
    loss: float | None,
) -> tuple[str, bool]:
    if loss is None:
        return translated("No loss has been logged yet."), False
    sentence = translated("Validation loss {loss:.4f} nats", loss=loss)
    if best is None:
        held_out = run.fact("valid_tokens") or run.fact("valid_examples")
        state = translated("not evaluated yet" if held_out else "nothing held out")
        sentence = translated("Training loss {loss:.4f} nats ({state})", loss=loss, state=state)
    unigram, worse = run.fact("unigram_loss"), _worse_since(best, evaluations)
    if unigram is None:
        return translated("{result}.", result=sentence) + worse, False
    if loss > unigram - _PLATEAU:
        state = translated("is hardly better than" if loss < unigram else "is no better than")
        if loss > unigram + _PLATEAU:
            state = translated("has not reached")
        sentence = translated(
            "{result}: the model {state} the unigram baseline ({unigram:.4f}).",
            result=sentence,
            state=state,
            unigram=unigram,
        )
        return sentence + (worse if worse or run.unfinished else _advice(run)), True
    below = translated(
        "{result}, {below:.4f} below the unigram baseline ({unigram:.4f}).",
        result=sentence,
        below=unigram - loss,
        unigram=unigram,
    )
    return below + worse, False


def _worse_since(best: EvaluationPoint | None, evaluations: tuple[EvaluationPoint, ...]) -> str:
    """A sentence where the model, which has the last weights, is worse than it was."""
    if best is None or best.valid_loss is None:
        return ""
    last = evaluations[-1]
    if last.valid_loss is None or last.valid_loss <= best.valid_loss + _OVERFITTING:
        return ""
    sentence = translated(
        " The last evaluation is worse ({loss:.4f}) than the best at step {step:,}",
        loss=last.valid_loss,
        step=best.step,
    )
    if (last.train_loss or 0.0) > (best.train_loss or math.inf) + _OVERFITTING:
        return sentence + translated(", and so is the training loss: try a lower optimizer.lr.")
    return sentence + translated(
        ": the model overfits. Try more text, fewer epochs, or model.dropout = 0.1."
    )


def _advice(run: RunFiles) -> str:
    """What helped stuck runs, the cheapest first, without what this run does already."""
    advice = [translated("a longer run (train.steps or train.minutes)")]
    lr = number(run.setting("optimizer", "lr"))
    default = run.fact("default_lr")
    if lr is not None and default is not None and lr < 0.95 * default:
        higher = "a higher optimizer.lr ({lr:.2g} is the default for new weights)"
        advice.append(translated(higher, lr=default))
    if (number(run.setting("train", "batch_tokens")) or 0) > 16_384:
        advice.append(
            translated("a smaller train.batch_tokens, which makes more steps of the same text")
        )
    if (number(run.setting("model", "dropout")) or 0.0) > 0.0:
        advice.append("model.dropout = 0")
    stacks = [run.spec.get("encoder"), run.spec.get("decoder")]
    if any(isinstance(stack, dict) and "after" in stack.get("norms", ()) for stack in stacks):
        advice.append(translated("a pre-norm model such as modernbert-mini, which starts faster"))
    options = translated(", ").join(advice[:-1]) + translated(" or ") * (len(advice) > 1)
    return translated(" Try {options}.", options=options + advice[-1])
