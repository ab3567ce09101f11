"""Load on a server: hundreds of clients at once; some vanish, some are hostile.

Three small models with random weights (a LLaMA and a GPT-2 that write, a BERT that gives vectors)
are served by `trivium serve` in a process of its own. Every answer is compared with what the model
itself gave for that request, asked one by one before. Printed are lost and wrong answers, tokens a
second, the time to the first token (waiting included), the memory of the server over the time, and
how many times more tokens a second come than when texts are written one at a time (--rows 1).

    python benchmarks/serve_load.py
    python benchmarks/serve_load.py --clients 50 --seconds 20 --alone-seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WRITERS, ENCODER = ("llama", "gpt2"), "bert"
VOCABULARY, SAMPLE = 2048, "samples/english.txt"
NEW_TOKENS = (4, 9, 17, 33, 64, 120)
WORDS = (3, 7, 15, 40, 90)
TASKS = 40  # different requests to every model
TOLERANCE = 1e-4  # of numbers in vectors
# Kinds of requests and how often each comes.
SHARES = {"stream": 60, "whole": 15, "vector": 12, "vanish": 8, "hostile": 5}
SECONDS_TO_ANSWER = 300.0


@dataclass(frozen=True)
class Task:
    """A request and its right answer, a text or a vector."""

    road: str
    body: dict[str, Any]
    wanted: Any


@dataclass
class Seen:
    """What the clients saw."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    seconds: float = 0.0
    processor: float = 0.0  # seconds that the server worked, of all its cores


def make_models(folder: Path, preset: str) -> None:
    """Models whose greedy texts differ clearly from prompt to prompt."""
    import torch

    from trivium.data.samples import copy_samples
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets
    from trivium.text import Tokenizer

    copy_samples(folder / "samples")
    for number, name in enumerate((*WRITERS, ENCODER)):
        kind = "wordpiece" if name == ENCODER else "byte-bpe"
        tokenizer = Tokenizer.train(
            kind, files=folder / SAMPLE, vocab_size=VOCABULARY, sample_bytes=500_000, progress=False
        )
        spec = presets[f"{name}-{preset}"].replace(vocab_size=VOCABULARY)
        module, generator = build(spec), torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(torch.empty_like(weight).normal_(0.0, 0.1, generator=generator))
        LanguageModel(spec, module, tokenizer).save(folder / name)


def make_tasks(folder: Path, seed: int) -> dict[str, list[Task]]:
    """Requests with the answers that the models give one by one."""
    from trivium.language_model import load

    words = (folder / SAMPLE).read_text(encoding="utf-8").split()
    draw = random.Random(seed)
    tasks: dict[str, list[Task]] = {"write": [], "vector": []}
    for name in (*WRITERS, ENCODER):
        lm = load(folder / name, device="cpu")
        for _ in range(TASKS):
            start = draw.randrange(len(words) - max(WORDS))
            text = " ".join(words[start : start + draw.choice(WORDS)])
            if name == ENCODER:
                body = {"model": name, "input": text}
                tasks["vector"].append(Task("embeddings", body, lm.embed(text).tolist()))
                continue
            count = draw.choice(NEW_TOKENS)
            body = {"model": name, "prompt": text, "max_tokens": count, "temperature": 0}
            wanted = lm.generate(text, max_new_tokens=count, temperature=0.0)
            tasks["write"].append(Task("completions", body, wanted))
    return tasks


@contextlib.contextmanager
def server(folder: Path, *options: str) -> Iterator[tuple[str, int]]:
    """`trivium serve` of all models: its address and process."""
    models = [str(folder / name) for name in (*WRITERS, ENCODER)]
    command = [sys.executable, "-m", "trivium", "serve", *models, "--port", "0", "--preload"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*command, "--quiet", "--no-playground", *options], stderr=subprocess.PIPE, text=True
        ) as program,
    ):
        assert program.stderr is not None
        line = program.stderr.readline()
        while line and " serves " not in line:
            line = program.stderr.readline()
        if not line:
            raise SystemExit("the server did not start.")
        try:
            yield line.split()[0], program.pid
        finally:
            program.terminate()
            _, rest = program.communicate(timeout=60)
            log.write(rest)
            if program.returncode or "Traceback" in rest:
                print(f"the server ended with {program.returncode}:\n{rest[-2000:]}")


