"""`LanguageModel`: a description, weights and a tokenizer, ready to be asked."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.errors import CheckpointError, SpecError, TokenizerError, TriviumError
from trivium.inference import (
    Sampling,
    TextStream,
    end_ids,
    fill_masks,
    generate_ids,
    prompt_ids,
    score_causal,
    score_masked,
)
from trivium.inference.fill_mask import document_ids
from trivium.inference.saved import TOKENIZER, model_folder, read_spec, read_weights, save_model
from trivium.interop.folder import is_hugging_face, read_folder, write_folder
from trivium.interop.hub import find_folder
from trivium.interop.settings import Settings
from trivium.interop.tokenizer import read_tokenizer
from trivium.interop.weights import LARGEST_SHARD
from trivium.models import LanguageModule, build
from trivium.nn.positions import check_length
from trivium.spec import AnySpec, ModelSpec
from trivium.text import Tokenizer

Numbers = Tensor | npt.NDArray[np.integer] | Sequence[Sequence[int]]

_KINDS = {
    "encoder-only": "an encoder",
    "decoder-only": "a decoder",
    "encoder-decoder": "an encoder with a decoder",
}


class GenerateOptions(TypedDict, total=False):
    """How `LanguageModel.generate` and `stream` write; they say what each means."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int | None


