"""Masked tokens against `transformers`, gaps against beam search, and how the texts read."""

from __future__ import annotations

import math

import pytest
import torch
from generating_models import text_model
from hugging_face import ours_of
from transformers import BertConfig, BertForMaskedLM

from trivium.errors import TokenizerError, TriviumError
from trivium.inference.beam import beam_search
from trivium.inference.fill_mask import fill_gaps, fill_masks, texts_between
from trivium.inference.sampling_params import BeamSearchParams
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

TODAY = "\u4eca\u5929"
TEXT = [
    "The weather was cloudy yesterday, but today it's rainy.",
    f"{TODAY}\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u3002",
]
STORY = "the cat sat on the mat and the dog lay on the rug near a warm fire in the house ."
POSITIONS = 37
PADDING = 31  # rows of the embedding matrix without a token


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=167, progress=False)


@pytest.fixture(scope="module")
def hf(tokenizer):
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size + PADDING,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=41,
        max_position_embeddings=POSITIONS,
        initializer_range=0.4,
    )
    return BertForMaskedLM(config).eval()


@pytest.fixture(scope="module")
def lm(hf, tokenizer):
    return text_model(ours_of(hf), tokenizer)


def gap_model(preset: str, special_tokens: tuple[str, ...]):
    tokenizer = Tokenizer.train(
        "whitespace", texts=[STORY], vocab_size=60, special_tokens=special_tokens, progress=False
    )
    spec = presets[preset].replace(vocab_size=64).with_dropout(0.0)
    module, noise = build(spec, seed=3).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=noise))
    return text_model(
        module,
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        stop_ids=frozenset({tokenizer.eos_id}),
        decoder_start=(tokenizer.pad_id,),
    )


@pytest.fixture(scope="module")
def t5():
    return gap_model("t5-tiny", ("<pad>", "</s>", "<unk>", *(f"<extra_id_{n}>" for n in range(5))))


@pytest.fixture(scope="module")
def bart():
    return gap_model("bart-tiny", ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))


def test_scores_and_tokens_equal_transformers(hf, lm, tokenizer):
    text = f"The [MASK] was cloudy [MASK], {TODAY}[MASK]."
    ids = torch.tensor([tokenizer.encode(text).ids])
    with torch.no_grad():
        expected = hf(input_ids=ids).logits[0].softmax(-1)[:, : tokenizer.vocab_size]
    results = fill_masks(lm, text, top_k=7)
    positions = (ids[0] == tokenizer.mask_id).nonzero()[:, 0].tolist()
    assert len(results) == len(positions) == 3
    for fills, position in zip(results, positions, strict=True):
        best = expected[position].topk(7)
        torch.testing.assert_close(torch.tensor([fill.score for fill in fills]), best.values)
        assert [tokenizer.token_to_id(fill.token) for fill in fills] == best.indices.tolist()
    (fills,) = fill_masks(lm, "the [MASK]", top_k=10_000)
    assert len(fills) == tokenizer.vocab_size
    assert sum(fill.score for fill in fills) < 0.99
    assert fill_masks(lm, text.replace("[MASK]", "<mask>"), top_k=7) == results


def filled(lm, text: str, token: str) -> list[str]:
    results = fill_masks(lm, text, top_k=10_000)
    return [next(f.sequence for f in fills if f.token == token) for fills in results]


def test_sequences_keep_the_text(lm, tokenizer):
    text = "The [MASK] was (cloudy) Yesterday."
    assert filled(lm, text, "weather") == ["The weather was (cloudy) Yesterday."]
    day = TODAY[1]
    assert filled(lm, f"{TODAY}[MASK]", day) == [f"{TODAY}{day}"]
    joined = next(token for token in tokenizer.tokens if token.startswith("##"))
    assert filled(lm, "rain [MASK]!", joined) == [f"rain{joined[2:]}!"]
    for spelling in ("[MASK]", "<mask>", "[mask]", "<MASK>"):
        both = filled(lm, f"The {spelling} was {spelling}.", "weather")
        assert both == ["The weather was [MASK].", "The [MASK] was weather."]


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "bpe", "whitespace"])
def test_other_kinds_of_tokenizers(kind):
    special = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    size = 400 if kind == "byte-bpe" else 199
    tokenizer = Tokenizer.train(
        kind, texts=TEXT * 9, vocab_size=size, special_tokens=special, progress=False
    )
    config = BertConfig(
        vocab_size=tokenizer.vocab_size + 3,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=17,
    )
    lm = text_model(ours_of(BertForMaskedLM(config).eval()), tokenizer)
    (fills,) = fill_masks(lm, "The <mask> was cloudy.", top_k=10_000)
    assert len(fills) == tokenizer.vocab_size  # without the 3 rows of padding
    sequences = {fill.sequence for fill in fills}
    assert "The weather was cloudy." in sequences or kind != "whitespace"
    assert all(s.startswith("The") and s.endswith(" was cloudy.") for s in sequences)


