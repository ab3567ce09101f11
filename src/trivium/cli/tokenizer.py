"""`trivium tokenizer`: train one, encode, decode, and explain how it works.

Examples:

  trivium tokenizer train --kind wordpiece --vocab-size 8192 --data my_texts/ --out tokenizer.json

  trivium tokenizer train --kind byte-bpe --vocab-size 32000 --data a.txt --data b.zst --out t/

  trivium tokenizer train --kind wordpiece --vocab-size 30522 --data train.txt --out tokenizer.json
  --special-tokens "[PAD] [UNK] [CLS] [SEP] [MASK] <S> <T>"

  trivium tokenizer encode -t tokenizer.json "The weather was cloudy."

  cat lines.txt | trivium tokenizer encode -t tokenizer.json --json

  trivium tokenizer decode -t tokenizer.json 2 1996 4633 3

  trivium tokenizer encode -t t/ --ids "Hello" | trivium tokenizer decode -t t/

  trivium tokenizer explain bpe "the car | the cat | the rat" --merges 5

  trivium tokenizer explain bytes "\u4eca\u5929"

  trivium tokenizer explain wordpiece "unaffable" --vocab "un ##aff ##able"

  trivium tokenizer explain unigram "ababc" --vocab "ab c"

  trivium tokenizer explain unigram "hug pug | pun bun | hugs" --vocab-size 8

  trivium tokenizer explain bpe "lower" --tokenizer gpt2/
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trivium.cli import _options as opt
from trivium.cli import described
from trivium.cli._shared import read_texts, show
from trivium.data.documents import ReadOptions, read_documents
from trivium.errors import TokenizerError, shorten
from trivium.text import Tokenizer
from trivium.text.explanation import Explanation
from trivium.text.trainers.bpe import explain_bpe_training
from trivium.text.trainers.byte_bpe import explain_bytes
from trivium.text.trainers.unigram import explain_lattice, explain_unigram_training
from trivium.text.trainers.wordpiece import match_wordpiece

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Train a tokenizer, use it, see how it works.",
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
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(Tokenizer.kinds)}.")],
    data: Annotated[list[str], typer.Option()],
    out: Annotated[Path, typer.Option()],
    vocab_size: Annotated[int | None, typer.Option(show_default="8192")] = None,
    special_tokens: Annotated[str | None, typer.Option(show_default="those of the kind")] = None,
    lowercase: Annotated[bool | None, typer.Option("--lowercase/--cased")] = None,
    min_frequency: int | None = None,
    character_coverage: float | None = None,
    sample_bytes: int | None = None,
    **reading: Any,
) -> None:
    """Train a tokenizer on text.

    Args:
        data: A file, folder, glob, hf:NAME or - (stdin); repeatable.
        out: A tokenizer.json, or a folder for transformers.
        vocab_size: Tokens, special ones included.
        special_tokens: Separated by spaces.
        lowercase: wordpiece: remove capitals and accents.
        min_frequency: How often a pair or word must occur.
        character_coverage: Share of the text's characters that get tokens.
        sample_bytes: Train on a sample of at most this many bytes.
    """
    seconds = Tokenizer.config_of(kind).seconds_per_mb
    slow = f": about {seconds:g} s per MB on one core" if seconds > 1 else ""
    typer.echo(f"training a {kind} tokenizer{slow}", err=True)
    documents = read_documents(data, ReadOptions(**reading))
    tokenizer = Tokenizer.train(
        kind,
        texts=(document.text for document in documents),
        vocab_size=vocab_size,
        special_tokens=None if special_tokens is None else special_tokens.split(),
        lowercase=lowercase,
        min_frequency=min_frequency,
        character_coverage=character_coverage,
        sample_bytes=sample_bytes,
        progress=lambda line: typer.echo(line, err=True),
    )
    path = tokenizer.save(out)
    typer.echo(f"{path}: {tokenizer.kind}, {tokenizer.vocab_size} tokens")


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
    for line in read_texts([" ".join(ids)] if ids else None):
        numbers = _numbers(line)
        beyond = [number for number in numbers if not 0 <= number < loaded.vocab_size]
        if beyond:
            raise TokenizerError(
                f"id {beyond[0]}: this tokenizer has ids 0 to {loaded.vocab_size - 1}."
            )
        text = loaded.decode(numbers, skip_special_tokens=not keep_special)
        show({"ids": numbers, "text": text}, text, as_json=as_json)


@app.command()
@described
def explain(
    method: Literal["bpe", "bytes", "wordpiece", "unigram", "whitespace"],
    texts: Annotated[list[str] | None, typer.Argument()] = None,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", "-t")] = None,
    vocab: str | None = None,
    merges: Annotated[int, typer.Option(min=0)] = 10,
    vocab_size: int | None = None,
    as_json: opt.Json = False,
) -> None:
    """Show how a tokenizer is trained and how it encodes, step by step.

    bpe: the merges learned from the texts. bytes: code points and UTF-8. wordpiece: greedy
    longest-match-first against --vocab. unigram: the lattice and Viterbi path over --vocab, or
    with --vocab-size the rounds of training. With --tokenizer: how it encodes the texts; METHOD is
    its kind, bpe or bytes for byte-bpe.

    Args:
        method: What to explain; with --tokenizer, its kind.
        texts: Texts, separated by |. Default: stdin.
        tokenizer: Explain how this tokenizer encodes.
        vocab: Tokens separated by spaces; for unigram also PIECE=PROBABILITY.
        merges: bpe: merges to learn.
        vocab_size: unigram: prune the vocabulary to this size.
    """
    parts = [part.strip() for text in read_texts(texts) for part in text.split("|") if part.strip()]
    if not parts:
        raise TokenizerError("there is no text to explain.")
    if tokenizer is None:
        explanations = _explain(method, parts, vocab, merges, vocab_size)
    else:
        loaded = Tokenizer.load(tokenizer)
        methods = ("bpe", "bytes") if loaded.kind == "byte-bpe" else (loaded.kind,)
        if method not in methods:
            raise TokenizerError(
                f'{tokenizer} is a tokenizer of kind "{loaded.kind}", which {method} does not '
                f"explain: trivium tokenizer explain {methods[0]} ... --tokenizer {tokenizer}"
            )
        explain_part = explain_bytes if method == "bytes" else loaded.explain
        explanations = [explain_part(part) for part in parts]
    for number, explanation in enumerate(explanations):
        lines = ("\n" if number else "") + explanation.render()
        show(explanation.facts, lines, as_json=as_json)


def _explain(
    method: str, parts: list[str], vocab: str | None, merges: int, vocab_size: int | None
) -> list[Explanation]:
    match method:
        case "bpe":
            return [explain_bpe_training(parts, merges=merges)]
        case "bytes":
            return [explain_bytes(part) for part in parts]
        case "wordpiece" if vocab is not None:
            words = [word for part in parts for word in part.split()]
            return [match_wordpiece(word, set(vocab.split())) for word in words]
        case "unigram" if vocab is not None:
            return [explain_lattice(part, _pieces(vocab)) for part in parts]
        case "unigram" if vocab_size is not None:
            return [explain_unigram_training(parts, vocab_size=vocab_size)]
        case _:
            raise TokenizerError(
                f"{method} needs a vocabulary: --tokenizer; of wordpiece and unigram also --vocab "
                '"un ##able"; of unigram --vocab-size shows the training.'
            )


def _pieces(vocab: str) -> dict[str, float] | list[str]:
    """Pieces, with probabilities where every one has its own."""
    entries = [entry.rpartition("=") for entry in vocab.split()]
    if not any(equals for _, equals, _ in entries):
        return vocab.split()
    try:
        pieces = {piece: float(value) for piece, _, value in entries}
    except ValueError:
        pieces = {}
    if not pieces or any(not piece or not 0.0 < value <= 1.0 for piece, value in pieces.items()):
        raise TokenizerError(
            f"--vocab takes pieces, or PIECE=PROBABILITY for every one (0 to 1), not {vocab!r}."
        )
    return pieces


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
