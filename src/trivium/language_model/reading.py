"""What a model says about texts: fills, probabilities, classes, tags, answers, vectors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.inference import end_ids, fill_masks, score_causal, score_masked
from trivium.inference.answer import AnswerSpan, find_answers
from trivium.inference.classify import Classified, classified, classifier_logits, label_count
from trivium.inference.continuations import Item, score_continuations
from trivium.inference.embed import Pooling, embed_texts
from trivium.inference.fill_gaps import fill_gaps
from trivium.inference.tag import Tagged, tag_words
from trivium.language_model.core import Core
from trivium.spec import ModelSpec
from trivium.text.inputs import TextInput, encode_inputs

Pair = tuple[str, str | None]


class Reading(Core):
    """The questions about a text that is given."""

    def fill_mask(self, text: str, top_k: int = 5) -> list[Any]:
        """The most probable fills of the mask in a text, best first.

        An encoder fills a mask with one token. An encoder-decoder fills all gaps of a text
        together, each with any number of words, by beam search: T5 those marked <extra_id_0>,
        <extra_id_1>, ... or <mask>, BART its mask.

        Returns:
            A list of `Fill(sequence, token, score)`; of an encoder, for a text with several masks,
            one such list for each, where every mask is filled alone.

        Raises:
            TriviumError: no mask in the text, a text longer than the model's positions, or a model
                that fills no masks.
        """
        self._require("fill_mask")
        tokenizer = self.text_tokenizer
        if self.spec.family == "encoder-decoder":
            return fill_gaps(
                self.module,
                tokenizer,
                text,
                decoder_start=self.decoder_start(tokenizer),
                stop_ids=end_ids(tokenizer) | self.settings.stop_ids,
                banned_ids=self.settings.banned_ids,
                top_k=top_k,
            )
        found = fill_masks(self.module, tokenizer, text, top_k=top_k)
        return found[0] if len(found) == 1 else found

    def score(self, text: str) -> float:
        """Log-probability of a text in nats.

        A decoder gives the sum of log p(token | those before it); an encoder the
        pseudo-log-likelihood, the sum of log p(token | all others) (Salazar et al. 2020).
        """
        self._require("score")
        tokenizer = self.text_tokenizer
        if self.spec.family == "decoder-only":
            return score_causal(self.module, tokenizer, text)
        return score_masked(self.module, tokenizer, text)

    @overload
    def classify(self, text: str, pair: str | None = None) -> Classified: ...
    @overload
    def classify(
        self, text: list[str] | list[Pair] | list[str | Pair], pair: None = None
    ) -> list[Classified]: ...

    def classify(
        self, text: str | list[str] | list[Pair] | list[str | Pair], pair: str | None = None
    ) -> Classified | list[Classified]:
        """What a text, or a pair of texts, is: its class and the probability of every class.

        An encoder-decoder was taught to write the name of the class: the probabilities are those
        of the names, compared with each other.

        Args:
            text: one text, or a list of texts or of pairs.
            pair: the second text, for a model that was trained on pairs.

        Raises:
            SpecError: the model was not trained to classify.
        """
        self._require("classify")
        given = [(text, pair)] if isinstance(text, str) else [_as_pair(each) for each in text]
        if not given:
            return []
        logits, kind = self.classifier_logits(given), self.settings.label_kind
        if logits.shape[1] == 1 and kind == "classes":
            kind = "numbers"
        found = classified(logits, self._names(logits.shape[1]), kind)
        return found[0] if isinstance(text, str) else found

    def classifier_logits(self, texts: Sequence[Pair]) -> Tensor:
        """Float32 logits of texts and pairs for every label, [N, L]."""
        tokenizer = self.text_tokenizer
        if self.writes_labels:
            return self._label_log_probabilities(texts)
        inputs = self._inputs(texts)
        start = self.decoder_start(tokenizer)
        return classifier_logits(self.module, inputs, decoder_start=start)

    def _inputs(self, texts: Sequence[Pair]) -> list[TextInput]:
        """Texts as they are read; a warning tells of those that are cut.

        A decoder that was taught so reads an end behind a text; to others a text is what their
        tokenizer makes of it.
        """
        taught = self.settings.taught_task == "classification"
        framed = taught or self.spec.family != "decoder-only"
        limit = self.max_length
        inputs = encode_inputs(self.text_tokenizer, texts, max_length=limit, as_documents=framed)
        _warn_of_cuts(sum(bool(each.cut) for each in inputs), len(inputs), limit)
        return inputs

    def _label_log_probabilities(self, texts: Sequence[Pair]) -> Tensor:
        """Log-probabilities of the names of the classes, asked as training asks."""
        tokenizer, limit = self.text_tokenizer, self.max_length
        end = tokenizer.suffix_ids[-1:] if tokenizer.eos_id is None else (tokenizer.eos_id,)
        options = [[*name, *end] for name in tokenizer.encode_ids_batch(self.settings.labels)]
        prefix = str(self.settings.task_options("classification").get("prefix", ""))
        sources = [prefix + (a if b is None else f"{a} {b}") for a, b in texts]
        read = tokenizer.encode_ids_batch(sources)
        if limit is not None:
            room = max(1, limit - len(tokenizer.prefix_ids) - len(tokenizer.suffix_ids))
            _warn_of_cuts(sum(len(ids) > room for ids in read), len(read), limit)
            read = [ids[:room] for ids in read]
        scores = score_continuations(
            self.module,
            [Item(ids, options) for ids in read],
            tokenizer=tokenizer,
            decoder_start=self.decoder_start(tokenizer),
        )
        found = torch.tensor([[option.log_probability for option in item] for item in scores])
        return found.reshape(len(texts), len(options))

    def _names(self, count: int) -> tuple[str, ...]:
        """The names of labels; those of `transformers` where none are told."""
        told = self.settings.labels
        return told if len(told) == count else tuple(f"LABEL_{n}" for n in range(count))

    @overload
    def tag(self, text: str) -> list[Tagged]: ...
    @overload
    def tag(self, text: list[str] | list[Sequence[str]]) -> list[list[Tagged]]: ...

    def tag(self, text: str | list[str] | list[Sequence[str]]) -> list[Tagged] | list[list[Tagged]]:
        """The tag of every word.

        Args:
            text: a text, whose words are parted by spaces, or a list of texts or of lists of words.

        Raises:
            SpecError: the model was not trained to tag.
        """
        self._require("tag")
        given = [text] if isinstance(text, str) else text
        sentences = [each.split() if isinstance(each, str) else list(each) for each in given]
        found = tag_words(
            self.module,
            self.text_tokenizer,
            sentences,
            self._names(label_count(self.spec, "tagger")),
            max_length=self.max_length,
        )
        return found[0] if isinstance(text, str) else found

    def answer(self, question: str, context: str, top_k: int = 1) -> list[AnswerSpan]:
        """The best answers to a question in a context, best first; an empty text is no answer.

        A context longer than the model reads is read in windows that overlap.

        Raises:
            SpecError: the model was not trained to answer questions.
        """
        (answers,) = self.answer_all([(question, context)], top_k=top_k)
        return answers

    def answer_all(
        self, questions: Sequence[tuple[str, str]], *, top_k: int = 1
    ) -> list[list[AnswerSpan]]:
        """`answer` for many pairs of question and context."""
        found = self.answers_with_margins(questions, top_k=top_k)
        limit = self.settings.task_options("qa").get("no_answer_threshold")
        if limit is None:
            return [answers for answers, _ in found]
        return [
            [_no_answer(answers, margin), *answers][:top_k]
            if limit < margin < math.inf
            else answers
            for answers, margin in found
        ]

    def answers_with_margins(
        self, questions: Sequence[tuple[str, str]], *, top_k: int = 1
    ) -> list[tuple[list[AnswerSpan], float]]:
        """Answers, and by how much the score of no answer is above that of the best."""
        self._require("answer")
        options = self.settings.task_options("qa")
        return find_answers(
            self.module,
            self.text_tokenizer,
            questions,
            max_length=self.max_length,
            stride=int(options.get("stride", 128)),
            top_k=top_k,
            decoder_start=self.decoder_start(self.text_tokenizer),
        )

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
    ) -> Tensor:
        """The vector of a text, float32 [D], or of several, [N, D].

        Args:
            texts: one or several.
            pooling: "mean" of all tokens, the "first" ([CLS]) or the "last" one; None: the mean,
                of a decoder the last, which alone has read the whole text.
            normalize: to length 1, so that products are cosines.

        Raises:
            SpecError: an encoder-decoder, whose decoder has nothing to read.
        """
        self._require("embed")
        if pooling not in (None, "mean", "first", "last"):
            raise SpecError(f"pooling is {pooling!r}, but must be mean, first or last.")
        given = [texts] if isinstance(texts, str) else list(texts)
        inputs = self._inputs([(text, None) for text in given])
        chosen = pooling or ("last" if self.spec.family == "decoder-only" else "mean")
        width = self.spec.d_model
        if not given:
            return torch.empty(0, width)
        ids = [each.ids for each in inputs]
        vectors = embed_texts(self.module, ids, pooling=chosen, normalize=normalize)
        return vectors[0] if isinstance(texts, str) else vectors

    @property
    def max_length(self) -> int | None:
        """Tokens that are read of a text at most: what it was trained on, or all its positions."""
        told = self.settings.tokenizer.get("model_max_length")
        limit = self.spec.max_length if isinstance(self.spec, ModelSpec) else None
        usable = [length for length in (told, limit) if isinstance(length, int)]
        return min(usable, default=None)


def _no_answer(answers: Sequence[AnswerSpan], margin: float) -> AnswerSpan:
    """That there is none, with its share: e to the margin times that of the best answer."""
    best = answers[0].score
    share = min(1.0, best * math.exp(min(margin, 700.0))) if best else 1.0
    return AnswerSpan("", 0, 0, share)


def _as_pair(text: str | Pair) -> Pair:
    return (text, None) if isinstance(text, str) else text


def _warn_of_cuts(cut: int, total: int, limit: int | None) -> None:
    if cut:
        warnings.warn(
            f"{cut} of {total} texts are longer than the {limit} tokens that this model reads: "
            "their ends are not looked at.",
            stacklevel=4,
        )
