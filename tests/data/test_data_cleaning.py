"""Cleaning keeps good text, and says of everything else why it was dropped."""

from __future__ import annotations

import itertools
import json
import string

import pytest

from trivium.cli import main
from trivium.data import read_documents
from trivium.data.cleaning import CleanOptions, clean
from trivium.data.samples import sample_path
from trivium.errors import DataError

pytest.importorskip("datatrove")
pytest.importorskip("py3langid")
FRENCH = "Le phare fut construit en pierre du pays et il est ouvert aux visiteurs en juillet. " * 9


@pytest.fixture(scope="module")
def good():
    documents = [document.text for _, document in zip(range(60), read_documents(sample_path("en")))]
    return [text for text in documents if len(text) > 3000][:12]


def write(path, texts):
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
    return path


def test_every_document_is_kept_or_has_a_reason(tmp_path, good, capsys):
    changed = good[2].replace(" was ", " is ", 3)
    bad = {
        "language: fr": FRENCH,
        "gopher-repetition: dup line frac": "\n".join([good[0][:400].replace("\n", " ")] * 5),
        "gopher: short doc": " ".join(good[3].split()[:45]) + ".",
        "c4: lorem ipsum": good[1] + "\nLorem ipsum dolor sit amet, and so it goes on.",
        "near-duplicate: similar to an earlier document": changed,
    }
    path = write(tmp_path / "in.jsonl", [*good, *bad.values()])
    arguments = ["clean", str(path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert report["dropped"] == dict.fromkeys(bad, 1)
    assert report["documents"] == len(good) + len(bad)
    assert report["kept"] == len(good)
    lines = (tmp_path / "out" / "00000.jsonl").read_text("utf-8").splitlines()
    kept = list(map(json.loads, lines))
    assert [one["source"] for one in kept] == [str(path)] * len(good)
    for one, text in zip(kept, good, strict=True):
        assert {*one["text"].split("\n")} <= {line.strip() for line in text.split("\n")}
    assert sum(len(one["text"]) for one in kept) == report["kept_characters"]
    taken_out = report["samples"].pop("c4: lines")
    assert f'c4: lines, such as "{taken_out[0]}"' in shown
    assert {*taken_out}.isdisjoint(line for one in kept for line in one["text"].split("\n"))
    assert all(any(line in text for text in good) for line in taken_out)
    for why, text in bad.items():
        assert why in shown
        assert report["samples"][why][0].split()[:9] == text.split()[:9]
    assert main(arguments) == 1
    assert "is not empty" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--rule", "none", "--no-near-duplicates"]) == 0
    assert main([*arguments, "--overwrite", "--rule", "gopher", "--no-near-duplicates"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert {*report["dropped"]} == {"language: fr", "gopher: short doc"}


def test_other_languages_and_nothing_to_keep(tmp_path):
    texts = [document.text for _, document in zip(range(40), read_documents(sample_path("zh")))]
    path = write(tmp_path / "zh.jsonl", texts)
    report = clean(path, tmp_path / "zh", CleanOptions(language="zh"))
    assert report.kept > 25
    assert not any("language" in why for why in report.dropped)
    path = write(tmp_path / "wuu.jsonl", texts)
    only = clean(path, tmp_path / "wuu", CleanOptions(language="wuu", rules=()), overwrite=True)
    assert {*only.dropped} == {"language: zh"}
    with pytest.raises(DataError, match=r"none of 40 documents is kept.*language: zh"):
        clean(path, tmp_path / "en")
    assert not (tmp_path / "en").exists()
    with pytest.raises(DataError, match='Did you mean "gopher"'):
        CleanOptions(rules=("gofer",))


def test_near_duplicates_of_near_duplicates_are_dropped(tmp_path):
    """Each text differs from the one before in 15 of 300 words, the last from the first in all."""
    words = ["".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2)]
    texts = [
        " ".join([*words[300 : 300 + 15 * changed], *words[15 * changed : 300]])
        for changed in range(21)
    ]
    assert not {*texts[0].split()} & {*texts[-1].split()}
    path = write(tmp_path / "in.jsonl", [*texts, "another text of nine words that is kept too"])
    report = clean(path, tmp_path / "out", CleanOptions(language="any", rules=()))
    assert report.dropped == {"near-duplicate: similar to an earlier document": 20}


@pytest.mark.slow
def test_processes_do_not_matter(tmp_path, good):
    path = write(tmp_path / "in.jsonl", [*good, FRENCH, good[0]])
    for processes in (1, 3):
        clean(path, tmp_path / str(processes), CleanOptions(processes=processes))
    for name in ("00000.jsonl", "report.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()
