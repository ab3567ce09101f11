"""Many clients at once: `trivium serve` against `transformers serve`, equal weights and requests.

Both serve the same folder of random GPT-2-shaped weights, or the exported model `--folder`, behind
OpenAI's `/v1/completions`. Clients send streaming requests of different lengths one after the other
until the time is up. Reported are generated tokens per second, the time to the first token and to
the last, the number of requests by their end, and the server's memory before the first request of
the clients, at half time, and after the last request. A request is

- answered if its stream has a finish reason or ends with [DONE];
- refused if the server's queue is full (status 429);
- timed out if the server ends it after its time limit (status 504, or this error in the stream);
- lost otherwise: another error, a broken connection, or no byte within `ANSWER_SECONDS`.

A second case asks for one token per request: what a request on a kept connection costs besides its
tokens.

    python benchmarks/serve_load.py --clients 32 --seconds 60
    python benchmarks/serve_load.py --sides trivium --clients 200 --seconds 120
    trivium export stories stories
    python benchmarks/serve_load.py --sides trivium --clients 200 --folder stories --new-tokens 2 4
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from side_by_side import Figures, compare, is_child, parser

WORDS, NEW_TOKENS = (4, 8, 16, 32), (8, 16, 32, 64)
# The clients wait longer than `trivium serve`, which ends a request after 120 s.
START_SECONDS, ANSWER_SECONDS = 180.0, 180.0


def read_texts() -> list[str]:
    """The first 300 documents of the bundled text."""
    from trivium.data import read_documents
    from trivium.data.samples import sample_path

    documents = read_documents(sample_path("en"))
    return [document.text for _, document in zip(range(300), documents)]


def make_folder(folder: Path, preset: str) -> None:
    """Random weights with a tokenizer of the bundled text, as both servers read them."""
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets
    from trivium.text import Tokenizer

    tokenizer = Tokenizer.train("byte-bpe", texts=read_texts(), vocab_size=4000, progress=False)
    spec = presets[preset].replace(vocab_size=tokenizer.vocab_size)
    LanguageModel(spec, build(spec, seed=0), tokenizer).save_hf(folder)


@contextlib.contextmanager
def server(command: list[str], url: str) -> Iterator[subprocess.Popen]:
    """A server in a process of its own, from its first answer on."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(process, url, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(process: subprocess.Popen, url: str, log: Any) -> None:
    """Wait until the server answers. Raises RuntimeError with its log where it ends."""
    stop = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < stop:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(url, timeout=5)  # any answer will do
            return
        time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"the server does not answer:\n{log.read()[-2000:]}")


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def quantile(seconds: Sequence[float], fraction: float) -> float:
    """The smallest value that is not below `fraction` of the values; NaN if there are none."""
    ordered = sorted(seconds)
    return ordered[math.ceil(fraction * len(ordered)) - 1] if ordered else math.nan


def resident_megabytes(process: subprocess.Popen) -> float:
    """The resident memory of a process in MB; NaN except on Linux."""
    try:
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    except OSError:
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class TimedOutError(Exception):
    """The server has ended a request after its time limit."""


