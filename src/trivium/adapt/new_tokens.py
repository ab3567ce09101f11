"""Give a model the rows of new tokens: each is the mean of the rows of the token's pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.models import LanguageModule, build


def extend_vocabulary(
    module: LanguageModule, pieces: Mapping[int, Sequence[int]]
) -> LanguageModule:
    """Return a copy of a model that has rows for new tokens in every table over the vocabulary.

    These are the token embeddings, and the weights and biases of untied heads. The row of a new
    token is the mean of the rows of its pieces, or of all rows if it has no pieces. A model whose
    tables are larger than its old vocabulary uses its spare rows first.

    Args:
        module: the model.
        pieces: the ids of the pieces of each new token, by its id.

    Raises:
        SpecError: source and target have separate vocabularies, or tokens are not rows of tables
            (character embeddings, n-grams, adaptive softmax), or the model is packed, quantised or
            has an adapter.
    """
    state = module.state_dict()
    new_size = max(module.spec.vocab_size, *(index + 1 for index in pieces))
    for name in find_vocabulary_tables(module):
        state[name] = _extend_table(state[name], new_size, pieces)
    result = build(module.spec.replace(vocab_size=new_size), device="meta")
    if module.device.type != "meta":
        result.load_state_dict(state, assign=True)
    return result.eval()


def find_vocabulary_tables(module: LanguageModule) -> list[str]:
    """Return the names of the parameters that have one row for each token.

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
    """Return a table [V, ...] with `size` rows, in which the rows of new tokens are means."""
    result = table.new_empty(size, *table.shape[1:])
    result[: len(table)] = table
    for index, ids in pieces.items():
        rows = table[torch.tensor(ids, device=table.device)] if ids else table
        result[index] = rows.float().mean(0).to(table.dtype)
    return result
