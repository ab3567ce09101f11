"""Objectives: how a model learns from text (pretraining) or from labelled examples (fine-tuning).

`AnyObjective` is the one list of them; a new objective is one module and one name here. `register`
adds one without an edit of the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from trivium.errors import RecipeError
from trivium.objectives.base import (
    BALANCE,
    Cut,
    LabelledObjective,
    LossTerms,
    Objective,
    TensorBatch,
    to_device,
)
from trivium.objectives.bidirectional import BidirectionalLM
from trivium.objectives.blank_filling import BlankFilling
from trivium.objectives.causal import Causal
from trivium.objectives.chat import Chat
from trivium.objectives.classification import TextClassification
from trivium.objectives.contrastive import Contrastive
from trivium.objectives.denoising import Denoising
from trivium.objectives.kto import KTO
from trivium.objectives.masked import Masked
from trivium.objectives.monitor import Monitor
from trivium.objectives.permutation import Permutation
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.preference import PreferenceOptimization
from trivium.objectives.prefix_lm import PrefixLM, Seq2SeqPrefixLM
from trivium.objectives.question_answering import QuestionAnswering
from trivium.objectives.replaced_token import ReplacedToken
from trivium.objectives.reward_model import Reward
from trivium.objectives.sentence_pairs import SentencePairs
from trivium.objectives.seq2seq import Summarization, TextToText, Translation
from trivium.objectives.span_corruption import SpanCorruption
from trivium.objectives.tagging import Tagging
from trivium.objectives.task_metrics import Metrics
from trivium.objectives.tsdae import TSDAE
from trivium.spec import Spec

AnObjective = TypeVar("AnObjective", bound=type[Objective])


def _own_or_listed(value: Any, validate: ValidatorFunctionWrapHandler) -> Objective:
    """An objective, or its keys: of the kinds in the union below, or of a registered one."""
    if isinstance(value, Objective):
        return value
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or OBJECTIVES.get(kind) in _LISTED:
        return validate(value)
    if kind not in OBJECTIVES:
        known = ", ".join(f"'{each}'" for each in OBJECTIVES)
        tags = {"tag": kind, "expected_tags": f"{known}, or one that a module of yours registers"}
        raise PydanticCustomError("union_tag_invalid", "There is no such kind.", tags)
    return OBJECTIVES[kind].parse(value, where=f'kind "{kind}"')


AnyObjective = SerializeAsAny[
    Annotated[
        Permutation
        | Masked
        | SentencePairs
        | ReplacedToken
        | BlankFilling
        | Causal
        | PrefixLM
        | Seq2SeqPrefixLM
        | BidirectionalLM
        | SpanCorruption
        | Denoising
        | TextClassification
        | Tagging
        | QuestionAnswering
        | Contrastive
        | TSDAE
        | Reward
        | PreferenceOptimization
        | KTO
        | PolicyGradient
        | Translation
        | TextToText
        | Summarization
        | Chat,
        Field(discriminator="kind"),
        WrapValidator(_own_or_listed),
    ]
]

_LISTED: tuple[type[Objective], ...] = get_args(get_args(AnyObjective)[0])

OBJECTIVES: dict[str, type[Objective]] = {cls.model_fields["kind"].default: cls for cls in _LISTED}
"""Every objective by its `kind`."""

__all__ = [
    "BALANCE",
    "KTO",
    "OBJECTIVES",
    "TSDAE",
    "AnyObjective",
    "BidirectionalLM",
    "BlankFilling",
    "Causal",
    "Chat",
    "Contrastive",
    "Cut",
    "Denoising",
    "LabelledObjective",
    "LossTerms",
    "Masked",
    "Metrics",
    "Monitor",
    "Objective",
    "PolicyGradient",
    "PreferenceOptimization",
    "PrefixLM",
    "QuestionAnswering",
    "ReplacedToken",
    "Reward",
    "SentencePairs",
    "Seq2SeqPrefixLM",
    "SpanCorruption",
    "Summarization",
    "Tagging",
    "TensorBatch",
    "TextClassification",
    "TextToText",
    "Translation",
    "default_objective",
    "register",
    "task_kinds",
    "to_device",
]


def register(cls: AnObjective) -> AnObjective:
    """Let recipes find an objective of one's own by its `kind`; a decorator of its class.

    It holds in this process: a program that reads such a recipe, to resume for example, imports
    the module of the class first.

    Raises:
        RecipeError: the class has no kind of its own.
    """
    kind = cls.model_fields["kind"].default
    known = OBJECTIVES.get(kind) if isinstance(kind, str) else Objective
    # The same class may be defined again, in a notebook.
    if known is not None and (known.__module__, known.__name__) != (cls.__module__, cls.__name__):
        raise RecipeError(
            f"{cls.__name__} needs a kind of its own, other than {', '.join(OBJECTIVES)}: write "
            'kind: Literal["name"] = "name" in the class.'
        )
    OBJECTIVES[kind] = cls
    return cls


def task_kinds() -> tuple[str, ...]:
    """The kinds of all fine-tuning tasks."""
    return tuple(kind for kind, cls in OBJECTIVES.items() if cls.labelled)


def default_objective(spec: Spec) -> Objective:
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
