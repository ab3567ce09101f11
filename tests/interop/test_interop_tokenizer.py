"""Tokenizers of Hugging Face folders: every format in, and `AutoTokenizer` agrees after export."""

from __future__ import annotations

import io
import json

import pytest
from hugging_face_folders import SAMPLES, TEXT, bert, llama, t5, tokenizer_of

from trivium.errors import CheckpointError, TokenizerError
from trivium.interop.tokenizer import read_tokenizer
from trivium.language_model import LanguageModel, load
from trivium.text import Tokenizer

transformers = pytest.importorskip("transformers")


def same_ids(ours: Tokenizer, theirs) -> None:
    for text in SAMPLES:
        assert list(ours.encode(text).ids) == theirs(text)["input_ids"], text
        assert (
            list(ours.encode(text, add_special_tokens=False).ids)
            == theirs(text, add_special_tokens=False)["input_ids"]
        )
    pair = theirs(SAMPLES[0], SAMPLES[3])["input_ids"]
    assert list(ours.encode(SAMPLES[0], SAMPLES[3]).ids) == pair


def with_config(folder, **options) -> dict:
    (folder / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")
    return options


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "unigram", "bpe", "whitespace"])
def test_auto_tokenizer_agrees_after_export(tmp_path, kind):
    tokenizer = tokenizer_of(kind)
    bert(transformers).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    assert model.tokenizer.fingerprint == tokenizer.fingerprint
    model.save(tmp_path / "ours")
    load(tmp_path / "ours").save_hf(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    same_ids(tokenizer, theirs)
    for role, token in tokenizer.roles.items():
        assert getattr(theirs, f"{role}_token") == token
    assert theirs.model_max_length == 61
    batch = theirs(TEXT, padding=True, return_tensors="pt", truncation=True)
    assert "token_type_ids" in batch
    assert bert(transformers)(**batch).logits.shape[0] == 3


@pytest.mark.parametrize("told", [True, False, None])
def test_vocab_txt_and_its_case(tmp_path, told):
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "The",
        "weather",
        "##s",
        "ete",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    options = {} if told is None else with_config(tmp_path, do_lower_case=told)
    text = "The weathers Été the"
    for lowercase in (None, True, False):
        found = read_tokenizer(tmp_path, options, lowercase=lowercase)
        assert found is not None
        lowered = told if told is not None and lowercase is None else bool(lowercase)
        if told is None or lowercase is None:
            wanted = [2, 5 if lowered else 6, 7, 8, 9 if lowered else 1, 5, 3]
            assert list(found.encode(text).ids) == wanted
    if told is not None:
        theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
        assert list(read_tokenizer(tmp_path, options).encode(text).ids) == theirs(text)["input_ids"]


def test_options_overrule_the_normaliser_of_a_tokenizer_json(tmp_path):
    tokenizer_of("wordpiece").save(tmp_path)
    cased = read_tokenizer(tmp_path, {"do_lower_case": False})
    assert read_tokenizer(tmp_path, {}).encode("The").ids != cased.encode("The").ids
    assert read_tokenizer(tmp_path, {}).encode("the").ids == cased.encode("the").ids


@pytest.mark.parametrize("bos", [True, False])
def test_gpt2_files_with_another_beginning(tmp_path, bos):
    """As OPT: `</s>` begins a text, which its name does not tell."""
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=TEXT * 5, vocab_size=283, special_tokens=specials, progress=False
    )
    tokenizer.backend.model.save(str(tmp_path))
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    options = with_config(
        tmp_path,
        tokenizer_class="GPT2Tokenizer",
        add_bos_token=bos,
        bos_token={"__type": "AddedToken", "content": "</s>"},
        eos_token="</s>",
        unk_token="</s>",
        pad_token="<pad>",
    )
    found = read_tokenizer(tmp_path, options)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    same_ids(found, theirs)
    end = vocab["</s>"]
    assert (found.bos_id, found.eos_id, found.pad_id) == (end, end, vocab["<pad>"])
    assert found.prefix_ids == ((end,) if bos else ())
    assert found.decode(found.encode(TEXT[0]).ids) == TEXT[0]


def test_tokens_added_later(tmp_path):
    tokenizer = tokenizer_of("byte-bpe")
    tokenizer.save(tmp_path)
    size = tokenizer.vocab_size
    options = {
        "added_tokens_decoder": {
            str(size): {"content": "<tool>", "special": True},
            str(size + 1): {"content": "waffles", "special": False, "normalized": True},
        },
    }
    found = read_tokenizer(tmp_path, options)
    ids = found.encode("a<tool>waffles").ids
    assert {size, size + 1} < set(ids)
    assert found.decode(ids) == "awaffles"
    options["added_tokens_decoder"] = {str(size + 7): {"content": "<gap>"}}
    with pytest.raises(TokenizerError, match=f"the id {size + 7}, but .* gives {size}"):
        read_tokenizer(tmp_path, options)


