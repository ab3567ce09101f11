"""The report of one run: a single HTML file that says how it went."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path

from trivium.report.charts import Level, LineChart, Series, bars, short
from trivium.report.page import page, pairs_table, section, table, tiles, write_page
from trivium.report.run_files import RunFiles, number, read_run
from trivium.report.summary import Summary, duration, summarize
from trivium.report.task import (
    class_table,
    confusion,
    figure_tiles,
    metric_chart,
    mistakes_table,
    task_words,
    tells_tokens,
)
from trivium.report.tokenizer import TokenizerStatistics, tokenizer_statistics

REPORT = "report.html"
UNIGRAM_LABEL = "guessing by word frequency"


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run, to its own folder unless told otherwise.

    The file needs nothing beside it and fetches nothing. A run that is not finished can be
    reported too.

    Raises:
        CheckpointError: there is no run in the folder, or nothing measured yet.
    """
    run = read_run(run_folder)
    return write_page(out or run.folder / REPORT, render_report(run))


_OBJECTIVES = {
    "masked": "fills masks",
    "masked+nsp": "fills masks and tells what comes next",
    "masked+order": "fills masks and puts sentences in order",
    "replaced-token": "finds replaced words",
    "causal": "continues text",
    "prefix-lm": "continues beginnings",
    "bidirectional-lm": "reads from both ends",
    "span-corruption": "writes hidden spans",
    "denoising": "repairs text",
}


def render_report(run: RunFiles) -> str:
    """The report as one HTML document."""
    summary = summarize(run)
    kind = " stuck" if summary.stuck else ""
    parts = [
        f"<h1>{escape(run.name)}</h1>",
        f'<p class="soft">{escape(_subtitle(run))}</p>',
        f'<p class="verdict{kind}">{escape(summary.verdict)}</p>',
        tiles(_headline(run, summary)),
        section("Results", figure_tiles(run), class_table(run), confusion(run)),
        section("The worst mistakes", mistakes_table(run)),
        section("Loss", loss_chart(run, summary), metric_chart(run), _evaluation_table(summary)),
        section("What the model says", _samples(run)),
        section("Training", *_training_charts(run), _machine(run)),
        section("Model", _model(run)),
        section("Tokenizer", _tokenizer(run)),
        section("Text", _text(run)),
        section("Recipe", _recipe(run)),
    ]
    return page(f"{run.name}: training report", parts, footer=_footer(run))


def loss_chart(run: RunFiles, summary: Summary) -> str:
    """Training and validation loss over steps, with the line of word frequencies."""
    levels: tuple[Level, ...] = ()
    if summary.unigram_loss is not None:
        levels = (Level(UNIGRAM_LABEL, summary.unigram_loss),)
    levels += tuple(Level(label, loss) for label, loss in list(run.count_losses.items())[1:])
    chart = LineChart(
        "Loss (nats a token)" if tells_tokens(run) else "Loss",
        "step",
        (
            Series("training", run.series("train_loss"), 0),
            Series("validation", run.series("valid_loss"), 1, dots=True),
            *_parts_of_loss(run),
        ),
        levels,
    )
    return chart.render()


def _parts_of_loss(run: RunFiles) -> Iterator[Series]:
    """What a loss of several terms, objectives or sources is made of, on validation text."""
    names = [name for key in ("loss_terms", "loss_groups") for name in run.facts.get(key) or ()]
    for index, name in enumerate(names):
        points = run.series(f"valid_{name}")
        if points:
            yield Series(f"validation, {name}", points, 2 + index % 6, dots=True)


def _subtitle(run: RunFiles) -> str:
    preset = run.setting("model", "preset") or run.setting("model", "start")
    objective = task_words(run) or _OBJECTIVES.get(str(run.setting("objective", "kind")))
    device = run.facts.get("device")
    return ", ".join(str(part) for part in (preset, objective, device) if part)


def _headline(run: RunFiles, summary: Summary) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    loss = summary.loss
    score = number(run.evaluation.get("score"))
    if summary.metric is not None and score is not None:
        found.append((summary.metric, f"{score:.4f}"))
    if loss is not None:
        where = "validation" if summary.best else "training"
        of_tokens = tells_tokens(run) and not run.facts.get("loss_terms")
        found.append((f"{where} loss, nats{' a token' if of_tokens else ''}", f"{loss:.3f}"))
        if of_tokens:
            found.append(("perplexity", short(math.exp(min(loss, 700.0)))))
            found.append(("bits a token", f"{loss / math.log(2):.2f}"))
        per_token = run.fact("bytes_per_token")
        # Hidden tokens are a part of the text: their bits say nothing of a whole byte.
        if per_token and run.tells_next:
            found.append(("bits a byte", f"{loss / math.log(2) / per_token:.3f}"))
    found.append(("steps", f"{summary.steps:,}"))
    if summary.tokens is not None:
        found.append(("tokens seen", short(summary.tokens)))
    if summary.seconds is not None:
        found.append(("time", duration(summary.seconds)))
    if summary.tokens_per_second is not None:
        found.append(("tokens a second, median", f"{summary.tokens_per_second:,.0f}"))
    return found


