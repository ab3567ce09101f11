"""`LanguageModel`: a spec, weights and a tokenizer, with everything the model can do."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, get_args, overload

import torch
from torch import Tensor, nn

from trivium.adapt.lora import LoRALinear
from trivium.errors import SpecError, TriviumError, shorten
from trivium.inference.answer import AnswerSpan, find_answers
from trivium.inference.attention_weights import AttentionWeights, attention_weights
from trivium.inference.beam import beam_search
from trivium.inference.classify import Classification, classify_texts, label_count
from trivium.inference.embed import TokenVectors, embed_tokens, embed_windows
from trivium.inference.engine import Engine
from trivium.inference.fill_mask import MaskFill, fill_blanks, fill_gaps, fill_masks
from trivium.inference.model_inputs import MoreInputs, Numbers, model_inputs
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import BeamSearchOptions, SamplingOptions
from trivium.inference.score import score_text
from trivium.inference.speculative import Draft
from trivium.inference.tag import TaggedWord, find_words, tag_words
from trivium.inference.text_model import TextModel
from trivium.interop.hf_folder import write_folder
from trivium.model_folder import new_model_folder, write_model
from trivium.models import LogitsModel
from trivium.nn.packed_linear import Int8Linear, PackedLinear
from trivium.spec import Pooling
from trivium.text import Tokenizer

Texts = TypeVar("Texts", str, list[str])
Pair = tuple[str, str | None]


class LanguageModel(TextModel):
    """A model that is ready to use: weights in evaluation mode, with tokenizer and settings."""

    _compiled_engine: Engine | None = None

    @classmethod
    def from_module(
        cls, module: nn.Module, tokenizer: Tokenizer | None = None, *, max_length: int | None = None
    ) -> LanguageModel:
        """A causal model of one's own, from ids [B, T] to logits [B, T, V], to generate and score.

        It can be served, too. It reads the whole text again for every token that it generates, and
        cannot be saved or exported: keep its `state_dict`.

        Args:
            module: no logits may depend on later tokens.
            tokenizer: None for a model used by ids alone.
            max_length: tokens that it can read; None: any number.

        Raises:
            SpecError: the module gives something else.
        """
        model = LogitsModel(module, max_length=max_length)
        return cls(model.spec, model, tokenizer)  # type: ignore[arg-type]

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write weights, spec, tokenizers and settings to a folder that `load` reads.

        The folder takes its name only when it is complete.

        Args:
            folder: a new or empty folder.
            overwrite: replace a model that is there; a run or other files are never replaced.

        Raises:
            SpecError: a model that is packed, quantised or without weights, or has a LoRA adapter.
            CheckpointError: the folder is in use, or cannot be written.
        """
        self._check_savable()
        tokenizers = self.tokenizer, self._source_tokenizer
        with new_model_folder(folder, overwrite=overwrite) as partial:
            write_model(partial, self.module, *tokenizers, self.settings)
        return Path(folder)

    def save_hf(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        max_shard_bytes: int = 5_000_000_000,
    ) -> Path:
        """Write a Hugging Face folder, which `transformers` and `load` read.

        A decoder with a task head loses its head over the vocabulary, with a warning: no class of
        `transformers` has both. So does an encoder with a mask decoder (`MLMHead.late_positions`).

        Args:
            folder: a new or empty folder.
            overwrite: replace a model that is there; a run or other files are never replaced.
            max_shard_bytes: size of a weight file beyond which another one begins.

        Raises:
            SpecError: no Hugging Face family can express this model, or as `save`.
            CheckpointError: the folder is in use, or cannot be written.
        """
        self._check_savable()
        if self._source_tokenizer is not None:
            raise SpecError(
                "a model with a source tokenizer of its own cannot be exported: a Hugging Face "
                "folder has one tokenizer.json. Train one without model.separate_vocabularies."
            )
        with new_model_folder(folder, overwrite=overwrite) as partial:
            model = self.module, self.tokenizer, self.settings
            write_folder(partial, *model, max_shard_bytes=max_shard_bytes)
        return Path(folder)

    def _check_savable(self) -> None:
        for module in self.module.modules():
            if isinstance(module, PackedLinear | Int8Linear):
                raise SpecError(
                    "a packed or quantised model cannot be saved: load it without pack and "
                    "quantize first."
                )
            if isinstance(module, LoRALinear):
                raise SpecError(
                    "this model has a LoRA adapter: load its merged_state into a new one first."
                )
        if self.module.device.type == "meta":
            raise SpecError('this model has no weights: load it on another device than "meta".')

    @torch.inference_mode()
    def logits(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        *,
        head: str | None = None,
        **inputs: Unpack[MoreInputs],
    ) -> Tensor:
        """Float32 logits of every position: int64 [B, T] -> [B, T, V].

        Heads over labels give [B, L] for a text or [B, T, L] for tokens. Of an encoder-decoder T
        are the positions of `decoder_input_ids`.

        Args:
            input_ids: tensor, array or list of lists.
            attention_mask: [B, T], nonzero where a token is real.
            head: the kind of head; None: that over the vocabulary, else the first.
            **inputs: each [B, T]: `token_type_ids`, sentence A (0) or B (1); `position_ids` of
                `input_ids`, else counted as the model's positions say; `decoder_input_ids` of an
                encoder-decoder, and `decoder_attention_mask`.

        Raises:
            SpecError: a shape that is not [B, T], ids out of range, or an input that is missing or
                does not fit the model's family.
        """
        self.require("logits")
        tensors = model_inputs(
            self.module, input_ids=input_ids, attention_mask=attention_mask, **inputs
        )
        decodes = "decoder_input_ids" in tensors
        mask = tensors.get("decoder_attention_mask" if decodes else "attention_mask")
        return self.module.logits(self.module(**tensors), head=head, attention_mask=mask).float()

    def attention_weights(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        **inputs: Unpack[MoreInputs],
    ) -> AttentionWeights:
        """The attention weights of every layer and head; arguments as of `logits`."""
        tensors = model_inputs(
            self.module, input_ids=input_ids, attention_mask=attention_mask, **inputs
        )
        return attention_weights(self.module, **tensors)

    def generate(
        self, prompt: Texts, *, draft: Draft | None = None, **options: Unpack[SamplingOptions]
    ) -> Texts:
        """The continuation of a prompt, or an encoder-decoder's output; of several prompts a list.

        A text ends at the end of text, at a stop string, after `max_new_tokens`, or at the model's
        context length; relative positions (rotary, ALiBi, T5's) set none. The end of a source
        longer than an encoder-decoder reads is cut, with a warning. Prompt i of several has
        seed + i.

        Args:
            prompt: one text or several, generated together.
            draft: `PromptLookup()` or a `DraftModel` (speculative decoding); it changes the time,
                not the text.
            **options: the fields of `SamplingParams`; those that are not set are the model's own
                (`generation_config.json`), else the defaults.

        Raises:
            TriviumError: a prompt longer than a decoder's context length, an option outside its
                bounds, or a model that does not generate.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        requests = self._requests(prompts, options)
        engine = self.engine_for(requests, slots=8 if self.compile else 16, draft=draft)
        try:
            for request in requests:
                engine.add(request)
            for _ in engine.run():
                pass
        finally:  # nothing stays in an engine that is used again
            for request in requests:
                engine.cancel(request)
        self.warn_of_lengths(requests)
        if isinstance(prompt, str):
            return requests[0].text
        return [one.text for one in requests]

    def stream(
        self, prompt: str, *, draft: Draft | None = None, **options: Unpack[SamplingOptions]
    ) -> Iterator[str]:
        """The text of `generate` in pieces, as they are generated; joined they are the same text.

        No piece ends within a character.
        """
        (request,) = self._requests([prompt], options)
        engine = self.engine_for([request], slots=8, draft=draft)

        def generated() -> Iterator[str]:
            try:
                yield from engine.stream(engine.add(request))
            finally:
                engine.cancel(request)

        return generated()

    def engine(
        self, *, slots: int = 8, slot_length: int = 2048, draft: Draft | None = None
    ) -> Engine:
        """An engine for many requests; see `Engine`.

        Raises:
            SpecError: the model does not generate.
        """
        self.require("generate")
        compile = self.compile and draft is None
        return Engine(self, slots=slots, slot_length=slot_length, compile=compile, draft=draft)

    def engine_for(
        self, requests: Sequence[GenerationRequest], *, slots: int, draft: Draft | None = None
    ) -> Engine:
        """An engine whose slots are as long as the longest of some requests needs.

        A compiled engine is kept, since another shape is compiled anew. Its slots have at least
        2,048 tokens, or the context length.
        """
        start = self.generation_rules.decoder_start
        lengths = [len(start or one.prompt_ids) + one.params.max_new_tokens for one in requests]
        length = max(lengths, default=1)
        if not self.compile or draft is not None:
            slots = max(1, min(slots, len(requests)))
            return self.engine(slots=slots, slot_length=length, draft=draft)
        limit = self.module.spec.max_length or length
        kept = self._compiled_engine
        if kept is None or kept.slots != slots or kept.slot_length < min(length, limit):
            kept = self.engine(slots=slots, slot_length=max(length, 2048))
        self._compiled_engine = kept
        return kept

    def _requests(
        self, prompts: Sequence[str], options: SamplingOptions
    ) -> list[GenerationRequest]:
        self.require("generate")
        requests, drawn = [], secrets.randbits(31)
        for i, ids in enumerate(self.prompts(prompts)):
            params = self.sampling_params(ids, options)
            seed = (drawn if params.seed is None else params.seed) + i
            requests.append(GenerationRequest(ids, params.replace(seed=seed)))
        return requests

    def translate(
        self,
        text: Texts,
        *,
        max_new_tokens: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        **options: Unpack[BeamSearchOptions],
    ) -> Texts:
        """The output for a source by beam search: a translation, a summary, any learned target.

        The prefix that the model was trained with is put before each text. Where it was trained
        with several, each text begins with one of them. The end of a text longer than the model
        reads is cut, with a warning.

        Args:
            text: one or several, in batches of similar lengths.
            max_new_tokens: tokens of an output at most; None: the model's own limit, else twice
                those of its source and 16, but no more than 256. A warning says that an output
                was ended there.
            progress: called with the number of finished texts and of all.
            **options: the fields of `BeamSearchParams`; those that are not set are the model's own
                (`generation_config.json`), else the defaults.

        Raises:
            SpecError: no encoder-decoder.
            TriviumError: a text without one of the prefixes of several tasks.
        """
        self.require("translate")
        task = self.settings.task or "translation"
        prefix = str(self.settings.task_options(task).get("prefix", ""))
        texts = [text] if isinstance(text, str) else list(text)
        for each in texts:
            if not each.startswith(self.settings.prefixes):
                known = ", ".join(f'"{shorten(one)}"' for one in self.settings.prefixes)
                raise TriviumError(
                    f'"{shorten(each)}": the model was trained on tasks with prefixes; begin the '
                    f"text with one of {known}."
                )
        sources = self.prompts([prefix + each for each in texts])
        limits = [
            self.target_limit(each) if max_new_tokens is None else max_new_tokens
            for each in sources
        ]
        params = self.beam_params(**options)
        outputs = beam_search(self, sources, params, max_new_tokens=limits, progress=progress)
        cut = any(best[0].finish_reason == "length" for best in outputs if best)
        if cut and max_new_tokens is None:
            warnings.warn(
                "a text ends at its limit (the model's own, or twice its source's tokens and 16, "
                "at most 256): give max_new_tokens for longer ones.",
                stacklevel=2,
            )
        decode = self.text_tokenizer.decode
        targets = [decode(best[0].ids) if best else "" for best in outputs]
        if isinstance(text, str):
            return targets[0]
        return targets

    def fill_mask(self, text: str, top_k: int = 5) -> list[Any]:
        """The most probable fills of the mask in a text, best first, at most `top_k`.

        A mask is written [MASK], <mask>, or as the tokenizer has it. An encoder predicts one token
        per mask. An encoder-decoder fills all gaps together, each with any number of words, by
        beam search; T5's gaps may also be written <extra_id_0>, <extra_id_1>, ... Its scores are
        probabilities per token (geometric means), whose sum may exceed 1. A decoder (GLM) fills
        one gap after another with the most probable tokens: one fill of all of them.

        Returns:
            A list of `MaskFill(sequence, token, score)`; of an encoder, for a text with several
            masks, one such list per mask.

        Raises:
            TriviumError: no mask in the text, or a model that does not fill masks.
            SpecError: of an encoder-decoder, a text longer than it reads.
        """
        self.require("fill_mask")
        if self.spec.family == "encoder-decoder":
            return fill_gaps(self, text, top_k=top_k)
        if self.spec.family == "decoder-only":
            return [fill_blanks(self, text)]
        fills: list[list[MaskFill]] = fill_masks(self, text, top_k=top_k)
        return fills[0] if len(fills) == 1 else fills

    def score(self, text: str, context: str | None = None) -> float:
        """Log-probability of a text in nats.

        Of a decoder the sum of log p(token | tokens before), of an encoder the
        pseudo-log-likelihood, the sum of log p(token | all others) (Salazar et al. 2020).

        Args:
            text: what is scored.
            context: what the text continues; an encoder-decoder reads it with its encoder, and
                needs it. The start of one that is too long for the model is cut.
        """
        self.require("score")
        return score_text(self, text, context).total

    @overload
    def classify(self, text: str, pair: str | None = None) -> Classification: ...
    @overload
    def classify(
        self, text: list[str] | list[Pair] | list[str | Pair], pair: None = None
    ) -> list[Classification]: ...

    def classify(
        self, text: str | list[str] | list[Pair] | list[str | Pair], pair: str | None = None
    ) -> Classification | list[Classification]:
        """The label of a text or of a pair of texts, with the probability of every label.

        Without a head for labels, one for the next sentence labels pairs (`next_sentence`).
        An encoder-decoder that was fine-tuned to generate labels compares their likelihoods. The
        end of a text longer than the model reads is cut, with a warning.

        Args:
            text: one text, or a list of texts or of pairs.
            pair: the second text, for a model that was trained on pairs.

        Raises:
            SpecError: the model does not classify.
            TriviumError: a text is empty; a pair for a model fine-tuned on single texts, or a
                single text for one fine-tuned on pairs.
        """
        texts = (
            [(text, pair)]
            if isinstance(text, str)
            else [(each, None) if isinstance(each, str) else each for each in text]
        )
        if "next_sentence" not in self.capabilities or any(two is None for _, two in texts):
            self.require("classify")
        labels = classify_texts(self, texts)
        return labels[0] if isinstance(text, str) else labels

    def next_sentence(self, first: str, second: str) -> Classification:
        """Whether a text follows another, as the head of BERT's own pretraining says.

        The labels are "next" (0, as in Devlin et al. 2018) and "not next" (1; ALBERT: swapped).
        """
        self.require("next_sentence")
        return classify_texts(self, [(first, second)], head="nsp")[0]

    @overload
    def tag(self, text: str) -> list[TaggedWord]: ...
    @overload
    def tag(self, text: list[str] | list[Sequence[str]]) -> list[list[TaggedWord]]: ...

    def tag(
        self, text: str | list[str] | list[Sequence[str]]
    ) -> list[TaggedWord] | list[list[TaggedWord]]:
        """The tag of every word.

        Of a longer text the model reads parts that follow one another. Words are separated by
        spaces, with marks at their ends as words of their own; Chinese and Japanese characters are
        words, unless the model was trained on longer ones.

        Args:
            text: a text, or a list of texts or of lists of words (joined, to count characters).

        Raises:
            SpecError: the model does not tag.
        """
        self.require("tag")
        texts = [text] if isinstance(text, str) else text
        longer = self.settings.task_options("tagging").get("longer_words", False)
        sentences = [find_words(each, by_character=not longer) for each in texts]
        names = self.label_names(label_count(self.spec, "tagger"))
        tagged = tag_words(self, sentences, names, max_length=self.max_length)
        return tagged[0] if isinstance(text, str) else tagged

    def answer(self, question: str, context: str, top_k: int = 1) -> list[AnswerSpan]:
        """The best answers to a question in a context, best first; an empty text is no answer.

        A context longer than the model reads is read in overlapping windows.

        Raises:
            SpecError: the model does not answer questions.
        """
        return self.answer_all([(question, context)], top_k=top_k)[0]

    def answer_all(
        self, questions: Sequence[tuple[str, str]], *, top_k: int = 1
    ) -> list[list[AnswerSpan]]:
        """`answer` for many pairs of question and context."""
        self.require("answer")
        options = self.settings.task_options("qa")
        return find_answers(
            self,
            questions,
            max_length=self.max_length,
            stride=int(options.get("stride", 128)),
            top_k=top_k,
            no_answer_threshold=options.get("no_answer_threshold"),
        )

    def embed(
        self, texts: str | Sequence[str], *, pooling: Pooling | None = None, normalize: bool = True
    ) -> Tensor:
        """The vector of a text, float32 [D], or of several, [N, D].

        The vector of a text longer than the model reads is the mean of those of equal windows.

        Args:
            texts: one or several.
            pooling: "mean" of all tokens, the "first" ([CLS]) or the "last" one; None: as the model
                was trained for vectors, else the mean, of a decoder the last, the only one that
                attends to the whole text.
            normalize: to length 1, so that dot products are cosine similarities.

        Raises:
            SpecError: an encoder-decoder.
        """
        self.require("embed")
        if pooling is not None and pooling not in get_args(Pooling):
            raise SpecError(f"pooling is {pooling!r}, but must be mean, first or last.")
        windows = self.embedding_windows([texts] if isinstance(texts, str) else texts)
        vectors = embed_windows(self, windows, pooling=pooling, normalize=normalize)
        return vectors[0] if isinstance(texts, str) else vectors

    def embed_tokens(self, texts: Sequence[str], *, normalize: bool = True) -> list[TokenVectors]:
        """A vector for each token of texts: that of the same word in another text differs.

        `normalize` as of `embed`; a longer text is read in equal windows.
        """
        self.require("embed")
        return embed_tokens(self, self.windows(texts), normalize=normalize)
