"""Tokenizers of Hugging Face folders: every format in, and `AutoTokenizer` agrees after export."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hf_models import Case, hf_model, transformers
from their_tokenizers import ours

from trivium.errors import CheckpointError, TokenizerError
from trivium.interop.hf_folder import read_folder, write_folder
from trivium.interop.tokenizer_classes import FAIRSEQ_CLASSES
from trivium.interop.tokenizer_files import BERT_CLASSES, add_document_template, read_tokenizer
from trivium.interop.translation_tokenizers import RENUMBERED
from trivium.text import Tokenizer
from trivium.text.inputs import encode_inputs
from trivium.text.roles import add_template

TEXTS = [
    "The weather was cloudy yesterday, but today it's rainy.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u3002",
    "\u00c9t\u00e9 \u00e0 Z\u00fcrich: 3,5 \u00b0C \u2603 und Stra\u00dfe.",
]
SAMPLES = [*TEXTS, "unseen w\u00f6rds, \u660e\u5929 & <b>", "  two  spaces\tand a tab\n"]
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
OTHER_CLASSES = ["PreTrainedTokenizerFast", "ConvBertTokenizer"]
ROLES = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
FAST_CLASSES = [
    ("byte-bpe", "PreTrainedTokenizerFast"),
    ("unigram", "PreTrainedTokenizerFast"),
    ("byte-bpe", "GPT2Tokenizer"),
    ("byte-bpe", "LlamaTokenizer"),
]


def train(kind: str, specials: list[str] | None = None) -> Tokenizer:
    """A small one; all ids are below 331."""
    return Tokenizer.train(
        kind,
        texts=TEXTS * 5,
        vocab_size=293 if kind == "byte-bpe" else 193,
        special_tokens=specials or (None if kind == "wordpiece" else SPECIALS),
        progress=False,
    )


def check_same_ids(local: Tokenizer, hf: Any, *, bare: bool = True) -> None:
    for text in SAMPLES:
        assert list(local.encode(text).ids) == hf(text)["input_ids"], text
        if bare:
            ids = hf(text, add_special_tokens=False)["input_ids"]
            assert list(local.encode(text, add_special_tokens=False).ids) == ids
    pair = hf(SAMPLES[0], SAMPLES[3])["input_ids"]
    assert list(local.encode(SAMPLES[0], SAMPLES[3]).ids) == pair


def check_reads_as_trained(local: Tokenizer, hf: Any) -> None:
    """The tokens around documents in training are those around texts and pairs."""
    inputs = encode_inputs(local, [*((text, None) for text in SAMPLES), (SAMPLES[0], SAMPLES[3])])
    expected = [hf(text)["input_ids"] for text in SAMPLES]
    assert [each.ids for each in inputs] == [*expected, hf(SAMPLES[0], SAMPLES[3])["input_ids"]]


def write_options(folder: Path, **options: Any) -> dict[str, Any]:
    (folder / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")
    return options


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "unigram", "bpe", "whitespace"])
def test_auto_tokenizer_agrees_after_export(kind, tmp_path):
    bert = hf_model(Case("BertForMaskedLM", {"vocab_size": 331}))
    bert.save_pretrained(tmp_path / "hf")
    tokenizer = train(kind)
    tokenizer.save(tmp_path / "hf")
    model, read = read_folder(tmp_path / "hf"), read_tokenizer(tmp_path / "hf", {})
    assert read is not None
    assert read.fingerprint == tokenizer.fingerprint
    out = tmp_path / kind
    out.mkdir()
    write_folder(out, model.module, tokenizer, model.settings)
    hf = transformers.AutoTokenizer.from_pretrained(out)
    check_same_ids(read_tokenizer(out, {}), hf)
    check_reads_as_trained(tokenizer, hf)
    for role, token in tokenizer.roles.items():
        assert getattr(hf, f"{role}_token") == token
    assert hf.model_max_length == 31
    assert "token_type_ids" in hf(TEXTS[0])


@pytest.mark.parametrize(
    ("name", "ends"), [("T5ForConditionalGeneration", True), ("GPT2LMHeadModel", False)]
)
def test_sources_end_as_in_training_and_prompts_do_not(name, ends, tmp_path):
    hf_model(Case(name, {"vocab_size": 331})).save_pretrained(tmp_path / name)
    model, tokenizer = read_folder(tmp_path / name), train("unigram")
    out = tmp_path / f"{name}-out"
    out.mkdir()
    write_folder(out, model.module, tokenizer, model.settings)
    hf = transformers.AutoTokenizer.from_pretrained(out)
    for text in SAMPLES:
        expected = [*tokenizer.encode(text).ids, *([tokenizer.eos_id] if ends else [])]
        assert hf(text)["input_ids"] == expected


def test_vocab_txt_and_its_case(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "weather", "##s", "ete"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    text, cased, lowered = "The weathers \u00c9t\u00e9 the", [6, 7, 8, 1, 5], [5, 7, 8, 9, 5]
    for lowercase in (None, True, False):
        tokenizer = read_tokenizer(tmp_path, {}, lowercase=lowercase)
        expected = [2, *(lowered if lowercase else cased), 3]
        assert list(tokenizer.encode(text).ids) == expected
    for lowercase in (True, False):
        options = write_options(tmp_path, do_lower_case=lowercase)
        tokenizer = read_tokenizer(tmp_path, options)
        hf = transformers.BertTokenizer.from_pretrained(tmp_path)
        assert list(tokenizer.encode(text).ids) == hf(text)["input_ids"]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": False},
        {"do_lower_case": False, "tokenize_chinese_chars": False},
    ],
)
@pytest.mark.parametrize("model_type", ["bert", "electra", None])
@pytest.mark.parametrize("name", [*BERT_CLASSES, "BertTokenizerFast", *OTHER_CLASSES, None])
def test_options_of_bert_classes_and_tokenizer_json(name, model_type, options, lowercase, tmp_path):
    """BERT's classes rebuild the normalizer from their options, the others keep the file's."""
    if name is None and model_type is None:
        pytest.skip("transformers cannot know the class")
    tokenizer = Tokenizer.train(
        "wordpiece", texts=TEXTS * 5, vocab_size=230, lowercase=lowercase, progress=False
    )
    tokenizer.save(tmp_path)
    named = {} if name is None else {"tokenizer_class": name}
    options = write_options(tmp_path, **options, **named, **ROLES)
    family = "BertTokenizer" if model_type else ""
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    hf = transformers.AutoTokenizer.from_pretrained(tmp_path)
    check_same_ids(read_tokenizer(tmp_path, options, tokenizer_class=family), hf)


@pytest.mark.parametrize(("kind", "name"), FAST_CLASSES)
@pytest.mark.parametrize("flags", [(True, True), (False, True), (True, None), (None, False)])
@pytest.mark.parametrize("template", [True, False])
def test_tokens_around_texts_are_those_of_tokenizer_json(kind, flags, name, template, tmp_path):
    tokenizer = train(kind)
    if template:
        add_template(tokenizer.backend, ["<s>"], ["</s>"], again=["<s>"])
    tokenizer.save(tmp_path)
    asked = dict(zip(("add_bos_token", "add_eos_token"), flags, strict=True))
    asked = {key: flag for key, flag in asked.items() if flag is not None}
    options = write_options(
        tmp_path,
        tokenizer_class=name,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        **asked,
    )
    check_same_ids(
        read_tokenizer(tmp_path, options), transformers.AutoTokenizer.from_pretrained(tmp_path)
    )


def test_merges_as_gpt2_with_another_first_token(tmp_path):
    """As OPT: `</s>` begins a text, which its name does not say."""
    tokenizer = train("byte-bpe", SPECIALS[:4])
    tokenizer.backend.model.save(str(tmp_path))
    end = json.loads((tmp_path / "vocab.json").read_text())["</s>"]
    for bos in (True, False):
        options = write_options(
            tmp_path,
            tokenizer_class="GPT2Tokenizer",
            add_bos_token=bos,
            bos_token={"__type": "AddedToken", "content": "</s>"},
            eos_token="</s>",
            unk_token="</s>",
            pad_token="<pad>",
        )
        read = read_tokenizer(tmp_path, options)
        check_same_ids(read, transformers.AutoTokenizer.from_pretrained(tmp_path))
        assert (read.bos_id, read.eos_id) == (end, end)
        assert read.prefix_ids == ((end,) if bos else ())
        assert read.decode(read.encode(TEXTS[0]).ids) == TEXTS[0]


def test_merges_of_unknown_splits_are_refused(tmp_path):
    train("byte-bpe").backend.model.save(str(tmp_path))
    for name, content in {
        "config.json": {"model_type": "llama"},
        "tokenizer_config.json": {"tokenizer_class": "CLIPTokenizer"},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
        with pytest.raises(
            TokenizerError, match=r"\((llama|CLIPTokenizer)\).* whose pre-tokenizer differs"
        ):
            read_tokenizer(tmp_path, content)


def test_added_tokens(tmp_path):
    tokenizer = train("byte-bpe")
    tokenizer.save(tmp_path)
    size = tokenizer.vocab_size
    options: dict[str, Any] = {
        "added_tokens_decoder": {
            str(size): {"content": "<tool>", "special": True},
            str(size + 1): {"content": "waffles", "special": False, "normalized": True},
        }
    }
    read = read_tokenizer(tmp_path, options)
    ids = read.encode("a<tool>waffles").ids
    assert {size, size + 1} < set(ids)
    assert read.decode(ids) == "awaffles"
    # Flags of tokens that exist are read, too.
    options["added_tokens_decoder"] = {
        str(tokenizer.token_to_id("a")): {"content": "a", "special": True, "normalized": False},
        str(tokenizer.eos_id): {"content": tokenizer.roles["eos"], "special": True, "lstrip": True},
    }
    again = read_tokenizer(tmp_path, options)
    assert again.decode(again.encode("bab").ids) == "bb"
    assert again.backend.get_added_tokens_decoder()[tokenizer.eos_id].lstrip
    for more in (["b", "<unknown>"], {"image": {"content": "b"}}):  # in the vocabulary, whole
        again = read_tokenizer(tmp_path, {"extra_special_tokens": more})
        assert again.decode(again.encode("aba").ids) == "aa"
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<extra>": size}))
    assert read_tokenizer(tmp_path, {}).token_to_id("<extra>") == size
    options["added_tokens_decoder"] = {str(size + 7): {"content": "<gap>"}}
    with pytest.raises(TokenizerError, match=rf"the id {size + 7}, but .* gives {size + 1}"):
        read_tokenizer(tmp_path, options)


def test_roles_of_the_options(tmp_path):
    train("byte-bpe").save(tmp_path)
    read = read_tokenizer(tmp_path, {"bos_token": "</s>", "mask_token": {"content": "<unk>"}})
    assert (read.roles["bos"], read.roles["mask"], read.roles["eos"]) == ("</s>", "<unk>", "</s>")


def save_sentencepiece(file: Path, kind: str, *, vocab_size: int = 131, **options: Any) -> None:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=buffer,
        model_type=kind,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    file.write_bytes(buffer.getvalue())


def test_sentencepiece_of_t5(tmp_path):
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    save_sentencepiece(tmp_path / "spiece.model", "unigram", **ids)
    options = write_options(tmp_path, tokenizer_class="T5Tokenizer", extra_ids=7)
    read = read_tokenizer(tmp_path, options)
    hf = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert list(read.encode(text).ids) == hf(text)["input_ids"]
    assert read.encode(TEXTS[0]).ids[-1] == read.eos_id == 1
    for n in range(7):
        sentinel = f"<extra_id_{n}>"
        assert read.token_to_id(sentinel) == hf.convert_tokens_to_ids(sentinel)
    # Without options its class is that of the model.
    bare = read_tokenizer(tmp_path, {}, tokenizer_class="T5Tokenizer")
    assert bare.encode(TEXTS[0]).ids == read.encode(TEXTS[0]).ids
    assert bare.vocab_size == read.vocab_size + 93


def test_sentencepiece_of_llama(tmp_path):
    file = tmp_path / "tokenizer.model"
    save_sentencepiece(file, "bpe", vocab_size=317, byte_fallback=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for end in (True, False):
        read = read_tokenizer(tmp_path, {"add_eos_token": end}, tokenizer_class="LlamaTokenizer")
        ids = read.encode(TEXTS[0]).ids
        assert (ids[0] == read.bos_id, ids[-1] == read.eos_id) == (True, end)
        assert list(ids[1 : len(ids) - end]) == pieces.encode(TEXTS[0])


def test_sentencepiece_of_albert(tmp_path):
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    symbols = "[CLS],[SEP],[MASK]"
    save_sentencepiece(tmp_path / "spiece.model", "unigram", **ids, control_symbols=symbols)
    read = read_tokenizer(tmp_path, {"do_lower_case": True}, tokenizer_class="AlbertTokenizer")
    lower = read.encode("the ete weather").ids
    assert read.encode("THE \u00c9t\u00e9 Weather").ids == lower
    assert (lower[0], lower[-1]) == (read.cls_id, read.sep_id)
    assert read.prefix_ids == (read.cls_id,)
    first, second = (read.encode(text).ids[1:-1] for text in ("the weather", "ete"))
    pair = (read.cls_id, *first, read.sep_id, *second, read.sep_id)
    assert read.encode("the weather", "ete").ids == pair


def test_folders_without_or_with_several_tokenizers(tmp_path):
    hf_model(Case("T5ForConditionalGeneration", {})).save_pretrained(tmp_path)
    assert read_folder(tmp_path).tokenizer is None
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_text("{}")
    with pytest.warns(UserWarning, match=r"source\.spm, target\.spm are not read"):
        assert read_folder(tmp_path).tokenizer is None
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"several tokenizers \(a\.model, b\.model\)"):
        read_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json cannot be read as JSON"):
        read_folder(tmp_path)


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_special_tokens_that_the_vocabulary_lacks_get_the_ids_of_transformers(key, tmp_path):
    ours("bert").save(tmp_path)
    options = json.loads((tmp_path / "tokenizer_config.json").read_text())
    options |= {key: ["<z>", "[CLS]", "<a>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "the <a> weather <z> [CLS] was"
    tokenizer = read_tokenizer(tmp_path, options)
    assert list(tokenizer.encode(text).ids) == theirs(text)["input_ids"]
    assert tokenizer.tokens[-2:] == ["<z>", "<a>"]


@pytest.mark.parametrize(
    "name", ["BertJapaneseTokenizer", "CpmTokenizer", "RoFormerTokenizerFast", "XLMTokenizer"]
)
def test_a_class_that_segments_words_outside_of_its_files_is_refused_by_name(name, tmp_path):
    ours("bert").save(tmp_path)
    with pytest.raises(TokenizerError, match=name.removesuffix("Fast")):
        read_tokenizer(tmp_path, {"tokenizer_class": name})


@pytest.mark.parametrize(
    ("family", "tokenizer_class"),
    [
        ("roberta", "RobertaTokenizer"),
        ("t5", "T5Tokenizer"),
        ("llama", "LlamaTokenizer"),
        ("gpt2", "GPT2Tokenizer"),
        ("gpt2", "PreTrainedTokenizerFast"),
        ("bert", "PreTrainedTokenizerFast"),
    ],
)
def test_an_encoder_without_a_template_reads_what_the_class_adds(family, tokenizer_class, tmp_path):
    content = {**json.loads(ours(family).to_json()), "post_processor": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    roles = {f"{role}_token": token for role, token in ours(family).roles.items()}
    options = write_options(tmp_path, tokenizer_class=tokenizer_class, **roles)
    hf = transformers.AutoTokenizer.from_pretrained(tmp_path)
    read = read_tokenizer(tmp_path, options, for_encoder=True)
    assert read is not None
    texts = ["the weather", "yesterday"]
    inputs = encode_inputs(read, [(text, None) for text in texts])
    assert [each.ids for each in inputs] == [hf(text)["input_ids"] for text in texts]
    add_document_template(read).save(tmp_path / "exported")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert [exported(text)["input_ids"] for text in texts] == [each.ids for each in inputs]


MAPPED_CLASSES = transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES.values()
ALL_CLASSES = sorted(
    {name.removesuffix("Fast") for name in MAPPED_CLASSES if name} | {*BERT_CLASSES}
)
# Ids of pieces that these classes expect.
PIECES: dict[str, dict[str, Any]] = {
    "AlbertTokenizer": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
    "PegasusTokenizer": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "T5Tokenizer": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
}
AS_WRITTEN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


def write_vocabulary(folder: Path, form: str, name: str) -> dict[str, Any]:
    """Write a vocabulary without `tokenizer.json`. Returns the options, as in released folders."""
    if form == "vocab.txt":
        before = ["<s>", "<pad>", "</s>", "<unk>"] if name == "MPNetTokenizer" else []
        tokens = [*before, *train("wordpiece").tokens, *(["<mask>"] if before else [])]
        (folder / form).write_text("\n".join(tokens), encoding="utf-8")
    elif form == "merges.txt":
        specials = SPECIALS[:4] if name == "GPT2Tokenizer" else SPECIALS
        train("byte-bpe", specials).backend.model.save(str(folder))
    elif name == "LlamaTokenizer":
        file = folder / "tokenizer.model"
        save_sentencepiece(file, "bpe", vocab_size=317, byte_fallback=True, **AS_WRITTEN)
        return write_options(folder, tokenizer_class=name, add_bos_token=True)
    else:
        symbols = "[CLS],[SEP],[MASK]"
        ids = PIECES.get(name, {})
        if name in (*FAIRSEQ_CLASSES, *RENUMBERED):  # their file has a name of its own
            kind = transformers.models.auto.tokenization_auto.tokenizer_class_from_name(name)
            form, symbols = kind.vocab_files_names["vocab_file"], ""
        save_sentencepiece(folder / form, "unigram", control_symbols=symbols, **ids)
    return write_options(folder, tokenizer_class=name)


def read_unless_refused(folder: Path, options: dict[str, Any]) -> Tokenizer | None:
    """Read a tokenizer. Returns None where the class is refused by its name."""
    message = ""
    try:
        return read_tokenizer(folder, options)
    except TokenizerError as error:
        message = str(error)
    assert options["tokenizer_class"].removesuffix("Fast") in message
    return None


@pytest.mark.parametrize("form", ["vocab.txt", "merges.txt", "spiece.model"])
@pytest.mark.parametrize("name", ALL_CLASSES)
def test_every_class_of_transformers_is_read_as_there_or_refused_by_name(name, form, tmp_path):
    options = write_vocabulary(tmp_path, form, name)
    if (read := read_unless_refused(tmp_path, options)) is None:
        return
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in SAMPLES[:4]:
        assert list(read.encode(text).ids) == theirs(text)["input_ids"], text


def test_the_classes_that_are_read_without_a_tokenizer_json(tmp_path):
    """The others are refused: the test above would pass if all of them were."""
    files = {"vocab.txt": [*BERT_CLASSES, "MPNetTokenizer"]}
    names = ("Bart", "CodeGen", "GPT2", "LED", "Roberta")
    files["merges.txt"] = [f"{one}Tokenizer" for one in names]
    files["spiece.model"] = [f"{one}Tokenizer" for one in ("Albert", "BigBird", "Llama", "T5")]
    files["spiece.model"] += [*RENUMBERED, *FAIRSEQ_CLASSES]
    for form, names in files.items():
        for name in names:
            folder = tmp_path / form / name
            folder.mkdir(parents=True)
            assert read_tokenizer(folder, write_vocabulary(folder, form, name)) is not None


# They put tokens around a text that are not in the `tokenizer.json` that they save.
WITH_OWN_TEMPLATES = ("RemBertTokenizer", "SeamlessM4TTokenizer")


@pytest.mark.parametrize("name", [one for one in ALL_CLASSES if one not in WITH_OWN_TEMPLATES])
def test_the_tokenizer_json_that_a_class_saves_is_read_as_there(name, tmp_path):
    kind = transformers.models.auto.tokenization_auto.tokenizer_class_from_name(name)
    if kind is None or not issubclass(kind, transformers.PreTrainedTokenizerFast):
        pytest.skip("no class of the library `tokenizers`")
    file = kind.vocab_files_names.get("vocab_file", "spiece.model")
    form = file if file.endswith((".txt", ".model")) else "merges.txt"
    write_vocabulary(tmp_path, form, name)
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        expected = [theirs(text)["input_ids"] for text in SAMPLES]
    except Exception as error:
        pytest.skip(f"transformers cannot read this folder: {error}")
    theirs.save_pretrained(tmp_path / "saved")
    options = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text("utf-8"))
    if (read := read_unless_refused(tmp_path / "saved", options)) is None:
        return
    assert [list(read.encode(text).ids) for text in SAMPLES] == expected


@pytest.mark.parametrize("name", ["MPNetTokenizer", *FAIRSEQ_CLASSES])
@pytest.mark.parametrize("form", ["published", "saved", "changed"])
def test_tokenizers_of_mpnet_xlm_roberta_and_camembert(name, form, tmp_path):
    """Texts, pairs and roles; the class keeps only the vocabulary of a `tokenizer.json`."""
    options = write_vocabulary(tmp_path, "vocab.txt" if "MPNet" in name else "spiece.model", name)
    folder, theirs = tmp_path, transformers.AutoTokenizer.from_pretrained(tmp_path)
    if form != "published":
        folder = tmp_path / "saved"
        theirs.save_pretrained(folder)
        options = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    if form == "changed":
        content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        strip = {"type": "Strip", "strip_left": True, "strip_right": True}
        steps = [each for each in (content["normalizer"], strip) if each]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        content["post_processor"] = None
        (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    read = read_tokenizer(folder, options)
    assert read is not None
    check_same_ids(read, theirs)
    check_reads_as_trained(read, theirs)
    for role in ("bos", "eos", "cls", "sep", "unk", "pad", "mask"):
        token = getattr(theirs, f"{role}_token")
        assert read.roles[role] == token
        assert read.token_to_id(token) == theirs.convert_tokens_to_ids(token)
    assert read.decode(read.encode(TEXTS[1]).ids) == theirs.decode(
        theirs(TEXTS[1])["input_ids"], skip_special_tokens=True
    )
    for text in (f"the {theirs.mask_token} was", f"the{theirs.mask_token}"):
        assert list(read.encode(text).ids) == theirs(text)["input_ids"]
    read.save(tmp_path / "exported")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    check_same_ids(read, exported)


def test_a_class_with_ids_of_fairseq_needs_a_unigram_model(tmp_path):
    save_sentencepiece(tmp_path / "sentencepiece.bpe.model", "bpe")
    with pytest.raises(TokenizerError, match="XLMRobertaTokenizer needs a Unigram model"):
        read_tokenizer(tmp_path, {}, tokenizer_class="XLMRobertaTokenizer")
