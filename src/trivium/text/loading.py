"""Loads tokenizers in the file formats of other libraries."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from trivium.errors import TokenizerError, shorten
from trivium.files import reject_lfs_pointer
from trivium.text.byte_level import check_ids, load_tiktoken
from trivium.text.roles import (
    BERT_SPECIALS,
    NAMES,
    add_bert_template,
    find_token_for_role,
    read_options,
    to_added_tokens,
)
from trivium.text.sentencepiece_file import load_sentencepiece
from trivium.text.symbols import SCORE_DIGITS, WORDPIECE_PREFIX

FORMATS = "tokenizer.json, vocab.txt, vocab.json with merges.txt, *.model or *.tiktoken"
_CONFIG = "tokenizer_config.json"
# Families whose vocab.json and merges.txt define the byte-level BPE of GPT-2. Other families (CLIP,
# Qwen, CTRL, GPT-1) have the same files but different pre-tokenizers.
_GPT2_FAMILIES = [
    "gpt2",
    "roberta",
    "bart",
    "longformer",
    "opt",
    "gpt_neo",
    "gptj",
    "led",
    "codegen",
]


def load_backend(
    path: Path, *, lowercase: bool | None, pattern: str | None
) -> tokenizers.Tokenizer:
    """Load a tokenizer of the `tokenizers` library from a file or folder.

    The formats and the arguments are those of `Tokenizer.load`.

    Raises TokenizerError if there is no tokenizer, or if it cannot be read.
    """
    if not path.exists():
        raise TokenizerError(f"There is no tokenizer at {path}. It can be a folder or {FORMATS}.")
    file = find_tokenizer_file(path) if path.is_dir() else path
    if file is None:
        raise TokenizerError(f"{path} contains no tokenizer: none of {FORMATS}.")
    try:
        backend = _load_file(file, lowercase=lowercase, pattern=pattern)
        _check_template(backend)
        return backend
    except BaseException as error:
        if not _is_library_error(error):
            raise
        if isinstance(error, TokenizerError) and str(file.parent) in str(error):
            raise
        reason = shorten(str(error), 300)
        raise TokenizerError(f"{file} cannot be read as a tokenizer: {reason}") from error


@contextlib.contextmanager
def convert_library_errors() -> Iterator[None]:
    """Context manager that converts errors of the `tokenizers` library to TokenizerError."""
    try:
        yield
    except BaseException as error:  # also raised for a missing unknown token
        if not _is_library_error(error):
            raise
        raise TokenizerError(f"Encoding needs a str of valid Unicode: {error}.") from None


def _is_library_error(error: BaseException) -> bool:
    """Return whether an exception may come from the `tokenizers` library.

    Exceptions from panics in its Rust code are not subclasses of `Exception`.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _check_template(backend: tokenizers.Tokenizer) -> None:
    """Raise TokenizerError if the post-processor adds an id that is not in the vocabulary."""
    for index in (*backend.encode("").ids, *backend.encode("", "").ids):
        if backend.id_to_token(index) is None:
            raise TokenizerError(f"it adds the id {index} around a text, but no token has this id.")


def find_tokenizer_file(folder: Path) -> Path | None:
    """Return the tokenizer file in a folder, or None if there is none.

    Raises TokenizerError if there are several `.model` or `.tiktoken` files.
    """
    for name in ("tokenizer.json", "vocab.txt", "merges.txt"):
        if (folder / name).is_file():
            return folder / name
    for pattern in ("*.model", "*.tiktoken"):
        files = sorted(folder.glob(pattern))
        if len(files) == 1:
            return files[0]
        if files:
            names = ", ".join(file.name for file in files)
            raise TokenizerError(f"{folder} has several tokenizers ({names}): name one of them.")
    return None


