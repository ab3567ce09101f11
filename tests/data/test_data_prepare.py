from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from trivium.data import Shards, stream
from trivium.data.journal import partial_folder, unfinished_tokenizer
from trivium.data.prepare import prepare
from trivium.data.sources import read_documents
from trivium.data.splits import read_splits, text_digest, write_split_texts
from trivium.errors import DataError


def write(path, documents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def by_hand(tokenizer, documents):
    """The ids of every document with its affixes, encoded one at a time."""
    return [
        [*tokenizer.prefix_ids, *tokenizer.backend.encode(text).ids, *tokenizer.suffix_ids]
        for text in documents
    ]


def stored(shards, name):
    split = shards.split(name)
    return [split.document(n).tolist() for n in range(split.num_documents)]


@pytest.mark.parametrize("shard_tokens", [97, 1 << 20])
@pytest.mark.parametrize(("size", "dtype"), [(0, "uint16"), (70_000, "uint32")])
def test_shards_hold_every_document(
    tmp_path, documents, make_tokenizer, monkeypatch, shard_tokens, size, dtype
):
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 997)
    tokenizer = make_tokenizer(size=size)
    paths = [write(tmp_path / "b.txt", documents[300:]), write(tmp_path / "a.txt", documents[:300])]
    shards = prepare(paths, tmp_path / "out", tokenizer, shard_tokens=shard_tokens)
    pairs = list(read_splits(paths))
    assert len(pairs) == 701
    for name in ("train", "validation"):
        kept = [document.text for split, document in pairs if split == name]
        assert stored(shards, name) == by_hand(tokenizer, kept)
        info = shards.manifest.splits[name]
        assert info.documents == len(kept)
        assert info.text_bytes == sum(len(text.encode()) for text in kept)
        assert info.tokens == sum(file.tokens for file in info.files)
        assert all(file.tokens >= shard_tokens for file in info.files[:-1])
        flat = np.concatenate([np.array(ids) for ids in stored(shards, name)])
        expected = np.bincount(flat, minlength=tokenizer.vocab_size)
        assert np.array_equal(shards.split(name).counts(), expected)
    assert shards.manifest.dtype == dtype
    assert (tmp_path / "out" / "train-00000.bin").stat().st_size == (
        shards.manifest.splits["train"].files[0].tokens * np.dtype(dtype).itemsize
    )
    offsets = np.load(tmp_path / "out" / "train-00000.idx.npy")
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    names = {path.name.split("-")[0].split(".")[0] for path in (tmp_path / "out").iterdir()}
    assert names == {"manifest", "tokenizer", "train", "validation"}
    assert not partial_folder(tmp_path / "out").exists()


def test_unigram_loss_is_the_formula(tmp_path, documents, tokenizer):
    shards = prepare(write(tmp_path / "a.txt", documents), tmp_path / "out", tokenizer)
    counts = {}
    for name in ("train", "validation"):
        counts[name] = {}
        for ids in stored(shards, name):
            for index in ids:
                counts[name][index] = counts[name].get(index, 0) + 1
    ordinary = range(4, tokenizer.vocab_size)
    total = sum(counts["train"].get(i, 0) for i in ordinary) + len(ordinary)
    judged = [(counts["validation"].get(i, 0), counts["train"].get(i, 0)) for i in ordinary]
    expected = -sum(n * np.log((seen + 1) / total) for n, seen in judged) / sum(
        n for n, _ in judged
    )
    assert shards.unigram_loss() == pytest.approx(expected, rel=1e-12)
    alone = prepare(tmp_path / "a.txt", tmp_path / "alone", tokenizer, validation=0)
    assert alone.names == ("train",)
    assert 0 < alone.unigram_loss() < np.log(len(ordinary))


def test_split_follows_from_the_text_alone(tmp_path, documents):
    def held(chosen):
        path = write(tmp_path / "a.txt", chosen)
        return {d.text for split, d in read_splits(path) if split == "validation"}

    everything = held(documents)
    assert 40 < len(everything) < 100
    assert held(documents[::-1]) == everything
    assert held(documents[:350]) == everything & set(documents[:350])
    assert everything == {t for t in documents if text_digest(t)[0] < 0.1 * 2**64}
    # blake2b("abc") with an 8-byte digest, little-endian, as b2sum -l 64 prints it.
    assert text_digest("abc") == (int.from_bytes(bytes.fromhex("d8bb14d833d59559"), "little"), 3)
    long = "é猫" * 700_001
    digest = hashlib.blake2b(long.encode(), digest_size=8).digest()
    assert text_digest(long) == (int.from_bytes(digest, "little"), 5 * 700_001)


