"""The tabs: each sends a request to its endpoint and shows the answer; tokenizing needs none."""

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
from trivium.serve.api_error import as_api_error
from trivium.serve.endpoints import ENDPOINTS
from trivium.serve.models import ModelRegistry
from trivium.serve.playground.examples import Examples
from trivium.serve.playground.texts import label, text
from trivium.serve.replies import Json
from trivium.text import Tokenizer
from trivium.text.symbols import readable

EVENT: Json = {"api_visibility": "private", "show_progress": "minimal"}
"""Options of every event; programs use the API, not the playground's events."""

Models = Mapping[str, LanguageModel]
"""The models of a tab by their ids, without weights where they are not loaded yet."""

_MAX_TOKENS, _ALTERNATIVES = 512, 5
_WHITE = 1e-4  # Tokens of this probability or less have no color.


async def ask(registry: ModelRegistry, path: str, request: gr.Request, **fields: Any) -> Any:
    """The answer of an endpoint through the model's thread: JSON, or a stream of it."""
    endpoint = ENDPOINTS[path]
    filled = {name: value for name, value in fields.items() if value not in (None, "")}
    required = [name for name, field in endpoint.schema.model_fields.items() if field.is_required()]
    if not filled.keys() >= {*required}:
        raise empty_error(request)
    try:
        async with asyncio.timeout(registry.limits.timeout):
            body = endpoint.schema.model_validate(filled)
            return (await endpoint.respond(registry, body)).content
    except Exception as error:
        raise plain_error(error, request) from error


@contextlib.asynccontextmanager
async def stream(
    registry: ModelRegistry, path: str, request: gr.Request, **fields: Any
) -> AsyncGenerator[AsyncGenerator[Json]]:
    """The events of a streamed answer, which ends with the block; an error is shown."""
    events = await ask(registry, path, request, stream=True, **fields)
    try:
        async with contextlib.aclosing(events):
            yield events
    except Exception as error:
        raise plain_error(error, request) from error


def plain_error(error: Exception, request: gr.Request) -> gr.Error:
    """The message that a client of the API would read; the page takes it for HTML."""
    return _error(escape(as_api_error(error).detail), request)


def empty_error(request: gr.Request) -> gr.Error:
    """There is no text."""
    return _error(text("empty", request), request)


def _error(message: str, request: gr.Request) -> gr.Error:
    """Shown for some seconds, so that it does not stay over later answers."""
    title = text("error", request)
    return gr.Error(message, duration=6, title=title, print_exception=False)


def choose_model(models: Models, tab: str) -> gr.Dropdown:
    """The models to choose from."""
    return gr.Dropdown(
        list(models), value=next(iter(models)), label=label("model"), elem_id=f"{tab}-model"
    )


def clear_for_another(model: gr.Dropdown, outputs: Sequence[Any], running: Any) -> None:
    """Remove what a model gave, and stop what it still gives, when another one is chosen."""
    model.input(
        _nothing_in(outputs), None, list(outputs), cancels=[running], api_visibility="private"
    )


def clear_on_failure(outputs: Sequence[Any], running: Any) -> None:
    """Remove what was there before a request that fails: it is no answer to it."""
    running.failure(_nothing_in(outputs), None, list(outputs), api_visibility="private")