def _evaluation_table(summary: Summary) -> str:
    if not summary.evaluations:
        return ""
    rows = [
        (
            f"{row.step:,}",
            "" if row.train_loss is None else f"{row.train_loss:.4f}",
            f"{row.valid_loss:.4f}",
            *(() if row.metric is None else (f"{row.metric:.4f}",)),
        )
        for row in summary.evaluations
    ]
    head = ["Step", "Training loss", "Validation loss"]
    head += [] if summary.metric is None else [summary.metric]
    found = table(head, rows, text_columns=0)
    return f"<details><summary>Evaluations: {len(rows)}</summary>{found}</details>"


def _training_charts(run: RunFiles) -> list[str]:
    wanted = (
        ("Learning rate", "lr", 2, True),
        ("Throughput (tokens a second)", "tokens_per_second", 0, True),
        ("Gradient norm, before clipping", "grad_norm", 3, False),
    )
    found = []
    for title, key, color, from_zero in wanted:
        points = run.series(key)
        if points:
            series = (Series(title, points, color),)
            found.append(LineChart(title, "step", series, from_zero=from_zero).render())
    return found


def _machine(run: RunFiles) -> str:
    facts = run.facts
    pairs = [
        ("device", str(facts.get("device", ""))),
        ("precision", str(facts.get("precision", ""))),
        ("threads", str(facts.get("threads", ""))),
    ]
    peak = run.fact("peak_flops")
    if peak:
        pairs.append(("peak of the device", f"{peak / 1e12:,.2f} TFLOP/s"))
    known = [(name, value) for name, value in pairs if value]
    return pairs_table(known) if known else ""


def _samples(run: RunFiles) -> str:
    found = []
    samples = run.facts.get("samples")
    for sample in samples if isinstance(samples, list) else ():
        if not isinstance(sample, dict):
            continue
        prompt, output = str(sample.get("prompt", "")), str(sample.get("output", ""))
        step = number(sample.get("step"))
        when = "" if step is None else f' <span class="soft">(step {step:,.0f})</span>'
        found.append(
            f'<blockquote><p class="prompt">{escape(prompt)}{when}</p>'
            f"<p>{escape(output)}</p></blockquote>"
        )
    return "\n".join(found)


def _model(run: RunFiles) -> str:
    parts = []
    pairs = [("parameters", _count(run.fact("num_parameters") or sum(run.parameters.values())))]
    pairs += [(name, _plain(run.spec.get(name))) for name in ("d_model", "vocab_size")]
    names = ("order", "cell", "direction", "num_layers", "d_hidden", "connections")
    pairs += [(name, str(run.spec.get(name, ""))) for name in names]
    for slot in ("encoder", "decoder"):
        pairs += _stack(slot, run.spec.get(slot))
    parts.append(pairs_table((name, value) for name, value in pairs if value))
    groups = parameter_groups(run.parameters)
    if groups:
        total = sum(groups.values())
        rows = [
            (name, float(size), f"{size:,} ({size / total:.0%})") for name, size in groups.items()
        ]
        parts.append(f"<h3>Parameters by part</h3>{bars(rows)}")
    return "\n".join(parts)


def parameter_groups(parameters: dict[str, int]) -> dict[str, int]:
    """Parameters by part of the model: embeddings, attention, feed-forward, norms, heads."""
    groups: dict[str, int] = {}
    for name, size in parameters.items():
        group = _group_of(name)
        groups[group] = groups.get(group, 0) + size
    return dict(sorted(groups.items(), key=lambda item: -item[1]))


def _group_of(name: str) -> str:
    steps = name.split(".")
    if "norm" in name.rsplit(".", 2)[-2:][0]:
        return "norms"
    if steps[0] in ("tokens", "source_tokens", "before"):
        return "embedding: tokens"
    if "embedding" in steps[:-1]:
        return f"embedding: {steps[steps.index('embedding') + 1].replace('_', ' ')}"
    if steps[0] == "heads":
        return f"head: {steps[1]}"
    for part, label in (("cross_attention", "cross-attention"), ("attention", "attention")):
        if part in steps:
            return label
    if steps[0] in ("reading", "back_reading"):
        return "recurrent"
    return "feed-forward" if "feed_forward" in steps or steps[0] == "hidden" else "other"


