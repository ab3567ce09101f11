"""Perplexity against the loop of Hugging Face's guide over the logits of `transformers`."""

from __future__ import annotations

import math

import pytest
import torch
from overfit_tasks import SPECIALS
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import trivium
from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.evaluate.perplexity import (
    Perplexity,
    compute_rolling_logprob,
    iter_windows,
    perplexity,
)
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

WORDS = [f"w{number}" for number in range(29)]
VOCABULARY, POSITIONS = 43, 37


def word_tokenizer(special_tokens: list[str]) -> Tokenizer:
    return Tokenizer.train(
        "whitespace",
        texts=[" ".join(WORDS)] * 3,
        vocab_size=VOCABULARY,
        special_tokens=special_tokens,
        progress=False,
    )


BARE = word_tokenizer(["[UNK]"])
ENDING = word_tokenizer(["<unk>", "</s>"])
MASKING = word_tokenizer(SPECIALS["bert"])


def text_of(length: int, *, seed: int = 0) -> str:
    return " ".join(WORDS[(seed + 7 * i + i * i % 5) % len(WORDS)] for i in range(length))


TEXTS = [text_of(length, seed=length) for length in (5, 101, 1, 37, 38, 0, 73)]


def hf_pair(hf_model, folder, tokenizer) -> tuple[torch.nn.Module, LanguageModel]:
    """A model of transformers with large random weights, and the same one as ours."""
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in hf_model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    hf_model.eval().save_pretrained(folder)
    lm = trivium.load(folder, device="cpu")
    return hf_model, LanguageModel(lm.spec, lm.module, tokenizer, lm.settings)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=24, n_layer=2, n_head=3
    )
    return hf_pair(GPT2LMHeadModel(config), tmp_path_factory.mktemp("gpt2"), BARE)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@torch.no_grad()
def guide(hf_model, ids: list[int], window: int, stride: int) -> tuple[float, int]:
    """The loop of the Hugging Face guide to perplexity, with its labels of -100."""
    nats, count, previous = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        row = torch.tensor([ids[begin:end]])
        labels = row.clone()
        labels[:, : -(end - previous)] = -100
        if row.shape[1] > 1:
            logits = hf_model(row).logits.double()
            loss = torch.nn.functional.cross_entropy(
                logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum"
            )
            nats, count = nats + float(loss), count + int((labels[0, 1:] != -100).sum())
        previous = end
        if end == len(ids):
            break
    return nats, count


def test_windows_agree_with_the_guide(gpt2):
    hf_model, lm = gpt2
    for window, stride in ((37, 18), (37, 36), (11, 3), (2, 1), (None, None)):
        result = perplexity(lm, TEXTS, window=window, stride=stride, batch_size=3)
        expected = [
            guide(hf_model, ids_of(BARE, text), window or 37, stride or 18)
            for text in TEXTS
            if text
        ]
        assert result.num_tokens == sum(count for _, count in expected)
        assert result.nats == pytest.approx(sum(nats for nats, _ in expected), rel=1e-9)
        assert (result.num_ends, result.pseudo) == (0, False)


def test_ends_of_texts_are_apart(gpt2):
    hf_model, lm = gpt2
    lm = LanguageModel(lm.spec, lm.module, ENDING)
    done = []
    result = perplexity(lm, TEXTS, window=37, stride=18, progress=done.append)
    end = ENDING.eos_id
    expected = sum(guide(hf_model, [end, *ids_of(ENDING, text), end], 37, 18)[0] for text in TEXTS)
    assert result.num_tokens == result.num_words == sum(len(text.split()) for text in TEXTS)
    assert result.num_ends == result.num_documents == len(TEXTS)
    assert done[-1] == result.num_tokens
    assert result.nats + result.end_nats == pytest.approx(expected, rel=1e-9)
    with torch.no_grad():
        row = [end, *ids_of(ENDING, TEXTS[0])]
        logits = hf_model(torch.tensor([row])).logits[0, -1]
        ends = -float(logits.double().log_softmax(-1)[end])
    assert perplexity(lm, TEXTS[:1]).end_nats == pytest.approx(ends, rel=1e-9)
    many = perplexity(lm, TEXTS, window=37, stride=18, batch_size=1)
    assert many.nats == pytest.approx(result.nats, rel=1e-9)
    short = text_of(35)
    assert compute_rolling_logprob(lm, short) == pytest.approx(lm.score(short), rel=1e-9)
    assert compute_rolling_logprob(lm, TEXTS[1]) < compute_rolling_logprob(lm, short)


