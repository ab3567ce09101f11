"""However many processes prepare a corpus, the shards are the same bytes."""

from __future__ import annotations

import errno
import random
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trivium.cli import main
from trivium.data import Shards, encode_tasks, prepare, task_shards
from trivium.data.prepare import partial_folder, prepare_part
from trivium.data.splitting import CorpusOptions, read_splits
from trivium.errors import DataError


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(encode_tasks, "SHARD_BYTES", 4001)
    monkeypatch.setattr(encode_tasks, "BATCH_CHARACTERS", 701)


@pytest.fixture
def corpus(tmp_path, documents):
    """Files of 1 to 200 documents, with repeats inside files, between files and of validation."""
    chance = random.Random(7)
    folder, start = tmp_path / "in", 0
    folder.mkdir()
    for number, count in enumerate((3, 200, 2, 1, 90, 150, 4, 5, 60, 186)):
        some = documents[start : start + count]
        some += chance.choices(documents, k=count // 5) + some[:1]
        (folder / f"{number}.txt").write_text("\n\n".join(some), "utf-8")
        start += count
    (tmp_path / "valid.txt").write_text("\n\n".join([*documents[40:80], "a cat"]), "utf-8")
    return folder


def contents(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("heldout", "keep_duplicates", "numbers"),
    [("fraction", False, (1, 3, 7)), ("file", False, (7,)), ("file", True, (40,))],
)
def test_any_number_of_parts_makes_the_same_bytes(
    tmp_path, corpus, make_tokenizer, small_shards, heldout, keep_duplicates, numbers
):
    tokenizer = make_tokenizer()
    # Some documents have no token at all.
    encode = tokenizer.encode_ids_batch
    tokenizer.encode_ids_batch = lambda texts: [
        ids if "w1" not in text else [] for text, ids in zip(texts, encode(texts), strict=True)
    ]
    options = CorpusOptions(
        validation=0.1 if heldout == "fraction" else str(tmp_path / "valid.txt"),
        keep_duplicates=keep_duplicates,
    )
    whole = prepare.prepare(corpus, tokenizer, tmp_path / "whole", options=options)
    kept = [split for split, text in read_splits(corpus, options) if "w1" not in text]
    for name, info in whole.manifest.splits.items():
        assert info.documents == kept.count(name)
    for parts in numbers:
        out = tmp_path / str(parts)
        order = random.Random(parts).sample(range(1, parts + 1), parts)
        if parts == 3:
            order.pop()  # one is left to `prepare`
        with ThreadPoolExecutor(3) as pool:
            list(
                pool.map(
                    lambda n, out=out, parts=parts: prepare_part(
                        corpus, tokenizer, out, n, parts, options=options
                    ),
                    order,
                )
            )
        tokenizer.encoded = 0
        prepare.prepare(corpus, tokenizer, out, options=options)
        assert (tokenizer.encoded > 0) == (parts == 3)
        assert contents(out) == contents(tmp_path / "whole")
        assert not partial_folder(out).exists()


def test_a_part_resumes_and_refuses_other_arguments(
    tmp_path, corpus, make_tokenizer, small_shards, monkeypatch
):
    tokenizer, out = make_tokenizer(), tmp_path / "out"

    def stop(now):
        if now.documents > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_part(corpus, tokenizer, out, 1, 2, progress=stop)
    first = tokenizer.encoded
    tokenizer.encoded = 0
    notes = []
    prepare_part(corpus, tokenizer, out, 1, 2, progress=lambda now: notes.append(now.note))
    assert any("resuming after" in note for note in notes)
    done = tokenizer.encoded
    tokenizer.encoded = 0
    prepare_part(corpus, tokenizer, tmp_path / "other", 1, 2)
    assert done < tokenizer.encoded < done + first + 40
    with pytest.raises(DataError, match="unfinished work with other texts"):
        prepare_part(corpus, make_tokenizer(size=3), out, 2, 2)
    with pytest.raises(DataError, match="cannot be read in parts"):
        prepare_part("-", tokenizer, out, 1, 2)
    with pytest.raises(DataError, match="from 1 to"):
        prepare_part(corpus, tokenizer, out, 3, 2)
    # The work of others is not thrown away.
    text = (corpus / "0.txt").read_text()
    (corpus / "0.txt").write_text("the cat")
    before = contents(partial_folder(out))
    for changed in (CorpusOptions(), CorpusOptions(separator="line")):
        with pytest.raises(DataError, match="unfinished work with other texts"):
            prepare.prepare(corpus, tokenizer, out, options=changed)
        assert contents(partial_folder(out)) == before
    # A part whose text has changed is made again.
    (corpus / "0.txt").write_text(text + "\n\nthe cat")
    prepare_part(corpus, tokenizer, out, 1, 2)
    prepare.prepare(corpus, tokenizer, out)
    prepare.prepare(corpus, tokenizer, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    with pytest.raises(DataError, match="finished already"):
        prepare_part(corpus, tokenizer, out, 1, 2)


def test_parts_of_the_command_line(tmp_path, corpus, tokenizer, small_shards, capsys):
    tokenizer.save(tmp_path / "tokenizer.json")
    command = ["prepare", str(corpus), "--out", str(tmp_path / "out")]
    assert main([*command, "--part", "1/2"]) == 1
    assert "train it first" in capsys.readouterr().err
    command += ["--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*command, "--part", "two"]) == 1
    assert "such as 2/7" in capsys.readouterr().err
    for part in ("2/2", "1/2"):
        assert main([*command, "--part", part]) == 0
        assert re.match(rf"part {part}: [1-9][0-9,]* tokens in", capsys.readouterr().out)
    assert main(command) == 0
    shards = Shards.open(tmp_path / "out")
    assert len(shards.manifest.splits["train"].files) > 5
    split = shards.split("train")
    [tokens] = split.rows_at(np.array([0]), np.array([split.num_tokens]))
    assert np.array_equal(
        np.bincount(tokens, minlength=shards.manifest.vocab_size), shards.split("train").counts()
    )


def test_a_full_disk_is_one_line_and_the_same_command_continues(
    tmp_path, corpus, tokenizer, small_shards, monkeypatch, capsys
):
    tokenizer.save(tmp_path / "tokenizer.json")
    command = ["prepare", str(corpus), "--out", str(tmp_path / "out")]
    command += ["--tokenizer", str(tmp_path / "tokenizer.json")]

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(task_shards, "write_json", fail)
        assert main(command) == 1
    assert "out.partial: the disk is full. The finished work is kept" in capsys.readouterr().err
    assert main(command) == 0
