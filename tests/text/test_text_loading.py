"""Tokenizers that other libraries made give the ids that those libraries give."""

# ruff: noqa: RUF001

import base64
import itertools
import json
import pickle

import pytest
import sentencepiece
import tiktoken
import tokenizers
from tiktoken_ext import openai_public
from tokenizers import models, pre_tokenizers
from transformers import BertTokenizer, GPT2Tokenizer, RobertaTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from trivium.errors import TokenizerError
from trivium.text import Tokenizer, byte_level
from trivium.text.byte_level import PATTERNS

SAMPLE = [
    "All human beings are born free and equal in dignity and rights.",
    "人人生而自由，在尊严和权利上一律平等。",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng.",
    "すべての人間は、生まれながらにして自由であり、",
    "모든 인간은 태어날 때부터 자유로우며",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में",
    "يولد جميع الناس أحرارًا متساوين",
    "Être ou ne pas être; Ångström \ufb01 \u00bd \u2460 ｆｕｌｌ",
    "def  main(argv: list[str]) -> int:\n\treturn 0x1F + len(argv)  # don't I'LL",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea 3.14159 1234567",
]
HOSTILE = [
    "",
    " ",
    "  leading and  inner   spaces ",
    "\u2581\u2581 marks",
    "tab\tand\nline",
    "zzzqqq",
]
TEXTS = [*SAMPLE, *HOSTILE]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(SAMPLE * 11), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def byte_bpe(corpus):
    return Tokenizer.train("byte-bpe", files=corpus, vocab_size=503, progress=False)


OPTIONS = {
    "plain": {},
    "fallback": {"byte_fallback": True, "vocab_size": 613},
    "no-prefix": {"add_dummy_prefix": False},
    "identity": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<mask>", "<sep>"],
    },
}
CASES = {
    f"{kind}-{name}": (kind, options)
    for kind in ("bpe", "unigram")
    for name, options in OPTIONS.items()
}


@pytest.mark.parametrize(("kind", "options"), CASES.values(), ids=CASES)
def test_sentencepiece_models(kind, options, corpus, tmp_path):
    folder = tmp_path
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "m"),
        model_type=kind,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 359, **options},
    )
    reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == reference.get_piece_size()
    texts = list(TEXTS)
    if "user_defined_symbols" in options:
        texts += ["a <mask> b", "<mask> first", "  two<sep><mask> "]
    expected = reference.encode(texts)
    assert tokenizer.encode_ids_batch(texts) == expected, (kind, options)
    # sentencepiece itself never reads the name of a control token as the token.
    named = [*texts, "a <s> b</s>", "</s>", "x<unk>y"]
    assert tokenizer.reading("text").encode_ids_batch(named) == reference.encode(named)
    known = [ids for ids in expected if 0 not in ids]
    assert [tokenizer.decode(ids) for ids in known] == [reference.decode(i) for i in known]
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    tokenizer.save(folder / "saved")
    again = Tokenizer.load(folder / "saved")
    assert (again.fingerprint, again.kind) == (tokenizer.fingerprint, kind)
    if "byte_fallback" in options:
        assert tokenizer.token_bytes[tokenizer.token_to_id("<0xE5>")] == b"\xe5"
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    framed = Tokenizer.load(folder / "m.model")
    assert framed.encode("free").ids[0] == 1
    assert (framed.prefix_ids, framed.suffix_ids) == ((1,), (2,))


def test_bert_vocabularies(corpus, tmp_path):
    for lowercase in (True, False):
        trained = Tokenizer.train(
            "wordpiece", files=corpus, vocab_size=503, lowercase=lowercase, progress=False
        )
        folder = tmp_path / str(lowercase)
        folder.mkdir()
        path = folder / "vocab.txt"
        path.write_text("\n".join(trained.tokens) + "\n", encoding="utf-8")
        hf = BertTokenizer(vocab=str(path), do_lower_case=lowercase)
        tokenizer = Tokenizer.load(path)
        for text in TEXTS:
            assert list(tokenizer.encode(text).ids) == hf(text)["input_ids"]
        assert tokenizer.fingerprint == trained.fingerprint
        config = json.dumps({"do_lower_case": not lowercase})
        (folder / "tokenizer_config.json").write_text(config)
        assert Tokenizer.load(folder).fingerprint != tokenizer.fingerprint
        same = Tokenizer.load(folder, lowercase=lowercase)
        assert same.fingerprint == tokenizer.fingerprint


