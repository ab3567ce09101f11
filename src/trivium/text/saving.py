"""Writing a tokenizer so that `transformers` loads it with its roles."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_text(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def save_folder(
    folder: Path, content: str, roles: Mapping[str, str], specials: Sequence[str]
) -> Path:
    """Write `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json`.

    `roles` are those of `trivium.text.roles`; special tokens without a role are named as
    additional ones. Returns the path of `tokenizer.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named: dict[str, object] = {f"{role}_token": token for role, token in roles.items()}
    others = [token for token in specials if token not in roles.values()]
    if others:
        named["additional_special_tokens"] = others
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": _input_names(roles),
        **named,
    }
    path = folder / "tokenizer.json"
    write_text(path, content)
    write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_text(folder / "special_tokens_map.json", json.dumps(named, indent=2) + "\n")
    return path


def _input_names(roles: Mapping[str, str]) -> list[str]:
    pairs = "cls" in roles and "sep" in roles
    return ["input_ids", *(["token_type_ids"] if pairs else []), "attention_mask"]