def _nothing_in(outputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: [None] * len(outputs) if len(outputs) > 1 else None


def run_button(tab: str) -> gr.Button:
    """The button that sends the request."""
    return gr.Button(label("run"), variant="primary", elem_id=f"{tab}-run")


def text_box(tab: str, name: str, value: str = "", key: str = "text", lines: int = 3) -> gr.Textbox:
    """A field for text."""
    return gr.Textbox(value, label=label(key), lines=lines, max_lines=14, elem_id=f"{tab}-{name}")


def table(tab: str, key: str, widths: Sequence[int] = ()) -> gr.Dataframe:
    """Where a table appears; with widths of columns in percent all are seen on a small screen."""
    return gr.Dataframe(
        headers=[" "],  # while it is empty, where Gradio numbers columns
        label=label(key),
        interactive=False,
        wrap=True,
        max_height=1000,
        column_widths=[f"{width}%" for width in widths] or None,
        elem_id=f"{tab}-table",
    )


def percent(share: float) -> str:
    """A probability with three digits.

    >>> percent(0.4213), percent(0.00421)
    ('42.1%', '0.42%')
    """
    return f"{share:.2%}" if share < 0.01 else f"{share:.1%}"


def visible(token: str) -> str:
    r"""A token as the tokenizer's page shows it: U+2581 for a space, escapes for line breaks.

    >>> visible(" it\n")
    '\u2581it\\n'
    """
    return readable(token.encode())


def rows(request: gr.Request, keys: Sequence[str], values: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """A table with translated columns."""
    return pd.DataFrame(list(values), columns=[text(key, request) for key in keys])


def completions_tab(registry: ModelRegistry, models: Models, opened: Any) -> None:
    """Continue a text; every token with its probability."""
    example = Examples(registry, models)
    with gr.Row():
        with gr.Column(scale=2):
            model = choose_model(models, "completions")
            prompt = text_box("completions", "text", example("completions"))
            with gr.Row():
                run, stop = run_button("completions"), gr.Button(label("stop"))
            with gr.Accordion(label("settings"), open=False):
                most = min(_MAX_TOKENS, registry.limits.max_tokens)
                length = gr.Slider(1, most, min(64, most), step=1, label="max_tokens")
                options = _sampling_controls()
        with gr.Column(scale=3):
            shown = gr.HighlightedText(
                label=label("completions.result"), elem_id="completions-shown"
            )
            plain = gr.Textbox(
                label=label("completions.plain"), buttons=["copy"], elem_id="completions-plain"
            )
            alternatives = table("completions", "completions.tokens", (22, 33, 45))

    async def generate(
        name: str, prompt: str, length: float, request: gr.Request, *values: str
    ) -> AsyncGenerator[tuple[Any, ...]]:
        # The output of an encoder-decoder does not continue the prompt.
        continues = models[name].spec.family == "decoder-only"
        pieces: list[tuple[str, float | None]] = [(prompt, None)] if continues else []
        cells: list[tuple[str, str, str]] = []
        columns = ("token", "probability", "alternatives")
        whole = prompt if continues else ""
        # Log-probability of what follows the last text: tokens may be half characters.
        of_text = 0.0
        answer = stream(
            registry,
            "/v1/completions",
            request,
            model=name,
            prompt=prompt,
            max_tokens=round(length),
            logprobs=_ALTERNATIVES,
            **dict(zip(options, map(as_number, values))),
        )
        async with answer as events:
            async for event in events:
                logprobs = event["choices"][0]["logprobs"]
                for token, logprob, top in zip(
                    logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
                ):
                    of_text += logprob
                    best = itertools.islice(top.items(), _ALTERNATIVES)  # then the token itself
                    others = (
                        f"{visible(other)}\N{NO-BREAK SPACE}{percent(exp(p))}" for other, p in best
                    )
                    cells.append((visible(token), percent(exp(logprob)), "  ".join(others)))
                if new := event["choices"][0]["text"]:
                    pieces.append((visible(new), max(0.0, 1 - of_text / log(_WHITE))))
                    whole, of_text = whole + new, 0.0
                yield pieces, whole, rows(request, columns, cells)

    generating = gr.on(
        [opened, run.click, prompt.submit],
        generate,
        [model, prompt, length, *options.values()],
        [shown, plain, alternatives],
        **EVENT,
    )
    stop.click(None, cancels=[generating], api_visibility="private")
    clear_for_another(model, [shown, plain, alternatives], generating)


def _sampling_controls() -> dict[str, gr.Textbox]:
    """A field for every numeric sampling option of the endpoint, with the default of the command.

    Fields of text, because Gradio's fields of numbers send 0 when they are empty.
    """
    known = ENDPOINTS["/v1/completions"].schema.model_fields
    controls: dict[str, gr.Textbox] = {}
    for option in option_fields(SamplingParams):
        kinds = str(option.type).split(" | ")
        if option.name in known and ("float" in kinds or "int" in kinds):
            controls[option.name] = gr.Textbox(
                "" if option.default is None else f"{option.default:g}",
                label=option.name,
                info=label(f"option.{option.name}"),
                elem_id=f"completions-{option.name}",
            )
    return controls


def as_number(value: str) -> int | float | str:
    """A number as typed; another text as it is, for the endpoint to refuse.

    >>> as_number("5"), as_number("0.7"), as_number("much"), as_number("")
    (5, 0.7, 'much', '')
    """
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


@dataclass(frozen=True)
class EndpointTab:
    """The tab of an endpoint: fields of its request, and components that show its answer.

    Args:
        name: prefix of its texts and element ids; the path is `/v1/` and the name.
        fields: builds the request's fields, by their names in the schema, with examples.
        outputs: builds the components that show the answer.
        show: their values, from the answer's data, the request and the browser.
        prepare: changes the fields' values before they are sent.
        unused: fields that a model does not read, which are hidden.
    """

    name: str
    fields: Callable[[Examples], dict[str, Any]]
    outputs: Callable[[], list[Any]]
    show: Callable[[list[Any], Json, gr.Request], Any]
    prepare: Callable[[Json], Json] = dict
    unused: Callable[[LanguageModel], Sequence[str]] = lambda lm: ()

    def add(self, registry: ModelRegistry, models: Models, opened: Any) -> None:
        """Build the tab for some models; see `TABS`."""
        unused = {name: self.unused(lm) for name, lm in models.items()}
        with gr.Row():
            with gr.Column(scale=2):
                model = choose_model(models, self.name)
                fields = self.fields(Examples(registry, models))
                for field in next(iter(unused.values())):
                    fields[field].visible = False
                run = run_button(self.name)
            with gr.Column(scale=3):
                outputs = self.outputs()

        async def answer(name: str, request: gr.Request, *values: Any) -> Any:
            read = {k: v for k, v in zip(fields, values) if k not in unused[name]}
            sent = self.prepare(read)
            reply = await ask(registry, f"/v1/{self.name}", request, model=name, **sent)
            return self.show(reply["data"], sent, request)

        answer.__name__ = self.name
        submits = [each.submit for each in fields.values() if isinstance(each, gr.Textbox)]
        inputs = [model, *fields.values()]
        answering = gr.on([opened, run.click, *submits], answer, inputs, outputs, **EVENT)
        clear_on_failure(outputs, answering)
        clear_for_another(model, outputs, answering)
        for field in {field for names in unused.values() for field in names}:
            model.input(
                lambda name, field=field: gr.Textbox(visible=field not in unused[name]),
                model,
                fields[field],
                api_visibility="private",
            )


def _count(value: int) -> gr.Slider:
    return gr.Slider(1, 20, value, step=1, label=label("count"))


def _show_masks(data: list[Any], sent: Json, request: gr.Request) -> pd.DataFrame:
    columns = ("fill-mask.mask", "token", "fill-mask.probability", "text")
    cells = [
        (
            number,
            fill["token"] or text("nothing", request),
            percent(fill["score"]),
            fill["sequence"],
        )
        for number, fills in enumerate(data[0]["masks"], 1)
        for fill in fills
    ]
    return rows(request, columns, cells)


def _lines(sent: Json) -> Json:
    """Each line is a source of its own."""
    lines = [line for line in sent["text"].splitlines() if line.strip()]
    return {"text": lines or None, "num_beams": sent["num_beams"] or None}


def _show_label(data: list[Any], sent: Json, request: gr.Request) -> Any:
    return data[0]["scores"] or f"{data[0]['score']:.4g}"


def _show_tags(data: list[Any], sent: Json, request: gr.Request) -> tuple[Any, pd.DataFrame]:
    words = data[0]["words"]
    cells = [(each["word"], each["tag"], percent(each["score"])) for each in words]
    marked = [(one["start"], one["end"], one["type"]) for one in data[0]["entities"]] or [
        (one["start"], one["end"], one["tag"]) for one in words if one["tag"] != "O"
    ]
    columns = ("tag.word", "tag.result", "probability")
    return spans(sent["text"], marked), rows(request, columns, cells)


def spans(text: str, marked: Sequence[tuple[int, int, str]]) -> list[tuple[str, str | None]]:
    """The parts of a text with the names of those that are marked by their characters.

    >>> spans("to New York.", [(3, 11, "LOC")])
    [('to ', None), ('New York', 'LOC'), ('.', None)]
    """
    parts: list[tuple[str, str | None]] = []
    last = 0
    for start, end, name in marked:
        parts += [(text[last:start], None), (text[start:end], name)]
        last = end
    return [part for part in (*parts, (text[last:], None)) if part[0]]


def _show_answers(data: list[Any], sent: Json, request: gr.Request) -> tuple[Any, pd.DataFrame]:
    answers, context = data[0]["answers"], sent["context"]
    start, end = answers[0]["start"], answers[0]["end"]
    marked = spans(context, [(start, end, "1")])
    cells = [
        (each["text"] or text("answer.none", request), percent(each["score"])) for each in answers
    ]
    return marked, rows(request, ("answer", "probability"), cells)


_FILL_MASK = EndpointTab(
    "fill-mask",
    fields=lambda example: {
        "text": text_box("fill-mask", "text", example("fill-mask"), "fill-mask.text"),
        "top_k": _count(5),
    },
    outputs=lambda: [table("fill-mask", "fill-mask.result", (12, 20, 20, 48))],
    show=_show_masks,
)
_TRANSLATE = EndpointTab(
    "translate",
    fields=lambda example: {
        "text": text_box("translate", "text", example("text"), "translate.source", lines=5),
        "num_beams": gr.Slider(0, 16, 0, step=1, label=label("translate.beams")),
    },
    outputs=lambda: [text_box("translate", "shown", key="translate.target", lines=5)],
    show=lambda data, sent, request: "\n".join(each["text"] for each in data),
    prepare=_lines,
)
_CLASSIFY = EndpointTab(
    "classify",
    fields=lambda example: {
        "text": text_box("classify", "text", example("text")),
        "pair": text_box("classify", "pair", example("pair"), "classify.pair", lines=1),
    },
    outputs=lambda: [gr.Label(label=label("classify.result"), elem_id="classify-shown")],
    show=_show_label,
    prepare=lambda sent: {**sent, "truncate": True},
    unused=lambda lm: ("pair",) if lm.settings.reads_pairs is False else (),
)
_TAG = EndpointTab(
    "tag",
    fields=lambda example: {"text": text_box("tag", "text", example("tag"), "tag.text")},
    outputs=lambda: [
        gr.HighlightedText(label=label("tag.result"), elem_id="tag-shown"),
        table("tag", "tag.words"),
    ],
    show=_show_tags,
)
_ANSWER = EndpointTab(
    "answer",
    fields=lambda example: {
        "question": text_box(
            "answer", "question", example("answer.question"), "answer.question", lines=1
        ),
        "context": text_box(
            "answer", "context", example("answer.context"), "answer.context", lines=6
        ),
        "top_k": _count(3),
    },
    outputs=lambda: [
        gr.HighlightedText(
            label=label("answer.result"), show_inline_category=False, elem_id="answer-shown"
        ),
        table("answer", "answer.answers"),
    ],
    show=_show_answers,
)


def tokenize_tab(registry: ModelRegistry, models: Models, opened: Any) -> None:
    """The tokenizers of all models on one text; no weights are loaded for it."""
    source = text_box("tokenize", "text", Examples(registry, models)("text"))
    run = run_button("tokenize")
    named = [pair for name, lm in models.items() for pair in _tokenizers(name, lm).items()]
    same: dict[str, list[str]] = {}  # models whose tokenizers are equal
    for name, tokenizer in named:
        same.setdefault(tokenizer.fingerprint, []).append(name)
    tokenizers = {", ".join(same[each.fingerprint]): each for _, each in named}
    figures = table("tokenize", "tokenize")
    shown = [
        gr.HighlightedText(
            label=name, show_inline_category=False, elem_id=f"tokenize-shown-{number}"
        )
        for number, name in enumerate(tokenizers)
    ]

    async def compare(source: str, request: gr.Request) -> list[Any]:
        if not source:
            raise empty_error(request)
        highlighted, cells = [], []
        for name, tokenizer in tokenizers.items():
            encoding = await asyncio.to_thread(tokenizer.encode, source, add_special_tokens=False)
            highlighted.append([(token, str(n % 4)) for n, token in enumerate(encoding.tokens)])
            count = len(encoding.ids)
            cells.append(
                (
                    name,
                    f"{tokenizer.kind} {tokenizer.vocab_size:,}",
                    count,
                    f"{len(source.encode()) / max(1, count):.2f}",
                    f"{len(source) / max(1, count):.2f}",
                    sum(index == tokenizer.unk_id for index in encoding.ids),
                )
            )
        parts = ("vocabulary", "tokens", "bytes", "characters", "unknown")
        columns = ("model", *(f"tokenize.{part}" for part in parts))
        return [rows(request, columns, cells), *highlighted]

    gr.on([opened, run.click, source.submit], compare, source, [figures, *shown], **EVENT)


def _tokenizers(name: str, lm: LanguageModel) -> dict[str, Tokenizer]:
    """The tokenizers of a model by their labels: one, or one of sources and one of targets."""
    if lm.source_tokenizer is lm.text_tokenizer:
        return {name: lm.text_tokenizer}
    return {f"{name} (source)": lm.source_tokenizer, f"{name} (target)": lm.text_tokenizer}


AddTab = Callable[[ModelRegistry, Models, Any], None]

TABS: dict[str, tuple[str, AddTab]] = {
    "/v1/completions": ("completions", completions_tab),
    **{
        f"/v1/{tab.name}": (tab.name, tab.add)
        for tab in (_FILL_MASK, _TRANSLATE, _CLASSIFY, _TAG, _ANSWER)
    },
    "/v1/tokenize": ("tokenize", tokenize_tab),
}
"""Path of an endpoint -> id and function of its tab.

A function gets the models of the tab, and the event of its first opening, which runs the example.
"""
