"""The engine for texts: prompts in, pieces of text out, with strings that stop them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trivium.errors import SpecError, TriviumError
from trivium.inference.choices import Choices
from trivium.inference.engine import Engine
from trivium.inference.request import Finish, Request, Written
from trivium.inference.sampling import Sampling
from trivium.inference.stream import TextStream, added_texts
from trivium.text import Tokenizer


class TokenScore(NamedTuple):
    """A token of a text, its log-probability in nats, and the most probable ones there."""

    text: str
    id: int
    log_probability: float
    top: list[tuple[str, float]]


class Text:
    """A text that is being written."""

    def __init__(
        self, written: Written, tokenizer: Tokenizer, context: Sequence[int], stop: Sequence[str]
    ) -> None:
        self._written, self._tokenizer, self._stop = written, tokenizer, tuple(stop)
        self._stream = TextStream(tokenizer, context)
        self._last = context[-1] if context else None
        self._seen = self._taken = 0
        self._whole = ""  # with what may turn out to be the beginning of a stop string
        self._ended: Finish | None = None
        self._tokens: list[TokenScore] = []

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._written.request.prompt)

    @property
    def ids(self) -> list[int]:
        """The tokens written so far, those of a stop string included."""
        return self._written.ids

    @property
    def finish(self) -> Finish | None:
        """None while it goes on; "stop", "length" or "cancelled"."""
        return self._ended or self._written.finish

    @property
    def text(self) -> str:
        """All that may be shown so far: no stop string, no half character."""
        if self.finish is not None:
            return self._whole
        return self._whole[: len(self._whole) - self._doubtful()]

    @property
    def tokens(self) -> list[TokenScore]:
        """How probable each token was, where that was asked for."""
        for place, score in enumerate(self._written.scores[len(self._tokens) :], len(self._tokens)):
            before = self._written.ids[place - 1] if place else self._last
            ids = [score.id, *(index for index, _ in score.top)]
            name, *names = added_texts(self._tokenizer, [(before, index) for index in ids])
            top = [(other, value) for other, (_, value) in zip(names, score.top)]
            self._tokens.append(TokenScore(name, score.id, score.log_probability, top))
        return self._tokens

    def take(self) -> str:
        """What of `text` is new since the last time."""
        text = self.text
        new, self._taken = text[self._taken :], len(text)
        return new

    def read(self) -> bool:
        """Take in the tokens that have come; True where a stop string ends the text."""
        new, done = self._written.ids[self._seen :], self._written.finish is not None
        self._seen += len(new)
        self._whole += "".join(map(self._stream.push, new))
        if done:
            self._whole += self._stream.finish()
        places = [place for stop in self._stop if (place := self._whole.find(stop)) >= 0]
        if places and self._written.finish != "cancelled":
            self._whole, self._ended = self._whole[: min(places)], "stop"
        return bool(places)

    def _doubtful(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        ends = (
            size
            for stop in self._stop
            for size in range(min(len(stop) - 1, len(self._whole)), 0, -1)
            if self._whole.endswith(stop[:size])
        )
        return max(ends, default=0)


class TextEngine:
    """Writes many texts at a time; each comes out as it would alone.

    One thread at a time may use it.

    Args:
        engine: what writes ids.
        tokenizer: of what is written.
        read: a prompt as the ids that the model reads.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, read: Callable[[str], Sequence[int]]
    ) -> None:
        self._engine, self._tokenizer, self._read = engine, tokenizer, read
        self._texts: dict[Written, Text] = {}
        self._both = engine.model.spec.family == "encoder-decoder"

    @property
    def rows(self) -> int:
        """Texts that are written at the same time."""
        return self._engine.rows

    @property
    def running(self) -> int:
        """Texts that are being written."""
        return self._engine.running

    @property
    def waiting(self) -> int:
        """Texts that have not begun."""
        return self._engine.waiting

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return self._engine.busy

    def add(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 64,
        sampling: Sampling | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        choices: Sequence[str] = (),
        truncate: int | None = None,
    ) -> Text:
        """Take a text to be continued, or answered by an encoder-decoder.

        A prompt longer than the model's positions is refused, unless `truncate` says to cut it.

        Args:
            prompt: text or ids.
            max_new_tokens: tokens to add at most; where positions end, fewer.
            sampling: how a token is chosen; None: by its probability.
            seed: the same seed gives the same text.
            stop: strings that end the text and are not part of it.
            top_logprobs: None: no log-probabilities; 0: of the tokens that are written; k: also of
                the k most probable ones there.
            choices: the only texts that may be written.
            truncate: only the last so many tokens of the prompt are read.

        Raises:
            SpecError: a prompt that is empty or too long, an id that does not exist.
            TriviumError: a number outside its range, or an empty stop string.
        """
        if not all(stop):
            raise TriviumError("an empty stop string would end every text: leave it out.")
        if top_logprobs is not None and not 0 <= top_logprobs <= self._engine.vocab_size:
            raise TriviumError(
                f"top_logprobs is {top_logprobs}, but must be in 0..{self._engine.vocab_size}."
            )
        ids = self._ids(prompt, truncate)
        written = self._engine.add(
            Request(
                prompt=ids,
                max_new_tokens=max_new_tokens,
                sampling=sampling or Sampling(),
                seed=seed,
                top_scores=top_logprobs,
                choices=self._choices(choices) if choices else None,
            )
        )
        text = Text(written, self._tokenizer, () if self._both else ids, stop)
        self._texts[written] = text
        return text

    def cancel(self, text: Text) -> None:
        """Write no more of a text; its row is free at once."""
        written = text._written
        self._engine.cancel(written)
        if self._texts.pop(written, None) is not None:
            text.read()

    def step(self) -> list[Text]:
        """Add tokens to every running text, let others begin: the texts that have changed."""
        changed = []
        for written in self._engine.step():
            text = self._texts[written]
            if text.read() and written.finish is None:
                self._engine.cancel(written)
            if text.finish is not None:
                del self._texts[written]
            changed.append(text)
        return changed

    def _ids(self, prompt: str | Sequence[int], truncate: int | None) -> list[int]:
        if truncate is not None and truncate < 1:
            raise TriviumError(f"truncate is {truncate}, but must be 1 or more tokens.")
        ids = list(self._read(prompt) if isinstance(prompt, str) else prompt)
        end = self._engine.model.spec.vocab_size
        wrong = [index for index in ids if not 0 <= index < end]
        if wrong and not isinstance(prompt, str):
            raise SpecError(f"the prompt has id {wrong[0]}, but ids end at {end}.")
        return ids if truncate is None else ids[-truncate:]

    def _choices(self, choices: Sequence[str]) -> Choices:
        options = self._tokenizer.encode_ids_batch(list(choices))
        return Choices(options, self._engine.stop_ids)
