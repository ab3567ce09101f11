"""Add new tokens to a model. The embedding of a new token is the mean over the token's pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.lazy_tensors import LazyTensors, combine
from trivium.models import LanguageModule, build


def extend_vocabulary(
    module: LanguageModule, pieces: Mapping[int, Sequence[int]]
) -> LanguageModule:
    """Return a copy of a model with rows for new tokens in every parameter with a row per token.

    These are the token embeddings, and the weights and biases of untied heads. The row of a new
    token is the mean of the rows of its pieces, or of all rows if it has no pieces. If the
    parameters have more rows than the old vocabulary has tokens, the spare rows are used first.

    Args:
        module: the model.
        pieces: the ids of the pieces of each new token, by its id.

    Raises:
        SpecError: source and target have separate vocabularies, or the model has no parameters with
            a row per token (character embeddings, n-grams, adaptive softmax), or it is packed,
            quantised or has an adapter.
    """
    weights = extend_weights(module, module.state_dict(), pieces)
    result = build(module.spec.replace(vocab_size=_new_size(module, pieces)), device="meta")
    if module.device.type != "meta":
        result.load_state_dict(weights, assign=True)
    return result.eval()


def extend_weights(
    module: LanguageModule, weights: Mapping[str, Tensor], pieces: Mapping[int, Sequence[int]]
) -> LazyTensors:
    """Return weights with rows for new tokens. A weight is extended when it is looked up.

    Args:
        module: a model with the names and shapes of the weights. It may be on the meta device.
        weights: the weights of the model by name.
        pieces: as for `extend_vocabulary`.

    Raises:
        SpecError: as `extend_vocabulary`.
    """
    size = _new_size(module, pieces)

    def extend(name: str) -> Tensor:
        """Return a table with rows for the new tokens."""
        return _extend_table(weights[name], size, pieces)

    tables = {name: partial(extend, name) for name in find_vocabulary_tables(module)}
    return combine(weights, LazyTensors(tables))


def _new_size(module: LanguageModule, pieces: Mapping[int, Sequence[int]]) -> int:
    """Return the vocabulary size of a model with new tokens."""
    return max(module.spec.vocab_size, *(index + 1 for index in pieces))


def find_vocabulary_tables(module: LanguageModule) -> list[str]:
    """Return the names of the parameters that have one row per token.

    Raises SpecError as `extend_vocabulary` does.
    """
    spec = module.spec
    if getattr(spec, "source_vocab_size", None) is not None:
        raise SpecError(
            "tokens cannot be added to a model with separate vocabularies for source and target."
        )
    grown = build(spec.replace(vocab_size=spec.vocab_size + 1), device="meta").state_dict()
    state, tables = module.state_dict(), []
    if state.keys() != grown.keys():
        raise SpecError(
            "tokens are added to plain weights: load the model without pack and quantize, and "
            "merge its adapter first (`merge_adapter`)."
        )
    for name, weight in state.items():
        if grown[name].shape != weight.shape:
            if weight.shape[0] != spec.vocab_size or not weight.is_floating_point():
                raise SpecError(
                    f"tokens cannot be added to this model: {name} does not have one row per token."
                )
            tables.append(name)
    if not tables:
        raise SpecError("tokens cannot be added to this model: it has no table of tokens.")
    return tables


def _extend_table(table: Tensor, size: int, pieces: Mapping[int, Sequence[int]]) -> Tensor:
    """Extend a table [V, ...] to `size` rows. A new token's row is the mean of its pieces' rows."""
    result = table.new_empty(size, *table.shape[1:])
    result[: len(table)] = table
    for index, ids in pieces.items():
        rows = table[torch.tensor(ids, device=table.device)] if ids else table
        result[index] = rows.float().mean(0).to(table.dtype)
    return result
