"""Save and export a language model."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import cast

from trivium.adapt.lora import LoRALinear, is_quantized
from trivium.errors import SpecError, TriviumError
from trivium.files import read_json, write_file, write_json
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import TextModel
from trivium.interop.gguf_adapter import ADAPTER_FILE, AdapterWeightType, write_gguf_adapter
from trivium.interop.gguf_file import GGUF_FILE, WeightType, write_gguf
from trivium.interop.hf_folder import CONFIG, write_folder
from trivium.interop.ollama import MODELFILE, make_modelfile
from trivium.interop.onnx_file import ONNXWeightType, write_onnx
from trivium.interop.settings import TOKENIZER_OPTIONS
from trivium.interop.web_page import MODEL, choose_task, copy_library, write_page
from trivium.model_folder import new_model_folder, write_model
from trivium.models import Transformer
from trivium.models.transformer import TransformerSpec


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
            SpecError: no Hugging Face architecture fits this model, its two tokenizers are not
                SentencePiece models (as in Marian), or `save` would raise SpecError.
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

        Token ids are the same as in this model. With "f32" weights, logits are the same up to
        rounding. An encoder is written for embeddings, without a head, and so is a decoder that was
        fine-tuned for embeddings. Needs the extra `gguf`.

        Args:
            folder: a new or empty folder.
            weight_type: the data type of the weights: "f32", "f16", "bf16", "q8_0" (8 bits),
                "q5_1", "q5_0" (5 bits), "q4_1" or "q4_0" (4 bits).
            overwrite: replace a model in the folder. A run or other files are never replaced.

        Raises:
            SpecError: llama.cpp does not support this model, or `save` would raise SpecError.
            TokenizerError: llama.cpp cannot reproduce the token ids of this tokenizer.
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
        embeds = self.spec.family == "encoder-only" or self.settings.pooling is not None
        if embeds and (prompt := self.settings.task_options("contrastive").get("prompt")):
            warnings.warn(
                f"a GGUF file has no prompt of embeddings: put {prompt!r} before every text.",
                stacklevel=2,
            )
        with new_model_folder(folder, overwrite=overwrite) as partial:
            tokenizer, context = write_gguf(
                partial / GGUF_FILE,
                self.module,
                self.tokenizer,
                self.settings,
                weight_type=weight_type,
                max_length=self.max_length,
                pooling=self.pooling if embeds else None,
                name=Path(folder).resolve().name,
            )
            params = SamplingParams() if embeds else self.sampling_params([], {})
            text, has_template = make_modelfile(
                GGUF_FILE,
                context_length=context,
                stop=[tokenizer.tokens[index] for index in tokenizer.end_ids],
                parameters={}
                if embeds
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

    def save_gguf_adapter(
        self,
        folder: str | os.PathLike[str],
        *,
        weight_type: AdapterWeightType = "f16",
        overwrite: bool = False,
    ) -> Path:
        """Write a folder with the LoRA adapter alone as a GGUF file.

        llama.cpp adds the adapter to the GGUF file of the base, and Ollama does so with
        the line ADAPTER in a Modelfile. Needs the extra `gguf`.

        Args:
            folder: a new or empty folder.
            weight_type: the data type of the matrices: "f16", "f32" or "bf16".
            overwrite: replace a model in the folder. A run or other files are never replaced.

        Raises:
            SpecError: the model has no adapter, or llama.cpp does not support the adapter or the
                base.
            CheckpointError: the folder is in use, or cannot be written.
            MissingExtraError: the extra `gguf` is not installed.
        """
        if self.adapter is None:
            raise SpecError("this model has no adapter: load one, or add one with `with_adapter`.")
        model_type = self.settings.config.get("model_type")
        with new_model_folder(folder, overwrite=overwrite) as partial:
            write_gguf_adapter(
                partial / ADAPTER_FILE,
                self.module,
                self.adapter,
                model_type=model_type,
                weight_type=weight_type,
            )
        return Path(folder)

    def save_onnx(
        self,
        folder: str | os.PathLike[str],
        *,
        weight_type: ONNXWeightType = "f32",
        overwrite: bool = False,
    ) -> Path:
        """Write a folder with ONNX files for onnxruntime and transformers.js.

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
            self._write_onnx_folder(partial, weight_type)
        return Path(folder)

    def save_web(
        self,
        folder: str | os.PathLike[str],
        *,
        weight_type: ONNXWeightType = "f32",
        library: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a folder with a web page that runs this model in the browser.

        Any static web server can serve the folder, such as `python3 -m http.server`. The page uses
        transformers.js. It needs no network once the files of this library are beside it. Needs the
        extra `onnx`.

        Args:
            folder: a new or empty folder.
            weight_type: the data type of the weights: "f32", "f16" or "int8".
            library: a folder with the archives of transformers.js that `npm pack` wrote; None: the
                page shows the commands that fetch them.
            overwrite: replace a model in the folder. A run or other files are never replaced.

        Raises:
            SpecError: transformers.js cannot run this model, or `save_onnx` would raise SpecError.
            TriviumError: the model has no tokenizer or two, or an archive in `library` is missing
                or damaged.
            CheckpointError: the folder is in use, or cannot be written.
            MissingExtraError: the extra `onnx` is not installed.
        """
        self._check_savable()
        if self.tokenizer is None or self._source_tokenizer is not None:
            count = "no tokenizer" if self.tokenizer is None else "two tokenizers"
            raise TriviumError(f"a web page needs a model with one tokenizer; this has {count}.")
        with new_model_folder(folder, overwrite=overwrite) as partial:
            if library is not None:
                copy_library(Path(library), partial)
            (partial / MODEL).mkdir()
            spec = self._write_onnx_folder(partial / MODEL, weight_type)
            tokenizer, settings, relevance = self.tokenizer, self.settings, self.scores_relevance
            task = choose_task(
                spec,
                read_json(partial / MODEL / CONFIG)["model_type"],
                embeds=settings.pooling is not None,
                has_chat_template=settings.chat_template is not None,
            )
            mask_id = tokenizer.mask_id
            prefix = settings.task_options(settings.task or "translation").get("prefix", "")
            write_page(
                partial,
                task=task,
                weight_type=weight_type,
                name=Path(folder).resolve().name,
                mask_token=None if mask_id is None else tokenizer.tokens[mask_id],
                mask_id=mask_id,
                sep_id=tokenizer.sep_id,
                prefix_ids=list(tokenizer.prefix_ids),
                prefix=str(prefix),
                context_length=self.context_length,
                labels="multi-label" if relevance else settings.label_kind,
                pairs=relevance or settings.reads_pairs is True,
                no_answer_threshold=settings.task_options("qa").get("no_answer_threshold"),
            )
        return Path(folder)

    def _write_onnx_folder(self, folder: Path, weight_type: ONNXWeightType) -> TransformerSpec:
        """Write the files of `save_onnx` to an empty folder. Returns the spec of the model."""
        module = write_folder(
            folder,
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
            folder, module, weight_type, pooling=pooling, normalize=self.settings.normalizes
        )
        write_json(folder / CONFIG, {**read_json(folder / CONFIG), **options})
        if self.settings.chat_template is not None:  # transformers.js does not read its own file
            template = {"chat_template": self.settings.chat_template}
            file = folder / TOKENIZER_OPTIONS
            write_json(file, {**read_json(file), **template})
        return module.spec

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
                    "alone with `save_adapter` or `save_gguf_adapter`."
                )
        if self.module.device.type == "meta":
            raise SpecError('this model has no weights: load it on another device than "meta".')
