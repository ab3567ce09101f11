"""The tabs of the playground. Most tabs send a request to an endpoint and show the response.

The tokenizer tab does not use an endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import exp, log
from typing import Any

import gradio as gr
import pandas as pd

from trivium.config import option_fields
from trivium.inference.sampling_params import SamplingParams
from trivium.language_model import LanguageModel
from trivium.serve.api_error import to_api_error
from trivium.serve.endpoints import ENDPOINTS
from trivium.serve.models import ModelRegistry
from trivium.serve.playground.examples import Examples
from trivium.serve.playground.texts import make_label, translate
from trivium.serve.replies import Json
from trivium.text import Tokenizer
from trivium.text.symbols import make_readable

EVENT: Json = {"api_visibility": "private", "show_progress": "minimal"}
"""The Gradio options of every event.

Events are private, because programs should use the API instead.
"""

Models = Mapping[str, LanguageModel]
"""Model id -> model, for the models of a tab. A model that is not loaded yet has no weights."""

_MAX_TOKENS, _ALTERNATIVES = 512, 5
_WHITE = 1e-4  # Tokens of this probability or less have no color.


async def call_api(registry: ModelRegistry, path: str, request: gr.Request, **fields: Any) -> Any:
    """Send a request to an endpoint. Returns the response: JSON, or a stream of JSON objects.

    Args:
        registry: the served models.
        path: the path of the endpoint.
        request: the browser's HTTP request, which determines the language of error messages.
        fields: the fields of the JSON request body. None and empty values are omitted.

    Raises gr.Error with a message for the user.
    """
    endpoint = ENDPOINTS[path]
    filled = {name: value for name, value in fields.items() if value not in (None, "")}
    required = [name for name, field in endpoint.schema.model_fields.items() if field.is_required()]
    if not filled.keys() >= {*required}:
        raise make_empty_error(request)
    try:
        async with asyncio.timeout(registry.limits.timeout):
            body = endpoint.schema.model_validate(filled)
            return (await endpoint.respond(registry, body)).content
    except Exception as error:
        raise make_error(error, request) from error


@contextlib.asynccontextmanager
async def stream_api(
    registry: ModelRegistry, path: str, request: gr.Request, **fields: Any
) -> AsyncGenerator[AsyncGenerator[Json]]:
    """Send a request to an endpoint and return a context manager for its streamed response.

    The stream is closed at the end of the `with` block. The arguments are the same as for
    `call_api`.

    Raises gr.Error with a message for the user.
    """
    events = await call_api(registry, path, request, stream=True, **fields)
    try:
        async with contextlib.aclosing(events):
            yield events
    except Exception as error:
        raise make_error(error, request) from error


def make_error(error: Exception, request: gr.Request) -> gr.Error:
    """Convert an exception to a Gradio error with the same message as in the API.

    The message is escaped, because the page interprets it as HTML.
    """
    return _make_brief_error(escape(to_api_error(error).detail), request)


def make_empty_error(request: gr.Request) -> gr.Error:
    """Create the Gradio error for empty input."""
    return _make_brief_error(translate("empty", request), request)


def _make_brief_error(message: str, request: gr.Request) -> gr.Error:
    """Create a Gradio error that disappears after a few seconds, so that results stay visible."""
    title = translate("error", request)
    return gr.Error(message, duration=6, title=title, print_exception=False)


def make_model_menu(models: Models, tab: str) -> gr.Dropdown:
    """Create a dropdown menu of the models of a tab."""
    return gr.Dropdown(
        list(models), value=next(iter(models)), label=make_label("model"), elem_id=f"{tab}-model"
    )


def clear_on_model_change(model: gr.Dropdown, outputs: Sequence[Any], running: Any) -> None:
    """Clear the outputs and cancel the running event when the user chooses another model.

    Args:
        model: the menu of models.
        outputs: the components to clear.
        running: the event that fills the outputs.
    """
    model.input(
        _make_clear_handler(outputs),
        None,
        list(outputs),
        cancels=[running],
        api_visibility="private",
    )


def clear_on_failure(outputs: Sequence[Any], running: Any) -> None:
    """Clear the outputs if the event `running` fails, so that no earlier result is shown."""
    running.failure(_make_clear_handler(outputs), None, list(outputs), api_visibility="private")


def _make_clear_handler(outputs: Sequence[Any]) -> Callable[[], Any]:
    """Create an event handler that clears the outputs."""
    return lambda: [None] * len(outputs) if len(outputs) > 1 else None


def make_run_button(tab: str) -> gr.Button:
    """Create the button that sends the request of a tab."""
    return gr.Button(make_label("run"), variant="primary", elem_id=f"{tab}-run")


def make_text_box(
    tab: str, name: str, value: str = "", key: str = "text", lines: int = 3
) -> gr.Textbox:
    """Create a text field.

    Args:
        tab: the id of the tab.
        name: the name of the field in the tab.
        value: the initial text.
        key: the key of the label in texts.toml.
        lines: the minimum number of visible lines.
    """
    return gr.Textbox(
        value, label=make_label(key), lines=lines, max_lines=14, elem_id=f"{tab}-{name}"
    )


def make_output_table(tab: str, key: str, widths: Sequence[int] = ()) -> gr.Dataframe:
    """Create an empty table for results.

    Args:
        tab: the id of the tab.
        key: the key of the label in texts.toml.
        widths: the column widths in percent. With these widths, the table fits on a small screen.
    """
    return gr.Dataframe(
        headers=[" "],  # Without a header, Gradio numbers the columns of an empty table.
        label=make_label(key),
        interactive=False,
        wrap=True,
        max_height=1000,
        column_widths=[f"{width}%" for width in widths] or None,
        elem_id=f"{tab}-table",
    )


def format_percent(probability: float) -> str:
    """Format a probability as a percentage.

    >>> format_percent(0.4213), format_percent(0.00421)
    ('42.1%', '0.42%')
    """
    return f"{probability:.2%}" if probability < 0.01 else f"{probability:.1%}"


def escape_token(token: str) -> str:
    r"""Make the white space in a token visible. Spaces become U+2581, line breaks become escapes.

    >>> escape_token(" it\n")
    '\u2581it\\n'
    """
    return make_readable(token.encode())


def make_result_table(
    request: gr.Request, column_keys: Sequence[str], rows: Sequence[Sequence[Any]]
) -> pd.DataFrame:
    """Create a table of results with translated column names.

    Args:
        request: the browser's HTTP request, which determines the language.
        column_keys: the keys of the column names in texts.toml.
        rows: the rows of the table.
    """
    return pd.DataFrame(list(rows), columns=[translate(key, request) for key in column_keys])


def build_completions_tab(registry: ModelRegistry, models: Models, opened: Any) -> None:
    """Build the tab that continues a text and shows the probability of every token.

    Args:
        registry: the served models.
        models: the models of the tab.
        opened: the event that occurs when the tab is opened for the first time.
    """
    example = Examples(registry, models)
    with gr.Row():
        with gr.Column(scale=2):
            model = make_model_menu(models, "completions")
            prompt = make_text_box("completions", "text", example("completions"))
            with gr.Row():
                run, stop = make_run_button("completions"), gr.Button(make_label("stop"))
            with gr.Accordion(make_label("settings"), open=False):
                most = min(_MAX_TOKENS, registry.limits.max_tokens)
                length = gr.Slider(1, most, min(64, most), step=1, label="max_tokens")
                options = _make_sampling_controls()
        with gr.Column(scale=3):
            shown = gr.HighlightedText(
                label=make_label("completions.result"), elem_id="completions-shown"
            )
            plain = gr.Textbox(
                label=make_label("completions.plain"), buttons=["copy"], elem_id="completions-plain"
            )
            alternatives = make_output_table("completions", "completions.tokens", (22, 33, 45))

    async def generate(
        name: str, prompt: str, length: float, request: gr.Request, *values: str
    ) -> AsyncGenerator[tuple[Any, ...]]:
        # The output of an encoder-decoder does not continue the prompt.
        """Generate text.

        Yields the outputs so far: colored tokens, plain text, and table of alternatives.
        """
        continues = models[name].spec.family == "decoder-only"
        pieces: list[tuple[str, float | None]] = [(prompt, None)] if continues else []
        cells: list[tuple[str, str, str]] = []
        columns = ("token", "probability", "alternatives")
        whole = prompt if continues else ""
        # The log-probability of the tokens since the last new text. Several tokens may be needed
        # for one character.
        of_text = 0.0
        answer = stream_api(
            registry,
            "/v1/completions",
            request,
            model=name,
            prompt=prompt,
            max_tokens=round(length),
            logprobs=_ALTERNATIVES,
            **dict(zip(options, map(parse_number, values))),
        )
        async with answer as events:
            async for event in events:
                logprobs = event["choices"][0]["logprobs"]
                for token, logprob, top in zip(
                    logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
                ):
                    of_text += logprob
                    # The token itself may follow the most probable tokens.
                    best = itertools.islice(top.items(), _ALTERNATIVES)
                    others = (
                        f"{escape_token(other)}\N{NO-BREAK SPACE}{format_percent(exp(p))}"
                        for other, p in best
                    )
                    cells.append(
                        (escape_token(token), format_percent(exp(logprob)), "  ".join(others))
                    )
                if new := event["choices"][0]["text"]:
                    pieces.append((escape_token(new), max(0.0, 1 - of_text / log(_WHITE))))
                    whole, of_text = whole + new, 0.0
                yield pieces, whole, make_result_table(request, columns, cells)

    generating = gr.on(
        [opened, run.click, prompt.submit],
        generate,
        [model, prompt, length, *options.values()],
        [shown, plain, alternatives],
        **EVENT,
    )
    stop.click(None, cancels=[generating], api_visibility="private")
    clear_on_model_change(model, [shown, plain, alternatives], generating)


def _make_sampling_controls() -> dict[str, gr.Textbox]:
    """Create a text field for every numeric sampling option of `/v1/completions`.

    The initial values are the defaults of `SamplingParams`. Gradio's number fields are not used,
    because an empty number field sends 0.
    """
    known = ENDPOINTS["/v1/completions"].schema.model_fields
    controls: dict[str, gr.Textbox] = {}
    for option in option_fields(SamplingParams):
        kinds = str(option.type).split(" | ")
        if option.name in known and ("float" in kinds or "int" in kinds):
            controls[option.name] = gr.Textbox(
                "" if option.default is None else f"{option.default:g}",
                label=option.name,
                info=make_label(f"option.{option.name}"),
                elem_id=f"completions-{option.name}",
            )
    return controls


def parse_number(value: str) -> int | float | str:
    """Parse user input as a number. Returns input that is not numeric unchanged.

    The endpoint then rejects such input.

    >>> parse_number("5"), parse_number("0.7"), parse_number("much"), parse_number("")
    (5, 0.7, 'much', '')
    """
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


@dataclass(frozen=True)
class EndpointTab:
    """A playground tab for an endpoint, with request fields and response outputs.

    Args:
        name: the name of the endpoint; its path is `/v1/NAME`. Keys in texts.toml and element ids
            start with this name.
        fields: builds the input fields, filled with examples. Returns a dict of name in the request
            schema -> input field.
        outputs: builds the components that show the response.
        show: returns the values of the output components, given the data of the response, the
            fields that were sent, and the browser's HTTP request.
        prepare: converts the field values to the values that are sent.
        unused: returns the names of the fields that a model does not use. These fields are hidden.
    """

    name: str
    fields: Callable[[Examples], dict[str, Any]]
    outputs: Callable[[], list[Any]]
    show: Callable[[list[Any], Json, gr.Request], Any]
    prepare: Callable[[Json], Json] = dict
    unused: Callable[[LanguageModel], Sequence[str]] = lambda lm: ()

    def build(self, registry: ModelRegistry, models: Models, opened: Any) -> None:
        """Build the Gradio components of this endpoint's tab.

        Args:
            registry: the served models.
            models: the models of the tab.
            opened: the event that occurs when the tab is opened for the first time.
        """
        unused = {name: self.unused(lm) for name, lm in models.items()}
        with gr.Row():
            with gr.Column(scale=2):
                model = make_model_menu(models, self.name)
                fields = self.fields(Examples(registry, models))
                for field in next(iter(unused.values())):
                    fields[field].visible = False
                run = make_run_button(self.name)
            with gr.Column(scale=3):
                outputs = self.outputs()

        async def answer(name: str, request: gr.Request, *values: Any) -> Any:
            """Send the values of the input fields to the endpoint.

            Returns the values of the outputs.
            """
            read = {k: v for k, v in zip(fields, values) if k not in unused[name]}
            sent = self.prepare(read)
            reply = await call_api(registry, f"/v1/{self.name}", request, model=name, **sent)
            return self.show(reply["data"], sent, request)

        answer.__name__ = self.name
        submits = [each.submit for each in fields.values() if isinstance(each, gr.Textbox)]
        inputs = [model, *fields.values()]
        answering = gr.on([opened, run.click, *submits], answer, inputs, outputs, **EVENT)
        clear_on_failure(outputs, answering)
        clear_on_model_change(model, outputs, answering)
        for field in {field for names in unused.values() for field in names}:
            model.input(
                lambda name, field=field: gr.Textbox(visible=field not in unused[name]),
                model,
                fields[field],
                api_visibility="private",
            )


def _make_count_slider(value: int) -> gr.Slider:
    """Create a slider for the number of results, with the initial value `value`."""
    return gr.Slider(1, 20, value, step=1, label=make_label("count"))


def _show_masks(data: list[Any], sent: Json, request: gr.Request) -> pd.DataFrame:
    """Return a table of the predictions for every mask."""
    columns = ("fill-mask.mask", "token", "fill-mask.probability", "text")
    cells = [
        (
            number,
            fill["token"] or translate("nothing", request),
            format_percent(fill["score"]),
            fill["sequence"],
        )
        for number, fills in enumerate(data[0]["masks"], 1)
        for fill in fills
    ]
    return make_result_table(request, columns, cells)


def _split_source(sent: Json) -> Json:
    """Split the source text into lines, because each line is translated separately.

    `sent` contains the values of the input fields. Returns the fields to send to the endpoint.
    """
    lines = [line for line in sent["text"].splitlines() if line.strip()]
    return {"text": lines or None, "num_beams": sent["num_beams"] or None}


def _show_label(data: list[Any], sent: Json, request: gr.Request) -> Any:
    """Return the probabilities of all labels.

    For a regression model, return the predicted value.
    """
    return data[0]["scores"] or f"{data[0]['score']:.4g}"


def _show_tags(data: list[Any], sent: Json, request: gr.Request) -> tuple[Any, pd.DataFrame]:
    """Return the text with highlighted entities (or tags), and a table of words and tags."""
    words = data[0]["words"]
    cells = [(each["word"], each["tag"], format_percent(each["score"])) for each in words]
    marked = [(one["start"], one["end"], one["type"]) for one in data[0]["entities"]] or [
        (one["start"], one["end"], one["tag"]) for one in words if one["tag"] != "O"
    ]
    columns = ("tag.word", "tag.result", "probability")
    return split_spans(sent["text"], marked), make_result_table(request, columns, cells)


def split_spans(text: str, marked: Sequence[tuple[int, int, str]]) -> list[tuple[str, str | None]]:
    """Split a text into labelled and unlabelled spans, for Gradio's HighlightedText.

    `marked` contains the start (in characters), the end and the label of each labelled span.

    >>> split_spans("to New York.", [(3, 11, "LOC")])
    [('to ', None), ('New York', 'LOC'), ('.', None)]
    """
    parts: list[tuple[str, str | None]] = []
    last = 0
    for start, end, name in marked:
        parts += [(text[last:start], None), (text[start:end], name)]
        last = end
    return [part for part in (*parts, (text[last:], None)) if part[0]]


def _show_answers(data: list[Any], sent: Json, request: gr.Request) -> tuple[Any, pd.DataFrame]:
    """Return the context with the best answer highlighted, and a table of all answers."""
    answers, context = data[0]["answers"], sent["context"]
    start, end = answers[0]["start"], answers[0]["end"]
    marked = split_spans(context, [(start, end, "1")])
    cells = [
        (each["text"] or translate("answer.none", request), format_percent(each["score"]))
        for each in answers
    ]
    return marked, make_result_table(request, ("answer", "probability"), cells)


_FILL_MASK = EndpointTab(
    "fill-mask",
    fields=lambda example: {
        "text": make_text_box("fill-mask", "text", example("fill-mask"), "fill-mask.text"),
        "top_k": _make_count_slider(5),
    },
    outputs=lambda: [make_output_table("fill-mask", "fill-mask.result", (12, 20, 20, 48))],
    show=_show_masks,
)
_TRANSLATE = EndpointTab(
    "translate",
    fields=lambda example: {
        "text": make_text_box("translate", "text", example("text"), "translate.source", lines=5),
        "num_beams": gr.Slider(0, 16, 0, step=1, label=make_label("translate.beams")),
    },
    outputs=lambda: [make_text_box("translate", "shown", key="translate.target", lines=5)],
    show=lambda data, sent, request: "\n".join(each["text"] for each in data),
    prepare=_split_source,
)
_CLASSIFY = EndpointTab(
    "classify",
    fields=lambda example: {
        "text": make_text_box("classify", "text", example("text")),
        "pair": make_text_box("classify", "pair", example("pair"), "classify.pair", lines=1),
    },
    outputs=lambda: [gr.Label(label=make_label("classify.result"), elem_id="classify-shown")],
    show=_show_label,
    prepare=lambda sent: {**sent, "truncate": True},
    unused=lambda lm: ("pair",) if lm.settings.reads_pairs is False else (),
)
_TAG = EndpointTab(
    "tag",
    fields=lambda example: {"text": make_text_box("tag", "text", example("tag"), "tag.text")},
    outputs=lambda: [
        gr.HighlightedText(label=make_label("tag.result"), elem_id="tag-shown"),
        make_output_table("tag", "tag.words"),
    ],
    show=_show_tags,
)
_ANSWER = EndpointTab(
    "answer",
    fields=lambda example: {
        "question": make_text_box(
            "answer", "question", example("answer.question"), "answer.question", lines=1
        ),
        "context": make_text_box(
            "answer", "context", example("answer.context"), "answer.context", lines=6
        ),
        "top_k": _make_count_slider(3),
    },
    outputs=lambda: [
        gr.HighlightedText(
            label=make_label("answer.result"), show_inline_category=False, elem_id="answer-shown"
        ),
        make_output_table("answer", "answer.answers"),
    ],
    show=_show_answers,
)


def build_tokenize_tab(registry: ModelRegistry, models: Models, opened: Any) -> None:
    """Build the tab that compares the tokenizers of all models on one text. Does not load weights.

    Args:
        registry: the served models.
        models: the models of the tab.
        opened: the event that occurs when the tab is opened for the first time.
    """
    source = make_text_box("tokenize", "text", Examples(registry, models)("text"))
    run = make_run_button("tokenize")
    named = [pair for name, lm in models.items() for pair in _find_tokenizers(name, lm).items()]
    same: dict[str, list[str]] = {}  # models whose tokenizers are equal
    for name, tokenizer in named:
        same.setdefault(tokenizer.fingerprint, []).append(name)
    tokenizers = {", ".join(same[each.fingerprint]): each for _, each in named}
    figures = make_output_table("tokenize", "tokenize")
    shown = [
        gr.HighlightedText(
            label=name, show_inline_category=False, elem_id=f"tokenize-shown-{number}"
        )
        for number, name in enumerate(tokenizers)
    ]

    async def compare_tokenizers(text: str, request: gr.Request) -> list[Any]:
        """Tokenize a text with all tokenizers. Returns a comparison table, and the tokens."""
        if not text:
            raise make_empty_error(request)
        highlighted, cells = [], []
        for name, tokenizer in tokenizers.items():
            encoding = await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=False)
            highlighted.append([(token, str(n % 4)) for n, token in enumerate(encoding.tokens)])
            count = len(encoding.ids)
            cells.append(
                (
                    name,
                    f"{tokenizer.kind} {tokenizer.vocab_size:,}",
                    count,
                    f"{len(text.encode()) / max(1, count):.2f}",
                    f"{len(text) / max(1, count):.2f}",
                    sum(index == tokenizer.unk_id for index in encoding.ids),
                )
            )
        parts = ("vocabulary", "tokens", "bytes", "characters", "unknown")
        columns = ("model", *(f"tokenize.{part}" for part in parts))
        return [make_result_table(request, columns, cells), *highlighted]

    gr.on(
        [opened, run.click, source.submit], compare_tokenizers, source, [figures, *shown], **EVENT
    )


def _find_tokenizers(name: str, lm: LanguageModel) -> dict[str, Tokenizer]:
    """Return the tokenizers of a model, as a dict of label -> tokenizer.

    A model has either one tokenizer or a source tokenizer and a target tokenizer.
    """
    if lm.source_tokenizer is lm.text_tokenizer:
        return {name: lm.text_tokenizer}
    return {f"{name} (source)": lm.source_tokenizer, f"{name} (target)": lm.text_tokenizer}


BuildTab = Callable[[ModelRegistry, Models, Any], None]

TABS: dict[str, tuple[str, BuildTab]] = {
    "/v1/completions": ("completions", build_completions_tab),
    **{
        f"/v1/{tab.name}": (tab.name, tab.build)
        for tab in (_FILL_MASK, _TRANSLATE, _CLASSIFY, _TAG, _ANSWER)
    },
    "/v1/tokenize": ("tokenize", build_tokenize_tab),
}
"""Path of an endpoint -> the id of its tab and the function that builds the tab.

The function receives the registry of models, the models of the tab, and an event. This event occurs
when the tab is opened for the first time, and runs the example.
"""
