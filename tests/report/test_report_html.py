"""Reports as HTML: what they show, that they are safe, and that a browser draws them."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trivium.errors import CheckpointError
from trivium.report import write_comparison, write_report
from trivium.report.html_report import (
    compute_token_statistics,
    make_confusion_matrix,
    make_line_chart,
    thin_curve,
)
from trivium.text import Tokenizer

VOID = {"meta", "br", "link", "input"}


class Page(HTMLParser):
    """The text, scripts and attributes of a page; every element must be closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.charts: dict[str, dict] = {}
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            if data.startswith("{"):
                chart = json.loads(html.unescape(data))
                self.charts[chart["title"]] = chart
            else:
                self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.text += data


def task_metrics(*scores: float) -> list[dict[str, float]]:
    records: list[dict[str, float]] = []
    for index, score in enumerate(scores, start=1):
        position = {"step": 10 * index, "tokens": 100, "seconds": 1.0}
        records.append({**position, "train_loss": 0.75})
        records.append({**position, "valid_accuracy": score, "valid_loss": 0.25 * index})
    return records


TASK_RECIPE = '[model]\ninit_from = "runs/bert"\n[objective]\nkind = "classification"\n'
EVALUATION = {
    "task": "classification",
    "main": "accuracy",
    "higher_is_better": True,
    "num_examples": 10,
    "values": {"accuracy": 0.8, "macro_f1": 0.7654321, "undefined": None},
    "notes": ["scikit-learn"],
    "by_label": [{"label": "good", "precision": 0.5, "recall": 0.25, "f1": 0.125, "support": 6}],
    "labels": ["good", "bad"],
    "confusion": [[5, 1], [1, 3]],
    "mistakes": [
        {
            "where": "a/b.jsonl, line 7",
            "text": "<b>odd</b>",
            "expected": "good",
            "predicted": "bad",
            "confidence": 0.5,
        }
    ],
    "calibration": {
        "calibration_error": 0.125,
        "points": [[0.9, 0.5, 1.0], [0.6, 1.0, 0.8]],
        "threshold": 0.75,
        "coverage": 0.5,
        "accuracy": 1.0,
        "bins": 15,
        "rule": "a rule",
    },
}


def test_a_report_shows_how_the_run_went(make_run):
    page = Page(write_report(make_run()))
    for words in (
        "Validation loss 4.5000 nats, 2.5000 below the unigram baseline (7.0000)",
        "bert-tiny, masked, a <fast> machine",
        "4.5000validation loss, nats per token",
        "<script>x</script> [MASK] (step 40)",
        "sun & moon",
        "12,345",
        "wordpiece",
        "documents17",
        "PyTorch 2.13.0",
        'preset = "bert-tiny"',
    ):
        assert words in re.sub(r"\n+", "", page.text), words
    loss = page.charts["Loss (nats per token)"]
    assert [line["name"] for line in loss["series"]] == ["training", "validation"]
    assert loss["series"][1]["x"] == [20, 40, 60]
    assert loss["series"][1]["y"] == [6.5, 5.25, 4.5]
    assert loss["levels"] == [{"name": "unigram baseline", "value": 7.0}]
    assert {"Learning rate", "Tokens/s", "Gradient norm before clipping"} < set(page.charts)


