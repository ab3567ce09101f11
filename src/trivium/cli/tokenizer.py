"""`trivium tokenizer`: train, encode, decode, explain."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Protocol

import typer

from trivium.data.sources import read_documents
from trivium.errors import TokenizerError, did_you_mean
from trivium.text import KINDS, Tokenizer
from trivium.text.explain import (
    explain_bpe_encoding,
    explain_bytes,
    explain_lattice,
    explain_unigram_encoding,
    explain_wordpiece_encoding,
    match_wordpiece,
    train_bpe,
    train_unigram,
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="The five tokenizers: train one, use it, see how it works.",
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object for each text.")]
Given = Annotated[Path, typer.Option("--tokenizer", "-t", help="A tokenizer file or folder.")]

_TRAIN_EXAMPLES = """Examples:

  trivium tokenizer train --kind wordpiece --vocab-size 8192 --data my_texts/ --out tokenizer.json

  trivium tokenizer train --kind byte-bpe --vocab-size 32000 --data a.txt --data b.zst --out t/

  trivium tokenizer train --kind wordpiece --vocab-size 30522 --data train.txt --out tokenizer.json
  --special-tokens "[PAD] [UNK] [CLS] [SEP] [MASK] <S> <T>"
"""
_ENCODE_EXAMPLES = """Examples:

  trivium tokenizer encode -t tokenizer.json "The weather was cloudy."

  cat lines.txt | trivium tokenizer encode -t tokenizer.json --json
"""
_DECODE_EXAMPLES = """Examples:

  trivium tokenizer decode -t tokenizer.json 2 1996 4633 3

  trivium tokenizer encode -t t/ --ids "Hello" | trivium tokenizer decode -t t/
"""
_EXPLAIN_EXAMPLES = """Examples:

  trivium tokenizer explain bpe "the car | the cat | the rat" --merges 5

  trivium tokenizer explain bytes "\u4eca\u5929"

  trivium tokenizer explain wordpiece "unaffable" --vocab "un ##aff ##able"

  trivium tokenizer explain unigram "ababc" --vocab "ab c"

  trivium tokenizer explain unigram "hug pug | pun bun | hugs" --vocab-size 8

  trivium tokenizer explain bpe "lower" --tokenizer gpt2/
"""


class Explanation(Protocol):
    """What every explanation of `trivium.text.explain` can do."""

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        ...

    def render(self) -> str:
        """Lines for people."""
        ...


@app.command(epilog=_TRAIN_EXAMPLES)
def train(
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")],
    vocab_size: Annotated[int, typer.Option(help="Tokens, the special ones included.")],
    data: Annotated[
        list[str], typer.Option(help="A file, folder, glob, hf:NAME or - (stdin); repeatable.")
    ],
    out: Annotated[Path, typer.Option(help="A tokenizer.json, or a folder for transformers.")],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[DATA]...", help="More of the data.")
    ] = None,
    special_tokens: Annotated[
        str | None, typer.Option(help="Parted by spaces; the default depends on the kind.")
    ] = None,
    cased: Annotated[
        bool, typer.Option("--cased", help="Keep capitals and accents (wordpiece).")
    ] = False,
    min_frequency: Annotated[
        int | None, typer.Option(help="How often a pair or word must occur.")
    ] = None,
    character_coverage: Annotated[
        float, typer.Option(help="Share of the text's characters that get tokens.")
    ] = 0.9995,
    sample_bytes: Annotated[
        int, typer.Option(help="Learn from at most so many bytes, drawn evenly.")
    ] = 1_000_000_000,
    seed: Annotated[int, typer.Option(help="Decides the sample.")] = 0,
    separator: Annotated[
        str, typer.Option(help="What parts documents of plain text: blank, line, file, STRING.")
    ] = "blank",
    text_field: Annotated[str, typer.Option(help="The field of a record that is its text.")] = (
        "text"
    ),
    errors: Annotated[
        str, typer.Option(help="At invalid UTF-8: strict (stop) or replace (go on).")
    ] = "strict",
) -> None:
    """Learn a vocabulary from text."""
    documents = read_documents(
        [*data, *(more or [])], separator=separator, text_field=text_field, errors=errors
    )
    tokenizer = Tokenizer.train(
        kind,
        texts=(document.text for document in documents),
        vocab_size=vocab_size,
        special_tokens=None if special_tokens is None else special_tokens.split(),
        lowercase=not cased,
        min_frequency=min_frequency,
        character_coverage=character_coverage,
        sample_bytes=sample_bytes,
        seed=seed,
        progress=lambda line: typer.echo(line, err=True),
    )
    path = tokenizer.save(out)
    typer.echo(f"{path}: {tokenizer.kind}, {tokenizer.vocab_size} tokens")


@app.command(epilog=_ENCODE_EXAMPLES)
def encode(
    tokenizer: Given,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; without one, lines of stdin.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A second text, encoded with each.")] = None,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens/--no-special-tokens", help="Add the frame.")
    ] = True,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids only.")] = False,
    as_json: Json = False,
) -> None:
    """Text to tokens and ids."""
    loaded = Tokenizer.load(tokenizer)
    for text in texts or _lines():
        found = loaded.encode(text, pair, add_special_tokens=special_tokens)
        if as_json:
            _print_json({"text": text, **found.to_dict()})
        elif ids:
            typer.echo(" ".join(map(str, found.ids)))
        else:
            typer.echo(" ".join(found.tokens))
            typer.echo(" ".join(map(str, found.ids)))


@app.command(epilog=_DECODE_EXAMPLES)
def decode(
    tokenizer: Given,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Token ids; without one, lines of stdin.")
    ] = None,
    keep_special: Annotated[
        bool, typer.Option("--keep-special", help="Write special tokens out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ids to text."""
    loaded = Tokenizer.load(tokenizer)
    for line in [" ".join(ids)] if ids else _lines():
        numbers = _numbers(line)
        text = loaded.decode(numbers, skip_special_tokens=not keep_special)
        if as_json:
            _print_json({"ids": numbers, "text": text})
        else:
            typer.echo(text)


