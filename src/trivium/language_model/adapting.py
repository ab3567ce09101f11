"""Adapt a language model: add new tokens; add an adapter, merge it and save it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from trivium.adapt.adapter import Adapter, with_adapter
from trivium.adapt.lora import merged_state
from trivium.adapt.new_tokens import extend_vocabulary
from trivium.errors import CheckpointError, SpecError
from trivium.inference.text_model import TextModel
from trivium.interop.peft_format import save_read_adapter, write_adapter_settings
from trivium.interop.peft_reader import read_adapter
from trivium.interop.settings import Settings
from trivium.interop.tokenizer_files import read_tokenizer
from trivium.models import build
from trivium.remote_model import find_model


class AdapterMixin(TextModel):
    """The methods that add tokens, and that add, merge and save an adapter in PEFT's format."""

    def with_new_tokens(
        self, tokens: Iterable[str] = (), *, special_tokens: Iterable[str] = ()
    ) -> Self:
        """Return a copy of this model and its tokenizer with additional tokens.

        The embedding of a new token is the mean of the embeddings of the tokens into which its text
        was split before. The rows of untied heads are initialized in the same way.
        `Tokenizer.extend` describes how the new tokens are found in a text. Training with
        `tokenizer.extend` starts from such a model. The copy shares all weights that do not differ.

        Args:
            tokens: words or symbols.
            special_tokens: control tokens, which decoding leaves out.

        Raises:
            TokenizerError: a token exists already, or the model has no tokenizer.
            SpecError: the model is packed, quantised or has an adapter, has two tokenizers, or has
                no parameters with a row per token.
        """
        if self._source_tokenizer is not None:
            raise SpecError("tokens cannot be added to a model with a source tokenizer of its own.")
        old, other = self.text_tokenizer, copy.copy(self)
        assert self.tokenizer is not None
        other.tokenizer = self.tokenizer.extend(tokens, special_tokens=special_tokens)
        other.module = extend_vocabulary(self.module, old.split_new_tokens(other.tokenizer))
        other.spec = other.module.spec
        return other

    def with_adapter(self, folder: str | os.PathLike[str], *, name: str | None = None) -> Self:
        """Return a copy of this model with an adapter. Weights that do not differ are shared.

        A tokenizer, a chat template and settings in the folder replace those of the base. An
        adapter that was trained with a task head for a model without this head (`task_type` is
        SEQ_CLS, TOKEN_CLS or QUESTION_ANS) replaces the heads.

        Args:
            folder: a folder with `adapter_config.json` and `adapter_model.safetensors`, or a name
                on the Hugging Face hub.
            name: the name of the adapter; None uses the name of the folder.

        Raises:
            CheckpointError: the adapter cannot be read, is not supported, or does not fit the
                model.
            SpecError: the model has an adapter already.
        """
        if self.adapter is not None:
            raise SpecError(
                f"this model has the adapter {self.adapter.name!r} already: add the other to its "
                "base, or to `merge_adapter()` of it."
            )
        path, model_type = find_model(folder), self.settings.config.get("model_type")
        name = name or Path(folder).resolve().name
        adapter = read_adapter(path, self.module, model_type=model_type, name=name)
        return self.with_read_adapter(adapter, path)

    def with_read_adapter(self, adapter: Adapter, path: Path) -> Self:
        """Return a copy of this model with an adapter that was read from the folder `path`.

        The settings and the tokenizer in the folder are read. Otherwise as `with_adapter`.
        """
        other = copy.copy(self)
        other.module, other.spec, other.adapter = (
            with_adapter(self.module, adapter),
            adapter.spec,
            adapter,
        )
        own = Settings.read(path)
        if own.config:  # of an adapter that was saved by this library
            other.settings = replace(other.settings, config=own.config, generation=own.generation)
        if own.chat_template is not None:
            other.settings = replace(other.settings, chat_template=own.chat_template)
        for_encoder = adapter.spec.family != "decoder-only"
        tokenizer = read_tokenizer(path, own.tokenizer, for_encoder=for_encoder)
        if tokenizer is not None and self._source_tokenizer is None:
            other.tokenizer = tokenizer
            other.settings = replace(other.settings, tokenizer=own.tokenizer)
        return other

    def merge_adapter(self) -> Self:
        """Return a copy of this model with the adapter merged into its weights.

        The merged model is as fast as the base, and can be saved and exported. A model without an
        adapter is returned unchanged.

        Raises:
            SpecError: the weights of the base are packed or quantised.
        """
        if self.adapter is None:
            return self
        other = copy.copy(self)
        other.module = build(self.spec, device="meta")
        other.module.load_state_dict(merged_state(self.module), assign=True)
        other.module.eval()
        other.adapter = None
        return other

    def save_adapter(self, folder: str | os.PathLike[str]) -> Path:
        """Write the adapter in PEFT's format, which `peft`, `load` and `with_adapter` read.

        Labels, task, generation options and chat template are written alongside.

        Args:
            folder: a new or empty folder.

        Raises:
            SpecError: the model has no adapter, or PEFT cannot represent it.
            CheckpointError: the folder is in use.
        """
        path = Path(folder)
        if self.adapter is None:
            raise SpecError("this model has no adapter: load one, or add one with `with_adapter`.")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CheckpointError(f"{path} is in use: choose a new or empty folder.")
        save_read_adapter(
            path, self.module, self.adapter, model_type=self.settings.config.get("model_type")
        )
        write_adapter_settings(path, self.settings)
        return path
