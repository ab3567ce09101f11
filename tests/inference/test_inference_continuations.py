"""Scores of options against the logits of `transformers`, and that nothing beside them matters."""

from __future__ import annotations

import math

import pytest
import torch
from hugging_face import ours_of, randomize
from small_models import BIDIRECTIONAL, BOTH, CAUSAL, MAX_LENGTH, VOCABULARY, small_model
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.continuations import Item, encode_item, score_continuations
from trivium.inference.score import score_texts
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

TEXT = ["The weather was cloudy yesterday, but today it's rainy.", "今天天气很好。我们去公园。"]
WORDS = [f"w{number}" for number in range(29)]
# Distinct lengths, one option of a single token, one item with one option.
ITEMS = [
    ([7, 11, 13, 17, 19], [[23], [29, 30, 5], [6, 7]]),
    ([8], [[9, 10, 11, 12, 13, 14, 15]]),
    ([20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30], [[28, 30], [7, 8, 9, 10]]),
]


def word_tokenizer(special_tokens: list[str]) -> Tokenizer:
    """Every id below 29 + specials is a word; which special tokens there are is told."""
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


def hf_gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=37, n_embd=24, n_layer=3, n_head=3)
    return randomize(GPT2LMHeadModel(config), seed=3)


def hf_bert() -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=29,
        max_position_embeddings=37,
    )
    return randomize(BertForMaskedLM(config), seed=3)


def hf_t5() -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=24,
        d_kv=7,
        d_ff=29,
        num_layers=3,
        num_heads=3,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return randomize(T5ForConditionalGeneration(config), seed=3)


