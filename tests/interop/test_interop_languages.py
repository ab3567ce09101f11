"""Translation between languages, as the tokenizers and the pipeline of `transformers` do it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import Case, hf_model, transformers
from test_interop_tokenizer import SAMPLES, TEXTS, save_sentencepiece, train, write_options

import trivium
from trivium.errors import SpecError
from trivium.interop.tokenizer_files import read_tokenizer
from trivium.text.languages import list_languages

FILE = "sentencepiece.bpe.model"


def write_tokenizer(folder: Path, name: str, **options: Any) -> Any:
    """Write the files of a released tokenizer. Returns the tokenizer of `transformers`."""
    if name == "NllbTokenizer":
        backend = train("bpe", ["<s>", "<pad>", "</s>", "<unk>", "eng_Latn", "fra_Latn", "<mask>"])
        (folder / "tokenizer.json").write_text(backend.to_json(), encoding="utf-8")
    else:
        kind = "bpe" if name == "M2M100Tokenizer" else "unigram"
        save_sentencepiece(folder / FILE, kind)
    if name == "M2M100Tokenizer":
        read = trivium.Tokenizer.load(folder / FILE).tokens[3:]
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *reversed(read)]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    write_options(folder, tokenizer_class=name, **options)
    return transformers.AutoTokenizer.from_pretrained(folder)


CLASSES = {
    "MBartTokenizer": ("en_XX", "ro_RO"),
    "MBart50Tokenizer": ("fr_XX", "sl_SI"),
    "M2M100Tokenizer": ("de", "zu"),
    "NllbTokenizer": ("eng_Latn", "fra_Latn"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_source_texts_have_the_token_of_their_language(name, tmp_path):
    for language in (None, *CLASSES[name]):
        folder = tmp_path / str(language)
        folder.mkdir()
        options = {} if language is None else {"src_lang": language}
        theirs = write_tokenizer(folder, name, **options)
        ours = read_tokenizer(folder, {"tokenizer_class": name, **options})
        assert ours is not None
        for text in (*SAMPLES[:4], ""):
            assert list(ours.encode(text).ids) == theirs(text)["input_ids"], text
        pair = theirs(TEXTS[0], TEXTS[2])["input_ids"]
        if name != "MBartTokenizer":  # its own language token would stand between ours
            single = list(ours.encode(TEXTS[0]).ids)
            assert single == [*pair[: len(single) - 1], ours.eos_id]
        assert {*CLASSES[name]} <= {*list_languages(ours)}


@pytest.mark.parametrize("name", CLASSES)
def test_translations_between_languages(name, tmp_path):
    source, target = CLASSES[name]
    theirs = write_tokenizer(tmp_path, name)
    family = "M2M100" if name in ("M2M100Tokenizer", "NllbTokenizer") else "MBart"
    read = read_tokenizer(tmp_path, {"tokenizer_class": name})
    assert read is not None
    changes = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
    changes |= {"vocab_size": read.vocab_size, "max_position_embeddings": 128}
    hf = hf_model(
        Case(f"{family}ForConditionalGeneration", {**changes, "decoder_start_token_id": 2})
    )
    hf.generation_config.update(num_beams=2, forced_eos_token_id=None, decoder_start_token_id=2)
    hf.save_pretrained(tmp_path)
    lm = trivium.load(tmp_path)
    theirs.src_lang = source
    found = set()
    for text in TEXTS:
        ids = torch.tensor([theirs(text)["input_ids"]])
        forced = theirs.convert_tokens_to_ids(f"__{target}__" if "M2M" in name else target)
        with torch.no_grad():
            out = hf.generate(ids, max_new_tokens=9, forced_bos_token_id=forced)
        expected = lm.text_tokenizer.decode(out[0].tolist())
        options = {"source_language": source, "target_language": target}
        translation = lm.translate(text, max_new_tokens=9, **options)
        assert translation.strip() == expected.strip()
        found.add(translation)
    assert len(found) > 1
    with pytest.raises(SpecError, match=f'"xx_YY" is no language .*{source}'):
        lm.translate(TEXTS[0], target_language="xx_YY")
    with pytest.raises(SpecError, match='"xx_YY" is no language'):
        lm.translate(TEXTS[0], source_language="xx_YY")
