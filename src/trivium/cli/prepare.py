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
from trivium.cli._shared import fraction_or_paths
from trivium.data.documents import TEXT_SUFFIXES
from trivium.data.prepare import (
    PrepareProgress,
    local_folder,
    partial_folder,
    prepare_part,
    unfinished_tokenizer,
)
from trivium.data.prepare import prepare as prepare_shards
from trivium.data.shards import MANIFEST, TOKENIZER, Shards, unigram_loss
from trivium.data.sources import check_libraries
from trivium.data.splitting import CorpusOptions, training_texts, write_split_texts
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
            help="Files, globs, folders, s3://..., - (stdin) or hf:NAME[:CONFIG][:SPLIT]. "
            f"{' '.join(TEXT_SUFFIXES)}, all but Parquet also compressed."
        ),
    ],
    out: Annotated[str, typer.Option()],
    tokenizer: Path | None = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"Kind to train: {', '.join(Tokenizer.kinds)}.", show_default=_DEFAULT_KIND
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, show_default=str(_DEFAULT_VOCAB_SIZE))
    ] = None,
    validation: str = "0.1",
    write_text: Path | None = None,
    part: Annotated[str | None, typer.Option(metavar="I/N")] = None,
    overwrite: opt.Overwrite = False,
    **reading: Any,
) -> None:
    """Encode text into token shards: split, deduplicated, encoded once.

    The same command resumes interrupted work. The shards do not depend on the number of parts.

    Args:
        out: The folder of shards, also s3://bucket/shards.
        tokenizer: An existing tokenizer; without it one is trained.
        vocab_size: Tokens to train.
        validation: Fraction of the documents (by a hash of the text), or a path.
        write_text: Also write train.txt and validation.txt to this folder.
        part: Only part I of N, for example one of N machines on a shared file system; afterwards
            the same command without --part merges them.
    """
    if STDIN in paths and (tokenizer is None or write_text is not None):
        raise DataError(
            "standard input can be read only once: train the tokenizer first (`trivium tokenizer "
            "train`) and give it with --tokenizer, without --write-text."
        )
    if tokenizer is not None and (kind is not None or vocab_size is not None):
        raise DataError("give --tokenizer, or --kind and --vocab-size; not both.")
    fraction_or_files = fraction_or_paths([validation])
    check_libraries([*paths, *(fraction_or_files if isinstance(fraction_or_files, tuple) else ())])
    options = CorpusOptions(validation=fraction_or_files, **reading)
    if part is not None and (tokenizer is None or overwrite or write_text is not None):
        raise DataError(
            "all parts need the same tokenizer: train it first (`trivium tokenizer train`) and "
            "give it with --tokenizer, without --overwrite and --write-text."
        )
    if tokenizer is not None:
        chosen = Tokenizer.load(tokenizer)
    else:
        size = vocab_size or _DEFAULT_VOCAB_SIZE
        chosen = _trained(paths, out, options, kind or _DEFAULT_KIND, size, overwrite)
    line, shards, tokens = ProgressLine(), None, 0

    def show(progress: PrepareProgress) -> None:
        line.print_line(progress.note) if progress.note else line.update_or_log(str(progress))

    try:
        with handle_signals(signal.default_int_handler), line.running():
            if part is not None:
                tokens = prepare_part(
                    paths, chosen, out, *_numbers(part), options=options, progress=show
                )
            else:
                shards = prepare_shards(
                    paths, chosen, out, options=options, overwrite=overwrite, progress=show
                )
    except KeyboardInterrupt:
        kept = partial_folder(out)
        raise KeyboardInterrupt(
            f"interrupted; what is finished is kept in {kept}: the same command continues there."
        ) from None
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DataError(
            f"{partial_folder(out)}: the disk is full. What is finished is kept there: free some "
            "space, and the same command continues."
        ) from error
    if shards is None:
        where = partial_folder(out)
        typer.echo(translated("prepare.part", part=part, tokens=tokens, where=where))
        typer.echo(translated("prepare.then_merge"))
        return
    if write_text is not None:
        files = write_split_texts(paths, write_text, options)
        typer.echo(_summary_line("text", ", ".join(map(str, files.values()))))
    typer.echo(_summary(shards, out))


def _numbers(part: str) -> tuple[int, int]:
    """The number of a part and how many there are."""
    number, _, of = part.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise DataError(f'--part is a number and how many there are, such as 2/7, not "{part}".')
    return int(number), int(of)


def _trained(
    paths: list[str], out: str, options: CorpusOptions, kind: str, size: int, overwrite: bool
) -> Tokenizer:
    """A tokenizer of the training split; that of earlier work on the same text, if it fits."""
    folder = local_folder(out)
    earlier: Path | None = folder / TOKENIZER
    if overwrite or not (folder / MANIFEST).is_file():
        earlier = unfinished_tokenizer(paths, out, options)
    if earlier is not None and earlier.is_file():
        tokenizer = Tokenizer.load(earlier)
        if (tokenizer.kind, tokenizer.vocab_size) == (kind, size):
            return tokenizer
    said = translated("tokenizer.training_of_size", kind=kind, size=size)
    print(said, file=sys.stderr, flush=True)
    return Tokenizer.train(kind, texts=training_texts(paths, options), vocab_size=size)


def _summary(shards: Shards, out: str) -> str:
    """What a folder of shards holds, in a few lines."""
    splits = shards.manifest.splits
    lines = [_summary_line("shards", out)]
    for name, info in splits.items():
        numbers = {"documents": info.documents, "tokens": info.tokens}
        size = info.text_bytes / max(info.tokens, 1)
        lines.append(_summary_line(name, translated("prepare.split", size=size, **numbers)))
    duplicates = sum(info.duplicates for info in splits.values())
    lines.append(_summary_line("dropped", translated("prepare.duplicates", count=duplicates)))
    if overlap := sum(info.overlap for info in splits.values()):
        lines.append(_summary_line("dropped", translated("prepare.overlap", count=overlap)))
    loss = unigram_loss([shards])
    lines.append(_summary_line("loss", translated("prepare.unigram_loss", loss=loss)))
    return "\n".join(lines)


def _summary_line(label: str, text: str) -> str:
    return f"{padded(translated(f'label.{label}'), 12)} {text}"
