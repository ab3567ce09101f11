"""Speculative decoding: draft tokens that the model verifies in one forward pass.

A draft token is accepted only if the model, sampling with the same random number as without drafts,
samples the same token. Therefore, drafts do not change the text. For deterministic drafts, the
acceptance rate is the same as with the acceptance rule of Leviathan et al. 2023 (appendix A.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Protocol

import numpy as np
import torch

from trivium.errors import SpecError
from trivium.inference.decode_step import CUDAGraph, DecodeStep, captures_decoding
from trivium.inference.forward import Ids, prefill
from trivium.inference.sampling_params import check_bounds
from trivium.models import LanguageModule


class Draft(Protocol):
    """A source of draft tokens for speculative decoding, at most `num_tokens` per decode step."""

    num_tokens: int

    def start(self, slots: int, slot_length: int) -> None:
        """Prepare for an engine with `slots` cache slots of `slot_length` tokens each."""
        ...

    def propose(self, texts: Mapping[int, Ids], limits: Mapping[int, int]) -> dict[int, list[int]]:
        """Return the draft tokens of each slot, which are expected to follow the text in the slot.

        Args:
            texts: slot -> the tokens of the prompt and all generated tokens.
            limits: slot -> the maximum number of draft tokens.
        """
        ...


class PromptLookup:
    """Prompt lookup (Saxena 2023), a source of draft tokens for speculative decoding.

    The drafts are the tokens that followed the text's last n-gram at its previous occurrence. This
    costs almost nothing and helps if texts repeat themselves: summaries, edits, code.

    >>> PromptLookup(num_tokens=2).propose({0: [5, 6, 7, 8, 5, 6]}, {0: 2})
    {0: [7, 8]}

    Args:
        num_tokens: the maximum number of draft tokens per step.
        ngram: the length of the n-gram that is looked up first. If it did not occur before, shorter
            n-grams are looked up, down to one token.
    """

    def __init__(self, num_tokens: int = 8, ngram: int = 3) -> None:
        check_bounds("num_tokens", num_tokens, {"ge": 1})
        check_bounds("ngram", ngram, {"ge": 1})
        self.num_tokens, self.ngram = num_tokens, ngram

    def start(self, slots: int, slot_length: int) -> None:
        """Do nothing, because prompt lookup keeps no state between decode steps."""

    def propose(self, texts: Mapping[int, Ids], limits: Mapping[int, int]) -> dict[int, list[int]]:
        """Return the tokens that followed the last n-gram of each text; see `Draft.propose`."""
        return {slot: self._lookup_ngram(ids, limits[slot]) for slot, ids in texts.items()}

    def _lookup_ngram(self, ids: Ids, limit: int) -> list[int]:
        """Return up to `limit` tokens that follow the previous occurrence of the last n-gram.

        Returns [] if the last token did not occur before.
        """
        tokens = np.asarray(ids)
        for size in range(min(self.ngram, len(ids) - 1), 0, -1):
            ngrams = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)
            (starts,) = (ngrams == tokens[-size:]).all(1).nonzero()
            if len(starts):
                start = starts[-1] + size
                return tokens[start : start + limit].tolist()
        return []


class DraftModel:
    """A source of draft tokens: a smaller decoder with the same vocabulary generates them greedily.

    Args:
        module: a decoder in evaluation mode.
        num_tokens: the maximum number of draft tokens per step.

    Raises:
        SpecError: the module is not a decoder. The method `start` raises it if the module's cache
            cannot be rolled back by `num_tokens`.
    """

    def __init__(self, module: LanguageModule, num_tokens: int = 4) -> None:
        check_bounds("num_tokens", num_tokens, {"ge": 1})
        if module.spec.family != "decoder-only":
            raise SpecError("a draft model must be a decoder.")
        self.module, self.num_tokens = module, num_tokens

    def start(self, slots: int, slot_length: int) -> None:
        """Create the cache of the draft model; see `Draft.start`."""
        limit = self.module.spec.max_length
        self._slot_length = slot_length if limit is None else min(limit, slot_length)
        self._cache = self.module.new_cache(slots, self._slot_length)
        if self._cache.max_crop < self.num_tokens:
            raise SpecError(
                f"the cache of a draft model must roll back {self.num_tokens} tokens, but the "
                f"cache of this model can roll back {self._cache.max_crop}."
            )
        self._cached: list[list[int]] = [[] for _ in range(slots)]
        self._extend_texts = DecodeStep(
            self.module,
            self._cache,
            capture=CUDAGraph if captures_decoding(self.module) else None,
            max_width=1 + self.num_tokens,
        )

    @torch.inference_mode()
    def propose(self, texts: Mapping[int, Ids], limits: Mapping[int, int]) -> dict[int, list[int]]:
        """Return the greedy continuation of each text, except of texts longer than a slot.

        See `Draft.propose`.
        """
        drafts: dict[int, list[int]] = {slot: [] for slot in texts}
        new = {
            slot: self._sync_cache(slot, ids)
            for slot, ids in texts.items()
            if len(ids) <= self._slot_length
        }
        while new:
            for slot, token_id in self._predict_next(new).items():
                drafts[slot].append(token_id)
            new = {
                slot: drafts[slot][-1:]
                for slot in new
                if len(drafts[slot]) < limits[slot] and len(self._cached[slot]) < self._slot_length
            }
        return {slot: ids[: limits[slot]] for slot, ids in drafts.items()}

    def _sync_cache(self, slot: int, ids: Ids) -> list[int]:
        """Crop the cache of a slot to the tokens that agree with the start of the text `ids`.

        Returns the rest of the text, which the draft model has to read. It contains at least the
        last token, because its hidden state is needed.
        """
        cached = self._cached[slot]
        equal = (a == b for a, b in zip(cached, ids[:-1]))
        length = sum(1 for _ in takewhile(bool, equal))
        if len(cached) - length > self.num_tokens:  # another text
            self._cache.free(slot)
            length = 0
        elif length < len(cached):
            self._cache.crop(*torch.tensor([[slot], [length]], device=self.module.device))
        self._cached[slot] = [*ids[:length]]
        return [*ids[length:]]

    def _predict_next(self, new: Mapping[int, Ids]) -> dict[int, int]:
        """Append the tokens `new` to their slots. Returns each slot's most probable next token."""
        slots, texts = list(new), list(new.values())
        if max(map(len, texts)) <= 1 + self.num_tokens:
            longest = max(len(self._cached[slot]) + len(ids) for slot, ids in new.items())
            hidden = self._extend_texts(new, longest)
            hidden = hidden[slots, [len(ids) - 1 for ids in texts]]
        else:
            hidden = prefill(self.module, self._cache, slots, texts)
        for slot, ids in new.items():
            self._cached[slot].extend(ids)
        return dict(zip(new, self.module.logits(hidden).argmax(-1).tolist(), strict=True))
