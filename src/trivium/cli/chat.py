"""`trivium chat`: chat with a model that has a chat template.

Examples:

  trivium chat runs/chat

  trivium chat runs/chat --system "Answer in one sentence." --temperature 0

  echo "What is a whale?" | trivium chat runs/chat
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import load, read_texts
from trivium.inference.sampling_params import SamplingParams
from trivium.messages import translated

with contextlib.suppress(ImportError):  # not on Windows
    import readline  # noqa: F401  (enables line editing and history in input())


@opt.with_options(
    SamplingParams,
    exclude=["max_new_tokens", "choices", "json_schema", "regex", "grammar", "top_logprobs"],
    unset=opt.MODELS_OWN,
)
def chat(
    model: opt.Model,
    system: str | None = None,
    max_new_tokens: opt.Positive = 512,
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    compile: opt.Compile = False,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    **options: Any,
) -> None:
    """Chat with a model: each line of the terminal, or of stdin, is a message of one conversation.

    Type /new to start a new conversation, and /exit or Ctrl-D to leave.

    Args:
        system: The system message, which instructs the model how to answer.
        max_new_tokens: Maximum number of tokens per answer.
    """
    lm = load(
        model, device=device, dtype=dtype, quantize=quantize, pack=not compile, compile=compile
    ).reading(special_tokens)
    from trivium.inference.chat_turn import ChatTurn

    options = {**opt.drop_unset(options), "max_new_tokens": max_new_tokens}
    beginning = [] if system is None else [{"role": "system", "content": system}]
    messages = [*beginning]
    lm.conversation_ids([*messages, {"role": "user", "content": "Hello"}])  # raises an error early
    for line in _read_messages():
        if line.strip() == "/exit":
            break
        if line.strip() == "/new":
            messages = [*beginning]
            continue
        messages.append({"role": "user", "content": line})
        turn = ChatTurn(lm, messages)
        request = turn.request(lm.sampling_params(turn.prompt_ids, options))
        engine = lm.engine_for([request], slots=1)
        try:
            for piece in engine.stream(engine.add(request)):
                typer.echo(piece, nl=False)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            engine.cancel(request)
        typer.echo()
        lm.warn_of_lengths([request])
        messages.append(turn.read(request).to_message())


def _read_messages() -> Iterator[str]:
    """Yield the user's messages: lines of piped standard input, or lines typed at a prompt."""
    if not sys.stdin.isatty():
        yield from read_texts(None)
        return
    typer.echo(translated("chat.greeting"), err=True)
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if line.strip():
            yield line