@contextlib.asynccontextmanager
async def asked(
    url: str, road: str, content: bytes, kind: str = "application/json"
) -> AsyncIterator[tuple[int, dict[str, str], AsyncIterator[bytes]]]:
    """Status, headers and lines of an answer; leaving early hangs up."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**22)
    try:
        head = (
            f"POST /v1/{road} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        status = int((await reader.readline()).split()[1])
        headers = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        yield status, headers, _lines(reader, headers)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _lines(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The lines of a body, whether it comes in chunks or whole."""
    if headers.get("transfer-encoding") != "chunked":
        for line in (await reader.readexactly(int(headers["content-length"]))).split(b"\n"):
            yield line
        return
    rest = b""
    while size := int(await reader.readline(), 16):
        *lines, rest = (rest + await reader.readexactly(size)).split(b"\n")
        await reader.readexactly(2)
        for line in lines:
            yield line


class Clients:
    """Many clients that ask one thing after the other until the time is up."""

    def __init__(self, url: str, tasks: dict[str, list[Task]], *, seed: int) -> None:
        self.url, self.tasks, self.seen = url, tasks, Seen()
        self._seed = seed

    async def run(self, clients: int, seconds: float, pid: int, shares: dict[str, int]) -> Seen:
        """Ask for some seconds, then wait for the last answers."""
        start, worked = time.perf_counter(), processor_seconds(pid)
        end = start + seconds
        watching = asyncio.create_task(self._watch(pid, start))
        await asyncio.gather(*(self._client(number, end, shares) for number in range(clients)))
        self.seen.seconds = time.perf_counter() - start
        self.seen.processor = processor_seconds(pid) - worked
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return self.seen

    async def _watch(self, pid: int, start: float) -> None:
        while True:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            self.seen.memory.append((time.perf_counter() - start, pages * 4096 / 2**20))
            await asyncio.sleep(0.5)

    async def _client(self, number: int, end: float, shares: dict[str, int]) -> None:
        draw = random.Random(f"{self._seed} {number}")
        await asyncio.sleep(draw.random())
        while time.perf_counter() < end:
            (kind,) = draw.choices([*shares], [*shares.values()])
            try:
                async with asyncio.timeout(SECONDS_TO_ANSWER):
                    await self._ask(kind, draw)
            except Exception as error:  # whatever it is, an answer was lost
                self.seen.lost.append(f"{kind}: {type(error).__name__} {error}")

    async def _ask(self, kind: str, draw: random.Random) -> None:
        if kind == "hostile":
            await self._hostile(draw)
            return
        task = draw.choice(self.tasks["vector" if kind == "vector" else "write"])
        body = dict(task.body)
        if kind in ("stream", "vanish"):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        content, start = json.dumps(body).encode(), time.perf_counter()
        while True:
            async with asked(self.url, task.road, content) as (status, headers, lines):
                if status == 429:
                    self.seen.answers["429, asked again"] += 1
                    await asyncio.sleep(float(headers["retry-after"]) * (0.5 + draw.random()))
                    continue
                if kind == "vanish":
                    await self._vanish(lines, draw)
                elif kind == "stream":
                    await self._stream(task, status, lines, start)
                else:
                    await self._whole(task, status, lines)
                self.seen.answers[f"{kind}, {status}"] += 1
                return

    async def _vanish(self, lines: AsyncIterator[bytes], draw: random.Random) -> None:
        left = draw.randrange(12)
        async for _ in lines:
            left -= 1
            if left < 0:
                return

    async def _stream(
        self, task: Task, status: int, lines: AsyncIterator[bytes], start: float
    ) -> None:
        text, tokens, done = "", None, False
        async for line in lines:
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            if not text and event.get("choices"):
                self.seen.first.append(time.perf_counter() - start)
            text += "".join(choice["text"] for choice in event.get("choices", ()))
            tokens = event.get("usage") or tokens
        if status != 200 or not done or tokens is None:
            self.seen.lost.append(f"stream: status {status}, ended: {done}")
            return
        self._compare(task, text, tokens)

    async def _whole(self, task: Task, status: int, lines: AsyncIterator[bytes]) -> None:
        body = json.loads(b"\n".join([line async for line in lines]))
        if status != 200:
            self.seen.lost.append(f"{task.road}: status {status}: {body}")
        elif task.road == "completions":
            self._compare(task, body["choices"][0]["text"], body["usage"])
        else:
            found = body["data"][0]["embedding"]
            if max(abs(a - b) for a, b in zip(found, task.wanted, strict=True)) > TOLERANCE:
                self.seen.wrong.append(f"another vector for {task.body}")

    def _compare(self, task: Task, text: str, usage: dict[str, int]) -> None:
        self.seen.tokens += usage["completion_tokens"]
        if text != task.wanted:
            self.seen.wrong.append(f"{task.body}: {text!r}, not {task.wanted!r}")

    async def _hostile(self, draw: random.Random) -> None:
        """Something wrong, for which there must be an answer that says so."""
        name = draw.choice(WRITERS)
        fine = {"model": name, "prompt": "a", "max_tokens": 4}
        contents = [
            b"{" * draw.randrange(1, 5000),
            json.dumps({**fine, "model": "nothing"}).encode(),
            json.dumps({**fine, "prompt": "cloudy " * 20_000}).encode(),
            json.dumps({**fine, "prompt": [10**6]}).encode(),
            json.dumps({**fine, "temperature": "hot", "top_p": 7, "n": -1}).encode(),
            json.dumps({**fine, "max_tokens": 10**9}).encode(),
            json.dumps({**fine, "prompt": ["a"] * 5000}).encode(),
            b"x" * 2 * 2**20,
        ]
        async with asked(self.url, "completions", draw.choice(contents)) as (status, _, lines):
            body = json.loads(b"\n".join([line async for line in lines]))
            self.seen.answers[f"hostile, {status}"] += 1
            if not 400 <= status < 500 or set(body) != {"error"}:
                self.seen.wrong.append(f"a hostile request got {status}: {str(body)[:200]}")