def test_a_page_fetches_nothing_and_runs_only_its_own_scripts(make_run, tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>"
    recipe = f"[model]\npreset = '{hostile}'\n[objective]\nkind = 'causal'\n"
    runs = [make_run("a", recipe=recipe), make_run(f"b{hostile.replace('/', '')}", recipe=recipe)]
    pages = [write_report(runs[0]), write_comparison(runs, tmp_path / "deep" / "c.html")]
    for page in map(Page, pages):
        links = [value for _, name, value in page.attributes if name in ("src", "href")]
        assert links == []
        assert not [name for _, name, _ in page.attributes if name.startswith("on")]
        (policy,) = [v for tag, name, v in page.attributes if tag == "meta" and name == "content"
                     and "default-src 'none'" in (v or "")]  # fmt: skip
        digests = [
            base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            for script in page.scripts
        ]
        assert len(digests) == 2
        assert all(f"'sha256-{digest}'" in policy for digest in digests)
        assert len(page.source) < 150_000


def test_a_fine_tuned_run(make_run, monkeypatch):
    run = make_run(
        metrics=task_metrics(0.5, 0.8, 0.6),
        metadata={"valid_examples": 10, "train_examples": 77, "task": "classification"},
        recipe=TASK_RECIPE,
        evaluation=EVALUATION,
    )
    assert "of sources" not in Page(write_report(run)).text
    shutil.copy(run / "tokenizer.json", run / "source_tokenizer.json")
    page = Page(write_report(run))
    text = re.sub(r"\n+", "", page.text)
    for words in (
        "accuracy 0.8000 on 10 validation examples, with the weights of step 20, the best of 3 "
        'evaluations. Always predicting the most frequent label, "good", would give 0.6000.',
        "0.8000accuracy",
        "0.7654macro_f1",
        "scikit-learn",
        "good0.50000.25000.12506",
        "<b>odd</b>goodbadb.jsonl, line 70.5000",
        "training examples77",
        "Tokenizer of sources",
        "Tokenizer of targets",
        "Rows: expected label; columns: predicted label",
    ):
        assert words in text, words
    assert "undefined" not in text
    assert page.charts["accuracy on validation examples"]["series"][0]["y"] == [0.5, 0.8, 0.6]
    assert page.charts["Loss (nats)"]["levels"] == []
    assert ("td", "title", "good as bad: 1") in page.attributes
    (coverage,) = [one for title, one in page.charts.items() if "(coverage)" in title]
    assert coverage["series"][0]["x"] == [0.5, 1.0]
    assert coverage["series"][0]["y"] == [1.0, 0.8]
    assert "expected calibration error 0.1250" in text
    assert "try trivium predict with --threshold 0.75 --below other" in text
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "zh")
    page = Page(write_report(run))
    (coverage,) = [one for title, one in page.charts.items() if title.startswith("最有把握")]
    assert (coverage["x_label"], coverage["series"][0]["name"]) == ("覆盖率", "准确率")


def test_confusion_matrices():
    matrix = make_confusion_matrix({"labels": ["a", "b"], "confusion": [[3, 1], [0, 0]]})
    assert matrix is not None
    assert matrix["rows"][0] == ("a", [(3, 0.75, True), (1, 0.25, False)])
    assert matrix["rows"][1] == ("b", [(0, 0.0, False), (0, 0.0, True)])
    size = 71
    counts = [[row if row == column else 0 for column in range(size)] for row in range(size)]
    large = make_confusion_matrix({"labels": [f"l{n}" for n in range(size)], "confusion": counts})
    assert large is not None
    assert large["labels"] == [f"l{n}" for n in range(11, size)]
    assert make_confusion_matrix({"labels": ["a"], "confusion": []}) is None


def test_bits_per_byte_only_where_every_token_is_predicted(make_run):
    assert "bits per byte" not in Page(write_report(make_run("masked"))).text
    recipe = '[model]\npreset = "gpt2"\n[objective]\nkind = "causal"\n'
    causal = Page(write_report(make_run("causal", recipe=recipe)))
    assert "1.5276bits per byte" in re.sub(r"\n+", "", causal.text)


def test_mixed_sources_have_curves_of_their_own(make_run):
    recipe = (
        '[[mix]]\nname = "a"\n[mix.objective]\nkind = "causal"\n'
        '[[mix]]\nname = "b"\n[mix.objective]\nkind = "prefix-lm"\n'
    )
    metrics = [
        {"step": 1, "train_loss": 2.0, "train_a": 2.0, "train_b": 2.0, "train_b/nsp_accuracy": 0.5},
        {"step": 1, "valid_loss": 2.5, "valid_a": 2.0, "valid_b": 3.0, "valid_b/nsp_accuracy": 0.6},
    ]
    run = make_run(metrics=metrics, recipe=recipe, metadata={"unigram_loss": 7.0})
    page = Page(write_report(run))
    assert "causal + prefix-lm" in page.text
    assert "perplexity" not in page.text
    names = [line["name"] for line in page.charts["Loss (nats per token)"]["series"]]
    assert names == ["training", "validation", "validation, a", "validation, b"]
    (accuracy,) = page.charts["Accuracy"]["series"]  # no loss
    assert (accuracy["name"], accuracy["y"]) == ("b/nsp_accuracy", [0.6])


