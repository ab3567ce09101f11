"""The report of a run: what it shows, that it is one safe file, and what it does with bad runs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import FACTS, RunMaker, losses

from trivium.errors import CheckpointError
from trivium.report import write_comparison, write_report
from trivium.report.html import parameter_groups
from trivium.report.run_files import read_run
from trivium.report.tokenizer import tokenizer_statistics

_VOID = {"meta", "br", "link", "img", "input", "hr"}


class _Checker(HTMLParser):
    """Collects tags, attributes and text; fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(path: Path) -> tuple[_Checker, str]:
    checker = _Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    assert checker.open == []
    return checker, " ".join(" ".join(checker.text).split())


def test_it_says_how_the_run_went(make_run: RunMaker) -> None:
    path = write_report(make_run())
    assert path.name == "report.html"
    _, text = parsed(path)
    assert "Validation loss 4.50 nats, 2.50 below guessing by word frequency (7.00)." in text
    assert "guessing by word frequency 7.00" in text
    assert "12,345" in text
    assert "6.49 bits a token" in text  # 4.5 / ln 2
    assert "1,040 tokens a second, median" in text  # of 1010, 1020, ... 1060
    assert "3 layers, layer norm, post-norm" in text
    assert "sun & moon" in text
    assert 'preset = "bert-tiny"' in text


def test_it_is_one_file_that_fetches_and_runs_nothing(make_run: RunMaker) -> None:
    checker, text = parsed(write_report(make_run()))
    names = {tag for tag, _ in checker.tags}
    assert not names & {"script", "link", "img", "iframe", "object"}
    for _, attributes in checker.tags:
        assert not {"src", "href", "onload", "onclick"} & set(attributes)
    assert "<script>x</script> [MASK]" in text  # shown as text
    assert "a <fast> machine" in text
    assert "<b>" in text  # a token


def test_the_charts_are_well_formed_and_hold_every_evaluation(make_run: RunMaker) -> None:
    html = write_report(make_run()).read_text(encoding="utf-8")
    charts = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(charts) == 8  # loss, learning rate, throughput, gradient norm; wide and narrow
    for chart in charts:
        ElementTree.fromstring(chart)
    for loss in ("6.5", "5.25", "4.5"):
        assert f"validation: {loss} at step" in charts[0]


def test_a_stuck_run_is_told_what_to_try(make_run: RunMaker) -> None:
    _, text = parsed(write_report(make_run(metrics=losses(7.4, 7.02, 6.9))))
    assert "has not left the word-frequency plateau (7.00)" in text
    for advice in ("train.steps", "optimizer.lr", "train.batch_tokens", "model.dropout = 0"):
        assert advice in text
    assert "pre-norm" in text


def test_a_run_that_is_worse_than_guessing_is_told_so(make_run: RunMaker) -> None:
    _, text = parsed(write_report(make_run(metrics=losses(9.0, 8.5))))
    assert "has not yet reached the word-frequency plateau (7.00)" in text


def test_a_run_that_got_worse_is_told_so(make_run: RunMaker) -> None:
    _, text = parsed(write_report(make_run(metrics=losses(6.0, 5.0, 5.5))))
    assert "the best at step 40" in text
    assert "by heart" in text


def test_bits_a_byte_only_where_every_token_is_predicted(make_run: RunMaker) -> None:
    _, masked = parsed(write_report(make_run("masked")))
    causal = 'model = {preset = "gpt2-tiny"}\nobjective = {kind = "causal"}\n'
    _, text = parsed(write_report(make_run("causal", recipe=causal)))
    assert "bits a byte" not in masked
    assert "1.528 bits a byte" in text  # 4.5 / ln 2 / 4.25


def test_an_unfinished_run_without_facts_can_be_reported(make_run: RunMaker) -> None:
    folder = make_run(metrics=losses(6.5)[:1], facts={})
    for name in ("spec.json", "facts.json", "tokenizer.json", "model.safetensors"):
        (folder / name).unlink()
    _, text = parsed(write_report(folder))
    assert "Training loss (nothing was held out) 6.62 nats." in text


