"""`trivium prepare`: text to token shards."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trivium.data.journal import unfinished_tokenizer
from trivium.data.prepare import Progress
from trivium.data.prepare import prepare as prepare_shards
from trivium.data.shards import MANIFEST, TOKENIZER, TRAIN, Shards
from trivium.data.sources import STDIN
from trivium.data.splits import Paths, read_splits, write_split_texts
from trivium.errors import DataError
from trivium.text import KINDS, Tokenizer

app = typer.Typer(add_completion=False)

_DEFAULT_KIND, _DEFAULT_VOCAB_SIZE = "wordpiece", 8192
_LINE_EVERY = 5.0
_EPILOG = """Examples:

  trivium prepare my_texts/ --out shards/ --kind byte-bpe --vocab-size 16000

  trivium prepare 'corpus/*.jsonl.zst' --text-field body --tokenizer tokenizer.json --out shards/

  trivium prepare train.txt --validation valid.txt --tokenizer tokenizer.json --out shards/

  zcat dump.gz | trivium prepare - --separator line --tokenizer tokenizer.json --out shards/
"""


@app.command(epilog=_EPILOG)
def prepare(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Files, globs, folders, - (stdin) or hf:NAME[:CONFIG][:SPLIT]. "
            ".txt .jsonl .csv .tsv .parquet, each also .gz .xz .zst."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of shards to make.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer that exists; without it one is trained.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help=f"Kind to train: {', '.join(KINDS)}.", show_default=_DEFAULT_KIND),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Vocabulary to train.", show_default=str(_DEFAULT_VOCAB_SIZE)),
    ] = None,
    validation: Annotated[
        str, typer.Option(help="Fraction of the documents (by a hash of the text), or a path.")
    ] = "0.1",
    separator: Annotated[
        str, typer.Option(help="What parts documents of plain text: blank, line, file, STRING.")
    ] = "blank",
    text_field: Annotated[str, typer.Option(help="The field of a record that is its text.")] = (
        "text"
    ),
    errors: Annotated[
        str, typer.Option(help="At invalid UTF-8: strict (stop) or replace (go on).")
    ] = "strict",
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Keep exact repeats of a document.")
    ] = False,
    write_text: Annotated[
        Path | None, typer.Option(help="Also write train.txt and validation.txt to this folder.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the shards that --out holds.")
    ] = False,
) -> None:
    """Turn text into token shards: split, without repeats, encoded once.

    Interrupted work is gone on with when the same command is given again.
    """
    if STDIN in paths and (tokenizer is None or write_text is not None):
        raise DataError(
            "Standard input can be read only once. Train the tokenizer before "
            "(`trivium tokenizer train`) and give it with --tokenizer, without --write-text."
        )
    held = _validation(validation)
    if tokenizer is not None:
        if kind is not None or vocab_size is not None:
            raise DataError("Give --tokenizer, or --kind and --vocab-size; not both.")
        chosen = Tokenizer.load(tokenizer)
    else:
        wanted = (kind or _DEFAULT_KIND, vocab_size or _DEFAULT_VOCAB_SIZE)
        made = out / TOKENIZER
        if overwrite or not (out / MANIFEST).is_file() or not made.is_file():
            made = unfinished_tokenizer(paths, out, held)
        found = None if made is None else Tokenizer.load(made)
        if found is not None and (found.kind, found.vocab_size) == wanted:
            chosen = found
        else:
            documents = read_splits(
                paths,
                validation=held,
                separator=separator,
                text_field=text_field,
                errors=errors,
                keep_duplicates=keep_duplicates,
            )
            texts = (document.text for split, document in documents if split == TRAIN)
            chosen = Tokenizer.train(wanted[0], texts=texts, vocab_size=wanted[1])
    shards = prepare_shards(
        paths,
        out,
        chosen,
        validation=held,
        separator=separator,
        text_field=text_field,
        errors=errors,
        keep_duplicates=keep_duplicates,
        overwrite=overwrite,
        progress=_ProgressLines(),
    )
    if write_text is not None:
        files = write_split_texts(
            paths,
            write_text,
            validation=held,
            separator=separator,
            text_field=text_field,
            errors=errors,
            keep_duplicates=keep_duplicates,
        )
        typer.echo(f"text         {', '.join(map(str, files.values()))}")
    typer.echo(summary(shards))


def _validation(given: str) -> float | Paths:
    """A fraction where the option is a number, else a path."""
    try:
        return float(given)
    except ValueError:
        return [given]


class _ProgressLines:
    """Shows a `Progress` now and then on standard error; notes at once."""

    def __init__(self) -> None:
        self._shown = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if progress.note:
            print(progress.note, file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        if now - self._shown < _LINE_EVERY:
            return
        self._shown = now
        done = f"{progress.read_bytes / 1e6:,.0f}"
        if progress.total_bytes:
            done += f" of {progress.total_bytes / 1e6:,.0f}"
        print(
            f"read {done} MB | {progress.documents:,} documents | {progress.tokens:,} tokens | "
            f"{progress.bytes_per_second / 1e6:.1f} MB/s | "
            f"{progress.tokens_per_second:,.0f} tokens/s",
            file=sys.stderr,
            flush=True,
        )


def summary(shards: Shards) -> str:
    """What a shard folder holds, in a few lines."""
    lines = [f"{'shards':<12} {shards.folder}"]
    for name, info in shards.manifest.splits.items():
        per_token = info.text_bytes / max(info.tokens, 1)
        lines.append(
            f"{name:<12} {info.documents:,} documents, {info.tokens:,} tokens, "
            f"{per_token:.2f} bytes a token"
        )
    splits = shards.manifest.splits.values()
    duplicates, leaks = (sum(getattr(s, key) for s in splits) for key in ("duplicates", "leaks"))
    lines.append(f"{'dropped':<12} {duplicates:,} exact duplicate documents")
    if leaks:
        lines.append(f"{'dropped':<12} {leaks:,} training documents that stand in validation")
    lines.append(
        f"{'loss':<12} {shards.unigram_loss():.3f} nats a token by guessing from word frequencies"
    )
    return "\n".join(lines)
