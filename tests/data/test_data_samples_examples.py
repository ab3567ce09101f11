"""The bundled labelled examples: they are read, have their licence, and are unpacked whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trivium.cli.samples import app
from trivium.data.labelled import PairSource, read_pairs, read_tagged, read_texts
from trivium.data.samples import EXAMPLES, SAMPLES, copy_samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("home") / "new" / "samples"
    assert [path.parent for path in copy_samples(out)] == [out] * 6
    return out


def test_all_is_unpacked(folder: Path) -> None:
    names = {name.removesuffix(".xz") for name in (*SAMPLES.values(), *EXAMPLES)}
    assert {path.name for path in folder.iterdir()} == names | {"LICENSES.md"}


def test_licences_name_every_file(folder: Path) -> None:
    licences = (folder / "LICENSES.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in licences for name in (*SAMPLES.values(), *EXAMPLES))
    assert all(one in licences for one in ("CC BY 4.0", "CC BY 2.0 FR", "CC BY-SA"))


def test_film_reviews(folder: Path) -> None:
    texts = read_texts([folder / "movies.jsonl"])
    assert Counter(one.label for one in texts) == {"positive": 500, "negative": 500}


def test_names(folder: Path) -> None:
    sentences = read_tagged([folder / "names.conll"])
    assert len(sentences) == 400
    assert {tag for one in sentences for tag in one.tags} >= {"B-person", "B-location", "O"}


def test_translations(folder: Path) -> None:
    pairs = read_pairs([PairSource([folder / "english-french.tsv"])])
    assert len({pair.source for pair in pairs}) == len(pairs) == 2000
    french = [pair for pair in pairs if set("\u00e9\u00e8\u00e0\u00ea\u00e7") & {*pair.targets[0]}]
    assert len(french) > 500


def test_the_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / "there")], catch_exceptions=False)
    assert result.exit_code == 0
    assert "movies.jsonl" in result.output
