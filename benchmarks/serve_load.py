"""Many clients at once: `trivium serve` against `transformers serve`, equal weights and requests.

Both serve the same folder of random GPT-2-shaped weights behind OpenAI's `/v1/completions`. Clients
send streaming requests of different lengths one after the other until the time is up. Reported are
generated tokens per second, the time to the first token and to the last, the numbers of requests
that were answered, refused (status 429: the queue is full) and lost, and the server's memory before
the first request of the clients and after the last. A second case asks for one token per request:
what a request on a kept connection costs besides its tokens.

    python benchmarks/serve_load.py --clients 32 --seconds 60
    python benchmarks/serve_load.py --sides trivium --clients 200 --seconds 120
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
START_SECONDS, ANSWER_SECONDS = 180.0, 120.0


def make_folder(folder: Path, preset: str) -> None:
    """Random weights with a tokenizer of the bundled text, as both servers read them."""
    from trivium.data import read_documents
    from trivium.data.samples import sample_path
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets
    from trivium.text import Tokenizer

    documents = read_documents(sample_path("en"))
    texts = [document.text for _, document in zip(range(300), documents)]
    tokenizer = Tokenizer.train("byte-bpe", texts=texts, vocab_size=4000, progress=False)
    spec = presets[preset].replace(vocab_size=tokenizer.vocab_size)
    LanguageModel(spec, build(spec, seed=0), tokenizer).save_hf(folder)
    (folder / "prompts.json").write_text(json.dumps(texts[:30]))


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


class Load:
    """Clients that send one request after the other, and what they saw."""

    def __init__(
        self, url: str, model: str, texts: list[str], new_tokens: Sequence[int] = NEW_TOKENS
    ) -> None:
        self.url, self.model, self.new_tokens = url, model, new_tokens
        self.words = " ".join(texts).split()
        self.tokens = self.lost = self.refused = 0
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
            self.tokens = self.lost = self.refused = 0
            self.first_token, self.whole, before = [], [], memory()
            started = time.perf_counter()
            stop = started + seconds
            await asyncio.gather(*(self._client(http, n, stop) for n in range(clients)))
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
            "lost": self.lost,
            "MB at start": before,
            "MB at end": memory(),
        }

    async def _client(self, http: httpx.AsyncClient, number: int, stop: float) -> None:
        rng = random.Random(number)
        while time.perf_counter() < stop:
            try:
                await self._request(http, rng)
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
        async with http.stream("POST", f"{self.url}/v1/completions", json=body) as response:
            if response.status_code == 429:
                self.refused += 1
                await asyncio.sleep(float(response.headers.get("retry-after", 1)))
                return
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if event.get("choices") and not pieces:
                    self.first_token.append(time.perf_counter() - started)
                pieces += bool(event.get("choices"))
                usage = event.get("usage") or usage
        self.whole.append(time.perf_counter() - started)
        self.tokens += usage["completion_tokens"] if usage else pieces


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
    texts = json.loads(Path(job.folder, "prompts.json").read_text())
    with server(command, url) as process:
        load = Load(url, model, texts, job.new_tokens)
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
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        make_folder(folder, chosen.preset)
        names = ("clients", "seconds", "slots")
        job = {"folder": str(folder), **{name: getattr(chosen, name) for name in names}}
        cases = {
            f"{chosen.preset}, {chosen.clients} clients": {**job, "new_tokens": NEW_TOKENS},
            f"{chosen.preset}, one client, one token": {**job, "clients": 1, "new_tokens": (1,)},
        }
        compare(chosen, SIDES, cases)


if __name__ == "__main__":
    main()
