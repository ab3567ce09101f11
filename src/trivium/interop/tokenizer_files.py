"""Read the tokenizer of a Hugging Face folder in any format, and apply the options of its class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from trivium.errors import TokenizerError, TriviumError, shorten
from trivium.interop.hf_config import read_object_if_exists
from trivium.interop.tokenizer_classes import (
    CLASS_ROLES,
    FAIRSEQ_CLASSES,
    apply_fairseq_rules,
    apply_mpnet_template,
    build_fairseq_tokenizer,
    build_mpnet_tokenizer,
)
from trivium.interop.translation_tokenizers import (
    M2M_100,
    RENUMBERED,
    add_language_template,
    number_by_vocabulary,
    renumber,
)
from trivium.text import Tokenizer
from trivium.text.loading import find_tokenizer_file
from trivium.text.roles import (
    SENTINELS,
    add_bert_template,
    add_template,
    infer_roles,
    list_special_tokens,
    read_roles,
)

# A SentencePiece file does not say which special tokens surround a text; the tokenizer class does:
# role of the token before a text, role of the token after it.
_TEMPLATE_ROLES: Mapping[str, tuple[str | None, str | None]] = {
    "AlbertTokenizer": ("cls", "sep"),
    "BigBirdTokenizer": ("cls", "sep"),
    "LlamaTokenizer": ("bos", None),
    "T5Tokenizer": (None, "eos"),
}
# Classes that build BERT's normalizer from their options; subclasses without an `__init__` of their
# own, such as ConvBertTokenizer, keep that of a `tokenizer.json`.
BERT_CLASSES = (
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
)
# Classes that read texts with the template of a `tokenizer.json`, also where it has none; other
# classes have their own template.
_GENERIC_CLASSES = ("GPT2Tokenizer", "LlamaTokenizer", "PreTrainedTokenizer", "TokenizersBackend")
# Classes fully described by these files; others split text or number tokens by their own rules.
_KNOWN_CLASSES = {
    "vocab.txt": (*BERT_CLASSES, "MPNetTokenizer"),
    ".model": (*_TEMPLATE_ROLES, *FAIRSEQ_CLASSES, *RENUMBERED, M2M_100),
}
# Classes that split text into words by a program or a dictionary that a `tokenizer.json` lacks.
_SEGMENTERS = frozenset(
    f"{name}Tokenizer" for name in ("BertJapanese", "CpmAnt", "Cpm", "Flaubert", "RoFormer", "XLM")
)
_NO_ROLES = (None, None)
_MAX_SENTINELS = 10_000


def read_tokenizer(
    folder: Path,
    options: Mapping[str, Any],
    *,
    tokenizer_class: str = "",
    lowercase: bool | None = None,
    for_encoder: bool = False,
) -> Tokenizer | None:
    """Return the tokenizer in a folder, or None if the folder has none.

    Args:
        folder: a folder that may have `tokenizer.json`, `vocab.txt`, `vocab.json` and `merges.txt`,
            `*.model` or `*.tiktoken`.
        options: the options in `tokenizer_config.json` and `special_tokens_map.json`.
        tokenizer_class: the class of the model's family, used if the options name no class.
        lowercase: whether the text is lower-cased for a `vocab.txt`, if the options do not say so.
        for_encoder: whether a `tokenizer.json` without a special-token template gets an empty
            template, so that no special tokens are added, as in `transformers`.

    Raises:
        TokenizerError: a file that cannot be read or that lacks rules of its tokenizer class.
    """
    source = find_tokenizer_file(folder)
    if source is None:
        return None
    kind = str(options.get("tokenizer_class") or tokenizer_class).removesuffix("Fast")
    known = _KNOWN_CLASSES.get(source.name, _KNOWN_CLASSES.get(source.suffix, (kind,)))
    if kind in _SEGMENTERS or kind not in ("", "PreTrainedTokenizer", *known):
        saved = "" if kind in _SEGMENTERS else "save it with transformers as tokenizer.json, or "
        raise TokenizerError(
            f"{folder}: {kind} has rules that {source.name} does not contain: its ids would differ "
            f"from those that the model was trained on. To use it, {saved}encode the texts with "
            "transformers and give the ids."
        )
    backend = Tokenizer.load(source, lowercase=lowercase).backend
    defaults = _NO_ROLES
    try:
        if source.suffix == ".model":
            defaults = _TEMPLATE_ROLES.get(kind, _NO_ROLES)
        backend = _build_for_class(backend, kind, source, options)
        _add_tokens(backend, _added_tokens(folder, options), options)
        roles = read_roles({**CLASS_ROLES.get(kind, {}), **options}, backend.token_to_id)
        wordpieces = isinstance(backend.model, models.WordPiece)
        if source.name == "vocab.txt":
            _apply_bert_options(backend, options, backend.normalizer)
        elif kind in (*BERT_CLASSES, "MPNetTokenizer") and wordpieces:
            # These classes of `transformers` 5 use only the vocabulary of a `tokenizer.json`.
            _apply_bert_options(backend, options, normalizers.BertNormalizer())
            backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            if kind in BERT_CLASSES:
                add_bert_template(backend)
        if kind == "MPNetTokenizer" and wordpieces:
            apply_mpnet_template(backend, options)
        backend.add_special_tokens(sorted({*roles.values()} - list_special_tokens(backend)))
        # Special tokens that are not in the vocabulary get the next ids, as in `transformers`.
        special = list_special_tokens(backend)
        backend.add_special_tokens([one for one in _extra_tokens(options) if one not in special])
        # A `tokenizer.json` has the tokens around texts, as in `transformers` 5.
        if source.name != "tokenizer.json":
            _set_template(
                backend, options, {**infer_roles(list_special_tokens(backend)), **roles}, defaults
            )
        elif for_encoder and kind in _GENERIC_CLASSES and not Tokenizer(backend).has_template:
            add_template(backend, [], [])
        add_language_template(backend, kind, options)
        return Tokenizer(backend, roles)
    except TriviumError:
        raise
    except Exception as error:  # options of any type
        raise TokenizerError(
            f"{folder}: the options of the tokenizer, or its added tokens, are not what they mean: "
            f"{type(error).__name__}: {shorten(str(error), 200)}"
        ) from error


def _added_tokens(folder: Path, options: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return token id -> token for the tokens added after the tokenizer was trained."""
    added = {
        int(index): AddedToken(token, special=False, normalized=False)
        for token, index in read_object_if_exists(folder / "added_tokens.json").items()
    }
    flags = ("lstrip", "rstrip", "normalized", "single_word", "special")
    for index, token in (options.get("added_tokens_decoder") or {}).items():
        set_flags = {flag: bool(token.get(flag, False)) for flag in flags}
        added[int(index)] = AddedToken(str(token["content"]), **set_flags)
    return added


