"""Wrapper for a user-defined causal language model that only returns logits.

Shape letters: B batch, T positions, M selected positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.models.base_model import Spec, refuse
from trivium.models.heads.vocabulary import LMHead
from trivium.nn.loss import cross_entropy
from trivium.nn.sequence_info import check_length, gather
from trivium.nn.state import Cache, append_tokens, build_token_cache


class LogitsSpec(Spec):
    """The spec of a `LogitsModel`: vocabulary size and maximum length, but no architecture."""

    supports_task_heads: ClassVar[bool] = False
    kind: None = None
    d_model: Any = 0  # it shows no hidden states
    end: int | None = None
    heads: Any = (LMHead(tied=False),)

    @property
    def max_length(self) -> int | None:
        """The maximum input length in tokens; None if it is unlimited."""
        return self.end

    def to_dict(self) -> dict[str, Any]:
        """Raise SpecError, because a user-defined module cannot be rebuilt from a spec."""
        raise SpecError(
            "a module of one's own cannot be saved or exported: nothing describes how to build it "
            "again. Keep its state_dict()."
        )


class LogitsModel(nn.Module):
    """Wrapper for inference with any causal module that maps ids [B, T] to logits [B, T, V].

    The logits take the place of hidden states. Rows may only be padded on the right, where a
    causal module does not see the padding.

    Raises:
        SpecError: the module does not return logits of this shape.
    """

    def __init__(self, module: nn.Module, *, max_length: int | None = None) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            logits = module(torch.zeros(1, 1, dtype=torch.int64, device=self.device))
        if not isinstance(logits, Tensor) or logits.shape[:-1] != (1, 1):
            what = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise SpecError(f"a model turns ids [1, 1] into logits [1, 1, V]; this gave {what}.")
        self.spec = LogitsSpec(vocab_size=logits.shape[-1], end=max_length)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters(), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.parameters(), torch.empty(0)).dtype

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """Return an empty cache of token ids (see `LanguageModule.new_cache`).

        The module has no KV cache, so that every step recomputes the whole sequence.
        """
        return build_token_cache(slots, slot_length, self.device)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        gather_positions: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
        **others: Tensor | None,
    ) -> Tensor:
        """Return logits [B, T, V], or [M, V] with `gather_positions`.

        Arguments are as in `Transformer.read`.

        Raises:
            SpecError: a row is left-padded, or an input is not supported.
        """
        refuse("a model of one's own takes no", **others)
        mask = attention_mask
        if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
            raise SpecError("a model of one's own takes padding on the right only.")
        if cache is None:
            check_length(input_ids.shape[1], self.spec.max_length)
            logits = self.module(input_ids)
        else:
            texts, columns = append_tokens(cache, input_ids, slots, lengths)
            row = torch.arange(len(texts), device=columns.device)[:, None]
            logits = self.module(texts)[row, columns.clamp(max=texts.shape[1] - 1)]
        return gather(logits, gather_positions)

    def read(self, *inputs: Any, **options: Any) -> tuple[Tensor, None]:
        """Return the logits of `forward` and None, because there is no auxiliary loss."""
        return self(*inputs, **options), None

    def logits(
        self, hidden: Tensor, head: str | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return `hidden`, which is already logits. Raises SpecError for any head except "lm"."""
        if head not in (None, "lm"):
            raise SpecError(f'this model has no head of kind "{head}"; it has: lm.')
        return hidden

    def lm_loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the summed cross-entropy in nats of `targets` [M] for logits [M, V]."""
        return cross_entropy(hidden, targets, smoothing=smoothing).sum
