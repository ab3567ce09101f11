"""`trivium eval`: what a file is for is told from its content."""

from __future__ import annotations

import json
import logging
import math
import os

import pytest
from counting_models import counting_model, log_probabilities

from trivium.cli import VERBS, main
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.presets import presets
from trivium.workflows.evaluate import EvaluateOptions, evaluate, task_of, trained_window

LOGITS = {"good": 3.0, "bad": 1.0, "a": 2.0, "b": 2.5}
PAIRS = [
    {"sentence_good": "good", "sentence_bad": "bad", "UID": "first"},
    {"sentence_good": "a", "sentence_bad": "b", "UID": "second"},
]


@pytest.fixture(autouse=True)
def verb(monkeypatch):
    monkeypatch.setitem(VERBS, "eval", ("trivium.cli.eval", "How good a model is."))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return str(counting_model("decoder", LOGITS).save(tmp_path_factory.mktemp("decoder")))


@pytest.fixture
def files(tmp_path):
    def write(name: str, records: list[dict]) -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
        return str(path)

    text = tmp_path / "text.txt"
    text.write_text("good a\n\nb\nbad good\n", encoding="utf-8")
    return {
        "text": str(text),
        "records": write("records.jsonl", [{"text": "good a"}, {"text": "b\nbad good"}]),
        "pairs": write("pairs.jsonl", PAIRS),
        "choice": write("choice.jsonl", [{"goal": "a", "sol1": "good", "sol2": "b", "label": 0}]),
        "labelled": write("labelled.jsonl", [{"text": "a", "label": 1}]),
    }


def results(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_text_and_records_with_text_give_the_same_perplexity(decoder, files, capsys):
    assert main(["eval", decoder, files["text"], files["records"], "--json"]) == 0
    text, records = results(capsys)
    known = log_probabilities(load(decoder), LOGITS)
    nats = -(2 * known["good"] + known["a"] + known["b"] + known["bad"])
    assert (text.pop("file"), records.pop("file")) == (files["text"], files["records"])
    assert text == records
    assert text["task"] == "perplexity"
    assert text["loss"] == pytest.approx(nats / 5, rel=1e-5)
    assert text["perplexity_per_word"] == pytest.approx(math.exp(nats / 5), rel=1e-5)
    assert text["bits_per_byte"] == pytest.approx(nats / math.log(2) / 16, rel=1e-5)
    assert (text["num_documents"], text["num_ends"]) == (2, 2)


def test_probes_are_told_from_their_fields(decoder, files, capsys):
    arguments = [files["pairs"], files["choice"], "--json"]
    assert main(["eval", decoder, *arguments]) == 0
    pairs, choice = results(capsys)
    assert (pairs["task"], pairs["accuracy"], pairs["count"]) == ("minimal-pairs", 0.5, 2)
    assert pairs["groups"]["UID"]["first"]["accuracy"] == 1.0
    assert (choice["task"], choice["accuracy"]) == ("choice", 1.0)


def test_last_words_are_a_task_of_a_text_file(decoder, files, capsys, tmp_path):
    out = tmp_path / "new" / "results.json"
    arguments = ["--task", "last-word", "--limit", "1", "--out", str(out)]
    assert main(["eval", decoder, files["text"], *arguments]) == 0
    shown = capsys.readouterr().out
    assert "text.txt: last-word" in shown
    assert "accuracy             0.0000" in shown
    (found,) = json.loads(out.read_text(encoding="utf-8"))
    assert (found["task"], found["count"]) == ("last-word", 1)
    assert [file.name for file in out.parent.iterdir()] == ["results.json"]


def test_groups_are_a_table(decoder, files, capsys):
    assert main(["eval", decoder, files["pairs"]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == ["  UID", "    first   1.0000  of 1", "    second  0.0000  of 1"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "give a FILE, or a task with --lm-eval"),
        (["missing.txt"], "There is no file or folder missing.txt"),
        (["{text}", "--task", "last-words"], 'Did you mean "last-word"'),
        (["{labelled}"], "trivium prompt"),
        (["{text}", "--window", "62"], "this model has 61 positions"),
        (["{pairs}", "--task", "choice"], "holds minimal-pairs examples, not choice"),
        (["--lm-eval", "x", "--tasks-folder", "nowhere"], "no such folder of tasks"),
    ],
)
def test_what_cannot_be_evaluated(decoder, files, arguments, what, capsys):
    if "--lm-eval" in arguments:
        pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    given = [argument.format(**files) for argument in arguments]
    assert main(["eval", decoder, *given]) == 1
    found = capsys.readouterr()
    assert what in found.err
    assert (found.out, found.err.count("\n")) == ("", 1)


@pytest.mark.filterwarnings("ignore")  # of the harness and what it imports
def test_a_task_of_the_harness(decoder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(os.environ, "HF_DATASETS_OFFLINE", "1")
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    record = {"question": "a", "choices": ["good", "bad"], "label": 0}
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps(record) + "\n", encoding="utf-8")
    (tmp_path / "one.yaml").write_text(
        "task: trivium_one\ndataset_path: json\noutput_type: multiple_choice\n"
        f"dataset_kwargs: {{data_files: {{validation: '{data}'}}}}\n"
        "validation_split: validation\ndoc_to_text: '{{question}}'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: label\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n",
        encoding="utf-8",
    )
    arguments = ["--lm-eval", "trivium_one", "--tasks-folder", str(tmp_path), "--json"]
    assert main(["eval", decoder, *arguments]) == 0
    (found,) = results(capsys)
    assert (found["file"], found["task"], found["acc,none"]) == ("trivium_one", "lm-eval", 1.0)


def test_the_window_is_that_of_training(tmp_path, files):
    """A run says in its recipe how long its rows were; positions beyond were never trained."""
    lm = counting_model("decoder", LOGITS)
    run = tmp_path / "run"
    lm.save(run)
    (run / "recipe.toml").write_text("[data]\nlength = 17\n", encoding="utf-8")
    assert trained_window(run / "checkpoints" / "step-00000005", lm) == 17
    (found,) = evaluate(run, [files["text"]])
    assert (found.metrics["window"], found.metrics["stride"]) == (17, 8)
    (found,) = evaluate(run, [files["text"]], options=EvaluateOptions(window=23))
    assert found.metrics["window"] == 23
    (run / "recipe.toml").write_text("[data]\nlength = 1000\n", encoding="utf-8")
    assert trained_window(run, lm) == 61
    recurrent = build(presets["lstm-tiny"])
    assert trained_window(run, LanguageModel(recurrent.spec, recurrent)) is None


def test_a_folder_is_text(files, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.jsonl").write_text(json.dumps({"text": "a"}) + "\n", encoding="utf-8")
    assert task_of(folder) == "perplexity"
