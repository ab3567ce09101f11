"""Linformer: attention of linear complexity to low-rank projections of keys and values.

Shape letters: B batch, T positions, R rank, D width, N heads, H head_dim.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.mixers import Mixer, ProjectingMixer
from trivium.nn.part import Count, PartModule
from trivium.nn.sequence_info import SequenceInfo


class Linformer(Mixer):
    """Linformer attention: a row's keys and values are projected to `rank` keys and values.

    The projection matrices are E for keys and F for values. `shared` is the paper's parameter
    sharing. With "headwise" all heads of a layer share E and F. With "key-value" each layer has one
    matrix E = F. With "layerwise" all layers share one matrix E = F. Rows have at most `max_length`
    tokens.

    Source: Wang et al. 2020.
    """

    supports_decoder: ClassVar[bool] = False
    supports_packing: ClassVar[bool] = False
    kind: Literal["linformer"] = "linformer"
    num_heads: Count
    head_dim: Count
    rank: Count
    max_length: Count
    shared: Literal["headwise", "key-value", "layerwise"] = "layerwise"

    def check(self) -> None:
        """Raise SpecError if `rank` is greater than `max_length`."""
        if self.rank > self.max_length:
            raise SpecError(
                f"rank={self.rank} is more than max_length={self.max_length}: attention to all "
                "positions is the same and costs less; give a lower rank."
            )

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token, forward and backward, of E, F and attention.

        They are 24 N H R: half for projecting keys and values with E and F, and half for attention.
        See `Mixer.flops`.
        """
        return 24.0 * self.rank * self.num_heads * self.head_dim

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        They are the queries, keys, values, outputs and attention probabilities, which count three
        times with dropout. The projected keys and values exist once per row, so their number is
        divided by the number of tokens in the row.
        """
        scores = self.num_heads * self.rank * (3 if dropout else 1)
        heads = self.num_heads * self.head_dim
        return 4 * heads + scores + 2 * self.rank * heads // length

    def build(self, d_model: int, **options: Any) -> LinformerModule:
        """See `Mixer.build`."""
        return LinformerModule(self, d_model, **options)


class Projection(PartModule):
    """The projection matrix of keys (E) or of values (F): [R, max_length].

    The entries are initialized from N(0, 1 / R), the distribution in the paper's proof. Source:
    Wang et al. 2020, theorem 2.
    """

    def __init__(self, part: Linformer) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(part.rank, part.max_length))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the projection matrix from a normal distribution with variance 1 / R."""
        self.weight.normal_(0.0, len(self.weight) ** -0.5, generator=generator)


class LinformerModule(ProjectingMixer):
    """head_n = softmax(Q_n (E K_n)^T / sqrt(H)) (F V_n).

    The projection matrices E and F, [R, max_length], map the T keys and values of a row to R keys
    and values. A row of T < max_length tokens uses the first T columns of E and F. Keys and values
    of padding are set to 0, so right padding does not change the result.

    Source: Wang et al. 2020, equation 7. In this module all heads of a layer share E and F.
    """

    def __init__(self, part: Linformer, width: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(part, width)
        self.dropout = dropout
        if part.shared != "layerwise":
            self.project_key = Projection(part)
        if part.shared == "headwise":
            self.project_value = Projection(part)

    def new_table(self) -> nn.Module | None:
        """Return the projection matrix E if all layers share it, otherwise None.

        All layers share E if `shared` is "layerwise".
        """
        return Projection(self.part) if self.part.shared == "layerwise" else None

    def prepare(
        self, sequence: SequenceInfo, state: Any = None, table: nn.Module | None = None
    ) -> Tensor | None:
        """Return the projection matrix E [R, max_length] if all layers share it, otherwise None.

        See `MixerModule.prepare`. Raises SpecError for mask conditions other than padding, and if
        `table` is missing although the layers share E.
        """
        self.check_mask_conditions(sequence, supported={"padding"})
        if self.part.shared != "layerwise":
            return None
        if table is None:
            raise SpecError('linformer shared "layerwise" needs the table of its stack.')
        return table.get_parameter("weight")

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Tensor | None = None
    ) -> Tensor:
        """Return the attention output: [B, T, D] -> [B, T, D].

        Raises SpecError if a row has more than `max_length` tokens.
        """
        length = x.shape[1]
        if length > self.part.max_length:
            raise SpecError(
                f"a row has {length} tokens, and linformer max_length={self.part.max_length}: "
                "give shorter rows."
            )
        shared = self.prepare(sequence) if prepared is None else prepared
        of_keys = self.project_key.weight if shared is None else shared
        of_values = self.project_value.weight if self.part.shared == "headwise" else of_keys
        key, value = self.key(x), self.value(x)
        if sequence.is_token is not None:
            is_token = sequence.is_token.bool()[..., None]
            key, value = key.where(is_token, 0.0), value.where(is_token, 0.0)
        key = of_keys[:, :length].to(key.dtype) @ key  # [B, R, N * H]
        value = of_values[:, :length].to(value.dtype) @ value
        query, key, value = self.split_heads(self.query(x), key, value)
        dropout = self.dropout if self.training else 0.0
        weights = torch.softmax(query @ key.mT * self.part.head_dim**-0.5, -1)
        mixed = F.dropout(weights, dropout) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))
