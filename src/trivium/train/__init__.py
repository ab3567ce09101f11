"""Training: recipes, the training loop, checkpoints, run folders, progress.

To write your own training loop, combine these classes and functions. A `Loader` of `BatchStream`s
yields the batch of each step, and `AdamW(...).build(model)` builds the optimizers. A schedule such
as `Cosine` computes the learning rate as a factor of its peak, and `set_learning_rate` applies this
factor. `save_checkpoint` writes checkpoints, and `restore` loads them.
"""

from trivium.model_folder import checkpoints as checkpoints
from trivium.train.callback import Callback as Callback
from trivium.train.checkpoint import restore as restore
from trivium.train.checkpoint import save_checkpoint as save_checkpoint
from trivium.train.loader import BatchStream as BatchStream
from trivium.train.loader import GlobalBatch as GlobalBatch
from trivium.train.loader import Loader as Loader
from trivium.train.optimizers import Optimizer as Optimizer
from trivium.train.optimizers import set_learning_rate as set_learning_rate
from trivium.train.optimizers.adamw import AdamW as AdamW
from trivium.train.optimizers.muon import Muon as Muon
from trivium.train.recipe import Recipe as Recipe
from trivium.train.recipe_loading import load_recipe as load_recipe
from trivium.train.schedules import Constant as Constant
from trivium.train.schedules import Cosine as Cosine
from trivium.train.schedules import InverseSqrt as InverseSqrt
from trivium.train.schedules import Linear as Linear
from trivium.train.schedules import Schedule as Schedule
from trivium.train.schedules import StableDecay as StableDecay
from trivium.train.trainer import Interrupted as Interrupted
from trivium.train.trainer import Trainer as Trainer
from trivium.train.trainer import TrainState as TrainState