def _extra_tokens(options: Mapping[str, Any]) -> list[str]:
    """Return the special tokens in the options that have no standard role such as BOS or EOS."""
    more: list[Any] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = options.get(name) or []
        more += value.values() if isinstance(value, Mapping) else value
    return [str(one["content"]) if isinstance(one, Mapping) else str(one) for one in more]


def _add_tokens(
    backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken], options: Mapping[str, Any]
) -> None:
    """Add tokens that are missing from the vocabulary, and update the flags of existing tokens."""
    flagged, present = options.get("added_tokens_decoder") or {}, backend.get_added_tokens_decoder()
    for index in sorted(added):
        token = added[index]
        differs = str(index) in flagged and repr(present.get(index)) != repr(token)
        if differs or backend.token_to_id(token.content) is None:
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        actual = backend.token_to_id(token.content)
        if actual != index:
            raise TokenizerError(
                f"the options of the tokenizer give {token.content!r} the id {index}, but its "
                f"vocabulary gives {actual}."
            )


def _build_for_class(
    backend: tokenizers.Tokenizer, kind: str, source: Path, options: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return the tokenizer of a file with the ids and rules of its class that the file lacks."""
    match source.suffix:
        case ".model" if kind in FAIRSEQ_CLASSES:
            return build_fairseq_tokenizer(backend, kind, options)
        case ".model" if kind in RENUMBERED:
            return renumber(backend, kind, options)
        case ".model" if kind == M2M_100:
            vocabulary = read_object_if_exists(source.with_name("vocab.json"))
            return number_by_vocabulary(backend, vocabulary, options)
        case ".model":
            _apply_rules(backend, kind, options)
        case ".txt" if source.name == "vocab.txt" and kind == "MPNetTokenizer":
            return build_mpnet_tokenizer(backend, options)
        case _ if kind in FAIRSEQ_CLASSES and isinstance(backend.model, models.Unigram):
            apply_fairseq_rules(backend, kind, options)
    return backend


def _apply_rules(backend: tokenizers.Tokenizer, kind: str, options: Mapping[str, Any]) -> None:
    """Apply the rules of a tokenizer class that its SentencePiece file does not contain."""
    if kind == "T5Tokenizer":
        count = int(options.get("extra_ids", len(SENTINELS)))
        if count > _MAX_SENTINELS:
            raise TokenizerError(f"extra_ids is {count}; at most {_MAX_SENTINELS} can be read.")
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


def _apply_bert_options(
    backend: tokenizers.Tokenizer, options: Mapping[str, Any], defaults: normalizers.BertNormalizer
) -> None:
    """Set BERT's normalizer from the options, or from `defaults` where an option is unset."""
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=defaults.clean_text,
        lowercase=options.get("do_lower_case", defaults.lowercase),
        strip_accents=options.get("strip_accents", defaults.strip_accents),
        handle_chinese_chars=options.get("tokenize_chinese_chars", defaults.handle_chinese_chars),
    )


