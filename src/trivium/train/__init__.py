"""Training: the recipe, the loop, checkpoints, the run folder, live progress.

For a training loop of one's own: a `Loader` of `BatchStream`s gives the batch of a step,
`AdamW(...).build(model)` the optimizers, a schedule such as `Cosine` the share of the peak learning
rate that `set_learning_rate` sets, `save_checkpoint` and `restore` checkpoints.
"""

from trivium.model_folder import checkpoints
from trivium.train.callback import Callback
from trivium.train.checkpoint import restore, save_checkpoint
from trivium.train.loader import BatchStream, GlobalBatch, Loader
from trivium.train.optimizers import Optimizer, set_learning_rate
from trivium.train.optimizers.adamw import AdamW
from trivium.train.optimizers.muon import Muon
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import load_recipe
from trivium.train.schedules import Constant, Cosine, InverseSqrt, Linear, Schedule, StableDecay
from trivium.train.trainer import Interrupted, Trainer, TrainState

__all__ = [
    "AdamW",
    "BatchStream",
    "Callback",
    "Constant",
    "Cosine",
    "GlobalBatch",
    "Interrupted",
    "InverseSqrt",
    "Linear",
    "Loader",
    "Muon",
    "Optimizer",
    "Recipe",
    "Schedule",
    "StableDecay",
    "TrainState",
    "Trainer",
    "checkpoints",
    "load_recipe",
    "restore",
    "save_checkpoint",
    "set_learning_rate",
]
