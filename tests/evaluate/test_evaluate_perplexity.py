"""Perplexity against the plain loop over the logits of `transformers`, and what counts as what."""

from __future__ import annotations

import math

import pytest
import torch
from hugging_face import ours_of, randomize
from small_models import small_model
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.evaluate.perplexity import (
    Perplexity,
    Window,
    perplexity,
    rolling_log_probability,
    rolling_windows,
    strided_windows,
)
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

WORDS = [f"w{number}" for number in range(29)]
VOCABULARY, POSITIONS = 43, 37


def word_tokenizer(special_tokens: list[str]) -> Tokenizer:
    return Tokenizer.train(
        "whitespace",
        texts=[" ".join(WORDS)] * 3,
        vocab_size=len(WORDS) + len(special_tokens),
        special_tokens=special_tokens,
        progress=False,
    )


BARE = word_tokenizer(["[UNK]"])
ENDING = word_tokenizer(["<unk>", "</s>"])
MASKING = word_tokenizer(["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"])


def text_of(length: int, *, seed: int = 0) -> str:
    return " ".join(WORDS[(seed + 7 * i + i * i % 5) % len(WORDS)] for i in range(length))


TEXTS = [text_of(length, seed=length) for length in (5, 101, 1, 37, 38, 0, 73)]


@pytest.fixture(scope="module")
def gpt2():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=24, n_layer=2)
    config.n_head = 3
    return randomize(GPT2LMHeadModel(config), seed=5)


def language_model(theirs, tokenizer) -> LanguageModel:
    model = ours_of(theirs)
    return LanguageModel(model.spec, model, tokenizer)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@torch.no_grad()
def guide(theirs, ids: list[int], window: int, stride: int, vocab_size: int) -> tuple[float, int]:
    """The loop of the Hugging Face guide to perplexity, with its labels of -100."""
    nats, count, previous = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        row = torch.tensor([ids[begin:end]])
        labels = row.clone()
        labels[:, : -(end - previous)] = -100
        logits = theirs(row).logits[..., :vocab_size].double()
        if row.shape[1] > 1:
            loss = torch.nn.functional.cross_entropy(
                logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum"
            )
            nats, count = nats + float(loss), count + int((labels[0, 1:] != -100).sum())
        previous = end
        if end == len(ids):
            break
    return nats, count


@pytest.mark.parametrize(("window", "stride"), [(37, 18), (37, 36), (11, 3), (2, 1), (None, None)])
def test_a_strided_window_against_the_guide(gpt2, window, stride):
    found = perplexity(
        language_model(gpt2, BARE), TEXTS, window=window, stride=stride, batch_size=3
    )
    wanted = [
        guide(gpt2, ids_of(BARE, text), window or 37, stride or 18, BARE.vocab_size)
        for text in TEXTS
        if text
    ]
    assert found.num_tokens == sum(count for _, count in wanted)
    assert found.nats == pytest.approx(sum(nats for nats, _ in wanted), rel=1e-6)
    assert (found.num_ends, found.pseudo) == (0, False)


def test_ends_of_texts_are_told_apart(gpt2):
    """Every text is predicted after an end, and its own end after it."""
    lm = language_model(gpt2, ENDING)
    found = perplexity(lm, TEXTS, window=37, stride=18)
    end, lengths = ENDING.eos_id, [len(text.split()) for text in TEXTS]
    wanted_all = wanted_ends = 0.0
    for text in TEXTS:
        ids = [end, *ids_of(ENDING, text), end]
        wanted_all += guide(gpt2, ids, 37, 18, ENDING.vocab_size)[0]
        if len(ids) <= 37:
            with torch.no_grad():
                logits = gpt2(torch.tensor([ids])).logits[0, -2, : ENDING.vocab_size]
            wanted_ends -= float(logits.double().log_softmax(-1)[end])
    assert found.num_tokens == found.num_words == sum(lengths)
    assert found.num_ends == found.num_documents == len(TEXTS)
    assert found.nats + found.end_nats == pytest.approx(wanted_all, rel=1e-6)
    short = [text for text in TEXTS if len(text.split()) <= 35]
    ends = perplexity(lm, short).end_nats
    assert ends == pytest.approx(wanted_ends, rel=1e-5)


def test_the_figures_are_what_they_say():
    found = Perplexity(
        pseudo=False,
        nats=60.0,
        num_tokens=30,
        num_documents=2,
        num_words=20,
        num_characters=80,
        num_bytes=100,
        end_nats=5.0,
        num_ends=2,
        num_unknown=0,
        window=None,
        stride=None,
    )
    assert found.loss == 2.0
    assert found.loss_with_ends == 65 / 32
    assert found.per_token == pytest.approx(math.exp(2.0))
    assert found.per_word == pytest.approx(math.exp(3.0))
    assert found.per_word_with_ends == pytest.approx(math.exp(65 / 22))
    assert found.bits_per_byte == pytest.approx(60 / math.log(2) / 100)
    assert found.bits_per_character == pytest.approx(60 / math.log(2) / 80)
    told = found.to_dict()
    assert told["perplexity_per_word"] == found.per_word
    assert told["num_bytes"] == 100


def test_words_characters_and_bytes_are_those_of_the_text(gpt2):
    texts = ["w1  w2\nw3", "今天 w5"]
    found = perplexity(language_model(gpt2, ENDING), texts)
    assert (found.num_words, found.num_characters, found.num_bytes) == (5, 14, 18)
    assert (found.num_tokens, found.num_unknown) == (5, 1)