class LanguageModel:
    """A model one can ask: fill a mask, continue a text, score one, or give logits.

    Args:
        spec: the description of `module`.
        module: the weights; put into evaluation mode (no dropout).
        tokenizer: None allowed; what needs text then says that it is missing.
        settings: how it generates, what its labels are called: kept, saved and exported.

    Raises:
        SpecError: the tokenizer has more ids than the model.
    """

    def __init__(
        self,
        spec: AnySpec,
        module: LanguageModule,
        tokenizer: Tokenizer | None = None,
        settings: Settings | None = None,
    ) -> None:
        if tokenizer is not None and tokenizer.vocab_size > spec.vocab_size:
            raise SpecError(
                f"the tokenizer has {tokenizer.vocab_size} ids, but the model only "
                f"{spec.vocab_size}: they do not belong together."
            )
        self.spec, self.module, self.tokenizer = spec, module.eval(), tokenizer
        self.settings = settings or Settings()

    @property
    def verbs(self) -> tuple[str, ...]:
        """What this model can do, by its family and heads."""
        heads, family = {head.kind for head in self.spec.heads}, self.spec.family
        writes = "lm" in heads and family != "encoder-only"
        fills = "mlm" in heads and family == "encoder-only"
        can = {
            "logits": bool(heads),
            "generate": writes,
            "fill_mask": fills,
            "score": fills or (writes and family == "decoder-only"),
        }
        return tuple(verb for verb, able in can.items() if able)

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
            mask = self._integers("attention_mask", attention_mask, like=ids)
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
                mask = self._integers(
                    "decoder_attention_mask", decoder_attention_mask, like=decoded
                )
            inputs |= {"decoder_input_ids": decoded, "decoder_attention_mask": mask}
        hidden = self.module(ids, **inputs)
        return self.module.logits(hidden, head=head, attention_mask=mask).float()

    def fill_mask(self, text: str, top_k: int = 5) -> list[Any]:
        """The most probable fills of the mask in a text, best first.

        Returns:
            A list of `Fill(sequence, token, score)`; for a text with several masks one such list
            for each, where every mask is filled alone.

        Raises:
            TriviumError: no mask in the text, a text longer than the model's positions, or a model
                that fills no masks.
        """
        self._require("fill_mask")
        found = fill_masks(self.module, self._text_needs_tokenizer(), text, top_k=top_k)
        return found[0] if len(found) == 1 else found

    @overload
    def generate(self, prompt: str, **options: Unpack[GenerateOptions]) -> str: ...
    @overload
    def generate(
        self, prompt: list[str] | tuple[str, ...], **options: Unpack[GenerateOptions]
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str] | tuple[str, ...],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
    ) -> str | list[str]:
        """The text that follows a prompt: prompt + result reads on. Several prompts: a list.

        An encoder-decoder reads the prompt and answers with a text of its own. A text ends at the
        end of text, after `max_new_tokens`, or where the model's positions end.

        Args:
            prompt: one text or several, which are continued together, each as if alone.
            max_new_tokens: tokens to add at most.
            temperature: 0 is greedy; below 1 is safer, above 1 more surprising.
            top_k: only the k most probable tokens.
            top_p: only the fewest tokens whose probabilities add up to p.
            min_p: only tokens at least this share as probable as the most probable one.
            repetition_penalty: above 1, tokens of the text so far become less probable.
            seed: the same seed gives the same text; prompt i of several has seed + i.

        Raises:
            TriviumError: a prompt longer than the model's positions, a setting outside its range,
                or a model that does not continue texts.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        texts = self._continue(prompts, max_new_tokens, sampling, seed)
        return texts[0] if isinstance(prompt, str) else texts

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
    ) -> Iterator[str]:
        """The text of `generate` in pieces, while it comes; the pieces joined are the same text.

        A character is given only when it is whole.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        self._require("generate")
        tokenizer = self._text_needs_tokenizer()
        ids = self._read(tokenizer, prompt)
        steps = self._generate([ids], max_new_tokens, sampling, [_seed(seed)])
        return _stream(tokenizer, self._context(ids), (index for (index,) in steps))

    def score(self, text: str) -> float:
        """Log-probability of a text in nats.

        A decoder gives the sum of log p(token | those before it); an encoder the
        pseudo-log-likelihood, the sum of log p(token | all others) (Salazar et al. 2020).
        """
        self._require("score")
        tokenizer = self._text_needs_tokenizer()
        if self.spec.family == "decoder-only":
            return score_causal(self.module, tokenizer, text)
        return score_masked(self.module, tokenizer, text)

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
        path = save_model(Path(folder), self.spec, self.module, self.tokenizer)
        self.settings.write(path)
        return path

    def save_hf(
        self, folder: str | os.PathLike[str], *, largest_shard: int = LARGEST_SHARD
    ) -> Path:
        """Write a Hugging Face folder, which `transformers` and `load` read.

        All of it is written aside and renamed.

        Args:
            folder: not one with a model of ours.
            largest_shard: bytes of a weight file beyond which the next one begins.

        Raises:
            SpecError: no family of theirs is built like this model.
            CheckpointError: the folder cannot be written.
        """
        path = Path(folder)
        write_folder(path, self.module, self.tokenizer, self.settings, largest_shard=largest_shard)
        return path

    def _read(self, tokenizer: Tokenizer, prompt: str) -> list[int]:
        """The ids of what an encoder reads, or of what a decoder continues."""
        translates = self.spec.family == "encoder-decoder"
        return (document_ids if translates else prompt_ids)(tokenizer, prompt)

    def _context(self, ids: list[int]) -> list[int]:
        """The ids before an answer that decide how it is joined: none for an encoder's text."""
        return [] if self.spec.family == "encoder-decoder" else ids

    def _decoder_start(self, tokenizer: Tokenizer) -> tuple[int, ...]:
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

    def _continue(
        self, prompts: list[str], max_new_tokens: int, sampling: Sampling, seed: int | None
    ) -> list[str]:
        self._require("generate")
        tokenizer = self._text_needs_tokenizer()
        rows = [self._read(tokenizer, prompt) for prompt in prompts]
        for row in rows:
            check_length(len(row), self.spec.max_length)
        start, limit = _seed(seed), self.spec.max_length
        seeds = [start + i for i in range(len(rows))]
        together = [range(len(rows))]
        longest = max((len(self._context(row)) for row in rows), default=0)
        if limit is not None and longest + max_new_tokens > limit:
            # Padded rows would reach the last position too early.
            together = [range(i, i + 1) for i in range(len(rows))]
        texts = []
        for group in together:
            new: list[list[int]] = [[] for _ in group]
            chosen, keys = [rows[i] for i in group], [seeds[i] for i in group]
            for step in self._generate(chosen, max_new_tokens, sampling, keys):
                for ids, index in zip(new, step):
                    ids.extend([] if index is None else [index])
            for row, ids in zip(chosen, new):
                texts.append("".join(_stream(tokenizer, self._context(row), ids)))
        return texts

    def _generate(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        sampling: Sampling,
        seeds: list[int],
    ) -> Iterator[list[int | None]]:
        tokenizer = self._text_needs_tokenizer()
        return generate_ids(
            self.module,
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop_ids=end_ids(tokenizer) | self.settings.stop_ids,
            vocab_size=tokenizer.vocab_size,
            seeds=seeds,
            decoder_start=self._decoder_start(tokenizer),
            banned_ids=self.settings.banned_ids,
        )

    def _require(self, verb: str) -> None:
        if verb in self.verbs:
            return
        if not self.verbs:
            raise SpecError(f"this model has no head, which {verb} needs.")
        heads = [head.kind for head in self.spec.heads]
        vocabulary = {"lm", "mlm"} & {*heads}
        about = "" if vocabulary else f" with no head over the vocabulary (but: {', '.join(heads)})"
        raise SpecError(
            f"this model is {_KINDS[self.spec.family]}{about} and cannot {verb}; "
            f"it has {', '.join(self.verbs)}."
        )

    def _text_needs_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(
                f"this model was loaded without a tokenizer, which text needs: put a {TOKENIZER} "
                "into its folder, or use `logits` with ids."
            )
        return self.tokenizer

    def _ids(self, name: str, values: Numbers, limit: int) -> Tensor:
        found = self._integers(name, values)
        check_length(found.shape[1], self.spec.max_length)
        _check_range(name, found, limit)
        return found

    def _token_types(self, values: Numbers, ids: Tensor) -> Tensor:
        count = self.spec.embedding.num_token_types if isinstance(self.spec, ModelSpec) else 0
        if not count:
            raise SpecError("this model has no token types: leave token_type_ids out.")
        found = self._integers("token_type_ids", values, like=ids)
        _check_range("token_type_ids", found, count)
        return found

    def _integers(self, name: str, values: Numbers, *, like: Tensor | None = None) -> Tensor:
        try:
            found = torch.as_tensor(np.asarray(values) if isinstance(values, list) else values)
        except (TypeError, ValueError, RuntimeError):
            raise SpecError(f"{name} must be whole numbers in rows of equal length.") from None
        if found.is_floating_point() or found.is_complex():
            raise SpecError(f"{name} must be whole numbers, not {found.dtype}.")
        if found.ndim != 2 or not found.numel():
            raise SpecError(f"{name} must be [B, T] and not empty, not {list(found.shape)}.")
        if like is not None and found.shape != like.shape:
            ids = "decoder_input_ids" if name.startswith("decoder") else "input_ids"
            raise SpecError(
                f"{name} is {list(found.shape)}, but {ids} is {list(like.shape)}: "
                "give one number for each token."
            )
        return found.to(self.module.device, torch.int64)


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | None = None,
    lowercase: bool | None = None,
) -> LanguageModel:
    """A model from a run, a checkpoint, a folder that was saved, or from Hugging Face.

    A run that has not finished gives its last good checkpoint. What is no folder here is looked
    for on the Hugging Face hub, or in what was fetched from there before.

    Args:
        path: a folder of ours or of `transformers`, or a name on the hub such as "org/name".
        device: "auto" is a GPU where there is one, else the CPU.
        dtype: precision of the weights; None: as stored.
        lowercase: for a `vocab.txt` of theirs that does not say whether it is lower-cased.

    Raises:
        CheckpointError: no model there, a damaged one, one that is not supported, or weights that
            do not match its description.
    """
    found = _load(find_folder(path), lowercase)
    found.module.to(device=_device(device), dtype=dtype)
    return found


