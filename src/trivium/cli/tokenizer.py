"""`trivium tokenizer`: train one, encode, decode.

Examples:

  trivium tokenizer train my_texts/ --kind wordpiece --vocab-size 8192 --out tokenizer.json

  trivium tokenizer train a.txt b.txt.zst --kind byte-bpe --vocab-size 32000 --out t/

  trivium tokenizer train train.txt --kind wordpiece --vocab-size 30522 --out tokenizer.json \\
  --special-tokens "[PAD] [UNK] [CLS] [SEP] [MASK] <S> <T>"

  trivium tokenizer encode -t tokenizer.json "The weather was cloudy."

  cat lines.txt | trivium tokenizer encode -t tokenizer.json --json

  trivium tokenizer decode -t tokenizer.json 2 1996 4633 3

  trivium tokenizer encode -t t/ --ids "Hello" | trivium tokenizer decode -t t/

"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.cli import described
from trivium.cli._shared import read_texts, show
from trivium.data.documents import ReadOptions, read_documents
from trivium.data.sources import check_libraries
from trivium.errors import TokenizerError, shorten
from trivium.messages import translated
from trivium.text import Tokenizer

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Train a tokenizer and use it.",
)

_SOURCE_TOKENIZER = "source_tokenizer.json"

TokenizerOption = Annotated[
    Path,
    typer.Option(
        "--tokenizer",
        "-t",
        help="A file or folder; of a run with two vocabularies the one of targets.",
    ),
]
SourceOption = Annotated[
    bool, typer.Option(help="Of a run with two vocabularies the tokenizer of sources.")
]


@app.command()
@described
@opt.with_options(ReadOptions)
def train(
    paths: Annotated[list[str], typer.Argument()],
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(Tokenizer.kinds)}.")],
    out: Annotated[Path, typer.Option()],
    vocab_size: Annotated[int | None, typer.Option(min=1, show_default="8192")] = None,
    special_tokens: Annotated[str | None, typer.Option(show_default="those of the kind")] = None,
    lowercase: Annotated[bool | None, typer.Option("--lowercase/--cased")] = None,
    normalize: Annotated[bool | None, typer.Option("--normalize/--no-normalize")] = None,
    min_frequency: Annotated[int | None, typer.Option(min=1)] = None,
    character_coverage: Annotated[float | None, typer.Option(max=1, callback=opt.above(0))] = None,
    sample_bytes: Annotated[int | None, typer.Option(min=1)] = None,
    **reading: Any,
) -> None:
    """Train a tokenizer on text.

    Args:
        paths: Files, folders, globs, hf:NAME or - (stdin).
        out: A tokenizer.json, or a folder for transformers.
        vocab_size: Tokens, special ones included.
        special_tokens: Separated by spaces.
        lowercase: wordpiece: remove capitals and accents.
        normalize: bpe, unigram, wordpiece: Unicode normalization (on unless turned off).
        min_frequency: How often a pair or word must occur.
        character_coverage: Share of the text's characters that get tokens.
        sample_bytes: Train on a sample of at most this many bytes.
    """
    check_libraries(paths)
    Tokenizer.config_of(kind)  # an error before the text is read
    typer.echo(translated("tokenizer.training", kind=kind), err=True)
    tokenizer = Tokenizer.train(
        kind,
        texts=(document.text for document in read_documents(paths, ReadOptions(**reading))),
        vocab_size=vocab_size,
        special_tokens=None if special_tokens is None else special_tokens.split(),
        lowercase=lowercase,
        normalize=normalize,
        min_frequency=min_frequency,
        character_coverage=character_coverage,
        sample_bytes=sample_bytes,
        progress=lambda line: typer.echo(line, err=True),
    )
    path = tokenizer.save(out)
    size = tokenizer.vocab_size
    typer.echo(translated("tokenizer.written", path=path, kind=tokenizer.kind, size=size))


@app.command()
@described
def encode(
    tokenizer: TokenizerOption,
    texts: opt.Texts = None,
    pair: str | None = None,
    special_tokens: Annotated[bool, typer.Option("--special-tokens/--no-special-tokens")] = True,
    ids: bool = False,
    symbols: opt.Symbols = False,
    source: SourceOption = False,
    as_json: opt.Json = False,
) -> None:
    """Text to tokens and ids.

    Args:
        pair: A second text, encoded with each.
        special_tokens: Add special tokens.
        ids: Print the ids only.
    """
    loaded = _load(tokenizer, source=source)
    for text in read_texts(texts, keep_blank=True):
        encoding = loaded.encode(text, pair, add_special_tokens=special_tokens)
        record: dict[str, Any] = {"text": text, **encoding.to_dict(symbols=symbols)}
        lines = [encoding.ids] if ids else [record["tokens"], encoding.ids]
        shown = "\n".join(" ".join(map(str, line)) for line in lines)
        show(record, shown, as_json=as_json)


@app.command()
@described
def decode(
    tokenizer: TokenizerOption,
    ids: Annotated[list[str] | None, typer.Argument()] = None,
    keep_special: bool = False,
    source: SourceOption = False,
    as_json: opt.Json = False,
) -> None:
    """Ids to text.

    Args:
        ids: Token ids. Default: the lines of stdin.
        keep_special: Keep special tokens in the text.
    """
    loaded = _load(tokenizer, source=source)
    for line in [" ".join(ids)] if ids else read_texts(None):
        numbers = _numbers(line)
        beyond = [number for number in numbers if not 0 <= number < loaded.vocab_size]
        if beyond:
            raise TokenizerError(
                f"id {beyond[0]}: this tokenizer has ids 0 to {loaded.vocab_size - 1}."
            )
        text = loaded.decode(numbers, skip_special_tokens=not keep_special)
        show({"ids": numbers, "text": text}, text, as_json=as_json)


def _load(path: Path, *, source: bool) -> Tokenizer:
    """The tokenizer of a file or folder, or that of sources in a folder with two."""
    if source:
        path = path / _SOURCE_TOKENIZER
        if not path.is_file():
            raise TokenizerError(
                f"there is no {path}: --source is for the folder of a model with two vocabularies "
                "(model.separate_vocabularies), leave it out."
            )
    return Tokenizer.load(path)


def _numbers(line: str) -> list[int]:
    words = line.replace(",", " ").replace("[", " ").replace("]", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise TokenizerError(f"token ids are whole numbers, not {shorten(line)!r}.") from None