def processor_seconds(pid: int) -> float:
    """What a process has worked so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle(url: str) -> bool:
    """Whether nothing runs or waits any more, a few seconds after the end."""
    address = urlsplit(url)
    for _ in range(50):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(
            f"GET /metrics HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        text = (await reader.read()).decode()
        writer.close()
        loads = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(("trivium_running{", "trivium_waiting{"))
        ]
        if loads and not any(loads):
            return True
        await asyncio.sleep(0.2)
    return False


def quantile(values: list[float], share: float) -> float:
    """The value that so large a share lies below; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def growth(seen: Seen) -> tuple[float, float, float]:
    """Memory in MiB: median of the second quarter of the time, of the last, and the most."""
    second = [m for t, m in seen.memory if 0.25 <= t / seen.seconds < 0.5]
    last = [m for t, m in seen.memory if t / seen.seconds >= 0.75]
    most = max(m for _, m in seen.memory)
    return statistics.median(second or [most]), statistics.median(last or [most]), most


def report(seen: Seen, alone: Seen | None, left: bool, options: argparse.Namespace) -> list[str]:
    """What there is to say, as lines."""
    early, late, most = growth(seen)
    rate = seen.tokens / seen.seconds
    lines = [
        f"{options.clients} clients, {seen.seconds:.0f} s, --rows {options.rows}, "
        f"{', '.join(WRITERS)} and {ENCODER} ({options.preset})",
        "",
        f"{'answers':<34}{sum(seen.answers.values())}",
        *(f"  {name:<32}{count}" for name, count in sorted(seen.answers.items())),
        f"{'lost':<34}{len(seen.lost)}",
        f"{'wrong':<34}{len(seen.wrong)}",
        f"{'nothing left running or waiting':<34}{'yes' if left else 'NO'}",
        f"{'tokens a second':<34}{rate:.0f}",
        f"{'time to first token, median':<34}{quantile(seen.first, 0.5):.3f} s",
        f"{'time to first token, 99 %':<34}{quantile(seen.first, 0.99):.3f} s",
        f"{'memory, 2nd and last quarter':<34}{early:.0f}, {late:.0f} MiB (most {most:.0f})",
    ]
    if alone is not None:
        one = alone.tokens / alone.seconds
        lines += [
            f"{'tokens a second with --rows 1':<34}{one:.0f}",
            f"{'ratio':<34}{rate / one:.2f}",
            f"{'ratio at equal processor time':<34}"
            f"{seen.tokens / seen.processor / (alone.tokens / alone.processor):.2f}",
        ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--alone-seconds", type=float, default=40.0, help="0: not at all")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--preset", default="mini", help="tiny, mini, ...")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_models(folder, options.preset)
        tasks = make_tasks(folder, options.seed)
        with server(folder, "--rows", str(options.rows)) as (url, pid):
            clients = Clients(url, tasks, seed=options.seed)
            seen = asyncio.run(clients.run(options.clients, options.seconds, pid, SHARES))
            left = asyncio.run(idle(url))
        alone = None
        if options.alone_seconds:
            with server(folder, "--rows", "1") as (url, pid):
                clients = Clients(url, tasks, seed=options.seed)
                run = clients.run(options.clients, options.alone_seconds, pid, SHARES)
                alone = asyncio.run(run)
    print("\n".join(report(seen, alone, left, options)))
    for told in (*seen.lost[:5], *seen.wrong[:5]):
        print(f"  {told[:500]}")
    return int(bool(seen.lost or seen.wrong or not left))


if __name__ == "__main__":
    sys.exit(main())
