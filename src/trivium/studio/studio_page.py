"""The page of the studio: choose and start a run, watch runs, compare them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

import gradio as gr
import pandas as pd

from trivium.errors import TriviumError
from trivium.messages import translate_english
from trivium.progress import format_duration
from trivium.report.html_report import thin_curve
from trivium.report.run_files import extract_curve, to_float
from trivium.serve.playground import GradioPage
from trivium.serve.playground.runs import build_runs_tab
from trivium.serve.playground.tabs import EVENT, make_error
from trivium.serve.playground.texts import get_request_language, make_label
from trivium.studio.data_facts import (
    describe_problems,
    find_count,
    guess_language,
    list_local_files,
)
from trivium.studio.goals import GOALS, Choices, check_run_name, choose_run_name, split_lines
from trivium.studio.processes import RunState, StudioFolder, format_command
from trivium.studio.studio_texts import translate

MAX_UPLOAD = 512 * 2**20
"""The size limit of an uploaded file in bytes. Larger texts are given as a path."""

# Gradio's icon for further files is a button inside a button, which screen readers cannot reach. It
# is hidden: several files can be chosen at once.
STYLE = """
#studio-upload button[aria-label="common.upload"] { display: none; }
#studio-links a { margin-right: 1.5em; }
:is(#studio-command, #studio-commands, #studio-log, #studio-recipe) textarea {
  font-family: var(--font-mono);
}
#studio-samples ul { padding-left: 1.5em; list-style: disc; }
#studio-samples :is(h2, h3) { margin-top: 1em; font-weight: 600; }
#studio-samples mark { background: color-mix(in srgb, #4c78a8 25%, transparent); color: inherit; }
:is(#studio-links, #studio-status, #studio-facts, #studio-samples) { overflow-wrap: anywhere; }
"""
_HIDDEN = {**EVENT, "show_progress": "hidden"}
_EVERY_SECONDS = 2.0
_SHOWN_EVALUATIONS = 3
_SOURCES = ("sample", "upload", "path")
_LOSSES = ("train_loss", "valid_loss")


def label(key: str) -> Any:
    """Return the text `studio.KEY` as a label that the browser translates."""
    return make_label(f"studio.{key}")


def show_errors(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an event handler, so that its TriviumErrors appear as messages on the page.

    One argument of the handler is the browser's request.
    """

    @functools.wraps(handler)
    def handle(*values: Any) -> Any:
        """Call the handler. Raises gr.Error in place of a TriviumError."""
        try:
            return handler(*values)
        except TriviumError as error:
            message = _translate_error(error, values)
            request = next(value for value in values if isinstance(value, gr.Request))
            raise make_error(TriviumError(message), request) from error

    return handle


def write_errors(handler: Callable[..., str]) -> Callable[..., str]:
    """Wrap an event handler that returns Markdown, so that it returns the text of a TriviumError.

    The checks of data and the forecast take a while. Unlike a message, a text stays on the page.
    """

    @functools.wraps(handler)
    def handle(*values: Any) -> str:
        """Call the handler. Returns its text, or the text of a TriviumError."""
        try:
            return handler(*values)
        except TriviumError as error:
            return f"\u26a0 {_escape_markdown(_translate_error(error, values))}"

    return handle


def _translate_error(error: TriviumError, values: Sequence[Any]) -> str:
    """Return the message of an error in the language of the browser.

    One of `values`, the arguments of an event handler, is the browser's request.
    """
    request = next(value for value in values if isinstance(value, gr.Request))
    return translate_english(str(error), get_request_language(request))


def build_studio_page(folder: StudioFolder) -> gr.Blocks:
    """Build the page of a studio. All state is in the folder: any number of pages show the same."""
    with GradioPage(title="Trivium Studio", analytics_enabled=False) as page:
        gr.Markdown("# Trivium Studio")
        busy = gr.Markdown(elem_id="studio-busy")
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab(label("new"), id="new"):
                form = _NewRunForm(folder)
            with gr.Tab(label("run"), id="run"):
                watch = _RunTab(folder)
            with gr.Tab(label("compare"), id="compare"):
                compared = build_runs_tab(folder.runs)
                link = gr.HTML(elem_id="studio-comparison")
        started = form.connect(page, busy)
        started.success(lambda: gr.Tabs(selected="run"), None, tabs, **_HIDDEN)
        watch.connect(page, busy, started, form.started_run)

        def link_comparison(names: list[str], request: gr.Request) -> str:
            """Return a link to a report on the chosen runs, or "" for fewer than two."""
            if len(names or ()) < 2:
                return ""
            query = urlencode([("run", name) for name in names])
            return _make_link(f"compare?{query}", translate("comparison", request))

        compared.change(link_comparison, compared, link, **_HIDDEN)
    page.queue(default_concurrency_limit=4, max_size=64, api_open=False)
    return page


class _NewRunForm:
    """The form with the choices of a new run. `started_run` gets the name of a run it started."""

    def __init__(self, folder: StudioFolder) -> None:
        self._folder = folder
        first = next(iter(GOALS.values()))
        self.goal = gr.Radio(
            [(label(f"goal.{name}"), name) for name in GOALS],
            value=first.name,
            label=label("goal"),
            elem_id="studio-goal",
        )
        self.about = gr.Markdown(elem_id="studio-about")
        self.source = gr.Radio(
            [(label(f"source.{name}"), name) for name in _SOURCES],
            value="sample",
            label=label("source"),
            elem_id="studio-source",
        )
        self.sample = gr.Dropdown(
            list(first.samples),
            value=first.samples[0],
            label=label("sample"),
            elem_id="studio-sample",
        )
        self.upload = gr.File(
            file_count="multiple",
            type="filepath",
            label=f"{MAX_UPLOAD >> 20} MiB",
            visible=False,
            elem_id="studio-upload",
        )
        self.paths = gr.Textbox(
            label=label("paths"), lines=2, visible=False, elem_id="studio-paths"
        )
        self.look = gr.Button(label("look"), elem_id="studio-look")
        self.facts = gr.Markdown(elem_id="studio-facts")
        with gr.Row():
            self.size = gr.Radio(
                _list_sizes(first.name),
                value=next(iter(first.presets)),
                label=label("size"),
                elem_id="studio-size",
            )
            self.base = gr.Dropdown(
                [(label("base.new"), "")],
                value="",
                label=label("base"),
                visible=False,
                elem_id="studio-base",
            )
        with gr.Row():
            self.minutes = gr.Number(5, minimum=0, label=label("minutes"), elem_id="studio-minutes")
            self.name = gr.Textbox(label=label("name"), elem_id="studio-name")
        with gr.Accordion(label("more"), open=False):
            self.changes = gr.Textbox(
                label=label("changes"),
                lines=3,
                placeholder="optimizer.lr=3e-4\nobjective.label_field=stars",
                elem_id="studio-changes",
            )
        self.command = gr.Textbox(
            label="trivium", interactive=False, lines=2, elem_id="studio-command"
        )
        with gr.Row():
            self.ask_forecast = gr.Button(label("forecast"), elem_id="studio-forecast-button")
            self.start = gr.Button(label("start"), variant="primary", elem_id="studio-start")
        self.forecast = gr.Markdown(elem_id="studio-forecast")
        self.started_run = gr.State("")
        self._choices = [
            *(self.goal, self.source, self.sample, self.upload, self.paths),
            *(self.size, self.base, self.minutes, self.changes),
        ]

    def connect(self, page: gr.Blocks, busy: gr.Markdown) -> Any:
        """Connect the events of the form. Returns the event that starts a run."""
        goal_outputs = [
            *(self.about, self.sample, self.size, self.base, self.name, self.command),
            *(self.upload, self.paths),
        ]
        clear = [self.facts, self.forecast]
        gr.on([page.load, self.goal.change], self._choose_goal, self.goal, goal_outputs, **_HIDDEN)
        self.source.change(
            self._choose_source, [self.goal, self.source], [*goal_outputs[-2:], self.sample],
            **_HIDDEN,
        )  # fmt: skip
        changed = [one.change for one in (*self._choices, self.name)]
        gr.on(changed, self._show_command, [*self._choices, self.name], self.command, **_HIDDEN)
        data_changed = [one.change for one in self._choices[:5]]
        gr.on(data_changed, lambda: ("", ""), None, clear, **_HIDDEN)
        self.look.click(write_errors(self._describe_data), self._choices, self.facts, **EVENT)
        self.ask_forecast.click(write_errors(self._forecast), self._choices, self.forecast, **EVENT)
        return self.start.click(
            show_errors(self._start),
            [*self._choices, self.name],
            [self.started_run, self.name],
            **EVENT,
        )

    def _choose_goal(self, name: str, request: gr.Request) -> list[Any]:
        """Return the text about a goal, and the menus of its samples, sizes and trained models."""
        goal, folder = GOALS[name], self._folder
        bases = folder.list_bases(goal.family)
        new = translate("base.new", request)
        return [
            translate(f"about.{name}", request)
            + ("" if goal.samples else "\n\n" + translate("no_sample", request)),
            gr.Dropdown(list(goal.samples), value=(*goal.samples, None)[0]),
            gr.Radio(_list_sizes(name), value=next(iter(GOALS[name].presets))),
            gr.Dropdown([(new, ""), *((one, one) for one in bases)], value="", visible=bool(bases)),
            choose_run_name(name, folder.list_runs()),
            gr.Textbox(label=translate("command", request, folder=folder.path)),
            gr.File(label=translate("upload", request, size=f"{MAX_UPLOAD >> 20} MiB")),
            gr.Textbox(),
        ]

    def _choose_source(self, goal: str, source: str, request: gr.Request) -> list[Any]:
        """Show only the field of the chosen source of text."""
        return [
            gr.File(visible=source == "upload"),
            gr.Textbox(visible=source == "path"),
            gr.Dropdown(visible=source == "sample"),
        ]

    def _read_choices(
        self,
        goal: str,
        source: str,
        sample: str | None,
        upload: Sequence[str] | None,
        paths: str | None,
        size: str,
        base: str | None,
        minutes: float | None,
        changes: str | None,
    ) -> Choices:
        """Return the choices of the form. Raises TriviumError if one is missing or wrong."""
        folder, data = self._folder, list[str]()
        if source == "sample" and sample:
            data = [folder.get_sample(sample)]
        elif source == "upload":
            data = [folder.shorten_path(one) for one in upload or ()]
        elif source == "path":
            data = [folder.find_data(line) for line in split_lines(paths)]
        return Choices(
            goal=GOALS[goal],
            data=tuple(data),
            size=size,
            minutes=minutes or 0.0,
            base=base or None,
            changes=split_lines(changes),
        )

    def _show_command(self, request: gr.Request, *values: Any) -> str:
        """Return the command of the chosen run, or the reason why there is none yet."""
        *choices, name = values
        try:
            out = f"runs/{check_run_name(name)}"
            return format_command(self._read_choices(*choices).build_command(out))
        except TriviumError as error:
            return _translate_error(error, [request])

    def _describe_data(self, request: gr.Request, *chosen: Any) -> str:
        """Return what `trivium check` and the files say about the chosen data, in Markdown."""
        choices = self._read_choices(*chosen)
        language = get_request_language(request)
        say = functools.partial(translate, request=request)
        files = list_local_files(choices.data, self._folder.path)
        checked = self._folder.run_json(choices.build_check())
        findings = checked["findings"]
        lines = []
        if files:
            size = sum(file.size for file in files) / 1e6
            lines.append(say("facts.files", count=len(files), size=size))
        if (one := find_count(findings, "documents")) is not None:
            lines.append(say("facts.documents", count=one["total"]))
        if (one := find_count(findings, "bad records")) is not None:
            lines.append(say("facts.examples", count=one["total"] - one["count"]))
        for columns in checked["columns"]:
            lines.append(say("facts.columns", columns=_escape_markdown(columns)))
        if (one := find_count(findings, "different labels")) is not None:
            labels = _escape_markdown(", ".join(one["samples"]))
            lines.append(say("facts.labels", count=one["count"], labels=labels))
        code = guess_language(files)
        key = "facts.language" if code else "facts.no_language"
        lines.append(say(key, code=code))
        problems = describe_problems(findings, language)
        if problems:
            lines.append(say("facts.problems", count=len(findings)))
            lines += [f"    - {_escape_markdown(problem)}" for problem in problems]
        else:
            lines.append(say("facts.fine", count=len(findings)))
        command = format_command(choices.build_check()[:-1])
        lines.append(say("facts.command", command=command))
        return "\n".join(line if line.startswith(" ") else f"- {line}" for line in lines)

    def _forecast(self, request: gr.Request, *chosen: Any) -> str:
        """Return the forecast of the chosen run, measured on this machine, in Markdown."""
        is_busy = self._folder.find_training_run() is not None
        measured = self._folder.measure(self._read_choices(*chosen))
        notes = [translate("forecast.busy", request)] if is_busy else []
        return "\n\n".join([*describe_forecast(measured, request), *notes])

    def _start(self, request: gr.Request, *values: Any) -> tuple[str, str]:
        """Start the chosen run. Returns its name, and a name for the next run."""
        *chosen, name = values
        name, choices = check_run_name(name), self._read_choices(*chosen)
        arguments = choices.build_command(f"runs/{name}")
        self._folder.start(name, arguments, get_request_language(request))
        gr.Info(translate("started", request, name=escape(name)), duration=4)
        return name, choose_run_name(choices.goal.name, self._folder.list_runs())


class _RunTab:
    """The tab that shows one run, while it trains and afterwards."""

    def __init__(self, folder: StudioFolder) -> None:
        self._folder = folder
        self.chosen = gr.Dropdown([], label=label("chosen"), elem_id="studio-chosen")
        self.status = gr.Markdown(elem_id="studio-status")
        self.warnings = gr.Markdown(elem_id="studio-warnings")
        with gr.Row():
            self.stop = gr.Button(label("stop"), interactive=False, elem_id="studio-stop")
            self.resume = gr.Button(label("resume"), interactive=False, elem_id="studio-resume")
            self.minutes = gr.Number(
                0, minimum=0, label=label("resume.minutes"), elem_id="studio-resume-minutes"
            )
        self.links = gr.HTML(elem_id="studio-links")
        self.curves = gr.LinePlot(
            x="step",
            y="loss",
            color="kind",
            x_axis_format=",~f",
            x_title=" ",
            y_title=" ",
            color_title=" ",
            height=300,
            label=label("curves"),
            elem_id="studio-curves",
        )
        self.samples = gr.HTML(elem_id="studio-samples")
        with gr.Accordion(label("details"), open=False):
            self.commands = gr.Textbox(
                label="trivium", interactive=False, lines=2, elem_id="studio-commands"
            )
            self.log = gr.Textbox(
                label=label("log"), interactive=False, lines=8, max_lines=24, elem_id="studio-log"
            )
            self.recipe = gr.Textbox(
                label=label("recipe"), interactive=False, lines=8, max_lines=24,
                elem_id="studio-recipe",
            )  # fmt: skip
        with gr.Row():
            self.kind = gr.Radio(
                [(label(f"export.{kind}"), kind) for kind in ("hf", "gguf")],
                value="hf",
                label=label("export.kind"),
                elem_id="studio-export-kind",
            )
            self.export = gr.Button(label("export"), interactive=False, elem_id="studio-export")
        self.exported = gr.Markdown(elem_id="studio-exported")
        self._drawn = gr.State(None)

    def connect(
        self, page: gr.Blocks, busy: gr.Markdown, started: Any, started_run: gr.State
    ) -> None:
        """Connect the events of the tab.

        Args:
            page: the page.
            busy: the line that says which run is training.
            started: the event that starts a run.
            started_run: the name of the run that `started` has started.
        """
        outputs = [
            *(busy, self.chosen, self.status, self.warnings, self.stop, self.resume, self.links),
            *(self.curves, self.samples, self.commands, self.log, self.recipe, self.export),
            self._drawn,
        ]
        inputs = [self.chosen, self._drawn]
        timer = gr.Timer(_EVERY_SECONDS)
        gr.on([page.load, timer.tick, self.chosen.input], self._update, inputs, outputs, **_HIDDEN)
        started.success(self._update, [started_run, self._drawn], outputs, **_HIDDEN)
        self.stop.click(show_errors(self._stop), self.chosen, None, **_HIDDEN)
        self.resume.click(show_errors(self._resume), [self.chosen, self.minutes], None, **EVENT)
        self.export.click(
            show_errors(self._export), [self.chosen, self.kind], self.exported, **EVENT
        )
        self.chosen.change(lambda: "", None, self.exported, **_HIDDEN)

    def _update(self, chosen: str | None, drawn: Any, request: gr.Request) -> Any:
        """Return the new content of the tab, or no updates if no file has changed.

        `drawn` is what the tab showed at the last update: the name of the run and the sizes and
        times of its files.
        """
        folder = self._folder
        names, training = folder.list_runs(), folder.find_training_run()
        name = chosen if chosen in names else training or next(iter(names), None)
        files = folder.list_files(name) if name else []
        stats = [file.stat() for file in files if file.is_file()]
        now = [name, names, training, [(one.st_size, one.st_mtime) for one in stats]]
        if now == drawn:
            return (gr.skip(),) * 14
        say = functools.partial(translate, request=request)
        line = say("busy", name=_escape_markdown(training)) if training else say("idle")
        menu = gr.Dropdown(names, value=name)
        if name is None:
            return line, menu, say("status.new"), *(gr.skip(),) * 10, now
        state = folder.read_state(name)
        return (
            line,
            menu,
            _describe_status(state, request),
            _describe_warnings(state, request),
            gr.Button(interactive=state.is_active),
            gr.Button(interactive=state.can_resume and training is None),
            _list_links(state, request),
            _make_curves(state, request),
            _list_samples(state, request),
            gr.Textbox("\n".join(state.commands), label=say("commands", folder=folder.path)),
            state.log,
            state.recipe,
            gr.Button(interactive=state.has_model),
            now,
        )

    def _stop(self, name: str, request: gr.Request) -> None:
        """Ask the run to save a checkpoint and stop."""
        self._folder.stop(name)
        gr.Info(translate("stopping", request), duration=4)

    def _resume(self, name: str, minutes: float | None, request: gr.Request) -> None:
        """Resume the run, with another budget if `minutes` is more than 0."""
        self._folder.resume(name, minutes or None, get_request_language(request))

    def _export(self, name: str, kind: Any, request: gr.Request) -> str:
        """Export the model of the run. Returns a line that says where it is."""
        arguments = self._folder.build_export(name, kind)
        self._folder.export(name, kind)
        out = self._folder.path / arguments[2]
        return translate("exported", request, folder=f"`{out}`", command=format_command(arguments))


def describe_forecast(measured: Mapping[str, Any], request: gr.Request) -> list[str]:
    """Return the forecast of a run as paragraphs in Markdown.

    `measured` is what `trivium.studio.measure` returns.
    """
    say = functools.partial(translate, request=request)
    if examples := measured.get("train_examples"):
        texts = [say("forecast.examples", train=examples, valid=measured["valid_examples"])]
    else:
        counts = {"documents": measured["documents"], "tokens": measured["train_tokens"]}
        texts = [say("forecast.tokens", **counts)]
    texts.append(say("forecast.model", parameters=measured["num_parameters"]))
    forecast = measured.get("forecast")
    if forecast is None:
        texts.append(say("forecast.short"))
    else:
        tokens, steps = forecast["tokens"], forecast["steps"]
        if examples:
            passes = steps * measured["recipe"]["train"]["batch_examples"] / examples
        else:
            passes = tokens / measured["train_tokens"]
        texts.append(
            say(
                "forecast.measured",
                rate=_round(forecast["tokens_per_second"]),
                time=format_duration(forecast["seconds"]),
                tokens=_round(tokens),
                steps=_round(steps),
                passes=passes,
                used=forecast["memory_bytes"] / 2**30,
                free=forecast["free_bytes"] / 2**30,
            )
        )
        if forecast["warning"]:
            warning = translate_english(forecast["warning"], get_request_language(request))
            texts.append(f"\u26a0 {_escape_markdown(warning)}")
    return [*texts, describe_expected_loss(measured, request)]


def describe_expected_loss(measured: Mapping[str, Any], request: gr.Request) -> str:
    """Return what can be said about the loss of a run before it starts, as one paragraph.

    The upper end is measured: for text, the loss of a unigram model; for labelled examples, the
    loss before training. There is no known lower end.
    """
    first, baseline = measured["first_loss"], measured.get("unigram_loss")
    if baseline is None:
        return translate("forecast.loss.labelled", request, first=first)
    enough = measured["steps_to_beat_unigram"]
    text = translate("forecast.loss.text", request, first=first, baseline=baseline, enough=enough)
    if (measured.get("forecast") or {"steps": 0.0})["steps"] < enough:
        text += translate("forecast.loss.few", request)
    return text


def _round(value: float) -> float:
    """Return a measured value, rounded to three significant digits."""
    return float(f"{value:.3g}")


def _list_sizes(goal: str) -> list[tuple[Any, str]]:
    """Return the menu of sizes of a goal, with the names of the presets."""
    return [(label(f"size.{size}"), size) for size in GOALS[goal].presets]


def _describe_status(state: RunState, request: gr.Request) -> str:
    """Return the status of a run, its progress, losses and speed, in Markdown."""
    lines = [translate(f"status.{state.status}", request)]
    if state.error:
        lines.append(_escape_markdown(state.error))
    if state.status in ("stopped", "failed", "killed"):
        lines.append(translate("can_resume" if state.can_resume else "cannot_resume", request))
    if state.records:
        last, metadata = state.records[-1], state.metadata
        values: dict[str, Any] = {"step": last["step"], "tokens": last.get("tokens", 0)}
        seconds = to_float(last.get("seconds")) or 0.0
        minutes = to_float(metadata.get("recipe", {}).get("train", {}).get("minutes"))
        key = "progress.steps" if minutes is None else "progress"
        if metadata.get("resumed"):  # run.json has only the preparation of the last start
            key += ".resumed"
        else:
            seconds -= to_float(metadata.get("preparation_seconds")) or 0.0
        values["time"] = format_duration(max(0.0, seconds))
        budget = format_duration(60.0 * (minutes or 0.0))
        lines.append(translate(key, request, budget=budget, **values))
        losses = {}
        for key in _LOSSES:
            curve = extract_curve(state.records, key, "step")
            losses[key.partition("_")[0]] = f"{curve[-1][1]:.3f}" if curve else "-"
        line = translate("losses", request, **losses)
        if (baseline := to_float(metadata.get("unigram_loss"))) is not None:
            line += translate("baseline", request, loss=baseline)
        metric = metadata.get("metric")
        if metric and (curve := extract_curve(state.records, f"valid_{metric}", "step")):
            line += translate("metric", request, metric=metric, value=curve[-1][1])
        lines.append(line)
    if forecast := state.metadata.get("forecast"):
        rate, used = forecast["tokens_per_second"], forecast["memory_bytes"] / 2**30
        lines.append(translate("run_forecast", request, rate=rate, used=used))
    return "\n\n".join(lines)


def _describe_warnings(state: RunState, request: gr.Request) -> str:
    """Return the warnings of a run as a Markdown list; "" if there are none."""
    warnings = state.list_warnings(get_request_language(request))
    if not warnings:
        return ""
    lines = [f"- {_escape_markdown(line)}" for line in warnings]
    return "\n".join([f"**{translate('warnings', request)}**", "", *lines])


def _list_links(state: RunState, request: gr.Request) -> str:
    """Return links to the report and to the playground of a run, as far as they exist."""
    name, links = quote(state.name), list[str]()
    if state.records:
        links.append(_make_link(f"report/{name}", translate("report", request)))
    if state.has_model:
        links.append(_make_link(f"try/{name}/", translate("try", request)))
    return "".join(links)


def _make_link(address: str, text: str) -> str:
    """Return a link that opens in a new tab of the browser."""
    return f'<a href="{escape(address)}" target="_blank" rel="noreferrer">{escape(text)}</a>'


def _make_curves(state: RunState, request: gr.Request) -> pd.DataFrame:
    """Return the losses of a run as a table with the columns step, loss and kind."""
    points = [
        (x, round(y, 4), translate(key, request))
        for key in _LOSSES
        for x, y in thin_curve(extract_curve(state.records, key, "step"))
    ]
    table = pd.DataFrame(points, columns=["step", "loss", "kind"])
    # An empty table has no types, and Gradio would draw axes of categories, also later.
    return table.astype({"step": float, "loss": float})


def _list_samples(state: RunState, request: gr.Request) -> str:
    """Return the outputs of the model at the newest evaluations as HTML.

    A continuation of a text is shown as one text with the output marked. The fields of other
    samples, such as examples with predictions, are shown with their names.
    """
    parts = [f"<h2>{escape(translate('samples', request))}</h2>"]
    for record in state.samples[::-1][:_SHOWN_EVALUATIONS]:
        parts.append(f"<h3>{escape(translate('step', request, step=record['step']))}</h3><ul>")
        for one in record.get("samples", ()):
            values = {key: escape(str(value)) for key, value in one.items()}
            if values.keys() == {"prompt", "output"}:
                text = f"{values['prompt']} <mark>{values['output']}</mark>"
            else:
                text = "<br>".join(f"<b>{escape(key)}</b> {text}" for key, text in values.items())
            parts.append(f"<li>{text}</li>")
        parts.append("</ul>")
    if not state.samples:
        parts.append(f"<p>{escape(translate('no_samples', request))}</p>")
    return "".join(parts)


def _escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    marked = "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!|>~" else c for c in escape(text, False))
    return " ".join(marked.split())
