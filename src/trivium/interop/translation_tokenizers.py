"""Tokenizer classes of mBART, M2M-100, NLLB and Pegasus, whose files lack some of their rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from trivium.errors import TokenizerError
from trivium.text.roles import add_template, list_special_tokens

_MBART = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART_50 = (
    f"{_MBART} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL "
    "ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
_M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
_WMT_21 = "en ha is ja cs ru zh de"  # the option language_codes of M2M100Tokenizer
_LANGUAGES: Mapping[str, str] = {"MBartTokenizer": _MBART, "MBart50Tokenizer": _MBART_50}
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
_MASK = "<mask>"
# Source language of a tokenizer whose options name none.
_DEFAULT_SOURCES: Mapping[str, str] = {
    "M2M100Tokenizer": "en",
    "MBartTokenizer": "en_XX",
    "MBart50Tokenizer": "en_XX",
    "NllbTokenizer": "eng_Latn",
}
RENUMBERED = (*_LANGUAGES, "PegasusTokenizer")
"""The classes whose ids `renumber` assigns."""
M2M_100 = "M2M100Tokenizer"
"""The class whose ids are in `vocab.json`, next to the SentencePiece file."""


def renumber(
    backend: tokenizers.Tokenizer, kind: str, options: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return the tokenizer of a SentencePiece file with the ids and special tokens of its class.

    Args:
        backend: the tokenizer with the ids of the SentencePiece file.
        kind: the tokenizer class, one of `RENUMBERED`.
        options: the options in `tokenizer_config.json`.

    Raises TokenizerError if the file is not a Unigram model, or if it begins with other pieces than
    the files of the class.
    """
    content = json.loads(backend.to_str())
    pegasus = kind == "PegasusTokenizer"
    first = ["<pad>", "</s>"] if pegasus else ["<unk>", "<s>", "</s>"]
    pieces = content["model"]["vocab"]
    if content["model"]["type"] != "Unigram" or [text for text, _ in pieces[: len(first)]] != first:
        raise TokenizerError(
            f"the SentencePiece file of a {kind} is a Unigram model that begins with the pieces "
            f"{', '.join(first)}; this file is not."
        )
    languages = _LANGUAGES.get(kind, "").split()
    if pegasus:
        offset = int(options.get("offset", 103))
        masks = ["<mask_1>", "<mask_2>"]
        before = [*first, *masks, *(f"<unk_{n}>" for n in range(2, offset))]
        pieces, after = pieces[2:], []
    else:
        before, pieces, after = [*_FAIRSEQ], pieces[3:], [*languages, _MASK]
    vocabulary = [[text, -100.0 if text.startswith("<unk_") else 0.0] for text in before]
    vocabulary += [*pieces, *([text, 0.0] for text in after)]
    ids = [text for text, _ in vocabulary]
    content["model"] |= {"vocab": vocabulary, "unk_id": ids.index("<unk>")}
    content["added_tokens"] = []
    result = tokenizers.Tokenizer.from_str(json.dumps(content))
    defined = [one for one in backend.get_added_tokens_decoder().values() if not one.special]
    result.add_tokens(defined)
    special = [text for text in (*before, "<unk>", *after) if text in ids]
    result.add_special_tokens(
        [AddedToken(text, normalized=False, special=True, lstrip=text == _MASK) for text in special]
    )
    if pegasus:
        add_template(result, [], ["</s>"])
    return result


def number_by_vocabulary(
    backend: tokenizers.Tokenizer, vocabulary: Mapping[str, int], options: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return the tokenizer of M2M-100: its SentencePiece file with the ids of `vocab.json`.

    The language tokens have the next ids.

    Raises TokenizerError if `vocab.json` lacks a piece of the SentencePiece file.
    """
    content = json.loads(backend.to_str())
    model = content["model"]
    pieces = model["vocab"]
    scores = dict.fromkeys(pieces, 0.0) if isinstance(pieces, dict) else dict(pieces)
    missing = scores.keys() - vocabulary.keys()
    if missing or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise TokenizerError(
            f"{M2M_100}: vocab.json must number all pieces of the SentencePiece file from 0; "
            f"{len(missing)} of them are missing, or numbers are left out."
        )
    if isinstance(pieces, dict):
        model["vocab"] = dict(vocabulary)
    else:
        ordered = sorted(vocabulary, key=vocabulary.__getitem__)
        model |= {"vocab": [[text, scores.get(text, 0.0)] for text in ordered]}
        model["unk_id"] = vocabulary["<unk>"]
    content["added_tokens"] = []
    result = tokenizers.Tokenizer.from_str(json.dumps(content))
    result.add_special_tokens([text for text in _FAIRSEQ if text in vocabulary])
    codes = _WMT_21 if options.get("language_codes") == "wmt21" else _M2M_100
    result.add_special_tokens([f"__{code}__" for code in codes.split()])
    return result


def add_language_template(
    backend: tokenizers.Tokenizer, kind: str, options: Mapping[str, Any]
) -> None:
    """Set the special tokens around a source text: its language and the end of the text.

    The language is `src_lang` of the options, or the default of the class if it is a token. The
    template of other tokenizer classes is left as it is.

    Raises TokenizerError if `src_lang` is no token.
    """
    if kind not in _DEFAULT_SOURCES:
        return
    backend.add_special_tokens(_LANGUAGES.get(kind, "").split())
    language = str(options.get("src_lang") or _DEFAULT_SOURCES[kind])
    language = f"__{language}__" if kind == M2M_100 else language
    if language not in list_special_tokens(backend):
        if not options.get("src_lang"):
            return
        raise TokenizerError(f'"src_lang" of {kind} is "{language}", which is none of its tokens.')
    if kind == "MBartTokenizer" or options.get("legacy_behaviour"):
        add_template(backend, [], ["</s>", language])
    else:
        add_template(backend, [language], ["</s>"])