def test_duplicates_are_dropped_and_counted(tmp_path, documents, tokenizer):
    path = write(tmp_path / "a.txt", [*documents, *documents[:101], documents[0]])
    shards = prepare(path, tmp_path / "out", tokenizer)
    splits = shards.manifest.splits
    assert sum(info.documents for info in splits.values()) == 701
    assert sum(info.duplicates for info in splits.values()) == 102
    kept = prepare(path, tmp_path / "kept", tokenizer, keep_duplicates=True).manifest.splits
    assert sum(info.documents for info in kept.values()) == 803
    assert sum(info.duplicates for info in kept.values()) == 0


@pytest.mark.parametrize("keep", [False, True])
def test_validation_of_its_own(tmp_path, documents, tokenizer, keep):
    train = write(tmp_path / "data" / "train.txt", [*documents, documents[2]])
    valid = write(tmp_path / "data" / "valid.txt", [*documents[:53], "a cat"])
    shards = prepare(
        tmp_path / "data", tmp_path / "out", tokenizer, validation=valid, keep_duplicates=keep
    )
    splits = shards.manifest.splits
    assert splits["validation"].documents == 54
    assert splits["train"].documents == 701 - 53
    assert splits["train"].leaks == 54
    assert [(Path(s.name).name, s.split) for s in shards.manifest.sources] == [
        ("valid.txt", "validation"),
        ("train.txt", "train"),
    ]
    with pytest.raises(DataError, match="nothing is left to train on"):
        prepare(train, tmp_path / "other", tokenizer, validation=train)


def test_finished_folder_is_used_again(tmp_path, documents, tokenizer, make_tokenizer):
    path = write(tmp_path / "a.txt", documents)
    out = tmp_path / "deep" / "out"
    prepare(path, out, tokenizer)
    before, encoded = contents(out), tokenizer.encoded
    prepare([str(path)], str(out), tokenizer)
    os.utime(path, ns=(1, 1))
    prepare(path, out, tokenizer)
    moved = path.rename(tmp_path / "moved.txt")
    prepare(moved, out, tokenizer)
    assert (contents(out), tokenizer.encoded) == (before, encoded)
    for message, options in {
        "validation 0.1": {"validation": 0.2},
        "separator 'blank'": {"separator": "line"},
        "keep_duplicates False": {"keep_duplicates": True},
    }.items():
        with pytest.raises(DataError, match=f"holds shards made with {message}.*--overwrite"):
            prepare(moved, out, tokenizer, **options)
    with pytest.raises(DataError, match="another tokenizer"):
        prepare(moved, out, make_tokenizer(size=3))
    write(moved, documents[:-1])
    with pytest.raises(DataError, match="other texts"):
        prepare(moved, out, tokenizer)
    assert contents(out) == before
    shards = prepare(moved, out, tokenizer, overwrite=True)
    assert sum(info.documents for info in shards.manifest.splits.values()) == 700
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]


def test_other_folders_are_never_touched(tmp_path, documents, tokenizer):
    path = write(tmp_path / "a.txt", documents)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(DataError, match="no folder of token shards"):
            prepare(path, tmp_path / "home", tokenizer, overwrite=overwrite)
        with pytest.raises(DataError, match="no folder of token shards"):
            prepare(path, path, tokenizer, overwrite=overwrite)
    assert contents(tmp_path / "home") == {"letter": b"dear"}
    (tmp_path / "empty").mkdir()
    prepare(path, tmp_path / "empty", tokenizer)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["the cat"], {}, r"(training|validation) split is empty.*fraction 0\.1"),
        (["a cat"], {"validation": 0.999999}, "training split is empty"),
        (["[UNK]", " "], {"validation": 1.0}, "validation is a fraction"),
        (["a"], {"validation": "missing.txt"}, "no file or folder missing.txt"),
        (["a cat", "b\xff"], {}, "not valid UTF-8 at byte 8"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, tokenizer, texts, options, message):
    path = tmp_path / "a.txt"
    path.write_bytes("\n\n".join(texts).encode("latin-1"))
    with pytest.raises(DataError, match=message):
        prepare(path, tmp_path / "out", tokenizer, **options)
    assert list(tmp_path.iterdir()) == [path]


