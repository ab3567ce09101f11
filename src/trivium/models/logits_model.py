"""A causal language model of one's own, of which only its logits are known.

Shape letters: B batch, T positions, M selected positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.models.base_model import Spec, refuse
from trivium.models.heads.vocabulary import LMHead
from trivium.nn.context import check_length
from trivium.nn.loss import cross_entropy
from trivium.nn.state import Cache, append_tokens, token_cache


class LogitsSpec(Spec):
    """What is known of a model of one's own; how it is built is not."""

    takes_heads: ClassVar[bool] = False
    kind: None = None
    d_model: Any = 0  # it shows no hidden states
    end: int | None = None
    heads: Any = (LMHead(tied=False),)

    @property
    def max_length(self) -> int | None:
        """See `Spec.max_length`."""
        return self.end

    def to_dict(self) -> dict[str, Any]:
        """Raise SpecError: there is no description to save."""
        raise SpecError(
            "a module of one's own cannot be saved or exported: nothing describes how to build it "
            "again. Keep its state_dict()."
        )


class LogitsModel(nn.Module):
    """Any causal module that turns ids [B, T] into logits [B, T, V], as inference uses models.

    The logits take the place of hidden states. Texts are padded on the right, where causality
    hides it.

    Raises:
        SpecError: the module gives something else.
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
        """Where the weights are."""
        return next(self.parameters(), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return next(self.parameters(), torch.empty(0)).dtype

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """See `LanguageModule.new_cache`. The tokens themselves are kept."""
        return token_cache(slots, slot_length, self.device)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        select: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
        **others: Tensor | None,
    ) -> Tensor:
        """Logits [B, T, V], or [M, V] with `select`; arguments are as in `Transformer.read`.

        Raises:
            SpecError: padding on the left, or inputs that the module does not take.
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
        return logits if select is None else logits.flatten(0, 1).index_select(0, select)

    def read(self, *inputs: Any, **options: Any) -> tuple[Tensor, None]:
        """See `LanguageModule.read`: what `forward` gives, and no loss of layers."""
        return self(*inputs, **options), None

    def logits(
        self, hidden: Tensor, head: str | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """The logits that `forward` gave. Raises SpecError for another head than "lm"."""
        if head not in (None, "lm"):
            raise SpecError(f'this model has no head of kind "{head}"; it has: lm.')
        return hidden

    def lm_loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Cross-entropy in nats of `targets` [M] from logits [M, V], summed."""
        return cross_entropy(hidden, targets, smoothing=smoothing).sum
