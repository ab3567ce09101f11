"""Which weights a run keeps: the last, the best by validation, or the mean of several checkpoints.

Runs on labelled examples keep the weights with the best main metric, or with the lowest validation
loss if that metric is not defined. Runs on text keep the weights with the lowest validation loss if
`keeps_lowest_loss` allows it. All other runs keep their last weights. At the end, a run on labelled
examples also evaluates the mean of its last `train.average` checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from trivium.model_folder import checkpoints
from trivium.progress import ProgressLine
from trivium.train.callback import Callback
from trivium.train.checkpoint import Checkpoints, verify_checkpoint
from trivium.train.distributed import Parallel
from trivium.train.recipe import Recipe
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import TrainState
from trivium.train.whole_model import WholeModel


@dataclass
class KeptWeights(Callback):
    """A callback that tracks the best weights of a run, and loads them at the end.

    The best weights are stored in the folder of checkpoints. So are the weights that were best at
    the time of the last checkpoint, since a run resumed from this checkpoint needs them.

    Args:
        run: the folder of the run.
        recipe: the recipe of the run, in which all values are set.
        model: the trained model.
        saved: the checkpoints of the run.
        state: the state of the run, which training updates in place.
        metric: the name of the main metric of labelled examples. It is "" until the first
            evaluation sets it, and None if weights are compared by validation loss.
    """

    run: RunFolder
    recipe: Recipe
    model: WholeModel
    saved: Checkpoints
    state: TrainState
    metric: str | None = None
    _saved_best_step: int = field(init=False)
    """The step whose weights were the best ones when the last checkpoint was saved."""

    def __post_init__(self) -> None:
        self._saved_best_step = self.state.best_step

    def on_save(self, folder: Path) -> None:
        """Remember which best weights are needed to resume the run from this checkpoint."""
        self._saved_best_step = self.state.best_step

    def keeps_lowest_loss(self, *, repeats_data: bool) -> bool:
        """Return whether to keep the current weights if they have the lowest validation loss.

        `repeats_data` says whether the last step used rows that earlier steps have used. If the
        recipe sets neither `keep_best` nor `patience`, weights are kept only if data is repeated,
        since overfitting becomes likely from the second epoch on.
        """
        train = self.recipe.train
        if train.keep_best is None and train.patience is None:
            return repeats_data
        return train.keep_best is not False

    def save_if_best(self, score: float) -> None:
        """Save the current weights if their score is the best so far. Also updates the run state.

        All processes must call this method. The score is that of rank 0; the other processes may
        pass NaN. The run state stores the best score and counts the evaluations since then, for
        early stopping.
        """
        state, is_main = self.state, self.model.parallel.is_main
        known = score if is_main and math.isfinite(score) else -math.inf
        [score] = self.model.parallel.all_reduce_max(known)
        if math.isfinite(score) and (state.best is None or score > state.best):
            state.best, state.best_step, state.evals_since_best = score, state.step, 0
            self.saved.save_weights(self.run.best_weights_path(state.step), self.model.module)
            # The pending checkpoint is complete. A run that is resumed from it may need the weights
            # that were best then.
            if is_main:
                self.run.delete_best_weights_except(state.step, self._saved_best_step)
        else:
            state.evals_since_best += 1

    def load_best(self) -> None:
        """Load the best weights of the run into the trained module, or those of the last step.

        All processes must call this method.
        """
        # All trained weights, since ELECTRA's two models belong together.
        folder = self.saved.path(self.state)
        if self.state.best_step:
            folder = self.run.best_weights_path(self.state.best_step)
        self.saved.load_weights(folder, self.model.module)

    def candidates(self) -> list[Callable[[], None]]:
        """Return the functions that load the candidates for the final weights of the run.

        The candidates are the best weights and, unless there is an adapter, the mean of the last
        `train.average` checkpoints.
        """
        count = self.recipe.train.average
        if count == 1 or self.recipe.adapter.rank:
            return [self.load_best]
        mean = partial(load_average_weights, self.saved, self.model.module, count)
        return [self.load_best, mean]


def delete_stale_best_weights(
    run: RunFolder, state: TrainState, log: ProgressLine, parallel: Parallel
) -> None:
    """Delete saved best weights that are newer than the checkpoint from which a run is resumed.

    If the best weights at that checkpoint are missing, warn and reset the best score. All processes
    must call this function.
    """
    if state.best_step and not run.best_weights_path(state.best_step).is_dir():
        log.warn(
            f"the best weights so far, of step {state.best_step:,}, are missing: the best ones are "
            "chosen among the evaluations from here on."
        )
        state.best, state.best_step, state.evals_since_best = None, 0, 0
    parallel.barrier()  # all processes have checked the file
    if parallel.is_main:
        run.delete_best_weights_except(state.best_step)


@torch.no_grad()
def load_average_weights(saved: Checkpoints, module: nn.Module, count: int) -> None:
    """Load the mean weights of the last `count` valid checkpoints into a module.

    All processes must call this function.

    Source: Vaswani et al. 2017, section 6.1.
    """
    paths = list(checkpoints(saved.folder))
    problems = [verify_checkpoint(path, saved.parallel) for path in paths]
    good = [path for path, problem in zip(paths, problems, strict=True) if problem is None][:count]
    total: dict[str, Tensor] = {}
    for checkpoint in good:
        saved.load_weights(checkpoint, module)
        for name, weight in module.state_dict().items():
            if weight.is_floating_point():  # not a table that is not trained
                part = weight / len(good)
                total[name] = total[name] + part if name in total else part
    for name, weight in module.state_dict().items():
        if name in total:
            weight.copy_(total[name])
