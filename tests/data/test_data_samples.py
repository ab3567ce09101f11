"""The bundled samples: readable, large enough, with their licences beside them."""

from __future__ import annotations

import itertools
import lzma

import pytest

from trivium.data import read_documents, read_records
from trivium.data.records import RecordOptions
from trivium.data.samples import (
    EASY_TEXTS,
    EXAMPLES,
    LICENCES,
    SAMPLES,
    copy_samples,
    easy_text_paths,
    sample_path,
)
from trivium.errors import DataError


def test_documents():
    for language, documents, megabytes in (("en", 1820, 5.6), ("zh", 1340, 3.1)):
        texts = [document.text for document in read_documents([sample_path(language)])]
        assert len(texts) == len(set(texts)) == documents
        size = len(lzma.decompress(sample_path(language).read_bytes()))
        assert size == pytest.approx(megabytes * 1e6, rel=0.02)
    with pytest.raises(DataError, match="en, zh"):
        sample_path("fr")


@pytest.mark.parametrize(("language", "counts"), [("en", (11344, 366)), ("zh", (12968, 572))])
def test_no_easy_text_is_in_both_files(language, counts):
    paths = easy_text_paths(language)
    parts = [[document.text for document in read_documents([path])] for path in paths]
    assert tuple(map(len, parts)) == counts
    assert len({text for texts in parts for text in texts}) == sum(counts)
    with pytest.raises(DataError, match="en, zh"):
        easy_text_paths("fr")


def test_what_is_bundled_is_small():
    size = sum(path.stat().st_size for path in sample_path("en").parent.iterdir() if path.is_file())
    assert size < 12_000_000


def test_all_is_unpacked_with_licences(tmp_path):
    out = tmp_path / "new" / "samples"
    copied = copy_samples(out)
    packed = (*SAMPLES.values(), *itertools.chain(*EASY_TEXTS.values()), *EXAMPLES)
    names = [name.removesuffix(".xz") for name in packed]
    assert [path.name for path in copied] == [*LICENCES, *names]
    assert sorted(out.iterdir()) == sorted(copied)
    licences = (out / "LICENSES.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in licences for name in (*packed, LICENCES[1]))
    known = ("CC BY 4.0", "CC BY 2.0 FR", "CC BY-SA", "CDLA-Sharing-1.0")
    assert all(one in licences for one in known)
    agreement = (out / LICENCES[1]).read_text(encoding="utf-8")
    assert "Community Data License Agreement" in agreement
    reviews = list(read_records(out / "movies.jsonl"))
    assert sorted(record["label"] for record in reviews) == ["negative"] * 500 + ["positive"] * 500
    pairs = list(read_records(out / "english-french.tsv", RecordOptions(["en", "fr"])))
    assert len({pair["en"] for pair in pairs}) == len(pairs) == 2000
