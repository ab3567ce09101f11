"""Save and export a language model."""

from __future__ import annotations

import os
from pathlib import Path

from trivium.adapt.lora import LoRALinear
from trivium.errors import SpecError
from trivium.inference.text_model import TextModel
from trivium.interop.hf_folder import write_folder
from trivium.model_folder import new_model_folder, write_model
from trivium.nn.packed_linear import Int8Linear, PackedLinear


class SavingMixin(TextModel):
    """The methods that write a model to a folder."""

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write weights, spec, tokenizers and settings to a folder that `load` reads.

        The folder appears under its name only when it is complete.

        Args:
            folder: a new or empty folder.
            overwrite: replace a model in the folder. A run or other files are never replaced.

        Raises:
            SpecError: the model is packed or quantised, has a LoRA adapter, or has no weights.
            CheckpointError: the folder is in use, or cannot be written.
        """
        self._check_savable()
        tokenizers = self.tokenizer, self._source_tokenizer
        with new_model_folder(folder, overwrite=overwrite) as partial:
            write_model(partial, self.module, *tokenizers, self.settings)
        return Path(folder)

    def save_hf(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        max_shard_bytes: int = 5_000_000_000,
    ) -> Path:
        """Write a Hugging Face folder, which `transformers` and `load` read.

        A decoder with a task head is saved without its language-model head, with a warning, because
        no class of `transformers` has both heads. The same holds for an encoder with an enhanced
        mask decoder (`MLMHead.mask_decoder_positions`).

        Args:
            folder: a new or empty folder.
            overwrite: replace a model in the folder. A run or other files are never replaced.
            max_shard_bytes: the maximum size of a weight file in bytes.

        Raises:
            SpecError: no Hugging Face architecture fits this model, it has two tokenizers that are
                not SentencePiece models as Marian's, or `save` would raise SpecError.
            CheckpointError: the folder is in use, or cannot be written.
        """
        self._check_savable()
        with new_model_folder(folder, overwrite=overwrite) as partial:
            model = self.module, self.tokenizer, self.settings
            write_folder(
                partial,
                *model,
                source_tokenizer=self._source_tokenizer,
                max_shard_bytes=max_shard_bytes,
            )
        return Path(folder)

    def _check_savable(self) -> None:
        """Raise SpecError if the model is packed, quantised, without weights, or has an adapter."""
        for module in self.module.modules():
            if isinstance(module, PackedLinear | Int8Linear):
                raise SpecError(
                    "a packed or quantised model cannot be saved: load it without pack and "
                    "quantize first."
                )
            if isinstance(module, LoRALinear):
                raise SpecError(
                    "this model has a LoRA adapter: save `merge_adapter()` of it, or the adapter "
                    "alone with `save_adapter`."
                )
        if self.module.device.type == "meta":
            raise SpecError('this model has no weights: load it on another device than "meta".')
