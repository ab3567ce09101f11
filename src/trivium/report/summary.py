"""A run in a few words: how good it got, against what, and what to try where it is stuck."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.report.run_files import RunFiles, number
from trivium.report.task import lower_is_better, majority

# Nats. Nearer than this to the word-frequency loss, a model has learned little but frequencies.
PLATEAU = 0.25
# Nats above the best evaluation at which the last one counts as worse, not as noise.
OVERFIT = 0.05
_TABLE_ROWS = 20


@dataclass(frozen=True)
class Evaluation:
    """Losses at one step, in nats a token; the training loss is that of the log step before.

    `metric` is what a task is judged by.
    """

    step: int
    train_loss: float | None
    valid_loss: float
    metric: float | None = None


@dataclass(frozen=True)
class Summary:
    """What a run came to."""

    name: str
    evaluations: tuple[Evaluation, ...]
    best: Evaluation | None
    last_train_loss: float | None
    unigram_loss: float | None
    steps: int
    tokens: float | None
    seconds: float | None
    tokens_per_second: float | None
    verdict: str
    stuck: bool
    metric: str | None = None

    @property
    def loss(self) -> float | None:
        """The loss a run is judged by: the best on validation text, else the last in training."""
        return self.best.valid_loss if self.best else self.last_train_loss


def summarize(run: RunFiles) -> Summary:
    """Sum a run up. Losses are nats a token."""
    evaluations = tuple(_evaluations(run))
    best = min(evaluations, key=lambda evaluation: _rank(run, evaluation), default=None)
    train = run.series("train_loss")
    unigram = run.fact("unigram_loss")
    last = run.metrics[-1]
    loss = best.valid_loss if best else (train[-1][1] if train else None)
    stuck = loss is not None and unigram is not None and loss > unigram - PLATEAU
    verdict = _verdict(run, evaluations, best, loss, unigram, stuck)
    if run.metric is not None and best is not None:
        verdict, stuck = _task_verdict(run, run.metric, evaluations, best)
    return Summary(
        name=run.name,
        evaluations=evaluations,
        best=best,
        last_train_loss=train[-1][1] if train else None,
        unigram_loss=unigram,
        steps=int(number(last.get("step")) or 0),
        tokens=number(last.get("tokens")),
        seconds=number(last.get("seconds")),
        tokens_per_second=_median([y for _, y in run.series("tokens_per_second")]),
        verdict=verdict,
        stuck=stuck,
        metric=run.metric,
    )


def text_summary(summary: Summary) -> str:
    """The table `Step | Training loss | Validation loss` and what it means, as plain text."""
    shown = _evenly(summary.evaluations, _TABLE_ROWS)
    lines = [summary.name, ""]
    if shown:
        last = f" | {summary.metric:>12}" if summary.metric else ""
        lines.append(f"{'Step':>9} | {'Training loss':>13} | {'Validation loss':>15}{last}")
        last = f"-+-{'-' * 12}" if summary.metric else ""
        lines.append(f"{'-' * 9}-+-{'-' * 13}-+-{'-' * 15}{last}")
        for row in shown:
            train = "" if row.train_loss is None else f"{row.train_loss:.4f}"
            last = "" if row.metric is None else f" | {row.metric:>12.4f}"
            lines.append(f"{row.step:>9,} | {train:>13} | {row.valid_loss:>15.4f}{last}")
        if len(shown) < len(summary.evaluations):
            lines.append(f"({len(shown)} of {len(summary.evaluations)} evaluations)")
        lines.append("")
    if summary.best is not None and summary.best.metric is not None:
        best = summary.best
        lines.append(f"best            {summary.metric} {best.metric:.4f} at step {best.step:,}")
    elif summary.best is not None:
        best = summary.best
        lines.append(f"best            {best.valid_loss:.4f} nats a token at step {best.step:,}")
    elif summary.last_train_loss is not None:
        lines.append(f"training loss   {summary.last_train_loss:.4f} nats a token, no evaluation")
    if summary.unigram_loss is not None:
        lines.append(f"word frequency  {summary.unigram_loss:.4f} nats a token by guessing from it")
    lines.append(f"verdict         {summary.verdict}")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 4 min 02 s, 3 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"


def _evaluations(run: RunFiles) -> list[Evaluation]:
    found: list[Evaluation] = []
    train: float | None = None
    for record in run.metrics:
        train = number(record.get("train_loss")) or train
        step, valid = number(record.get("step")), number(record.get("valid_loss"))
        if step is not None and valid is not None:
            metric = number(record.get(f"valid_{run.metric}"))
            found.append(Evaluation(int(step), train, valid, metric))
    return found


def _rank(run: RunFiles, evaluation: Evaluation) -> float:
    """Less is better: of the metric, where there is one, else of the loss."""
    if run.metric is None or evaluation.metric is None:
        return evaluation.valid_loss
    return evaluation.metric if lower_is_better(run.metric) else -evaluation.metric


def _task_verdict(
    run: RunFiles, metric: str, evaluations: tuple[Evaluation, ...], best: Evaluation
) -> tuple[str, bool]:
    """The metric, and whether it is no better than one answer to everything."""
    score, step = number(run.evaluation.get("score")), best.step
    if score is None:
        found = "not known yet" if best.metric is None else f"{best.metric:.4f}"
        return f"{metric} {found} so far, at step {step:,}.", False
    sentence = f"{metric} {score:.4f} on {run.fact('valid_examples') or 0:,.0f} held-out examples"
    if len(evaluations) > 1:
        sentence += f", by the weights of step {step:,}, the best of {len(evaluations)} evaluations"
    usual = majority(run)
    if metric != "accuracy" or usual is None:
        return f"{sentence}.", False
    name, share = usual
    if score > share:
        return f'{sentence}. Always saying "{name}" would give {share:.4f}.', False
    return (
        f'{sentence}: no better than always saying "{name}" ({share:.4f}). Try more examples, a '
        "longer run (train.epochs), another optimizer.lr, or a pretrained model to start from."
    ), True


def _verdict(
    run: RunFiles,
    evaluations: tuple[Evaluation, ...],
    best: Evaluation | None,
    loss: float | None,
    unigram: float | None,
    stuck: bool,
) -> str:
    if loss is None:
        return "No loss has been written down yet."
    what = "Validation loss" if best else "Training loss (nothing was held out)"
    sentence = f"{what} {loss:.2f} nats"
    if unigram is None:
        return f"{sentence}."
    if stuck:
        above = loss > unigram + PLATEAU
        where = "not yet reached" if above else "not left"
        return (
            f"{sentence}: the model has {where} the word-frequency plateau ({unigram:.2f}). "
            f"Try {_advice(run)}."
        )
    sentence += f", {unigram - loss:.2f} below guessing by word frequency ({unigram:.2f})."
    if best and evaluations[-1].valid_loss > best.valid_loss + OVERFIT:
        sentence += (
            f" The last evaluation is worse ({evaluations[-1].valid_loss:.2f}) than the best at "
            f"step {best.step:,}: the model begins to learn its training text by heart. Try more "
            "text, fewer passes over it, or model.dropout = 0.1."
        )
    return sentence


def _advice(run: RunFiles) -> str:
    """What has moved stuck runs, the cheapest first, without what this run does already."""
    advice = ["a longer run (train.steps or train.minutes)"]
    lr = number(run.setting("optimizer", "lr"))
    if lr is None or lr < 1e-3:
        advice.append("a higher optimizer.lr (1e-3 suits small models)")
    batch = number(run.setting("train", "batch_tokens"))
    if batch is not None and batch > 16_384:
        advice.append("a smaller train.batch_tokens, which makes more steps of the same text")
    if (number(run.setting("model", "dropout")) or 0.0) > 0.0:
        advice.append("model.dropout = 0")
    stacks = [run.spec.get("encoder"), run.spec.get("decoder")]
    if any(isinstance(stack, dict) and stack.get("norm_order") == "post" for stack in stacks):
        advice.append("a pre-norm model such as modernbert-mini, which starts faster")
    return ", ".join(advice[:-1]) + (" or " if len(advice) > 1 else "") + advice[-1]


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _evenly(rows: tuple[Evaluation, ...], most: int) -> list[Evaluation]:
    """At most `most` rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]
