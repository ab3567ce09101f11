"""Classification, tagging, questions and vectors against `transformers` and by their formulas."""

from __future__ import annotations

import itertools
import math
import random
import unicodedata

import pytest
import torch
import transformers
from task_models import as_ours, theirs
from their_tokenizers import KINDS, SAMPLES, TEXT, ours
from their_tokenizers import theirs as hf_tokenizer

from trivium.errors import SpecError, TriviumError
from trivium.inference import forward
from trivium.inference.answer import AnswerSpan, context_windows, find_answers
from trivium.inference.classify import classifier_logits, label_count, to_classifications
from trivium.inference.tag import TaggedWord, find_words, merge_entities, tag_words
from trivium.language_model import LanguageModel
from trivium.text.inputs import encode_words, join_words

pytestmark = pytest.mark.usefixtures("double_precision")

CLASSIFIERS = {
    "bert": "BertForSequenceClassification",
    "gpt2": "GPT2ForSequenceClassification",
    "roberta": "BartForSequenceClassification",
}
TEXTS = [*(text for text in SAMPLES if text), " ".join(TEXT)]
PAIRS = [(a, b) for a in TEXTS[4:-1] for b in TEXT[:2]]
NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
DAY = "\u4eca\u5929"
SENTENCES = [
    TEXT[0].split(),
    ["Ada", "wrote", DAY, "notes", ",", "d\u00e9j\u00e0"],
    ["one"],
    TEXT[3].split(),
    [],
    ["rainy", "\u3000", "day"],
]
CONTEXTS = [
    *TEXT,
    "   leading spaces,\n\n and lines\n\u00c9t\u00e9 \u00e0 Z\u00fcrich, 3,5 \u00b0C  ",
    f"{DAY}\u5929\u6c14\u5f88\u597d\u3002\u300c\u4f60\u597d\u300d" * 3,
    "Ada",
]
QUESTIONS = ["Who wrote it?", f"{DAY}?", "Where was the weather cloudy and who wrote the notes?"]
ASKED = list(itertools.product(QUESTIONS, CONTEXTS))


@pytest.fixture(scope="module")
def span_model():
    return as_ours(theirs("BertForQuestionAnswering"), "bert")


def test_classifier_logits_equal_transformers_alone_and_in_batches():
    for family, name in CLASSIFIERS.items():
        hf = theirs(name, num_labels=5, **({"pad_token_id": 0} if family == "gpt2" else {}))
        model = as_ours(hf, family, decoder_start_token_id=2)
        texts = [*((text, None) for text in TEXTS), *PAIRS]
        with pytest.warns(UserWarning, match=r"texts are longer than the 61 tokens"):
            results = classifier_logits(model, texts)
        for (a, b), logits in zip(texts, results, strict=True):
            inputs = hf_tokenizer(family)(
                a,
                b,
                truncation=True,
                max_length=61,
                return_tensors="pt",
                return_token_type_ids=family == "bert",
            )
            with torch.no_grad():
                expected = hf(**inputs).logits[0]
            torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        assert model.classify([]) == []
        assert label_count(model.spec, "tagger") == 0


def test_labels_equal_those_of_a_pipeline():
    names = {0: "bad", 1: "good", 2: "neither"}
    hf = theirs("BertForSequenceClassification", num_labels=3, id2label=names)
    model = as_ours(hf, "bert", id2label={str(n): name for n, name in names.items()})
    pipeline = transformers.pipeline(
        "text-classification", model=hf, tokenizer=hf_tokenizer("bert"), top_k=None
    )
    texts = TEXTS[4:-1]
    for results, expected in zip(model.classify(texts), pipeline(texts), strict=True):
        assert list(results.scores) == [each["label"] for each in expected]
        scores = [each["score"] for each in expected]
        assert list(results.scores.values()) == pytest.approx(scores, abs=1e-9)
        assert (results.label, results.score) == next(iter(results.scores.items()))


