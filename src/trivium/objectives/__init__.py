"""Training objectives: pretraining on raw text, and fine-tuning on labelled examples.

Each objective is one class in its own module. A recipe selects an objective by its `kind`.
Objectives can also be defined outside this package.
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
    """Return the `kind` of every fine-tuning task, for example "classification"."""
    return tuple(kind for kind, cls in Objective.kinds.items() if cls.labelled)


def default_objective(spec: Spec) -> Objective:
    """Return the default objective of a model: the one with which its architecture was published.

    Raises:
        RecipeError: the architecture was published without pretraining, for a supervised task such
            as translation.
    """
    for cls in Objective.kinds.values():
        if cls.is_default_for(spec):
            return cls.from_tree({})
    raise RecipeError(
        "this model was not published with a pretraining objective: choose one, such as "
        'objective.kind = "span-corruption" or "denoising", or use a T5 or a BART.'
    )
