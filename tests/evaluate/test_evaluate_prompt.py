"""Few-shot prompts: what stands in them, what is chosen, and that nothing beside matters."""

from __future__ import annotations

import json

import pytest
from counting_models import counting_model, log_probabilities
from shaken_models import TEXT, shaken

from trivium.errors import DataError, SpecError, TriviumError
from trivium.evaluate.choices import Share, score_choice
from trivium.evaluate.prompt import (
    Asking,
    ask,
    draw,
    prompt_of,
    read_questions,
)
from trivium.evaluate.writing import write_until
from trivium.language_model import LanguageModel
from trivium.presets import presets
from trivium.text import Tokenizer
from trivium.workflows.prompt import TaskFile, first_prompt, prompt

LOGITS = {"good": 3.0, "bad": 1.0, "Label:": 0.0, "a": 2.0, "b": 2.5, "c": 2.7, ".": 0.1}
REVIEWS = [{"text": text, "label": i % 2} for i, text in enumerate(["a", "b", "c", "a b", "b c"])]


def write(path, records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


@pytest.fixture
def reviews(tmp_path) -> str:
    return write(tmp_path / "reviews.jsonl", REVIEWS)


@pytest.fixture(scope="module")
def decoder():
    """A model whose numbers depend on every token before, in the last digits too."""
    tokenizer = Tokenizer.train("byte-bpe", texts=TEXT * 5, vocab_size=300, progress=False)
    spec = presets["gpt2-tiny"].replace(vocab_size=320)
    return LanguageModel(spec, shaken(spec), tokenizer)


def test_a_prompt_of_labelled_texts(reviews):
    questions = read_questions(reviews, options=["bad", "good"])
    assert questions.layout.kind == "classification"
    assert prompt_of(questions, 2, Asking()) == ("c\nLabel: ", "")
    before, after = prompt_of(questions, 2, Asking(shots=2, seed=7))
    *shots, asked = before.split("\n\n")
    assert (asked, after, len(shots)) == ("c\nLabel: ", "", 2)
    known = {f"{r['text']}\nLabel: {['bad', 'good'][r['label']]}" for r in REVIEWS}
    assert {*shots} <= known - {"c\nLabel: bad"}


def test_shots_are_a_function_of_seed_and_number():
    found = [draw(3, index, 31, 5, leave_out=index) for index in range(31)]
    assert found == [draw(3, index, 31, 5, leave_out=index) for index in range(31)]
    assert found != [draw(4, index, 31, 5, leave_out=index) for index in range(31)]
    assert len({tuple(numbers) for numbers in found}) > 25
    for index, numbers in enumerate(found):
        assert len({*numbers}) == 5
        assert index not in numbers
        assert all(0 <= number < 31 for number in numbers)
    assert {n for numbers in found for n in numbers} == set(range(31))
    # A part of the questions, asked elsewhere, has the same ones.
    assert draw(3, 17, 31, 2, leave_out=17) == found[17][:2]


def test_a_limit_changes_no_prompt(reviews):
    whole = read_questions(reviews)
    part = read_questions(reviews, limit=3)
    asking = Asking(shots=3, seed=1)
    assert [prompt_of(part, i, asking) for i in range(3)] == [
        prompt_of(whole, i, asking) for i in range(3)
    ]


def test_shots_of_another_file(reviews, tmp_path):
    others = write(tmp_path / "others.jsonl", [{"text": f"t{i}", "label": i % 2} for i in range(7)])
    questions = read_questions(reviews, examples=others)
    for index in range(len(REVIEWS)):
        before, _ = prompt_of(questions, index, Asking(shots=7))
        shots = before.split("\n\n")[:-1]
        assert sorted(shot.split("\n")[0] for shot in shots) == [f"t{i}" for i in range(7)]


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_classification(family, reviews):
    """Without regard to the text the model says "good", whose logit is the largest."""
    lm = counting_model(family, LOGITS)
    found = prompt(lm, TaskFile(reviews, options=["bad", "good"]), Asking(shots=2))
    assert (found.kind, found.accuracy, found.majority) == ("classification", Share(2, 5), 0.6)
    assert found.by_normalisation["token"] == Share(2, 5)
    told = found.to_dict()
    assert told["accuracy"] == told["accuracy_by_sum"] == 0.4
    assert told["count"] == 5


def test_every_normalisation_compares_what_it_says(reviews, tmp_path):
    """Two words against one: more nats in all, fewer a token."""
    lm = counting_model("decoder", LOGITS)
    known = log_probabilities(lm, LOGITS)
    records = [{"question": "a", "choices": ["good good", "b"], "label": 1}]
    path = write(tmp_path / "choice.jsonl", records)
    assert 2 * known["good"] < known["b"] < known["good"]
    for normalise, said in (("sum", "b"), ("token", "good good"), ("byte", "good good")):
        answers = []
        found = prompt(lm, path, Asking(normalise=normalise), on_answer=answers.append)
        assert answers[0].predicted == said
        assert found.accuracy == Share(said == "b", 1)
        assert found.by_normalisation["sum"] == Share(1, 1)


def test_numbers_are_the_same_to_the_last_digit_beside_anything(decoder, reviews):
    """The whole file, one question alone, and the questions backwards."""
    questions = read_questions(reviews, options=["cloudy", "rainy today"])
    asking = Asking(shots=3, seed=5)
    together = [(a.prompt, a.scores) for a in ask(decoder, questions, asking)]
    assert len({scores for _, scores in together}) == len(REVIEWS)
    for limit in (1, 3):
        part = read_questions(reviews, options=["cloudy", "rainy today"], limit=limit)
        assert [(a.prompt, a.scores) for a in ask(decoder, part, asking)] == together[:limit]
    for index in (4, 2, 0, 3, 1, 2):
        before, scores = together[index]
        assert score_choice(decoder, before, scores.options) == scores


def test_a_prompt_that_is_too_long_is_cut_and_counted(reviews):
    lm = counting_model("decoder", LOGITS)
    file = TaskFile(reviews, options=["bad", "good"])
    template = "a " * 29 + "{text} Label: {answer}"
    assert prompt(lm, file, Asking(template=template)).num_cut == 0
    assert prompt(lm, file, Asking(template=template, shots=1)).num_cut == len(REVIEWS)


def test_a_cloze_has_text_after_its_answer(reviews):
    lm = counting_model("encoder", LOGITS)
    file = TaskFile(reviews, options=["bad", "good"])
    asking = Asking(template="{text} a {answer} .")
    assert first_prompt(file, asking) == "a a \u2588 ."
    assert prompt(lm, file, asking).accuracy == Share(2, 5)


def test_a_blank_stands_in_what_an_encoder_decoder_reads(reviews):
    lm = counting_model("encoder-decoder", {**LOGITS, "<x>": 1.0})
    asking = Asking(template="{text} a {answer} .", blank="<x>")
    answers = []
    prompt(lm, TaskFile(reviews, options=["bad", "good"]), asking, on_answer=answers.append)
    known = log_probabilities(lm, {**LOGITS, "<x>": 1.0})
    (score, _) = answers[0].scores.scores
    assert score.num_tokens == 2
    assert score.log_probability == pytest.approx(known["<x>"] + known["bad"], abs=1e-5)


def test_free_answers(tmp_path, decoder):
    """What the model writes greedily is right, and nothing else."""
    written, _ = write_until(decoder, "Question: a\nAnswer:", ["\n"], max_new_tokens=5)
    records = [{"question": "a", "answer": written}, {"question": "a", "answer": "x"}]
    path = write(tmp_path / "free.jsonl", records)
    answers = []
    found = prompt(decoder, path, Asking(max_new_tokens=5), on_answer=answers.append)
    assert (found.kind, found.accuracy, found.by_normalisation) == ("answer", Share(1, 2), {})
    assert answers[0].predicted == " ".join(written.split())


def test_free_answers_are_extracted(tmp_path, decoder):
    records = [{"question": "a", "answer": "so 2 + 2 is\n#### 41"}]
    path = write(tmp_path / "free.jsonl", records)
    answers = []
    prompt(decoder, path, Asking(extract=r"(\d+)\s*$"), on_answer=answers.append)
    assert answers[0].answer == "41"
    assert answers[0].predicted != "41"


def test_writing_stops_and_cuts(decoder):
    whole, cut = write_until(decoder, "The weather", [], max_new_tokens=23)
    assert (len(whole) > 3, cut) == (True, 0)
    stop = whole[3:5]
    text, _ = write_until(decoder, "The weather", [stop], max_new_tokens=23)
    assert text == whole[: whole.index(stop)]
    limit = decoder.spec.max_length
    prompt_text = "The weather was cloudy. " * limit
    text, cut = write_until(decoder, prompt_text, ["\n"], max_new_tokens=23)
    ids = decoder.tokenizer.encode(prompt_text).ids
    assert cut >= len(ids) - (limit - 23)
    with pytest.raises(TriviumError, match="no room for a prompt"):
        write_until(decoder, "The", [], max_new_tokens=limit)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"shots": -1}, "shots is -1"),
        ({"normalise": "word"}, "one of sum, token, byte"),
        ({"extract": "("}, "no regular expression"),
    ],
)
def test_settings_outside_their_range(changes, what):
    with pytest.raises(TriviumError, match=what):
        Asking(**changes)


