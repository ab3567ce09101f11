"""Long texts: the ids of their chunks, one after another, are those of the whole."""

from __future__ import annotations

import base64
import functools
import json
import random

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from trivium.text import Tokenizer
from trivium.text.byte_level import PATTERNS
from trivium.text.chunks import split_texts

LIMIT, SIZE = 2500, 10_000
ENGLISH = "The weather was cloudy yesterday, but it's 1984 now: they'll walk to the harbour! Été."
CHINESE = "今天天气很好我们去公园散步然后回家吃饭看书写字学习人工智能语言模型城市山水花鸟"


def _texts():
    rng = random.Random(0)
    words = ENGLISH.split()
    yield "english", " ".join(rng.choices(words, k=SIZE // 6))
    yield "lines", "\n".join(" ".join(rng.choices(words, k=9)) for _ in range(SIZE // 50))
    yield (
        "spaces",
        "".join(rng.choices([*words, " ", "  ", "\n", "\n\n", " \n ", "\t"], k=SIZE // 3)),
    )
    yield "chinese", "".join(rng.choices(CHINESE, k=SIZE))
    yield (
        "chinese with marks",
        "".join(rng.choices(CHINESE + "\uff0c\u3002\uff01\u300c\u300d", k=SIZE)),
    )
    yield "base64", base64.b64encode(rng.randbytes(SIZE * 3 // 4)).decode()
    yield "base64 lines", base64.encodebytes(rng.randbytes(SIZE * 3 // 4)).decode()
    yield "dna", "".join(rng.choices("ACGT", k=SIZE))
    yield "digits", "".join(rng.choices("0123456789", k=SIZE))
    yield "one letter", "a" * SIZE
    yield "zeros, then words", "0" * 3000 + " ".join(rng.choices(words, k=SIZE // 8))
    yield "one space", "word" + " " * SIZE + "word"
    yield (
        "combining",
        "".join(rng.choices(["e\u0301", "か\u3099", "\u1100\u1161", "x", " "], k=SIZE)),
    )
    yield "emoji", "".join(rng.choices(["😀", "👨‍👩‍👧", "☃", "é", " ", "a"], k=SIZE // 2))
    yield (
        "special",
        "".join(
            rng.choices(["[SEP]", "<|endoftext|>", "</s>", "<", "a ", " [MASK] "], k=SIZE // 6)
        ),
    )


TEXTS = dict(_texts())
TRAINING = [ENGLISH, CHINESE, *(text[-4000:] for text in TEXTS.values())]
PUBLISHED = ["cl100k", "o200k", "qwen", "gpt2"]


@functools.cache
def tokenizer(kind: str) -> Tokenizer:
    if kind in Tokenizer.kinds:
        return Tokenizer.train(kind, texts=TRAINING, vocab_size=1500, progress=False)
    if kind in PUBLISHED:
        backend = tokenizers.Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(PATTERNS[kind]), behavior="isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, level])
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=1500, initial_alphabet=level.alphabet(), show_progress=False
        )
        backend.train_from_iterator(TRAINING, trainer)
        return Tokenizer(backend)
    # As llama.cpp's sentencepiece models: spaces are letters, and one word is the whole text.
    content = json.loads(tokenizer(kind.removeprefix("sentencepiece ")).to_json())
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.pre_tokenizer = None
    backend.decoder = decoders.Replace("▁", " ")
    return Tokenizer(backend)


KINDS = [*Tokenizer.kinds, *PUBLISHED, "sentencepiece bpe", "sentencepiece unigram"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXTS)
def test_chunks_have_the_ids_of_the_whole(kind, name):
    encode, text = tokenizer(kind).encode_ids_batch, TEXTS[name]
    parts = [(text[i : i + 777], i + 777 >= len(text)) for i in range(0, len(text), 777)]
    chunks = list(split_texts(parts, encode, LIMIT))
    assert "".join(chunk.text for chunk in chunks) == text
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    ids = []
    for chunk in chunks:
        whole, before = encode([chunk.before + chunk.text, chunk.before])
        ids += whole[len(before) :] if chunk.before else whole
    assert ids == encode([text])[0]
    if name not in ("digits", "one letter", "one space", "zeros, then words"):
        assert max(len(chunk.text) for chunk in chunks) < 2 * LIMIT