def test_several_labels_and_numbers():
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, -1.0, -2.0]])
    first, second = to_classifications(logits, ("a", "b", "c"), "multi-label")

    def sigmoid(value):
        return pytest.approx(1 / (1 + math.exp(-value)))

    assert (first.label, first.score) == (("a", "c"), sigmoid(0.5))
    assert first.scores == {"a": sigmoid(2.0), "c": sigmoid(0.5), "b": sigmoid(-1.0)}
    assert (second.label, second.score) == ((), sigmoid(-1.0))
    (number,) = to_classifications(torch.tensor([[-2.5]]), ("value",), "regression")
    assert (number.label, number.score, number.scores) == ("", -2.5, {})


def test_tags_equal_transformers():
    hf = theirs("BertForTokenClassification", num_labels=5)
    model = as_ours(hf, "bert", id2label={str(n): name for n, name in enumerate(NAMES)})
    count = 0
    for words, tagged in zip(SENTENCES, model.tag(SENTENCES), strict=True):
        assert [each.word for each in tagged] == words
        if not words:
            continue
        inputs = hf_tokenizer("bert")(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            probabilities = hf(**inputs).logits[0].softmax(-1)
        word_ids = inputs.word_ids(0)
        for word in {*word_ids} - {None}:
            score, tag = probabilities[word_ids.index(word)].max(-1)
            assert tagged[word].tag == NAMES[tag]
            assert tagged[word].score == pytest.approx(score.item(), abs=1e-9)
            count += 1
    assert count > 20
    text = " Ada wrote\tnotes "
    assert model.tag(text) == model.tag([text])[0]
    of_words = model.tag([["Ada", "wrote", "notes"]])[0]
    assert [(w.word, w.tag, w.score) for w in model.tag(text)] == [
        (w.word, w.tag, w.score) for w in of_words
    ]
    assert model.tag([]) == []
    assert model.tag("") == []
    assert {each.tag for each in as_ours(hf, "bert").tag(TEXT[0])} <= {
        f"LABEL_{n}" for n in range(5)
    }


def test_words_of_a_text_are_those_of_training_with_their_characters():
    model = as_ours(theirs("BertForTokenClassification", num_labels=5), "bert")
    for text, words in (
        ('"Paris, (U.S)", isn\'t it?', ['"', "Paris", ",", "(", "U.S", ")", '"', ",", "isn't"]),
        ("\u5317\u4eac\u7684 iPhone14\u3002", [*"\u5317\u4eac\u7684", "iPhone14", "\u3002"]),
        (
            "5 % of $3.50 -- e\u0301t\u00e9!",
            ["5", "%", "of", "$", "3.50", "-", "-", "e\u0301t\u00e9"],
        ),
    ):
        tagged = model.tag(text)
        assert [one.word for one in tagged][: len(words)] == words
        assert [text[one.start : one.end] for one in tagged] == [one.word for one in tagged]
        joined = join_words(words)[0]
        assert [joined[one.start : one.end] for one in model.tag([words])[0]] == words
    trained = model.settings.with_task("tagging", longer_words=True)
    model = LanguageModel(model.spec, model.module, model.tokenizer, trained)
    with pytest.warns(match='"\u5317\u4eac.*" has no spaces between its words.*jieba'):
        assert len(model.tag("\u5317\u4eac\u5927\u5b66\u5728\u5317\u4eac\u3002")) == 8
    with pytest.warns(match="has no spaces between its words"):  # short, and still no word
        assert len(model.tag("\u4e0b\u96e8\u4e86\u3002")) == 4
    assert len(model.tag("\u5317\u4eac")) == 1
    segmented = model.tag("\u5317\u4eac \u5927\u5b66 \u5728 \u5317\u4eac \u3002")  # no warning
    assert [one.word for one in segmented][:2] == ["\u5317\u4eac", "\u5927\u5b66"]


def test_entities_are_merged_from_tags():
    text = "Ada King of New York saw Oslo"
    for tags, expected in (
        ("B-P I-P O B-L I-L O B-L", ["Ada King P", "New York L", "Oslo L"]),
        ("I-P I-P O I-L B-L I-X E-X", ["Ada King P", "New L", "York L", "saw Oslo X"]),
        ("S-P S-P O B-L E-L O U-L", ["Ada P", "King P", "New York L", "Oslo L"]),
        ("NOUN NOUN ADP NOUN -LRB- VERB I", []),
    ):
        words = [
            TaggedWord(word.text, tag, 0.5 + 0.125 * (i % 2), word.start, word.end)
            for i, (word, tag) in enumerate(zip(find_words(text), tags.split()))
        ]
        entities = merge_entities(words, text)
        assert [f"{one.text} {one.type}" for one in entities] == expected
        assert all(text[one.start : one.end] == one.text for one in entities)
        assert not expected or entities[0].score in (0.5, 0.5625)


def test_vowel_signs_accents_and_joined_symbols_are_of_one_word():
    """A combining mark is no letter of its own in `re`; a text is its words as spaces part them."""
    for text in (
        "\u0930\u093e\u092e \u0926\u093f\u0932\u094d\u0932\u0940 \u092e\u0947\u0902",  # Hindi
        "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f \u0641\u064a",  # Arabic with vowels
        unicodedata.normalize("NFD", "Caf\u00e9 \u00e9lan"),
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",  # family, thumb
    ):
        words = find_words(f"{text} !")
        assert [word.text for word in words] == [*text.split(), "!"]
        assert all(f"{text} !"[word.start : word.end] == word.text for word in words)


@pytest.mark.parametrize("family", KINDS)
def test_long_sentences_are_read_in_parts(family):
    hf = theirs("BertForTokenClassification", num_labels=5)
    words = [word for text in TEXT * 3 for word in text.split()]
    model = as_ours(hf, family)
    (tagged,) = tag_words(model, [find_words(words)], NAMES, max_length=17)
    assert [each.word for each in tagged] == words
    (parts,) = encode_words(model.text_tokenizer, [words], max_length=17)
    assert len(parts) > 3
    for part in parts:
        with torch.no_grad():
            hidden = model.module(torch.tensor([part.ids]))
            tags = model.module.logits(hidden, head="tagger")[0].argmax(-1)[part.first_tokens]
        results = [each.tag for each in tagged[part.start : part.stop]]
        assert results == [NAMES[tag] for tag in tags]


def every_span(model, question, limit, stride):
    """Scores of all spans by the definition, in characters, and of no answer."""
    context, spans, nothing = question[1], {}, math.inf
    for window in context_windows(
        model.source_tokenizer, [question], max_length=limit, stride=stride
    ):
        inputs = {"input_ids": torch.tensor([window.input.ids])}
        if model.spec.num_token_types > 1:
            inputs["token_type_ids"] = torch.tensor([window.input.type_ids])
        with torch.no_grad():
            scores = model.module.logits(model.module(**inputs), head="span")[0]
        nothing = min(nothing, float(scores[0].sum()))
        places = [place for place, text in enumerate(window.input.texts) if text == 1]
        for a, b in itertools.combinations_with_replacement(places, 2):
            start, end = window.input.offsets[a][0], window.input.offsets[b][1]
            text = context[start:end]
            start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
            if b - a < 30 and start < end:
                score = float(scores[a, 0] + scores[b, 1])
                spans[start, end] = max(score, spans.get((start, end), -math.inf))
    return spans, nothing


@pytest.mark.parametrize(
    ("family", "limit"), [("bert", None), ("bert", 29), ("gpt2", 41), ("t5", 29)]
)
def test_answers_are_the_best_of_all_spans(family, limit):
    hf = theirs("BertForQuestionAnswering")
    model = as_ours(hf, family)
    pairs = [(q, c) for q, c in ASKED if limit or len(q + c) < 45][::2]
    results = find_answers(model, pairs, max_length=limit, stride=7, top_k=5)
    for question, answers in zip(pairs, results, strict=True):
        spans, nothing = every_span(model, question, limit, 7)
        ranked = sorted(spans.items(), key=lambda item: -item[1])
        assert [(one.start, one.end) for one in answers] == [span for span, _ in ranked[:5]]
        for one in answers:
            assert one.text == question[1][one.start : one.end] == one.text.strip()
        logits = torch.tensor([*(score for _, score in ranked[:20]), nothing])
        expected = logits.softmax(0)[: len(answers)].tolist()
        assert [one.score for one in answers] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize(("limit", "stride"), [(19, 3), (31, 128), (23, 1), (None, 5)])
def test_windows_equal_transformers_and_cover_the_context(family, limit, stride):
    contexts = [*CONTEXTS, "".join(random.Random(0).choices("abc\u00e9\u597d \n", k=97))]
    pairs = [("it's", context) for context in contexts]
    windows = context_windows(ours(family), pairs, max_length=limit, stride=stride)
    for number, (question, context) in enumerate(pairs):
        inputs = [window.input for window in windows if window.question == number]
        covered = set()
        for each in inputs:
            assert limit is None or len(each.ids) <= limit
            inside = [o for o, text in zip(each.offsets, each.texts) if text == 1]
            covered.update(n for start, end in inside for n in range(start, end))
        assert {n for n, c in enumerate(context) if not c.isspace()} <= covered
        if limit is None:
            assert len(inputs) == 1
        elif family in ("bert", "roberta", "t5") and stride < limit // 4:
            expected = hf_tokenizer(family)(
                question,
                context,
                max_length=limit,
                stride=stride,
                truncation="only_second",
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            assert [each.ids for each in inputs] == expected["input_ids"]
            offsets = [[tuple(o) for o in each] for each in expected["offset_mapping"]]
            assert [each.offsets for each in inputs] == offsets


def test_a_question_takes_a_quarter_of_the_window_at_most():
    long = " ".join(SAMPLES[:2])
    ids = ours("bert").encode(long, add_special_tokens=False).ids
    for window in context_windows(ours("bert"), [(long, TEXT[1])], max_length=24):
        asked_ids = [i for i, text in zip(window.input.ids, window.input.texts) if text == 0]
        assert asked_ids == list(ids[:6])  # a quarter of the window
        assert window.input.cut >= len(ids) - 6


def test_no_answer(span_model):
    for context in ("", "  \n"):
        (answers,) = find_answers(span_model, [("Who?", context)], max_length=61)
        assert answers == [AnswerSpan("", 0, 0, 1.0)]
        assert span_model.answer("Who?", context, top_k=3) == answers
    options = {"max_length": 61, "top_k": 2, "no_answer_threshold": -math.inf}
    pairs = find_answers(span_model, ASKED, **options)
    margins = [math.log(nothing.score / best.score) for nothing, best in pairs]
    between = sum(sorted(margins)[len(margins) // 2 - 1 :][:2]) / 2
    options = {"qa": {"stride": 128, "no_answer_threshold": between}}
    hf = theirs("BertForQuestionAnswering")
    strict = as_ours(hf, "bert", finetuning_task="qa", task_specific_params=options)
    plain, limited = span_model.answer_all(ASKED, top_k=2), strict.answer_all(ASKED, top_k=2)
    refused = 0
    for margin, free, answers in zip(margins, plain, limited, strict=True):
        if margin > between:
            refused += 1
            assert answers[0].text == ""
            assert answers[1] == free[0]
            odds = answers[0].score / free[0].score
            assert math.log(odds) == pytest.approx(margin, abs=1e-9)
        else:
            assert answers == free
    assert 0 < refused < len(ASKED)
    many = [answer.score for answer in span_model.answer(*ASKED[0], top_k=53)]
    assert len(many) == 53
    assert many == sorted(many, reverse=True)


@pytest.mark.parametrize(
    ("family", "name", "usual"), [("bert", "BertModel", "mean"), ("gpt2", "GPT2Model", "last")]
)
def test_vectors_by_their_formula_in_float64(family, name, usual):
    texts = [text for text in SAMPLES if text and len(text) < 70]
    hf = theirs(name)
    model = as_ours(hf, family)
    for pooling in ("mean", "first", "last"):
        expected = []
        for text in texts:
            inputs = hf_tokenizer(family)(text, return_tensors="pt")
            with torch.no_grad():
                hidden = hf(input_ids=inputs["input_ids"]).last_hidden_state[0].double()
            each = {"first": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}
            expected.append(each[pooling])
        expected = torch.stack(expected)
        results = model.embed(texts, pooling=pooling, normalize=False)
        torch.testing.assert_close(results.double(), expected, rtol=1e-9, atol=1e-9)
        unit = expected / expected.norm(dim=1, keepdim=True)
        results = model.embed(texts, pooling=pooling)
        torch.testing.assert_close(results.double(), unit, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(model.embed(texts[1], pooling=pooling), results[1])
    assert torch.equal(model.embed(texts), model.embed(texts, pooling=usual))
    assert model.embed([]).shape == (0, model.spec.d_model)


def test_what_cannot_embed_is_refused():
    model = as_ours(theirs("GPT2Model"), "gpt2")
    with pytest.raises(SpecError, match="pooling is 'max'"):
        model.embed("a", pooling="max")
    with pytest.raises(SpecError, match="cannot embed"):
        as_ours(theirs("BartModel"), "roberta").embed("a")


def test_hidden_states_do_not_depend_on_batches(span_model, monkeypatch):
    inputs = [list(range(3, 3 + length)) for length in (5, 1, 13, 7, 11)]
    for size in (1, 20, 4096):
        monkeypatch.setattr(forward, "_BATCH_TOKENS", size)
        for batch, hidden, mask in forward.hidden_states(span_model, inputs):
            for row, index in enumerate(batch):
                length = len(inputs[index])
                assert mask[row].sum() == length
                with torch.no_grad():
                    alone = span_model.module(torch.tensor([inputs[index]]))[0]
                torch.testing.assert_close(hidden[row, :length], alone, rtol=1e-9, atol=1e-9)
    with pytest.raises(SpecError, match="at most"):
        next(forward.hidden_states(span_model, [[3] * 99]))


def test_vectors_of_tokens_are_the_hidden_states_of_transformers():
    texts = [text for text in SAMPLES if text and len(text) < 70]
    hf = theirs("BertModel")
    model = as_ours(hf, "bert")
    for text, each in zip(texts, model.embed_tokens(texts, normalize=False), strict=True):
        inputs = hf_tokenizer("bert")(text, return_tensors="pt", return_offsets_mapping=True)
        with torch.no_grad():
            hidden = hf(input_ids=inputs["input_ids"]).last_hidden_state[0, 1:-1].double()
        torch.testing.assert_close(each.vectors.double(), hidden, rtol=1e-9, atol=1e-9)
        ids = inputs["input_ids"][0, 1:-1].tolist()
        assert each.tokens == hf_tokenizer("bert").convert_ids_to_tokens(ids)
        assert [*map(list, each.spans)] == inputs["offset_mapping"][0, 1:-1].tolist()
        (unit,) = model.embed_tokens([text])
        torch.testing.assert_close(unit.vectors.double(), hidden / hidden.norm(dim=1)[:, None])


def test_next_sentence_equals_transformers():
    hf = theirs("BertForNextSentencePrediction")
    model = as_ours(hf, "bert")
    for first, second in PAIRS:
        options = {"return_tensors": "pt", "return_token_type_ids": True}
        inputs = hf_tokenizer("bert")(first, second, **options)
        if inputs["input_ids"].shape[1] > 61:
            continue
        with torch.no_grad():
            expected = hf(**inputs).logits[0].double().softmax(0)
        answer = model.next_sentence(first, second)
        assert answer == model.classify(first, second)
        assert answer.label == ("next" if expected[0] > 0.5 else "not next")
        # Their label 0 is that the second text follows.
        assert answer.scores["next"] == pytest.approx(expected[0].item(), abs=1e-9)
    with pytest.raises(SpecError, match=r"cannot classify.*`trivium finetune classification`"):
        model.classify("alone")
    with pytest.raises(TriviumError, match="a text is empty"):
        model.next_sentence(" ", "after it")