class Load:
    """Clients that send one request after the other, and what they saw."""

    def __init__(
        self, url: str, model: str, texts: list[str], new_tokens: Sequence[int] = NEW_TOKENS
    ) -> None:
        self.url, self.model, self.new_tokens = url, model, new_tokens
        self.words = " ".join(texts).split()
        self.tokens = self.lost = self.refused = self.timed_out = 0
        self.first_token: list[float] = []
        self.whole: list[float] = []
        self.transport: httpx.AsyncBaseTransport | None = None

    async def run(
        self, clients: int, seconds: float, memory: Callable[[], float] = lambda: float("nan")
    ) -> Figures:
        """Send requests for some seconds, then wait for the last answers.

        `memory` returns the memory of the server in MB.
        """
        limits = httpx.Limits(max_connections=None)
        client = httpx.AsyncClient(timeout=ANSWER_SECONDS, limits=limits, transport=self.transport)
        async with client as http:
            await self._request(http, random.Random(0))  # loads the model where that is lazy
            self.tokens = self.lost = self.refused = self.timed_out = 0
            self.first_token, self.whole, before = [], [], memory()
            started = time.perf_counter()
            stop = started + seconds
            tasks = (self._client(http, n, stop) for n in range(clients))
            at_half, *_ = await asyncio.gather(_measure_later(memory, seconds / 2), *tasks)
            elapsed = time.perf_counter() - started
        return {
            "tokens/s": self.tokens / elapsed,
            "first token, median s": quantile(self.first_token, 0.5),
            "first token, 99 % s": quantile(self.first_token, 0.99),
            "request, median s": quantile(self.whole, 0.5),
            "request, 95 % s": quantile(self.whole, 0.95),
            "request, 99 % s": quantile(self.whole, 0.99),
            "requests": len(self.whole),
            "refused": self.refused,
            "timed out": self.timed_out,
            "lost": self.lost,
            "MB at start": before,
            "MB at half time": at_half,
            "MB at end": memory(),
        }

    async def _client(self, http: httpx.AsyncClient, number: int, stop: float) -> None:
        rng = random.Random(number)
        while time.perf_counter() < stop:
            try:
                await self._request(http, rng)
            except TimedOutError:
                self.timed_out += 1
            except (httpx.HTTPError, ValueError):
                self.lost += 1

    async def _request(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        start = rng.randrange(len(self.words) - max(WORDS))
        body = {
            "model": self.model,
            "prompt": " ".join(self.words[start : start + rng.choice(WORDS)]),
            "max_tokens": rng.choice(self.new_tokens),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        started, pieces, usage = time.perf_counter(), 0, None
        done = ended = False
        async with http.stream("POST", f"{self.url}/v1/completions", json=body) as response:
            if response.status_code == 429:
                self.refused += 1
                await asyncio.sleep(float(response.headers.get("retry-after", 1)))
                return
            if response.status_code == 504:
                raise TimedOutError
            response.raise_for_status()
            async for line in response.aiter_lines():
                done |= line == "data: [DONE]"
                if not line.startswith("data: ") or done:
                    continue
                event = json.loads(line[6:])
                if error := event.get("error"):
                    raise TimedOutError if error.get("code") == "timeout" else ValueError(error)
                if event.get("choices") and not pieces:
                    self.first_token.append(time.perf_counter() - started)
                pieces += bool(event.get("choices"))
                usage = event.get("usage") or usage
                ended |= any(each.get("finish_reason") for each in event.get("choices", ()))
        if not (done or ended):
            raise ValueError("the stream has no end")
        self.whole.append(time.perf_counter() - started)
        self.tokens += usage["completion_tokens"] if usage else pieces


async def _measure_later(memory: Callable[[], float], seconds: float) -> float:
    """The memory after some seconds."""
    await asyncio.sleep(seconds)
    return memory()


def run_trivium(job: argparse.Namespace, *, slots: int | None = None) -> Figures:
    """`trivium serve`, with `slots`, or those of the job."""
    port = free_port()
    command = [sys.executable, "-m", "trivium", "serve", job.folder, "--port", str(port)]
    command += ["--no-playground", "--slots", str(slots or job.slots)]
    return _run(job, command, port, Path(job.folder).name)


def run_transformers(job: argparse.Namespace, *options: str) -> Figures:
    """`transformers serve`."""
    port = free_port()
    program = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", program, "serve", job.folder, "--port", str(port)]
    return _run(job, [*command, "--host", "127.0.0.1", *options], port, job.folder)


def _run(job: argparse.Namespace, command: list[str], port: int, model: str) -> Figures:
    url = f"http://127.0.0.1:{port}"
    with server(command, url) as process:
        load = Load(url, model, read_texts()[:30], job.new_tokens)
        memory = functools.partial(resident_megabytes, process)
        return asyncio.run(load.run(job.clients, job.seconds, memory))


SIDES = {
    "trivium": run_trivium,
    "trivium, one slot": functools.partial(run_trivium, slots=1),
    "transformers": run_transformers,
}


def main() -> None:
    options = parser(__doc__, rounds=1)
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--seconds", type=float, default=60.0, help="of load on each side")
    options.add_argument("--slots", type=int, default=16, help="texts generated at a time")
    options.add_argument("--preset", default="gpt2-mini")
    options.add_argument("--folder", type=Path, help="an exported model in place of the preset")
    options.add_argument("--new-tokens", type=int, nargs="+", default=NEW_TOKENS, metavar="N")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    with tempfile.TemporaryDirectory() as place:
        folder = chosen.folder or Path(place, "model")
        if chosen.folder is None:
            make_folder(folder, chosen.preset)
        name = chosen.preset if chosen.folder is None else folder.name
        names = ("clients", "seconds", "slots")
        job = {"folder": str(folder), **{name: getattr(chosen, name) for name in names}}
        cases = {
            f"{name}, {chosen.clients} clients": {**job, "new_tokens": chosen.new_tokens},
            f"{name}, one client, one token": {**job, "clients": 1, "new_tokens": (1,)},
        }
        compare(chosen, SIDES, cases)


if __name__ == "__main__":
    main()
