"""`TextModel`: a model with its tokenizers and settings, and the defaults for inference."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack, get_args

from trivium.adapt.adapter import Adapter
from trivium.errors import SpecError, TokenizerError
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import (
    BeamSearchOptions,
    BeamSearchParams,
    DecodingParams,
    SamplingParams,
    check_option_names,
    options_from_config,
)
from trivium.interop.settings import MAX_TARGET, Settings
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads.text import Pooling, VectorHead
from trivium.text import Tokenizer
from trivium.text.chat_template import ChatTemplate, Message, Tools
from trivium.text.inputs import SpecialTokenTemplate, TextInput, encode_inputs, encode_windows
from trivium.text.literals import SpecialTokens

_NO_LENGTH = 1 << 24  # Hugging Face files write larger numbers for "any length".
_BIASED_LENGTH = 1024  # Training length of mT5 and ByT5, whose files have none (Xue et al. 2020).

_FITTING = {
    "logits": "a model with a head",
    "generate": "a decoder or an encoder-decoder",
    "translate": "an encoder-decoder",
    "fill_mask": "an encoder with its mlm head, T5, BART or GLM",
    "score": "a decoder, an encoder-decoder or an encoder with its mlm head",
    "next_sentence": 'a BERT of `trivium pretrain --set objective.kind="sentence-pairs"`',
    "embed": "an encoder or a decoder",
}
"""The models that have a capability without fine-tuning, by capability."""

TASK_OF_CAPABILITY = {
    "classify": "classification",
    "tag": "tagging",
    "answer": "qa",
    "rerank": "reranking",
}
"""The task whose fine-tuning adds a capability, by capability."""


@dataclass(frozen=True)
class GenerationRules:
    """Rules for every text that a model generates, from its tokenizer and its settings.

    Args:
        vocab_size: the number of ids that may be generated; further rows of the embedding matrix
            are padding.
        stop_ids: ids that end a text.
        banned_ids: ids that are never generated, such as Marian's padding.
        begin_banned_ids: ids that are banned as the first token of a text.
        decoder_start: the ids that the decoder of an encoder-decoder reads first; these ids are not
            part of the output.
        forced_start: the ids that are forced as the first tokens of every output, such as the
            language token of mBART.
        forced_end: the id forced as the last token if `max_new_tokens` is reached (BART); None: no
            id is forced.
        encoder_no_repeat_ngram: no n-gram of this size that occurs in the source may be generated;
            0: no restriction.
    """

    vocab_size: int
    stop_ids: frozenset[int] = frozenset()
    banned_ids: frozenset[int] = frozenset()
    begin_banned_ids: frozenset[int] = frozenset()
    decoder_start: tuple[int, ...] = ()
    forced_start: tuple[int, ...] = ()
    forced_end: int | None = None
    encoder_no_repeat_ngram: int = 0

    @property
    def target_start(self) -> tuple[int, ...]:
        """The first ids of every target of an encoder-decoder: decoder start and forced start."""
        return self.decoder_start + self.forced_start

    def max_tokens(
        self, prompt: Sequence[int], max_new_tokens: int, context_length: int | None
    ) -> int:
        """Return the maximum number of tokens to generate for a prompt.

        The last generated token needs no position, because the decoder does not read it.

        Args:
            prompt: the ids of the prompt, or of the source of an encoder-decoder.
            max_new_tokens: the maximum number set by the user.
            context_length: the number of tokens that the decoder can read; None for any number.
        """
        if context_length is None:
            return max_new_tokens
        return min(max_new_tokens, context_length - len(self.decoder_start or prompt) + 1)

    def check_logit_bias(self, params: DecodingParams) -> None:
        """Raise SpecError if `logit_bias` contains a token id outside the vocabulary."""
        for token_id in params.logit_bias:
            if not 0 <= token_id < self.vocab_size:
                raise SpecError(
                    f"logit_bias has id {token_id}, but ids are 0 to {self.vocab_size - 1}."
                )

    def forced_id(self, length: int, limit: int) -> int | None:
        """Return the id that is forced as the next token, or None if any id may follow.

        `length` is the number of output tokens so far, and `limit` their maximum number.
        """
        if length < len(self.forced_start):
            return self.forced_start[length]
        return self.forced_end if length + 1 >= limit else None


class TextModel:
    """A model with its spec, weights, tokenizers and settings, ready for inference.

    Args:
        spec: the description of `module`.
        module: the weights, which are put into evaluation mode.
        tokenizer: the tokenizer; None if the model is used with ids only.
        settings: the options of generation, the names of labels and so on, which are saved and
            exported with the model.
        source_tokenizer: the tokenizer of the encoder's input, if different from `tokenizer`.
        compile: whether to compile the decode step of generation.
        adapter: the adapter that was added to `module`; None if there is none.

    If the tokenizer has more ids than the model, there is only a warning. A text that contains such
    an out-of-vocabulary id raises an error.
    """

    def __init__(
        self,
        spec: Spec,
        module: LanguageModule,
        tokenizer: Tokenizer | None = None,
        settings: Settings | None = None,
        *,
        source_tokenizer: Tokenizer | None = None,
        compile: bool = False,
        adapter: Adapter | None = None,
    ) -> None:
        source_size = getattr(spec, "source_vocab_size", None) or spec.vocab_size
        for each, size in ((tokenizer, spec.vocab_size), (source_tokenizer, source_size)):
            if each is not None and each.vocab_size > size:
                warnings.warn(
                    f"the tokenizer has {each.vocab_size} ids, but the model only {size}: a text "
                    f"with an id from {size} on is refused.",
                    stacklevel=3,
                )
        self.spec, self.module, self.tokenizer = spec, module.eval(), tokenizer
        self.settings, self._source_tokenizer = settings or Settings(), source_tokenizer
        self.compile, self.adapter = compile, adapter
        self._special_tokens: SpecialTokens | None = None

    def __repr__(self) -> str:
        """Return the class name, the family and the capabilities."""
        return f"<{type(self).__name__}: {self.spec.family}, {', '.join(self.capabilities)}>"

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The methods that the model supports, given its heads, family, tokenizer and settings."""
        heads, family = {head.kind for head in self.spec.heads}, self.spec.family
        encodes, decodes = family != "decoder-only", family != "encoder-only"
        both = encodes and decodes
        blanks = both or self.spec.fills_blanks
        generates = "lm" in heads and decodes
        fills = "mlm" in heads and not decodes
        tokenizer = self._source_tokenizer or self.tokenizer
        gaps = tokenizer is not None and bool(
            tokenizer.mask_id is not None or tokenizer.sentinel_ids
        )
        supported = {
            "logits": any(head.predicts for head in self.spec.heads),
            "generate": generates,
            "translate": generates and both,
            "fill_mask": fills or (generates and blanks and gaps),
            "score": fills or generates,
            "classify": "classifier" in heads or self.generates_labels,
            "next_sentence": "nsp" in heads,
            "tag": "tagger" in heads and not both,
            "answer": "span" in heads,
            "rerank": self.scores_relevance,
            "embed": not both and self.spec.d_model > 0,
        }
        return tuple(name for name, able in supported.items() if able)

    @property
    def generates_labels(self) -> bool:
        """Whether `classify` uses an encoder-decoder's likelihoods of label names, not a head."""
        heads = {head.kind for head in self.spec.heads}
        fine_tuned = bool(self.settings.task_options("classification") and self.settings.labels)
        both = self.spec.family == "encoder-decoder"
        return fine_tuned and both and "lm" in heads and "classifier" not in heads

    @property
    def scores_relevance(self) -> bool:
        """Whether the model is a cross-encoder, whose only label is the relevance of a document.

        True for a model that was fine-tuned for reranking, and for an imported classifier with one
        label, as in `CrossEncoder` of sentence-transformers.
        """
        counts = [getattr(head, "num_labels", 0) for head in self.spec.heads]
        is_single = any(h.kind == "classifier" and n == 1 for h, n in zip(self.spec.heads, counts))
        return is_single and self.settings.task in (None, "reranking")

    @property
    def uses_document_tokens(self) -> bool:
        """Whether `classify` and `embed` add the BOS and EOS tokens of training documents.

        True for an encoder or encoder-decoder. True for a decoder only if it was fine-tuned with
        these tokens (classification, contrastive).
        """
        return self.settings.uses_document_tokens or self.spec.family != "decoder-only"

    @property
    def pooling(self) -> Pooling:
        """The default pooling of `embed`: the pooling that the model was trained with.

        If it is unknown, the pooling is "last" for a decoder and "mean" for other models. Raises
        SpecError if the settings name a pooling that does not exist.
        """
        pooling = self.settings.pooling
        if pooling in get_args(Pooling):
            return pooling
        if pooling is not None:
            raise SpecError(f'this model pools by "{pooling}", which is not mean, first or last.')
        return "last" if self.spec.family == "decoder-only" else "mean"

    @property
    def vector_size(self) -> int:
        """The dimension of the vectors that `embed` returns."""
        heads = (head for head in self.spec.heads if isinstance(head, VectorHead))
        return next((head.layers[-1].width for head in heads), self.spec.d_model)

    def label_names(self, count: int) -> tuple[str, ...]:
        """Return the names of `count` labels; if unknown, LABEL_0, ... as in `transformers`."""
        names = self.settings.labels
        return names if len(names) == count else tuple(f"LABEL_{n}" for n in range(count))

    def require(self, capability: str) -> None:
        """Raise SpecError if a capability is not among the model's `capabilities`."""
        if capability in self.capabilities:
            return
        task = TASK_OF_CAPABILITY.get(capability)
        advice = f"`trivium finetune {task}` adds it." if task else f"Take {_FITTING[capability]}."
        if capability == "logits":
            raise SpecError(f"this model has no head, which logits need. {advice}")
        heads = ", ".join(head.kind for head in self.spec.heads) or "none"
        raise SpecError(
            f"this model cannot {capability.replace('_', '-')}: it is {self.spec.family} and has "
            f"the heads: {heads}. {advice}"
        )

    def reading(self, special_tokens: SpecialTokens | None) -> Self:
        """Return a copy of this model that tokenizes `[SEP]` and the like as text or as special.

        Args:
            special_tokens: whether `[SEP]` or `<|im_end|>` in a text is tokenized as plain "text"
                or as the "special" token. None is the default: special in the prompt of `generate`
                and text elsewhere (except `[MASK]` in `fill_mask`), unless the model was trained
                with another `data.special_tokens`.
        """
        if special_tokens == self._special_tokens:
            return self
        other = copy.copy(self)
        other._special_tokens = special_tokens
        return other

    @property
    def special_tokens(self) -> SpecialTokens:
        """How strings such as `[SEP]` in a text are tokenized: as "text" or as "special" tokens."""
        trained = self.settings.config.get("trained_special_tokens") == "special"
        return self._special_tokens or ("special" if trained else "text")

    @property
    def prompting(self) -> Self:
        """A copy of this model for prompts: `[SEP]` and the like are special tokens by default."""
        return self.reading(self._special_tokens or "special")

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer, set to tokenize strings such as `[SEP]` as `special_tokens` specifies.

        Raises TokenizerError if the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise TokenizerError(
                "this model has no tokenizer, which text needs: put a tokenizer.json into its "
                "folder, or use `logits` with ids."
            )
        return self.tokenizer.reading(self.special_tokens)

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the encoder's input: the source tokenizer if any, else the tokenizer."""
        own = self._source_tokenizer
        return self.text_tokenizer if own is None else own.reading(self.special_tokens)

    @property
    def source_template(self) -> SpecialTokenTemplate:
        """The special tokens before and after a text that an encoder reads."""
        return SpecialTokenTemplate(self.source_tokenizer)

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens that the model reads at once; None: any number.

        It is the smallest of the known limits (context length, training, configuration files).

        Longer texts are read in windows (`tag`, `answer`, `embed`, `fill_mask`, and `score` with an
        encoder), or are truncated at the end with a warning (`classify`, and the sources of an
        encoder-decoder). If no limit is known, the value is 1,024 for an encoder with relative
        position biases (T5, ALiBi), whose memory is quadratic, and None for other models.
        """
        config = self.settings.config
        lengths = (
            self.spec.max_length,
            self.trained_length,
            config.get("max_position_embeddings"),
            self.settings.tokenizer.get("model_max_length"),
        )
        known = (each for each in lengths if isinstance(each, int) and 1 < each < _NO_LENGTH)
        return min(known, default=_BIASED_LENGTH if self.spec.has_encoder_position_bias else None)

    @property
    def context_length(self) -> int | None:
        """The maximum number of positions in the model; None if there is no limit.

        For an encoder-decoder without such a limit, it is `max_length`.
        """
        both = self.spec.family == "encoder-decoder"
        return self.spec.max_length or (self.max_length if both else None)

    @property
    def trained_length(self) -> int | None:
        """The number of tokens in the longest rows of the training data; None if unknown."""
        return self.settings.config.get("trained_length")

    @property
    def generation_rules(self) -> GenerationRules:
        """The rules for generated texts, derived from the tokenizer and the settings."""
        tokenizer, settings, start = self.text_tokenizer, self.settings, ()
        if self.spec.family == "encoder-decoder":
            first = (tokenizer.bos_id, tokenizer.pad_id)
            start = settings.decoder_start or tuple(i for i in first if i is not None)[:1]
            if not start:
                raise TokenizerError(
                    "it is unknown what this decoder begins with: generation_config.json has no "
                    "decoder_start_token_id, the tokenizer neither bos nor padding."
                )
        size = min(tokenizer.vocab_size, self.spec.vocab_size)
        # Generated texts end with the same tokens as documents in training.
        ends = (tokenizer.eos_id, *tokenizer.suffix_ids, *settings.ids("eos_token_id"))

        def known(ids: Iterable[int | None]) -> tuple[int, ...]:
            """Return the ids that are not None and belong to the vocabulary."""
            return tuple(i for i in ids if i is not None and 0 <= i < size)

        return GenerationRules(
            vocab_size=size,
            stop_ids=frozenset(known(ends)),
            banned_ids=frozenset(known(settings.banned_ids)),
            begin_banned_ids=frozenset(
                known(settings.generation.get("begin_suppress_tokens") or ())
            ),
            decoder_start=start,
            forced_start=known(settings.ids("forced_bos_token_id")[:1]) if start else (),
            forced_end=next(iter(known(settings.ids("forced_eos_token_id")[:1])), None),
            encoder_no_repeat_ngram=settings.generation.get("encoder_no_repeat_ngram_size") or 0,
        )

    def get_chat_template(self, *, tools: bool = False) -> ChatTemplate:
        """Return the chat template; with `tools`, that for conversations with tools.

        Raises TokenizerError if the model has no chat template.
        """
        source = (self.settings.tool_template if tools else None) or self.settings.chat_template
        if source is None:
            raise TokenizerError(
                "this model has no chat template: `trivium finetune chat` adds one. Without, "
                "`trivium generate` continues a text."
            )
        return ChatTemplate.of(source, self.text_tokenizer)

    def conversation_ids(
        self, messages: Sequence[Message], *, tools: Tools | None = None, **variables: Any
    ) -> list[int]:
        """Return the ids of a conversation, with the assistant's generation prompt at the end.

        Args:
            messages: the messages.
            tools: the tools that the model may call, in OpenAI's format.
            variables: additional variables of the chat template, such as `enable_thinking`.

        Raises TokenizerError if the model has no chat template, or the template raises an error for
        the messages.
        """
        template = self.get_chat_template(tools=bool(tools))
        text = template.render(messages, add_generation_prompt=True, tools=tools, **variables)
        return prompt_ids(self, text)

    def prompts(self, texts: Sequence[str], *, first: Sequence[int] = ()) -> list[list[int]]:
        """Return the ids of prompts or sources, each with the ids `first` at the start.

        Warns if sources are truncated to `max_length`.
        """
        prompts, limit = [[*first, *prompt_ids(self, text)] for text in texts], self.max_length
        if self.spec.family == "encoder-decoder" and limit is not None:
            suffix = self.source_template.after
            long = [ids for ids in prompts if len(ids) > limit]
            for ids in long:
                ids[limit - len(suffix) :] = suffix
            warn_if_truncated(len(long), len(texts), limit)
        return prompts

    def text_inputs(self, texts: Sequence[tuple[str, str | None]]) -> list[TextInput]:
        """Encode texts or pairs of texts as model inputs. Warns if some texts are truncated."""
        limit = self.max_length
        inputs = encode_inputs(
            self.source_tokenizer, texts, max_length=limit, as_documents=self.uses_document_tokens
        )
        warn_if_truncated(sum(bool(each.cut) for each in inputs), len(inputs), limit)
        return inputs

    def windows(self, texts: Sequence[str]) -> list[list[TextInput]]:
        """Encode every text as windows of at most `max_length` tokens, for `embed`."""
        documents, limit = self.uses_document_tokens, self.max_length
        return encode_windows(
            self.source_tokenizer, texts, max_length=limit, as_documents=documents
        )

    def embedding_windows(
        self, texts: Sequence[str], *, max_length: int | None = None
    ) -> list[list[TextInput]]:
        """Encode every text as windows, from which `embed` computes one vector per text.

        If `max_length` is given, or the model has a `max_seq_length` (`sentence-transformers`), a
        longer text is truncated to one window instead. Truncation causes a warning unless
        `max_length` is given. If the model was trained with a prompt, it is put before every text.
        """
        options = self.settings.task_options("contrastive")
        lengths = max_length, options.get("max_seq_length")
        texts = [options.get("prompt", "") + text for text in texts]
        if lengths == (None, None):
            return self.windows(texts)
        limit = min(each for each in (*lengths, self.max_length) if each is not None)
        inputs = encode_inputs(
            self.source_tokenizer,
            [(text, None) for text in texts],
            max_length=limit,
            as_documents=self.uses_document_tokens,
        )
        if max_length is None:
            warn_if_truncated(sum(bool(each.cut) for each in inputs), len(inputs), limit)
        return [[each] for each in inputs]

    def warn_of_lengths(self, requests: Iterable[GenerationRequest]) -> None:
        """Warn of generated texts that end at the context length or exceed the training length."""
        start, trained = self.generation_rules.decoder_start, self.trained_length
        notes: list[str] = []
        for one in requests:
            length = len(start or one.prompt_ids) + len(one.output_ids)
            if one.finish_reason == "length" and len(one.output_ids) < one.params.max_new_tokens:
                notes.append(
                    f"a text ends because the model's {length - 1} positions do, prompt included."
                )
            elif trained is not None and length > trained:
                notes.append(
                    f"a text with its prompt is longer than the {trained} tokens that the model "
                    "was trained on at a time: what is beyond is often nonsense."
                )
        for note in dict.fromkeys(notes):
            warnings.warn(note, stacklevel=3)

    def sampling_params(
        self, prompt_ids: Sequence[int], options: Mapping[str, Any], **defaults: Any
    ) -> SamplingParams:
        """Return the sampling parameters: `options`, else the model's settings, else `defaults`."""
        check_option_names(SamplingParams, options)
        length = len(self.generation_rules.decoder_start or prompt_ids)
        settings = options_from_config(self.settings.generation, SamplingParams, length)
        return SamplingParams(**{**defaults, **settings, **options})

    def target_limit(self, source: Sequence[int]) -> int:
        """Return the maximum target length, set by the model or else derived from the source."""
        default = min(2 * len(source) + 16, MAX_TARGET)
        return self.sampling_params(source, {}, max_new_tokens=default).max_new_tokens

    def beam_params(
        self, prompt_ids: Sequence[int] = (), **options: Unpack[BeamSearchOptions]
    ) -> BeamSearchParams:
        """Return the parameters of beam search: `options`, else the model's settings."""
        check_option_names(BeamSearchParams, options)
        length = len(self.generation_rules.decoder_start or prompt_ids)
        settings = options_from_config(self.settings.generation, BeamSearchParams, length)
        return BeamSearchParams(**{**settings, **options})


