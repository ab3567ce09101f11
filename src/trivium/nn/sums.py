"""Few rows times a matrix as sums that PyTorch compiles: nothing else reads weights as fast.

Shape letters: M rows, I inputs, O outputs, P parts of a matrix.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.compiled import Run, compiled, written_down

# Parts of a matrix that are read at once for a single row: a core fetches ahead in each of them,
# and gets more from memory than in one.
_PARTS = {torch.float32: 8, torch.bfloat16: 4, torch.int8: 2}
# Integers of 8 bits that stand in a word of 32.
_BYTES = 4
# Added to them, so that those which are masked out from between others are not negative.
_RAISED = (128, 128, 128, 0)
_SMALLEST = 1e-30


def summed_rows(dtype: torch.dtype) -> int:
    """Rows up to which sums are faster than other products with a matrix of this kind.

    With AVX-512 more than one were not measured, nor is any of bfloat16 or int8.
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        return 1 if dtype == torch.float32 else 0
    return {torch.float32: 8, torch.bfloat16: 1, torch.int8: 1}.get(dtype, 0)


class SummedRows(nn.Module, ABC):
    """y = W x + b for few rows.

    A compiler is given sums for any of them. Outside of what it compiles there are none for a
    single row before `compile_sums`: prompts seldom need any.

    Args:
        most: rows up to which it is.
        in_features: I.
        out_features: O.
    """

    def __init__(self, most: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.most, self.in_features, self.out_features = most, in_features, out_features
        self._alone = False

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory of the matrix."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]; a compiler is given the sums, everybody else what is compiled."""

    @abstractmethod
    def run_alone(self) -> Run:
        """Sums for a single row, compiled for this number of inputs.

        For any number they take a quarter more.
        """

    def compile_sums(self) -> None:
        """Have sums for a single row, too, outside of what is compiled.

        Raises:
            TriviumError: PyTorch cannot compile them.
        """
        self.run_alone()
        self._alone = True

    def takes(self, x: Tensor) -> bool:
        """Whether there are sums for as many rows as [..., I] has."""
        count = math.prod(x.shape[:-1])
        if not 0 < count <= self.most:
            return False
        return count > 1 or self._alone or torch.compiler.is_compiling()


class PlainRows(SummedRows):
    """A matrix as it is: its numbers may be of any precision, sums are in float32.

    Args:
        weight: [O, I].
        bias: [O].

    Raises:
        TriviumError: PyTorch cannot compile sums for several rows.
    """

    weight: Tensor
    added: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        outputs, inputs = weight.shape
        super().__init__(summed_rows(weight.dtype), inputs, outputs)
        if self.most > 1:
            _compiled_sums(self.most, weight.dtype)
        self.register_buffer("weight", weight.detach())
        self.register_buffer("added", _added(bias, outputs))

    @property
    def num_bytes(self) -> int:
        """Memory of the matrix."""
        return self.weight.nbytes

    def takes(self, x: Tensor) -> bool:
        """As others; a compiler is also given products of more rows where it has them of few."""
        return super().takes(x) or (self.most > 1 and torch.compiler.is_compiling())

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        count, outputs = math.prod(x.shape[:-1]), self.out_features
        rows = x.float().reshape(count, -1).contiguous()
        if count > self.most:
            # Turned around it takes down to half of the time of X W^T.
            found = (self.weight @ rows.T).T + self.added
            return found.reshape(*x.shape[:-1], outputs).to(x.dtype)
        if count > 1:  # there are sums for one row, and for as many as there are sums for
            rows = F.pad(rows, (0, 0, 0, self.most - count))
        parts = _parts(count, self.weight.dtype)
        if torch.compiler.is_compiling():
            found = Sums()(rows, *self._in_parts(math.gcd(outputs, parts)))
        else:
            found = self._compiled(rows, parts)
        return found[:count].view(*x.shape[:-1], outputs).to(x.dtype)

    def run_alone(self) -> Run:
        """Sums for a single row, compiled for this number of inputs."""
        return _compiled_sums(1, self.weight.dtype, self.in_features)

    def _compiled(self, rows: Tensor, parts: int) -> Tensor:
        one = rows.shape[0] == 1
        run = self.run_alone() if one else _compiled_sums(self.most, self.weight.dtype)
        (found,) = run([rows, *self._in_parts(parts)])
        if (done := found.shape[1]) < self.out_features:
            rest = F.linear(rows, self.weight[done:].float(), self.added[done:])
            found = torch.cat((found, rest), 1)
        return found

    def _in_parts(self, parts: int) -> tuple[Tensor, Tensor]:
        """But for what is left over: [P, O / P, I] and [P, O / P]."""
        each = self.out_features // parts
        matrix, added = (x[: parts * each] for x in (self.weight, self.added))
        return matrix.unflatten(0, (parts, each)), added.unflatten(0, (parts, each))


class ByteRows(SummedRows):
    """A matrix of integers of 8 bits, each row with a scale; what is multiplied is rounded, too.

    Four integers of a row, which stand I / 4 inputs apart, are the bits of one float32: as bytes
    or as int32 Inductor would read them one by one.

    Args:
        codes: int8 [O, I].
        scale: [O].
        bias: [O].
        steps: those that x is rounded to, up to its largest number.
    """

    words: Tensor
    scale: Tensor
    added: Tensor
    places: Tensor

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None, steps: int) -> None:
        outputs, inputs = codes.shape
        super().__init__(summed_rows(torch.int8), inputs, outputs)
        self._steps, parts = steps, _PARTS[torch.int8]
        more = -outputs % parts
        codes = F.pad(codes, (0, -inputs % _BYTES, 0, more))
        digits = codes.unflatten(1, (_BYTES, -1)).transpose(1, 2).short()
        raised = torch.tensor(_RAISED, dtype=torch.int16)
        words = ((digits + raised) & 255).to(torch.uint8).flatten(1).view(torch.float32)
        self.register_buffer("words", words.unflatten(0, (parts, -1)))
        self.register_buffer("scale", F.pad(scale.float(), (0, more)))
        self.register_buffer("added", F.pad(_added(bias, outputs), (0, more)))
        self.register_buffer("places", _places())

    @property
    def num_bytes(self) -> int:
        """Memory of the matrix."""
        return self.words.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] of a single row -> [..., O]."""
        row = F.pad(x.float().flatten(), (0, -self.in_features % _BYTES)).view(_BYTES, -1)
        given = [row, self.places, self.words, self.scale, self.added]
        if torch.compiler.is_compiling():
            found = ByteSums(self._steps)(*given)
        else:
            (found,) = self.run_alone()(given)
        return found[: self.out_features].view(*x.shape[:-1], -1).to(x.dtype)

    def run_alone(self) -> Run:
        """Sums for a single row, compiled for this number of inputs."""
        return _compiled_byte_sums(self.words.shape[-1], self._steps)


class Sums(nn.Module):
    """W x + b as sums, of which a compiler makes one loop for all rows and parts of W."""

    def forward(self, *given: Tensor) -> Tensor:
        """x [M, I], parts of W one below the other [P, O, I] and of b [P, O] -> [M, P * O].

        Whatever W is in: x and b are float32, and so are sums.
        """
        x, parts, added = given
        rows = written_down(x).unbind(0)
        sums = [(part.float() * row).sum(-1) for row in rows for part in parts.unbind(0)]
        return torch.cat(sums).view(x.shape[0], -1) + added.flatten()


class ByteSums(nn.Module):
    """The same of integers: x is rounded to so many steps up to its largest number."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def forward(self, *given: Tensor) -> Tensor:
        """x [4, I / 4], parts of words [P, O, I / 4], scales and b [P * O] -> [P * O].

        Between x and words stand `_places`: a compiler does not know numbers of its own.
        """
        x, places, words, scale, added = given
        largest = x.abs().amax().clamp_min(_SMALLEST)
        rounded = (x / largest * self._steps).round()
        row, raised = written_down(rounded * places[0]), (rounded * places[1]).sum()
        masks = [255 << (8 * i) for i in range(_BYTES - 1)] + [-1 << (8 * (_BYTES - 1))]

        def summed(part: Tensor) -> Tensor:
            terms = [(part & mask).float() * row[i] for i, mask in enumerate(masks)]
            return functools.reduce(torch.add, terms).sum(-1)

        found = torch.cat([summed(part) for part in words.view(torch.int32).unbind(0)])
        return (found - raised) * (scale * largest / self._steps) + added