def test_a_run_that_has_just_begun(make_run):
    metrics = [{"step": 1, "train_loss": float("nan"), "lr": 0.5}, {"step": 2, "train_loss": 8.0}]
    run = make_run(metrics=metrics, metadata={}, recipe="")
    for name in ("spec.json", "tokenizer.json", "run.json"):
        (run / name).unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"step": 3, "train_lo')
    page = Page(write_report(run))
    assert "Training loss 8.0000 nats (no validation data)." in page.text
    assert page.charts["Loss (nats per token)"]["series"][0]["x"] == [2]
    assert "Tokens/s" not in page.charts


def test_folders_that_cannot_be_reported_are_named(make_run, tmp_path):
    damaged = {"run.json": "[]", "recipe.toml": "= 1", "tokenizer.json": "{", "spec.json": "{"}
    for name, content in damaged.items():
        run = make_run(name)
        (run / name).write_text(content)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")) as error:
            write_report(run)
        assert "damaged" in str(error.value)
    (tmp_path / "folder").mkdir()
    cases = {
        tmp_path / "nowhere": "does not exist",
        tmp_path / "folder": "is not a run",
        make_run("empty", metrics=[]): "nothing to report yet",
    }
    for folder, words in cases.items():
        with pytest.raises(CheckpointError, match=words):
            write_report(folder)
    with pytest.raises(CheckpointError, match="two or more"):
        write_comparison([make_run("one")], tmp_path / "c.html")


def test_statistics_of_a_tokenizer():
    texts = ["北京 the theme of the day"] * 9
    tokenizer = Tokenizer.train("byte-bpe", texts=texts, vocab_size=275, progress=False)
    statistics = compute_token_statistics(tokenizer)
    assert statistics["kind"] == "byte-bpe"
    assert statistics["merges"] == len(tokenizer.merges) > 5
    assert sum(count for _, count in statistics["lengths"]) == tokenizer.vocab_size - 1
    assert dict(statistics["lengths"])[0] >= 128  # bytes that are a part of a character
    # Fault 27: byte-level tokens are shown as text.
    assert "北京" in statistics["examples"]["Longest tokens"] + list(tokenizer.readable_tokens)
    assert statistics["examples"]["Special tokens"] == ["<|endoftext|>"]


def test_a_comparison(make_run, tmp_path):
    recipe = '[model]\npreset = "gpt2"\n[objective]\nkind = "causal"\n'
    runs = [make_run("x/mine", recipe=recipe), make_run("y/mine", recipe=recipe)]
    runs.append(make_run("masked"))
    page = Page(write_comparison(runs, tmp_path / "c.html"))
    text = re.sub(r"\n+", "", page.text)
    assert "Ranking: next-token prediction after 6,000 tokens" in text
    assert f"1.{runs[0]}" in text
    assert "4.5000" in text
    assert "model.presetgpt2gpt2bert-tiny" in text
    chart = page.charts["Validation loss over step, causal"]
    assert [line["name"] for line in chart["series"]] == [str(run) for run in runs[:2]]
    assert chart["levels"] == [{"name": "unigram baseline", "value": 7.0}]
    other = make_run("other", metadata={"unigram_loss": 6.0})
    page = Page(write_comparison([runs[0], other], tmp_path / "d.html"))
    assert page.charts["Training loss over tokens, causal"]["levels"] == []


def test_long_curves_are_thinned():
    points = [(float(n), float(n % 7)) for n in range(1, 4002)]
    thinned = thin_curve(points)
    assert len(thinned) <= 501
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert thin_curve(points[:500]) == points[:500]
    assert make_line_chart("empty", {"a": []}) is None


@pytest.mark.slow
def test_a_browser_draws_every_chart_without_a_network(make_run, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no browser")
    pages = [
        write_report(make_run("a")),
        write_comparison([make_run("b"), make_run("c")], tmp_path / "c.html"),
    ]
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for path, charts in zip(pages, (4, 5), strict=True):
            tab = browser.new_page(viewport={"width": 390, "height": 800})
            problems: list[str] = []
            tab.on("console", lambda message, problems=problems: problems.append(message.text))
            tab.on("pageerror", lambda error, problems=problems: problems.append(str(error)))
            tab.goto(path.as_uri())
            assert tab.locator("figure.chart canvas").count() == charts
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390
            assert problems == []
        browser.close()