def warn_if_truncated(cut: int, total: int, limit: int | None) -> None:
    """Warn if `cut` of `total` texts are truncated to `limit` tokens."""
    if cut:
        warnings.warn(
            f"{cut} of {total} texts are longer than the {limit} tokens that this model reads: "
            "their ends are cut.",
            stacklevel=4,
        )


def encoder_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text for an encoder, with special tokens (`SpecialTokenTemplate`)."""
    return encode_inputs(tokenizer, [(text, None)])[0].ids


def prompt_ids(lm: TextModel, text: str) -> list[int]:
    """Return the ids of a text for an encoder to read, or for a decoder to continue.

    A decoder's prompt begins with the BOS tokens used in training. If there are none, an empty
    prompt is replaced by the EOS token.

    Raises:
        TokenizerError: the prompt is empty, and the tokenizer has neither a BOS nor an EOS token.
    """
    if lm.module.spec.family == "encoder-decoder":
        return encoder_ids(lm.source_tokenizer, text)
    tokenizer = lm.text_tokenizer
    ids = prepend_bos(tokenizer, tokenizer.encode(text, add_special_tokens=False).ids)
    ids = ids or bos_or_eos_ids(tokenizer)
    if not ids:
        raise TokenizerError(
            "the prompt is empty, and this tokenizer has no token that begins or ends a text: "
            "start with some text."
        )
    return ids


def prepend_bos(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Prepend the BOS tokens used in training, unless `ids` already starts with these tokens.

    A prompt made with a chat template may already start with them.
    """
    prefix = list(tokenizer.prefix_ids)
    return [*ids] if [*ids[: len(prefix)]] == prefix else [*prefix, *ids]


def bos_or_eos_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids from which the first token of a text is predicted.

    These are the BOS tokens used in training. If there are none, it is the EOS token, which ends
    the previous document. Returns [] if the tokenizer has neither.
    """
    if tokenizer.prefix_ids:
        return list(tokenizer.prefix_ids)
    ends = [tokenizer.eos_id, *tokenizer.suffix_ids[-1:]]
    return [end for end in ends if end is not None][:1]
