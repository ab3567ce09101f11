"""The tokenizer a model is built on: text to ids and back."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers

from trivium.errors import TokenizerError
from trivium.text.encoding import Encoding
from trivium.text.loading import load_backend
from trivium.text.roles import role_tokens
from trivium.text.saving import save_folder, write_text
from trivium.text.symbols import (
    BYTE_PIECE,
    SPACE,
    continues_text,
    symbols_to_bytes,
)
from trivium.text.training import train_backend
from trivium.text.vocabulary import Vocabulary


class Tokenizer:
    """A trained tokenizer, whatever its kind, on top of `tokenizers.Tokenizer` (`.backend`).

    Truncation and padding that a loaded file asks for are switched off: a text is never cut in
    silence. A special token written in a text counts as that token, as in the libraries.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, roles: Mapping[str, str] | None = None
    ) -> None:
        """Wrap `backend`, which from now on must not change.

        `roles` (role -> token) overrule what conventional names tell.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self._told_roles = dict(roles or {})

    @classmethod
    def train(
        cls,
        kind: str,
        files: Iterable[str | Path] | str | Path | None = None,
        texts: Iterable[str] | None = None,
        *,
        vocab_size: int,
        special_tokens: Sequence[str] | None = None,
        lowercase: bool = True,
        min_frequency: int | None = None,
        character_coverage: float = 0.9995,
        sample_bytes: int = 1_000_000_000,
        seed: int = 0,
        progress: bool | Callable[[str], None] = True,
    ) -> Tokenizer:
        """Learn a vocabulary from text files or from an iterable of texts, which is read once.

        `kind` is whitespace, bpe, byte-bpe, unigram or wordpiece. `vocab_size` counts the special
        tokens, which come first in the order given; where the text cannot give that many tokens
        the vocabulary is smaller and one line says so. `lowercase` is for wordpiece (BERT's
        normaliser). The rarest characters, beyond the share `character_coverage` of the text,
        become unknown (sentencepiece's rule; not for whitespace and byte-bpe). At most
        `sample_bytes` bytes of text are learned from, drawn evenly from all of it by `seed`.
        `progress` takes the lines meant for the user; True prints them to stderr.

        Raises TokenizerError where the size cannot hold the alphabet, or there is no text.
        """
        return cls(
            train_backend(
                kind,
                files,
                texts,
                vocab_size=vocab_size,
                special_tokens=special_tokens,
                lowercase=lowercase,
                min_frequency=min_frequency,
                character_coverage=character_coverage,
                sample_bytes=sample_bytes,
                seed=seed,
                progress=progress,
            )
        )

    @classmethod
    def load(
        cls, path: str | Path, *, lowercase: bool | None = None, pattern: str | None = None
    ) -> Tokenizer:
        """Read a tokenizer that this or another library saved.

        `path` is a `tokenizer.json`, a BERT `vocab.txt`, a GPT-2 `vocab.json` or `merges.txt`, a
        sentencepiece `.model`, a `.tiktoken` rank file, or a folder that holds one of them.
        `lowercase` settles what a `vocab.txt` leaves open; `pattern` names the split of a
        `.tiktoken` file (cl100k, o200k, gpt2, llama3, qwen) or is the regular expression itself.
        """
        return cls(load_backend(Path(path), lowercase=lowercase, pattern=pattern))

    def save(self, path: str | Path) -> Path:
        """Write a `tokenizer.json`, or a folder that `transformers` loads with the roles in place.

        A path that ends in `.json` is a file, any other a folder. Returns the path of the JSON.
        """
        path = Path(path)
        try:
            if path.suffix == ".json" and not path.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, self.to_json())
                return path
            specials = [self.id_to_token(index) or "" for index in self.special_ids]
            return save_folder(path, self.to_json(), self.roles, specials)
        except OSError as error:
            raise TokenizerError(f"The tokenizer cannot be written to {path}: {error}.") from error

    def to_json(self) -> str:
        """The content of `tokenizer.json`."""
        return self.backend.to_str(pretty=True)

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool = True
    ) -> Encoding:
        """Encode one text, or two as a pair."""
        _check_text(text)
        if pair is not None:
            _check_text(pair)
        return self._encoding(
            self.backend.encode(text, pair, add_special_tokens=add_special_tokens)
        )

    def _encoding(self, found: tokenizers.Encoding) -> Encoding:
        ids = tuple(found.ids)
        return Encoding(
            ids=ids,
            tokens=tuple(self.tokens[index] for index in ids),
            offsets=tuple(found.offsets),
            type_ids=tuple(found.type_ids),
            word_ids=tuple(found.word_ids),
        )

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[Encoding]:
        """Encode many texts in parallel."""
        for text in texts:
            _check_text(text)
        found = self.backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return [self._encoding(encoding) for encoding in found]

    def encode_ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, without special tokens around them and without offsets: fast."""
        found = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some ids. Ids beyond the vocabulary stand for nothing and are left out."""
        return self.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def decode_batch(
        self, batch: Iterable[Iterable[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """The texts of many lists of ids."""
        try:
            return self.backend.decode_batch(
                [list(ids) for ids in batch], skip_special_tokens=skip_special_tokens
            )
        except (OverflowError, TypeError) as error:
            raise TokenizerError(f"Token ids are whole numbers from 0 on: {error}.") from error

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included: what a model must provide for."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        return max(vocabulary.values(), default=-1) + 1

    @functools.cached_property
    def tokens(self) -> list[str]:
        """Every token at the place of its id; an id that stands for nothing is an empty string."""
        found = [""] * self.vocab_size
        for token, index in self.backend.get_vocab(with_added_tokens=True).items():
            found[index] = token
        return found

    def token_to_id(self, token: str) -> int | None:
        """The id of a token, None where it is not in the vocabulary."""
        return self.backend.token_to_id(token)

    def id_to_token(self, index: int) -> str | None:
        """The token of an id, None where there is none."""
        return self.backend.id_to_token(index) if index >= 0 else None

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    @functools.cached_property
    def kind(self) -> str:
        """whitespace, bpe, byte-bpe, unigram or wordpiece, told from the model."""
        model = self._layout["model"]["type"]
        if model == "BPE":
            return "byte-bpe" if self._byte_level else "bpe"
        return {"WordLevel": "whitespace", "Unigram": "unigram", "WordPiece": "wordpiece"}[model]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides the ids; equal after saving and loading."""
        canonical = json.dumps(json.loads(self.backend.to_str()), sort_keys=True)
        return hashlib.sha256(canonical.encode("utf-8")).hexdigest()

    @functools.cached_property
    def roles(self) -> dict[str, str]:
        """Role (pad, unk, cls, sep, mask, bos, eos) -> token, as told, else by common names."""
        return {**role_tokens(self.backend.token_to_id), **self._told_roles}

    def _role_id(self, role: str) -> int | None:
        token = self.roles.get(role)
        return None if token is None else self.token_to_id(token)

    @property
    def pad_id(self) -> int | None:
        """The id that fills rows up."""
        return self._role_id("pad")

    @property
    def unk_id(self) -> int | None:
        """The id of what the vocabulary cannot write."""
        return self._role_id("unk")

    @property
    def cls_id(self) -> int | None:
        """The id that stands for a whole sequence (BERT)."""
        return self._role_id("cls")

    @property
    def sep_id(self) -> int | None:
        """The id that ends each sequence (BERT)."""
        return self._role_id("sep")

    @property
    def mask_id(self) -> int | None:
        """The id that hides a token."""
        return self._role_id("mask")

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text."""
        return self._role_id("bos")

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text."""
        return self._role_id("eos")

    @functools.cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens, sorted."""
        added = self.backend.get_added_tokens_decoder()
        return tuple(sorted(index for index, token in added.items() if token.special))

    @functools.cached_property
    def sentinel_ids(self) -> tuple[int, ...]:
        """The ids of `<extra_id_0>`, `<extra_id_1>`, ... (T5), as far as they go."""
        found: list[int] = []
        while (index := self.token_to_id(f"<extra_id_{len(found)}>")) is not None:
            found.append(index)
        return tuple(found)

    @functools.cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """What a document gets before it in a training shard.

        (cls) where the tokenizer has cls and sep, else (bos) where its post-processor adds one.
        """
        if self.cls_id is not None and self.sep_id is not None:
            return (self.cls_id,)
        first = self.backend.encode("a", add_special_tokens=True).ids[:1]
        return (self.bos_id,) if self.bos_id is not None and first == [self.bos_id] else ()

    @functools.cached_property
    def suffix_ids(self) -> tuple[int, ...]:
        """What a document gets after it in a training shard: (sep) beside cls, else (eos)."""
        if self.cls_id is not None and self.sep_id is not None:
            return (self.sep_id,)
        return () if self.eos_id is None else (self.eos_id,)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """What objectives need to know of this tokenizer."""
        ids = range(self.vocab_size)
        return Vocabulary(
            size=self.vocab_size,
            kind=self.kind,
            special_ids=self.special_ids,
            pad_id=self.pad_id,
            unk_id=self.unk_id,
            cls_id=self.cls_id,
            sep_id=self.sep_id,
            mask_id=self.mask_id,
            bos_id=self.bos_id,
            eos_id=self.eos_id,
            sentinel_ids=self.sentinel_ids,
            prefix_ids=self.prefix_ids,
            suffix_ids=self.suffix_ids,
            word_continuations=self.continues_word,
            texts=lambda: self.decode_batch([index] for index in ids),
        )

    def continues_word(self) -> list[bool]:
        """For each id, whether the token goes on with the word before it.

        wordpiece: tokens that begin with ##. byte-bpe, and bpe or unigram with the space symbol
        U+2581: tokens that begin with no space and with a letter, digit, mark or part of a
        character; CJK characters and punctuation are words of their own. Special tokens: False.
        """
        prefix = self._layout["model"].get("continuing_subword_prefix") or ""
        special = set(self.special_ids)
        found = []
        for index, token in enumerate(self.tokens):
            if index in special or not token or self.kind == "whitespace":
                found.append(False)
            elif prefix:
                found.append(token.startswith(prefix) and token != prefix)
            elif self._byte_level or self._spaced:
                found.append(continues_text(self._raw_bytes(token)))
            else:
                found.append(False)
        return found

    def token_bytes(self, index: int) -> int:
        """How many bytes of text an id stands for.

        Exact for byte-bpe and byte pieces. A U+2581 counts as the space it replaces; ## counts as
        nothing, nor does the space between two words of kinds that do not write it. Special tokens
        stand for no text: 0.
        """
        token = self.id_to_token(index)
        if token is None or index in set(self.special_ids):
            return 0
        prefix = self._layout["model"].get("continuing_subword_prefix") or ""
        return len(self._raw_bytes(token.removeprefix(prefix)))

    def _raw_bytes(self, token: str) -> bytes:
        if self._byte_level:
            data = symbols_to_bytes(token)
            return token.encode("utf-8") if data is None else data
        if self._spaced:
            single = BYTE_PIECE.fullmatch(token)
            if single and self._layout["model"].get("byte_fallback"):
                return bytes([int(single[1], 16)])
            token = token.replace(SPACE, " ")
        return token.encode("utf-8")

    @functools.cached_property
    def _layout(self) -> dict:
        """`tokenizer.json` without the vocabulary."""
        layout = json.loads(self.backend.to_str())
        for large in ("vocab", "merges"):
            layout["model"].pop(large, None)
        return layout

    @functools.cached_property
    def _byte_level(self) -> bool:
        parts = ("pre_tokenizer", "decoder")
        return any('"ByteLevel"' in json.dumps(self._layout[part]) for part in parts)

    @functools.cached_property
    def _spaced(self) -> bool:
        """Whether tokens write a space as U+2581."""
        parts = {part: self._layout[part] for part in ("normalizer", "pre_tokenizer", "decoder")}
        return SPACE in json.dumps(parts, ensure_ascii=False)

    def __reduce__(self) -> tuple:
        return _restore, (self.backend.to_str(), self._told_roles)


def _restore(content: str, roles: Mapping[str, str]) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(content), roles)


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise TokenizerError(f"A text to encode is a str, not {type(text).__name__}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(f"The text is no valid Unicode: {error}.") from error


_PARALLELISM = "TOKENIZERS_PARALLELISM"
_unset_at_fork: list[bool] = []


def _before_fork() -> None:
    """Let a forked child work on one thread without the library's warning about it."""
    _unset_at_fork.append(_PARALLELISM not in os.environ)
    os.environ.setdefault(_PARALLELISM, "false")


def _after_fork() -> None:
    if _unset_at_fork.pop():
        del os.environ[_PARALLELISM]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
