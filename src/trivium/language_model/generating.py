"""Generate text with a language model."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack, get_args

from trivium.errors import SpecError, TriviumError, shorten
from trivium.inference.beam import beam_search
from trivium.inference.chat_turn import ChatAnswer, ChatTurn, ToolChoice
from trivium.inference.engine import Engine
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import BeamSearchOptions, GenerationOptions, SamplingOptions
from trivium.inference.speculative import Draft
from trivium.inference.text_model import TextModel, prepend_bos
from trivium.inference.text_stream import TextStream
from trivium.text.chat_template import Message, Tools
from trivium.text.infilling import InfillTokens, Order
from trivium.text.languages import find_language_id, is_source_token, list_languages

Texts = TypeVar("Texts", str, list[str])


class GenerationMixin(TextModel):
    """The methods that generate text: sampling with engines, and beam search."""

    _kept_engine: Engine | None = None

    def generate(
        self, prompt: Texts, *, draft: Draft | None = None, **options: Unpack[GenerationOptions]
    ) -> Texts:
        """Return the continuation of a prompt, or the output of an encoder-decoder.

        A text ends at the end-of-text token, at a stop string, after `max_new_tokens`, or at the
        context length of the model. Models with relative positions (such as RoPE, ALiBi or those of
        T5) have no such limit. If a source is longer than an encoder-decoder reads, its end is cut
        with a warning.

        Args:
            prompt: one text, or a list of texts, whose outputs are generated together and returned
                as a list. Prompt i of a list uses the seed plus i.
            draft: `PromptLookup()` or a `DraftModel` for speculative decoding, which changes the
                speed but not the text.
            **options: the fields of `SamplingParams`. The defaults of the model
                (`generation_config.json`) override those of `SamplingParams`. With `num_beams`,
                the text is the best result of beam search, as in `transformers` (1: greedy). The
                options are then the fields of `BeamSearchParams` and `max_new_tokens`.

        Raises:
            TriviumError: a prompt is longer than a decoder's context length, an option is unknown
                or outside its bounds, a JSON schema, regular expression or grammar is invalid,
                sampling options or a draft are combined with beam search, or the model does not
                generate.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if options.get("num_beams") is not None:
            texts = self._beam_search(prompts, draft, {**options})
            if isinstance(prompt, str):
                return texts[0]
            return texts
        options.pop("num_beams", None)
        requests = self._make_requests(prompts, options)
        self.run_requests(requests, slots=8 if self.compile else 16, draft=draft)
        self.warn_of_lengths(requests)
        if isinstance(prompt, str):
            return requests[0].text
        return [one.text for one in requests]

    def _beam_search(
        self, prompts: Sequence[str], draft: Draft | None, options: dict[str, Any]
    ) -> list[str]:
        """Return the best text that beam search finds for each of several prompts."""
        self.require("generate")
        if draft is not None:
            raise TriviumError("beam search does not use drafts: leave out draft or num_beams.")
        length = {name: options.pop(name) for name in ("max_new_tokens",) if name in options}
        texts, context = list[str](), self.spec.family == "decoder-only"
        for ids in self.prompting.prompts(prompts):
            params = self.beam_params(ids, **options)
            limit = self.sampling_params(ids, length).max_new_tokens
            [[best, *_]] = beam_search(self, [ids], params, max_new_tokens=limit)
            stream = TextStream(self.text_tokenizer, ids if context else ())
            texts.append("".join([*map(stream.push, best.ids), stream.finish()]))
        return texts

    def run_requests(
        self, requests: Sequence[GenerationRequest], *, slots: int, draft: Draft | None = None
    ) -> None:
        """Generate the texts of several requests together, and store each text in its request."""
        engine = self.engine_for(requests, slots=slots, draft=draft)
        try:
            for each in requests:
                engine.add(each)
            for request in engine.run():
                if request.error is not None:
                    raise request.error
        finally:  # a reused engine must not keep requests
            for request in requests:
                engine.cancel(request)

    def stream(
        self, prompt: str, *, draft: Draft | None = None, **options: Unpack[SamplingOptions]
    ) -> Iterator[str]:
        """Return an iterator over pieces of the text of `generate`, while they are generated.

        No piece ends within a character.
        """
        (request,) = self._make_requests([prompt], options)
        engine = self.engine_for([request], slots=8, draft=draft)

        def stream_text() -> Iterator[str]:
            """Yield pieces of the text. Cancels the request if the caller stops iterating early."""
            try:
                yield from engine.stream(engine.add(request))
            finally:
                engine.cancel(request)

        return stream_text()

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        draft: Draft | None = None,
        **options: Unpack[SamplingOptions],
    ) -> ChatAnswer:
        """Return the model's answer to a conversation: content, reasoning and tool calls.

        The format of tool calls is that of the model's chat template. A malformed call stays part
        of the content. To continue the conversation, append `answer.to_message()` and, for each
        call, a message `{"role": "tool", "tool_call_id": call.id, "content": result}`.

        Args:
            messages: the messages so far, in OpenAI's format.
            tools: the tools that the model may call, in OpenAI's format: functions with a JSON
                schema.
            tool_choice: "auto" (the model decides), "none" (the model does not see the tools),
                "required" (the text is constrained to calls), or
                `{"type": "function", "function": {"name": ...}}` (to one call of this function).
            parallel_tool_calls: whether the answer may have several calls. If not, it ends after
                the first one.
            chat_template_kwargs: additional variables of the chat template, such as
                `{"enable_thinking": False}`.
            draft: as for `generate`.
            **options: the fields of `SamplingParams`. The default of `max_new_tokens` is 512. A
                JSON schema, a regular expression, a grammar or choices constrain the content, but
                not the reasoning and tool calls.

        Raises:
            TokenizerError: the model has no chat template, the template rejects the messages, or
                tools are given, and the template does not render them or writes calls in a format
                that cannot be read.
            TriviumError: a tool, `tool_choice` or an option is invalid.
        """
        self.require("generate")
        turn = ChatTurn(
            self,
            messages,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            chat_template_kwargs=chat_template_kwargs,
        )
        params = self.sampling_params(turn.prompt_ids, options, max_new_tokens=512)
        request = turn.request(params)
        self.run_requests([request], slots=1, draft=draft)
        self.warn_of_lengths([request])
        return turn.read(request)

    def engine(
        self,
        *,
        slots: int = 8,
        slot_length: int = 2048,
        draft: Draft | None = None,
        cuda_graph: bool | None = None,
        fused: bool = False,
    ) -> Engine:
        """Create an engine that generates the texts of many requests together; see `Engine`.

        Raises:
            SpecError: the model does not generate.
        """
        self.require("generate")
        return Engine(
            self,
            slots=slots,
            slot_length=slot_length,
            compile=self.compile and draft is None,
            draft=draft,
            cuda_graph=cuda_graph,
            fused=fused,
        )

    def engine_for(
        self, requests: Sequence[GenerationRequest], *, slots: int, draft: Draft | None = None
    ) -> Engine:
        """Return an engine whose slots are long enough for all requests.

        An engine whose decode step is compiled or captured in CUDA graphs is reused, because this
        takes time. Each slot of a compiled engine has room for at least 2,048 tokens. On a GPU, the
        number of tokens is otherwise a power of two. It is at most the model's context length.
        """
        start = self.generation_rules.decoder_start
        lengths = [len(start or one.prompt_ids) + one.params.max_new_tokens for one in requests]
        length, compiles = max(lengths, default=1), self.compile and draft is None
        if not compiles:  # a compiled engine has one shape, whatever the number of requests
            slots = max(1, min(slots, len(requests)))
        if not compiles and self.module.device.type != "cuda":
            return self.engine(slots=slots, slot_length=length, draft=draft)
        length = min(length, self.module.spec.max_length or length)
        kept = self._kept_engine
        if (
            kept is None
            or kept.draft is not draft
            or kept.compiled != compiles
            or (kept.slots != slots if compiles else kept.slots < slots)
            or kept.slot_length < length
        ):
            length = max(length, 2048) if compiles else 1 << (length - 1).bit_length()
            kept = self.engine(slots=slots, slot_length=length, draft=draft)
        self._kept_engine = kept
        return kept

    def infill(
        self, prefix: str, suffix: str, *, order: Order = "psm", **options: Unpack[SamplingOptions]
    ) -> str:
        """Return the text between a prefix and a suffix (fill-in-the-middle).

        The model must have been trained for this, as StarCoder, Qwen2.5-Coder, CodeGemma and
        DeepSeek-Coder were, and models of `objective.kind = "fill-in-the-middle"`.

        Args:
            prefix: the text before the gap; may be empty.
            suffix: the text after the gap; may be empty.
            order: the order in which the model reads the parts: "psm" or "spm".
            **options: the fields of `SamplingParams`, as in `generate`.

        Raises:
            SpecError: the model is not a decoder, or its tokenizer has no tokens for infilling.
            TriviumError: as in `generate`.
        """
        (request,) = self._make_requests_of_ids([self.infill_ids(prefix, suffix, order)], options)
        self.run_requests([request], slots=1)
        self.warn_of_lengths([request])
        return request.text

    def infill_ids(self, prefix: str, suffix: str, order: Order = "psm") -> list[int]:
        """Return the ids of a prefix and a suffix, which the middle follows; see `infill`."""
        self.require("generate")
        if self.spec.family != "decoder-only":
            raise SpecError(
                f"this model is {self.spec.family}; infilling is for decoders. `fill_mask` fills "
                "the gaps of encoders and encoder-decoders."
            )
        if order not in get_args(Order):
            raise TriviumError(f'order is "{order}", but must be "psm" or "spm".')
        tokenizer = self.text_tokenizer
        tokens = InfillTokens.find(tokenizer.special_tokens)
        before, after = tokenizer.encode_ids_batch([prefix, suffix])
        return prepend_bos(tokenizer, tokens.arrange(before, after, order))

    def _make_requests(
        self, prompts: Sequence[str], options: Mapping[str, Any]
    ) -> list[GenerationRequest]:
        """Return one request per prompt. Prompt i uses the seed (random if not given) plus i."""
        self.require("generate")
        return self._make_requests_of_ids(self.prompting.prompts(prompts), options)

    def _make_requests_of_ids(
        self, prompts: Sequence[list[int]], options: Mapping[str, Any]
    ) -> list[GenerationRequest]:
        """Return one request for the ids of each prompt, with seeds as in `_make_requests`."""
        requests, drawn = [], secrets.randbits(31)
        for i, ids in enumerate(prompts):
            params = self.sampling_params(ids, options)
            seed = (drawn if params.seed is None else params.seed) + i
            requests.append(GenerationRequest(ids, params.replace(seed=seed)))
        return requests

    def translate(
        self,
        text: Texts,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        max_new_tokens: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        **options: Unpack[BeamSearchOptions],
    ) -> Texts:
        """Return the output for a source by beam search: a translation, a summary, or the like.

        The prefix of the task that the model was trained on is added to each text. If the model was
        trained with several prefixes, each text must begin with one of them. If a text is longer
        than the model reads, its end is cut with a warning.

        Args:
            text: one text, or a list of texts, which are read in batches of similar lengths.
            source_language: the language of the texts for a multilingual model, such as "en_XX"
                (mBART), "eng_Latn" (NLLB) or "en" (M2M-100). Its token replaces the language token
                that the tokenizer adds. None leaves the source language of the tokenizer.
            target_language: the language of the outputs, whose token is forced as the first token,
                or precedes the source ("fra" for `>>fra<<` of Marian). None uses the first token in
                the model's settings.
            max_new_tokens: the maximum number of tokens of an output. By default it is the model's
                own limit, else twice the number of source tokens plus 16, but at most 256. A
                warning is given if an output reaches this default limit.
            progress: called with the number of finished texts and the number of all texts.
            **options: the fields of `BeamSearchParams`. The defaults of the model
                (`generation_config.json`) override those of `BeamSearchParams`.

        Raises:
            SpecError: the model is not an encoder-decoder, or has no token of a language.
            TriviumError: a text does not begin with one of several prefixes.
        """
        self.require("translate")
        task = self.settings.task or "translation"
        prefix = str(self.settings.task_options(task).get("prefix", ""))
        texts = [text] if isinstance(text, str) else list(text)
        for each in texts:
            if not each.startswith(self.settings.task_prefixes):
                known = ", ".join(f'"{shorten(one)}"' for one in self.settings.task_prefixes)
                raise TriviumError(
                    f'"{shorten(each)}": the model was trained on tasks with prefixes; begin the '
                    f"text with one of {known}."
                )
        rules, first = self.generation_rules, list[int]()
        if target_language is not None:
            language = find_language_id(self.text_tokenizer, target_language)
            if is_source_token(self.text_tokenizer.tokens[language]):
                first = [language]
            else:
                rules = replace(rules, forced_start=(language,))
        sources = self.prompts([prefix + each for each in texts], first=first)
        if source_language is not None:
            self._set_source_language(sources, source_language)
        limits = [
            self.target_limit(each) if max_new_tokens is None else max_new_tokens
            for each in sources
        ]
        params = self.beam_params(**options)
        outputs = beam_search(
            self, sources, params, max_new_tokens=limits, rules=rules, progress=progress
        )
        cut = any(best[0].finish_reason == "length" for best in outputs if best)
        if cut and max_new_tokens is None:
            warnings.warn(
                "a text ends at its limit (the model's own, or twice its source's tokens and 16, "
                "at most 256): set the largest number of new tokens for longer ones.",
                stacklevel=2,
            )
        decode = self.text_tokenizer.decode
        targets = [decode(best[0].ids) if best else "" for best in outputs]
        if isinstance(text, str):
            return targets[0]
        return targets

    def _set_source_language(self, sources: Sequence[list[int]], language: str) -> None:
        """Replace the language token that the tokenizer adds before or after each source.

        Raises SpecError if the tokenizer has no token of this language, or adds none to texts.
        """
        tokenizer, template = self.source_tokenizer, self.source_template
        new, known = find_language_id(tokenizer, language), {*list_languages(tokenizer).values()}
        before, after = len(template.before), len(template.after)
        if not known & {*template.before, *template.after}:
            raise SpecError(
                f'the source language is "{language}", but this tokenizer adds no language token '
                "to a text; leave the source language out."
            )
        for ids in sources:
            for place in (*range(before), *range(len(ids) - after, len(ids))):
                ids[place] = new if ids[place] in known else ids[place]
