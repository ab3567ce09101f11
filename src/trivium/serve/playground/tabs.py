"""The tabs: each sends a request to its endpoint and shows the answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from html import escape
from math import exp
from typing import Any

import gradio as gr
import pandas as pd

from trivium.inference.sampling_params import SamplingParams
from trivium.serve.api_error import as_api_error
from trivium.serve.endpoints import ENDPOINTS
from trivium.serve.models import ModelRegistry
from trivium.serve.playground.texts import label, text

EVENT: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
"""Options of every event; programs use the API, not the playground's events."""

_MAX_TOKENS, _ALTERNATIVES = 512, 5


async def ask(registry: ModelRegistry, path: str, request: gr.Request, **fields: Any) -> Any:
    """The answer of an endpoint through the model's scheduler: JSON, or a stream of it."""
    endpoint = ENDPOINTS[path]
    filled = {name: value for name, value in fields.items() if value not in (None, "")}
    required = [name for name, field in endpoint.schema.model_fields.items() if field.is_required()]
    if not filled.keys() >= {*required}:
        raise gr.Error(text("empty", request), print_exception=False)
    try:
        async with asyncio.timeout(registry.limits.timeout):
            body = endpoint.schema.model_validate(filled)
            return (await endpoint.answer(registry, body)).content
    except Exception as error:
        raise plain_error(error) from error


def plain_error(error: Exception) -> gr.Error:
    """The message that a client of the API would read; the page takes it for HTML."""
    return gr.Error(escape(str(as_api_error(error))), print_exception=False)


def choose_model(names: Sequence[str], tab: str) -> gr.Dropdown:
    """The models to choose from."""
    return gr.Dropdown(list(names), value=names[0], label=label("model"), elem_id=f"{tab}-model")


def run_button(tab: str) -> gr.Button:
    """The button that sends the request."""
    return gr.Button(label("run"), variant="primary", elem_id=f"{tab}-run")


def text_box(tab: str, name: str, value: str = "", key: str = "text", lines: int = 3) -> gr.Textbox:
    """A field for text."""
    return gr.Textbox(value, label=label(key), lines=lines, max_lines=14, elem_id=f"{tab}-{name}")


def table(tab: str, key: str) -> gr.Dataframe:
    """Where a table appears."""
    return gr.Dataframe(label=label(key), interactive=False, elem_id=f"{tab}-table")


def percent(share: float) -> str:
    """A probability with three digits.

    >>> percent(0.4213), percent(0.00421)
    ('42.1%', '0.42%')
    """
    return f"{share:.2%}" if share < 0.01 else f"{share:.1%}"