def test_figures_are_per_word_or_on_unsegmented_text_per_character(gpt2):
    result = Perplexity(
        nats=60.0,
        end_nats=5.0,
        num_tokens=30,
        num_ends=2,
        num_words=20,
        num_characters=80,
        num_bytes=100,
    )
    figures = result.to_dict()
    assert figures["loss"] == 2.0
    assert figures["loss_with_ends"] == 65 / 32
    assert figures["perplexity_per_word"] == pytest.approx(math.exp(3.0))
    assert figures["bits_per_byte"] == pytest.approx(60 / math.log(2) / 100)
    _, lm = gpt2
    result = perplexity(lm, ["\u4eca\u5929\u5929\u6c14 w5", "w1 w2\nw3"])
    assert (result.num_words, result.num_characters, result.num_bytes) == (5, 15, 23)
    assert result.num_unknown == 1
    chinese = perplexity(lm, ["\u4eca\u5929 \u5929\u6c14"]).to_dict()
    assert "perplexity_per_character" in chinese
    assert not {"perplexity_per_word", "num_words"} & chinese.keys()
    assert math.isnan(perplexity(lm, []).loss)
    assert Perplexity(nats=1e9, num_tokens=1).to_dict()["perplexity_per_token"] == math.inf


@torch.no_grad()
def test_an_encoder_masks_every_token_in_turn(tmp_path):
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=29,
        max_position_embeddings=POSITIONS,
    )
    hf_model, lm = hf_pair(BertForMaskedLM(config), tmp_path, MASKING)
    result = perplexity(lm, [text_of(23), text_of(5)], window=13, stride=7)
    expected = 0.0
    for text in (text_of(23), text_of(5)):
        ids = ids_of(MASKING, text)
        for start, first, stop in iter_windows(len(ids), 11, 7):
            row = [MASKING.cls_id, *ids[start:stop], MASKING.sep_id]
            for position in range(first, stop):
                masked = torch.tensor([row])
                masked[0, position - start + 1] = MASKING.mask_id
                logits = hf_model(masked).logits[0, position - start + 1]
                expected -= float(logits.double().log_softmax(-1)[ids[position]])
    assert (result.num_tokens, result.num_ends) == (28, 0)
    assert result.nats == pytest.approx(expected, rel=1e-9)
    assert "pseudo_perplexity_per_token" in result.to_dict()


@pytest.mark.parametrize("name", ["lstm-tiny", "ngram-tiny"])
@torch.no_grad()
def test_models_with_a_state_read_on_without_a_window(name):
    text = text_of(1311)  # longer than the parts it is read in
    model = build(presets[name].replace(vocab_size=VOCABULARY), seed=5).eval()
    result = perplexity(LanguageModel(model.spec, model, ENDING), [text, text_of(7)])
    expected = 0.0
    for one in (text, text_of(7)):
        ids = torch.tensor([[ENDING.eos_id, *ids_of(ENDING, one), ENDING.eos_id]])
        logits = model.logits(model(ids))[0, :-1].double()
        expected += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
    assert (result.num_tokens, result.num_ends, result.window) == (1318, 2, None)
    assert result.nats + result.end_nats == pytest.approx(expected, rel=1e-9)


def test_every_token_is_scored_once_with_context():
    for count, window, stride in ((1, 4, 2), (101, 13, 5), (26, 13, 12), (27, 13, 1), (0, 3, 2)):
        windows = list(iter_windows(count, window, stride))
        scored = [token for _, first, stop in windows for token in range(first, stop)]
        assert scored == list(range(count))
        for start, first, stop in windows:
            assert stop - start <= window
            assert start == 0 or first - start >= window - stride


def test_impossible_windows_and_models_are_refused(gpt2):
    _, lm = gpt2
    for options, message in (
        ({"window": 38}, "this model has 37 positions"),
        ({"window": 1}, "must be at least 2"),
        ({"window": 11, "stride": 11}, "less than the window of 11"),
        ({"stride": 0}, "must be at least 1"),
    ):
        with pytest.raises(TriviumError, match=message):
            perplexity(lm, TEXTS, **options)
    t5, bert = (build(presets[f"{name}-tiny"].replace(vocab_size=53)) for name in ("t5", "bert"))
    with pytest.raises(SpecError, match="no perplexity of a text alone"):
        perplexity(LanguageModel(t5.spec, t5, ENDING), TEXTS)
    with pytest.raises(TokenizerError, match="no mask token"):
        perplexity(LanguageModel(bert.spec, bert, ENDING), TEXTS)
    with pytest.raises(TriviumError, match="no room for text"):
        perplexity(LanguageModel(bert.spec, bert, MASKING), TEXTS, window=2)
    unlimited = build(presets["t5-tiny"].replace(vocab_size=53, encoder=None))
    assert perplexity(LanguageModel(unlimited.spec, unlimited, ENDING), TEXTS[:1]).window == 1024
