"""Which weights a run keeps: the last ones, those of its best evaluation, or a mean of several.

Runs on labelled examples keep the weights with the best main metric, or with the lowest validation
loss where that metric is not defined. Runs on text keep those with the lowest validation loss of
the evaluations that `compares_losses`. All other runs keep their last weights. At the end a run on
labelled examples also tries the mean of its last `train.average` checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from trivium.adapt import merged_state
from trivium.interop import tensor_files
from trivium.interop.tensor_files import read_safetensors
from trivium.model_folder import WEIGHTS, checkpoints
from trivium.progress import ProgressLine
from trivium.train.callback import Callback
from trivium.train.checkpoint import Checkpoints, damage
from trivium.train.distributed import Parallel
from trivium.train.recipe import Recipe
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import TrainState
from trivium.train.whole_model import WholeModel


@dataclass
class KeptWeights(Callback):
    """The weights that a run keeps beside its checkpoints, and ends with.

    The best weights are files in the folder of checkpoints. Those of the state of the last
    checkpoint stay, too, since a run that is resumed from there needs them.

    Args:
        run: the folder of the run.
        recipe: the recipe with every number decided.
        model: the trained model.
        saved: the checkpoints of the run.
        state: the state of the run, which training changes.
        metric: the main metric of labelled examples; "" until the first evaluation, which names it;
            None where the validation loss decides.
    """

    run: RunFolder
    recipe: Recipe
    model: WholeModel
    saved: Checkpoints
    state: TrainState
    metric: str | None = None
    _saved_best_step: int = field(init=False)
    """The step of the best weights at the last checkpoint."""

    def __post_init__(self) -> None:
        self._saved_best_step = self.state.best_step

    def on_save(self, folder: Path) -> None:
        """Store which weights a run needs that is resumed from the checkpoint."""
        self._saved_best_step = self.state.best_step

    def compares_losses(self, *, repeats_data: bool) -> bool:
        """Return whether the weights of the lowest validation loss are kept.

        Unless the recipe decides, they are kept from the second pass over the text on, since a
        model overfits only text that it has seen before. `repeats_data` is whether the last step
        took rows that earlier steps had taken.
        """
        train = self.recipe.train
        if train.keep_best is None and train.patience is None:
            return repeats_data
        return train.keep_best is not False

    def offer(self, score: float) -> None:
        """Write the weights if no earlier evaluation had a higher score; update the state."""
        state = self.state
        if math.isfinite(score) and (state.best is None or score > state.best):
            state.best, state.best_step, state.evals_since_best = score, state.step, 0
            self.run.checkpoints.mkdir(exist_ok=True)
            tensor_files.write_safetensors(self.run.best(state.step), self.model.whole.state_dict())
            # A resumed run may need the best weights that its checkpoint knows.
            self.saved.wait()
            self.run.keep_best(state.step, self._saved_best_step)
        else:
            state.evals_since_best += 1

    def load_best(self) -> None:
        """Load the weights of the best evaluation into the model, if any were kept."""
        if self.state.best_step:  # of all that is trained: ELECTRA's two models fit together
            best = read_safetensors(self.run.best(self.state.best_step))
            self.model.whole.load_state_dict(best)

    def candidates(self) -> list[dict[str, Tensor]]:
        """Return the weights with which a run may end: an adapter is merged.

        These are the weights of the model and, unless there is an adapter, the mean of the last
        `train.average` checkpoints.
        """
        weights, count = merged_state(self.model.lm.module), self.recipe.train.average
        if count == 1 or self.recipe.adapter.rank:
            return [weights]
        mean = average_weights(self.run.checkpoints, count)
        return [weights, {name: mean[name] for name in weights}]


def drop_abandoned_best(
    run: RunFolder, state: TrainState, line: ProgressLine, parallel: Parallel
) -> None:
    """Delete best weights of steps after the checkpoint; warn if those of the state are missing."""
    if state.best_step and not run.best(state.best_step).is_file():
        line.warn(
            f"the best weights so far, of step {state.best_step:,}, are missing: the best ones are "
            "chosen among the evaluations from here on."
        )
        state.best, state.best_step, state.evals_since_best = None, 0, 0
    parallel.barrier()  # all have looked
    if parallel.is_main:
        run.keep_best(state.best_step)


def average_weights(folder: Path, count: int) -> dict[str, Tensor]:
    """Return the mean weights of the last `count` good checkpoints (Vaswani et al. 2017, 6.1)."""
    total: dict[str, Tensor] = {}
    good = [path for path in checkpoints(folder) if damage(path) is None][:count]
    for checkpoint in good:
        for name, weight in read_safetensors(checkpoint / WEIGHTS).items():
            if not weight.is_floating_point():  # a table that is not trained
                total[name] = weight
                continue
            total[name] = total[name] + weight / len(good) if name in total else weight / len(good)
    return total