def test_gpt2_files(byte_bpe, tmp_path):
    byte_bpe.backend.model.save(str(tmp_path))
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    hf = GPT2Tokenizer(vocab=str(vocab), merges=str(merges))
    tokenizer = Tokenizer.load(tmp_path)
    for text in TEXTS:
        assert list(tokenizer.encode(text).ids) == hf(text)["input_ids"]
    assert tokenizer.eos_id == byte_bpe.eos_id == 0
    assert Tokenizer.load(merges).fingerprint == tokenizer.fingerprint
    merges.unlink()
    with pytest.raises(TokenizerError, match=r"merges\.txt"):
        Tokenizer.load(tmp_path)


def test_a_folder_and_a_pickle_keep_roles_that_no_conventional_name_tells(byte_bpe, tmp_path):
    roles = {"eos": byte_bpe.tokens[7], "pad": byte_bpe.tokens[9]}
    tokenizer = Tokenizer(byte_bpe.backend, roles)
    tokenizer.save(tmp_path)
    for again in (Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert (again.eos_id, again.pad_id) == (7, 9)


def test_roberta_files(corpus, tmp_path):
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained = Tokenizer.train(
        "byte-bpe", files=corpus, vocab_size=503, special_tokens=specials, progress=False
    )
    trained.backend.model.save(str(tmp_path))
    files = {"vocab": str(tmp_path / "vocab.json"), "merges": str(tmp_path / "merges.txt")}
    mask = tokenizers.AddedToken("<mask>", lstrip=True)  # as in the published roberta-base
    hf = RobertaTokenizer(**files, mask_token=mask)
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    tokenizer = Tokenizer.load(tmp_path)
    for text in [*TEXTS, "a <mask> b"]:
        assert list(tokenizer.encode(text).ids) == hf(text)["input_ids"]


def test_a_vocabulary_with_the_words_model_and_version(byte_bpe, tmp_path):
    """Fault 19: GPT-2's own vocab.json holds these words and was taken for a tokenizer.json."""
    vocabulary = dict(byte_bpe.model["vocab"])
    vocabulary |= {"model": len(vocabulary), "version": len(vocabulary) + 1}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    merges = "\n".join(" ".join(pair) for pair in byte_bpe.model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == byte_bpe.vocab_size + 2
    assert tokenizer.encode(SAMPLE[1]).ids == byte_bpe.encode(SAMPLE[1]).ids


def test_other_families_with_the_same_files_are_refused(byte_bpe, tmp_path):
    """Fault 16: their splits are not in the files, and GPT-2's would be silently wrong."""
    byte_bpe.backend.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(TokenizerError, match=r"qwen2.*tokenizer\.json"):
        Tokenizer.load(tmp_path)
    generic = '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    (tmp_path / "tokenizer_config.json").write_text(generic)
    with pytest.raises(TokenizerError, match="qwen2"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    with pytest.raises(TokenizerError, match="CLIPTokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2TokenizerFast"}')
    assert Tokenizer.load(tmp_path).kind == "byte-bpe"


def test_tiktoken_ranks(byte_bpe, tmp_path, monkeypatch):
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *args, **kwargs: {})
    cl100k = openai_public.cl100k_base()["pat_str"]
    patterns = {
        "gpt2": openai_public.r50k_pat_str,
        "cl100k": cl100k,
        "llama3": cl100k,
        "qwen": PRETOKENIZE_REGEX,
        "o200k": openai_public.o200k_base()["pat_str"],
    }
    assert patterns.keys() == PATTERNS.keys()
    texts = [*TEXTS, "f(x)[0];\r\n//\n/path/To//File.py !\n\n/  3\n \t'LL we'RE\n"]
    tokens = list(byte_bpe.token_bytes[1:])
    # Any two of these bytes are merged where the pattern lets them.
    pairs = {bytes(pair) for pair in itertools.product(b" \n\r/;'aLRE039", repeat=2)}
    tokens += sorted(pairs - {*tokens})
    content = b"".join(
        base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)
    )
    (tmp_path / "other.tiktoken").write_bytes(content)
    for family, pattern in patterns.items():
        path = tmp_path / f"my_{family}.tiktoken"
        path.write_bytes(content)
        reference = tiktoken.Encoding(
            family,
            pat_str=pattern,
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens={"<|endoftext|>": len(tokens)},
        )
        tokenizer = Tokenizer.load(path)
        assert tokenizer.encode_ids_batch(texts) == reference.encode_batch(texts)
        assert [tokenizer.decode(reference.encode(text)) for text in texts] == texts
        assert tokenizer.eos_id == len(tokens)
        said = ["a<|endoftext|>b", "<|endoftext|> <|endoftext|>"]
        ordinary = [reference.encode_ordinary(text) for text in [*TEXTS, *said]]
        assert tokenizer.reading("text").encode_ids_batch([*TEXTS, *said]) == ordinary
        named = Tokenizer.load(tmp_path / "other.tiktoken", pattern=family)
        assert named.fingerprint == tokenizer.fingerprint
    assert Tokenizer.load(tmp_path / "other.tiktoken").encode("a1234").symbols[1] != "1234"


def test_published_tiktoken_files_have_their_special_ids(tmp_path):
    ranks = [bytes([n]) for n in range(256)]
    ranks += [bytes([a, b]) for a in range(256) for b in range(256)][: 50256 - 256]
    content = b"".join(base64.b64encode(token) + b" %d\n" % n for n, token in enumerate(ranks))
    (tmp_path / "r50k_base.tiktoken").write_bytes(content)
    assert Tokenizer.load(tmp_path).eos_id == 50256


def test_qwen_ranks_are_read_with_its_normalization_and_chat_tokens(tmp_path, monkeypatch):
    """Qwen composes characters (NFC) and has tokens of conversations, which no rank file holds."""
    ranks = [bytes([n]) for n in range(256)]
    monkeypatch.setitem(byte_level._PUBLISHED, len(ranks), "qwen")  # 151,643 take seconds
    content = [base64.b64encode(token) + b" %d\n" % n for n, token in enumerate(ranks)]
    (tmp_path / "qwen.tiktoken").write_bytes(b"".join(content))
    qwen = Tokenizer.load(tmp_path)
    assert qwen.encode("<|im_start|>e\u0301<|im_end|>").ids[::3] == (151644, 151645)
    assert qwen.encode("e\u0301").ids == qwen.encode("\u00e9").ids
    assert (qwen.eos_id, qwen.vocab_size) == (151643, 151851)


def test_broken_files_are_named(tmp_path):
    cases = [
        ("vocab.txt", b"hello\nworld\n", r"\[UNK\]"),
        ("x.tiktoken", b"!!! 3\n", "line 1"),
        ("x.tiktoken", b"\nQQ== 0\n", "256 bytes"),
        ("x.model", b"\xff\xff\xff", "not a sentencepiece model"),
        ("x.model", b"", "not a sentencepiece model"),
        ("x.model", b"\x0a\x7fabc", "ends too early"),
        ("x.model", b"\x0b", "wire type 3"),
        ("x.model", b"\x08\x01", "not a sentencepiece model"),
        ("tokenizer.json", b"{", "cannot be read"),
        ("x.bin", b"", "not a known kind"),
    ]
    for name, content, words in cases:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TokenizerError, match=words) as error:
            Tokenizer.load(path)
        assert name in str(error.value)


def test_sentencepiece_models_of_words_are_refused(corpus, tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), model_type="char", minloglevel=2
    )
    with pytest.raises(TokenizerError, match="words, characters"):
        Tokenizer.load(tmp_path)


def test_missing_and_ambiguous_folders(tmp_path):
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match="contains no tokenizer"):
        Tokenizer.load(tmp_path)
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"several tokenizers \(a\.model, b\.model\)"):
        Tokenizer.load(tmp_path)


def test_a_byte_level_token_that_is_no_symbol_stays_as_it_is():
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "\u4eca": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert Tokenizer(backend).token_bytes == [b"a", "\u4eca".encode()]
