"""Access to the whole model of a run, even if each process has only a shard of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.train import hardware
from trivium.train.distributed import Parallel
from trivium.train.optimizers.muon import gather_full_tensor
from trivium.train.starting_weights import StartingWeights

# Gathered blocks are kept until the end of `gathered` if the models fit in this fraction of the
# free memory.
_KEPT_FRACTION = 0.5

T = TypeVar("T")


@dataclass
class WholeModel:
    """The module that this process trains, and the whole model for metrics and saving.

    If the model is sharded, `whole` is a copy of `module` without weights (on the meta device).
    There are two ways to fill it: `map` gathers the weights on all processes, one block at a time,
    and `gather` collects all weights on the main process.

    Args:
        module: the module to train; for ELECTRA, it contains both models.
        lm: the model that is saved; its module is a part of `module`, or of the copy.
        models: a function that takes `module` and returns the models that a run saves, by the name
            of their folder. The folder name of `lm` is "".
        parallel: the processes of the run.
        device: the device of this process.
        is_sharded: whether each process has only a shard of the weights.
    """

    module: nn.Module
    lm: LanguageModel
    models: Callable[[nn.Module], dict[str, LanguageModule]]
    parallel: Parallel
    device: torch.device
    is_sharded: bool
    _frozen: list[tuple[nn.Module, nn.Module]] = field(default_factory=list, init=False)
    """Sharded frozen models, each with its copy without weights."""
    _gathering: _BlockGathering | None = field(default=None, init=False)
    """The blocks gathered so far, inside of `gathered`."""

    def __post_init__(self) -> None:
        self.whole = self.module
        """The whole module. If `is_sharded`, a copy without weights."""
        if self.is_sharded:
            self.whole = _copy_without_weights(self.module)
            self.lm.module = self.models(self.whole)[""]

    def add_frozen(self, frozen: LanguageModule, weights: StartingWeights | None) -> None:
        """Prepare a frozen model, such as the reference of a policy, for use in `map`.

        If the trained model is sharded, each process keeps a shard of the weights, and `frozen`
        has weights only inside `map`. `weights` are loaded into a model on the meta device; None
        if the model has its weights.
        """
        if not self.is_sharded:
            if weights is not None:
                weights.load_into(frozen, self.device)
            frozen.to(self.device)
            return
        sharded = copy.deepcopy(frozen)
        assert self.parallel.mesh is not None
        fully_shard(sharded, mesh=self.parallel.mesh["shard"])
        if weights is not None:
            weights.load_into(sharded, self.device)
        self._frozen.append((sharded.to(self.device), frozen))
        _discard_weights(frozen)

    def map(self, function: Callable[[Sequence[T]], list[Any]], items: Sequence[T]) -> list[Any]:
        """Apply a function that calls the model to a list, as `Parallel.map` does.

        All processes must call this method. `function` may call `lm`, `whole` and frozen models,
        without gradients. If they are sharded, all processes gather the weights of a block when
        one of them needs the block.
        """
        if not self.is_sharded:
            return self.parallel.map(function, items)
        own = self.parallel.own_part(items)
        with self.gathered():
            results = function(own) if own else []
            assert self._gathering is not None
            self._gathering.wait_for_others()
        return self.parallel.gather_results(results)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Context manager that keeps the gathered weights for all calls of `map` in the block.

        All processes must enter it together. The weights must not change in the block.
        """
        if not self.is_sharded or self._gathering is not None:
            yield
            return
        models = [(self.module, self.whole), *self._frozen]
        self._gathering = _BlockGathering(models, self.parallel, self.device)
        try:
            with self._gathering.running():
                yield
        finally:
            self._gathering = None

    def gather(self, *, on_host: bool = False) -> None:
        """Gather the weights of a sharded model on the main process. All processes must call it.

        The weights are gathered one at a time into host memory, since a GPU may not have enough
        memory for all of them. Unless `on_host`, the model is then moved to the GPU if it fits
        there. Does nothing if the model is not sharded.
        """
        if not self.is_sharded:
            return
        weights = {}
        for name, weight in self.module.state_dict().items():
            weight = gather_full_tensor(weight)
            if self.parallel.is_main:
                weights[name] = weight.cpu()
        torch.cuda.empty_cache()
        if self.parallel.is_main:
            self.whole.load_state_dict(weights, assign=True)
            size = sum(weight.nbytes for weight in weights.values())
            fits = size < _KEPT_FRACTION * hardware.available_memory(self.device)
            # Buffers may be on the GPU since the last `map`.
            self.whole.to(self.device if fits and not on_host else "cpu")


