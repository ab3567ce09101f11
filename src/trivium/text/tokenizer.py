"""`Tokenizer`: converts text to token ids and back."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken

from trivium.errors import TokenizerError, did_you_mean
from trivium.files import write_file, write_json
from trivium.text.byte_level import build_byte_level
from trivium.text.encoding import Encoding
from trivium.text.literals import ChatText, Literals, SpecialTokens
from trivium.text.loading import convert_library_errors, load_backend
from trivium.text.reservoir import read_blocks
from trivium.text.roles import RoleId, build_hf_files, infer_roles, read_options, read_roles
from trivium.text.symbols import BYTE_PIECE, SPACE, continues_word, make_readable, symbols_to_bytes
from trivium.text.vocabulary import Vocabulary

Progress = bool | Callable[[str], None]
_BATCH = 256  # the number of texts that encode_iterable encodes in parallel
_COMPONENT_TYPE = re.compile(r'"type": "(\w+)"')


class Tokenizer:
    """A trained tokenizer of any kind, based on `tokenizers.Tokenizer` (the attribute `backend`).

    If a text contains the name of a special token, the name is encoded as that token, as in other
    libraries. `reading("text")` returns a variant of the tokenizer that encodes such names as plain
    text. If a loaded file has settings for truncation or padding, they are disabled, so that texts
    are never truncated silently.
    """

    kinds: ClassVar[dict[str, Any]] = {}
    """For each kind of tokenizer, such as "wordpiece", its `TokenizerConfig` class."""
    pad_id = RoleId("pad")
    unk_id = RoleId("unk")
    cls_id = RoleId("cls")
    sep_id = RoleId("sep")
    mask_id = RoleId("mask")
    bos_id = RoleId("bos")
    eos_id = RoleId("eos")

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: Mapping[str, str] | None = None,
        control: frozenset[str] | None = None,
    ) -> None:
        """Wrap a tokenizer of the `tokenizers` library.

        Args:
            backend: the tokenizer.
            roles: the special tokens of some roles, by role. The tokens of all other roles are
                inferred from their usual names.
            control: the special tokens whose names in a text are encoded as special tokens. The
                names of all others are encoded as plain text. None stands for all special tokens.
        """
        if control is None:
            backend.no_truncation()
            backend.no_padding()
        self.backend, self._control = backend, control
        self._explicit_roles = dict(roles or {})
        self._readings: dict[frozenset[str] | None, Tokenizer] = {control: self}

    def reading(self, special_tokens: SpecialTokens, *, control: Iterable[str] = ()) -> Tokenizer:
        """Return a variant of this tokenizer that encodes special-token names differently.

        Args:
            special_tokens: how special-token names in a text are encoded: as special tokens
                ("special") or as plain text ("text").
            control: the names that are encoded as special tokens even if `special_tokens` is
                "text".
        """
        all_control = special_tokens == "special" or not self.special_tokens
        key = None if all_control else frozenset(control).intersection(self.special_tokens)
        if key not in self._readings:
            other = Tokenizer(self.backend, self._explicit_roles, key)
            other._readings = self._readings
            self._readings[key] = other
        return self._readings[key]

    @classmethod
    def train(
        cls,
        kind: str,
        files: Iterable[str | Path] | str | Path | None = None,
        texts: Iterable[str] | None = None,
        *,
        progress: Progress = True,
        **keys: Any,
    ) -> Tokenizer:
        """Train a tokenizer on text files or on an iterable of texts. Returns the tokenizer.

        Args:
            kind: one of `Tokenizer.kinds`, such as "wordpiece".
            files: the paths of text files.
            texts: the texts, which are iterated once. Give either `files` or `texts`.
            progress: where messages for the user go, as in `TokenizerConfig.train`.
            keys: settings of the kind's `TokenizerConfig`, such as `vocab_size`. None stands for
                the default.

        Raises:
            RecipeError: a setting is unknown, or its value is invalid.
            TokenizerError: the vocabulary size is smaller than the alphabet.
            DataError: there is no text.
        """
        if (files is None) == (texts is None):
            raise TokenizerError("Give the text to train on as files or as texts, one of the two.")
        if isinstance(texts, str):
            raise TokenizerError("texts is a list or iterator of texts, not one string.")
        if texts is None:
            assert files is not None
            texts = read_blocks([files] if isinstance(files, str | Path) else files)
        keys = {key: value for key, value in keys.items() if value is not None}
        config = cls.get_config_class(kind).from_tree(keys, where=f"{kind} tokenizer")
        return config.train(texts, progress=progress)

    @classmethod
    def get_config_class(cls, kind: str) -> Any:
        """Return the `TokenizerConfig` class for a kind of tokenizer, such as "wordpiece".

        Raises TokenizerError if there is no such kind.
        """
        if kind not in cls.kinds:
            known = f"{', '.join(cls.kinds)}.{did_you_mean(kind, cls.kinds)}"
            raise TokenizerError(f"There is no tokenizer kind {kind!r}; the kinds are {known}")
        return cls.kinds[kind]

    @classmethod
    def load(
        cls, path: str | Path, *, lowercase: bool | None = None, pattern: str | None = None
    ) -> Tokenizer:
        """Load a tokenizer that was saved by this or another library.

        The roles of special tokens are read from `special_tokens_map.json` and
        `tokenizer_config.json` in the same folder, in the formats of transformers 4 and 5.

        Args:
            path: a `tokenizer.json`, a BERT `vocab.txt`, a GPT-2 `vocab.json` or `merges.txt`, a
                sentencepiece `.model`, a `.tiktoken` rank file, or a folder that contains one of
                them.
            lowercase: whether to lower-case the text; only for a `vocab.txt`. If None, the setting
                is read from `tokenizer_config.json`, or else inferred from the vocabulary.
            pattern: the pre-tokenizer, only for a `.tiktoken` file: a name (cl100k, o200k, gpt2,
                llama3, qwen) or a regular expression. If None, it is inferred from the file.

        Raises TokenizerError if there is no tokenizer, or if it cannot be read.
        """
        backend = load_backend(Path(path), lowercase=lowercase, pattern=pattern)
        path, options = Path(path), dict[str, Any]()
        if path.is_dir() or path.name == "tokenizer.json":
            folder = path if path.is_dir() else path.parent
            for name in ("special_tokens_map.json", "tokenizer_config.json"):
                options |= read_options(folder / name)
        return cls(backend, read_roles(options, backend.token_to_id))

    @classmethod
    def from_merges(
        cls,
        vocabulary: Mapping[int, bytes],
        merges: Sequence[tuple[bytes, bytes]],
        special_tokens: Sequence[str] = (),
        *,
        pattern: str = "gpt2",
    ) -> Tokenizer:
        """Create a byte-level BPE tokenizer from a vocabulary and merges.

        Special tokens that are not in the vocabulary get the next ids. `pattern` is the
        pre-tokenizer, as in `load`.

        >>> vocabulary = {i: bytes([i]) for i in range(256)} | {256: b"he"}
        >>> Tokenizer.from_merges(vocabulary, [(b"h", b"e")], ["<end>"]).encode("the<end>").ids
        (116, 256, 257)
        """
        return cls(build_byte_level(vocabulary, merges, special_tokens, pattern=pattern))

    def save(self, path: str | Path) -> Path:
        """Write the tokenizer to a file or folder. Returns the path of the `tokenizer.json`.

        If the path ends in `.json`, only this file is written. Any other path is a folder. It also
        gets the files from which `transformers` reads the roles of special tokens.
        """
        path = Path(path)
        whole_folder = path.suffix != ".json" or path.is_dir()
        file = path / "tokenizer.json" if whole_folder else path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, self.to_json())
            if whole_folder:
                for name, content in build_hf_files(self.roles, self.special_tokens).items():
                    write_json(path / name, content)
        except OSError as error:
            raise TokenizerError(f"The tokenizer cannot be written to {path}: {error}.") from error
        return file

    def to_json(self) -> str:
        """Return the content of `tokenizer.json`."""
        return self.backend.to_str(pretty=True)

    def extend(
        self, tokens: Iterable[str] = (), *, special_tokens: Iterable[str] = ()
    ) -> Tokenizer:
        """Return a copy of the tokenizer with more tokens, which have the next ids.

        New tokens are matched exactly, before any normalization, even inside longer words. Longer
        tokens are matched first.

        Args:
            tokens: words or symbols.
            special_tokens: control tokens, which decoding leaves out.

        Raises:
            TokenizerError: no token is given, or a token is empty, repeated or already known.
        """
        words, controls = list(tokens), list(special_tokens)
        names, known = [*words, *controls], self.backend.get_vocab(with_added_tokens=True)
        for problem, wrong in (
            ("are empty", [name for name in names if not name.strip()]),
            ("are given twice", [name for name, count in Counter(names).items() if count > 1]),
            ("are in the vocabulary already", [name for name in names if name in known]),
        ):
            if wrong:
                shown = ", ".join(map(repr, wrong[:20])) + ", ..." * (len(wrong) > 20)
                raise TokenizerError(f"new tokens that {problem}: {shown}. Leave them out.")
        if not names:
            raise TokenizerError("there are no new tokens: name at least one.")
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.add_tokens([AddedToken(one, normalized=False, special=False) for one in words])
        backend.add_special_tokens([AddedToken(one, normalized=False) for one in controls])
        result = Tokenizer(backend, self._explicit_roles, self._control)
        for index, name in enumerate(names, self.vocab_size):
            if result.token_to_id(name) != index:
                raise TokenizerError(
                    f"{name!r} cannot be a new token: the ids of this vocabulary leave out some "
                    "numbers, which the new tokens would get."
                )
        return result

    def split_new_tokens(self, extended: Tokenizer) -> dict[int, list[int]]:
        """Tokenize the text of each new token of `extended`, a result of `extend`.

        Returns a dictionary from the ids of the new tokens to the ids of the tokens into which this
        tokenizer splits them. Unknown tokens are left out.
        """
        added = range(self.vocab_size, extended.vocab_size)
        pieces = self.encode_ids_batch([extended.tokens[index] for index in added])
        return {
            index: [one for one in ids if one != self.unk_id]
            for index, ids in zip(added, pieces, strict=True)
        }

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool = True
    ) -> Encoding:
        """Encode a text or a pair of texts.

        If the text is a `ChatText`, special-token names that come from the chat template are always
        encoded as special tokens.

        Raises TokenizerError if the text is not a string, or contains a lone surrogate.
        """
        with convert_library_errors():
            if isinstance(text, ChatText) and text.is_protected:
                return self._convert(
                    *self.literals.encode(text, add_special_tokens=add_special_tokens)
                )
            encoder = self.backend if isinstance(text, ChatText) else self._encoder
            return self._convert(encoder.encode(text, pair, add_special_tokens=add_special_tokens))

    def _convert(
        self, encoding: tokenizers.Encoding, offsets: Sequence[tuple[int, int]] | None = None
    ) -> Encoding:
        """Convert a result of the `tokenizers` library to an `Encoding`.

        If `offsets` is given, it replaces the character offsets of the tokens.
        """
        ids = tuple(encoding.ids)
        return Encoding(
            ids=ids,
            tokens=tuple(self.readable_tokens[index] for index in ids),
            symbols=tuple(self.tokens[index] for index in ids),
            offsets=tuple(encoding.offsets if offsets is None else offsets),
            type_ids=tuple(encoding.type_ids),
            word_ids=tuple(encoding.word_ids),
        )

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[Encoding]:
        """Encode many texts in parallel. Returns one `Encoding` per text."""
        if any(isinstance(text, ChatText) for text in texts):
            return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]
        with convert_library_errors():
            batch = self._encoder.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return [self._convert(encoding) for encoding in batch]

    def encode_ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens. Faster than `encode_batch`."""
        with convert_library_errors():
            batch = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def encode_iterable(self, texts: Iterable[str]) -> Iterator[int]:
        """Yield the token ids of many texts as one stream, without special tokens.

        Each text, such as a line of a file, is encoded separately. Only a small batch of texts is
        in memory at a time.
        """
        texts = iter(texts)
        while batch := list(itertools.islice(texts, _BATCH)):
            for ids in self.encode_ids_batch(batch):
                yield from ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Convert token ids to text. Ids outside the vocabulary are skipped."""
        return self.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def decode_batch(
        self, batch: Iterable[Iterable[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Convert many lists of token ids to texts. Ids outside the vocabulary are skipped."""
        try:
            return self.backend.decode_batch(
                [list(ids) for ids in batch], skip_special_tokens=skip_special_tokens
            )
        except (OverflowError, TypeError) as error:
            raise TokenizerError(f"Token ids are whole numbers from 0 on: {error}.") from error

    def split_words(self, text: str) -> list[str]:
        """Normalize a text, and split it into words with the pre-tokenizer."""
        with convert_library_errors():
            if self.backend.normalizer is not None:
                text = self.backend.normalizer.normalize_str(text)
            if self.backend.pre_tokenizer is None:
                return [text] if text else []
            return [word for word, _ in self.backend.pre_tokenizer.pre_tokenize_str(text)]

    @functools.cached_property
    def vocab_size(self) -> int:
        """The number of rows of the embedding matrix: the largest token id plus 1.

        Added tokens are included.
        """
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @functools.cached_property
    def tokens(self) -> list[str]:
        """The tokens as stored in the vocabulary, indexed by id.

        The token of an unused id is an empty string.
        """
        tokens = [""] * self.vocab_size
        for token, index in self.backend.get_vocab(with_added_tokens=True).items():
            tokens[index] = token
        return tokens

    @functools.cached_property
    def readable_tokens(self) -> list[str]:
        """The tokens in readable form, indexed by id.

        For byte-level vocabularies, this is the text of each token, with U+2581 for a space.
        """
        if not self._is_byte_level:
            return self.tokens
        special = set(self.special_ids)
        return [
            token if index in special else make_readable(data)
            for index, (token, data) in enumerate(zip(self.tokens, self.token_bytes, strict=True))
        ]

    @functools.cached_property
    def token_bytes(self) -> list[bytes]:
        """The text of each token as UTF-8 bytes, indexed by id.

        U+2581 is converted to a space, and the prefix ## is removed. The text of a special token is
        its name.
        """
        prefix = self.model.get("continuing_subword_prefix") or ""
        special = set(self.special_ids)
        return [
            token.encode() if index in special else self._to_bytes(token.removeprefix(prefix))
            for index, token in enumerate(self.tokens)
        ]

    def _to_bytes(self, token: str) -> bytes:
        """Convert a token, as stored in the vocabulary, to the UTF-8 bytes of its text."""
        if self._is_byte_level:
            data = symbols_to_bytes(token)
            return token.encode() if data is None else data
        if self._uses_space_symbol:
            single = BYTE_PIECE.fullmatch(token)
            if single and self.model.get("byte_fallback"):
                return bytes([int(single[1], 16)])
            token = token.replace(SPACE, " ")
        return token.encode()

    @functools.cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges of a BPE tokenizer, in the order of their priority; empty for other kinds."""
        return [(self._to_bytes(a), self._to_bytes(b)) for a, b in self.model.get("merges", [])]

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None if it is not in the vocabulary."""
        return self.backend.token_to_id(token)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    @functools.cached_property
    def kind(self) -> str:
        """The kind of the tokenizer, such as "wordpiece".

        It is the kind in `Tokenizer.kinds` that shares the most components with this tokenizer.
        """
        components = {name: each.component_types for name, each in self.kinds.items()}
        matching = [
            kind for kind in components if self._component_types.issuperset(components[kind])
        ]
        return max(matching, key=lambda kind: len(components[kind]))

    @property
    def other_files(self) -> dict[str, str]:
        """The contents of files for programs that do not read `tokenizer.json`, by file name.

        An example is BERT's `vocab.txt`.
        """
        return self.get_config_class(self.kind).other_files(self)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 hash of the content of `tokenizer.json`, which determines the token ids.

        The hash stays the same when the tokenizer is saved and loaded.
        """
        canonical = json.dumps(self._layout, sort_keys=True)
        return hashlib.sha256(canonical.encode("utf-8")).hexdigest()

    @functools.cached_property
    def roles(self) -> dict[str, str]:
        """The special token of each role (pad, unk, cls, sep, mask, bos, eos), by role."""
        return {**infer_roles(self.special_tokens), **self._explicit_roles}

    @functools.cached_property
    def special_tokens(self) -> dict[str, int]:
        """The id of each special token, by its name."""
        added = sorted(self.backend.get_added_tokens_decoder().items())
        return {token.content: index for index, token in added if token.special}

    @property
    def split_special_tokens(self) -> bool:
        """Whether special-token names in the input are encoded as plain text.

        The setting has the same name in transformers.
        """
        return self._control is not None

    @functools.cached_property
    def literals(self) -> Literals:
        """The encoder that treats special-token names in the input as plain text."""
        return Literals(self._layout, self.special_tokens)

    @functools.cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        """The `tokenizers` object that encodes texts.

        It encodes special-token names as plain text, unless they are in `control`. If `control` is
        None, it encodes all of them as special tokens.
        """
        return self.backend if self._control is None else self.literals.build(self._control)

    @functools.cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens, sorted."""
        return tuple(self.special_tokens.values())

    @functools.cached_property
    def sentinel_ids(self) -> tuple[int, ...]:
        """The ids of T5's sentinels `<extra_id_0>`, `<extra_id_1>`, ... in the vocabulary."""
        return self.vocabulary.sentinel_ids

    @functools.cached_property
    def has_template(self) -> bool:
        """Whether the post-processor defines which special tokens are added to a text.

        It may define that no special tokens are added.
        """
        steps = _COMPONENT_TYPE.findall(json.dumps(self._layout["post_processor"]))
        return not {"ByteLevel", "Sequence"}.issuperset(steps)

    @functools.cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens before each document in a token shard.

        This is the cls token if the tokenizer has both cls and sep. Otherwise it is the bos token
        if the post-processor of the tokenizer adds one.
        """
        if self.cls_id is not None and self.sep_id is not None:
            return (self.cls_id,)
        first = self.backend.encode("a", add_special_tokens=True).ids[:1]
        return (self.bos_id,) if self.bos_id is not None and first == [self.bos_id] else ()

    @functools.cached_property
    def suffix_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens after each document in a token shard.

        This is the sep token if the tokenizer has both cls and sep. Otherwise it is the eos token,
        if any.
        """
        if self.cls_id is not None and self.sep_id is not None:
            return (self.sep_id,)
        return () if self.eos_id is None else (self.eos_id,)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The properties of the token ids that training objectives use, such as special ids."""
        return Vocabulary.from_special_tokens(
            self.special_tokens,
            {role: self.token_to_id(token) for role, token in self.roles.items()},
            size=self.vocab_size,
            kind=self.kind,
            prefix_ids=self.prefix_ids,
            suffix_ids=self.suffix_ids,
            word_continuations=self.continues_word,
            texts=lambda: self.decode_batch([index] for index in range(self.vocab_size)),
            encode=(lambda text: self.encode_ids_batch([text])[0]) if self._is_byte_level else None,
        )

    def continues_word(self) -> list[bool]:
        """Return for each token id whether the token continues the word before it.

        In a WordPiece vocabulary, these are the tokens that begin with ##. In a byte-level
        vocabulary, or one with the space symbol U+2581, a token continues a word if it begins with
        a letter, a digit, a combining mark or a UTF-8 continuation byte. CJK characters, spaces,
        punctuation and special tokens never continue a word. In other vocabularies, no token does.
        """
        prefix = self.model.get("continuing_subword_prefix") or ""
        if prefix:
            flags = [token.startswith(prefix) and token != prefix for token in self.tokens]
        elif self._is_byte_level or self._uses_space_symbol:
            flags = [continues_word(data) for data in self.token_bytes]
        else:
            flags = [False] * self.vocab_size
        for index in self.special_ids:
            flags[index] = False
        return flags

    @functools.cached_property
    def model(self) -> dict[str, Any]:
        """The section `model` of `tokenizer.json`: a type, a vocabulary, merges and options."""
        return self._layout["model"]

    @functools.cached_property
    def _layout(self) -> dict[str, Any]:
        """The content of `tokenizer.json` as a dictionary."""
        return json.loads(self.backend.to_str())

    @functools.cached_property
    def _component_types(self) -> frozenset[str]:
        """The types of the model, the pre-tokenizers and the decoders in `tokenizer.json`."""
        splits = json.dumps([self._layout["pre_tokenizer"], self._layout["decoder"]])
        return frozenset([self.model["type"], *_COMPONENT_TYPE.findall(splits)])

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        """Whether each character of a stored token represents one byte, as in GPT-2."""
        return "ByteLevel" in self._component_types

    @property
    def joins_bytes(self) -> bool:
        """Whether the text of several tokens is the concatenation of their `token_bytes`.

        The decoders of whole words and of WordPiece add spaces between tokens.
        """
        return self._is_byte_level or self._uses_space_symbol

    @functools.cached_property
    def _uses_space_symbol(self) -> bool:
        """Whether tokens contain U+2581 instead of spaces."""
        parts = [self._layout[part] for part in ("normalizer", "pre_tokenizer", "decoder")]
        return SPACE in json.dumps(parts, ensure_ascii=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.backend, self._explicit_roles, self._control)
