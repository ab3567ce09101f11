"""What a model writes: continuations, answers, translations."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypedDict, Unpack, overload

from trivium.inference import Sampling, TextStream, end_ids, prompt_ids
from trivium.inference.beam import Beams, decode_all
from trivium.inference.drafts import Draft
from trivium.inference.engine import Engine
from trivium.inference.fill_mask import document_ids
from trivium.inference.text_engine import Text, TextEngine
from trivium.language_model.core import Core
from trivium.text import Tokenizer

# Tokens of a target, unless told otherwise: who has not learned to end would go on for long.
_MOST_TOKENS = 256

_ROWS = 16  # Texts that `generate` writes at the same time.


class GenerateOptions(TypedDict, total=False):
    """How `LanguageModel.generate` and `stream` write; they say what each means."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: Sequence[str]
    seed: int | None
    draft: Draft | None


class Writing(Core):
    """The questions that are answered with a text of the model's own."""

    @overload
    def generate(self, prompt: str, **options: Unpack[GenerateOptions]) -> str: ...
    @overload
    def generate(
        self, prompt: list[str] | tuple[str, ...], **options: Unpack[GenerateOptions]
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str] | tuple[str, ...],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
        draft: Draft | None = None,
    ) -> str | list[str]:
        """The text that follows a prompt: prompt + result reads on. Several prompts: a list.

        An encoder-decoder reads the prompt and answers with a text of its own. A text ends at the
        end of text, after `max_new_tokens`, or where the model's positions end.

        Args:
            prompt: one text or several, which are continued together, each as if alone.
            max_new_tokens: tokens to add at most.
            temperature: 0 is greedy; below 1 is safer, above 1 more surprising.
            top_k: only the k most probable tokens.
            top_p: only the fewest tokens whose probabilities add up to p.
            min_p: only tokens at least this share as probable as the most probable one.
            repetition_penalty: above 1, tokens of the text so far become less probable.
            presence_penalty: taken from the logits of tokens that were written, once.
            frequency_penalty: taken from them as often as they were written.
            stop: strings that end a text and are not part of it.
            seed: the same seed gives the same text; prompt i of several has seed + i.
            draft: `PromptLookup()` or a `DraftModel` guesses ahead, which changes the time it
                takes, and no text.

        Raises:
            TriviumError: a prompt longer than the model's positions, a setting outside its range,
                or a model that does not continue texts.
        """
        sampling = Sampling(
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
        )
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        engine = self.engine(rows=max(1, min(len(prompts), _ROWS)), draft=draft)
        first = _seed(seed)
        texts = [
            engine.add(
                text, max_new_tokens=max_new_tokens, sampling=sampling, seed=first + i, stop=stop
            )
            for i, text in enumerate(prompts)
        ]
        while engine.busy:
            engine.step()
        return texts[0].text if isinstance(prompt, str) else [text.text for text in texts]

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
        draft: Draft | None = None,
    ) -> Iterator[str]:
        """The text of `generate` in pieces, while it comes; the pieces joined are the same text.

        A character is given only when it is whole.
        """
        sampling = Sampling(
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
        )
        engine = self.engine(rows=1, draft=draft)
        text = engine.add(
            prompt, max_new_tokens=max_new_tokens, sampling=sampling, seed=_seed(seed), stop=stop
        )
        return _pieces(engine, text)

    def engine(self, *, rows: int = 8, draft: Draft | None = None) -> TextEngine:
        """What writes many texts at a time, which come and go as they like: see `TextEngine`.

        Args:
            rows: texts that are written at the same time; the others wait.
            draft: what guesses ahead.

        Raises:
            SpecError: the model writes no texts.
        """
        self._require("generate")
        tokenizer = self.text_tokenizer
        engine = Engine(
            self.module,
            rows=rows,
            stop_ids=end_ids(tokenizer) | self.settings.stop_ids,
            vocab_size=tokenizer.vocab_size,
            decoder_start=self.decoder_start(tokenizer),
            banned_ids=self.settings.banned_ids,
            forced_eos_id=self.settings.forced_end,
            draft=draft,
        )
        return TextEngine(engine, tokenizer, partial(self._read, tokenizer))

    @overload
    def translate(
        self, text: str, *, beams: Beams | None = ..., max_new_tokens: int | None = ...
    ) -> str: ...
    @overload
    def translate(
        self,
        text: list[str] | tuple[str, ...],
        *,
        beams: Beams | None = ...,
        max_new_tokens: int | None = ...,
        progress: Callable[[int, int], None] | None = ...,
    ) -> list[str]: ...

    def translate(
        self,
        text: str | list[str] | tuple[str, ...],
        *,
        beams: Beams | None = None,
        max_new_tokens: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> str | list[str]:
        """The target of a source, by beam search: a translation, a summary, any answer it learned.

        Several texts are searched for together, the longest first. A prefix that the model was
        trained with is put before each text.

        Args:
            text: one or several.
            beams: how it is searched for; None: as the model's settings say, else 4 beams.
            max_new_tokens: tokens of a target at most; None: twice those of the longest source
                and 16, but no more than 256.
            progress: called with the texts done and all there are.

        Raises:
            SpecError: the model has not both an encoder and a decoder, or a text is too long.
        """
        self._require("translate")
        prefix = str(
            self.settings.task_options(self.settings.taught_task or "translation").get("prefix", "")
        )
        texts = [text] if isinstance(text, str) else list(text)
        answers = self.write_targets(
            [prefix + each for each in texts],
            beams=beams,
            max_new_tokens=max_new_tokens,
            progress=progress,
        )
        return answers[0] if isinstance(text, str) else answers

    def write_targets(
        self,
        sources: Sequence[str],
        *,
        beams: Beams | None = None,
        max_new_tokens: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """`translate` for sources that have their prefix already."""
        tokenizer = self.text_tokenizer
        rows = [self._read(tokenizer, source) for source in sources]
        longest = max(map(len, rows), default=0)
        found = decode_all(
            self.module,
            rows,
            beams=beams or self.usual_beams(),
            max_new_tokens=max_new_tokens or min(2 * longest + 16, _MOST_TOKENS),
            stop_ids=end_ids(tokenizer) | self.settings.stop_ids,
            vocab_size=tokenizer.vocab_size,
            decoder_start=self.decoder_start(tokenizer),
            banned_ids=self.settings.banned_ids,
            forced_eos_id=self.settings.forced_end,
            progress=progress,
        )
        return [_joined(tokenizer, best[0].ids) if best else "" for best in found]

    def usual_beams(self) -> Beams:
        """How the model's settings say that it is searched."""
        told = self.settings.generation
        return Beams(
            num_beams=told.get("num_beams") or 4,
            length_penalty=_number(told.get("length_penalty"), 1.0),
            min_new_tokens=told.get("min_new_tokens") or 0,
            early_stopping=told.get("early_stopping") or False,
            no_repeat_ngram=told.get("no_repeat_ngram_size") or 0,
        )

    def _read(self, tokenizer: Tokenizer, prompt: str) -> list[int]:
        """The ids of what an encoder reads, or of what a decoder continues."""
        if self.spec.family == "encoder-decoder":
            return document_ids(self.source_tokenizer, prompt)
        return prompt_ids(tokenizer, prompt)


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _seed(seed: int | None) -> int:
    return secrets.randbits(31) if seed is None else seed


def _pieces(engine: TextEngine, text: Text) -> Iterator[str]:
    while engine.busy:
        engine.step()
        piece = text.take()
        if piece:
            yield piece


def _joined(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    text = TextStream(tokenizer)
    return "".join(map(text.push, ids)) + text.finish()
