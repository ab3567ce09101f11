"""Reranking: scoring documents by their relevance to a query, with a cross-encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trivium.errors import TriviumError
from trivium.inference.classify import classifier_logits
from trivium.inference.text_model import TextModel

IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
"""The activations of scores, by the names in the `config.json` of `sentence-transformers`."""


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document and its relevance to a query.

    Args:
        index: the position of the document in the list that was ranked, from 0.
        document: the text of the document.
        score: the relevance. It is a probability, unless the model says that scores are logits.
    """

    index: int
    document: str
    score: float


def rank_documents(
    lm: TextModel, query: str, documents: Sequence[str], *, top_k: int | None = None
) -> list[RankedDocument]:
    """Return the documents with their relevance to the query, most relevant first.

    Documents with equal scores keep their order. See `LanguageModel.rerank`.
    """
    scores = score_pairs(lm, [(query, document) for document in documents])
    return sort_documents(documents, scores)[:top_k]


def sort_documents(documents: Sequence[str], scores: Sequence[float]) -> list[RankedDocument]:
    """Return the documents with their scores, the highest score first."""
    order = sorted(range(len(documents)), key=lambda index: -scores[index])
    return [RankedDocument(index, documents[index], scores[index]) for index in order]


def score_pairs(lm: TextModel, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the relevance of the document in each pair of a query and a document.

    Raises TriviumError if a text is empty, or if the model names an unknown activation.
    """
    activation = score_activation(lm)
    for query, document in pairs:
        if not query.strip() or not document.strip():
            raise TriviumError("a query or a document is empty: leave it out.")
    logits = classifier_logits(lm, list(pairs))[:, 0]
    return (logits.sigmoid() if activation == SIGMOID else logits).tolist()


def score_activation(lm: TextModel) -> str:
    """Return the activation of the scores: `SIGMOID`, or `IDENTITY` if the model says so.

    The rule is that of `CrossEncoder` in sentence-transformers for a model with one label.
    Raises TriviumError if the settings of the model name another activation.
    """
    config = lm.settings.config
    options = config.get("sentence_transformers")
    named = options.get("activation_fn") if isinstance(options, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function") or SIGMOID
    if named not in (SIGMOID, IDENTITY):
        raise TriviumError(
            f"config.json: the activation of the scores is {named}; supported: {SIGMOID}, "
            f"{IDENTITY}."
        )
    return str(named)
