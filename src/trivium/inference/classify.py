"""Text classification: probabilities of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import TriviumError, shorten
from trivium.inference.forward import hidden_states
from trivium.inference.score import ScoreItem, score_continuations
from trivium.inference.text_model import TextModel, warn_if_truncated
from trivium.interop.settings import LabelKind
from trivium.models.base_model import Spec


@dataclass(frozen=True, slots=True)
class Classification:
    """The predicted label of a text, or in regression the predicted number.

    Args:
        label: the most probable class. In multi-label classification, it is a tuple of the labels
            whose probability is above one half. In regression, it is an empty string.
        score: the probability of the class. In multi-label classification, it is the smallest
            probability among these labels (or the largest of all labels, if none is above one
            half). In regression, it is the predicted number.
        scores: every label with its probability, most probable first; empty in regression.
    """

    label: str | tuple[str, ...]
    score: float
    scores: dict[str, float]

    @property
    def label_text(self) -> str:
        """The label as a string. In multi-label classification, labels are joined by commas."""
        return self.label if isinstance(self.label, str) else ", ".join(self.label)


_NEXT = "next", "not next"
"""Labels 0 and 1 of the next-sentence head, as in Devlin et al. 2018 and their code."""


def classify_texts(
    lm: TextModel, texts: Sequence[tuple[str, str | None]], *, head: str | None = None
) -> list[Classification]:
    """Return the labels of texts or pairs of texts; see `LanguageModel.classify`.

    The next-sentence head (`head="nsp"`) predicts whether the second text follows the first one.
    This head is also the default if the model has no classifier head and does not generate labels.
    """
    labels = lm.generates_labels or label_count(lm.module.spec, "classifier")
    if head == "nsp" or not labels:
        _check_texts(texts, reads_pairs=True)
        return to_classifications(_head_logits(lm, texts, "nsp", len(_NEXT)), _NEXT, "classes")
    _check_texts(texts, lm.settings.reads_pairs)
    logits, kind = classifier_logits(lm, texts), lm.settings.label_kind
    if logits.shape[1] == 1 and kind == "classes":
        kind = "regression"
    if kind == "regression":
        mean, deviation = lm.settings.label_scale
        logits = mean + deviation * logits.double()
    return to_classifications(logits, lm.label_names(logits.shape[1]), kind)


def _check_texts(texts: Sequence[tuple[str, str | None]], reads_pairs: bool | None) -> None:
    """Raise TriviumError for an empty text, a pair instead of a single text, or vice versa.

    Args:
        texts: texts, each with its second text or None.
        reads_pairs: whether the model was fine-tuned on pairs; None if unknown.
    """
    for text, pair in texts:
        if not text.strip():
            raise TriviumError("a text is empty, which has no label: leave it out.")
        if reads_pairs is not None and reads_pairs != (pair is not None):
            kind, advice = (
                ("pairs of texts", "give the second text, too")
                if reads_pairs
                else ("single texts", "leave out the second text")
            )
            raise TriviumError(
                f'this model was trained on {kind}: {advice}. The text: "{shorten(text)}".'
            )


@torch.inference_mode()
def classifier_logits(lm: TextModel, texts: Sequence[tuple[str, str | None]]) -> Tensor:
    """Return the classification logits of texts or pairs of texts, float32 [N, L] on the CPU.

    If an encoder-decoder generates labels, they are the log-likelihoods of the label names.
    """
    if lm.generates_labels:
        return _label_log_likelihoods(lm, texts)
    return _head_logits(lm, texts, "classifier", label_count(lm.module.spec, "classifier"))


@torch.inference_mode()
def _head_logits(
    lm: TextModel, texts: Sequence[tuple[str, str | None]], head: str, count: int
) -> Tensor:
    """Return the logits of a head with L = `count` labels, float32 [N, L] on the CPU."""
    logits = torch.empty(len(texts), count)
    inputs = lm.text_inputs(texts)
    batches = hidden_states(
        lm, [each.ids for each in inputs], token_type_ids=[each.type_ids for each in inputs]
    )
    for batch, hidden, mask in batches:
        logits[batch] = lm.module.logits(hidden, head=head, attention_mask=mask).float().cpu()
    return logits


def _label_log_likelihoods(lm: TextModel, texts: Sequence[tuple[str, str | None]]) -> Tensor:
    """Return the log-likelihood of every label name as an encoder-decoder's output, [N, L].

    The encoder reads the task prefix and the text, or a pair of texts joined by a space.
    """
    source, target, labels = lm.source_tokenizer, lm.text_tokenizer, lm.settings.labels
    end = target.suffix_ids[-1:] if target.eos_id is None else (target.eos_id,)
    names = [[*ids, *end] for ids in target.encode_ids_batch(list(labels))]
    prefix = str(lm.settings.task_options("classification").get("prefix", ""))
    rows = source.encode_ids_batch([prefix + (a if b is None else f"{a} {b}") for a, b in texts])
    if lm.max_length is not None:
        kept = max(1, lm.max_length - lm.source_template.count_special(paired=False))
        warn_if_truncated(sum(len(ids) > kept for ids in rows), len(rows), lm.max_length)
        rows = [ids[:kept] for ids in rows]
    items = [ScoreItem(ids, names) for ids in rows]
    scores = [[score.total for score in item] for item in score_continuations(lm, items)]
    return torch.tensor(scores).reshape(len(rows), len(names))


def label_count(spec: Spec, kind: str) -> int:
    """Return the number of labels of the head of a `kind`; 0 if the model has no such head."""
    return next((getattr(head, "num_labels", 0) for head in spec.heads if head.kind == kind), 0)


def to_classifications(
    logits: Tensor, names: Sequence[str], kind: LabelKind
) -> list[Classification]:
    """Convert logits to the predicted labels with their probabilities.

    Args:
        logits: [N, L].
        names: the names of the L labels.
        kind: "classes" (one label per text), "multi-label" (any number of labels per text) or
            "regression" (regression).
    """
    if kind == "regression":
        return [Classification("", value, {}) for value in logits[:, 0].tolist()]
    results = []
    probabilities = logits.softmax(-1) if kind == "classes" else logits.sigmoid()
    for row in probabilities.tolist():
        scores = dict(sorted(zip(names, row, strict=True), key=lambda pair: -pair[1]))
        label, score = next(iter(scores.items()))
        if kind == "multi-label":
            label = tuple(name for name, each in scores.items() if each > 0.5)
            score = min((scores[name] for name in label), default=score)
        results.append(Classification(label, score, scores))
    return results
