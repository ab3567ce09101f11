"""Objectives: how a model learns from text (pretraining) or from labelled examples (fine-tuning).

`AnyObjective` is the one list of them; a new objective is one module and one name here.
"""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from trivium.errors import RecipeError
from trivium.objectives.base import LabelledObjective, LossTerms, Objective, TensorBatch, to_device
from trivium.objectives.bidirectional import BidirectionalLM
from trivium.objectives.causal import Causal
from trivium.objectives.chat import Chat
from trivium.objectives.classification import TextClassification
from trivium.objectives.denoising import Denoising
from trivium.objectives.masked import Masked
from trivium.objectives.prefix_lm import PrefixLM, Seq2SeqPrefixLM
from trivium.objectives.question_answering import QuestionAnswering
from trivium.objectives.replaced_token import ReplacedToken
from trivium.objectives.sentence_pairs import SentencePairs
from trivium.objectives.seq2seq import Summarization, TextToText, Translation
from trivium.objectives.span_corruption import SpanCorruption
from trivium.objectives.tagging import Tagging
from trivium.objectives.task_metrics import Metrics
from trivium.spec import AnySpec

AnyObjective = Annotated[
    Masked
    | SentencePairs
    | ReplacedToken
    | Causal
    | PrefixLM
    | Seq2SeqPrefixLM
    | BidirectionalLM
    | SpanCorruption
    | Denoising
    | TextClassification
    | Tagging
    | QuestionAnswering
    | Translation
    | TextToText
    | Summarization
    | Chat,
    Field(discriminator="kind"),
]

OBJECTIVES: dict[str, type[Objective]] = {
    cls.model_fields["kind"].default: cls for cls in get_args(get_args(AnyObjective)[0])
}
"""Every objective by its `kind`."""

__all__ = [
    "OBJECTIVES",
    "AnyObjective",
    "LabelledObjective",
    "LossTerms",
    "Metrics",
    "Objective",
    "TensorBatch",
    "default_objective",
    "task_kinds",
    "to_device",
]


def task_kinds() -> tuple[str, ...]:
    """The kinds of all fine-tuning tasks."""
    return tuple(kind for kind, cls in OBJECTIVES.items() if cls.labelled)


def default_objective(spec: AnySpec) -> Objective:
    """The objective that a model of this form was published with.

    Raises:
        RecipeError: models of this form were published for supervised tasks such as translation.
    """
    for cls in OBJECTIVES.values():
        if cls.is_default_for(spec):
            return cls.parse({})
    raise RecipeError(
        "this model was not published with a pretraining objective: choose one, such as "
        'objective.kind = "span-corruption" or "denoising", or take a T5 or a BART.'
    )
