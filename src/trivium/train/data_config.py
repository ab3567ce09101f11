"""What a run reads: the keys of `[data]` and `[[mix]]`, and a tokenizer that exists."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, SerializeAsAny

from trivium.config import Config
from trivium.files import check_encoding
from trivium.objectives import Objective
from trivium.text.literals import SpecialTokens
from trivium.text.trainers import TokenizerSource


def as_list(value: Any) -> Any:
    """A list of a single string; anything else as it is."""
    return [value] if isinstance(value, str) else value


PathList = Annotated[tuple[str, ...], BeforeValidator(as_list)]
"""Paths; one may be written as a string."""


class TokenizerFile(TokenizerSource):
    """A tokenizer that exists."""

    kind: Literal["file"] = "file"
    path: str = Field(description="tokenizer.json, or a folder that has one")


class DataConfig(Config):
    """The sources of text or labelled examples, and how they are split into rows."""

    paths: PathList = Field((), description='files, folders, globs, "hf:NAME" or shards')
    validation: Annotated[float | tuple[str, ...], BeforeValidator(as_list)] = Field(
        0.1, description="held-out fraction of the documents or examples, or paths"
    )
    length: PositiveInt | None = Field(
        None,
        description="of text: tokens of a row, 128 unless set; of labelled examples: most tokens "
        "that are read, the rest is cut; unless set the positions of the model, 4,096 at most, or "
        "512 where longer texts are read in windows",
    )
    packing: Literal["pack", "truncate"] = Field(
        "pack", description="join documents and cut rows, or one row per document"
    )
    separate_documents: bool = Field(
        False, description="packed documents do not attend to each other"
    )
    separator: str = Field(
        "blank", description='between documents of plain text: "blank", "line", "file", or a string'
    )
    text_field: str = Field("text", description="column of a record that is its text")
    encoding: Annotated[str, AfterValidator(check_encoding)] = Field(
        "utf-8", description="of text files, such as gb18030 or utf-16"
    )
    errors: Literal["strict", "replace"] = Field("strict", description="on invalid bytes")
    bad_records: Literal["stop", "skip"] = Field(
        "stop",
        description="labelled examples that cannot be read: an error, or counted and left out",
    )
    keep_duplicates: bool = Field(False, description="keep exact repeats of documents")
    special_tokens: SpecialTokens = Field(
        "text",
        description='what the name of a special token in the data is, such as [SEP]: "text" or '
        '"special", the control token',
    )
    keep_text: bool = Field(
        False, description="also write train.txt and validation.txt to texts/ in the run's folder"
    )
    temperature: float = Field(
        1.0, gt=0, description="sources of [[mix]] without weights: by rows ** (1 / temperature)"
    )


class MixConfig(Config):
    """One of several sources: its data, its objective, and its share of the steps.

    Every step takes its whole batch from one source, drawn by weight. A BART that learns from text
    in three steps of four, and from labelled pairs in the fourth:

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

    With one labelled source, what the recipe leaves open is as in fine-tuning for all of them: half
    the learning rate of pretraining for new weights, a linear schedule with a warm-up of a tenth,
    the task's dropout, a budget in epochs. Set `optimizer.lr`, `[schedule]`, `model.dropout` and
    the budget where pretraining is the larger part.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="in metrics and shards")
    paths: PathList = Field(min_length=1, description="as in [data]")
    validation: Annotated[float | tuple[str, ...] | None, BeforeValidator(as_list)] = Field(
        None, description="as in [data], whose own is used unless set"
    )
    weight: float | None = Field(
        None, gt=0, description="share of the steps, relative to the others; by rows unless set"
    )
    objective: SerializeAsAny[Objective] = Field(
        description="how the model learns from this source"
    )
