"""Writing one more token of every text through layers that PyTorch has compiled to C++.

Layers alike are compiled once, as a function of tensors alone, for any number of texts of any
lengths, and where sums are faster than other products also for one text and for few. Between two
matrices no Python is run: where weights drive Python's objects out of the caches of a CPU, that
takes as long as the products themselves.

Shape letters: T texts, of sources B with G texts each (beams), S positions, R positions there is
room for, P positions of a source, K key-value heads, H head_dim, D d_model, E width of token
vectors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.errors import TriviumError
from trivium.models.heads import VocabularyHead
from trivium.nn.cache import Cache, Known, LayerCache, Start, latest, per_row, positions_of
from trivium.nn.compiled import Run, compiled, form, has_compiler
from trivium.nn.inference_linear import InferenceLinear
from trivium.nn.mask import Mask
from trivium.nn.positions import Rotation

if TYPE_CHECKING:
    from trivium.models.transformer import Memory, Places, Stack, Transformer

# Sizes that layers are compiled with: all different, so that none is taken for another. Of texts
# there are those of so many sources times so many texts of each.
_ONE, _FEW, _MANY = (1, 1), (2, 3), (5, 7)
_SEEN, _ROOM, _SOURCE = 203, 251, 103


class CompiledStep:
    """What the layers of a decoder make of one more token of every text.

    It reads the weights that the model has when it is made: one that is packed, quantised or
    adapted later has to be compiled again, and a copy of a compiled one is not. Packed matrices
    that `InferenceLinear.keep_rows` keeps are there twice from then on.

    Args:
        model: on a CPU, with a decoder that `suits`.

    Raises:
        TriviumError: a model elsewhere, no C++ compiler, or a layer that PyTorch cannot compile.
    """

    def __init__(self, model: Transformer) -> None:
        if model.device.type != "cpu":
            raise TriviumError(
                f"writing is compiled for a CPU alone, but the model is on {model.device}: load "
                "it with device cpu, or go on without compiling."
            )
        if not has_compiler():
            raise TriviumError(
                "compiling needs a C++ compiler, and there is none: install g++ or clang++, or "
                "name one in the environment variable CXX; or go on without compiling."
            )
        assert model.decoder is not None
        with torch.inference_mode(False), torch.no_grad():
            # One text and few wait for weights, and nothing reads these as fast as a sum.
            summed = _keep_rows(model)
            examples = {summed: _FEW, 1: _ONE} if summed else {}
            examples[sys.maxsize] = _MANY
            first = torch.zeros(math.prod(_MANY), 1, dtype=torch.int64)
            self._opening = _Opening(model.decoder, model.tokens(first))
            stack = model.decoder
            self._weights = [_weights(stack.layers[block]) for block, _ in stack.order]
            self._runs = {
                most: self._compiled(model, *example) for most, example in sorted(examples.items())
            }

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """The weights of a copied model are others."""

    @staticmethod
    def suits(stack: spec.Stack) -> bool:
        """Whether such a decoder can be compiled: none of its layers forgets what is far away."""
        return all(isinstance(each.pattern, spec.Full) for each in stack.attentions)

    @staticmethod
    def takes(tokens: Tensor, mask: Mask, memory: Memory | None, cache: Cache) -> bool:
        """Whether this is such a step: token vectors [T, 1, E], which see all before them."""
        if tokens.shape[1] != 1 or latest(mask.start) < 1:
            return False
        if mask.padding is not None or mask.documents is not None or mask.prefix is not None:
            return False
        source = cache.layers[0].memory
        if memory is not None and (source is None or len(tokens) % len(source[0])):
            return False
        return not torch.is_grad_enabled()

    def __call__(
        self,
        stack: Stack,
        tokens: Tensor,
        start: Start,
        position_ids: Tensor,
        memory: Memory | None,
        cache: Cache,
    ) -> Tensor:
        """Token vectors [T, 1, E], int64 [1 or T, 1] -> hidden states [T, 1, D]."""
        texts, real = len(tokens), None if memory is None else _real(memory, cache)
        most = next(most for most in self._runs if texts <= most)
        runs, grouped = self._runs[most], real is not None and most > 1
        x, shared = self._opening.shared(tokens, start, position_ids, real, grouped=grouped)
        steps = zip(stack.order, runs, self._weights, cache.layers, strict=True)
        for (_, kind), run, weights, layer in steps:
            (x,) = run([*shared[kind].given(x, layer), *weights])
        return stack.norm(x)

    def _compiled(self, model: Transformer, sources: int, each: int) -> list[Run]:
        """What runs each layer: for one text, or for about as many as these."""
        stack, known, texts = model.decoder, {}, sources * each
        assert stack is not None
        grouped = model.spec.crosses(stack.spec) and texts > 1
        x, shared, cache = _example(model, self._opening, sources, each, grouped=grouped)
        found: list[Run] = []
        layers = _layers(stack, grouped=grouped)
        for i, (layer, weights) in enumerate(zip(layers, self._weights, strict=True)):
            key = f"{stack.spec.attention_of(i)} {layer.names} {[*map(form, weights)]}"
            if key not in known:
                given = [*shared[stack.order[i][1]].given(x, cache.layers[i]), *weights]
                sizes = layer.dimensions(len(given))
                if texts == 1:  # else the first is their number
                    sizes = [tuple(size for size in each if size > 0) for each in sizes]
                known[key] = compiled(layer, given, sizes, of=stack.layers[stack.order[i][0]])
            found.append(known[key])
        return found


@dataclass(frozen=True)
class _Shared:
    """What all layers with the same kind of relative positions take.

    Where texts are grouped, those of a source stand together: [T, ...] is [B, G, ...] there.

    Args:
        start: where each text's token stands, int64 [T, 1].
        seen: which keys it sees, bool [T, S].
        places: relative positions: none, a bias of scores, or cosines and sines.
        real: what of the sources is real, bool [B, P].
        grouped: whether texts are grouped.
    """

    start: Tensor
    seen: Tensor
    places: tuple[Tensor, ...]
    real: Tensor | None
    grouped: bool

    def given(self, x: Tensor, cache: LayerCache) -> list[Tensor]:
        """All that a layer takes but its weights, as `_Layer` has it."""
        texts, keys, values = len(x), cache.keys, cache.values
        if len(keys) != texts:
            keys, values = keys[:texts], values[:texts]
        if self.grouped:
            x, keys, values = (_in_groups(each, self.start.shape) for each in (x, keys, values))
        found = [x, self.start, self.seen, keys, values, *self.places]
        if self.real is not None and cache.memory is not None:
            found += (self.real, *cache.memory)
        return found


def _in_groups(x: Tensor, groups: Sequence[int]) -> Tensor:
    """Texts of the same source together: [T, ...] -> [B, G, ...] for groups [B, G, ...]."""
    return x.view(groups[0], groups[1], *x.shape[1:])


def _real(memory: Memory, cache: Cache) -> Tensor:
    """What of the sources is real: bool [B, P]."""
    assert cache.layers[0].memory is not None
    keys, _ = cache.layers[0].memory
    sources = len(keys)
    if memory.attention_mask is None:
        return torch.ones(sources, keys.shape[2], dtype=torch.bool)
    real = memory.attention_mask.bool()
    return real if len(real) == sources else real[:: len(real) // sources].contiguous()


def _keep_rows(model: Transformer) -> int:
    """Keep matrices as a sum reads them, too; up to how many rows are multiplied by sums."""
    assert model.decoder is not None
    named = model.decoder.named_modules()
    # Keys and values of a source were made when it was read.
    unread = ("cross_attention.key", "cross_attention.value")
    packed = [
        x for name, x in named if isinstance(x, InferenceLinear) and not name.endswith(unread)
    ]
    summed = max((layer.keep_rows() for layer in packed), default=0)
    for head in model.heads.values() if summed else ():
        if isinstance(head, VocabularyHead) and isinstance(head.product, InferenceLinear):
            head.product.keep_rows(model.tokens.weight if head.tied else None)
            if head.product.rows is not None:  # it is no part of a compiled layer
                head.product.rows.compile_sums()
    return summed


def _layers(stack: Stack, *, grouped: bool) -> list[_Layer]:
    """Each layer of a stack as a function."""
    found = []
    for (block, _), attention in zip(stack.order, stack.spec.attentions, strict=True):
        rotates = isinstance(attention.positions, spec.Rotary)
        placed = attention.positions is not None
        found.append(_Layer(stack.layers[block], rotates, placed, grouped))
    return found


def _example(
    model: Transformer, opening: _Opening, sources: int, each: int, *, grouped: bool
) -> tuple[Tensor, list[_Shared], Cache]:
    """Inputs of every layer as they are in a step of so many texts, else of the sizes above."""
    texts = sources * each
    cache = model.new_cache(texts, _ROOM)
    real = None
    stack = model.decoder
    assert stack is not None
    if model.spec.crosses(stack.spec):
        real = torch.ones(sources, _SOURCE, dtype=torch.bool)
        for layer, attention in zip(cache.layers, stack.spec.attentions, strict=True):
            shape = (sources, attention.across.kv_heads, _SOURCE, attention.across.head_dim)
            keys = torch.zeros(shape, dtype=layer.keys.dtype)
            layer.memory = keys, keys.clone()
    first = torch.zeros(texts, 1, dtype=torch.int64)
    tokens = model.tokens(first)
    x, shared = opening.shared(tokens, _SEEN - 1, first, real, grouped=grouped)
    return x, shared, cache


class _Function(nn.Module):
    """A module as a function of tensors alone, its weights among them and last.

    Args:
        block: what is called; its own weights only say what names they have.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._block = (block,)  # in a tuple, or its weights would be constants
        self.names = [name for name, _ in _tensors(block)]

    def call(self, given: Sequence[Tensor], *inputs: Any, **options: Any) -> Any:
        """What the block makes of inputs, with the weights that are `given`."""
        weights = dict(zip(self.names, given[len(given) - len(self.names) :], strict=True))
        return torch.func.functional_call(self._block[0], weights, inputs, options)


