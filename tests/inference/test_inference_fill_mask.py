"""Filling masks against `transformers`, and how sentences read with the prediction put in."""

from __future__ import annotations

import pytest
import torch
from hugging_face import ours_of
from transformers import BertConfig, BertForMaskedLM

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference import fill_masks, score_masked
from trivium.text import Tokenizer

TEXT = ["The weather was cloudy yesterday, but today it's rainy.", "今天天气很好。我们去公园。"]
POSITIONS = 37


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=97, progress=False)


@pytest.fixture(scope="module")
def pair(tokenizer):
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=41,
        max_position_embeddings=POSITIONS,
        initializer_range=0.4,
    )
    theirs = BertForMaskedLM(config).eval()
    return theirs, ours_of(theirs)


def test_scores_and_tokens_equal_transformers(pair, tokenizer):
    theirs, model = pair
    text = "The [MASK] was cloudy [MASK], 今天[MASK]气."
    ids = torch.tensor([tokenizer.encode(text).ids])
    with torch.no_grad():
        wanted = theirs(input_ids=ids).logits[0].softmax(-1)
    found = fill_masks(model, tokenizer, text, top_k=7)
    places = (ids[0] == tokenizer.mask_id).nonzero()[:, 0].tolist()
    assert len(found) == len(places) == 3
    for fills, place in zip(found, places, strict=True):
        best = wanted[place].topk(7)
        torch.testing.assert_close(torch.tensor([fill.score for fill in fills]), best.values)
        assert [tokenizer.token_to_id(fill.token) for fill in fills] == best.indices.tolist()


def test_everything_adds_up_to_one(pair, tokenizer):
    (fills,) = fill_masks(pair[1], tokenizer, "the [MASK]", top_k=10_000)
    assert len(fills) == tokenizer.vocab_size
    assert sum(fill.score for fill in fills) == pytest.approx(1.0)
    assert [fill.score for fill in fills] == sorted((f.score for f in fills), reverse=True)


def filled(pair, tokenizer, text: str, token: str) -> list[str]:
    found = fill_masks(pair[1], tokenizer, text, top_k=10_000)
    return [next(f.sequence for f in fills if f.token == token) for fills in found]


def test_sequences_keep_the_text(pair, tokenizer):
    text = "The [MASK] was (cloudy) Yesterday."
    assert filled(pair, tokenizer, text, "weather") == ["The weather was (cloudy) Yesterday."]
    assert filled(pair, tokenizer, "今天[MASK]气", "天") == ["今天天气"]
    joined = next(token for token in tokenizer.tokens if token.startswith("##"))
    assert filled(pair, tokenizer, "rain [MASK]!", joined) == [f"rain{joined[2:]}!"]
    both = filled(pair, tokenizer, "The [MASK] was [MASK].", "weather")
    assert both == ["The weather was [MASK].", "The [MASK] was weather."]


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "bpe", "whitespace"])
def test_other_kinds(kind):
    specials = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    tokenizer = Tokenizer.train(
        kind,
        texts=TEXT * 9,
        vocab_size=400 if kind == "byte-bpe" else 73,
        special_tokens=specials,
        progress=False,
    )
    config = BertConfig(
        vocab_size=tokenizer.vocab_size + 3,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=17,
    )
    model = ours_of(BertForMaskedLM(config).eval())
    (fills,) = fill_masks(model, tokenizer, "The <mask> was cloudy.", top_k=10_000)
    assert len(fills) == tokenizer.vocab_size  # none of the 3 rows that stand for nothing
    sequences = {fill.sequence for fill in fills}
    assert "The weather was cloudy." in sequences or kind != "whitespace"
    assert all(s.startswith("The") and s.endswith(" was cloudy.") for s in sequences)


def test_no_mask_in_the_text(pair, tokenizer):
    with pytest.raises(
        TriviumError, match=r"no \[MASK\] in the text 'The weather'.*write \[MASK\]"
    ):
        fill_masks(pair[1], tokenizer, "The weather")


def test_text_longer_than_the_positions(pair, tokenizer):
    with pytest.raises(SpecError, match=rf"{POSITIONS + 1} tokens.*end at {POSITIONS}"):
        fill_masks(pair[1], tokenizer, "[MASK] " * (POSITIONS - 1))


def test_tokenizer_without_a_mask(pair):
    plain = Tokenizer.train("byte-bpe", texts=TEXT, vocab_size=260, progress=False)
    with pytest.raises(TokenizerError, match="no mask token"):
        fill_masks(pair[1], plain, "hello")


def test_top_k_below_one(pair, tokenizer):
    with pytest.raises(TriviumError, match="top_k is 0"):
        fill_masks(pair[1], tokenizer, "[MASK]", top_k=0)


def test_pseudo_log_likelihood_by_its_definition(pair, tokenizer):
    theirs, model = pair
    ids = torch.tensor([tokenizer.encode("The weather was cloudy today").ids])
    total = 0.0
    for place in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_id
        with torch.no_grad():
            logits = theirs(input_ids=masked).logits[0, place]
        total += float(logits.double().log_softmax(-1)[ids[0, place]])
    found = score_masked(model, tokenizer, "The weather was cloudy today")
    assert found == pytest.approx(total, rel=1e-5)
