"""The options of perplexity, which the command line shows without torch."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.config import option
from trivium.data.documents import ReadOptions
from trivium.inference.sampling_params import check_options


@dataclass(frozen=True)
class TextOptions(ReadOptions):
    """How raw text is read and scored for its perplexity; see `evaluate.perplexity.perplexity`.

    Raises TriviumError for a number below its bound.
    """

    separator: str = option(
        "blank", "perplexity: document separator: blank, line, file, or a string"
    )
    text_field: str = option("text", "perplexity: the column of the text")
    window: int | None = option(
        None, "perplexity: tokens of a window, the training length unless set", ge=2
    )
    stride: int | None = option(
        None, "perplexity: tokens from one window to the next, half a window unless set", ge=1
    )
    batch_size: int = option(8, "perplexity: windows at a time", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