def test_numbers_that_are_none_or_not_finite_are_left_out(make_run: RunMaker) -> None:
    metrics = losses(6.5, 5.25)
    metrics += [{"step": 50, "train_loss": float("nan"), "valid_loss": None, "lr": float("inf")}]
    run = read_run(make_run(metrics=metrics))
    assert run.series("valid_loss") == [(20.0, 6.5), (40.0, 5.25)]
    assert [step for step, _ in run.series("train_loss")] == [10.0, 20.0, 30.0, 40.0]


def test_a_half_written_last_line_is_left_out(make_run: RunMaker) -> None:
    folder = make_run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 70, "valid_lo')
    assert len(read_run(folder).metrics) == len(losses(6.5, 5.25, 4.5))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: folder / "missing", "no such run folder"),
        (lambda folder: folder.parent, "is not a run"),
        (lambda folder: (folder / "metrics.jsonl").write_text("") or folder, "nothing to report"),
        (
            lambda folder: (folder / "recipe.toml").write_text("= 1") and folder,
            "toml is dam",
        ),
        (lambda folder: (folder / "facts.json").write_text("{") and folder, "facts.json is dam"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 9) and folder,
            "model.safetensors is damaged",
        ),
    ],
)
def test_a_folder_that_cannot_be_reported_is_named(make_run: RunMaker, spoil, message) -> None:
    folder = spoil(make_run())
    with pytest.raises(CheckpointError, match=message) as caught:
        write_report(folder)
    assert str(folder) in str(caught.value)
    assert not (folder / "report.html").exists()


def test_parameters_by_part(make_run: RunMaker) -> None:
    groups = parameter_groups(read_run(make_run()).parameters)
    assert groups == {
        "embedding: tokens": 91,
        "feed-forward": 77,
        "attention": 70,
        "norms": 14,
        "head: mlm": 13,
    }


def test_tokenizer_statistics(make_run: RunMaker) -> None:
    found = tokenizer_statistics(read_run(make_run()).tokenizer)
    assert found is not None
    assert (found.kind, found.size, found.continuing) == ("wordpiece", 7, 1)
    assert found.specials == ("[PAD]", "[MASK]")
    assert found.lengths == {1: 2, 3: 3}
    assert set(found.longest[:3]) == {"the", "##ing", "<b>"}
    assert tokenizer_statistics({}) is None


@pytest.mark.parametrize(
    ("content", "kind", "size"),
    [
        ({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["ab", -1.5]]}}, "unigram", 2),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "bpe", 1),
        (
            {"pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0}}},
            "byte-bpe",
            1,
        ),
    ],
)
def test_other_tokenizers(content: dict, kind: str, size: int) -> None:
    found = tokenizer_statistics(content)
    assert found is not None
    assert (found.kind, found.size) == (kind, size)


def test_several_runs_on_one_page(make_run: RunMaker, tmp_path: Path) -> None:
    runs = [make_run("first"), make_run("second", metrics=losses(6.75, 5.5))]
    _, text = parsed(write_comparison(runs, tmp_path / "both.html"))
    assert "first" in text
    assert "5.5000" in text
    assert "second: 6.75 at tokens 2,000" in text
    assert "guessing by word frequency 7.00" in text


def test_runs_of_other_text_share_no_frequency_line(make_run: RunMaker, tmp_path: Path) -> None:
    runs = [make_run("first"), make_run("second", facts={**FACTS, "unigram_loss": 6.0})]
    html = write_comparison(runs, tmp_path / "both.html").read_text(encoding="utf-8")
    assert 'class="level"' not in html


def test_a_comparison_needs_two(make_run: RunMaker, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="two or more"):
        write_comparison([make_run()], tmp_path / "one.html")
