"""`trivium prepare`: encode text into token shards.

Examples:

  trivium prepare my_texts/ --out shards/ --kind byte-bpe --vocab-size 16000

  trivium prepare 'corpus/*.jsonl.zst' --text-field body --tokenizer tokenizer.json --out shards/

  trivium prepare train.txt --validation valid.txt --tokenizer tokenizer.json --out shards/

  trivium prepare corpus/ --tokenizer tokenizer.json --out shards/ --part 2/7

  zcat dump.gz | trivium prepare - --separator line --tokenizer tokenizer.json --out shards/
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import parse_validation
from trivium.data.documents import TEXT_SUFFIXES
from trivium.data.prepare import (
    PrepareProgress,
    find_unfinished_tokenizer,
    local_folder,
    partial_folder,
    prepare_part,
)
from trivium.data.prepare import prepare as prepare_shards
from trivium.data.shards import MANIFEST, TOKENIZER, Shards, unigram_loss
from trivium.data.sources import check_libraries
from trivium.data.splitting import CorpusOptions, read_training_texts, write_split_texts
from trivium.errors import DataError
from trivium.files import STDIN, is_disk_full
from trivium.messages import padded, translated
from trivium.progress import ProgressLine, handle_signals
from trivium.text import Tokenizer

_DEFAULT_KIND, _DEFAULT_VOCAB_SIZE = "wordpiece", 8192


@opt.with_options(CorpusOptions, exclude=["validation", "control_tokens"])
def prepare(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Text: files, globs, folders, s3://..., - (stdin) or hf:NAME[:CONFIG][:SPLIT]. "
            f"Formats: {' '.join(TEXT_SUFFIXES)}; all except Parquet may be compressed."
        ),
    ],
    out: Annotated[str, typer.Option()],
    tokenizer: Path | None = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"Kind of tokenizer to train: {', '.join(Tokenizer.kinds)}.",
            show_default=_DEFAULT_KIND,
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, show_default=str(_DEFAULT_VOCAB_SIZE))
    ] = None,
    validation: str = "0.1",
    write_text: Path | None = None,
    part: Annotated[str | None, typer.Option(metavar="I/N")] = None,
    overwrite: opt.Overwrite = False,
    **data_options: Any,
) -> None:
    """Encode text into token shards, deduplicated and split into training and validation data.

    If the command is interrupted, repeat it to continue. The shards do not depend on the number of
    parts.

    Args:
        out: The output folder of the shards; may be s3://bucket/shards.
        tokenizer: An existing tokenizer. Default: train a tokenizer.
        vocab_size: Vocabulary size of the tokenizer to train.
        validation: The fraction of the documents to use for validation (chosen by a hash of the
            text), or a path of validation documents.
        write_text: Also write train.txt and validation.txt to this folder.
        part: Process only part I of N, for example on one of N machines with a shared file system.
            When all parts are done, the same command without --part merges them.
    """
    if STDIN in paths and (tokenizer is None or write_text is not None):
        raise DataError(
            "standard input can be read only once: train the tokenizer first (`trivium tokenizer "
            "train`) and give it with --tokenizer, without --write-text."
        )
    if tokenizer is not None and (kind is not None or vocab_size is not None):
        raise DataError("give either --tokenizer, or --kind and --vocab-size.")
    fraction_or_files = parse_validation([validation])
    check_libraries([*paths, *(fraction_or_files if isinstance(fraction_or_files, tuple) else ())])
    options = CorpusOptions(validation=fraction_or_files, **data_options)
    if part is not None and (tokenizer is None or overwrite or write_text is not None):
        raise DataError(
            "all parts need the same tokenizer: train it first (`trivium tokenizer train`) and "
            "give it with --tokenizer, without --overwrite and --write-text."
        )
    if tokenizer is not None:
        chosen = Tokenizer.load(tokenizer)
    else:
        size = vocab_size or _DEFAULT_VOCAB_SIZE
        kind = kind or _DEFAULT_KIND
        chosen = _train_or_reuse_tokenizer(paths, out, options, kind, size, overwrite)
    log, shards, tokens = ProgressLine(), None, 0

    def show_progress(progress: PrepareProgress) -> None:
        """Print a note as a line of its own, and anything else in the progress line."""
        log.print_line(progress.note) if progress.note else log.update_or_log(str(progress))

    try:
        with handle_signals(signal.default_int_handler), log.running():
            if part is not None:
                tokens = prepare_part(
                    paths, chosen, out, *_parse_part(part), options=options, progress=show_progress
                )
            else:
                shards = prepare_shards(
                    paths, chosen, out, options=options, overwrite=overwrite, progress=show_progress
                )
    except KeyboardInterrupt:
        kept = partial_folder(out)
        raise KeyboardInterrupt(
            f"interrupted; the finished work is kept in {kept}: repeat the command to continue."
        ) from None
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DataError(
            f"{partial_folder(out)}: the disk is full. The finished work is kept there: free some "
            "space and repeat the command to continue."
        ) from error
    if shards is None:
        where = partial_folder(out)
        typer.echo(translated("prepare.part", part=part, tokens=tokens, where=where))
        typer.echo(translated("prepare.then_merge"))
        return
    if write_text is not None:
        files = write_split_texts(paths, write_text, options)
        typer.echo(_format_summary_line("text", ", ".join(map(str, files.values()))))
    typer.echo(_format_summary(shards, out))


def _parse_part(part: str) -> tuple[int, int]:
    """Parse the value of `--part`. Returns (I, N) for "I/N", part I of N parts."""
    index, _, count = part.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise DataError(f'--part is I/N, part I of N parts, such as 2/7, not "{part}".')
    return int(index), int(count)


def _train_or_reuse_tokenizer(
    paths: list[str], out: str, options: CorpusOptions, kind: str, size: int, overwrite: bool
) -> Tokenizer:
    """Return a tokenizer for the training split: an earlier one if possible, otherwise a new one.

    A tokenizer from an earlier run of the command is reused if it was trained on the same text with
    the same kind and vocabulary size. If `overwrite` is true, a finished run's tokenizer is not
    reused.
    """
    folder = local_folder(out)
    earlier: Path | None = folder / TOKENIZER
    if overwrite or not (folder / MANIFEST).is_file():
        earlier = find_unfinished_tokenizer(paths, out, options)
    if earlier is not None and earlier.is_file():
        tokenizer = Tokenizer.load(earlier)
        if (tokenizer.kind, tokenizer.vocab_size) == (kind, size):
            return tokenizer
    message = translated("tokenizer.training_of_size", kind=kind, size=size)
    print(message, file=sys.stderr, flush=True)
    max_bytes = Tokenizer.get_config_class(kind).model_fields["sample_bytes"].default
    texts = read_training_texts(paths, options, max_bytes=max_bytes)
    return Tokenizer.train(kind, texts=texts, vocab_size=size)


def _format_summary(shards: Shards, out: str) -> str:
    """Return a summary of shards as text: documents, tokens, duplicates and unigram loss."""
    splits = shards.manifest.splits
    lines = [_format_summary_line("shards", out)]
    for name, info in splits.items():
        numbers = {"documents": info.documents, "tokens": info.tokens}
        size = info.text_bytes / max(info.tokens, 1)
        lines.append(_format_summary_line(name, translated("prepare.split", size=size, **numbers)))
    duplicates = sum(info.duplicates for info in splits.values())
    lines.append(
        _format_summary_line("dropped", translated("prepare.duplicates", count=duplicates))
    )
    if overlap := sum(info.overlap for info in splits.values()):
        lines.append(_format_summary_line("dropped", translated("prepare.overlap", count=overlap)))
    loss = unigram_loss([shards])
    lines.append(_format_summary_line("loss", translated("prepare.unigram_loss", loss=loss)))
    return "\n".join(lines)


def _format_summary_line(label: str, text: str) -> str:
    """Return one line of the summary: the translated label, padded to 12 columns, and the text."""
    return f"{padded(translated(f'label.{label}'), 12)} {text}"