def _load(folder: Path, lowercase: bool | None) -> LanguageModel:
    if is_hugging_face(folder):
        theirs = read_folder(folder, lowercase=lowercase)
        return LanguageModel(theirs.module.spec, theirs.module, theirs.tokenizer, theirs.settings)
    folder = model_folder(folder)
    spec, settings = read_spec(folder), Settings.read(folder)
    module = build(spec, device="meta")
    module.load_state_dict(read_weights(folder, module), assign=True)
    return LanguageModel(spec, module, read_tokenizer(folder, settings.tokenizer), settings)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TriviumError(f"device {str(device)!r} cannot be used: {reason}") from None


def _check_range(name: str, values: Tensor, limit: int) -> None:
    if int(values.min()) < 0 or int(values.max()) >= limit:
        wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
        raise SpecError(f"{name} has {wrong}, but this model takes 0 to {limit - 1}.")


def _seed(seed: int | None) -> int:
    return secrets.randbits(31) if seed is None else seed


def _stream(tokenizer: Tokenizer, prompt: list[int], ids: Iterable[int | None]) -> Iterator[str]:
    text = TextStream(tokenizer, prompt)
    for index in ids:
        piece = "" if index is None else text.push(index)
        if piece:
            yield piece
    rest = text.finish()
    if rest:
        yield rest
