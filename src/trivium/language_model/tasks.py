"""Label and embed text with a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args, overload

from torch import Tensor

from trivium.errors import SpecError
from trivium.inference.answer import AnswerSpan, find_answers
from trivium.inference.classify import Classification, classify_texts, label_count
from trivium.inference.embed import TokenVectors, embed_tokens, embed_windows
from trivium.inference.hidden_states import HiddenStates, Layers, text_hidden_states
from trivium.inference.rerank import RankedDocument, rank_documents
from trivium.inference.tag import TaggedWord, find_words, tag_words
from trivium.inference.text_model import TextModel
from trivium.models.heads.text import Pooling

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
        """Return the label of a text or of a pair of texts, with the probability of every label.

        A model without a classification head labels pairs with its next-sentence head, if it has
        one (`next_sentence`). An encoder-decoder that was fine-tuned to generate labels compares
        the likelihoods of the labels. If a text is too long for the model, its end is cut off with
        a warning.

        Args:
            text: one text, or a list of texts or of pairs.
            pair: the second text, for a model that was trained on pairs.

        Raises:
            SpecError: the model cannot classify texts.
            TriviumError: a text is empty, a pair is given to a model that was fine-tuned on single
                texts, or a single text to a model that was fine-tuned on pairs.
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
        """Return whether `second` follows `first`, as predicted by the next-sentence head of BERT.

        The labels are "next" (0, as in Devlin et al. 2018) and "not next" (1). For ALBERT, "not
        next" means that the two texts are in the wrong order.
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
        """Return the tag of every word of a text or of several texts.

        A long text is processed in consecutive segments. Words are separated by spaces, and
        punctuation marks around a word are separate words. A Chinese or Japanese character is a
        word, unless the model was trained on longer words.

        Args:
            text: a text, or a list of texts or of lists of words. If words are given, the character
                offsets in the result refer to the words joined into one text.

        Raises:
            SpecError: the model cannot tag words.
        """
        self.require("tag")
        texts = [text] if isinstance(text, str) else text
        longer = self.settings.task_options("tagging").get("longer_words", False)
        sentences = [find_words(each, by_character=not longer) for each in texts]
        names = self.label_names(label_count(self.spec, "tagger"))
        tagged = tag_words(self, sentences, names, max_length=self.max_length)
        return tagged[0] if isinstance(text, str) else tagged

    def answer(self, question: str, context: str, top_k: int = 1) -> list[AnswerSpan]:
        """Return the best answers to a question from a context, best first.

        An answer with an empty text means that the context has no answer. A context that is too
        long for the model is split into overlapping windows.

        Raises:
            SpecError: the model cannot answer questions.
        """
        return self.answer_all([(question, context)], top_k=top_k)[0]

    def answer_all(
        self, questions: Sequence[tuple[str, str]], *, top_k: int = 1
    ) -> list[list[AnswerSpan]]:
        """Return the best answers (see `answer`) for each (question, context) pair."""
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

    def rerank(
        self, query: str, documents: Sequence[str], *, top_k: int | None = None
    ) -> list[RankedDocument]:
        """Return documents with their relevance to a query, most relevant first.

        The model is a cross-encoder: it reads the query and a document together. If both together
        are too long for the model, the end of the longer text is cut off with a warning. The scores
        are probabilities, or logits if the `config.json` of an imported model says so.

        Args:
            query: the query.
            documents: the documents to rank.
            top_k: the number of documents to return. By default all documents are returned.

        Raises:
            SpecError: the model cannot rank documents.
            TriviumError: the query or a document is empty.
        """
        self.require("rerank")
        return rank_documents(self, query, documents, top_k=top_k)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
    ) -> Tensor:
        """Return the embedding of a text, float32 [D], or the embeddings of several texts, [N, D].

        The dense layers of a `sentence-transformers` model are applied to the pooled vector.

        A text that is too long for the model is split into windows of equal length, and its
        embedding is the mean of their vectors.

        Args:
            texts: one text or several.
            pooling: how the hidden states are pooled: the "mean" over all tokens, the "first"
                ([CLS]) or the "last" one. By default it is the pooling that the model was trained
                with, else "last" for a decoder, whose last token is the only one that attends to
                the whole text, and "mean" for other models.
            normalize: scale vectors to length 1, so that dot products are cosine similarities. By
                default they are scaled, except for a `sentence-transformers` model without a
                Normalize module.

        Raises:
            SpecError: the model is an encoder-decoder.
        """
        self.require("embed")
        if pooling is not None and pooling not in get_args(Pooling):
            raise SpecError(f"pooling is {pooling!r}, but must be mean, first or last.")
        windows = self.embedding_windows([texts] if isinstance(texts, str) else texts)
        vectors = embed_windows(self, windows, pooling=pooling, normalize=normalize)
        return vectors[0] if isinstance(texts, str) else vectors

    def embed_tokens(self, texts: Sequence[str], *, normalize: bool = True) -> list[TokenVectors]:
        """Return a contextual vector for each token of each text.

        A text that is too long for the model is split into windows of equal length. With
        `normalize`, vectors are scaled to length 1.
        """
        self.require("embed")
        return embed_tokens(self, self.windows(texts), normalize=normalize)

    @overload
    def hidden_states(self, texts: str, *, layers: Layers = "all") -> HiddenStates: ...
    @overload
    def hidden_states(self, texts: list[str], *, layers: Layers = "all") -> list[HiddenStates]: ...

    def hidden_states(
        self, texts: str | list[str], *, layers: Layers = "all"
    ) -> HiddenStates | list[HiddenStates]:
        """Return the hidden states of every layer, for each token of one text or several texts.

        The layers are numbered as in `output_hidden_states` of `transformers`: layer 0 is the input
        embedding, layer i the output of block i, and the last layer includes the final norm. In an
        encoder-decoder, the layers are those of the encoder;
        `trivium.inference.hidden_states.layer_hidden_states` also returns those of its decoder. A
        text that is too long for the model is split into windows of equal length.

        Args:
            texts: one text or several.
            layers: "all", or a list of indices. Negative indices count from the last layer.

        Raises:
            SpecError: the model is not a Transformer, or has no such layer.
        """
        windows = self.windows([texts] if isinstance(texts, str) else texts)
        states = text_hidden_states(self, windows, layers=layers)
        return states[0] if isinstance(texts, str) else states
