"""`ModelBundle`: what a model can do by its parts, its options, and saving it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from trivium.adapt.lora import LoRALinear
from trivium.errors import SpecError, TokenizerError
from trivium.inference.beam import BeamSearchOptions, BeamSearchParams
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams, options_of_config
from trivium.inference.text_model import TextModel, prompt_ids
from trivium.interop.hf_folder import write_folder
from trivium.interop.settings import MAX_TARGET
from trivium.model_folder import new_model_folder, write_model
from trivium.nn.packed_linear import Int8Linear, PackedLinear
from trivium.text.chat_template import ChatTemplate, Message

_FITTING = {
    "logits": "a model with a head",
    "generate": "a decoder or an encoder-decoder",
    "translate": "an encoder-decoder",
    "fill_mask": "an encoder with its mlm head, T5 or BART",
    "score": "a decoder, or an encoder with its mlm head",
    "embed": "an encoder or a decoder",
}
"""Capability -> the models that have it without fine-tuning."""

TASK_OF_CAPABILITY = {"classify": "classification", "tag": "tagging", "answer": "qa"}
"""Capability -> the task whose fine-tuning adds it."""


class ModelBundle(TextModel):
    """What follows from a model's parts, and saving them.

    `LanguageModel` adds everything that the model can do.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.spec.family}, {', '.join(self.capabilities)}>"

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The methods that this model supports, by its family and heads."""
        heads, family = {head.kind for head in self.spec.heads}, self.spec.family
        encodes, decodes = family != "decoder-only", family != "encoder-only"
        both = encodes and decodes
        generates = "lm" in heads and decodes
        fills = "mlm" in heads and not decodes
        tokenizer = self._source_tokenizer or self.tokenizer
        gaps = tokenizer is not None and bool(
            tokenizer.mask_id is not None or tokenizer.sentinel_ids
        )
        supported = {
            "logits": bool(heads),
            "generate": generates,
            "translate": generates and both,
            "fill_mask": fills or (generates and both and gaps),
            "score": fills or (generates and not both),
            "classify": "classifier" in heads or self.generates_labels,
            "tag": "tagger" in heads and not both,
            "answer": "span" in heads,
            "embed": not both and self.spec.d_model > 0,
        }
        return tuple(name for name, able in supported.items() if able)

    @property
    def generates_labels(self) -> bool:
        """Whether an encoder-decoder classifies by the likelihood of its labels' names."""
        heads = {head.kind for head in self.spec.heads}
        fine_tuned = bool(self.settings.task_options("classification") and self.settings.labels)
        both = self.spec.family == "encoder-decoder"
        return fine_tuned and both and "lm" in heads and "classifier" not in heads

    @property
    def reads_documents(self) -> bool:
        """Whether `classify` and `embed` add the tokens that begin and end documents.

        A decoder reads them only where it was fine-tuned so (classification).
        """
        return self.settings.task == "classification" or self.spec.family != "decoder-only"

    def conversation_ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation up to where the assistant's next message begins.

        Raises TokenizerError: the model has no chat template, or it refuses the messages.
        """
        if self.settings.chat_template is None:
            raise TokenizerError(
                "this model has no chat template: `trivium finetune chat` adds one. Without, "
                "`trivium generate` continues a text."
            )
        template = ChatTemplate.of(self.settings.chat_template, self.text_tokenizer)
        return prompt_ids(self, template.render(messages, add_generation_prompt=True))

    def warn_of_lengths(self, requests: Iterable[GenerationRequest]) -> None:
        """Warn of texts that positions ended, or that are longer than what was trained."""
        start, trained = len(self.generation_rules.decoder_start), self.trained_length
        for note in dict.fromkeys(one.length_note(start, trained) for one in requests):
            if note:
                warnings.warn(note, stacklevel=3)

    def sampling_params(
        self, prompt_ids: Sequence[int], options: Mapping[str, Any], **defaults: Any
    ) -> SamplingParams:
        """Options of one prompt; those that are not set are the model's, else `defaults`."""
        length = len(self.generation_rules.decoder_start or prompt_ids)
        settings = options_of_config(self.settings.generation, SamplingParams, length)
        return SamplingParams(**{**defaults, **settings, **options})

    def target_limit(self, source: Sequence[int]) -> int:
        """Tokens of the target of a source at most: the model's own limit, or by its length."""
        default = min(2 * len(source) + 16, MAX_TARGET)
        return self.sampling_params(source, {}, max_new_tokens=default).max_new_tokens

    def beam_params(self, **options: Unpack[BeamSearchOptions]) -> BeamSearchParams:
        """Beam search; options that are not set are the model's, or 4 beams."""
        length = len(self.generation_rules.decoder_start)
        settings = options_of_config(self.settings.generation, BeamSearchParams, length)
        return BeamSearchParams(**{**settings, **options})

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write weights, spec, tokenizers and settings to a folder that `load` reads.

        The folder takes its name only when it is complete.

        Args:
            folder: a new or empty folder.
            overwrite: replace a model that is there; a run or other files are never replaced.

        Raises:
            SpecError: a model that is packed, quantised or without weights, or has a LoRA adapter.
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

        A decoder with a task head loses its head over the vocabulary, with a warning: no class of
        `transformers` has both.

        Args:
            folder: a new or empty folder.
            overwrite: replace a model that is there; a run or other files are never replaced.
            max_shard_bytes: size of a weight file beyond which another one begins.

        Raises:
            SpecError: no Hugging Face family can express this model, or as `save`.
            CheckpointError: the folder is in use, or cannot be written.
        """
        self._check_savable()
        if self._source_tokenizer is not None:
            raise SpecError(
                "a model with a source tokenizer of its own cannot be exported: a Hugging Face "
                "folder has one tokenizer.json. Train one without model.separate_vocabularies."
            )
        with new_model_folder(folder, overwrite=overwrite) as partial:
            write_folder(
                partial,
                self.module,
                self.tokenizer,
                self.settings,
                max_shard_bytes=max_shard_bytes,
            )
        return Path(folder)

    def _check_savable(self) -> None:
        for module in self.module.modules():
            if isinstance(module, PackedLinear | Int8Linear):
                raise SpecError(
                    "a packed or quantised model cannot be saved: load it without pack and "
                    "quantize first."
                )
            if isinstance(module, LoRALinear):
                raise SpecError("this model has a LoRA adapter: merge it first (merge_lora).")
        if self.module.device.type == "meta":
            raise SpecError('this model has no weights: load it on another device than "meta".')

    def _label_names(self, count: int) -> tuple[str, ...]:
        """The names of labels; without settings those of `transformers`."""
        names = self.settings.labels
        return names if len(names) == count else tuple(f"LABEL_{n}" for n in range(count))

    def require(self, capability: str) -> None:
        """Raise SpecError where the model lacks a capability; names are those of the commands."""
        if capability in self.capabilities:
            return
        task = TASK_OF_CAPABILITY.get(capability)
        advice = f"`trivium finetune {task}` adds it." if task else f"Take {_FITTING[capability]}."
        if capability == "classify" and any(head.kind == "nsp" for head in self.spec.heads):
            advice += ' Whether a text follows another says `lm.logits(..., head="nsp")`.'
        raise SpecError(
            f"this model cannot {capability.replace('_', '-')}: it is {self.spec.family}. {advice}"
        )


def warn_of_cuts(cut: int, total: int, limit: int | None) -> None:
    """Warn of texts whose ends are not read."""
    if cut:
        warnings.warn(
            f"{cut} of {total} texts are longer than the {limit} tokens that this model reads: "
            "their ends are cut.",
            stacklevel=4,
        )
