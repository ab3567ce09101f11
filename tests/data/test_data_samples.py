"""The bundled texts: readable, large enough, with their licence beside them."""

from __future__ import annotations

import lzma

import pytest

from trivium.data.samples import SAMPLES, sample
from trivium.data.sources import read_documents
from trivium.errors import DataError


@pytest.mark.parametrize(
    ("language", "documents", "megabytes"), [("en", 1820, 5.6), ("zh", 1340, 3.1)]
)
def test_documents(language: str, documents: int, megabytes: float) -> None:
    texts = [document.text for document in read_documents([sample(language)])]
    assert len(texts) == len(set(texts)) == documents
    size = len(lzma.decompress(sample(language).read_bytes()))
    assert size == pytest.approx(megabytes * 1e6, rel=0.02)


def test_origin_and_licence_are_named() -> None:
    licences = (sample("en").parent / "LICENSES.md").read_text(encoding="utf-8")
    assert "CC BY-SA" in licences
    assert all(name in licences for name in SAMPLES.values())


def test_another_language() -> None:
    with pytest.raises(DataError, match="en, zh"):
        sample("fr")
