"""A run warns when more than one token in a hundred is unknown to its tokenizer."""

from __future__ import annotations

import json

import pytest
import tokenizers
from run_settings import quiet

from trivium.data.prepare import prepare
from trivium.text import Tokenizer
from trivium.workflows.training import finetune, pretrain

WORDS = [
    *("the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "dogs", "ran", "over"),
    *("and", "out", "of", "it"),
]
TRAIN = {"steps": 1, "device": "cpu", "precision": "fp32", "micro_batch_tokens": 96}


def sentence(number: int, unknown: int) -> str:
    """25 different words, `unknown` of them in Chinese."""
    words = [WORDS[(number * 3 + place * 5) % len(WORDS)] for place in range(25)]
    return " ".join(["\u732b"] * unknown + words[unknown:])


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A tokenizer of English words, as a file."""
    texts = [sentence(number, 0) for number in range(50)]
    tokenizer = Tokenizer.train("wordpiece", texts=texts, vocab_size=300, progress=False)
    return tokenizer.save(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def write(folder, form: str, unknown: int):
    """A file of 60 texts or examples; one text in two has `unknown` unknown words of 25."""
    texts = [sentence(number, unknown if number % 2 else 0) for number in range(60)]
    good = [sentence(number, 0) for number in range(60)]
    if form in ("text", "shards"):
        (folder / "data.txt").write_text("\n\n".join(f"{n} {t}" for n, t in enumerate(texts)))
        return folder / "data.txt"
    rows = {
        "texts": [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts)],
        "sources": [{"source": text, "target": good[n]} for n, text in enumerate(texts)],
        "targets": [{"source": good[n], "target": text} for n, text in enumerate(texts)],
    }
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows[form])))
    return folder / "data.jsonl"


def unknown_share(tokenizer: Tokenizer, texts: list[str]) -> float:
    """The share of unknown tokens by the tokenizers library; a run counts the training texts."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    encodings = backend.encode_batch(texts, add_special_tokens=True)
    ids = [index for encoding in encodings for index in encoding.ids]
    return ids.count(tokenizer.unk_id) / len(ids)


@pytest.mark.parametrize("unknown", [3, 0])
@pytest.mark.parametrize("form", ["text", "shards", "texts", "sources", "targets"])
def test_a_few_unknown_tokens_of_a_hundred_are_warned_of(form, unknown, known, tmp_path):
    file, console = write(tmp_path, form, unknown), quiet()
    tokenizer = {"tokenizer": {"kind": "file", "path": str(known)}}
    common = {"out": tmp_path / "run", "console": console}
    changes = {"train": TRAIN, "data": {"length": 32}}
    if form == "shards":
        prepare([str(file)], Tokenizer.load(known), tmp_path / "shards")
        run = pretrain("bert-tiny", data=tmp_path / "shards", changes=changes, **common)
    elif form == "text":
        run = pretrain("bert-tiny", data=file, changes=changes | tokenizer, **common)
    elif form == "texts":
        task = {"model": "bert-tiny", "changes": changes | tokenizer}
        run = finetune("classification", data=file, **task, **common)
    else:
        specials = ["<pad>", "</s>", "<unk>", "<s>"]
        own = Tokenizer.train(
            "unigram", texts=[sentence(n, 0) for n in range(50)], vocab_size=200,
            special_tokens=specials, progress=False,
        )  # fmt: skip
        tokenizer["tokenizer"]["path"] = str(own.save(tmp_path / "tokenizer.json"))
        task = {"model": "t5-tiny", "changes": changes | tokenizer}
        run = finetune("text-to-text", data=file, **task, **common)
    share = run.read_metadata()["unknown_shares"][form if form != "shards" else "text"]
    used = own if form in ("sources", "targets") else Tokenizer.load(known)
    wanted = unknown_share(used, [sentence(n, unknown if n % 2 else 0) for n in range(60)])
    assert share == pytest.approx(wanted, rel=0.4)
    printed = console.file.getvalue()
    side = "text" if form == "shards" else form
    assert (f"of the tokens of the {side} are unknown to the tokenizer" in printed) == bool(unknown)
