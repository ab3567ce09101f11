"""A small text, labelled examples, and one finished run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from run_settings import quiet, settings

from trivium.train.run_folder import RunFolder
from trivium.workflows.training import pretrain

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "dogs", "ran", "over"]


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """About 1,500 sentences of few words."""
    chance = random.Random(5)
    documents = [
        "\n".join(
            " ".join(chance.choices(WORDS, k=chance.randint(5, 20))) + "."
            for _ in range(chance.randint(2, 9))
        )
        for _ in range(300)
    ]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture(scope="session")
def reviews(tmp_path_factory) -> Path:
    """Texts with one of two labels that a word tells."""
    chance = random.Random(1)
    lines = []
    for number in range(97):
        words = chance.choices(WORDS, k=6)
        words[chance.randrange(6)] = "good" if number % 2 else "bad"
        row = {"text": " ".join(words), "label": "pos" if number % 2 else "neg"}
        lines.append(json.dumps(row))
    path = tmp_path_factory.mktemp("labelled") / "reviews.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="session")
def encoder(text, tmp_path_factory) -> RunFolder:
    """A finished run of BERT."""
    out = tmp_path_factory.mktemp("runs") / "bert"
    return pretrain("bert-tiny", data=text, out=out, changes=settings(), console=quiet())
