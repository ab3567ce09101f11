"""Objectives: how a model learns from text (pretraining) or from labelled examples (fine-tuning).

Each is one class in a module of its own, here or elsewhere, that recipes find by its `kind`.
"""

from __future__ import annotations

from trivium.choice import import_submodules
from trivium.errors import RecipeError
from trivium.models.base_model import Spec
from trivium.objectives.labelled import LabelledObjective as LabelledObjective
from trivium.objectives.objective import Objective as Objective
from trivium.objectives.task_metrics import Metrics as Metrics
from trivium.objectives.tensor_batch import AUX_LOSS as AUX_LOSS
from trivium.objectives.tensor_batch import LossTerms as LossTerms
from trivium.objectives.tensor_batch import MicroBatchSlice as MicroBatchSlice
from trivium.objectives.tensor_batch import TensorBatch as TensorBatch
from trivium.objectives.tensor_batch import to_device as to_device

import_submodules(__name__, __path__)


def task_kinds() -> tuple[str, ...]:
    """The kinds of all fine-tuning tasks."""
    return tuple(kind for kind, cls in Objective.kinds.items() if cls.labelled)


def default_objective(spec: Spec) -> Objective:
    """The objective that a model of this form was published with.

    Raises:
        RecipeError: models of this form were published for supervised tasks such as translation.
    """
    for cls in Objective.kinds.values():
        if cls.is_default_for(spec):
            return cls.from_tree({})
    raise RecipeError(
        "this model was not published with a pretraining objective: choose one, such as "
        'objective.kind = "span-corruption" or "denoising", or take a T5 or a BART.'
    )
