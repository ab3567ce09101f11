"""Open a model without reading its weights, to start the training of another model from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from trivium.adapt.adapter import merge_weights
from trivium.adapt.new_tokens import extend_weights
from trivium.errors import CheckpointError
from trivium.interop.hf_folder import is_hf_folder, read_folder_weights
from trivium.interop.peft_reader import is_adapter_folder, read_adapter
from trivium.language_model import LanguageModel
from trivium.model_folder import read_model, read_weights
from trivium.model_loading import find_base, find_newest_weights, load, make_model
from trivium.remote_model import find_model


@dataclass(frozen=True)
class StoredModel:
    """A model in files. Each of its weights is read when it is looked up, and then freed.

    Args:
        lm: the model on the meta device, without the values of its weights.
        weights: the weights by name. They may be views that are not contiguous.
    """

    lm: LanguageModel
    weights: Mapping[str, Tensor]

    def with_adapter(self, folder: Path, name: str) -> Self:
        """Return this model with the adapter in a folder merged (`LanguageModel.with_adapter`)."""
        model_type = self.lm.settings.config.get("model_type")
        adapter = read_adapter(
            folder, self.lm.module, self.weights, model_type=model_type, name=name
        )
        merged = self.lm.with_read_adapter(adapter, folder).merge_adapter()
        return type(self)(merged, merge_weights(self.weights, adapter))

    def with_new_tokens(
        self, tokens: Iterable[str] = (), *, special_tokens: Iterable[str] = ()
    ) -> Self:
        """Return this model with additional tokens (`LanguageModel.with_new_tokens`)."""
        extended = self.lm.with_new_tokens(tokens, special_tokens=special_tokens)
        pieces = self.lm.text_tokenizer.split_new_tokens(extended.text_tokenizer)
        return type(self)(extended, extend_weights(self.lm.module, self.weights, pieces))


def open_model(path: str | os.PathLike[str], *, verify: bool = True) -> StoredModel:
    """Open a model without reading its weights. An adapter is merged when they are read.

    Args:
        path: as in `trivium.load`.
        verify: as in `trivium.load`.

    Raises:
        CheckpointError: as `trivium.load`. Values of a Hugging Face folder that are not finite
            raise this error when they are looked up.
    """
    folder = find_model(path)
    if is_adapter_folder(folder):
        try:
            base = open_model(find_base(folder), verify=verify)
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: the base of this adapter: {error}") from None
        return base.with_adapter(folder, Path(path).name)
    if is_hf_folder(folder):
        return StoredModel(load(folder, device="meta"), read_folder_weights(folder))
    folder = find_newest_weights(folder, verify=verify)
    lm = make_model(folder, read_model(folder, on_meta=True))
    return StoredModel(lm, read_weights(folder, lm.spec))
