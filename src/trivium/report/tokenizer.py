"""What a `tokenizer.json` holds, in numbers and examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

_LONGEST = 12
_SPREAD = 36
_KINDS = {"WordLevel": "whitespace", "Unigram": "unigram", "WordPiece": "wordpiece", "BPE": "bpe"}


@dataclass(frozen=True)
class TokenizerStatistics:
    """A vocabulary at a glance. `lengths` counts tokens by their characters, specials left out."""

    kind: str
    size: int
    specials: tuple[str, ...]
    continuing: int
    merges: int
    lengths: dict[int, int]
    longest: tuple[str, ...]
    spread: tuple[str, ...]


def tokenizer_statistics(content: dict[str, Any]) -> TokenizerStatistics | None:
    """Statistics of the parsed `tokenizer.json`; None where it holds no vocabulary."""
    model = content.get("model")
    if not isinstance(model, dict):
        return None
    vocabulary = _vocabulary(model.get("vocab"))
    added = [entry for entry in content.get("added_tokens", ()) if isinstance(entry, dict)]
    specials = tuple(str(entry.get("content")) for entry in added if entry.get("special"))
    known = set(vocabulary) | {str(entry.get("content")) for entry in added}
    if not known:
        return None
    ordinary = [token for token in vocabulary if token and token not in set(specials)]
    prefix = str(model.get("continuing_subword_prefix") or "")
    bare = {token: token.removeprefix(prefix) if prefix else token for token in ordinary}
    lengths = Counter(len(text) for text in bare.values())
    return TokenizerStatistics(
        kind=_kind(content, model),
        size=len(known),
        specials=specials,
        continuing=sum(bool(prefix) and token.startswith(prefix) for token in ordinary),
        merges=len(model.get("merges") or ()),
        lengths=dict(sorted(lengths.items())),
        longest=tuple(sorted(ordinary, key=lambda token: (-len(bare[token]), token))[:_LONGEST]),
        spread=tuple(_spread(ordinary)),
    )


def _vocabulary(vocabulary: object) -> list[str]:
    """Tokens in the order of their ids, from {token: id} or [[token, score], ...]."""
    if isinstance(vocabulary, dict):
        return sorted(vocabulary, key=lambda token: vocabulary[token])
    if isinstance(vocabulary, list):
        return [str(entry[0]) for entry in vocabulary]
    return []


def _kind(content: dict[str, Any], model: dict[str, Any]) -> str:
    kind = _KINDS.get(str(model.get("type")), str(model.get("type")))
    bytes_inside = any(
        "ByteLevel" in str(content.get(part)) for part in ("pre_tokenizer", "decoder")
    )
    return "byte-bpe" if kind == "bpe" and bytes_inside else kind


def _spread(tokens: list[str]) -> list[str]:
    """Tokens from every part of the vocabulary, the early and frequent ones first."""
    step = max(1, len(tokens) // _SPREAD)
    return tokens[step // 2 :: step][:_SPREAD]