def test_what_cannot_be_asked(reviews, tmp_path):
    with pytest.raises(DataError, match="5 shots are asked for, but there are only 4 examples"):
        first_prompt(reviews, Asking(shots=5))
    with pytest.raises(DataError, match="labels go up to 1, but there are words for 1"):
        read_questions(reviews, options=["good"])
    with pytest.raises(DataError, match=r"reviews\.jsonl, line 1: the template names \{txt\}"):
        first_prompt(reviews, Asking(template="{txt} {answer}"))
    free = write(tmp_path / "free.jsonl", [{"question": "a", "answer": "b"}])
    with pytest.raises(SpecError, match="writes no answers"):
        prompt(counting_model("encoder", LOGITS), free)


def test_an_unknown_label_is_told_with_its_line(reviews, tmp_path):
    other = write(tmp_path / "other.jsonl", [{"text": "a", "label": 0}, {"text": "b", "label": 2}])
    with pytest.raises(DataError, match=r"other\.jsonl, line 2: the label '2' is none of"):
        read_questions(other, examples=reviews)
    words = write(tmp_path / "words.jsonl", [{"text": "a", "label": "yes"}])
    with pytest.raises(
        DataError, match=r"words\.jsonl, line 1: the label 'yes' is none of the options no"
    ):
        read_questions(words, options=["no"])


@pytest.mark.parametrize(("answer", "stop"), [("x", "\n"), ("x\ny", "\n\n")])
def test_an_answer_ends_as_known_answers_do(tmp_path, decoder, monkeypatch, answer, stop):
    records = [{"question": "a", "answer": "x"}, {"question": "b", "answer": answer}]
    path = write(tmp_path / "free.jsonl", records)
    stops = []

    def remember(lm, prompt, given, **options):
        stops.append(given)
        return "x", 0

    monkeypatch.setattr("trivium.evaluate.prompt.write_until", remember)
    prompt(decoder, path, Asking(template="{question} {answer} ."))
    assert stops == [[stop, "."]] * 2
