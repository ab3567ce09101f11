"""What every question to a model needs: description, weights, tokenizer, settings."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from trivium.errors import CheckpointError, SpecError, TokenizerError
from trivium.inference.saved import TOKENIZER, save_model
from trivium.interop.folder import is_hugging_face, write_folder
from trivium.interop.settings import Settings
from trivium.interop.weights import LARGEST_SHARD
from trivium.language_model.exported import with_one_head
from trivium.language_model.numbers import Numbers, check_range, whole_numbers
from trivium.models import LanguageModule
from trivium.nn.positions import check_length
from trivium.spec import AnySpec, ModelSpec
from trivium.text import Tokenizer

_KINDS = {
    "encoder-only": "an encoder",
    "decoder-only": "a decoder",
    "encoder-decoder": "an encoder with a decoder",
}

# Verb -> the task by which a model learns it.
_TAUGHT = {"classify": "classification", "tag": "tagging", "answer": "qa"}


class Core:
    """A model with its tokenizer: what it can do, its logits, and how it is saved."""

    def __init__(
        self,
        spec: AnySpec,
        module: LanguageModule,
        tokenizer: Tokenizer | None = None,
        settings: Settings | None = None,
        *,
        own_source_tokenizer: Tokenizer | None = None,
    ) -> None:
        _check_fits(tokenizer, spec.vocab_size)
        if own_source_tokenizer is not None:
            sources = spec.source_vocab_size if isinstance(spec, ModelSpec) else None
            _check_fits(own_source_tokenizer, sources or spec.vocab_size)
        self.spec, self.module, self.tokenizer = spec, module.eval(), tokenizer
        self.own_source_tokenizer = own_source_tokenizer
        self.settings = settings or Settings()

    @property
    def verbs(self) -> tuple[str, ...]:
        """What this model can do, by its family and heads."""
        heads, family = {head.kind for head in self.spec.heads}, self.spec.family
        both = family == "encoder-decoder"
        writes = "lm" in heads and family != "encoder-only"
        fills = "mlm" in heads and family == "encoder-only"
        told = self.tokenizer
        gaps = told is not None and (told.mask_id is not None or bool(told.sentinel_ids))
        can = {
            "logits": bool(heads),
            "generate": writes,
            "translate": writes and both,
            "fill_mask": fills or (writes and both and gaps),
            "score": fills or (writes and not both),
            "classify": "classifier" in heads or self.writes_labels,
            "tag": "tagger" in heads and not both,
            "answer": "span" in heads,
            "embed": not both,
        }
        return tuple(verb for verb, able in can.items() if able)

    @property
    def writes_labels(self) -> bool:
        """Whether an encoder-decoder was taught to classify by writing the name of the class."""
        heads = {head.kind for head in self.spec.heads}
        taught = bool(self.settings.task_options("classification")) and bool(self.settings.labels)
        both = self.spec.family == "encoder-decoder"
        return taught and both and "lm" in heads and "classifier" not in heads

    @torch.inference_mode()
    def logits(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        token_type_ids: Numbers | None = None,
        decoder_input_ids: Numbers | None = None,
        *,
        decoder_attention_mask: Numbers | None = None,
        head: str | None = None,
    ) -> Tensor:
        """Float32 logits of every position: int64 [B, T] -> [B, T, V], V that of the spec.

        Heads that are not over the vocabulary give their own shape: [B, L] for a text's labels,
        [B, T, L] for those of every position. An encoder-decoder answers at the T positions of
        `decoder_input_ids`.

        Args:
            input_ids: tensor, array or list of lists.
            attention_mask: [B, T], nonzero where a token is real.
            token_type_ids: [B, T], sentence A (0) or B (1).
            decoder_input_ids: [B, T], what the decoder of an encoder-decoder reads.
            decoder_attention_mask: [B, T], as `attention_mask` for the decoder.
            head: the kind of head; None: that over the vocabulary, or else the first there is.

        Raises:
            SpecError: a shape that is not [B, T], an id outside the vocabulary, a row longer than
                the model's positions, or decoder ids missing or given to a model without both.
        """
        self._require("logits")
        source = self.spec.source_vocab_size if isinstance(self.spec, ModelSpec) else None
        ids = self._ids("input_ids", input_ids, source or self.spec.vocab_size)
        mask, types = None, None
        if attention_mask is not None:
            mask = whole_numbers("attention_mask", attention_mask, ids.device, like=ids)
        if token_type_ids is not None:
            types = self._token_types(token_type_ids, ids)
        inputs = {"attention_mask": mask, "token_type_ids": types}
        if (decoder_input_ids is not None) != (self.spec.family == "encoder-decoder"):
            have = "needs" if decoder_input_ids is None else "takes no"
            raise SpecError(
                f"this model is {_KINDS[self.spec.family]} and {have} decoder_input_ids."
            )
        if decoder_input_ids is not None:
            decoded = self._ids("decoder_input_ids", decoder_input_ids, self.spec.vocab_size)
            mask = None
            if decoder_attention_mask is not None:
                mask = whole_numbers(
                    "decoder_attention_mask", decoder_attention_mask, ids.device, like=decoded
                )
            inputs |= {"decoder_input_ids": decoded, "decoder_attention_mask": mask}
        hidden = self.module(ids, **inputs)
        return self.module.logits(hidden, head=head, attention_mask=mask).float()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write model, description, tokenizer and settings to a folder that `load` reads.

        Each file is written aside and renamed.

        Raises:
            CheckpointError: the folder cannot be written, or holds a Hugging Face model; what was
                there stays.
        """
        if is_hugging_face(Path(folder)):
            raise CheckpointError(
                f"{folder}: holds a Hugging Face model, which this would spoil: give another "
                "folder."
            )
        path = save_model(
            Path(folder), self.spec, self.module, self.tokenizer, self.own_source_tokenizer
        )
        self.settings.write(path)
        return path

    def save_hf(
        self, folder: str | os.PathLike[str], *, largest_shard: int = LARGEST_SHARD
    ) -> Path:
        """Write a Hugging Face folder, which `transformers` and `load` read.

        A decoder that was taught a task leaves its head over the vocabulary behind, with a warning.
        All of it is written aside and renamed.

        Args:
            folder: not one with a model of ours.
            largest_shard: bytes of a weight file beyond which the next one begins.

        Raises:
            SpecError: no family of theirs is built like this model.
            CheckpointError: the folder cannot be written.
        """
        if self.own_source_tokenizer is not None:
            raise SpecError(
                "a model whose sources and targets have tokenizers of their own cannot be "
                "exported: no tokenizer.json of theirs holds two. Train one with a joint tokenizer."
            )
        path = Path(folder)
        module = with_one_head(self.module)
        write_folder(path, module, self.tokenizer, self.settings, largest_shard=largest_shard)
        return path

    def decoder_start(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """What an encoder-decoder's answers begin with; nothing for other models."""
        if self.spec.family != "encoder-decoder":
            return ()
        found = (tokenizer.bos_id, tokenizer.pad_id)
        start = self.settings.decoder_start or tuple(i for i in found if i is not None)[:1]
        if not start:
            raise TokenizerError(
                "nothing says what this decoder begins with: neither decoder_start_token_id in "
                "generation_config.json, nor a token for the beginning of a text or for padding."
            )
        return start

    def _require(self, verb: str) -> None:
        if verb in self.verbs:
            return
        heads = [head.kind for head in self.spec.heads]
        taught = f" `trivium finetune {_TAUGHT[verb]}` teaches it." if verb in _TAUGHT else ""
        if not heads and verb != "embed":
            raise SpecError(f"this model has no head, which {verb} needs.{taught}")
        vocabulary = verb == "embed" or {"lm", "mlm"} & {*heads}
        about = "" if vocabulary else f" with no head over the vocabulary (but: {', '.join(heads)})"
        has = f"; it has {', '.join(self.verbs)}" if self.verbs else ""
        raise SpecError(
            f"this model is {_KINDS[self.spec.family]}{about} and cannot {verb}{has}.{taught}"
        )

    @property
    def source_tokenizer(self) -> Tokenizer:
        """What an encoder's texts are read with: the tokenizer, unless sources have their own."""
        return self.own_source_tokenizer or self.text_tokenizer

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises TokenizerError where the model came without one."""
        if self.tokenizer is None:
            raise TokenizerError(
                f"this model was loaded without a tokenizer, which text needs: put a {TOKENIZER} "
                "into its folder, or use `logits` with ids."
            )
        return self.tokenizer

    def _ids(self, name: str, values: Numbers, limit: int) -> Tensor:
        found = whole_numbers(name, values, self.module.device)
        check_length(found.shape[1], self.spec.max_length)
        check_range(name, found, limit)
        return found

    def _token_types(self, values: Numbers, ids: Tensor) -> Tensor:
        count = self.module.num_token_types
        if not count:
            raise SpecError("this model has no token types: leave token_type_ids out.")
        found = whole_numbers("token_type_ids", values, self.module.device, like=ids)
        check_range("token_type_ids", found, count)
        return found


def _check_fits(tokenizer: Tokenizer | None, vocab_size: int) -> None:
    if tokenizer is not None and tokenizer.vocab_size > vocab_size:
        raise SpecError(
            f"the tokenizer has {tokenizer.vocab_size} ids, but the model only {vocab_size}: they "
            "do not belong together."
        )
