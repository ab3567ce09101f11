"""Small models of every kind in a folder, and servers of them on a free port."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from hugging_face import ours_of
from lively_models import lively
from shaken_models import TEXT, shaken
from task_models import as_ours, theirs
from translation import START

from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.presets import presets
from trivium.serve import Limits, address_of, create_app, listen
from trivium.serve.gate import Gate
from trivium.serve.server import Server
from trivium.text import Tokenizer
from trivium.text.chat import PLAIN_TEMPLATE

END = "<|endoftext|>"
ENDLESS = {"logit_bias": {"0": -100}}
"""In a request to `decoder` or `long`: the text does not end by itself."""


@functools.cache
def byte_tokenizer() -> Tokenizer:
    return Tokenizer.train(
        "byte-bpe", texts=TEXT * 5, vocab_size=300, special_tokens=[END], progress=False
    )


def decoder() -> LanguageModel:
    """GPT-2's shape with a chat template; its positions end at 1024."""
    spec = presets["gpt2-tiny"].replace(vocab_size=300)
    settings = Settings(chat_template=PLAIN_TEMPLATE)
    return LanguageModel(spec, shaken(spec), byte_tokenizer(), settings)


def long() -> LanguageModel:
    """LLaMA's shape: positions that do not end, and no chat template."""
    spec = presets["llama-tiny"].replace(vocab_size=300)
    return LanguageModel(spec, shaken(spec), byte_tokenizer())


def translator() -> LanguageModel:
    """BART's shape, whose texts depend on what it reads."""
    module = ours_of(lively("bart"))
    return LanguageModel(
        module.spec, module, _letters(), Settings(config={"decoder_start_token_id": START})
    )


def _letters() -> Tokenizer:
    """As few tokens as the model has, letters for the most part."""
    return Tokenizer.train(
        "bpe",
        texts=TEXT * 5,
        vocab_size=97,
        special_tokens=["<pad>", "</s>", "<s>", "<unk>"],
        progress=False,
    )


def encoder() -> LanguageModel:
    return as_ours(theirs("BertForMaskedLM"), "bert")


def classifier() -> LanguageModel:
    labels = {"id2label": {"0": "bad", "1": "good", "2": "so so"}}
    return as_ours(theirs("BertForSequenceClassification", num_labels=3), "bert", **labels)


def tagger() -> LanguageModel:
    labels = {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}
    return as_ours(theirs("BertForTokenClassification", num_labels=3), "bert", **labels)


def reader() -> LanguageModel:
    return as_ours(theirs("BertForQuestionAnswering"), "bert")


KINDS: dict[str, Callable[[], LanguageModel]] = {
    "decoder": decoder,
    "long": long,
    "encoder": encoder,
    "classifier": classifier,
    "tagger": tagger,
    "reader": reader,
    "translator": translator,
}


def save_all(folder: Path) -> dict[str, str]:
    """Name -> path of every kind."""
    return {name: str(make().save(folder / name)) for name, make in KINDS.items()}


@dataclass
class Running:
    """A server that takes requests."""

    url: str
    gate: Gate
    server: Server

    @property
    def names(self) -> tuple[str, ...]:
        return self.gate.models.names

    def post(self, road: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/{road}", json=body, timeout=60, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60, **options)

    def metric(self, name: str, **labels: str) -> float:
        """A number of /metrics; 0 where there is none yet."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            found, _, value = line.rpartition(" ")
            given, _, rest = found.partition("{")
            if given == name and wanted <= {*rest.rstrip("}").split(",")}:
                total += float(value)
        return total

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for something to become true."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.02)


@contextlib.contextmanager
def running(paths: dict[str, str], **options: Any) -> Iterator[Running]:
    """A server in a thread, on a free port; options are those of `create_app`."""
    options.setdefault("limits", Limits())
    options.setdefault("playground", False)
    gate = create_app(paths, **options)
    ready = threading.Event()
    with listen("127.0.0.1", 0) as listening:
        server = Server(gate, limits=options["limits"], ready=ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert ready.wait(30)
            yield Running(address_of(listening), gate, server)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
