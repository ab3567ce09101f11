"""What a family of Hugging Face models is: its configuration and its names of weights, as tables.

A family has one function each way between `config.json` and `ModelSpec`, and one table of names
from which both directions of the weights follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trivium.errors import CheckpointError
from trivium.interop.config import Config
from trivium.spec import ModelSpec


@dataclass(frozen=True)
class Row:
    """One tensor of theirs, and the tensors of ours it holds.

    Args:
        theirs: its name in a Hugging Face file.
        ours: names in our `state_dict`; of several, theirs is the concatenation of their rows.
        transposed: theirs has matrices as [in, out] (GPT's Conv1D).
        flat: ours is a matrix with one column more than theirs has axes for: [1, V] <-> [V].
        otherwise: the name of what stands in for it in files that lack it.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    flat: bool = False
    otherwise: str = ""

    def split(self, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Theirs -> ours. Raises CheckpointError with both shapes where they do not fit."""
        wanted = [shapes[name] for name in self.ours]
        whole = torch.Size([sum(shape[0] for shape in wanted), *wanted[0][1:]])
        expected = torch.Size([*whole[::-1]]) if self.transposed else whole
        expected = torch.Size([1, *expected]) if self.flat else expected
        if tensor.shape != expected:
            raise CheckpointError(
                f"{self.theirs} is {list(tensor.shape)}, but config.json describes "
                f"{list(expected)}."
            )
        tensor = tensor[0] if self.flat else tensor
        tensor = tensor.T if self.transposed else tensor
        parts = tensor.split([shape[0] for shape in wanted])
        return {n: part.contiguous() for n, part in zip(self.ours, parts, strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Ours -> theirs."""
        parts = [tensors[name] for name in self.ours]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        whole = whole.T.contiguous() if self.transposed else whole
        return whole[None] if self.flat else whole


def rows(ours: str, theirs: str, *, bias: bool = True, transposed: bool = False) -> list[Row]:
    """The rows of a linear layer or a norm: its weight, and its bias if it has one."""
    found = [Row(f"{theirs}.weight", (f"{ours}.weight",), transposed=transposed)]
    if bias:
        found.append(Row(f"{theirs}.bias", (f"{ours}.bias",)))
    return found


def fused_rows(
    ours: tuple[str, ...], theirs: str, *, bias: bool = True, transposed: bool = False
) -> list[Row]:
    """The rows of one linear layer of theirs that is several of ours."""
    weights = tuple(f"{name}.weight" for name in ours)
    found = [Row(f"{theirs}.weight", weights, transposed=transposed)]
    if bias:
        found.append(Row(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours)))
    return found


@dataclass(frozen=True)
class Family:
    """A Hugging Face `model_type`, in and out.

    Args:
        model_type: the value in `config.json`.
        architectures: every class of theirs that can be read, e.g. "BertForMaskedLM".
        read: (config, architecture, names of the tensors there are) -> spec. An option it does not
            take from the config is refused.
        write: spec -> (architecture, config); raises SpecError for a spec the family has no word
            for.
        table: (spec, architecture) -> the names of all weights.
        describes: whether a spec is one of this family's, for export.
        base: what stands before the names of the body in files of models with a head ("bert."),
            and is missing in files of the body alone.
        bases: class -> another base, for classes that call the body otherwise.
        copies: their name -> the name it must equal, for tied weights that files may repeat.
        ignored: regular expressions of names without meaning (buffers), which are left out.
        zeros: names that are left out too, and refused unless all their numbers are 0.
        renamed: regular expression of a name in old files -> what `re.sub` makes of it.
    """

    model_type: str
    architectures: tuple[str, ...]
    read: Callable[[Config, str, Collection[str]], ModelSpec]
    write: Callable[[ModelSpec], tuple[str, dict[str, Any]]]
    table: Callable[[ModelSpec, str], list[Row]]
    describes: Callable[[ModelSpec], bool]
    base: str = ""
    bases: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def base_of(self, architecture: str) -> str:
        """What stands before the names of the body in files of a class."""
        return self.bases.get(architecture, self.base)
