"""Excerpts of texts in any language, for samples and for the command after a run."""

from __future__ import annotations

import shlex

import pytest

from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.objectives import Objective
from trivium.objectives.excerpt import first_words, mask_middle
from trivium.presets import presets
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

CHINESE = "北京大学创办于1898年是中国近代第一所国立大学。"


def test_words_of_any_script_are_cut_and_joined_as_they_were_written():
    assert first_words(CHINESE, 6) == "北京大学创办"
    assert first_words("The cat sat, on the mat.", 3) == "The cat sat,"
    # A decoded WordPiece text has spaces between characters, which nobody writes.
    assert first_words(" ".join("北京大学"), 3) == "北京大"
    assert mask_middle(CHINESE, "[MASK]", words=7) == ("北京大[MASK]创办于", "学")
    assert mask_middle("one , , , two", "<mask>", words=5) == ("one , <mask> , two", ",")
    assert mask_middle("one , , two three", "<mask>") == ("one , , <mask> three", "two")
    assert mask_middle("北京是大", "<x>", span=2) == ("北<x>大", "京是")
    assert mask_middle("two words", "[MASK]") is None


def test_a_whole_sentence_without_headings_is_shown():
    poem = "咏风\n太宗皇帝\n萧条起关塞\uff0c摇扬下蓬瀛。\n拂林花乱彩\uff0c响谷鸟分声。"
    assert mask_middle(poem, "[MASK]") == ("萧条起关塞\uff0c[MASK]扬下蓬瀛。", "摇")
    article = "The mill\nHistory.\nIt cost 3.5 million pounds. Then it burned down, twice."
    assert mask_middle(article, "[MASK]") == ("It cost [MASK] million pounds.", "3.5")
    assert first_words(article, 3) == "It cost 3.5"
    assert first_words("no end " * 40, 3) == "no end no"


def test_the_command_after_a_run_is_in_the_language_of_its_text():
    before, after = "北京大学创办于1898年是中", "近代第一所国立大学。"
    expected = {
        "masked": f"fill-mask r {before}[MASK]{after}",
        "replaced-token": f"fill-mask r/generator {before}[MASK]{after}",
        "denoising": f"fill-mask r {before}<mask>{after}",
        "span-corruption": f"fill-mask r {before}<extra_id_0>{after}",
        "causal": "generate r 北京大学创办",
    }
    for kind, command in expected.items():
        shown = Objective.kinds[kind]().suggest_command("r", None, CHINESE)  # type: ignore[arg-type]
        assert " ".join(shlex.split(shown)) == command, kind
        assert Objective.kinds[kind]().suggest_command("r", None).isascii()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "words"), [("causal", 10), ("prefix-lm", 10), ("seq2seq-prefix-lm", 8)]
)
def test_no_sample_is_cut_within_a_character_or_goes_past_the_trained_length(kind, words):
    tokenizer = Tokenizer.train("byte-bpe", texts=[CHINESE], vocab_size=260, progress=False)
    spec = presets["gpt2-tiny"].replace(vocab_size=tokenizer.vocab_size)
    used = len(tokenizer.encode(first_words(CHINESE, words)).ids)
    for trained, room in ((used + 9, 9), (None, 40), (used, 0)):
        settings = Settings(config={"trained_length": trained} if trained else {})
        lm = LanguageModel(spec, build(spec, seed=0), tokenizer, settings)
        generated = []
        lm.generate = lambda prompt, generated=generated, **options: generated.append(options)
        sample = Objective.kinds[kind]().generate_sample(lm, CHINESE)
        if not room:
            assert sample is None
            continue
        assert sample
        assert CHINESE.startswith(sample[0])
        assert generated[0]["max_new_tokens"] == min(40, room)
