"""Folders that transformers 4.49 and 5.23 wrote are read, and compute what these versions computed.

`tests/fixtures/write_folders.py` wrote the folders, in an environment of each version.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import trivium

FOLDERS = sorted((Path(__file__).parents[1] / "fixtures").glob("transformers-*/*"))


def test_two_versions_of_the_same_families_are_there():
    families = {folder.name for folder in FOLDERS}
    versions = {folder.parent.name.partition("-")[2][0] for folder in FOLDERS}
    assert len(families) >= 5
    assert versions == {"4", "5"}
    assert len(FOLDERS) == len(families) * len(versions)
    files = [file for folder in FOLDERS for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: f"{one.parent.name}/{one.name}")
def test_ids_and_logits(folder):
    lm = trivium.load(folder, dtype=torch.float64, device="cpu")
    for expected in json.loads((folder / "expected.json").read_text(encoding="utf-8")):
        ids = list(lm.tokenizer.encode(expected["text"]).ids)
        assert ids == expected["ids"]
        inputs = torch.tensor([ids])
        with torch.no_grad():
            if lm.spec.family == "encoder-decoder":
                target = torch.tensor([[0, *ids[:5]]])
                hidden = lm.module(inputs, decoder_input_ids=target)
            else:
                hidden = lm.module(inputs)
            logits = lm.module.logits(hidden)[0, -1]
        wanted = torch.tensor(expected["logits"], dtype=torch.float64)
        torch.testing.assert_close(logits[: len(wanted)], wanted, rtol=1e-5, atol=1e-5)