def rows(request: gr.Request, keys: Sequence[str], values: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """A table with translated columns."""
    return pd.DataFrame(list(values), columns=[text(key, request) for key in keys])


def completions_tab(registry: ModelRegistry, names: list[str]) -> None:
    """Continue a text; every token with its probability."""
    with gr.Row():
        with gr.Column(scale=2):
            model = choose_model(names, "completions")
            prompt = text_box("completions", "text", "Once upon a time")
            with gr.Row():
                run, stop = run_button("completions"), gr.Button(label("stop"))
            with gr.Accordion(label("settings"), open=False):
                length = gr.Slider(1, _MAX_TOKENS, 64, step=1, label="max_tokens")
                options = _sampling_controls()
        with gr.Column(scale=3):
            shown = gr.HighlightedText(
                label=label("completions.result"), elem_id="completions-shown"
            )
            alternatives = table("completions", "alternatives")

    async def generate(
        name: str, prompt: str, length: float, request: gr.Request, *values: float | None
    ) -> AsyncGenerator[tuple[Any, Any]]:
        events = await ask(
            registry,
            "/v1/completions",
            request,
            model=name,
            prompt=prompt,
            max_tokens=round(length),
            logprobs=_ALTERNATIVES,
            stream=True,
            **dict(zip(options, values)),
        )
        pieces: list[tuple[str, float | None]] = [(prompt, None)]
        cells: list[tuple[str, str, str]] = []
        columns = ("token", "probability", "alternatives")
        try:
            async for event in events:
                logprobs = event["choices"][0]["logprobs"]
                for token, logprob, top in zip(
                    logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
                ):
                    pieces.append((token, exp(logprob)))
                    others = (f"{other!r} {percent(exp(value))}" for other, value in top.items())
                    cells.append((token, percent(exp(logprob)), "  ".join(others)))
                yield pieces, rows(request, columns, cells)
        except Exception as error:
            raise plain_error(error) from error
        finally:
            await events.aclose()

    generating = gr.on(
        [run.click, prompt.submit],
        generate,
        [model, prompt, length, *options.values()],
        [shown, alternatives],
        **EVENT,
    )
    stop.click(None, cancels=[generating], api_visibility="private")


def _sampling_controls() -> dict[str, gr.Number]:
    """A field for every numeric sampling option of the endpoint; empty: its default."""
    known = ENDPOINTS["/v1/completions"].schema.model_fields
    controls: dict[str, gr.Number] = {}
    for option in dataclasses.fields(SamplingParams):
        kinds = str(option.type).split(" | ")
        if option.name in known and ("float" in kinds or "int" in kinds):
            controls[option.name] = gr.Number(
                None,
                label=option.name,
                info=option.metadata["description"],
                precision=0 if "int" in kinds else None,
                elem_id=f"completions-{option.name}",
            )
    return controls


def fill_mask_tab(registry: ModelRegistry, names: list[str]) -> None:
    """Predict masked tokens."""
    with gr.Row():
        with gr.Column(scale=2):
            model = choose_model(names, "fill-mask")
            masked = text_box(
                "fill-mask", "text", "The weather was [MASK] yesterday.", "fill-mask.text"
            )
            count = gr.Slider(1, 20, 5, step=1, label=label("count"))
            run = run_button("fill-mask")
        with gr.Column(scale=3):
            shown = table("fill-mask", "fill-mask.result")

    async def fill(name: str, masked: str, count: float, request: gr.Request) -> pd.DataFrame:
        answer = await ask(
            registry, "/v1/fill-mask", request, model=name, text=masked, top_k=round(count)
        )
        columns = ("fill-mask.mask", "token", "probability", "text")
        cells = [
            (number, fill["token"], percent(fill["score"]), fill["sequence"])
            for number, fills in enumerate(answer["data"][0]["masks"], 1)
            for fill in fills
        ]
        return rows(request, columns, cells)

    gr.on([run.click, masked.submit], fill, [model, masked, count], shown, **EVENT)


def translate_tab(registry: ModelRegistry, names: list[str]) -> None:
    """Map source texts to target texts."""
    with gr.Row():
        with gr.Column():
            model = choose_model(names, "translate")
            source = text_box("translate", "text", key="translate.source", lines=5)
            beams = gr.Slider(0, 16, 0, step=1, label=label("translate.beams"))
            run = run_button("translate")
        with gr.Column():
            target = text_box("translate", "shown", key="translate.target", lines=5)

    async def translate(name: str, source: str, beams: float, request: gr.Request) -> str:
        lines = source.splitlines()
        sources = [line for line in lines if line.strip()]
        answer = await ask(
            registry,
            "/v1/translate",
            request,
            model=name,
            text=sources or None,
            num_beams=round(beams) or None,
        )
        targets = iter(answer["data"])
        return "\n".join(next(targets)["text"] if line.strip() else "" for line in lines)

    run.click(translate, [model, source, beams], target, **EVENT)


def classify_tab(registry: ModelRegistry, names: list[str]) -> None:
    """Classify a text or a pair."""
    with gr.Row():
        with gr.Column(scale=2):
            model = choose_model(names, "classify")
            first = text_box("classify", "text")
            second = text_box("classify", "pair", key="classify.pair", lines=1)
            run = run_button("classify")
        with gr.Column(scale=3):
            shown = gr.Label(label=label("classify.result"), elem_id="classify-shown")

    async def classify(name: str, first: str, second: str, request: gr.Request) -> Any:
        answer = await ask(
            registry, "/v1/classify", request, model=name, text=first, pair=second, truncate=True
        )
        (classification,) = answer["data"]
        return classification["scores"] or f"{classification['score']:.4g}"

    gr.on([run.click, first.submit], classify, [model, first, second], shown, **EVENT)


def tag_tab(registry: ModelRegistry, names: list[str]) -> None:
    """Tag the words of a sentence."""
    with gr.Row():
        with gr.Column(scale=2):
            model = choose_model(names, "tag")
            sentence = text_box("tag", "text", key="tag.text")
            run = run_button("tag")
        with gr.Column(scale=3):
            shown = gr.HighlightedText(label=label("tag.result"), elem_id="tag-shown")
            words = table("tag", "tag.result")

    async def tag(name: str, sentence: str, request: gr.Request) -> tuple[Any, pd.DataFrame]:
        answer = await ask(registry, "/v1/tag", request, model=name, text=sentence)
        words = answer["data"][0]["words"]
        columns = ("tag.word", "tag.result", "probability")
        cells = [(each["word"], each["tag"], percent(each["score"])) for each in words]
        return spans(words), rows(request, columns, cells)

    gr.on([run.click, sentence.submit], tag, [model, sentence], [shown, words], **EVENT)


def spans(words: Sequence[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """Words joined to chunks by their IOB tags; a tag of another form is a chunk of one word.

    >>> tags = [("to", "O"), ("New", "B-LOC"), ("York", "I-LOC"), (".", "O")]
    >>> spans([{"word": word, "tag": tag} for word, tag in tags])
    [('to ', None), ('New York ', 'LOC'), ('. ', None)]
    """
    chunks: list[tuple[str, str | None]] = []
    for each in words:
        prefix, _, name = each["tag"].partition("-")
        kind = None if each["tag"] == "O" else name or each["tag"]
        if chunks and chunks[-1][1] == kind and (kind is None or (prefix == "I" and name)):
            chunks[-1] = (f"{chunks[-1][0]}{each['word']} ", kind)
        else:
            chunks.append((f"{each['word']} ", kind))
    return chunks


def answer_tab(registry: ModelRegistry, names: list[str]) -> None:
    """Answer a question from a context."""
    with gr.Row():
        with gr.Column(scale=2):
            model = choose_model(names, "answer")
            question = text_box("answer", "question", key="answer.question", lines=1)
            context = text_box("answer", "context", key="answer.context", lines=6)
            count = gr.Slider(1, 10, 3, step=1, label=label("count"))
            run = run_button("answer")
        with gr.Column(scale=3):
            shown = gr.HighlightedText(label=label("answer.result"), elem_id="answer-shown")
            answers = table("answer", "answer.answers")

    async def answer(
        name: str, question: str, context: str, count: float, request: gr.Request
    ) -> tuple[Any, pd.DataFrame]:
        reply = await ask(
            registry,
            "/v1/answer",
            request,
            model=name,
            question=question,
            context=context,
            top_k=round(count),
        )
        spans = reply["data"][0]["answers"]
        start, end = spans[0]["start"], spans[0]["end"]
        marked = [(context[:start], None), (context[start:end], "1"), (context[end:], None)]
        none = text("answer.none", request)
        cells = [(each["text"] or none, percent(each["score"])) for each in spans]
        return (
            [part for part in marked if part[0]],
            rows(request, ("answer", "probability"), cells),
        )

    gr.on(
        [run.click, question.submit],
        answer,
        [model, question, context, count],
        [shown, answers],
        **EVENT,
    )


def tokenize_tab(registry: ModelRegistry, names: list[str]) -> None:
    """The tokenizers of all models on one text; no weights are loaded for it."""
    source = text_box("tokenize", "text", "The weather was cloudy yesterday. 昨天多云。")
    run = run_button("tokenize")
    figures = table("tokenize", "tokenize")
    shown = [
        gr.HighlightedText(
            label=name, show_inline_category=False, elem_id=f"tokenize-shown-{number}"
        )
        for number, name in enumerate(names)
    ]

    async def compare(source: str, request: gr.Request) -> list[Any]:
        if not source:
            raise gr.Error(text("empty", request), print_exception=False)
        highlighted, cells = [], []
        for name in names:
            lm = await asyncio.to_thread(registry.find(name).outline)
            assert lm is not None
            tokenizer = lm.text_tokenizer
            encoding = tokenizer.encode(source, add_special_tokens=False)
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

    gr.on([run.click, source.submit], compare, source, [figures, *shown], **EVENT)


TABS: dict[str, tuple[str, Callable[[ModelRegistry, list[str]], None]]] = {
    "/v1/completions": ("completions", completions_tab),
    "/v1/fill-mask": ("fill-mask", fill_mask_tab),
    "/v1/translate": ("translate", translate_tab),
    "/v1/classify": ("classify", classify_tab),
    "/v1/tag": ("tag", tag_tab),
    "/v1/answer": ("answer", answer_tab),
    "/v1/tokenize": ("tokenize", tokenize_tab),
}
"""Path of an endpoint -> id and function of its tab."""
