"""Tensors by name that are read or computed only when they are looked up."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import Tensor


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name. Each lookup reads or computes the tensor anew, and nothing is kept.

    Args:
        functions: a function for each name, which returns the tensor.
    """

    def __init__(self, functions: Mapping[str, Callable[[], Tensor]]) -> None:
        self._functions = functions

    def __getitem__(self, name: str) -> Tensor:
        return self._functions[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._functions  # the inherited method would compute the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


def combine(*sources: Mapping[str, Tensor]) -> LazyTensors:
    """Return the tensors of all sources. The last source that has a name is the one that is read.

    No tensor is looked up before it is needed.
    """
    return LazyTensors(
        {name: partial(operator.getitem, one, name) for one in sources for name in one}
    )
