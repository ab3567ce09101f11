"""Save and export a language model."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import cast

from trivium.adapt.lora import LoRALinear, is_quantized
from trivium.errors import SpecError
from trivium.files import read_json, write_file, write_json
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import TextModel
from trivium.interop.gguf_file import GGUF_FILE, WeightType, write_gguf
from trivium.interop.hf_folder import CONFIG, write_folder
from trivium.interop.ollama import MODELFILE, make_modelfile
from trivium.interop.onnx_file import ONNXWeightType, write_onnx
from trivium.model_folder import new_model_folder, write_model
from trivium.models import Transformer


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

    def save_gguf(
        self,
        folder: str | os.PathLike[str],
        *,
        weight_type: WeightType = "f16",
        overwrite: bool = False,
    ) -> Path:
        """Write a folder with a GGUF file for llama.cpp and a Modelfile for Ollama.

        Token ids are equal to those of this model, and so are logits with "f32" weights, up to
        rounding. An encoder is written for embeddings, without a head. Needs the extra `gguf`.

        Args:
            folder: a new or empty folder.
            weight_type: the data type of the weights: "f32", "f16", "bf16" or "q8_0" (8 bits).
            overwrite: replace a model in the folder. A run or other files are never replaced.

        Raises:
            SpecError: llama.cpp cannot compute this model, or `save` would raise SpecError.
            TokenizerError: llama.cpp cannot compute the token ids of this tokenizer.
            CheckpointError: the folder is in use, or cannot be written.
            MissingExtraError: the extra `gguf` is not installed.
        """
        self._check_savable()
        if banned := self.settings.banned_ids:
            warnings.warn(
                f"{len(banned)} tokens that this model never generates (bad_words_ids, "
                "suppress_tokens) are not named in the GGUF file: llama.cpp may generate them.",
                stacklevel=2,
            )
        encodes = self.spec.family == "encoder-only"
        with new_model_folder(folder, overwrite=overwrite) as partial:
            tokenizer, context = write_gguf(
                partial / GGUF_FILE,
                self.module,
                self.tokenizer,
                self.settings,
                weight_type=weight_type,
                max_length=self.max_length,
                pooling=self.pooling if encodes else "last",
                name=Path(folder).resolve().name,
            )
            params = SamplingParams() if encodes else self.sampling_params([], {})
            text, has_template = make_modelfile(
                GGUF_FILE,
                context_length=context,
                stop=[tokenizer.tokens[index] for index in tokenizer.end_ids],
                parameters={}
                if encodes
                else {
                    "temperature": params.temperature,
                    "top_k": params.top_k or 0,
                    "top_p": params.top_p or 1.0,
                    "min_p": params.min_p or 0.0,
                    "repeat_penalty": params.repetition_penalty,
                },
                template=self.get_chat_template() if self.settings.chat_template else None,
                added_bos=tokenizer.added_bos,
            )
            write_file(partial / MODELFILE, text)
        if not has_template:
            warnings.warn(
                f"{folder}: the chat template is in {GGUF_FILE}, but has no equal in the language "
                f"of Ollama's templates: write TEMPLATE in {MODELFILE} by hand.",
                stacklevel=2,
            )
        return Path(folder)

    def save_onnx(
        self,
        folder: str | os.PathLike[str],
        *,
        weight_type: ONNXWeightType = "f32",
        overwrite: bool = False,
    ) -> Path:
        """Write a folder with ONNX files for onnxruntime, Optimum and transformers.js.

        The folder has the files of `save_hf` except the weights, and the graphs in `onnx/`. With
        "f32" weights, outputs are equal to those of this model up to rounding, for all lengths.
        Needs the extra `onnx`.

        Args:
            folder: a new or empty folder.
            weight_type: the data type of the weights: "f32", "f16" or "int8".
            overwrite: replace a model in the folder. A run or other files are never replaced.

        Raises:
            SpecError: the model has a part that cannot be exported, or `save_hf` would raise
                SpecError.
            CheckpointError: the folder is in use, or cannot be written.
            MissingExtraError: the extra `onnx` is not installed.
        """
        self._check_savable()
        with new_model_folder(folder, overwrite=overwrite) as partial:
            module = write_folder(
                partial,
                self.module,
                self.tokenizer,
                self.settings,
                source_tokenizer=self._source_tokenizer,
                with_weights=False,
            )
            pooling = None
            if self.settings.pooling is not None:  # `save_hf` writes a vector head separately
                module, pooling = cast(Transformer, self.module), self.pooling
            options = write_onnx(
                partial, module, weight_type, pooling=pooling, normalize=self.settings.normalizes
            )
            write_json(partial / CONFIG, {**read_json(partial / CONFIG), **options})
        return Path(folder)

    def _check_savable(self) -> None:
        """Raise SpecError if the model is packed, quantised, without weights, or has an adapter."""
        for module in self.module.modules():
            if is_quantized(module):
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