def _set_template(
    backend: tokenizers.Tokenizer,
    options: Mapping[str, Any],
    roles: Mapping[str, str],
    defaults: tuple[str | None, str | None],
) -> None:
    """Set the special-token template from the options `add_bos_token` and `add_eos_token`.

    If an option is unset, the template gets the token in `defaults` (of the tokenizer class), or
    stays as it is if `defaults` has none.
    """
    flags = (options.get("add_bos_token"), options.get("add_eos_token"))
    if defaults == _NO_ROLES and not any(flags):
        return
    current = _template_tokens(backend)
    wanted: list[list[str]] = []
    for flag, end, role, tokens in zip(flags, ("bos", "eos"), defaults, current, strict=True):
        role = role if flag is None else end if flag else None
        kept = tokens if flag is None else []
        wanted.append([roles[role]] if role is not None and role in roles else kept)
    before, after = wanted
    if (before, after) == current:
        return
    # [CLS] comes once before a pair of texts; the first token of other classes precedes each text.
    add_template(backend, before, after, again=[] if defaults[0] == "cls" else before)


def add_document_template(tokenizer: Tokenizer) -> Tokenizer:
    """Add a special-token template with the BOS/EOS tokens that surround documents in training.

    With this template, `transformers` adds the special tokens that an encoder was trained on, such
    as T5's `</s>`. A tokenizer that already has a template, or has no such tokens, is returned
    unchanged.
    """
    before = [tokenizer.tokens[index] for index in tokenizer.prefix_ids]
    after = [tokenizer.tokens[index] for index in tokenizer.suffix_ids]
    if tokenizer.has_template or not (before or after):
        return tokenizer
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    add_template(backend, before, after)
    return Tokenizer(backend, tokenizer.roles)


def _template_tokens(backend: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """Return the special tokens that the tokenizer's template adds before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).tokens
    whole = backend.encode("a").tokens
    starts = range(len(whole) - len(plain) + 1)
    start = next(start for start in starts if whole[start : start + len(plain)] == plain)
    return whole[:start], whole[start + len(plain) :]