def test_what_cannot_be_filled_is_refused(lm, t5, bart):
    with pytest.raises(TriviumError, match=r"no \[MASK\] in the text 'The weather'"):
        fill_masks(lm, "The weather")
    with pytest.raises(TriviumError, match="top_k is 0"):
        fill_masks(lm, "[MASK]", top_k=0)
    plain = Tokenizer.train("byte-bpe", texts=TEXT, vocab_size=260, progress=False)
    with pytest.raises(TokenizerError, match="no mask token"):
        fill_masks(text_model(lm.module, plain), "hello")
    for gaps in (t5, bart):
        with pytest.raises(TriviumError, match="there is no <mask>"):
            fill_gaps(gaps, "the cat")
    with pytest.raises(TriviumError, match="more gaps than the 5 sentinels"):
        fill_gaps(t5, "the <mask> " * 6)


def test_a_gap_is_what_beam_search_generates_after_its_sentinel(t5):
    tokenizer, rules = t5.text_tokenizer, t5.generation_rules
    sentinels, text = tokenizer.sentinel_ids, "the cat <extra_id_0> the mat"
    fills = fill_gaps(t5, text, top_k=3)
    source = tokenizer.encode(text, add_special_tokens=False).ids
    other = text_model(
        t5.module,
        tokenizer,
        vocab_size=rules.vocab_size,
        decoder_start=rules.decoder_start,
        forced_start=sentinels[:1],
        stop_ids=frozenset({tokenizer.eos_id, *sentinels[1:]}),
    )
    params = BeamSearchParams(num_beams=5, num_return=5, min_new_tokens=1)
    (results,) = beam_search(other, [[*source, tokenizer.eos_id]], params, max_new_tokens=13)
    assert all(hypothesis.ids[0] == sentinels[0] for hypothesis in results)
    by_words = {}  # the best of those with equal words
    for hypothesis in results:
        by_words.setdefault(tokenizer.decode(hypothesis.ids[1:]).strip(), hypothesis)
    for fill, (words, hypothesis) in zip(fills, by_words.items()):
        assert fill.token == words
        assert fill.sequence.split() == f"the cat {words} the mat".split()
        assert fill.score == pytest.approx(math.exp(hypothesis.score))
    named = fill_gaps(t5, "the <extra_id_0> sat on <extra_id_1> rug")
    assert fill_gaps(t5, "the <mask> sat on <mask> rug") == named
    assert fill_gaps(t5, "the [MASK] sat on <mask> rug") == named
    assert all(fill.token.count(" | ") == 1 for fill in named)


def test_equal_fills_are_merged(t5):
    fills = fill_gaps(t5, "the cat <mask> the mat", top_k=20)
    texts = [(fill.token, fill.sequence) for fill in fills]
    assert len(texts) == len(set(texts))


def test_every_spelling_of_a_mask_is_a_gap_in_its_place(t5):
    gaps = fill_gaps(t5, "the <mask> on [MASK] mat")
    assert gaps == fill_gaps(t5, "the [mask] on <MASK> mat")
    assert gaps == fill_gaps(t5, "the <extra_id_0> on <extra_id_1> mat")


def test_bart_generates_the_whole_text(bart):
    fills = fill_gaps(bart, "the cat <mask> the mat", top_k=2)
    assert len(fills) == 2
    assert all("<mask>" not in fill.sequence for fill in fills)


def test_texts_between():
    for pieces, text, expected in (
        (["The", "sat on the", "."], "The cat sat on the mat.", ["cat", "mat"]),
        (["The", "sat on the", "."], "The St. Bernard sat on the mat.", ["St. Bernard", "mat"]),
        (["The cat sat on the", "."], "The cat sat on the mat. And slept.", ["mat. And slept"]),
        (["", "b c"], "a b c", ["a"]),
        (["a", ""], "a b c", ["b c"]),
        (["x", "y"], "a b c", [""]),
    ):
        assert texts_between(pieces, text) == expected


def test_everything_an_encoder_reads_is_encoded_by_the_source_tokenizer(t5):
    """Fault 2: separate tokenizers of source and target."""
    special = ("<pad>", "</s>", "<unk>", *(f"<extra_id_{n}>" for n in range(5)))
    reversed_words = " ".join(reversed(STORY.split()))
    source = Tokenizer.train(
        "whitespace",
        texts=[reversed_words, *STORY.split()[7:] * 2],
        vocab_size=60,
        special_tokens=special,
        progress=False,
    )
    assert source.tokens != t5.text_tokenizer.tokens
    seen, encode = [], t5.module.encode
    lm = text_model(t5.module, t5.text_tokenizer, **vars(t5.generation_rules))
    lm.source_tokenizer = source
    t5.module.encode = lambda ids, **inputs: seen.append(ids) or encode(ids, **inputs)
    fill_gaps(lm, "the cat <extra_id_0> the mat")
    del t5.module.encode
    expected = source.encode("the cat <extra_id_0> the mat", add_special_tokens=False).ids
    assert seen[0][0].tolist() == [*expected, source.eos_id]