@app.command(epilog=_EXPLAIN_EXAMPLES)
def explain(
    what: Annotated[str, typer.Argument(help="bpe, bytes, wordpiece or unigram.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts, parted by |; without one, stdin.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", "-t", help="Show how this one encodes the text.")
    ] = None,
    vocab: Annotated[
        str | None,
        typer.Option(help="Tokens parted by spaces; for unigram also PIECE=PROBABILITY."),
    ] = None,
    merges: Annotated[int, typer.Option(help="bpe: how many merges to learn.", min=0)] = 10,
    vocab_size: Annotated[
        int | None, typer.Option(help="unigram: train until the vocabulary is this small.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a tokenizer learns and encodes, step by step.

    bpe learns merges from the texts, or with --tokenizer applies those of one that exists. bytes
    shows code points and UTF-8. wordpiece matches greedily against --vocab or --tokenizer. unigram
    shows the lattice over --vocab or --tokenizer, or with --vocab-size the training.
    """
    makers = {
        "bpe": lambda parts: _explain_bpe(parts, tokenizer, merges),
        "bytes": lambda parts: [explain_bytes(part) for part in parts],
        "wordpiece": lambda parts: _explain_wordpiece(parts, tokenizer, vocab),
        "unigram": lambda parts: _explain_unigram(parts, tokenizer, vocab, vocab_size),
    }
    if what not in makers:
        raise TokenizerError(
            f"There is no explanation {what!r}; there are {', '.join(makers)}."
            + did_you_mean(what, makers)
        )
    given = texts or list(_lines())
    parts = [part.strip() for text in given for part in text.split("|") if part.strip()]
    if not parts:
        raise TokenizerError("There is no text to explain.")
    _print(makers[what](parts), as_json)


def _explain_bpe(parts: list[str], path: Path | None, merges: int) -> list[Explanation]:
    if path is None:
        return [train_bpe(parts, merges=merges)]
    backend = Tokenizer.load(path).backend
    return [explain_bpe_encoding(backend, part) for part in parts]


def _explain_wordpiece(parts: list[str], path: Path | None, vocab: str | None) -> list[Explanation]:
    if path is not None:
        backend = Tokenizer.load(path).backend
        return [explain_wordpiece_encoding(backend, part) for part in parts]
    if vocab is None:
        raise TokenizerError('wordpiece needs a vocabulary: --vocab "un ##able" or --tokenizer.')
    tokens = set(vocab.split())
    words = [word for part in parts for word in part.split()]
    return [match_wordpiece(word, tokens) for word in words]


def _explain_unigram(
    parts: list[str], path: Path | None, vocab: str | None, vocab_size: int | None
) -> list[Explanation]:
    if path is not None:
        backend = Tokenizer.load(path).backend
        return [explain_unigram_encoding(backend, part) for part in parts]
    if vocab is not None:
        pieces = _pieces(vocab)
        return [explain_lattice(part, pieces) for part in parts]
    if vocab_size is None:
        raise TokenizerError(
            'unigram needs pieces (--vocab "ab c" or --tokenizer) to show a lattice, or '
            "--vocab-size to show the training."
        )
    return [train_unigram(parts, vocab_size=vocab_size)]


def _pieces(vocab: str) -> dict[str, float] | list[str]:
    """Pieces, with probabilities where every one has its own."""
    entries = [entry.rpartition("=") for entry in vocab.split()]
    if not any(equals for _, equals, _ in entries):
        return vocab.split()
    try:
        found = {piece: float(value) for piece, _, value in entries}
    except ValueError:
        found = {}
    if not found or any(not piece or not 0.0 < value <= 1.0 for piece, value in found.items()):
        raise TokenizerError(
            f"--vocab is pieces, or PIECE=PROBABILITY for every one (0 to 1), not {vocab!r}."
        )
    return found


def _print(found: Iterable[Explanation], as_json: bool) -> None:
    for place, explanation in enumerate(found):
        if as_json:
            _print_json(explanation.to_dict())
        else:
            typer.echo(("\n" if place else "") + explanation.render())


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def _lines() -> Iterator[str]:
    return (line.rstrip("\r\n") for line in sys.stdin)


def _numbers(line: str) -> list[int]:
    words = line.replace(",", " ").replace("[", " ").replace("]", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise TokenizerError(f"Token ids are whole numbers, not {line[:60]!r}.") from None
