"""Marian's published tokenizers, as `MarianTokenizer` of `transformers` reads and writes them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from hf_models import Case, hf_model, transformers
from test_interop_tokenizer import TEXTS

import trivium
from trivium.errors import SpecError, TokenizerError
from trivium.interop.marian_tokenizer import read_marian_tokenizers, write_marian_tokenizers
from trivium.nn.positions.sinusoidal import Sinusoidal

# transformers recommends the library sacremoses, which rewrites punctuation before a text is split.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

GERMAN = [
    "Das Wetter ist heute sch\u00f6n.",
    "Gr\u00fc\u00dfe aus dem Norden, und viele davon!",
    "ja ja ja",
]


def save_pieces(file: Path, texts: list[str], vocab_size: int, **options: Any) -> list[str]:
    """Train and write a SentencePiece file. Returns its pieces."""
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 20),
        model_writer=buffer,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    file.write_bytes(buffer.getvalue())
    read = sentencepiece.SentencePieceProcessor(model_file=str(file))
    return [read.IdToPiece(index) for index in range(len(read))]


def write_files(folder: Path, *, separate: bool, **options: Any) -> Any:
    """Write Marian's files. Returns the tokenizer of `transformers`."""
    source = save_pieces(folder / "source.spm", TEXTS, 90, **options)
    target = save_pieces(folder / "target.spm", GERMAN, 80, **options)
    sides = [source, target] if separate else [[*source, *target]]
    names = ("vocab.json", "target_vocab.json")
    for name, pieces in zip(names, sides, strict=False):
        ordered = sorted({*pieces, ">>deu<<", ">>nld<<"} - {"<s>", "</s>", "<unk>"})
        tokens = ["</s>", "<unk>", *ordered, "<pad>"]
        content = json.dumps({token: index for index, token in enumerate(tokens)})
        (folder / name).write_text(content, encoding="utf-8")
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return transformers.MarianTokenizer.from_pretrained(folder)


def assert_same_ids(folder: Path, theirs: Any) -> None:
    """Texts of both sides have the ids of `transformers`, and the same text is read back."""
    source, target = read_marian_tokenizers(folder)
    known = [text for text in TEXTS if text.isascii()]
    assert known
    for text in (*known, *GERMAN, "", " two  spaces ", "zzz \u732b", "\u00df a"):
        assert list(source.encode(text).ids) == theirs(text)["input_ids"], text
        there = theirs(text_target=text)["input_ids"]
        assert list(target.encode(text).ids) == there, text
        expected = theirs.decode(there, skip_special_tokens=True, use_source_tokenizer=False)
        assert target.decode(there).strip() == expected.strip()


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("options", [{}, {"user_defined_symbols": "<br>,aus"}])
def test_ids_in_and_out(separate, options, tmp_path):
    theirs = write_files(tmp_path, separate=separate, **options)
    assert_same_ids(tmp_path, theirs)
    written = tmp_path / "written"
    written.mkdir()
    write_marian_tokenizers(written, *read_marian_tokenizers(tmp_path), {})
    assert_same_ids(written, theirs)
    again = transformers.AutoTokenizer.from_pretrained(written)
    assert isinstance(again, transformers.MarianTokenizer)
    assert_same_ids(tmp_path, again)


