"""Tokenizers that other libraries made give the ids that those libraries give."""

# ruff: noqa: RUF001

import base64
import json

import pytest
import sentencepiece
import tiktoken
from transformers import BertTokenizer, GPT2Tokenizer

from trivium.errors import TokenizerError
from trivium.text import Tokenizer
from trivium.text.symbols import symbols_to_bytes
from trivium.text.tiktoken_file import PATTERNS

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


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(SAMPLE * 11), encoding="utf-8")
    return path


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True, "vocab_size": 613},
        {"add_dummy_prefix": False},
        {
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "user_defined_symbols": ["<mask>", "<sep>"],
        },
    ],
    ids=["plain", "bytes", "no-prefix", "identity"],
)
def test_sentencepiece(model_type, options, corpus, tmp_path):
    settings = {"vocab_size": 359, **options}
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "m"),
        model_type=model_type,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **settings,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ours = Tokenizer.load(tmp_path)
    assert ours.vocab_size == theirs.get_piece_size()
    texts = [*SAMPLE, *HOSTILE]
    if "user_defined_symbols" in options:
        texts += ["a <mask> b", "<mask> first", "  two<sep><mask> "]
    assert ours.encode_ids_batch(texts) == theirs.encode(texts)
    plain = [text for text in texts if 0 not in theirs.encode(text)]
    assert [ours.decode(theirs.encode(text)) for text in plain] == [
        theirs.decode(theirs.encode(text)) for text in plain
    ]
    assert (ours.unk_id, ours.bos_id, ours.eos_id) == (0, 1, 2)
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.fingerprint == ours.fingerprint
    assert again.kind == model_type


def test_sentencepiece_configuration_adds_the_frame(corpus, tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), vocab_size=197, minloglevel=2
    )
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    tokenizer = Tokenizer.load(tmp_path / "m.model")
    assert tokenizer.encode("free").ids[0] == 1
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((1,), (2,))


@pytest.mark.parametrize("lowercase", [True, False])
def test_bert_vocabulary(lowercase, corpus, tmp_path):
    trained = Tokenizer.train(
        "wordpiece", files=corpus, vocab_size=503, lowercase=lowercase, progress=False
    )
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(trained.tokens) + "\n", encoding="utf-8")
    theirs = BertTokenizer(vocab=str(path), do_lower_case=lowercase)
    ours = Tokenizer.load(path)
    for text in [*SAMPLE, *HOSTILE]:
        assert list(ours.encode(text).ids) == theirs(text)["input_ids"]
    assert ours.fingerprint == trained.fingerprint
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not lowercase}))
    assert Tokenizer.load(tmp_path).fingerprint != ours.fingerprint
    assert Tokenizer.load(tmp_path, lowercase=lowercase).fingerprint == ours.fingerprint


def test_gpt2_files(corpus, tmp_path):
    trained = Tokenizer.train("byte-bpe", files=corpus, vocab_size=503, progress=False)
    trained.backend.model.save(str(tmp_path))
    theirs = GPT2Tokenizer(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    ours = Tokenizer.load(tmp_path)
    for text in [*SAMPLE, *HOSTILE]:
        assert list(ours.encode(text).ids) == theirs(text)["input_ids"]
    assert ours.eos_id == trained.eos_id == 0
    assert Tokenizer.load(tmp_path / "merges.txt").fingerprint == ours.fingerprint
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(TokenizerError, match=r"merges\.txt"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("family", sorted(PATTERNS))
def test_tiktoken_ranks(family, corpus, tmp_path):
    trained = Tokenizer.train("byte-bpe", files=corpus, vocab_size=503, progress=False)
    tokens = [symbols_to_bytes(token) for token in trained.tokens[1:]]
    assert all(tokens)
    path = tmp_path / f"my_{family}.tiktoken"
    path.write_bytes(
        b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    )
    theirs = tiktoken.Encoding(
        family,
        pat_str=PATTERNS[family],
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens={"<|endoftext|>": len(tokens)},
    )
    ours = Tokenizer.load(path)
    texts = [*SAMPLE, *HOSTILE]
    assert ours.encode_ids_batch(texts) == theirs.encode_batch(texts)
    assert [ours.decode(theirs.encode(text)) for text in texts] == texts
    assert ours.eos_id == len(tokens)
    other = tmp_path / "other.tiktoken"
    other.write_bytes(path.read_bytes())
    named = Tokenizer.load(other, pattern=family)
    assert named.fingerprint == ours.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("vocab.txt", b"hello\nworld\n", r"\[UNK\]"),
        ("x.tiktoken", b"!!! 3\n", "line 1"),
        ("x.tiktoken", b"QQ== 0\n", "256 bytes"),
        ("x.model", b"\xff\xff\xff", "no sentencepiece model"),
        ("x.model", b"", "no sentencepiece model"),
        ("tokenizer.json", b"{", "cannot be read"),
        ("x.bin", b"", "no known kind"),
    ],
)
def test_broken_files_are_named(name, content, says, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=says) as caught:
        Tokenizer.load(path)
    assert name in str(caught.value)


def test_missing_and_empty_places(tmp_path):
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        Tokenizer.load(tmp_path)