def test_a_uniform_model_needs_the_logarithm_of_its_vocabulary():
    model = small_model("gpt2")
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    found = perplexity(LanguageModel(model.spec, model, ENDING), TEXTS)
    assert found.per_token == pytest.approx(ENDING.vocab_size, rel=1e-6)


@torch.no_grad()
def test_an_encoder_masks_every_token_in_turn():
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=29,
        max_position_embeddings=POSITIONS,
    )
    theirs = randomize(BertForMaskedLM(config), seed=5)
    lm = language_model(theirs, MASKING)
    found = perplexity(lm, [text_of(23), text_of(5)], window=13, stride=7)
    wanted = 0.0
    for text in (text_of(23), text_of(5)):
        ids = ids_of(MASKING, text)
        for start, first, stop in strided_windows(len(ids), 11, 7):
            row = [MASKING.cls_id, *ids[start:stop], MASKING.sep_id]
            for place in range(first, stop):
                masked = torch.tensor([row])
                masked[0, place - start + 1] = MASKING.mask_id
                logits = theirs(masked).logits[0, place - start + 1, : MASKING.vocab_size]
                wanted -= float(logits.double().log_softmax(-1)[ids[place]])
    assert found.pseudo
    assert (found.num_tokens, found.num_ends) == (28, 0)
    assert found.nats == pytest.approx(wanted, rel=1e-5)
    assert "pseudo_perplexity_per_token" in found.to_dict()


@pytest.mark.parametrize("name", ["lstm-tiny", "ngram-tiny", "elmo-tiny"])
@torch.no_grad()
def test_a_model_with_a_state_reads_on_without_a_window(name):
    model = build(presets[name].replace(vocab_size=VOCABULARY), seed=5).eval()
    text = text_of(2311)  # longer than the pieces it is read in
    found = perplexity(LanguageModel(model.spec, model, ENDING), [text, text_of(7)])
    wanted = 0.0
    for one in (text, text_of(7)):
        ids = torch.tensor([[ENDING.eos_id, *ids_of(ENDING, one), ENDING.eos_id]])
        logits = model.logits(model(ids))[0, :-1, : ENDING.vocab_size].double()
        wanted += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
    assert (found.num_tokens, found.num_ends, found.window) == (2318, 2, None)
    assert found.nats + found.end_nats == pytest.approx(wanted, rel=1e-5)


def test_an_encoder_that_is_recurrent():
    model = build(presets["bilstm-tiny"].replace(vocab_size=VOCABULARY), seed=5).eval()
    found = perplexity(LanguageModel(model.spec, model, MASKING), [text_of(7)])
    assert (found.num_tokens, found.window) == (7, 1024)


def test_positions_without_an_end_take_the_window_that_is_told():
    model = small_model("llama")
    lm = LanguageModel(model.spec, model, ENDING)
    assert perplexity(lm, TEXTS[:1]).window == 1024
    assert perplexity(lm, TEXTS[:1], window=53).window == 53


def test_batches_change_no_more_than_rounding(gpt2):
    lm = language_model(gpt2, ENDING)
    one, many = (perplexity(lm, TEXTS, batch_size=size) for size in (1, 7))
    assert one.num_tokens == many.num_tokens
    assert one.nats == pytest.approx(many.nats, rel=1e-6)


@pytest.mark.parametrize(
    ("count", "window", "stride"), [(1, 4, 2), (101, 13, 5), (26, 13, 12), (27, 13, 1), (0, 3, 2)]
)
def test_every_token_is_scored_once_with_enough_before_it(count, window, stride):
    windows = list(strided_windows(count, window, stride))
    scored = [token for _, first, stop in windows for token in range(first, stop)]
    assert scored == list(range(count))
    for start, first, stop in windows:
        assert stop - start <= window
        assert start == 0 or first - start >= window - stride


def test_rolling_windows_are_those_of_the_harness():
    """Their own example: positions 4, ten tokens after a beginning."""
    assert list(rolling_windows(11, 4)) == [Window(0, 0, 5), Window(4, 5, 9), Window(6, 9, 11)]
    for count in range(1, 40):
        scored = [t for _, first, stop in rolling_windows(count, 7) for t in range(first, stop)]
        assert scored == list(range(count))


def test_rolling_equals_one_pass_where_it_fits(gpt2):
    lm = language_model(gpt2, ENDING)
    text = text_of(35)
    assert rolling_log_probability(lm, text) == pytest.approx(lm.score(text), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"window": 38}, "this model has 37 positions"),
        ({"window": 1}, "must be 2 or more"),
        ({"window": 11, "stride": 11}, "must be 1 to 10"),
        ({"stride": 0}, "must be 1 to 36"),
    ],
)
def test_impossible_windows_are_refused(gpt2, changes, what):
    with pytest.raises(TriviumError, match=what):
        perplexity(language_model(gpt2, ENDING), TEXTS, **changes)


def test_models_that_predict_no_text_are_refused(gpt2):
    t5 = small_model("t5")
    with pytest.raises(SpecError, match="no perplexity of a text alone"):
        perplexity(LanguageModel(t5.spec, t5, ENDING), TEXTS)
    with pytest.raises(TokenizerError, match="without a tokenizer"):
        perplexity(language_model(gpt2, None), TEXTS)
    bert = small_model("bert")
    with pytest.raises(TokenizerError, match="mask token"):
        perplexity(LanguageModel(bert.spec, bert, ENDING), TEXTS)