@pytest.mark.parametrize("separate", [False, True])
def test_translations_and_export(separate, tmp_path):
    theirs = write_files(tmp_path, separate=separate)
    size = len(theirs.encoder)
    other = len(theirs.target_encoder) if separate else size
    hf = hf_model(
        Case(
            "MarianMTModel",
            {
                "vocab_size": size,
                "decoder_vocab_size": other,
                "share_encoder_decoder_embeddings": not separate,
                "tie_word_embeddings": True,
                "pad_token_id": other - 1,
                "decoder_start_token_id": other - 1,
                "eos_token_id": 0,
                "forced_eos_token_id": 0,
                "max_position_embeddings": 64,
            },
        )
    )
    hf.generation_config.update(num_beams=2, bad_words_ids=[[other - 1]])
    hf.save_pretrained(tmp_path)
    lm = trivium.load(tmp_path)
    texts = ["a fine day", "the weather"]

    def translate_theirs(text: str) -> str:
        """Translate with `transformers`."""
        ids = torch.tensor([theirs(text)["input_ids"]])
        with torch.no_grad():
            out = hf.generate(ids, max_new_tokens=9)
        text = theirs.decode(out[0], skip_special_tokens=True, use_source_tokenizer=False)
        return text.replace("<pad>", "").strip()  # it knows the special ids of the source only

    expected = [translate_theirs(text) for text in texts]
    assert [each.strip() for each in lm.translate(texts, max_new_tokens=9)] == expected
    lm.save(tmp_path / "saved")
    saved = trivium.load(tmp_path / "saved")
    assert [each.strip() for each in saved.translate(texts, max_new_tokens=9)] == expected
    saved.save_hf(tmp_path / "hf")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert exported(texts)["input_ids"] == theirs(texts)["input_ids"]
    assert exported(text_target=GERMAN)["input_ids"] == theirs(text_target=GERMAN)["input_ids"]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").double()
    inputs = torch.tensor([[2, 3, 0]])
    kept = hf.double()(input_ids=inputs, decoder_input_ids=inputs).logits
    assert torch.allclose(model(input_ids=inputs, decoder_input_ids=inputs).logits, kept)
    if not separate:
        there = translate_theirs(">>nld<<" + texts[0])
        again = lm.translate(texts[0], target_language="nld", max_new_tokens=9)
        assert again.strip() == there
        with pytest.raises(SpecError, match=r'"fra" is no language .* deu, nld'):
            lm.translate(texts[0], target_language="fra")


def test_files_that_do_not_fit_each_other(tmp_path):
    write_files(tmp_path, separate=False)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    piece = max((one for one in vocabulary if one.isalpha()), key=len)
    short = {key: index for index, key in enumerate(one for one in vocabulary if one != piece)}
    (tmp_path / "vocab.json").write_text(json.dumps(short), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"lacks 1 of .* pieces .* smaller pieces"):
        read_marian_tokenizers(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "</s>": 2, "<pad>": 3}))
    with pytest.raises(TokenizerError, match="not a vocabulary of Marian: ids are left out"):
        read_marian_tokenizers(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "</s>": 1}))
    with pytest.raises(TokenizerError, match="it has no <pad>"):
        read_marian_tokenizers(tmp_path)


def test_sinusoids_are_rounded_as_in_the_tables_of_transformers():
    marian = hf_model(Case("MarianMTModel", {"d_model": 22})).model.encoder.embed_positions
    ours = Sinusoidal(layout="halves").build(22)(torch.arange(37)[None])[0]
    torch.testing.assert_close(ours, marian.weight.float(), rtol=0, atol=1e-8)
    m2m = hf_model(Case("M2M100Model", {"max_position_embeddings": 500})).encoder.embed_positions
    spec = Sinusoidal(layout="halves", spacing="inclusive", offset=2, counted="not-padding")
    ours = spec.build(22)(torch.arange(300)[None])[0]
    torch.testing.assert_close(ours, m2m.weights[2:302].float(), rtol=0, atol=1e-7)


def test_two_tokenizers_of_another_kind_are_refused(tmp_path):
    write_files(tmp_path, separate=False)
    source, _ = read_marian_tokenizers(tmp_path)
    bpe = trivium.Tokenizer.train("bpe", texts=TEXTS * 9, vocab_size=200, progress=False)
    words = trivium.Tokenizer.train("unigram", texts=TEXTS * 9, vocab_size=200, progress=False)
    for other in (bpe, words):
        with pytest.raises(
            SpecError, match="the target tokenizer is not a SentencePiece model of Marian"
        ):
            write_marian_tokenizers(tmp_path, source, other, {})