def test_very_long_documents_are_encoded_in_pieces(tmp_path, documents, tokenizer, monkeypatch):
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 101)
    long = "\n".join(documents[:67])
    path = tmp_path / "a.jsonl"
    records = [documents[80], long, " ".join(documents[100:120]), documents[81], "猫" * 503]
    path.write_text("\n".join(json.dumps({"text": text}) for text in records), encoding="utf-8")
    shards = prepare(path, tmp_path / "out", tokenizer, validation=0, shard_tokens=50)
    assert stored(shards, "train")[:4] == by_hand(tokenizer, records[:4])
    assert len(stored(shards, "train")) == 5
    pieces = list(stream.cut_pieces(long, "train"))
    assert "".join(piece.text for piece in pieces) == long
    assert all(len(piece.text) <= 101 for piece in pieces)
    assert all(piece.text.endswith("\n") for piece in pieces[:-1])


def test_documents_without_tokens_are_left_out(tmp_path, make_tokenizer, monkeypatch):
    tokenizer = make_tokenizer(affixes=False)
    monkeypatch.setattr(
        tokenizer, "encode_ids_batch", lambda texts: [[5] * t.count("a") for t in texts]
    )
    path = write(tmp_path / "a.txt", ["a", "b", "aa", "c"])
    shards = prepare(path, tmp_path / "out", tokenizer, validation=0)
    assert stored(shards, "train") == [[5], [5, 5]]


def test_written_text_reads_back_the_same(tmp_path, documents):
    path = tmp_path / "a.jsonl"
    records = [*documents, documents[3], "two\n\n \nparts"]
    path.write_text("\n".join(json.dumps({"text": text}) for text in records), encoding="utf-8")
    pairs = list(read_splits(path))
    for separator in ("blank", "line", "<|end|>"):
        files = write_split_texts(path, tmp_path / separator, separator=separator)
        for name in ("train", "validation"):
            back = [d.text for d in read_documents(files[name], separator=separator)]
            kept = [d.text for split, d in pairs if split == name]
            closed = {"blank": "two\nparts", "line": "two parts"}.get(separator, records[-1])
            assert back == [closed if text == records[-1] else text for text in kept]
        assert len(list((tmp_path / separator).iterdir())) == 2
    assert set(write_split_texts(path, tmp_path / "one", validation=0)) == {"train"}
    with pytest.raises(DataError, match="no field"):
        write_split_texts(path, tmp_path / "bad", text_field="body")
    assert not list((tmp_path / "bad").iterdir())


def test_progress_and_second_process(tmp_path, documents, tokenizer):
    path = write(tmp_path / "in" / "a.txt", documents)
    (tmp_path / "in" / "picture.png").write_bytes(b"\0")
    seen = []

    def progress(now):
        seen.append(now)
        with pytest.raises(DataError, match="Another process"):
            prepare(path.parent, tmp_path / "out", tokenizer)

    prepare(path.parent, tmp_path / "out", tokenizer, progress=progress)
    assert "1 files passed over" in seen[0].note
    assert "picture.png" in seen[0].note
    assert seen[-1].documents == 701
    assert seen[-1].read_bytes == seen[-1].total_bytes == path.stat().st_size


def test_standard_input_is_never_taken_for_the_same(tmp_path, tokenizer, monkeypatch):
    for text in (b"a cat", b"a dog"):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(text)))
        if text == b"a dog":
            with pytest.raises(DataError, match="standard input"):
                prepare("-", tmp_path / "out", tokenizer, validation=0)
        shards = prepare("-", tmp_path / "out", tokenizer, validation=0, overwrite=True)
        assert shards.manifest.sources[0].size == 5
        assert stored(shards, "train") == by_hand(tokenizer, [text.decode()])


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from conftest import WordTokenizer
from trivium.data import stream
from trivium.data.prepare import prepare
stream.BATCH_CHARACTERS = 701
def progress(now):
    print(now.documents, now.note, flush=True)
    time.sleep(0.004)
prepare(sys.argv[2], sys.argv[3], WordTokenizer(), shard_tokens=97, checkpoint_bytes=1009,
        progress=progress)
