"""`LanguageModel`: a description, weights and a tokenizer, ready to be asked."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError, TriviumError
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
from trivium.inference.saved import TOKENIZER, model_folder, read_spec, read_weights, save_model
from trivium.models import Transformer, build
from trivium.nn.positions import check_length
from trivium.spec import ModelSpec
from trivium.text import Tokenizer

Numbers = Tensor | npt.NDArray[np.integer] | Sequence[Sequence[int]]


class LanguageModel:
    """A model one can ask: fill a mask, continue a text, score one, or give logits.

    Args:
        spec: the description of `module`.
        module: the weights; put into evaluation mode (no dropout).
        tokenizer: None allowed; what needs text then says that it is missing.

    Raises:
        SpecError: the tokenizer has more ids than the model.
    """

    def __init__(
        self, spec: ModelSpec, module: Transformer, tokenizer: Tokenizer | None = None
    ) -> None:
        if tokenizer is not None and tokenizer.vocab_size > spec.vocab_size:
            raise SpecError(
                f"the tokenizer has {tokenizer.vocab_size} ids, but the model only "
                f"{spec.vocab_size}: they do not belong together."
            )
        self.spec, self.module, self.tokenizer = spec, module.eval(), tokenizer

    @property
    def verbs(self) -> tuple[str, ...]:
        """What this model can do, by its family and heads."""
        heads = {head.kind for head in self.spec.heads}
        if self.spec.family == "decoder-only" and "lm" in heads:
            return ("logits", "generate", "score")
        if self.spec.family == "encoder-only" and "mlm" in heads:
            return ("logits", "fill_mask", "score")
        return ()

    @torch.inference_mode()
    def logits(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        token_type_ids: Numbers | None = None,
    ) -> Tensor:
        """Float32 logits of every position: int64 [B, T] -> [B, T, V], V that of the spec.

        Args:
            input_ids: tensor, array or list of lists.
            attention_mask: [B, T], nonzero where a token is real.
            token_type_ids: [B, T], sentence A (0) or B (1).

        Raises:
            SpecError: a shape that is not [B, T], an id outside the vocabulary, or a row longer
                than the model's positions.
        """
        self._require("logits")
        ids = self._integers("input_ids", input_ids)
        check_length(ids.shape[1], self.spec.max_length)
        _check_range("input_ids", ids, self.spec.vocab_size)
        mask, types = None, None
        if attention_mask is not None:
            mask = self._integers("attention_mask", attention_mask, like=ids)
        if token_type_ids is not None:
            types = self._integers("token_type_ids", token_type_ids, like=ids)
            _check_range("token_type_ids", types, self.spec.embedding.num_token_types)
        hidden = self.module(ids, attention_mask=mask, token_type_ids=types)
        return self.module.logits(hidden).float()

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
    def generate(
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
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str] | tuple[str, ...],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
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

        It ends at the end of text, after `max_new_tokens`, or where the model's positions end.

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
        ids = prompt_ids(tokenizer, prompt)
        steps = self._generate([ids], max_new_tokens, sampling, [_seed(seed)])
        return _stream(tokenizer, ids, steps)

    def score(self, text: str) -> float:
        """Log-probability of a text in nats.

        A decoder gives the sum of log p(token | those before it); an encoder the
        pseudo-log-likelihood, the sum of log p(token | all others) (Salazar et al. 2020).
        """
        self._require("score")
        tokenizer = self._text_needs_tokenizer()
        if self.spec.decoder is not None:
            return score_causal(self.module, tokenizer, text)
        return score_masked(self.module, tokenizer, text)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write model, description and tokenizer to a folder that `load` reads.

        Each file is written aside and renamed.

        Raises:
            CheckpointError: the folder cannot be written; what was there stays.
        """
        return save_model(Path(folder), self.spec, self.module, self.tokenizer)

    def _continue(
        self, prompts: list[str], max_new_tokens: int, sampling: Sampling, seed: int | None
    ) -> list[str]:
        self._require("generate")
        tokenizer = self._text_needs_tokenizer()
        rows = [prompt_ids(tokenizer, prompt) for prompt in prompts]
        for row in rows:
            check_length(len(row), self.spec.max_length)
        start, limit = _seed(seed), self.spec.max_length
        seeds = [start + i for i in range(len(rows))]
        together = [range(len(rows))]
        longest = max((len(row) for row in rows), default=0)
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
            for prompt, ids in zip(chosen, new):
                texts.append("".join(_stream(tokenizer, prompt, ([index] for index in ids))))
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
            stop_ids=end_ids(tokenizer),
            vocab_size=tokenizer.vocab_size,
            seeds=seeds,
        )

    def _require(self, verb: str) -> None:
        if verb in self.verbs:
            return
        if not self.verbs:
            raise SpecError(f"this model has no head over the vocabulary, which {verb} needs.")
        kind = "encoder" if self.spec.family == "encoder-only" else "decoder"
        raise SpecError(
            f"this model is {'an' if kind == 'encoder' else 'a'} {kind} and cannot {verb}; "
            f"it has {', '.join(self.verbs)}."
        )

    def _text_needs_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(
                f"this model was loaded without a tokenizer, which text needs: put a {TOKENIZER} "
                "into its folder, or use `logits` with ids."
            )
        return self.tokenizer

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
            raise SpecError(
                f"{name} is {list(found.shape)}, but input_ids is {list(like.shape)}: "
                "give one number for each token."
            )
        return found.to(self.module.device, torch.int64)


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | None = None,
) -> LanguageModel:
    """A model from a run folder, a checkpoint, or a folder that `LanguageModel.save` wrote.

    A run that has not finished gives its last good checkpoint.

    Args:
        path: the folder.
        device: "auto" is a GPU where there is one, else the CPU.
        dtype: precision of the weights; None: as stored.

    Raises:
        CheckpointError: no model there, a damaged one, or weights that do not match the spec.
    """
    folder = model_folder(Path(path))
    spec = read_spec(folder)
    module = build(spec, device="meta")
    module.load_state_dict(read_weights(folder, module), assign=True)
    module = module.to(device=_device(device), dtype=dtype)
    file = folder / TOKENIZER
    return LanguageModel(spec, module, Tokenizer.load(file) if file.is_file() else None)


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


def _stream(
    tokenizer: Tokenizer, prompt: list[int], steps: Iterator[list[int | None]]
) -> Iterator[str]:
    text = TextStream(tokenizer, prompt)
    for (index,) in steps:
        piece = "" if index is None else text.push(index)
        if piece:
            yield piece
    rest = text.finish()
    if rest:
        yield rest
