"""The data of a run: the keys of `[data]` and `[[mix]]`, and existing tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, SerializeAsAny

from trivium.config import Config
from trivium.files import check_encoding
from trivium.objectives import Objective
from trivium.text.literals import SpecialTokens
from trivium.text.trainers import TokenizerSource


def as_list(value: Any) -> Any:
    """Wrap a string in a list. Any other value is returned unchanged."""
    return [value] if isinstance(value, str) else value


PathList = Annotated[tuple[str, ...], BeforeValidator(as_list)]
"""A tuple of paths. A single path may be given as a string."""


class TokenizerFile(TokenizerSource):
    """An existing tokenizer, loaded from a file instead of trained for the run."""

    kind: Literal["file"] = "file"
    path: str = Field(description="tokenizer.json, or a folder that contains one")


def _read_tokens(value: Any) -> Any:
    """Read a list of tokens from a text file if the value is a path; return other values unchanged.

    Raises ValueError if the file cannot be read.
    """
    if not isinstance(value, str):
        return value
    try:
        lines = Path(value).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"give a list of tokens, or a text file with one token per line: {error}"
        ) from None
    return [line for line in lines if line]


class ExtendedTokenizer(TokenizerSource):
    """The tokenizer of the base model, extended with new tokens."""

    kind: Literal["extended"] = "extended"
    extend: Annotated[tuple[str, ...], BeforeValidator(_read_tokens)] = Field(
        (),
        description="new tokens for the model to start from: a list, or a file with one per line",
    )
    extend_special: Annotated[tuple[str, ...], BeforeValidator(_read_tokens)] = Field(
        (), description="new special tokens, in the same form"
    )


class DataConfig(Config):
    """The data sources, validation split, and how text is packed into rows (`[data]`)."""

    paths: PathList = Field((), description='files, folders, globs, "hf:NAME" or shards')
    validation: Annotated[float | tuple[str, ...], BeforeValidator(as_list)] = Field(
        0.1, description="held-out fraction of the documents or examples, or paths"
    )
    length: PositiveInt | None = Field(
        None,
        description="text: tokens per row (default: 128); labelled examples: maximum tokens, the "
        "rest is truncated (default: the model's positions, at most 4,096, or 512 if longer texts "
        "are read in windows)",
    )
    packing: Literal["pack", "truncate"] = Field(
        "pack",
        description="concatenate documents and split them into rows, or one row per document",
    )
    separate_documents: bool = Field(
        False, description="packed documents do not attend to each other"
    )
    separator: str = Field(
        "blank",
        description='separator of documents in plain text: "blank", "line", "file", or a string',
    )
    text_field: str = Field("text", description="column of a record that contains the text")
    encoding: Annotated[str, AfterValidator(check_encoding)] = Field(
        "utf-8", description="encoding of text files, such as gb18030 or utf-16"
    )
    errors: Literal["strict", "replace"] = Field("strict", description="handling of invalid bytes")
    bad_records: Literal["stop", "skip"] = Field(
        "stop",
        description="labelled examples that cannot be read: stop with an error, or count and skip",
    )
    cache: bool = Field(
        True,
        description="keep labelled examples in ~/.cache/trivium for other runs with the same data, "
        "instead of in the run folder",
    )
    keep_duplicates: bool = Field(False, description="keep exact duplicates of documents")
    special_tokens: SpecialTokens = Field(
        "text",
        description='how names of special tokens in the data, such as [SEP], are read: "text" or '
        '"special" (the control token)',
    )
    keep_text: bool = Field(
        False, description="also write train.txt and validation.txt to texts/ in the run folder"
    )
    temperature: float = Field(
        1.0, gt=0, description="default weight of a source in [[mix]]: rows ** (1 / temperature)"
    )


class MixConfig(Config):
    """One of several data sources: its data, its objective and its sampling weight.

    Every step draws its whole batch from one source, chosen at random. The probability of a source
    is proportional to its weight. For example, a BART that trains on text in three quarters of the
    steps, and on labelled pairs in the others:

    ```toml
    [model]
    preset = "bart-mini"

    [[mix]]
    name = "text"
    paths = ["corpus/"]
    weight = 3.0
    objective = { kind = "denoising" }

    [[mix]]
    name = "pairs"
    paths = ["pairs.tsv"]
    weight = 1.0
    objective = { kind = "translation" }
    ```

    Metrics are named after the source: `train_text`, `valid_pairs`, `valid_pairs/bleu`.

    If any source is labelled, the whole run uses the defaults of fine-tuning: half the learning
    rate of pretraining (if trained from scratch), a linear schedule with a warm-up of a tenth of
    the run, the dropout of the task, and a budget in epochs. If most of the run is pretraining, set
    `optimizer.lr`, `[schedule]`, `model.dropout` and the budget.
    """

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="name in metrics and shards"
    )
    paths: PathList = Field(min_length=1, description="as in [data]")
    validation: Annotated[float | tuple[str, ...] | None, BeforeValidator(as_list)] = Field(
        None, description="as in [data] (default: the value of [data])"
    )
    weight: float | None = Field(
        None, gt=0, description="sampling weight relative to other sources (default: by rows)"
    )
    objective: SerializeAsAny[Objective] = Field(
        description="how the model learns from this source"
    )