def _stack(slot: str, stack: object) -> list[tuple[str, str]]:
    if not isinstance(stack, dict):
        return []
    attention = stack.get("attention")
    first = attention[0] if isinstance(attention, list) and attention else attention
    heads = ""
    if isinstance(first, dict):
        heads = f"{first.get('num_heads')} heads x {first.get('head_dim')}"
        if first.get("num_kv_heads"):
            heads += f", {first['num_kv_heads']} key-value heads"
        positions = first.get("positions")
        if isinstance(positions, dict):
            heads += f", {positions.get('kind')} positions"
    forward = stack.get("feed_forward")
    inner = ""
    if isinstance(forward, dict):
        gated = ", gated" if forward.get("gated") else ""
        inner = f"{_plain(forward.get('d_ff'))} wide, {forward.get('activation')}{gated}"
    norm = stack.get("norm")
    norms = norm.get("kind") if isinstance(norm, dict) else norm
    return [
        (slot, f"{stack.get('num_layers')} layers, {norms} norm, {stack.get('norm_order')}-norm"),
        ("attention", heads),
        ("feed-forward", inner),
        ("dropout", _plain(stack.get("dropout"))),
    ]


def _tokenizer(run: RunFiles) -> str:
    statistics = tokenizer_statistics(run.tokenizer)
    kind = statistics.kind if statistics else run.facts.get("tokenizer_kind")
    size = statistics.size if statistics else run.fact("vocab_size")
    per_token = run.fact("bytes_per_token")
    pairs = [
        ("kind", str(kind or "")),
        ("vocabulary", _count(size)),
        ("bytes a token", f"{per_token:.2f}" if per_token else ""),
    ]
    if statistics is None:
        known = [(name, value) for name, value in pairs if value]
        return pairs_table(known) if known else ""
    if statistics.merges:
        pairs.append(("merges", f"{statistics.merges:,}"))
    if statistics.continuing:
        share = statistics.continuing / max(1, statistics.size)
        pairs.append(("that continue a word", f"{statistics.continuing:,} ({share:.0%})"))
    pairs_html = pairs_table((name, value) for name, value in pairs if value)
    return pairs_html + _tokens(statistics)


def _tokens(statistics: TokenizerStatistics) -> str:
    rows = [
        (f"{length} character{'s' * (length != 1)}", float(count), f"{count:,}")
        for length, count in statistics.lengths.items()
        if length <= 12
    ]
    more = sum(count for length, count in statistics.lengths.items() if length > 12)
    if more:
        rows.append(("13 and more", float(more), f"{more:,}"))
    chips = [
        ("Special tokens", statistics.specials),
        ("Tokens from all over the vocabulary", statistics.spread),
        ("The longest tokens", statistics.longest),
    ]
    found = [f"<h3>Tokens by length</h3>{bars(rows)}"] if rows else []
    for title, tokens in chips:
        codes = "".join(f'<code class="token">{escape(token)}</code>' for token in tokens)
        found.append(f"<h3>{title}</h3><div>{codes}</div>" if codes else "")
    return "".join(found)


def _text(run: RunFiles) -> str:
    names = (
        ("train_examples", "examples to learn from"),
        ("valid_examples", "held-out examples"),
        ("documents", "documents"),
        ("duplicates_dropped", "exact duplicates dropped"),
        ("train_tokens", "training tokens"),
        ("valid_tokens", "validation tokens"),
    )
    pairs = [(label, _count(run.fact(key))) for key, label in names]
    unigram = run.fact("unigram_loss")
    if unigram is not None:
        pairs.append((f"loss by {UNIGRAM_LABEL}", f"{unigram:.3f} nats a token"))
    known = [(name, value) for name, value in pairs if value]
    return pairs_table(known) if known else ""


def _recipe(run: RunFiles) -> str:
    return f"<pre>{escape(run.recipe_text)}</pre>" if run.recipe_text else ""


def _footer(run: RunFiles) -> str:
    versions = (("Trivium", "trivium"), ("PyTorch", "torch"))
    return ", ".join(f"{name} {run.facts[key]}" for name, key in versions if run.facts.get(key))


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _plain(value: object) -> str:
    found = number(value)
    return "" if found is None else (f"{found:,.0f}" if found == int(found) else f"{found:g}")