@functools.cache
def _compiled_sums(count: int, dtype: torch.dtype, inputs: int | None = None) -> Run:
    """For so many rows, and matrices of so many inputs, else of any size."""
    parts, columns = _parts(count, dtype), inputs or 203
    matrix = torch.zeros(parts, 251, columns, dtype=dtype)
    given = torch.zeros(count, columns), matrix, torch.zeros(parts, 251)
    sizes = [(), (1,), (1,)] if inputs else [(1,), (1, 2), (1,)]
    return compiled(Sums(), given, sizes)


@functools.cache
def _compiled_byte_sums(words: int, steps: int) -> Run:
    """For matrices of so many words a row."""
    parts = _PARTS[torch.int8]
    outputs = torch.zeros(parts * 251), torch.zeros(parts * 251)
    given = torch.zeros(_BYTES, words), _places(), torch.zeros(parts, 251, words), *outputs
    return compiled(ByteSums(steps), given, [(), (), (1,), (0,), (0,)])


def _places() -> Tensor:
    """Of each integer of a word, the factor that undoes its place, and what it is raised by.

    [2, 4, 1].
    """
    factors = [2.0 ** (-8 * i) for i in range(_BYTES)]
    return torch.tensor([factors, _RAISED])[..., None]


def _parts(count: int, dtype: torch.dtype) -> int:
    """Parts of a matrix that so many rows are multiplied with at the same time."""
    return _PARTS[dtype] if count == 1 else 1


def _added(bias: Tensor | None, outputs: int) -> Tensor:
    return torch.zeros(outputs) if bias is None else bias.detach().float()
