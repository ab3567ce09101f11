"""`evaluate`: the metrics of a model's task, perplexity of the others, and the files of a run."""

from __future__ import annotations

import json

import pytest
from overfit_tasks import overfit, untrained

from trivium.errors import DataError, RecipeError, SpecError, TriviumError
from trivium.evaluate.perplexity import perplexity
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.objectives.classification import LabelledText, TextClassification
from trivium.objectives.question_answering import compute_squad_metrics
from trivium.objectives.seq2seq import SourceTarget, Summarization, TextToText, Translation
from trivium.objectives.tagging import score_chunks
from trivium.objectives.task_metrics import (
    Metrics,
    Mistake,
    compute_class_metrics,
    merge_metrics,
    quote_names,
    write_evaluation,
)
from trivium.presets import presets
from trivium.workflows.evaluate import (
    TextOptions,
    build_task_objective,
    evaluate,
    infer_task,
    list_evaluation_tasks,
)

pytestmark = pytest.mark.usefixtures("double_precision")

LABELS = [LabelledText(text, None, text[:1], "x") for text in ("a b", "b a", "a a", "b b")]


@pytest.fixture(scope="module")
def classifier():
    return overfit(TextClassification(), LABELS, "bert")[1]


def test_a_fine_tuned_model_is_measured_by_its_task(classifier, tmp_path):
    path = tmp_path / "test.csv"
    path.write_text("text,label\na b,a\nb a,a\n", encoding="utf-8")
    metrics = evaluate(classifier, path)
    assert metrics.values["accuracy"] == 0.5
    (mistake,) = metrics.mistakes
    assert (mistake.where, mistake.text) == (f"{path}, line 3", "b a")
    assert evaluate(classifier, [path], limit=1, task="classification").score == 1.0
    run = tmp_path / "run"
    classifier.save(run)
    recipe = '[objective]\nkind = "classification"\ntext_field = "words"\n'
    (run / "recipe.toml").write_text(recipe, encoding="utf-8")
    path.write_text("text,words,label\nx,a b,a\n", encoding="utf-8")
    assert evaluate(run, path, device="cpu").values["accuracy"] == 1.0
    with pytest.raises(TriviumError, match=r'there is no task "clasification".*Did you mean'):
        evaluate(classifier, path, task="clasification")
    with pytest.raises(DataError, match="missing"):
        evaluate(classifier, tmp_path / "missing.csv")
    assert list_evaluation_tasks()[0] == "perplexity"
    assert "chat" in list_evaluation_tasks()


def test_others_by_perplexity(tmp_path):
    _, lm = untrained(TextClassification(), LABELS, "gpt2")
    spec = presets["gpt2-tiny"].replace(vocab_size=lm.tokenizer.vocab_size)
    model = LanguageModel(spec, build(spec, seed=0), lm.tokenizer)
    path = tmp_path / "a.txt"
    path.write_text("a b\n\nb a b\n", encoding="utf-8")
    metrics = evaluate(model, path)
    result = perplexity(model, ["a b", "b a b"])
    assert metrics.main == "loss"
    assert metrics.values["loss"] == pytest.approx(result.loss)
    assert metrics.score == -metrics.values["loss"]
    assert metrics.values["num_documents"] == 2
    assert evaluate(model, path, limit=1, text=TextOptions(window=8, stride=3)).notes[0] == (
        "windows of 8 tokens, stride 3"
    )


