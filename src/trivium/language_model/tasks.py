"""Run the tasks that label or embed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args, overload

from torch import Tensor

from trivium.errors import SpecError
from trivium.inference.answer import AnswerSpan, find_answers
from trivium.inference.classify import Classification, classify_texts, label_count
from trivium.inference.embed import TokenVectors, embed_tokens, embed_windows
from trivium.inference.tag import TaggedWord, find_words, tag_words
from trivium.inference.text_model import TextModel
from trivium.spec import Pooling

Pair = tuple[str, str | None]


class TaskMixin(TextModel):
    """The methods that label text (classify, tag, answer) or embed it."""

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
