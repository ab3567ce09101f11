"""The tokenizer of a Hugging Face folder: any of its formats, with what its options ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers, processors

from trivium.errors import TokenizerError
from trivium.interop.plain_files import read_json_if_there
from trivium.text import Tokenizer
from trivium.text.roles import ROLES, role_tokens

_FORMATS = ("tokenizer.json", "vocab.txt", "merges.txt")
_ADDED = "added_tokens.json"

# A sentencepiece file does not say what stands around a text; the class that reads it does.
# Class -> (role of the token before a text, role of the token after it).
_FRAMES: Mapping[str, tuple[str | None, str | None]] = {
    "AlbertTokenizer": ("cls", "sep"),
    "LlamaTokenizer": ("bos", None),
    "T5Tokenizer": (None, "eos"),
}
_NOTHING = (None, None)
_CLASSES = {
    "albert": "AlbertTokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "t5": "T5Tokenizer",
}
"""Model type -> class of the tokenizer, where no `tokenizer_config.json` names it."""

_SENTINELS = 100  # What T5's tokenizer adds for the gaps of its objective unless told otherwise.


def read_tokenizer(
    folder: Path,
    options: Mapping[str, Any],
    *,
    model_type: str | None = None,
    lowercase: bool | None = None,
) -> Tokenizer | None:
    """The tokenizer in a folder, None where there is none.

    Args:
        folder: with `tokenizer.json`, `vocab.txt`, `vocab.json` and `merges.txt`, or `*.model`.
        options: those of `tokenizer_config.json` and `special_tokens_map.json`.
        model_type: that of the model, which says what tokenizer it has if the options do not.
        lowercase: settles what a `vocab.txt` without options leaves open.

    Raises:
        TokenizerError: a file that cannot be read.
    """
    source = _source(folder)
    if source is None:
        return None
    backend = Tokenizer.load(source, lowercase=lowercase).backend
    named = str(options.get("tokenizer_class") or "").removesuffix("Fast")
    kind = named or _CLASSES.get(model_type or "", "")
    pieces = source.suffix == ".model"
    if pieces:
        _as_its_class_does(backend, kind, options)
    _add_missing(backend, _added(folder, options))
    roles = _roles(options)
    roles = {role: token for role, token in roles.items() if backend.token_to_id(token) is not None}
    _follow_bert_options(backend, options)
    backend.add_special_tokens([token for token in roles.values() if _is_plain(backend, token)])
    every = {**role_tokens(backend.token_to_id), **roles}
    _frame(backend, options, every, _FRAMES.get(kind, _NOTHING) if pieces else _NOTHING)
    return Tokenizer(backend, roles)


def _source(folder: Path) -> Path | None:
    for name in _FORMATS:
        if (folder / name).is_file():
            return folder / name
    found = sorted(folder.glob("*.model"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise TokenizerError(f"{folder} holds several tokenizers ({names}): keep one of them.")
    return found[0] if found else None


def _roles(options: Mapping[str, Any]) -> dict[str, str]:
    """Role -> token; the options have a text or a table with its `content`."""
    found = {role: _content(options.get(f"{role}_token")) for role in ROLES}
    return {role: token for role, token in found.items() if token}


def _content(token: Any) -> str | None:
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


def _is_plain(backend: tokenizers.Tokenizer, token: str) -> bool:
    return all(not one.special for one in _all_added(backend) if one.content == token)


def _all_added(backend: tokenizers.Tokenizer) -> list[AddedToken]:
    return list(backend.get_added_tokens_decoder().values())


def _added(folder: Path, options: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Id -> token of what was added after the vocabulary was made."""
    found = {
        int(index): AddedToken(token, special=False, normalized=False)
        for token, index in read_json_if_there(folder / _ADDED).items()
    }
    for index, token in (options.get("added_tokens_decoder") or {}).items():
        flags = ("lstrip", "rstrip", "normalized", "single_word", "special")
        found[int(index)] = AddedToken(
            str(token["content"]), **{flag: bool(token.get(flag, False)) for flag in flags}
        )
    return found


def _add_missing(backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken]) -> None:
    for index in sorted(added):
        token = added[index]
        there = backend.token_to_id(token.content)
        if there is None:
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
            there = backend.token_to_id(token.content)
        if there != index:
            raise TokenizerError(
                f"the options of the tokenizer give {token.content!r} the id {index}, but its "
                f"vocabulary gives {there}."
            )


def _as_its_class_does(
    backend: tokenizers.Tokenizer, kind: str, options: Mapping[str, Any]
) -> None:
    """What classes of theirs do beside their sentencepiece file."""
    if kind == "T5Tokenizer":
        count = int(options.get("extra_ids", _SENTINELS))
        backend.add_special_tokens([f"<extra_id_{n}>" for n in reversed(range(count))])
    if kind == "AlbertTokenizer":
        # Quotes, accents and case first (Lan et al. 2019, as released).
        steps: list[normalizers.Normalizer] = [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
        ]
        if not options.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if options.get("do_lower_case", True):
            steps.append(normalizers.Lowercase())
        backend.normalizer = normalizers.Sequence([*steps, backend.normalizer])


def _follow_bert_options(backend: tokenizers.Tokenizer, options: Mapping[str, Any]) -> None:
    """Let the options overrule BERT's normaliser in a `tokenizer.json`, as theirs do."""
    layout = json.loads(backend.to_str())["normalizer"]
    if not layout or layout.get("type") != "BertNormalizer":
        return
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=layout["clean_text"],
        handle_chinese_chars=options.get("tokenize_chinese_chars", layout["handle_chinese_chars"]),
        strip_accents=options.get("strip_accents", layout["strip_accents"]),
        lowercase=options.get("do_lower_case", layout["lowercase"]),
    )


def _frame(
    backend: tokenizers.Tokenizer,
    options: Mapping[str, Any],
    roles: Mapping[str, str],
    usual: tuple[str | None, str | None],
) -> None:
    """Put tokens before and after a text where the options or the class of theirs say so."""
    told = (options.get("add_bos_token"), options.get("add_eos_token"))
    if usual == _NOTHING and not any(told):
        return
    there = _frame_of(backend)
    wanted: list[list[str]] = []
    for flag, end, role, tokens in zip(told, ("bos", "eos"), usual, there, strict=True):
        role = role if flag is None else end if flag else None
        kept = tokens if flag is None else []
        wanted.append([roles[role]] if role is not None and role in roles else kept)
    before, after = wanted
    if (before, after) == there:
        return
    ids = {token: backend.token_to_id(token) for token in (*before, *after)}
    again = [] if usual[0] == "cls" else [f"{token}:1" for token in before]
    template = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *again, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=list(ids.items()),
    )
    offsets = backend.post_processor
    if isinstance(offsets, processors.ByteLevel):
        template = processors.Sequence([offsets, template])
    backend.post_processor = template


def _frame_of(backend: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """The tokens that already stand before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).tokens
    framed = backend.encode("a").tokens
    starts = range(len(framed) - len(plain) + 1)
    start = next(start for start in starts if framed[start : start + len(plain)] == plain)
    return framed[:start], framed[start + len(plain) :]