def _load_file(file: Path, *, lowercase: bool | None, pattern: str | None) -> tokenizers.Tokenizer:
    """Load a tokenizer file with the loader for its suffix."""
    reject_lfs_pointer(file)
    match file.suffix:
        case ".tiktoken":
            return load_tiktoken(file, pattern=pattern)
        case ".model":
            return load_sentencepiece(file, read_options(file.with_name(_CONFIG)))
        case ".txt" if file.name == "merges.txt":
            return _load_gpt2(file.with_name("vocab.json"), file)
        case ".txt":
            return _load_wordpiece(file, lowercase)
        case ".json":
            content = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(content, dict) and isinstance(content.get("model"), dict):
                return _load_tokenizer_json(content)
            return _load_gpt2(file, file.with_name("merges.txt"))
        case _:
            raise TokenizerError(f"{file} is not a known kind of tokenizer file; known: {FORMATS}.")


def _load_tokenizer_json(content: dict[str, Any]) -> tokenizers.Tokenizer:
    """Load a tokenizer from the content of a `tokenizer.json`.

    The scores of a Unigram model are rounded, so that saving does not change them.
    """
    if content["model"].get("type") == "Unigram":
        for piece in content["model"]["vocab"]:
            piece[1] = round(piece[1], SCORE_DIGITS)
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    if isinstance(content["model"]["vocab"], dict):
        check_ids(content["model"]["vocab"])
    return backend


def _load_wordpiece(file: Path, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Load a BERT `vocab.txt`, which contains one token per line.

    If `lowercase` is None, the setting is read from `tokenizer_config.json` in the same folder. If
    it is not set there, the text is lower-cased unless the vocabulary contains capital letters
    outside of special tokens.
    """
    tokens = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    tokens = [token.rstrip("\r") for token in tokens]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if "[UNK]" not in vocabulary:
        raise TokenizerError(f"{file} is not a BERT vocabulary: it has no line [UNK].")
    config = read_options(file.with_name(_CONFIG))
    if lowercase is None:
        lowercase = config.get("do_lower_case")
    if lowercase is None:
        lowercase = not any(token != token.lower() for token in tokens if not token.startswith("["))
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=WORDPIECE_PREFIX)
    backend.add_special_tokens([name for name in BERT_SPECIALS if name in vocabulary])
    add_bert_template(backend)
    return backend


def _load_gpt2(vocab: Path, merges: Path) -> tokenizers.Tokenizer:
    """Load GPT-2's byte-level BPE from `vocab.json` and `merges.txt`.

    If the vocabulary has the tokens `<s>`, `</s>` and `<mask>`, special tokens are added to texts
    as in RoBERTa.
    """
    for file in (vocab, merges):
        if not file.is_file():
            raise TokenizerError(f"{file} is missing: vocab.json and merges.txt belong together.")
        reject_lfs_pointer(file)
    config = read_options(vocab.with_name(_CONFIG))
    family = str(config.get("tokenizer_class") or "PreTrainedTokenizer")
    if family.startswith("PreTrainedTokenizer"):  # a generic class: the model type decides
        family = str(read_options(vocab.with_name("config.json")).get("model_type") or "gpt2")
    tokens, pairs = models.BPE.read_file(str(vocab), str(merges))
    check_ids(tokens)
    known = family.lower().removesuffix("fast").removesuffix("tokenizer") in _GPT2_FAMILIES
    if not known or any(token.endswith("</w>") for token in tokens):
        raise TokenizerError(
            f"{vocab} belongs to a tokenizer ({family}) whose pre-tokenizer differs from GPT-2's "
            "and is not contained in these two files; save it as tokenizer.json with the library "
            "that made it."
        )
    backend = tokenizers.Tokenizer(models.BPE(tokens, pairs))
    prefix_space = bool(config.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    learned = {first + second for first, second in pairs}  # not special tokens
    specials = {name for names in NAMES.values() for name in names if name in tokens} - learned
    mask = find_token_for_role("mask", specials)
    ordered = sorted(specials, key=lambda name: tokens[name])
    backend.add_special_tokens(to_added_tokens(ordered, with_space=mask))
    if mask == "<mask>" and {"<s>", "</s>"} <= specials:
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", tokens["</s>"]), ("<s>", tokens["<s>"]), add_prefix_space=prefix_space
        )
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend
