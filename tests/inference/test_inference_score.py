"""Scores against the logits of `transformers`, and their independence of everything beside them."""

from __future__ import annotations

import functools

import pytest
import torch
from generating_models import text_model
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
from trivium.inference.score import ScoreItem, encode_item, score_continuations, score_text
from trivium.models import build
from trivium.nn.state import Cache
from trivium.presets import presets
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

TEXT = [
    "The weather was cloudy yesterday, but today it's rainy.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u3002",
]
WORDS = [f"w{number}" for number in range(29)]
# Distinct lengths, one continuation of a single token, one item with one continuation.
ITEMS = [
    ScoreItem([7, 11, 13, 17, 19], [[23], [29, 30, 5], [6, 7]]),
    ScoreItem([8], [[9, 10, 11, 12, 13, 14, 15]]),
    ScoreItem([20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30], [[28, 30], [7, 8, 9, 10]]),
]


@functools.cache
def words(*special_tokens: str) -> Tokenizer:
    """A tokenizer whose ids beyond the special tokens are words."""
    return Tokenizer.train(
        "whitespace",
        texts=[" ".join(WORDS)] * 3,
        vocab_size=len(WORDS) + len(special_tokens),
        special_tokens=list(special_tokens),
        progress=False,
    )


def bare() -> Tokenizer:
    return words("[UNK]")


def ending() -> Tokenizer:
    return words("<unk>", "</s>")


def masking() -> Tokenizer:
    return words("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]")


def hf_model(name: str):
    models = {
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=37, n_embd=24, n_layer=3, n_head=3)
        ),
        "bert": lambda: BertForMaskedLM(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=24,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=29,
                max_position_embeddings=37,
            )
        ),
        "t5": lambda: T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=24,
                d_kv=7,
                d_ff=29,
                num_layers=3,
                num_heads=3,
                decoder_start_token_id=0,
                pad_token_id=0,
            )
        ),
    }
    return randomize(models[name](), seed=3)


def check(results, logits: torch.Tensor, ids: list[int], vocab_size: int) -> None:
    """Against logits [L, V] that predict `ids`."""
    log_p = logits.double().log_softmax(-1)[..., :vocab_size]
    expected = log_p[range(len(ids)), ids].tolist()
    assert list(results.log_probabilities) == pytest.approx(expected, abs=1e-9)
    assert results.total == pytest.approx(sum(expected), abs=1e-9)
    assert results.num_tokens == len(ids)
    assert results.greedy == (log_p.argmax(-1).tolist() == ids)


@torch.no_grad()
def test_scores_equal_transformers():
    hf, size = hf_model("gpt2"), ending().vocab_size
    best = [5, 6, 7]
    for _ in range(4):
        best.append(int(hf(torch.tensor([best])).logits[0, -1, :size].argmax()))
    items = [*ITEMS, ScoreItem(best[:3], [best[3:], [*best[3:-1], (best[-1] + 1) % size]])]
    results = score_continuations(text_model(ours_of(hf), ending()), items)
    for item, scores in zip(items, results, strict=True):
        for ids, score in zip(item.continuations, scores, strict=True):
            logits = hf(torch.tensor([[*item.context, *ids]])).logits[0]
            check(score, logits[len(item.context) - 1 : -1], list(ids), size)
    assert [score.greedy for score in results[-1]] == [True, False]

    hf = hf_model("t5")
    lm = text_model(ours_of(hf), ending(), decoder_start=(0,))
    for item, scores in zip(ITEMS, score_continuations(lm, ITEMS), strict=True):
        source = torch.tensor([[*item.context, ending().eos_id]])
        for ids, score in zip(item.continuations, scores, strict=True):
            target = torch.tensor([[0, *ids[:-1]]])
            logits = hf(input_ids=source, decoder_input_ids=target).logits[0]
            check(score, logits, list(ids), size)

    hf, tokenizer, after = hf_model("bert"), masking(), [9, 5]
    items = [item._replace(after=after) for item in ITEMS]
    results = score_continuations(text_model(ours_of(hf), tokenizer), items)
    for item, scores in zip(items, results, strict=True):
        for ids, score in zip(item.continuations, scores, strict=True):
            row = [tokenizer.cls_id, *item.context, *ids, *after, tokenizer.sep_id]
            logits = []
            for position in range(1 + len(item.context), 1 + len(item.context) + len(ids)):
                masked = torch.tensor([row])
                masked[0, position] = tokenizer.mask_id
                logits.append(hf(masked).logits[0, position])
            check(score, torch.stack(logits), list(ids), tokenizer.vocab_size)


@pytest.mark.parametrize("name", ["ngram-tiny", "rnn-tiny", "lstm-tiny", "gru-tiny", "elmo-tiny"])
@torch.no_grad()
def test_models_without_attention(name):
    module = build(presets[name].replace(vocab_size=VOCABULARY), seed=5).eval()
    results = score_continuations(text_model(module, ending()), ITEMS)
    for item, scores in zip(ITEMS, results, strict=True):
        for ids, score in zip(item.continuations, scores, strict=True):
            logits = module.logits(module(torch.tensor([[*item.context, *ids]])))[0]
            predicting = logits[len(item.context) - 1 : -1]
            check(score, predicting, list(ids), ending().vocab_size)


@pytest.mark.parametrize("name", CAUSAL + BIDIRECTIONAL + BOTH)
def test_scores_do_not_depend_on_what_else_is_scored(name):
    calls = []
    lm = text_model(small_model(name), masking() if name in BIDIRECTIONAL else ending())
    lm.module.register_forward_pre_hook(lambda *_: calls.append(1))
    together = score_continuations(lm, ITEMS)
    for order in ([2, 0, 1], [1], [0, 0, 2]):
        results = score_continuations(lm, [ITEMS[i] for i in order])
        for i, scores in zip(order, results, strict=True):
            for one, other in zip(scores, together[i], strict=True):
                log_p = pytest.approx(other.log_probabilities, rel=1e-9)
                assert (one.ids, one.log_probabilities) == (other.ids, log_p)
    calls.clear()
    score_continuations(lm, [item._replace(continuations=item.continuations[:1]) for item in ITEMS])
    # Items of a decoder are read together; an encoder reads each token's row.
    assert len(calls) <= (3 if name in BIDIRECTIONAL else 2)


def test_the_source_of_several_labels_is_projected_once(monkeypatch):
    lm, rows = text_model(small_model("bart"), ending()), []
    original = Cache.set_encoder_output
    monkeypatch.setattr(
        Cache,
        "set_encoder_output",
        lambda c, slots, m, k=None: rows.append(len(m)) or original(c, slots, m, k),
    )
    score_continuations(lm, [ITEMS[0], ITEMS[2]])
    assert rows == [2]


def test_many_continuations_go_in_parts():
    lm = text_model(small_model("alibi"), ending())
    continuations = [[5 + i % 19, 6 + i % 23] for i in range(401)]
    context = [7 + i % 13 for i in range(31)]
    (results,) = score_continuations(lm, [ScoreItem(context, continuations)])
    for index in (0, 199, 400):
        alone = score_continuations(lm, [ScoreItem(context, [continuations[index]])])[0][0]
        assert results[index].total == pytest.approx(alone.total, abs=1e-9)


def test_texts_are_continuations_of_an_empty_context():
    module, ids = small_model("gpt2"), [5, 6, 7]
    lm = text_model(module, ending())
    whole, empty = (score_text(lm, text) for text in (ending().decode(ids), ""))
    after_end = ScoreItem([ending().eos_id], [ids])
    assert whole == score_continuations(lm, [after_end])[0][0]
    assert (empty.ids, empty.total, empty.num_tokens) == ((), 0.0, 0)
    # Where nothing begins or ends a text the first token is not scored.
    lm = text_model(module, bare())
    several = score_continuations(lm, [ScoreItem([], [ids, [8]])])[0]
    one = score_text(lm, bare().decode(ids))
    rest = score_continuations(lm, [ScoreItem([5], [[6, 7]])])[0][0]
    assert one.log_probabilities == (None, *rest.log_probabilities)
    assert [score.num_tokens for score in several] == [2, 0]
    assert several[0].total == pytest.approx(rest.total, abs=1e-9)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_a_text_of_an_encoder_is_a_continuation_of_an_empty_context(name):
    lm, ids = text_model(small_model(name), masking()), [5, 6, 7]
    text = score_text(lm, masking().decode(ids))
    assert text == score_continuations(lm, [ScoreItem([], [ids])])[0][0]


@pytest.mark.parametrize(
    ("name", "tokenizer", "more"),
    [("gpt2", ending(), 2), ("bert", masking(), 5), ("bart", ending(), 1)],
    ids=["gpt2", "bert", "bart"],
)
def test_long_contexts_are_cut_from_the_left_or_refused(name, tokenizer, more):
    context = [5 + i % 17 for i in range(MAX_LENGTH + 7)]
    continuations = [[6, 7, 8], [9]]
    lm = text_model(small_model(name), tokenizer)
    item = ScoreItem(context, continuations)
    (results,) = score_continuations(lm, [item], truncate=True)
    cut = 7 + more
    assert [score.num_cut for score in results] == [cut, cut]
    (kept,) = score_continuations(lm, [ScoreItem(context[cut:], continuations)])
    assert [score.log_probabilities for score in kept] == [
        score.log_probabilities for score in results
    ]
    if name == "bert":  # reads the window around each token
        return
    items = [ScoreItem([5], continuations), ScoreItem(context[cut - 1 :], continuations)]
    with pytest.raises(SpecError, match=f"item 2: .*{MAX_LENGTH} positions"):
        score_continuations(lm, items)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_long_context_beside_a_long_continuation(name):
    """Both fit alone; positions end before the two lengths together."""
    long = [7 + i % 20 for i in range(MAX_LENGTH - 1)]
    items = [ScoreItem(long, [[9, 10], [11]]), ScoreItem([8], [[*long[2:], 9], [10, 11]])]
    lm = text_model(small_model(name), ending())
    together = score_continuations(lm, items)
    for item, scores in zip(items, together, strict=True):
        (alone,) = score_continuations(lm, [item])
        for one, other in zip(scores, alone, strict=True):
            assert one.log_probabilities == pytest.approx(other.log_probabilities, rel=1e-9)


def test_what_cannot_be_scored_is_refused():
    lm = text_model(small_model("gpt2"), bare())
    long = [5 + i % 17 for i in range(MAX_LENGTH + 2)]
    with pytest.raises(SpecError, match="item 1: a continuation alone needs"):
        score_continuations(lm, [ScoreItem([5], [long])], truncate=True)
    for continuations in ([], [[6], []]):
        with pytest.raises(TriviumError, match="item 2 needs continuations"):
            score_continuations(lm, [ScoreItem([5], [[6]]), ScoreItem([5], continuations)])
    with pytest.raises(TokenizerError, match="mask token"):
        score_continuations(text_model(small_model("bert"), ending()), ITEMS)
    with pytest.raises(SpecError, match="given a source"):
        score_text(text_model(small_model("t5"), ending()), "w1")
    with pytest.raises(TokenizerError, match="' '"):
        encode_item(text_model(small_model("gpt2"), ending()), "w1 w2", [" w3", " "])


@pytest.mark.parametrize("kind", ["whitespace", "wordpiece", "byte-bpe", "bpe", "unigram"])
def test_context_and_continuations_are_encoded_as_one_text(kind):
    cases = [
        ("The weather was", [" cloudy", " rainy today"]),
        ("The weather was ", ["cloudy", "rainy"]),
        (TEXT[1][:2], [TEXT[1][2:7], TEXT[1][4:7]]),
        ("", ["The weather", "today"]),
    ]
    tokenizer = Tokenizer.train(kind, texts=TEXT * 7, vocab_size=290, progress=False)
    lm = text_model(small_model("gpt2"), tokenizer)
    for context, continuations in cases:
        item = encode_item(lm, context, continuations)
        for text, ids in zip(continuations, item.continuations, strict=True):
            whole = tokenizer.encode(context + text, add_special_tokens=False).ids
            assert (*item.context, *ids) == tuple(whole)
            assert len(ids) > 0
    moved = encode_item(lm, "The weather was ", ["cloudy"])
    assert moved == encode_item(lm, "The weather was", [" cloudy"])


def test_a_token_across_the_border_belongs_to_the_continuation():
    # A token across the border belongs to the continuation.
    joined = Tokenizer.train("byte-bpe", texts=["abcd"] * 50, vocab_size=300, progress=False)
    item = encode_item(text_model(small_model("gpt2"), joined), "ab", ["cd", "x"])
    assert joined.decode(item.continuations[0]) == "abcd"
    assert list(item.context) == []
    both = text_model(small_model("bart"), bare())
    both.source_tokenizer = ending()
    apart = encode_item(both, "w1 w2", ["w3"])
    assert apart.context == ending().encode("w1 w2", add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece"])
def test_a_text_after_a_context_is_scored_as_it_is_given(kind):
    """log p of the string `context + text`, less that of the tokens within the context."""
    texts = [*TEXT, "1+2=3 12+3=15"] * 7
    tokenizer = Tokenizer.train(kind, texts=texts, vocab_size=300, progress=False)
    torch.manual_seed(5)
    config = GPT2Config(vocab_size=300, n_positions=61, n_embd=24, n_layer=2, n_head=3)
    hf = GPT2LMHeadModel(config).eval()
    randomize(hf, seed=5)
    lm = text_model(ours_of(hf), tokenizer)
    cases = [("1+2=", "3"), ("The weather", " was"), ("The wea", "ther was"), ("it's ", "rainy")]
    for context, text in [*cases, ("The weather", "was"), (TEXT[1][:3], TEXT[1][3:6])]:
        ids = list(tokenizer.encode(context + text, add_special_tokens=False).ids)
        before = list(tokenizer.encode(context.rstrip(), add_special_tokens=False).ids)
        same = [one == other for one, other in zip(ids, before)]
        border = (*same, False).index(False)
        start = list(tokenizer.prefix_ids) or [tokenizer.eos_id] * (border == 0)
        whole = [*start, *ids]
        log_p = hf(torch.tensor([whole])).logits[0].log_softmax(-1)
        expected = [log_p[i - 1, whole[i]].item() for i in range(len(start) + border, len(whole))]
        score = score_text(lm, text, context)
        assert list(score.ids) == ids[border:], (context, text)
        assert score.log_probabilities == pytest.approx(expected, rel=1e-9), (context, text)
