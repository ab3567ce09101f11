"""Reading tokenizers that other libraries made."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from trivium.errors import TokenizerError
from trivium.text.roles import NAMES, token_of_role
from trivium.text.sentencepiece_file import load_sentencepiece
from trivium.text.symbols import SCORE_DIGITS
from trivium.text.tiktoken_file import load_tiktoken
from trivium.text.training import BERT_SPECIALS, template

FORMATS = "tokenizer.json, vocab.txt, vocab.json with merges.txt, *.model or *.tiktoken"


def load_backend(
    path: Path, *, lowercase: bool | None, pattern: str | None
) -> tokenizers.Tokenizer:
    """Read a file or folder; see `Tokenizer.load`."""
    if not path.exists():
        raise TokenizerError(f"There is no tokenizer at {path}. It can be a folder or {FORMATS}.")
    file = _find(path) if path.is_dir() else path
    try:
        return _load_file(file, lowercase=lowercase, pattern=pattern)
    except TokenizerError:
        raise
    except Exception as error:
        raise TokenizerError(f"{file} cannot be read as a tokenizer: {error}.") from error


def _find(folder: Path) -> Path:
    for name in ("tokenizer.json", "vocab.txt", "vocab.json"):
        if (folder / name).is_file():
            return folder / name
    for ending in ("*.model", "*.tiktoken"):
        found = sorted(folder.glob(ending))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found)
            raise TokenizerError(f"{folder} holds several tokenizers ({names}): name one of them.")
    raise TokenizerError(f"{folder} holds no tokenizer: none of {FORMATS}.")


def _load_file(file: Path, *, lowercase: bool | None, pattern: str | None) -> tokenizers.Tokenizer:
    if file.suffix == ".tiktoken":
        return load_tiktoken(file, pattern=pattern)
    if file.suffix == ".model":
        return load_sentencepiece(file, _config_beside(file))
    if file.suffix == ".txt" and file.name != "merges.txt":
        return _load_wordpiece(file, lowercase)
    if file.name == "merges.txt":
        return _load_bpe(file.with_name("vocab.json"), file)
    if file.suffix == ".json":
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and "model" in content and "version" in content:
            if content["model"].get("type") == "Unigram":
                for piece in content["model"]["vocab"]:
                    piece[1] = round(piece[1], SCORE_DIGITS)
            return tokenizers.Tokenizer.from_str(json.dumps(content))
        return _load_bpe(file, file.with_name("merges.txt"))
    raise TokenizerError(f"{file} is no known kind of tokenizer file; known are {FORMATS}.")


def _load_wordpiece(file: Path, lowercase: bool | None) -> tokenizers.Tokenizer:
    """BERT's vocabulary, one token a line.

    Whether it is lower-cased is told by `tokenizer_config.json` beside it, else by whether any
    token but the special ones has a capital letter.
    """
    lines = file.read_text(encoding="utf-8").split("\n")
    tokens = [line.rstrip("\r") for line in lines]
    if tokens and not tokens[-1]:
        tokens.pop()
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if "[UNK]" not in vocabulary:
        raise TokenizerError(f"{file} is no BERT vocabulary: it has no line [UNK].")
    config = _config_beside(file)
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
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([name for name in BERT_SPECIALS if name in vocabulary])
    if "[CLS]" in vocabulary and "[SEP]" in vocabulary:
        backend.post_processor = template(backend, "[CLS]", "[SEP]")
    return backend


def _config_beside(file: Path) -> dict:
    path = file.with_name("tokenizer_config.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _load_bpe(vocab: Path, merges: Path) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE, or RoBERTa's and BART's where `<s>`, `</s>` and `<mask>` exist."""
    for file in (vocab, merges):
        if not file.is_file():
            raise TokenizerError(f"{file} is missing: vocab.json and merges.txt belong together.")
    tokens, pairs = models.BPE.read_file(str(vocab), str(merges))
    if any(token.endswith("</w>") for token in tokens):
        raise TokenizerError(
            f"{vocab} marks word ends with </w> (GPT-1, CLIP), which is not read yet; save it as "
            "tokenizer.json with the library that made it."
        )
    backend = tokenizers.Tokenizer(models.BPE(tokens, pairs))
    spaced = bool(_config_beside(vocab).get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    mask = token_of_role("mask", tokens)
    specials = [name for names in NAMES.values() for name in names if name in tokens]
    specials.sort(key=lambda name: tokens[name])
    backend.add_special_tokens(
        [AddedToken(name, normalized=False, special=True, lstrip=name == mask) for name in specials]
    )
    if mask == "<mask>" and "<s>" in tokens and "</s>" in tokens:
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", tokens["</s>"]), ("<s>", tokens["<s>"]), add_prefix_space=spaced
        )
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend
