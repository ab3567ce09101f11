"""Longformer attention: local attention with a few global tokens.

Shape letters: B batch, T positions, G columns with global tokens, D width, N heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.attend import attention_probabilities
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import Attention, AttentionModule, Prepared
from trivium.nn.patterns import Pattern
from trivium.nn.sequence_info import SequenceInfo


class GlobalAttention(Attention):
    """Attention with a pattern, such as a sliding window, and global tokens (Longformer).

    Global tokens attend to all tokens and are visible to all tokens. Attention from global tokens
    uses separate projections (Beltagy et al. 2020, section 3.1). The task selects the global tokens
    (`Head.global_tokens`).
    """

    supports_decoder: ClassVar[bool] = False
    has_global_tokens: ClassVar[bool] = True
    kind: Literal["global-attention"] = "global-attention"  # type: ignore[assignment]
    pattern: SerializeAsAny[Pattern]  # type: ignore[reportGeneralTypeIssues]

    def check(self) -> None:
        """Raise SpecError for position encodings inside attention."""
        super().check()
        if self.positions:
            raise SpecError(
                f'global-attention has no positions of its own, such as "{self.positions.kind}": '
                "give the model absolute ones (embedding.positions)."
            )

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        They are those of `Attention.activation_numel`, plus the keys and values that global tokens
        attend to.
        """
        own = 2 * self.kv_heads * self.head_dim
        return super().activation_numel(length, item=item, on_cpu=on_cpu, dropout=dropout) + own

    def build(self, d_model: int, **options: Any) -> GlobalAttentionModule:
        """See `Mixer.build`."""
        return GlobalAttentionModule(self, d_model, **options)


@dataclass(frozen=True)
class GlobalSequenceInfo(SequenceInfo):
    """`SequenceInfo` with the global tokens of each row.

    Args:
        global_tokens: bool [B, T], True for global tokens; None: no global tokens.
    """

    global_tokens: Tensor | None = None


@dataclass(frozen=True)
class GlobalTokens:
    """The global tokens of a batch, as columns: indices in the row, used for all rows.

    Args:
        columns: int64 [G], the columns in which at least one row has a global token.
        is_global: bool [B, 1, G, 1], True where the row's token in the column is global.
        mask: the attention mask between the tokens in `columns` as queries and all keys. The
            attention pattern is not part of the mask.
    """

    columns: Tensor
    is_global: Tensor
    mask: Mask


@dataclass(frozen=True)
class PreparedGlobal(Prepared):
    """`Prepared` for local attention, with the global tokens of the batch.

    Args:
        global_tokens: the global tokens; None: the batch has no global tokens.
    """

    global_tokens: GlobalTokens | None = None


class GlobalAttentionModule(AttentionModule):
    """Local tokens attend within the pattern and to global tokens; global tokens attend to all.

    Attention from global tokens has its own query, key and value projections (`query_global`,
    `key_global` and `value_global`), which are initialized as copies of the local ones.

    Source: Beltagy et al. 2020, section 3.1.
    """

    parallel: ClassVar[Mapping[str, str]] = {
        **AttentionModule.parallel,
        "query_global": "column",
        "key_global": "column",
        "value_global": "column",
    }

    def __init__(self, part: GlobalAttention, width: int, **options: Any) -> None:
        super().__init__(part, width, **options)
        self.query_global = nn.Linear(width, self.query.out_features, bias=part.bias)
        self.key_global = nn.Linear(width, self.key.out_features, bias=part.has_key_bias)
        self.value_global = nn.Linear(width, self.value.out_features, bias=part.bias)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the global attention projections as copies of the local ones."""
        self.query_global.load_state_dict(self.query.state_dict())
        self.key_global.load_state_dict(self.key.state_dict())
        self.value_global.load_state_dict(self.value.state_dict())

    def prepare_for_keys(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> Prepared:
        """Return the attention mask of local attention, and the global tokens with their own mask.

        See `AttentionModule.prepare_for_keys`.
        """
        chosen, local = self.exempt_keys(sequence), super().prepare_for_keys(sequence, keys, table)
        if chosen is None or not len(columns := chosen.any(0).nonzero()[:, 0]):
            return PreparedGlobal(local.mask)
        global_tokens = GlobalTokens(
            columns, chosen[:, None, columns, None], Mask(sequence.subset(columns), keys)
        )
        return PreparedGlobal(local.mask, global_tokens=global_tokens)

    def exempt_keys(self, sequence: SequenceInfo) -> Tensor | None:
        """Return which tokens are global, bool [B, T]: they are exempt from the attention pattern.

        None: no global tokens. See `AttentionModule.exempt_keys`.
        """
        return sequence.global_tokens if isinstance(sequence, GlobalSequenceInfo) else None

    def head_outputs(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> Tensor:
        """Return the head outputs of local attention, or of global attention for global tokens.

        Shape: [B, T, D] -> [B, N, T, H]. See `AttentionModule.head_outputs`.
        """
        mixed = super().head_outputs(x, sequence, state, prepared)
        assert isinstance(prepared, PreparedGlobal)
        if (global_tokens := prepared.global_tokens) is None:
            return mixed
        query, key, value = self._compute_global_qkv(x, global_tokens.columns)
        return _merge_global(
            mixed, self.attend_heads(query, key, value, global_tokens.mask), global_tokens
        )

    def probabilities(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """Return the probabilities of local attention, or of global attention for global tokens.

        Shape: [B, T, D] -> [B, N, T, T]. See `AttentionModule.probabilities`.
        """
        prepared = prepared or self.prepare(sequence, state)
        weights = super().probabilities(x, sequence, state, prepared)
        assert isinstance(prepared, PreparedGlobal)
        if (global_tokens := prepared.global_tokens) is None:
            return weights
        query, key, _ = self._compute_global_qkv(x, global_tokens.columns)
        global_rows = attention_probabilities(
            query.float(), key.float(), global_tokens.mask, self.scale, soft_cap=self.soft_cap
        )
        return _merge_global(weights, global_rows, global_tokens)

    def _compute_global_qkv(self, x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of global attention.

        Queries [B, N, G, H] are computed for the tokens at the indices `columns` of each row. Keys
        and values [B, K, T, H] are computed for all tokens.
        """
        query = self.split_and_norm(self.query_norm, self.query_global(x[:, columns]))
        key = self.split_and_norm(self.key_norm, self.key_global(x))
        return query.to(key.dtype), key, self._split_heads(self.value_global(x))


def _merge_global(local: Tensor, global_rows: Tensor, global_tokens: GlobalTokens) -> Tensor:
    """Return `local` with the entries of global tokens replaced by those of `global_rows`.

    Args:
        local: [B, N, T, ...], the result of local attention for all tokens.
        global_rows: [B, N, G, ...], the result of global attention for `global_tokens.columns`.
        global_tokens: the global tokens of the batch.
    """
    columns = global_tokens.columns
    rows = torch.where(global_tokens.is_global, global_rows.to(local.dtype), local[:, :, columns])
    return local.index_copy(2, columns, rows)
