"""Probes on models whose probabilities are known, and files that are wrong."""

from __future__ import annotations

import json
import lzma
import math

import pytest
from counting_models import counting_model, log_probabilities
from small_models import small_model

from trivium.errors import DataError, TriviumError
from trivium.evaluate.choices import Share, score_choice
from trivium.evaluate.examples import kind_of, read_examples
from trivium.evaluate.probes import choose, last_words
from trivium.evaluate.records import numbered_lines
from trivium.evaluate.template import Template
from trivium.language_model import LanguageModel
from trivium.text import Tokenizer

LOGITS = {"good": 3.0, "bad": 1.0, "a": 2.0, "b": 2.5, "Question:": 0.0, "Answer:": 0.0, "so": 0.5}
FAMILIES = ["decoder", "encoder", "encoder-decoder"]


@pytest.fixture(params=FAMILIES)
def lm(request):
    return counting_model(request.param, LOGITS)


def write(path, records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def pair(good: str, bad: str, **groups: str) -> dict[str, str]:
    return {"sentence_good": good, "sentence_bad": bad, **groups}


PAIRS = [
    pair("good a", "bad a", UID="first", field="syntax"),
    pair("bad", "good", UID="first", field="syntax"),
    pair("a b", "b a", UID="second", field="syntax"),  # exactly as good as each other
    pair("good", "good good", UID="second", field="other"),
]


def test_minimal_pairs(lm, tmp_path):
    layout, examples = read_examples(write(tmp_path / "pairs.jsonl", PAIRS))
    found = choose(lm, layout, examples)
    assert (found.kind, found.num_cut) == ("minimal-pairs", 0)
    assert found.accuracy["sum"] == Share(2, 4)
    # A repeated word costs nothing a token; it is the same a token, and a tie is not right.
    assert found.accuracy["token"] == Share(1, 4)
    assert found.groups["UID"] == {"first": Share(1, 2), "second": Share(1, 2)}
    assert found.groups["field"] == {"other": Share(1, 1), "syntax": Share(1, 3)}
    told = found.to_dict()
    assert told["accuracy"] == 0.5
    assert told["groups"]["UID"]["first"]["count"] == 2


def test_a_sentence_has_the_score_of_the_text(tmp_path):
    """A pair compares what `score` gives for each sentence."""
    model = small_model("gpt2")
    words = [f"w{i}" for i in range(29)]
    tokenizer = Tokenizer.train(
        "whitespace",
        texts=[" ".join(words)],
        vocab_size=31,
        special_tokens=["<unk>", "</s>"],
        progress=False,
    )
    lm = LanguageModel(model.spec, model, tokenizer)
    sentences = ["w1 w2 w3 w4", "w5 w6"]
    found = score_choice(lm, "", sentences)
    for sentence, score in zip(sentences, found.scores, strict=True):
        assert score.log_probability == pytest.approx(lm.score(sentence), abs=1e-5)


@pytest.mark.parametrize(
    ("record", "options", "right", "before"),
    [
        (
            {"goal": "a", "sol1": "good", "sol2": "bad", "label": 1},
            ("good", "bad"),
            1,
            "Question: a\nAnswer: ",
        ),
        (
            {
                "premise": "A b.",
                "choice1": "Good",
                "choice2": "Bad",
                "question": "cause",
                "label": 0,
            },
            ("good", "bad"),
            0,
            "A b because ",
        ),
        (
            {
                "premise": "女人退休了。",
                "choice1": "她领",
                "choice2": "她还",
                "question": "effect",
                "label": 1,
            },
            ("她领", "她还"),
            1,
            "女人退休了\uff0c所以",
        ),
        (
            {"ctx": "a", "endings": ["good", "bad", "b"], "label": "2"},
            ("good", "bad", "b"),
            2,
            "a ",
        ),
        (
            {
                "question": "a",
                "choices": {"text": ["good", "bad"], "label": ["1", "2"]},
                "answerKey": "2",
            },
            ("good", "bad"),
            1,
            "Question: a\nAnswer: ",
        ),
        (
            {"question": "a", "options": ["good", "bad", "b"], "answer": "B"},
            ("good", "bad", "b"),
            1,
            "Question: a\nAnswer: ",
        ),
        (
            {"query": "a", "choices": ["x", "y"], "answer": "y"},
            ("x", "y"),
            1,
            "Question: a\nAnswer: ",
        ),
    ],
)
def test_layouts_of_multiple_choice(tmp_path, record, options, right, before):
    path = write(tmp_path / "choice.jsonl", [record])
    assert kind_of(path) == "choice"
    layout, (example,) = read_examples(path)
    assert example.options == options
    assert example.index == right
    assert Template(layout.template).around(example.fields, example.where) == (before, "")


def test_multiple_choice(lm, tmp_path):
    records = [
        {"goal": "a", "sol1": "good", "sol2": "bad", "label": 0},
        {"goal": "a", "sol1": "bad", "sol2": "good", "label": 0},
        {"goal": "b", "sol1": "bad", "sol2": "good good", "label": 1},
    ]
    layout, examples = read_examples(write(tmp_path / "choice.jsonl", records))
    known = log_probabilities(lm, LOGITS)
    found = choose(lm, layout, examples)
    assert 2 * known["good"] > known["bad"]  # so that two words are better than one
    assert found.accuracy["sum"] == found.accuracy["token"] == Share(2, 3)


def test_per_byte_divides_by_the_bytes_of_the_option(lm):
    known = log_probabilities(lm, LOGITS)
    found = score_choice(lm, "a ", ["good", "b"])
    assert found.values("sum") == pytest.approx([known["good"], known["b"]], abs=1e-5)
    assert found.values("byte") == pytest.approx([known["good"] / 4, known["b"]], abs=1e-5)
    assert found.best("sum") == found.best("byte") == 0


def test_last_words(lm, tmp_path):
    path = tmp_path / "last.txt.xz"
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write("a b good\n\nb a bad\na so good \n")
    found = last_words(lm, numbered_lines(path))
    known = log_probabilities(lm, LOGITS)
    assert found.accuracy == {"greedy": Share(2, 3)}
    mean = -(2 * known["good"] + known["bad"]) / 3
    assert found.perplexity == pytest.approx(math.exp(mean), rel=1e-5)
    assert found.to_dict()["accuracy"] == pytest.approx(2 / 3)


def test_a_long_passage_is_cut_and_counted():
    lm = counting_model("decoder", LOGITS)
    found = last_words(lm, [("line 1", "a " * 97 + "good"), ("line 2", "a good")])
    assert (found.num_cut, found.accuracy["greedy"].count) == (1, 2)


def test_the_interval_of_a_share():
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for right, count, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert Share(right, count).interval == pytest.approx((low, high), abs=5e-5)
    assert math.isnan(Share(0, 0).value)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["{"], "line 1: not valid JSON"),
        (["[1]"], "line 1: a list, but must be an object"),
        (['{"x": 1}'], "line 1: no known layout has the fields x"),
        ([], "no example in it"),
        (
            [json.dumps(PAIRS[0]), '{"sentence_good": "a"}'],
            "line 2: there is no field 'sentence_bad'",
        ),
        (['{"goal": "a", "sol1": "x", "sol2": "y", "label": 2}'], "line 1: .*must be 0 to 1"),
        (['{"goal": "a", "sol1": "x", "sol2": "y"}'], "line 1: there is no field 'label'"),
        (['{"goal": "a", "sol1": "x", "sol2": "x", "label": 0}'], "line 1: two options are the"),
        (
            ['{"premise": "a", "choice1": "x", "choice2": "y", "question": "why", "label": 0}'],
            "line 1: .*must be cause or effect",
        ),
        (['{"question": "a", "choices": ["x", "y"]}'], "line 1: no field says which"),
        (['{"question": "a", "choices": ["x"], "label": 0}'], "line 1: .*2 options or more"),
        (['{"sentence_good": ["a"], "sentence_bad": "b"}'], "is a list, but must be a text"),
    ],
)
def test_files_that_are_wrong_are_told_with_their_line(tmp_path, lines, what):
    path = tmp_path / "wrong.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=what) as caught:
        read_examples(path)
    assert "wrong.jsonl" in str(caught.value)


def test_other_files_that_are_wrong(tmp_path):
    lm = counting_model("decoder", LOGITS)
    with pytest.raises(DataError, match="no such file"):
        read_examples(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match="line 3: one word alone"):
        last_words(lm, [("line 3", "good")])


@pytest.mark.parametrize(
    ("text", "what"),
    [("{text}", "once"), ("{answer} {label}", "once"), ("{text", "cannot be read")],
)
def test_templates_that_are_wrong(text, what):
    with pytest.raises(TriviumError, match=what):
        Template(text)


def test_a_template_names_fields_that_are_there():
    template = Template("{{x}} {texts}: {answer}")
    with pytest.raises(DataError, match=r'FILE, line 7: .*\{texts\}.*Did you mean "text"'):
        template.around({"text": "a", "label": "0"}, "FILE, line 7")
    assert Template("{{x}} {text}: {label}!").filled({"text": "a"}, "b", "") == "{x} a: b!"