def log_probabilities(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return logits[..., :vocab_size].double().log_softmax(-1)


def check(found, wanted_values: list[float], wanted_greedy: bool) -> None:
    assert found.log_probability == pytest.approx(math.fsum(wanted_values), abs=2e-5)
    assert found.num_tokens == len(wanted_values)
    assert found.greedy == wanted_greedy


@torch.no_grad()
def test_a_decoder_against_transformers():
    theirs = hf_gpt2()
    found = score_continuations(ours_of(theirs), ITEMS, tokenizer=ENDING)
    for (context, options), scores in zip(ITEMS, found, strict=True):
        for option, score in zip(options, scores, strict=True):
            logits = theirs(torch.tensor([[*context, *option]])).logits[0]
            known = log_probabilities(logits, ENDING.vocab_size)[len(context) - 1 : -1]
            greedy = known.argmax(-1).tolist() == option
            check(score, known[range(len(option)), option].tolist(), greedy)


@torch.no_grad()
def test_a_greedy_continuation_is_told():
    theirs = hf_gpt2()
    model, context = ours_of(theirs), [5, 6, 7]
    ids = list(context)
    for _ in range(5):
        logits = theirs(torch.tensor([ids])).logits[0, -1, : ENDING.vocab_size]
        ids.append(int(logits.argmax()))
    best = ids[len(context) :]
    other = [*best[:-1], (best[-1] + 1) % ENDING.vocab_size]
    found = score_continuations(model, [(context, [best, other, best[:1]])], tokenizer=ENDING)
    assert [score.greedy for score in found[0]] == [True, False, True]


@torch.no_grad()
def test_an_encoder_against_transformers():
    theirs = hf_bert()
    after = [9, 5]
    items = [Item(context, options, after) for context, options in ITEMS]
    found = score_continuations(ours_of(theirs), items, tokenizer=MASKING)
    cls, sep, mask = MASKING.cls_id, MASKING.sep_id, MASKING.mask_id
    for (context, options), scores in zip(ITEMS, found, strict=True):
        for option, score in zip(options, scores, strict=True):
            row = [cls, *context, *option, *after, sep]
            values, greedy = [], True
            for place in range(1 + len(context), 1 + len(context) + len(option)):
                masked = torch.tensor([row])
                masked[0, place] = mask
                known = log_probabilities(theirs(masked).logits[0, place], MASKING.vocab_size)
                values.append(float(known[row[place]]))
                greedy &= int(known.argmax()) == row[place]
            check(score, values, greedy)


@torch.no_grad()
def test_an_encoder_decoder_against_transformers():
    theirs = hf_t5()
    found = score_continuations(ours_of(theirs), ITEMS, tokenizer=ENDING, decoder_start=[0])
    for (context, options), scores in zip(ITEMS, found, strict=True):
        for option, score in zip(options, scores, strict=True):
            logits = theirs(
                input_ids=torch.tensor([[*context, ENDING.eos_id]]),
                decoder_input_ids=torch.tensor([[0, *option[:-1]]]),
            ).logits[0]
            known = log_probabilities(logits, ENDING.vocab_size)
            greedy = known.argmax(-1).tolist() == option
            check(score, known[range(len(option)), option].tolist(), greedy)


@pytest.mark.parametrize("name", ["ngram-tiny", "rnn-tiny", "lstm-tiny", "gru-tiny", "elmo-tiny"])
@torch.no_grad()
def test_models_without_attention(name):
    model = build(presets[name].replace(vocab_size=VOCABULARY), seed=5).eval()
    found = score_continuations(model, ITEMS, tokenizer=ENDING)
    for (context, options), scores in zip(ITEMS, found, strict=True):
        for option, score in zip(options, scores, strict=True):
            logits = model.logits(model(torch.tensor([[*context, *option]])))[0]
            known_values = log_probabilities(logits, ENDING.vocab_size)[len(context) - 1 : -1]
            check(
                score,
                known_values[range(len(option)), option].tolist(),
                known_values.argmax(-1).tolist() == option,
            )


@pytest.mark.parametrize("name", CAUSAL + BIDIRECTIONAL + BOTH)
def test_numbers_are_the_same_to_the_last_digit_beside_anything(name):
    model = small_model(name)
    bidirectional, start = name in BIDIRECTIONAL, [0] if name in BOTH else []
    tokenizer = MASKING if bidirectional else ENDING
    together = score_continuations(model, ITEMS, tokenizer=tokenizer, decoder_start=start)
    for order in ([2, 0, 1], [1], [0, 0, 2]):
        items = [ITEMS[i] for i in order]
        found = score_continuations(model, items, tokenizer=tokenizer, decoder_start=start)
        assert found == [together[i] for i in order]


def test_many_options_go_in_parts():
    """More rows than one pass takes; each has the score it has by itself, to rounding."""
    model = small_model("alibi")
    options = [[5 + i % 19, 6 + i % 23] for i in range(401)]
    context = [7 + i % 13 for i in range(31)]
    (found,) = score_continuations(model, [(context, options)], tokenizer=ENDING)
    for index in (0, 199, 400):
        ((alone,),) = score_continuations(model, [(context, [options[index]])], tokenizer=ENDING)
        assert found[index].log_probability == pytest.approx(alone.log_probability, abs=1e-4)


def test_an_empty_context_begins_as_texts_do():
    model = small_model("gpt2")
    option = [5, 6, 7]
    ((found,),) = score_continuations(model, [([], [option])], tokenizer=ENDING)
    end = ENDING.eos_id
    assert end is not None
    ((told,),) = score_continuations(model, [([end], [option])], tokenizer=ENDING)
    assert (found.num_tokens, found.log_probability) == (3, told.log_probability)
    text = " ".join(ENDING.tokens[index] for index in option)
    (whole,) = score_texts(model, ENDING, [text])
    assert whole.ids == tuple(option)
    assert whole.total == pytest.approx(found.log_probability, abs=1e-5)


def test_where_nothing_begins_a_text_the_first_token_is_not_counted():
    model = small_model("gpt2")
    options = [[5, 6, 7], [8]]
    (found,) = score_continuations(model, [([], options)], tokenizer=BARE)
    ((rest,),) = score_continuations(model, [([5], [[6, 7]])], tokenizer=BARE)
    assert [score.num_tokens for score in found] == [2, 0]
    assert found[0].log_probability == pytest.approx(rest.log_probability, abs=1e-5)
    assert found[1].log_probability == 0.0


@pytest.mark.parametrize(
    ("name", "tokenizer", "around", "option"),
    [("gpt2", ENDING, 0, 2), ("bert", MASKING, 2, 3), ("bart", ENDING, 1, 0)],
)
def test_a_long_context_is_cut_from_the_left_or_refused(name, tokenizer, around, option):
    model, start = small_model(name), [0] if name == "bart" else []
    context = [5 + i % 17 for i in range(MAX_LENGTH + 7)]
    options = [[6, 7, 8], [9]]
    arguments = {"tokenizer": tokenizer, "decoder_start": start}
    (found,) = score_continuations(model, [(context, options)], cut=True, **arguments)
    cut = 7 + around + option
    assert [score.num_cut for score in found] == [cut, cut]
    (kept,) = score_continuations(model, [(context[cut:], options)], **arguments)
    assert [score.log_probability for score in kept] == [s.log_probability for s in found]
    with pytest.raises(SpecError, match=f"item 2: .*{MAX_LENGTH} positions"):
        score_continuations(model, [([5], options), (context[cut - 1 :], options)], **arguments)


def test_an_option_is_never_cut():
    option = [5 + i % 17 for i in range(MAX_LENGTH + 2)]
    with pytest.raises(SpecError, match="item 1: an option alone needs"):
        score_continuations(small_model("gpt2"), [([5], [option])], tokenizer=BARE, cut=True)


@pytest.mark.parametrize(
    ("name", "items", "tokenizer", "error", "what"),
    [
        ("bart", ITEMS, ENDING, SpecError, "decoder_start"),
        ("bert", ITEMS, ENDING, TokenizerError, "mask token"),
        ("gpt2", [([5], [])], ENDING, TriviumError, "item 1: every item needs options"),
        ("gpt2", [ITEMS[0], ([5], [[6], []])], ENDING, TriviumError, "item 2"),
    ],
)
def test_what_cannot_be_scored_is_refused(name, items, tokenizer, error, what):
    with pytest.raises(error, match=what):
        score_continuations(small_model(name), items, tokenizer=tokenizer)


@pytest.mark.parametrize("kind", ["whitespace", "wordpiece", "byte-bpe", "bpe", "unigram"])
def test_context_and_option_are_encoded_as_one_text(kind):
    tokenizer = Tokenizer.train(kind, texts=TEXT * 7, vocab_size=290, progress=False)
    cases = [
        ("The weather was", [" cloudy", " rainy today"]),
        ("The weather was ", ["cloudy", "rainy"]),
        ("今天", ["天气很好。", "很好。"]),
        ("", ["The weather", "today"]),
    ]
    for context, options in cases:
        item = encode_item(tokenizer, context, options)
        for option, ids in zip(options, item.options, strict=True):
            whole = tokenizer.encode(context + option, add_special_tokens=False).ids
            assert (*item.context, *ids) == whole
            assert len(ids) > 0
    moved = encode_item(tokenizer, "The weather was ", ["cloudy"])
    assert moved == encode_item(tokenizer, "The weather was", [" cloudy"])


def test_a_token_across_the_border_belongs_to_the_option():
    tokenizer = Tokenizer.train("byte-bpe", texts=["abcd"] * 50, vocab_size=300, progress=False)
    item = encode_item(tokenizer, "ab", ["cd", "x"])
    assert tokenizer.decode(item.options[0]) == "abcd"
    assert item.context == ()


def test_an_option_without_tokens_is_refused():
    with pytest.raises(TokenizerError, match="' '"):
        encode_item(ENDING, "w1 w2", [" w3", " "])


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "modernbert"])
def test_texts_in_batches_have_the_scores_they_have_alone(name):
    tokenizer = MASKING if name in BIDIRECTIONAL else ENDING
    texts = [" ".join(WORDS[: 1 + 5 * i % 13]) for i in range(11)] + [""]
    model = small_model(name)
    together = score_texts(model, tokenizer, texts, batch_size=5)
    for text, found in zip(texts, together, strict=True):
        (alone,) = score_texts(model, tokenizer, [text], batch_size=1)
        assert found.ids == alone.ids == tokenizer.encode(text, add_special_tokens=False).ids
        assert found.log_probabilities == pytest.approx(alone.log_probabilities, abs=1e-4)
        assert found.num_tokens == len(found.ids)
    with pytest.raises(TriviumError, match="batch_size is 0"):
        score_texts(model, tokenizer, texts, batch_size=0)


def test_texts_without_a_beginning_have_an_uncounted_first_token():
    (found, empty) = score_texts(small_model("gpt2"), BARE, ["w1 w2 w3", ""])
    assert found.log_probabilities[0] is None
    assert (found.num_tokens, len(found.ids)) == (2, 3)
    assert empty.total == 0.0


def test_texts_of_an_encoder_decoder_are_refused():
    with pytest.raises(SpecError, match="given what it reads"):
        score_texts(small_model("t5"), ENDING, ["w1"])
