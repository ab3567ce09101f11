"""Small models of every kind in a folder, and servers of them on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.serve import create_app
from trivium.serve.models import ModelRegistry
from trivium.serve.security import Security
from trivium.serve.server import ApiServer, format_address, listen
from trivium.spec import (
    MLP,
    Attention,
    ClassifierHead,
    Embedding,
    LayerNorm,
    Learned,
    LMHead,
    MLMHead,
    SpanHead,
    Spec,
    Stack,
    TaggerHead,
    TransformerSpec,
)
from trivium.text import Tokenizer

TEXT = ["The weather was cloudy yesterday, but today it's rainy.", "今天天气很好。我们去公园。"]
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
ENDLESS = {"logit_bias": {"0": -100}}
"""In a request to `decoder`: rules the end of text out."""


@functools.cache
def byte_tokenizer(vocab_size: int = 300) -> Tokenizer:
    return Tokenizer.train(
        "byte-bpe",
        texts=TEXT * 5,
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        progress=False,
    )


@functools.cache
def wordpiece_tokenizer() -> Tokenizer:
    return Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=199, progress=False)


def transformer(vocab_size: int, slots: str, heads: tuple[Any, ...], length: int) -> LanguageModel:
    """Random weights large enough for clear differences between tokens."""
    stack = Stack.from_mixers(
        num_layers=2,
        mixer=Attention(num_heads=2, head_dim=11),
        feed_forward=MLP(d_ff=29, activation="gelu"),
        norm=LayerNorm(),
        norm_placement="pre",
        dropout=0.0,
    )
    spec = TransformerSpec(
        vocab_size=vocab_size,
        d_model=22,
        embedding=Embedding(positions=Learned(max_length=length), num_token_types=0),
        encoder=stack if "encoder" in slots else None,
        decoder=stack if "decoder" in slots else None,
        heads=heads,
    )
    return lively(spec)


def lively(spec: Spec) -> LanguageModel:
    module = build(spec, seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.empty_like(weight).normal_(0.0, 0.3, generator=generator))
    return LanguageModel(spec, module)


def with_text(lm: LanguageModel, tokenizer: Tokenizer, **config: Any) -> LanguageModel:
    settings = Settings(config=config)
    return LanguageModel(lm.spec, lm.module, tokenizer, settings)


def labels(*names: str) -> dict[str, Any]:
    return {"id2label": {str(number): name for number, name in enumerate(names)}}


def decoder() -> LanguageModel:
    lm = transformer(300, "decoder", (LMHead(tied=True),), 1013)
    settings = Settings(chat_template=CHAT_TEMPLATE)
    return LanguageModel(lm.spec, lm.module, byte_tokenizer(), settings)


def plain() -> LanguageModel:
    """A decoder without a chat template."""
    return with_text(transformer(300, "decoder", (LMHead(tied=True),), 61), byte_tokenizer())


def mamba() -> LanguageModel:
    """A decoder whose state of a text has one size, and positions no end."""
    return with_text(lively(presets["mamba-tiny"].replace(vocab_size=300)), byte_tokenizer())


def encoder() -> LanguageModel:
    tokenizer = wordpiece_tokenizer()
    return with_text(transformer(tokenizer.vocab_size, "encoder", (MLMHead(),), 61), tokenizer)


def classifier() -> LanguageModel:
    tokenizer = wordpiece_tokenizer()
    heads = (ClassifierHead(num_labels=3, pooling="first"),)
    lm = transformer(tokenizer.vocab_size, "encoder", heads, 61)
    return with_text(lm, tokenizer, **labels("bad", "good", "so so"))


def reranker() -> LanguageModel:
    tokenizer = wordpiece_tokenizer()
    heads = (ClassifierHead(num_labels=1, pooling="first"),)
    return with_text(transformer(tokenizer.vocab_size, "encoder", heads, 61), tokenizer)


def tagger() -> LanguageModel:
    tokenizer = wordpiece_tokenizer()
    lm = transformer(tokenizer.vocab_size, "encoder", (TaggerHead(num_labels=3),), 61)
    return with_text(lm, tokenizer, **labels("O", "B-PER", "I-PER"))


def reader() -> LanguageModel:
    tokenizer = wordpiece_tokenizer()
    return with_text(transformer(tokenizer.vocab_size, "encoder", (SpanHead(),), 61), tokenizer)


def translator() -> LanguageModel:
    """An encoder-decoder with a source tokenizer of its own."""
    source = wordpiece_tokenizer()
    lm = transformer(300, "encoder decoder", (LMHead(tied=True),), 61)
    spec = lm.spec.replace(source_vocab_size=source.vocab_size)
    module = build(spec, seed=1)
    settings = Settings(config={"decoder_start_token_id": 0})
    return LanguageModel(spec, module, byte_tokenizer(), settings, source_tokenizer=source)


KINDS: dict[str, Callable[[], LanguageModel]] = {
    "decoder": decoder,
    "plain": plain,
    "mamba": mamba,
    "encoder": encoder,
    "classifier": classifier,
    "reranker": reranker,
    "tagger": tagger,
    "reader": reader,
    "translator": translator,
}


def save_all(folder: Path) -> dict[str, str]:
    """Id -> path of every kind."""
    return {name: str(make().save(folder / name)) for name, make in KINDS.items()}


@dataclass
class RunningServer:
    """A server that accepts requests."""

    url: str
    app: Security
    server: ApiServer
    registry: ModelRegistry

    @property
    def address(self) -> tuple[str, int]:
        return self.server.servers[0].sockets[0].getsockname()

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/{path}", json=body, timeout=60, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60, **options)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all label sets that have these labels."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            series_name, _, rest = series.partition("{")
            if series_name == name and wanted <= {*rest.rstrip("}").split(",")}:
                total += float(value)
        return total

    def load_of(self, model: str) -> float:
        """Texts of a model in slots, batches and queue."""
        return sum(self.metric(f"trivium_{name}", model=model) for name in ("running", "waiting"))


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@contextlib.contextmanager
def running(paths: dict[str, str], **options: Any) -> Iterator[RunningServer]:
    """A server in a thread, on a free port; options are those of `create_app`."""
    options.setdefault("playground", False)
    app = create_app(paths, **options)
    ready = threading.Event()
    with listen("127.0.0.1", 0) as listening:
        server = ApiServer(app, ready=ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert ready.wait(30)
            yield RunningServer(format_address(listening), app, server, app.registry)
        finally:
            server.should_exit = True
            # A connection that a client has left open may use up the time of `Limits.grace`.
            thread.join(3 * app.registry.limits.grace)
            assert not thread.is_alive(), _describe_hanging(server, thread)


def _describe_hanging(server: ApiServer, thread: threading.Thread) -> str:
    """The stacks of all threads, then the connections and tasks of a server that does not end."""
    names = {each.ident: each.name for each in threading.enumerate()}
    lines = ["the server does not end"]
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident)}:\n{''.join(traceback.format_stack(frame)[-4:])}")
    for connection in server.server_state.connections:
        scope = getattr(connection, "scope", None) or {}
        lines.append(f"connection {getattr(connection, 'client', None)}: {scope.get('path')}")
    loop = server.servers[0].get_loop()
    lines += [f"task {task}" for task in asyncio.all_tasks(loop)]
    return "\n".join(lines)


def check_error(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The error of an answer in OpenAI's shape."""
    assert answer.status_code in statuses, answer.text[:300]
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) < 2000
    return error