"""


def test_killed_and_resumed_is_byte_identical(tmp_path, documents, tokenizer, monkeypatch):
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 701)
    for part in range(5):
        chosen = [*documents[part * 140 : part * 140 + 141], documents[part]]
        write(tmp_path / "in" / f"{part}.txt", chosen)
    write(tmp_path / "in" / "3.txt", ["\n".join(documents[:67]), *documents[3:9]])
    prepare(tmp_path / "in", tmp_path / "whole", tokenizer, shard_tokens=97)
    choose = random.Random(5)
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path / "in")]
    work = partial_folder(tmp_path / "out")
    finished, kills = {}, 0
    while not (tmp_path / "out").exists():
        process = subprocess.Popen(
            [*command, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(choose.randrange(3, 8)):
            line = process.stdout.readline()
            if kills and "going on" in line:
                finished["resumed"] = True
        time.sleep(choose.random() * 0.01)
        if kills < 6:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        kills += 1
        for path in work.glob("train-0000[0-3].bin"):
            # A shard that a journal says is full is never written again.
            journal = json.loads((work / "journal.json").read_text())
            number = int(path.stem[-5:])
            if number < len(journal["checkpoint"]["files"]["train"]) - 1:
                status = path.stat().st_mtime_ns
                assert finished.setdefault(path.name, status) == status
    assert kills >= 5
    assert finished.pop("resumed")
    assert len(finished) > 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not work.exists()


def test_what_was_encoded_is_not_encoded_again(tmp_path, documents, make_tokenizer, monkeypatch):
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 701)
    first, second = make_tokenizer(), make_tokenizer()
    path = write(tmp_path / "in" / "a.txt", documents[:400])
    write(tmp_path / "in" / "b.txt", documents[400:])

    def stop(now):
        if now.documents > 500:
            raise KeyboardInterrupt

    options = {"checkpoint_bytes": 1009, "progress": stop}
    with pytest.raises(KeyboardInterrupt):
        prepare(path.parent, tmp_path / "out", first, **options)
    assert unfinished_tokenizer(path.parent, tmp_path / "out", 0.1) is not None
    assert unfinished_tokenizer(path, tmp_path / "out", 0.1) is None
    path.chmod(0)  # The finished source is not read again either, where permissions bind.
    options["progress"] = lambda now: None
    prepare(path.parent, tmp_path / "out", second, **options)
    path.chmod(0o644)
    assert second.encoded < 250
    prepare(path.parent, tmp_path / "whole", make_tokenizer())
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_changed_texts_start_unfinished_work_anew(tmp_path, documents, tokenizer, monkeypatch):
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 701)
    path = write(tmp_path / "a.txt", documents)

    def stop(now):
        if now.documents > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(path, tmp_path / "out", tokenizer, checkpoint_bytes=1, progress=stop)
    write(path, documents[:300])
    shards = prepare(path, tmp_path / "out", tokenizer)
    assert sum(info.documents for info in shards.manifest.splits.values()) == 300


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "manifest.json").unlink(), "is not a folder of token shards"),
        (lambda f: (f / "manifest.json").write_text("{"), "damaged"),
        (lambda f: (f / "manifest.json").write_text('{"format_version": 99}'), "version 99"),
        (lambda f: (f / "manifest.json").write_text('{"format_version": 1}'), "damaged"),
        (lambda f: (f / "train-00000.bin").unlink(), "train-00000.bin is missing"),
        (lambda f: (f / "train-00000.bin").write_bytes(b"12"), "has 2 bytes"),
        (lambda f: (f / "train-00000.idx.npy").write_bytes(b"\x93NUMPY"), "damaged"),
        (lambda f: np.save(f / "train-00000.idx.npy", np.arange(3)), "manifest says"),
        (lambda f: (f / "train.counts.npy").unlink(), "counts.npy is missing"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "not the tokenizer"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, documents, tokenizer, damage, message):
    prepare(write(tmp_path / "a.txt", documents), tmp_path / "out", tokenizer)
    assert Shards.open(tmp_path / "out").tokenizer_path.is_file()
    damage(tmp_path / "out")
    with pytest.raises(DataError, match=message):
        Shards.open(tmp_path / "out")


def test_unknown_split(tmp_path, documents, tokenizer):
    shards = prepare(write(tmp_path / "a.txt", documents), tmp_path / "out", tokenizer)
    with pytest.raises(DataError, match=r'no split "valid".*Did you mean "validation"'):
        shards.split("valid")
