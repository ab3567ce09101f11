"""What is trained in place of a model's weights: the keys of `[adapter]`."""

from __future__ import annotations

from pydantic import Field

from trivium.adapt import LoRA
from trivium.config import Config


class AdapterConfig(Config):
    """LoRA (Hu et al. 2021): low-rank updates of some matrices in place of full training."""

    rank: int = Field(0, ge=0, description="0 trains the model itself")
    alpha: float = Field(16.0, gt=0, description="the update is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="of the adapters' inputs")
    targets: tuple[str, ...] = Field(
        ("query", "value"),
        description='linear layers by parts of their paths ("decoder.*.value"), or "all-linear"',
    )
    save_separately: bool = Field(False, description="also save the adapter in PEFT's format")

    @property
    def lora(self) -> LoRA:
        """The adapter to add."""
        return LoRA(rank=self.rank, alpha=self.alpha, dropout=self.dropout, targets=self.targets)
