"""Builds byte-level BPE tokenizers from existing vocabularies, such as `.tiktoken` files."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from trivium.errors import TokenizerError
from trivium.text.roles import to_added_tokens
from trivium.text.symbols import bytes_to_symbols

Token = TypeVar("Token", bytes, str)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = _CONTRACTIONS + "?"

# The pre-tokenization pattern of each family, from the source code of `tiktoken` and the models.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": _CL100K,
    "llama3": _CL100K,
    "qwen": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL,
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
# Special tokens and their ids, which are not part of a rank file.
_SPECIALS = {
    "gpt2": {"<|endoftext|>": 50256},
    "cl100k": {
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    "o200k": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    "llama3": {
        "<|begin_of_text|>": 128000,
        "<|end_of_text|>": 128001,
        "<|start_header_id|>": 128006,
        "<|end_header_id|>": 128007,
        "<|eot_id|>": 128009,
    },
    "qwen": {
        "<|endoftext|>": 151643,
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        **{f"<|extra_{n}|>": 151646 + n for n in range(205)},
    },
}
# The number of ranks in published files.
_PUBLISHED = {50256: "gpt2", 100256: "cl100k", 199998: "o200k", 128000: "llama3", 151643: "qwen"}


def build_byte_level(
    vocabulary: Mapping[int, bytes],
    merges: Sequence[tuple[bytes, bytes]],
    special_tokens: Sequence[str],
    *,
    pattern: str,
    ignore_merges: bool = False,
) -> tokenizers.Tokenizer:
    """Build a byte-level BPE tokenizer from a vocabulary and merges.

    Args:
        vocabulary: the bytes of each token, by id.
        merges: the pairs of tokens to merge, in order of priority.
        special_tokens: the special tokens. Tokens that are not in the vocabulary get the next ids.
        pattern: the pre-tokenizer, given as a name in `PATTERNS` or a regular expression.
        ignore_merges: whether a word that is in the vocabulary becomes a single token, even if the
            merges would not produce this token.

    Raises TokenizerError if the vocabulary or the merges are invalid.
    """
    _check_vocabulary(vocabulary, special_tokens)
    specials = {token.encode(): token for token in special_tokens}
    tokens = {specials.get(data, bytes_to_symbols(data)): i for i, data in vocabulary.items()}
    for token in special_tokens:
        tokens.setdefault(token, max(tokens.values()) + 1)
    try:
        pairs = [(bytes_to_symbols(a), bytes_to_symbols(b)) for a, b in merges]
        backend = tokenizers.Tokenizer(models.BPE(tokens, pairs, ignore_merges=ignore_merges))
    except Exception as error:
        raise TokenizerError(
            f"A merge needs its two parts and their union in the vocabulary ({error})."
        ) from None
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS.get(pattern, pattern)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.add_special_tokens(to_added_tokens(special_tokens))
    return backend


def _check_vocabulary(vocabulary: Mapping[int, bytes], special_tokens: Sequence[str]) -> None:
    """Raise TokenizerError if a byte-level vocabulary or its special tokens are invalid.

    Every byte needs a token, every token must have a single id, and special tokens must be
    distinct.
    """
    ids = {data: index for index, data in vocabulary.items()}
    missing = sum(bytes([byte]) not in ids for byte in range(256))
    if missing:
        raise TokenizerError(
            f"This is not a byte-level vocabulary: {missing} of 256 bytes lack a token."
        )
    for index, data in vocabulary.items():
        if ids[data] != index:
            raise TokenizerError(f"{data!r} has two ids, {index} and {ids[data]}: remove one.")
    if "" in special_tokens or len({*special_tokens}) < len(special_tokens):
        raise TokenizerError(
            f"Special tokens must differ and not be empty: {', '.join(map(repr, special_tokens))}."
        )


def load_tiktoken(file: Path, *, pattern: str | None) -> tokenizers.Tokenizer:
    """Load a `.tiktoken` rank file. Each line contains a base64-encoded token and its rank.

    `pattern` is the pre-tokenizer, given as a name in `PATTERNS` or a regular expression. If None,
    it is guessed from the file name or from the number of ranks, or else "cl100k" is used.
    """
    ranks = _read_ranks(file)
    family = _guess_pattern(file, len(ranks)) if pattern is None else pattern
    specials = {"<|endoftext|>": max(ranks.values(), default=-1) + 1}
    if _PUBLISHED.get(len(ranks)) == family:
        specials = _SPECIALS[family]
    vocabulary = {rank: token for token, rank in ranks.items()}
    vocabulary |= {rank: token.encode() for token, rank in specials.items()}
    merges = list(derive_merges(ranks))
    backend = build_byte_level(
        vocabulary, merges, list(specials), pattern=family, ignore_merges=True
    )
    if family == "qwen":
        backend.normalizer = normalizers.NFC()
    return backend


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Read a `.tiktoken` file. Returns a dictionary from tokens to ranks."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{file}, line {number}: expected a base64 token and its rank."
            ) from error
    check_ids(ranks)
    return ranks


def check_ids(vocabulary: Mapping[Any, int]) -> None:
    """Raise TokenizerError if there are large gaps between the ids in a vocabulary.

    The `tokenizers` library needs gigabytes of memory for the ids in such gaps.
    """
    largest = max(vocabulary.values(), default=0)
    if largest > 2 * len(vocabulary) + 1000:
        raise TokenizerError(f"{len(vocabulary):,} tokens have ids up to {largest:,}.")


def derive_merges(ranks: Mapping[Token, float]) -> Iterator[tuple[Token, Token]]:
    """Derive BPE merges from token ranks. Yields the merges as pairs of tokens, by priority.

    tiktoken and sentencepiece files contain ranks but no merges. Their encoders always merge the
    two neighbours that form the token with the lowest rank. Every split of a token into two tokens
    is therefore a merge, and its rank is that of the whole token.
    """
    for token in sorted(ranks, key=lambda token: ranks[token]):
        splits = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(a, b) for a, b in splits if a in ranks and b in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _guess_pattern(file: Path, num_ranks: int) -> str:
    """Guess the pre-tokenizer of a `.tiktoken` file from its name, or from its number of ranks.

    Returns a name in `PATTERNS`.
    """
    names = {family: family for family in PATTERNS} | {"r50k": "gpt2", "p50k": "gpt2"}
    by_name = (family for name, family in names.items() if name in file.name.lower())
    return next(by_name, _PUBLISHED.get(num_ranks, "cl100k"))
