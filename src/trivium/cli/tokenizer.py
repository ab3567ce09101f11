"""`trivium tokenizer`: train a tokenizer, encode and decode text.

Examples:

  trivium tokenizer train my_texts/ --kind wordpiece --vocab-size 8192 --out tokenizer.json

  trivium tokenizer train a.txt b.txt.zst --kind byte-bpe --vocab-size 32000 --out t/

  trivium tokenizer train train.txt --kind wordpiece --vocab-size 30522 --out pretrained-bert \\
  --max-length 512 --special-tokens "[PAD] [UNK] [CLS] [SEP] [MASK] <S> <T>"

  trivium tokenizer encode -t tokenizer.json "The weather was cloudy."

  cat lines.txt | trivium tokenizer encode -t tokenizer.json --json

  trivium tokenizer decode -t tokenizer.json 2 1996 4633 3

  trivium tokenizer encode -t t/ --ids "Hello" | trivium tokenizer decode -t t/

"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import UsageError, add_parameter_help
from trivium.cli import _options as opt
from trivium.cli._shared import print_result, read_texts
from trivium.data.documents import ReadOptions, read_documents
from trivium.data.sources import check_libraries
from trivium.errors import TokenizerError, shorten
from trivium.files import read_json, write_file, write_json
from trivium.messages import translated
from trivium.text import Tokenizer

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Train a tokenizer, encode and decode text.",
)

_SOURCE_TOKENIZER = "source_tokenizer.json"

TokenizerOption = Annotated[
    Path,
    typer.Option(
        "--tokenizer",
        "-t",
        help="A tokenizer file, or the folder of a model or run. If the model has two "
        "vocabularies, this is the tokenizer of the targets.",
    ),
]
SourceOption = Annotated[
    bool, typer.Option(help="Use the tokenizer of the sources, for a model with two vocabularies.")
]


@app.command()
@add_parameter_help
@opt.with_options(ReadOptions)
def train(
    paths: Annotated[list[str], typer.Argument()],
    kind: Annotated[str, typer.Option(help=f"Kind of tokenizer: {', '.join(Tokenizer.kinds)}.")],
    out: Annotated[Path, typer.Option()],
    vocab_size: Annotated[int | None, typer.Option(min=1, show_default="8192")] = None,
    special_tokens: Annotated[str | None, typer.Option(show_default="depends on the kind")] = None,
    lowercase: Annotated[bool | None, typer.Option("--lowercase/--cased")] = None,
    normalize: Annotated[bool | None, typer.Option("--normalize/--no-normalize")] = None,
    min_frequency: Annotated[int | None, typer.Option(min=1)] = None,
    character_coverage: Annotated[
        float | None, typer.Option(max=1, callback=opt.check_greater_than(0))
    ] = None,
    sample_bytes: Annotated[int | None, typer.Option(min=1)] = None,
    max_length: Annotated[int | None, typer.Option(min=1)] = None,
    **data_options: Any,
) -> None:
    """Train a tokenizer on text.

    Args:
        paths: Training text: files, folders, globs, hf:NAME or - (stdin).
        out: The output: a file tokenizer.json, or a folder that transformers can load (with
            vocab.txt for wordpiece).
        vocab_size: Vocabulary size, including special tokens.
        special_tokens: The special tokens, separated by spaces.
        lowercase: Convert text to lower case and remove accents (wordpiece only).
        normalize: Apply Unicode normalization (bpe, unigram and wordpiece only). Default: on.
        min_frequency: Minimum number of occurrences of a pair or word.
        character_coverage: Fraction of the characters of the text that the vocabulary covers.
        sample_bytes: Train on a random sample of at most this many bytes.
        max_length: The number of tokens at which transformers cuts a text; only for a folder.
    """
    if max_length is not None and out.suffix == ".json" and not out.is_dir():
        raise UsageError(
            f"--max-length is stored in the tokenizer_config.json of a folder, and {out} is a "
            f"file: write --out {out.with_suffix('')} or leave --max-length out."
        )
    check_libraries(paths)
    fields = Tokenizer.get_config_class(kind).model_fields  # raises an error for an unknown kind
    max_bytes = sample_bytes or fields["sample_bytes"].default
    documents = read_documents(paths, ReadOptions(**data_options), max_bytes=max_bytes)
    typer.echo(translated("tokenizer.training", kind=kind), err=True)
    tokenizer = Tokenizer.train(
        kind,
        texts=(document.text for document in documents),
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
    if path != out:  # a folder
        for name, content in tokenizer.other_files.items():
            write_file(path.with_name(name), content)
        if max_length is not None:
            options = path.with_name("tokenizer_config.json")
            write_json(options, {**read_json(options), "model_max_length": max_length})
    size = tokenizer.vocab_size
    typer.echo(translated("tokenizer.written", path=path, kind=tokenizer.kind, size=size))


@app.command()
@add_parameter_help
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
    """Encode texts into tokens and token ids.

    Args:
        pair: A second text, which is encoded together with each text.
        special_tokens: Add special tokens such as [CLS] and [SEP].
        ids: Print only the token ids.
    """
    loaded = _load_tokenizer(tokenizer, source=source)
    for text in read_texts(texts, keep_blank=True):
        encoding = loaded.encode(text, pair, add_special_tokens=special_tokens)
        record: dict[str, Any] = {"text": text, **encoding.to_dict(symbols=symbols)}
        lines = [encoding.ids] if ids else [record["tokens"], encoding.ids]
        shown = "\n".join(" ".join(map(str, line)) for line in lines)
        print_result(record, shown, as_json=as_json)


@app.command()
@add_parameter_help
def decode(
    tokenizer: TokenizerOption,
    ids: Annotated[list[str] | None, typer.Argument()] = None,
    keep_special: bool = False,
    source: SourceOption = False,
    as_json: opt.Json = False,
) -> None:
    """Decode token ids into text.

    Args:
        ids: The token ids. Default: the lines of stdin.
        keep_special: Keep special tokens in the text.
    """
    loaded = _load_tokenizer(tokenizer, source=source)
    for line in [" ".join(ids)] if ids else read_texts(None):
        token_ids = _parse_ids(line)
        unknown = [token_id for token_id in token_ids if not 0 <= token_id < loaded.vocab_size]
        if unknown:
            raise TokenizerError(
                f"id {unknown[0]}: this tokenizer has ids 0 to {loaded.vocab_size - 1}."
            )
        text = loaded.decode(token_ids, skip_special_tokens=not keep_special)
        print_result({"ids": token_ids, "text": text}, text, as_json=as_json)


def _load_tokenizer(path: Path, *, source: bool) -> Tokenizer:
    """Load a tokenizer from a file or a folder.

    If `source` is true, load the folder's source tokenizer.
    """
    if source:
        path = path / _SOURCE_TOKENIZER
        if not path.is_file():
            raise TokenizerError(
                f"there is no {path}: --source is for the folder of a model with two vocabularies "
                "(model.separate_vocabularies). Leave it out."
            )
    return Tokenizer.load(path)


def _parse_ids(line: str) -> list[int]:
    """Parse token ids separated by spaces or commas, with or without brackets."""
    words = line.replace(",", " ").replace("[", " ").replace("]", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise TokenizerError(f"token ids are whole numbers, not {shorten(line)!r}.") from None