class _Before(nn.Module):
    """What a stack does before its layers."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self._stack = (stack,)
        self.embedding, self.bias = stack.embedding, stack.bias

    def forward(
        self, tokens: Tensor, begun: Tensor, position_ids: Tensor, numbers: Tensor
    ) -> list[Tensor]:
        """[T, 1, E], int64 [T, 1] twice, arange(S) -> [T, 1, D], what is seen [T, S], places."""
        (stack,), keys = self._stack, numbers.shape[0]
        x = stack.embedding(tokens, position_ids, None).contiguous()
        kinds = stack.places(begun, position_ids, keys)
        return [x, numbers <= begun, *(each for places in kinds for each in _parts(places))]


class _Opening(_Function):
    """That as a function, compiled for any number of texts, also for one: it repeats nothing."""

    def __init__(self, stack: Stack, tokens: Tensor) -> None:
        before = _Before(stack)
        super().__init__(before)
        first = torch.zeros(len(tokens), 1, dtype=torch.int64)
        self._kinds = [len(_parts(each)) for each in stack.places(first, first, 1)]
        weights = _weights(before)
        given = [tokens, first, first.clone(), torch.arange(_SEEN), *weights]
        sizes = [(0,), (0,), (0,), (0,), *[()] * len(weights)]
        self._weights, self._run = weights, compiled(self, given, sizes, of=stack)

    def forward(self, *given: Tensor) -> list[Tensor]:
        """What `_Before` takes, and its weights."""
        return self.call(given, *given[:4])

    def shared(
        self,
        tokens: Tensor,
        start: Start,
        position_ids: Tensor,
        real: Tensor | None,
        *,
        grouped: bool,
    ) -> tuple[Tensor, list[_Shared]]:
        """Token vectors [T, 1, E], int64 [1 or T, 1], bool [B, P] -> [T, 1, D], every kind."""
        texts = len(tokens)
        begun = positions_of(per_row(start, texts), 1, position_ids.device)
        if len(position_ids) < texts:
            position_ids = position_ids.expand(texts, 1).contiguous()
        given = [tokens.contiguous(), begun, position_ids, torch.arange(latest(start) + 1)]
        x, seen, *places = self._run([*given, *self._weights])
        if grouped:
            assert real is not None
            groups, rows = (len(real), texts // len(real)), (begun, seen, *places)
            begun, seen, *places = (_in_groups(each, groups) for each in rows)
        parts = iter(places)
        kinds = (tuple(islice(parts, count)) for count in self._kinds)
        return x, [_Shared(begun, seen, each, real, grouped) for each in kinds]


def _parts(places: Places | None) -> tuple[Tensor, ...]:
    """The tensors of relative positions: none, a bias of scores, or cosines and sines."""
    if isinstance(places, Rotation):
        return places.cosine, places.sine
    return () if places is None else (places.contiguous(),)


class _Layer(_Function):
    """A block of a stack.

    Args:
        block: the block.
        rotates: whether relative positions are a rotation.
        placed: whether there are any.
        grouped: whether texts are.
    """

    def __init__(self, block: nn.Module, rotates: bool, placed: bool, grouped: bool) -> None:
        super().__init__(block)
        self._rotates, self._placed, self._grouped = rotates, placed, grouped

    def dimensions(self, given: int) -> list[tuple[int, ...]]:
        """Which of each tensor's sizes may be others."""

        def texts_and(*others: int) -> tuple[int, ...]:
            return (0, 1, *(each + 1 for each in others)) if self._grouped else (0, *others)

        found = [texts_and(), texts_and(), texts_and(1), texts_and(2), texts_and(2)]
        if self._placed:
            found += [texts_and()] * 2 if self._rotates else [texts_and(3)]
        weights = len(self.names)
        if given > len(found) + weights:
            found += [(0, 1), (0, 2), (0, 2)]
        return found + [()] * weights

    def forward(self, *given: Tensor) -> Tensor:
        """`_Shared.given` and the weights -> [T, 1, D]."""
        x, start, seen, keys, values, *rest = given[: len(given) - len(self.names)]
        cache = _Room(keys, values, start, seen.shape[-1])
        if self._grouped:
            torch._check(x.shape[0] == rest[-1].shape[0])
            for each in (start, seen, keys, values, *rest[:-3]):
                torch._check(each.shape[0] == x.shape[0])
                torch._check(each.shape[1] == x.shape[1])
            x, seen = x.flatten(0, 1), seen.flatten(0, 1)
            rest[:-3] = [each.flatten(0, 1) for each in rest[:-3]]
        places: Places | None = None
        if self._rotates:
            places = Rotation.of(rest[0], rest[1])
        elif self._placed:
            places = rest[0]
        rest = rest[self._placed + self._rotates :]
        memory = None
        if rest:
            real, *source = rest
            memory, cache.memory = _Read(x, real), (source[0], source[1])
        # All keys that a new token does not see stand behind it, as padding does.
        mask = Mask(causal=False, padding=seen)
        return self.call(given, x, mask, places=places, memory=memory, cache=cache, select=None)


