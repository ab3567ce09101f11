"""What is wrong with data is found and counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trivium.cli import main
from trivium.data.checks import check_texts
from trivium.data.prepare import prepare
from trivium.data.splitting import CorpusOptions
from trivium.errors import DataError
from trivium.text import Tokenizer

NOTICE = "This page was archived by a robot in the year 2014."
TEXTS = [
    f"{NOTICE}\nDocument {n} has a line of its own, which no other one has." for n in range(40)
]


def check(capsys, *arguments, code=0):
    """The findings by name, as (count, total, wrong), and the samples."""
    assert main(["check", *map(str, arguments), "--json"]) == code
    result = json.loads(capsys.readouterr().out)
    rows = {one["check"]: one for one in result["findings"]}
    assert result["wrong"] == sum(one["wrong"] for one in rows.values())
    counts = {name: (one["count"], one["total"], one["wrong"]) for name, one in rows.items()}
    return counts, {name: one["samples"] for name, one in rows.items()}


def test_texts(capsys, tmp_path):
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    bad = "a \N{REPLACEMENT CHARACTER}", "Caf\u00c3\u00a9 au lait"
    train.write_text("\n\n".join([*TEXTS, TEXTS[3], "word", *bad]), "utf-8")
    train.write_bytes(train.read_bytes() + b"\n\nFran\xe7ois of Paris")
    valid.write_text("\n\n".join([TEXTS[5], "A new text that is held out."]), "utf-8")
    (tmp_path / "utf16.txt").write_bytes("a text".encode("utf-16"))
    files = (train, tmp_path / "utf16.txt", "--validation", valid)
    counts, samples = check(capsys, *files, "--strict", code=1)
    assert counts["unreadable sources"] == (1, 3, True)
    assert "is UTF-16, not UTF-8: give --encoding utf-16" in samples["unreadable sources"][0]
    assert counts["documents in the wrong encoding"] == (3, 47, True)
    assert counts["repeated documents"] == (1, 47, False)
    # the notice in 41 documents of training, the own line of one of them
    assert counts["repeated lines of 40 or more characters"] == (41, 84, True)
    assert samples["repeated lines of 40 or more characters"][0] == f"42 x {NOTICE}"
    assert counts["texts of one word"] == (1, 47, True)
    assert counts["validation documents in training"] == (1, 2, True)
    assert counts["validation lines in training"] == (2, 2, True)
    good = tmp_path / "good.txt"
    good.write_text("\n\n".join(text.split("\n")[1] for text in TEXTS), "utf-8")
    assert not any(wrong for _, _, wrong in check(capsys, good, "--strict")[0].values())
    chinese = tmp_path / "chinese.txt"  # no word of which has a space beside it
    chinese.write_text("\n\n".join(f"\u8fd9\u90e8\u7535\u5f71{n}" for n in range(40)), "utf-8")
    assert check(capsys, chinese)[0]["texts of one word"] == (0, 40, False)
    assert main(["check", str(tmp_path / "utf16.txt")]) == 1  # with nothing else to count
    assert "is UTF-16, not UTF-8: give --encoding utf-16" in capsys.readouterr().err


def test_a_held_out_text_counts_as_often_as_it_occurs(capsys, tmp_path):
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    train.write_text("\n\n".join(TEXTS), "utf-8")
    valid.write_text("\n\n".join([*[TEXTS[5]] * 3, "A new text that is held out."]), "utf-8")
    counts, _ = check(capsys, train, "--validation", valid)
    assert counts["validation documents in training"] == (3, 4, True)


def test_shards_and_vocabulary(capsys, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(["a cat sat", "a cat  sat", "a", "a dog sat", "a zebra"]), "utf-8")
    tokenizer = Tokenizer.train("whitespace", texts=["a cat dog sat " * 9, "a bird bird"])
    tokenizer.save(tmp_path / "tokenizer.json")
    counts, _ = check(capsys, path, "--tokenizer", tmp_path / "tokenizer.json", "--validation", 0)
    assert counts["texts of one token"] == (1, 5, True)
    assert counts["unknown tokens"] == (1, 12, True)
    assert counts["tokens never used"] == (1, 5, False)
    options = CorpusOptions(validation=0)
    shards = prepare(path, tokenizer, tmp_path / "shards", options=options)
    assert shards.names == ("train",)
    of_shards, samples = check(capsys, tmp_path / "shards")
    assert of_shards["repeated documents"] == (1, 5, False)
    assert samples["repeated documents"] == ["2 x document 1 of train"]
    for name in ("texts of one token", "unknown tokens", "tokens never used"):
        assert of_shards[name] == counts[name]


@pytest.mark.parametrize("name", ["train-00000.bin", "validation-00000.idx.npy"])
def test_changed_shards(name, capsys, tmp_path, documents, tokenizer):
    text, folder = tmp_path / "text.txt", tmp_path / "shards"
    text.write_text("\n\n".join(documents), "utf-8")
    train = prepare(text, tokenizer, folder).split("train")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + b"\xff")  # of the last token, or offset
    assert main(["check", str(folder)]) == 1
    if name.endswith(".bin"):
        assert f"{name} has changed since it was prepared" in capsys.readouterr().err
        with pytest.raises(DataError, match="is not in the vocabulary of"):
            train.rows_at(np.array([0]), np.array([train.num_tokens]))


@pytest.mark.parametrize("heldout", ["file", "fraction"])
def test_labelled_examples(capsys, tmp_path, heldout):
    rows = [{"text": f"text {n}", "label": "good" if n % 2 else "bad"} for n in range(40)]
    rows += [{"text": "text 1", "label": "bad"}, {"text": "a rare one", "label": "Bad"}]
    train, valid = tmp_path / "train.jsonl", tmp_path / "valid.jsonl"
    train.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    valid.write_text('{"text": "text 2", "label": "bad"}\n{"text": "new", "label": "other"}\n')
    validation = ("--validation", valid) if heldout == "file" else ()
    counts, samples = check(capsys, train, "--task", "classification", *validation)
    assert counts["texts with different labels"][:2] == (1, 42 if heldout == "file" else 41)
    if heldout == "file":
        assert samples["labels never in training"] == ["other"]
        assert samples["labels never in validation"] == ["Bad", "good"]
        assert counts["validation texts in training"] == (1, 2, True)
    else:
        assert counts["validation texts in training"][0] == 0
        once = f"Bad ({train}, line 42)"
        assert {"Bad", once} & {
            *samples["labels never in training"],
            *samples["labels with one example"],
        }
    assert samples["labels that differ only in case"] == ["Bad, bad"]
    assert counts["repeated examples"][0] == 0
    (disputed,) = samples["texts with different labels"]
    assert f"good ({train}, line 2)" in disputed
    assert f"bad ({train}, line 41)" in disputed


def test_pairs_are_compared_by_what_the_model_reads(capsys, tmp_path):
    nli, pairs = tmp_path / "nli.jsonl", tmp_path / "pairs.tsv"
    row = {"premise": "A man sleeps."}
    rows = [row | {"hypothesis": f"He {n}.", "label": "ab"[n % 2]} for n in range(20)]
    rows.append({"premise": "B", "hypothesis": "C", "label": "a"})
    nli.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    counts, _ = check(capsys, nli, "--task", "classification")
    assert counts["texts with different labels"] == (0, 21, False)
    pairs.write_text("".join(f"text {n}\tun mot rare\n" for n in range(40)), "utf-8")
    several = tmp_path / "several.tsv"  # one text in several translations, and one pair twice
    several.write_text("".join(f"a text\tun {n % 4}\n" for n in range(5)), "utf-8")
    counts, samples = check(capsys, several, "--task", "translation", "--validation", 0)
    assert counts["repeated examples"] == (1, 5, False)
    assert samples["repeated examples"] == ["2 x a text"]
    reverse = "--set", "objective.reverse=true"
    tokenizer = Tokenizer.train("whitespace", texts=["text un mot"] * 9)
    tokenizer.save(tmp_path / "tokenizer.json")
    read = "--tokenizer", tmp_path / "tokenizer.json"
    forward, _ = check(capsys, pairs, "--task", "translation", *read)
    assert not forward["validation texts in training"][2]
    assert forward["unknown tokens"][:2] == (80, 200)  # every number, and "rare" in the targets
    assert check(capsys, pairs, "--task", "translation", *reverse)[0][
        "validation texts in training"
    ][2]


def test_tags_and_wrong_options(capsys, tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("".join(f"Ada{n} B-PER\nran O\n\n" for n in range(30)), "utf-8")
    counts, _ = check(capsys, path, "--task", "tagging")
    assert counts["labels never in validation"] == (0, 2, False)
    for arguments, message in (
        (("--set", "objective.column=1"), "name the task with --task"),
        (("--task", "tagging", "--text-field", "words"), "words_field"),
        (("--task", "taging"), 'Did you mean "tagging"'),
        (("--task", "tagging", "--set", "train.steps=1"), "write objective.KEY"),
    ):
        assert main(["check", str(path), *arguments]) == 1
        assert message in capsys.readouterr().err


def test_all_kinds_of_bad_records_and_rare_labels_are_listed(capsys, tmp_path):
    rows = [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(300)]
    rows += [{"text": f"rare {n}", "label": "c"} for n in range(3)]
    lines = [*map(json.dumps, rows), '{"text": "x"}', '{"text": "y"}', "not json", "[1]"]
    lines.append('{"text": "", "label": "a"}')
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    counts, samples = check(capsys, path, "--task", "classification")
    assert counts["bad records"] == (5, 308, True)
    assert len(samples["bad records"]) == 4
    assert samples["bad records"][0].startswith(f"2 x {path}, line 304 has no column for the label")
    assert (counts["labels of under 2%"], samples["labels of under 2%"]) == (
        (1, 3, True),
        ["c (2)"],
    )


def test_one_document_and_markers_of_its_end_are_told(tmp_path):
    path = tmp_path / "a.txt"
    for marker in ("<|endoftext|>", "</s>", "<|end_of_text|>", "[SEP]", "<EOS>"):
        path.write_text("".join(f"Story {n} is told here.\n{marker}\n" for n in range(20)))
        findings = {one.check: one for one in check_texts([str(path)], CorpusOptions())}
        assert findings["documents"].count == 1
        assert "there is only one" in findings["documents"].advice
        assert f'--separator "{marker}"' in findings["end-of-document markers"].advice
        options = CorpusOptions(separator=marker)
        findings = {one.check: one for one in check_texts([str(path)], options)}
        assert (findings["documents"].count, findings["documents"].advice) == (20, "")
        assert "end-of-document markers" not in findings
