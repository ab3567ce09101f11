"""OpenAI's `.tiktoken` rank files: a base64 token and its rank a line."""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from trivium.errors import TokenizerError
from trivium.text.symbols import bytes_to_symbols

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

# How each family splits a text before merging; from the source of `tiktoken` and of the models.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL,
    "llama3": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL,
    "qwen": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL,
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
# Special tokens that the families give ids of their own, which the file does not hold.
SPECIALS = {
    "gpt2": {"<|endoftext|>": 50256},
    "cl100k": {
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    "o200k": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
}
# Number of ranks of the published files, and other names they go by.
PUBLISHED = {50256: "gpt2", 100256: "cl100k", 199998: "o200k", 128000: "llama3", 151643: "qwen"}
ALIASES = {"r50k": "gpt2", "p50k": "gpt2"}


def load_tiktoken(file: Path, *, pattern: str | None) -> tokenizers.Tokenizer:
    """Read a rank file as byte-level BPE.

    tiktoken merges the neighbours whose union has the lowest rank, so every split of a token into
    two tokens is a merge of that token's rank.

    `pattern` is a name in `PATTERNS` or a regular expression; without it the file's name or number
    of ranks tells, and otherwise it is cl100k's.
    """
    ranks = read_ranks(file)
    family = _family(file, len(ranks)) if pattern is None else pattern
    vocabulary = {bytes_to_symbols(token): rank for token, rank in ranks.items()}
    merges = [
        (bytes_to_symbols(token[:cut]), bytes_to_symbols(token[cut:]))
        for token, _ in sorted(ranks.items(), key=lambda entry: entry[1])
        for cut in _cuts(token, ranks)
    ]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS.get(family, family)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return _with_specials(backend, _specials(family, ranks))


def read_ranks(file: Path) -> dict[bytes, int]:
    """Token -> rank. Raises TokenizerError at the first line that is not one."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{file}, line {number}: a base64 token and its rank were expected."
            ) from error
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizerError(
            f"{file} is no byte-level vocabulary: {len(missing)} of the 256 bytes have no rank."
        )
    return ranks


def _cuts(token: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Where a token parts into two tokens, earliest learned parts first."""
    cuts = [cut for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
    return sorted(cuts, key=lambda cut: (ranks[token[:cut]], ranks[token[cut:]]))


def _family(file: Path, count: int) -> str:
    name = file.name.lower()
    for word, family in [*((known, known) for known in PATTERNS), *ALIASES.items()]:
        if word in name:
            return family
    return PUBLISHED.get(count, "cl100k")


def _specials(family: str, ranks: dict[bytes, int]) -> dict[str, int]:
    last = max(ranks.values())
    if PUBLISHED.get(len(ranks)) != family:
        return {"<|endoftext|>": last + 1}
    if family == "llama3":
        named = ["<|begin_of_text|>", "<|end_of_text|>"]
        return {token: last + 1 + place for place, token in enumerate(named)}
    return SPECIALS.get(family, {"<|endoftext|>": last + 1})


def _with_specials(backend: tokenizers.Tokenizer, specials: dict[str, int]) -> tokenizers.Tokenizer:
    """Add special tokens at given ids, which the library's own method cannot choose."""
    content = json.loads(backend.to_str())
    content["model"]["vocab"].update(specials)
    placed = tokenizers.Tokenizer.from_str(json.dumps(content))
    placed.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in specials]
    )
    return placed
