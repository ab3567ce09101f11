"""Roles of special tokens, such as "pad" and "unk", inferred from their usual names."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from trivium.errors import TokenizerError
from trivium.files import read_json

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")

# If a vocabulary contains several names for a role, the first one is used.
NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<PAD>"),
    "unk": ("[UNK]", "<unk>", "<|unk|>", "<UNK>"),
    "cls": ("[CLS]", "<cls>", "<CLS>"),
    "sep": ("[SEP]", "<sep>", "<SEP>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>", "<MASK>"),
    "bos": ("<s>", "<S>", "[BOS]", "<bos>", "<BOS>", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "<T>", "[EOS]", "<eos>", "<EOS>", "<|end_of_text|>", "<|endoftext|>"),
}


def sentinel_name(index: int) -> str:
    """Return the name of T5's sentinel token with the given index, from 0.

    A sentinel token replaces a masked span.
    """
    return f"<extra_id_{index}>"


SENTINELS = tuple(map(sentinel_name, range(100)))
"""The names of T5's sentinel tokens, in order."""
END_OF_TEXT = "<|endoftext|>"
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXT_SPECIALS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


class RoleId:
    """Descriptor for the id of the special token with a given role, such as `Tokenizer.pad_id`.

    The value is None if the tokenizer has no special token with this role.
    """

    def __init__(self, role: str) -> None:
        self.role = role

    def __get__(self, tokenizer: Any, owner: type) -> int | None:
        if tokenizer is None or self.role not in tokenizer.roles:
            return None
        return tokenizer.token_to_id(tokenizer.roles[self.role])


def infer_roles(special_tokens: Container[str]) -> dict[str, str]:
    """Assign roles to special tokens by their usual names. Returns the token of each role.

    Roles without a token are left out. As in GPT-2, `<|endoftext|>` is also the token for "bos" if
    there is no other.
    """
    tokens = {role: token for role in ROLES if (token := find_token_for_role(role, special_tokens))}
    if END_OF_TEXT in special_tokens:
        tokens.setdefault("bos", END_OF_TEXT)
    return tokens


def find_token_for_role(role: str, tokens: Container[str]) -> str | None:
    """Return the token that has a usual name for a role, such as `[MASK]` for "mask".

    Returns None if no token has such a name.
    """
    return next((name for name in NAMES[role] if name in tokens), None)


def get_role(token: str) -> str | None:
    """Return the usual role of a special-token name, such as "mask" for `[MASK]`.

    Returns None if the name has no usual role.
    """
    return next((role for role in ROLES if token in NAMES[role]), None)


def read_roles(
    options: Mapping[str, Any], token_to_id: Callable[[str], int | None]
) -> dict[str, str]:
    """Read the special tokens of all roles from options such as "cls_token".

    The value of an option is a token, or an object whose `content` is a token. Returns the token of
    each role. Tokens that are not in the vocabulary are left out.
    """
    tokens = {role: options.get(f"{role}_token") for role in ROLES}
    texts = {r: t.get("content") if isinstance(t, Mapping) else t for r, t in tokens.items()}
    named = {role: text for role, text in texts.items() if isinstance(text, str) and text}
    return {role: token for role, token in named.items() if token_to_id(token) is not None}


def read_options(file: Path) -> Mapping[str, Any]:
    """Read a JSON file of tokenizer options. Returns {} if the file does not exist.

    Raises TokenizerError if the file does not contain a JSON object.
    """
    options = read_json(file) if file.is_file() else {}
    if not isinstance(options, Mapping):
        raise TokenizerError(f"{file} does not contain a JSON object.")
    return options


def to_added_tokens(names: Iterable[str], *, with_space: str | None = None) -> list[AddedToken]:
    """Create an `AddedToken` for each special-token name.

    The token named `with_space`, if any, also matches the space before it (`lstrip`).
    """
    return [
        AddedToken(name, normalized=False, special=True, lstrip=name == with_space)
        for name in names
    ]


def list_special_tokens(backend: tokenizers.Tokenizer) -> set[str]:
    """Return the names of the special tokens of a tokenizer."""
    added = backend.get_added_tokens_decoder().values()
    return {token.content for token in added if token.special}


def add_bert_template(backend: tokenizers.Tokenizer) -> None:
    """If a tokenizer has the tokens [CLS] and [SEP], make it add them to texts and pairs."""
    roles = infer_roles(list_special_tokens(backend))
    if "cls" in roles and "sep" in roles:
        add_template(backend, [roles["cls"]], [roles["sep"]])


def add_template(
    backend: tokenizers.Tokenizer,
    before: Sequence[str],
    after: Sequence[str],
    *,
    again: Sequence[str] = (),
) -> None:
    """Make a tokenizer add special tokens to texts and pairs, by setting its post-processor.

    Args:
        backend: the tokenizer to change.
        before: the tokens before a single text, or before the first text of a pair.
        after: the tokens after each text.
        again: the tokens before the second text of a pair.
    """
    ids = {token: backend.token_to_id(token) for token in (*before, *after)}
    second = [f"{token}:1" for token in (*again, "$B", *after)]
    template = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *second],
        special_tokens=list(ids.items()),
    )
    byte_level = backend.post_processor
    if isinstance(byte_level, processors.ByteLevel):
        template = processors.Sequence([byte_level, template])
    backend.post_processor = template


def build_hf_files(roles: Mapping[str, str], names: Iterable[str]) -> dict[str, dict[str, object]]:
    """Return the JSON files from which `transformers` reads the special tokens.

    The result is a dictionary from file names to contents.

    Args:
        roles: the special token of each role, by role.
        names: the names of all special tokens.
    """
    named: dict[str, object] = {f"{role}_token": token for role, token in roles.items()}
    others = [token for token in names if token not in roles.values()]
    if others:
        named["additional_special_tokens"] = others
    type_ids = ["token_type_ids"] if "cls" in roles and "sep" in roles else []
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *type_ids, "attention_mask"],
    }
    return {"special_tokens_map.json": named, "tokenizer_config.json": config | named}