def test_options_of_another_task_and_models_that_cannot_do_it_are_refused(classifier, tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("opinion,verdict\na b,x\nb a,y\n", encoding="utf-8")
    with pytest.raises(TriviumError, match="are for perplexity, and this is classification"):
        evaluate(classifier, path, text=TextOptions(window=8))
    with pytest.raises(TriviumError, match="are for perplexity"):
        evaluate(classifier, path, text=TextOptions(text_field="opinion"))
    with pytest.raises(DataError, match=r"--set objective.text_field=NAME --set objective.label"):
        evaluate(classifier, path)
    columns = ["objective.text_field=opinion", "objective.label_field=verdict"]
    notes = evaluate(classifier, path, changes=columns).notes
    assert any('that the model does not know, and count as wrong: "x"' in one for one in notes)
    with pytest.raises(RecipeError, match=r"write objective\.KEY=VALUE"):
        evaluate(classifier, path, changes=["text_field=opinion"])
    bare = LanguageModel(classifier.spec.replace(heads=()), classifier.module, classifier.tokenizer)
    with pytest.raises(SpecError, match="this model cannot classify"):
        evaluate(bare, "nowhere.csv", task="classification")
    with pytest.raises(TriviumError, match="not perplexity"):
        evaluate(bare, "nowhere.txt", task="perplexity", changes=columns)


def test_the_task_follows_from_settings_or_heads(classifier):
    assert infer_task(classifier) == "classification"
    assert infer_task(LanguageModel(classifier.spec, classifier.module)) == "classification"
    bare = presets["gpt2-tiny"].replace(vocab_size=11)
    assert infer_task(LanguageModel(bare, build(bare))) == "perplexity"
    pairs = [SourceTarget("a b", ("b a",), "x")]
    objective, lm = untrained(TextToText(prefix="q: "), pairs, "t5")
    assert build_task_objective(lm, infer_task(lm), {}) == objective
    mix = {
        "mix": [
            {"objective": {"kind": "masked"}},
            {"objective": {"kind": "text-to-text", "prefix": "z"}},
        ]
    }
    assert build_task_objective(lm, "text-to-text", mix).prefix == "z"
    assert build_task_objective(lm, "text-to-text", mix, ["objective.prefix=y"]).prefix == "y"
    with pytest.raises(RecipeError, match=r"unknown key \"prefiks\". Did you mean prefix"):
        build_task_objective(lm, "text-to-text", mix, ["objective.prefiks=y"])


def test_metrics_are_written_for_the_report(tmp_path):
    mistakes = [Mistake("x, line 1", "t", "a", "b", 0.5), Mistake("x, line 2", "u", "b", "a", 0.9)]
    metrics = Metrics({"f1": 0.5, "loss": float("nan")}).with_examples(
        [{"text": "\u4f60"}], mistakes
    )
    write_evaluation(tmp_path, "tagging", metrics)
    tree = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    assert tree["task"] == "tagging"
    assert (tree["main"], tree["values"]) == ("f1", {"f1": 0.5, "loss": None})
    assert [one["where"] for one in tree["mistakes"]] == ["x, line 2", "x, line 1"]
    assert (tmp_path / "predictions.jsonl").read_text(encoding="utf-8") == '{"text": "\u4f60"}\n'
    assert quote_names([f"n{i}" for i in range(40)]).endswith('"n29" and 10 more')


def test_shares_are_fractions_in_every_task():
    """Fault 24: F1 was a fraction in tagging and a percentage in question answering."""
    right, wrong = "the cat sat on the mat", "seven grey dogs ran over"
    tags = [["B-A", "O"], ["B-A", "O"]], [["B-A", "O"], ["O", "O"]]
    for values, expected in (
        (
            compute_squad_metrics([right, wrong], [[right], [right]]).values,
            {"f1": 0.5, "exact_match": 0.5},
        ),
        (score_chunks(*tags).values, {"f1": 2 / 3, "recall": 0.5, "precision": 1.0}),
        (compute_class_metrics([0, 0, 1, 1], [0, 0, 1, 0], ["a", "b"]).values, {"accuracy": 0.75}),
        (
            Translation().compute_text_metrics([right], [[right]])[0].values,
            {"bleu": 1.0, "chrf": 1.0},
        ),
        (
            Summarization().compute_text_metrics([right, wrong], [[right]] * 2)[0].values,
            {"rouge_l": 0.5},
        ),
    ):
        assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_metrics_of_mixed_sources_are_one_with_their_names():
    one = Metrics({"bleu": 0.5}, notes=("a",)).with_examples([{"source": "x", "text": 1}])
    two = Metrics({"loss": 2.0}, notes=("a", "b")).with_examples([{}])
    assert merge_metrics({"": one}) is one
    assert merge_metrics({"fr": one}).values == {"fr/bleu": 0.5}
    mixed = merge_metrics({"fr": one, "chat": two})
    assert mixed.values == {"fr/bleu": 0.5, "chat/loss": 2.0}
    assert (mixed.main, mixed.score, mixed.notes) == ("fr/bleu", 0.5, ("a", "b"))
    assert [row["mix"] for row in mixed.predictions] == ["fr", "chat"]