class _BlockGathering:
    """Gathers the blocks of sharded models on all processes, each when a process calls it.

    The processes call different blocks at the same time, since they compute different examples,
    but all of them must take part when a block is gathered. A process that calls a block whose
    weights it does not have therefore asks the others which blocks they need. A process that has
    computed its examples needs none. All processes then gather all of these blocks, in the same
    order. They end when no process needs a block.

    The weights outside of the blocks are gathered at the start. Blocks are kept until the end if
    all processes have enough memory. Otherwise, a process has one block at a time.

    Args:
        models: the sharded models, each with its copy without weights.
        parallel: the processes of the run.
        device: the device for the gathered weights.
    """

    def __init__(
        self,
        models: Sequence[tuple[nn.Module, nn.Module]],
        parallel: Parallel,
        device: torch.device,
    ) -> None:
        self.parallel, self.device, self.wholes = parallel, device, [whole for _, whole in models]
        self.blocks: list[nn.Module] = []
        self.shards: list[dict[str, Tensor]] = []
        """The sharded weights of each block by name. The last items are those outside of blocks."""
        self.present = set[int]()
        """The indices of the blocks whose weights this process has."""
        outside: list[tuple[nn.Module, dict[str, Tensor]]] = []
        for sharded, whole in models:
            weights = sharded.state_dict()
            blocks = {*sharded.blocks}  # type: ignore[operator]
            for path in [path for path, part in sharded.named_modules() if part in blocks]:
                names = [name for name in weights if name.startswith(f"{path}.")]
                self.blocks.append(whole.get_submodule(path))
                self.shards.append({n.removeprefix(f"{path}."): weights.pop(n) for n in names})
            outside.append((whole, weights))
        self.num_blocks = len(self.blocks)
        self.blocks += [whole for whole, _ in outside]
        self.shards += [weights for _, weights in outside]
        size = sum(weight.nbytes for shards in self.shards for weight in shards.values())
        free = hardware.available_memory(device)
        if device.type == "cpu":
            free //= parallel.local_size
        [largest] = parallel.all_reduce_max(size / max(1, free))
        self.keeps_blocks = largest < _KEPT_FRACTION

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager in which this process may call the copies of the models.

        After its examples, each process must call `wait_for_others`.
        """
        for whole in self.wholes:
            whole._apply(lambda one: one if one.is_meta else one.to(self.device))
        for number in range(self.num_blocks, len(self.blocks)):
            self._gather(number, keeps=True)
        hooks = []
        for number, block in enumerate(self.blocks[: self.num_blocks]):
            hooks.append(block.register_forward_pre_hook(partial(self._before_block, number)))
            hooks.append(block.register_forward_hook(partial(self._after_block, number)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for whole in self.wholes:
                _discard_weights(whole)

    def _before_block(self, number: int, *_: Any) -> None:
        """Forward pre-hook of a block: gather its weights."""
        if number not in self.present:
            self._gather_needed(number)

    def _after_block(self, number: int, *_: Any) -> None:
        """Forward hook of a block: discard its weights if there is little memory."""
        if not self.keeps_blocks:
            _discard_weights(self.blocks[number])
            self.present.discard(number)

    def wait_for_others(self) -> None:
        """Gather blocks for other processes until no process needs a block."""
        while self._gather_needed(None):
            pass

    def _gather_needed(self, own: int | None) -> bool:
        """Gather all blocks that the processes need now; `own` is the block of this process.

        Returns whether a process needs a block.
        """
        needed = [-1.0] * self.parallel.size
        needed[self.parallel.rank] = -1.0 if own is None else float(own)
        numbers = {int(number) for number in self.parallel.all_reduce_max(*needed)} - {-1}
        for number in sorted(numbers):
            self._gather(number, keeps=self.keeps_blocks or number == own)
        return bool(numbers)

    @torch.no_grad()
    def _gather(self, number: int, *, keeps: bool) -> None:
        """Gather the weights of a block, or of a whole model without its blocks, by its index.

        If `keeps` is false, this process only takes part, because others need the weights.
        """
        with torch.inference_mode(False):
            weights = {name: gather_full_tensor(one) for name, one in self.shards[number].items()}
            if keeps:
                self.blocks[number].load_state_dict(weights, strict=False, assign=True)
                self.present.add(number)


def _copy_without_weights(module: nn.Module) -> nn.Module:
    """Copy a module. The parameters of the copy are on the meta device."""
    memo: dict[int, Any] = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad)
        for one in module.parameters()
    }
    return copy.deepcopy(module, memo)


def _discard_weights(module: nn.Module) -> None:
    """Replace the parameters of a module with parameters on the meta device."""
    with torch.inference_mode(False):
        empty = {
            name: torch.empty_like(one, device="meta")
            for name, one in module.named_parameters(remove_duplicate=False)
        }
        module.load_state_dict(empty, strict=False, assign=True)
