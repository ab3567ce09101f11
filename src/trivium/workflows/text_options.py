"""Options for perplexity, in a separate module that can be imported without torch."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.config import option
from trivium.data.documents import ReadOptions
from trivium.inference.sampling_params import check_options


@dataclass(frozen=True)
class TextOptions(ReadOptions):
    """Options for reading text and computing its perplexity (see `evaluate.perplexity`).

    Raises TriviumError if a number is below its minimum.
    """

    separator: str = option(
        "blank", "perplexity: document separator: blank, line, file, or a string"
    )
    text_field: str = option("text", "perplexity: the column of the text")
    window: int | None = option(
        None, "perplexity: tokens per window (default: the training length)", ge=2
    )
    stride: int | None = option(
        None, "perplexity: tokens from one window to the next (default: half a window)", ge=1
    )
    batch_size: int = option(8, "perplexity: windows per forward pass", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