def sentencepiece_model(folder, kind: str, *, vocab_size: int = 131, **options) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 20),
        model_writer=buffer,
        model_type=kind,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    (folder / "spiece.model").write_bytes(buffer.getvalue())


def test_sentencepiece_of_t5(tmp_path):
    sentencepiece_model(tmp_path, "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    options = with_config(tmp_path, tokenizer_class="T5Tokenizer", extra_ids=7)
    found = read_tokenizer(tmp_path, options)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXT:
        assert list(found.encode(text).ids) == theirs(text)["input_ids"]
    assert found.encode(TEXT[0]).ids[-1] == found.eos_id == 1
    sentinels = theirs.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(7)])
    assert [found.token_to_id(f"<extra_id_{n}>") for n in range(7)] == sentinels
    # Without its options it is known by the model.
    bare = read_tokenizer(tmp_path, {}, model_type="t5")
    assert bare.encode(TEXT[0]).ids == found.encode(TEXT[0]).ids
    assert bare.vocab_size == found.vocab_size + 93


@pytest.mark.parametrize("end", [True, False])
def test_sentencepiece_of_llama(tmp_path, end):
    sentencepiece_model(tmp_path, "bpe", vocab_size=317, byte_fallback=True)
    (tmp_path / "spiece.model").rename(tmp_path / "tokenizer.model")
    found = read_tokenizer(tmp_path, {"add_eos_token": end}, model_type="llama")
    ids = found.encode(TEXT[0]).ids
    assert (ids[0] == found.bos_id, ids[-1] == found.eos_id) == (True, end)
    pieces = pytest.importorskip("sentencepiece").SentencePieceProcessor(
        model_file=str(tmp_path / "tokenizer.model")
    )
    assert list(ids[1 : len(ids) - end]) == pieces.encode(TEXT[0])
    llama(transformers).save_pretrained(tmp_path / "theirs")
    (tmp_path / "tokenizer.model").rename(tmp_path / "theirs" / "tokenizer.model")
    with_config(tmp_path / "theirs", add_eos_token=end)
    load(tmp_path / "theirs").save(tmp_path / "ours")
    model = load(tmp_path / "ours")
    assert model.tokenizer.encode(TEXT[0]).ids == ids
    model.save_hf(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    same_ids(model.tokenizer, theirs)


def test_sentencepiece_of_albert(tmp_path):
    sentencepiece_model(
        tmp_path,
        "unigram",
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
    )
    found = read_tokenizer(tmp_path, {"do_lower_case": True}, model_type="albert")
    lower = found.encode("the ete weather").ids
    assert found.encode("THE Été Weather").ids == lower
    assert (lower[0], lower[-1]) == (found.cls_id, found.sep_id)
    assert found.prefix_ids == (found.cls_id,)


def test_several_sentencepiece_files(tmp_path):
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"several tokenizers \(a\.model, b\.model\)"):
        read_tokenizer(tmp_path, {})


def test_without_a_tokenizer(tmp_path):
    bert(transformers).save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.tokenizer is None
    with pytest.raises(TokenizerError, match=r"without a tokenizer.*tokenizer\.json"):
        model.fill_mask("The [MASK]")
    model.save_hf(tmp_path / "out")
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_one_that_is_not_read_is_named(tmp_path):
    t5(transformers).save_pretrained(tmp_path)
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_text("{}")
    with pytest.warns(UserWarning, match=r"source\.spm, target\.spm are of a kind"):
        assert load(tmp_path).tokenizer is None


def test_damaged_options(tmp_path):
    bert(transformers).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: cannot be read as JSON"):
        load(tmp_path)


def test_roles_survive_saving(tmp_path):
    tokenizer = tokenizer_of("byte-bpe")
    roles = {"bos": "</s>", "mask": "<unk>"}
    bert(transformers).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs" / "tokenizer.json")
    with_config(tmp_path / "theirs", **{f"{role}_token": token for role, token in roles.items()})
    load(tmp_path / "theirs").save(tmp_path / "ours")
    model = load(tmp_path / "ours")
    assert isinstance(model, LanguageModel)
    assert model.tokenizer.roles == {**tokenizer.roles, **roles}
    assert model.tokenizer.mask_id == model.tokenizer.token_to_id("<unk>")