class _Room(LayerCache):
    """The cache of a layer as a compiled step sees it: it is written wherever texts end.

    Args:
        keys: [T, K, R, H], or grouped [B, G, K, R, H].
        values: as the keys.
        start: where the new token of each text stands, int64 [T, 1] or [B, G, 1].
        seen: keys that are looked at, S.
    """

    def __init__(self, keys: Tensor, values: Tensor, start: Tensor, seen: int) -> None:
        super().__init__(keys, values)
        self._start, self._seen = start, seen

    def extend(self, start: Start, keys: Tensor, values: Tensor) -> Known:
        """As in `LayerCache`, but for where texts end."""
        heads = self.keys.shape[:-2]  # [T, K], or [B, G, K]
        head = torch.meshgrid(*(torch.arange(size) for size in heads), indexing="ij")
        for room, new in ((self.keys, keys), (self.values, values)):
            # Not `scatter_`: a compiled one writes into a copy.
            room.index_put_((*head, self._start), new.to(room.dtype).view(*heads, -1))
        return Known(self._looked_at(self.keys), self._looked_at(self.values))

    def _looked_at(self, room: Tensor) -> Tensor:
        """[T, K, S, H]."""
        return room.narrow(-2, 0, self._seen).flatten(0, room.ndim - 4)


@dataclass(frozen=True)
class _Read:
    """What a block looks at of a `Memory`."""

    hidden: Tensor
    attention_mask: Tensor


def _weights(block: nn.Module) -> list[Tensor]:
    return [x for _, x in _tensors(block)]


def _tensors(block: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of a block by name; of matrices in an order of their own there is a number."""
    for name, x in (*block.named_parameters(), *block.named_buffers()):
        yield name, x.detach()
