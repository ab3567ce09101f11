"""Shards hold every document once, whatever happens on the way."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from trivium.data import Shards, encode_tasks, prepare
from trivium.data.documents import list_text_sources
from trivium.data.prepare import find_unfinished_tokenizer, partial_folder
from trivium.data.shards import unigram_loss
from trivium.data.splitting import (
    CorpusOptions,
    TextDigest,
    hash_text,
    read_splits,
    read_training_texts,
    write_split_texts,
)
from trivium.errors import DataError
from trivium.text import Tokenizer
from trivium.text.reservoir import split_text


def make(paths, out, tokenizer, *, overwrite=False, progress=None, **options):
    return prepare.prepare(
        paths,
        tokenizer,
        out,
        options=CorpusOptions(**options),
        overwrite=overwrite,
        progress=progress,
    )


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of about a kilobyte, batches of less."""
    monkeypatch.setattr(encode_tasks, "SHARD_BYTES", 1009)
    monkeypatch.setattr(encode_tasks, "BATCH_CHARACTERS", 701)


def write(path, documents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def without_sources(folder):
    """The contents, but for the names and times of the sources."""
    files = contents(folder)
    manifest = json.loads(files.pop("manifest.json"))
    del manifest["sources"], manifest["options"]["paths"]
    return files, manifest


def by_hand(tokenizer, documents):
    """The ids of every document with its special tokens, encoded one at a time."""
    return [
        [*tokenizer.prefix_ids, *tokenizer.backend.encode(text).ids, *tokenizer.suffix_ids]
        for text in documents
    ]


def stored(shards, name):
    split = shards.split(name)
    return [split.document(n).tolist() for n in range(split.num_documents)]


def test_shards_hold_every_document(tmp_path, documents, make_tokenizer, small_shards):
    paths = [write(tmp_path / "b.txt", documents[300:]), write(tmp_path / "a.txt", documents[:300])]
    pairs = list(read_splits(paths))
    assert len(pairs) == 701
    for size, dtype in ((0, "uint16"), (70_000, "uint32")):
        tokenizer = make_tokenizer(size=size)
        out = tmp_path / dtype
        shards = make(paths, out, tokenizer)
        for name in ("train", "validation"):
            kept = [text for split, text in pairs if split == name]
            assert stored(shards, name) == by_hand(tokenizer, kept)
            info = shards.manifest.splits[name]
            assert info.documents == len(kept) == sum(file.documents for file in info.files)
            assert info.text_bytes == sum(len(text.encode()) for text in kept)
            assert info.tokens == sum(file.tokens for file in info.files)
            assert len(info.files) > 13
            assert shards.split(name).excerpts == tuple(text[:500] for text in kept[:4])
            flat = np.concatenate([np.array(ids) for ids in stored(shards, name)])
            expected = np.bincount(flat, minlength=tokenizer.vocab_size)
            assert np.array_equal(shards.split(name).counts(), expected)
        assert shards.manifest.dtype == dtype
        assert (out / "train-00000.bin").stat().st_size == (
            shards.manifest.splits["train"].files[0].tokens * np.dtype(dtype).itemsize
        )
        offsets = np.load(out / "train-00000.idx.npy")
        assert offsets.dtype == np.int64
        assert offsets[0] == 0
        names = {path.name.split("-")[0].split(".")[0] for path in out.iterdir()}
        assert names == {"manifest", "tokenizer", "train", "validation"}
        assert not partial_folder(out).exists()
        with pytest.raises(DataError, match=r'no split "valid".*Did you mean "validation"'):
            shards.split("valid")


def test_shards_grow_and_workers_do_not_matter(tmp_path, documents, tokenizer, monkeypatch):
    path = write(tmp_path / "a.txt", documents)
    monkeypatch.setattr(encode_tasks, "SHARD_BYTES", 101)
    monkeypatch.setattr(encode_tasks, "BATCH_CHARACTERS", 103)
    make(path, tmp_path / "2", tokenizer)
    monkeypatch.setattr(encode_tasks, "_WORKERS", 5)
    monkeypatch.setattr(encode_tasks, "_BATCHES_IN_FLIGHT", 17)
    monkeypatch.setattr(tokenizer, "encode_ids_batch", _slowed(tokenizer.encode_ids_batch))
    make(path, tmp_path / "5", tokenizer)
    assert contents(tmp_path / "2") == contents(tmp_path / "5")
    files = Shards.open(tmp_path / "2").manifest.splits["train"].files
    assert 32 < len(files) < 200
    assert min(f.tokens for f in files[64:-1]) > 1.5 * max(f.tokens for f in files[:9])


def _slowed(encode):
    chance = random.Random(3)

    def slow(texts):
        time.sleep(chance.random() * 0.002)
        return encode(texts)

    return slow


def test_unigram_loss_is_the_formula(tmp_path, documents, tokenizer):
    shards = make(write(tmp_path / "a.txt", documents), tmp_path / "out", tokenizer)
    regular = range(4, tokenizer.vocab_size)
    counts = {
        name: np.bincount(np.concatenate(stored(shards, name)), minlength=tokenizer.vocab_size)[4:]
        for name in ("train", "validation")
    }
    total = counts["train"].sum() + len(regular)
    expected = -(counts["validation"] * np.log((counts["train"] + 1) / total)).sum()
    expected /= counts["validation"].sum()
    assert unigram_loss([shards]) == pytest.approx(expected, rel=1e-12)
    assert unigram_loss([shards, shards], [1, 3]) == pytest.approx(expected, rel=0.01)
    alone = make(tmp_path / "a.txt", tmp_path / "alone", tokenizer, validation=0)
    assert alone.names == ("train",)
    assert 0 < unigram_loss([alone]) < np.log(len(regular))


def test_split_follows_from_the_text_alone(tmp_path, documents):
    def heldout(chosen):
        path = write(tmp_path / "a.txt", chosen)
        return {text for split, text in read_splits(path) if split == "validation"}

    everything = heldout(documents)
    assert 40 < len(everything) < 100
    assert heldout(documents[::-1]) == everything
    assert heldout(documents[:350]) == everything & set(documents[:350])
    assert everything == {t for t in documents if hash_text(t) < 0.1 * 2**64}
    # blake2b("abc") with an 8-byte digest, little-endian, as b2sum -l 64 prints it.
    assert hash_text("abc") == int.from_bytes(bytes.fromhex("d8bb14d833d59559"), "little")
    long = "é猫" * 700_001
    digest = hashlib.blake2b(long.encode(), digest_size=8).digest()
    assert hash_text(long) == int.from_bytes(digest, "little")


def test_duplicates_are_dropped_and_counted(tmp_path, documents, tokenizer):
    path = write(tmp_path / "a.txt", [*documents, *documents[:101], documents[0]])
    splits = make(path, tmp_path / "out", tokenizer).manifest.splits
    assert sum(info.documents for info in splits.values()) == 701
    assert sum(info.duplicates for info in splits.values()) == 102
    kept = make(path, tmp_path / "kept", tokenizer, keep_duplicates=True).manifest.splits
    assert sum(info.documents for info in kept.values()) == 803
    assert sum(info.duplicates for info in kept.values()) == 0
    # Repeats are equal to the last visible character.
    other = ["One text.", "one text.", "One  text.", "One text", "One t\u00e9xt."]
    near = write(tmp_path / "near.txt", [*other, other[0]])
    read = [text for _, text in read_splits(near, CorpusOptions(validation=0.0))]
    assert read == other


def test_validation_of_another_source_is_not_in_training(tmp_path, documents, tokenizer):
    path = write(tmp_path / "a.txt", documents[:101])
    kept = [text for split, text in read_splits(path) if split == "train"]
    elsewhere = {hash_text(text) for text in kept[:7]} | {5}
    shards = prepare.prepare(path, tokenizer, tmp_path / "out", not_in_training=elsewhere)
    assert stored(shards, "train") == by_hand(tokenizer, kept[7:])
    assert shards.manifest.splits["train"].overlap == 7


@pytest.mark.parametrize("has_links", [True, False])
def test_only_shards_with_dropped_documents_are_written_again(
    tmp_path, documents, tokenizer, small_shards, monkeypatch, has_links
):
    """Also a long document of both splits, whose split is known when its last chunk is read."""
    monkeypatch.setattr(encode_tasks, "_CHUNK_CHARACTERS", 1500)
    long = ["\n".join(documents[n : n + 67]) for n in range(0, 670, 67)]
    path = write(tmp_path / "a.jsonl", [])
    records = [*documents[:300], *long, *documents[300:], documents[299], *documents[:2]]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in records))
    links = []

    def link(source, target):
        links.append((source, Path(source).read_bytes()))
        if not has_links:
            raise OSError("the file system has no hard links")
        os_link(source, target)

    os_link = os.link
    monkeypatch.setattr(os, "link", link)
    shards = make(path, tmp_path / "out", tokenizer, validation=0.3)
    assert sum(info.duplicates for info in shards.manifest.splits.values()) == 3
    files = sum(len(info.files) for info in shards.manifest.splits.values())
    assert 2 * files - 2 * 3 <= len(links) < 2 * files
    written = contents(tmp_path / "out").values()
    assert all(content in written for _, content in links)
    kept = list(read_splits(path, CorpusOptions(validation=0.3)))
    for name in ("train", "validation"):
        texts = [text for split, text in kept if split == name]
        assert any(text in long for text in texts)
        assert stored(shards, name) == by_hand(tokenizer, texts)
    shards.verify()


def test_work_of_an_earlier_version_is_prepared_again(tmp_path, documents, tokenizer, small_shards):
    path = write(tmp_path / "a.txt", documents)
    notes = []

    def stop(now):
        if now.documents > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(path, tmp_path / "out", tokenizer, progress=stop)
    work = partial_folder(tmp_path / "out")
    for shard in work.glob("shard-*"):
        (shard / "shard.json").rename(shard / "piece.json")
        shard.rename(work / shard.name.replace("shard", "piece"))
    make(path, tmp_path / "out", tokenizer, progress=lambda now: notes.append(now.note))
    assert re.match(r"[1-9]\d* unfinished shards .* are removed", notes[0])
    make(path, tmp_path / "whole", tokenizer)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_validation_paths(tmp_path, documents, tokenizer):
    train = write(tmp_path / "data" / "train.txt", [*documents, documents[2]])
    valid = write(tmp_path / "data" / "valid.txt", [*documents[:53], "a cat"])
    for keep in (False, True):
        shards = make(
            tmp_path / "data",
            tmp_path / str(keep),
            tokenizer,
            validation=valid,
            keep_duplicates=keep,
        )
        splits = shards.manifest.splits
        assert splits["validation"].documents == 54
        assert splits["train"].documents == 701 - 53
        assert splits["train"].overlap == 54
        assert [(Path(s.name).name, s.split) for s in shards.manifest.sources] == [
            ("valid.txt", "validation"),
            ("train.txt", "train"),
        ]
    with pytest.raises(DataError, match="no training text is left"):
        make(train, tmp_path / "other", tokenizer, validation=train)


def test_finished_folder_is_opened_again(tmp_path, documents, tokenizer, make_tokenizer):
    path = write(tmp_path / "a.txt", documents)
    out = tmp_path / "deep" / "out"
    make(path, out, tokenizer)
    before, encoded = contents(out), tokenizer.encoded
    make([str(path)], str(out), tokenizer)
    moved = path.rename(tmp_path / "moved.txt")
    make(moved, out, tokenizer)
    assert (contents(out), tokenizer.encoded) == (before, encoded)
    for message, options in {
        "validation 0.1": {"validation": 0.2},
        "separator 'blank'": {"separator": "line"},
        "keep_duplicates False": {"keep_duplicates": True},
    }.items():
        with pytest.raises(DataError, match=f"holds shards made with {message}.*--overwrite"):
            make(moved, out, tokenizer, **options)
    with pytest.raises(DataError, match="another tokenizer"):
        make(moved, out, make_tokenizer(size=3))
    write(moved, documents[:-1])
    with pytest.raises(DataError, match="other texts"):
        make(moved, out, tokenizer)
    assert contents(out) == before
    shards = make(moved, out, tokenizer, overwrite=True)
    assert sum(info.documents for info in shards.manifest.splits.values()) == 700
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]


def test_shards_are_opened_when_the_text_is_gone(tmp_path, documents, tokenizer):
    path = write(tmp_path / "a.txt", documents)
    make(path, tmp_path / "out", tokenizer)
    path.unlink()
    assert make(path, tmp_path / "out", tokenizer).names == ("train", "validation")
    for paths, options in ((tmp_path / "b.txt", {}), (path, {"separator": "line"})):
        with pytest.raises(DataError, match="no file or folder"):
            make(paths, tmp_path / "out", tokenizer, **options)


def test_other_folders_are_never_touched(tmp_path, documents, tokenizer):
    path = write(tmp_path / "a.txt", documents)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    for overwrite in (False, True):
        for out in (tmp_path / "home", path):
            with pytest.raises(DataError, match="not a folder of token shards"):
                make(path, out, tokenizer, overwrite=overwrite)
    assert contents(tmp_path / "home") == {"letter": b"dear"}
    (tmp_path / "home").rename(partial_folder(tmp_path / "new"))
    with pytest.raises(DataError, match=r"new\.partial holds other files"):
        make(path, tmp_path / "new", tokenizer)
    (tmp_path / "empty").mkdir()
    make(path, tmp_path / "empty", tokenizer)


def test_bad_input_leaves_nothing_behind(tmp_path, tokenizer):
    path = tmp_path / "a.txt"
    for text, options, message in (
        ("the cat\n\nx", {"validation": 1e-9}, r"validation split is empty.*fraction 1e-09"),
        ("a cat\n\nx", {"validation": 0.999999}, "train split is empty"),
        ("a", {"validation": 0.1}, r"(train|validation) split is empty"),
        ("[UNK]", {"validation": 1.0}, "validation is a fraction"),
        ("a", {"validation": "missing.txt"}, "no file or folder missing.txt"),
        ("a cat\n\nb\xff", {}, "line 3 is not valid UTF-8"),
    ):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(DataError, match=message):
            make(path, tmp_path / "out", tokenizer, **options)
        assert list(tmp_path.iterdir()) == [path]


def test_long_documents_are_encoded_in_chunks(tmp_path, documents, tokenizer, monkeypatch):
    monkeypatch.setattr(encode_tasks, "BATCH_CHARACTERS", 101)
    monkeypatch.setattr(encode_tasks, "_CHUNK_CHARACTERS", 1500)
    long = "\n".join(documents[:67])
    path = tmp_path / "a.jsonl"
    records = [documents[80], long, " ".join(documents[100:120]), documents[81], "猫" * 503]
    path.write_text("\n".join(json.dumps({"text": text}) for text in records), encoding="utf-8")
    write(tmp_path / "none" / "b.txt", ["a cat"])
    shards = make(path, tmp_path / "out", tokenizer, validation=0)
    assert stored(shards, "train") == by_hand(tokenizer, records)
    shards = make(tmp_path / "none", tmp_path / "held out", tokenizer, validation=path)
    assert stored(shards, "train") == by_hand(tokenizer, ["a cat"])
    assert stored(shards, "validation") == by_hand(tokenizer, records)
    chunks = list(split_text(long, 101))
    assert "".join(chunks) == long
    assert all(len(chunk) <= 101 for chunk in chunks)
    assert all(chunk.endswith("\n") for chunk in chunks[:-1])


def test_documents_without_tokens_are_left_out(tmp_path, make_tokenizer, monkeypatch):
    tokenizer = make_tokenizer(surrounded=False)
    monkeypatch.setattr(
        tokenizer, "encode_ids_batch", lambda texts: [[5] * t.count("a") for t in texts]
    )
    path = write(tmp_path / "a.txt", ["a", "b", "aa", "c"])
    shards = make(path, tmp_path / "out", tokenizer, validation=0)
    assert stored(shards, "train") == [[5], [5, 5]]


def test_written_text_reads_back_the_same(tmp_path, documents):
    path = tmp_path / "a.jsonl"
    records = [*documents, documents[3], "two\n\n \nparts"]
    path.write_text("\n".join(json.dumps({"text": text}) for text in records), encoding="utf-8")
    pairs = list(read_splits(path))
    for separator in ("blank", "line", "<|end|>"):
        options = CorpusOptions(separator=separator)
        files = write_split_texts(path, tmp_path / separator, options)
        for name in ("train", "validation"):
            back = list(read_training_texts(files[name], CorpusOptions(separator, validation=0)))
            kept = [text for split, text in pairs if split == name]
            closed = {"blank": "two\nparts", "line": "two parts"}.get(separator, records[-1])
            assert back == [closed if text == records[-1] else text for text in kept]
        assert len(list((tmp_path / separator).iterdir())) == 2
    assert set(write_split_texts(path, tmp_path / "one", CorpusOptions(validation=0))) == {"train"}
    with pytest.raises(DataError, match="no column"):
        write_split_texts(path, tmp_path / "bad", CorpusOptions(text_field="body"))
    assert not list((tmp_path / "bad").iterdir())


def test_progress_and_a_second_process(tmp_path, documents, tokenizer):
    path = write(tmp_path / "in" / "a.txt", documents)
    (tmp_path / "in" / "picture.png").write_bytes(b"\0")
    seen = []

    def progress(now):
        seen.append(now)
        with pytest.raises(DataError, match="Another process"):
            make(path.parent, tmp_path / "out", tokenizer)

    make(path.parent, tmp_path / "out", tokenizer, progress=progress)
    assert "1 files skipped" in seen[0].note
    assert "picture.png" in seen[0].note
    assert seen[-1].documents == 701
    assert seen[-1].bytes_per_second > 0
    assert seen[-1].read_bytes == seen[-1].total_bytes == path.stat().st_size


def test_standard_input_is_never_the_same(tmp_path, tokenizer, monkeypatch):
    for text in (b"a cat", b"a dog"):
        buffer = io.BufferedReader(io.BytesIO(text))
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=buffer))
        if text == b"a dog":
            with pytest.raises(DataError, match="standard input"):
                make("-", tmp_path / "out", tokenizer, validation=0)
        shards = make("-", tmp_path / "out", tokenizer, validation=0, overwrite=True)
        assert stored(shards, "train") == by_hand(tokenizer, [text.decode()])


def test_an_error_in_one_file_keeps_the_work_on_others(
    tmp_path, documents, make_tokenizer, small_shards
):
    """Fault 7 of version 0.1: one bad byte in the last file deleted hours of work."""
    first, second = make_tokenizer(), make_tokenizer()
    folder = tmp_path / "in"
    write(folder / "a.txt", documents[:500])
    bad = write(folder / "b.txt", documents[500:])
    good = bad.read_bytes()
    bad.write_bytes(good + b"\xff")
    out, notes = tmp_path / "out", []
    with pytest.raises(DataError, match=r"b\.txt, line 402 is not valid UTF-8"):
        make(folder, out, first, progress=lambda now: notes.append(now.note))
    assert "the next attempt continues there" in notes[-1]
    assert find_unfinished_tokenizer(folder, out, CorpusOptions()) is not None
    assert find_unfinished_tokenizer(bad, out, CorpusOptions()) is None
    assert find_unfinished_tokenizer(folder, out, CorpusOptions(validation=0.2)) is None
    bad.write_bytes(good)
    make(folder, out, second, progress=lambda now: notes.append(now.note))
    assert any("resuming after" in note for note in notes)
    assert second.encoded < 260
    make(folder, tmp_path / "whole", make_tokenizer())
    assert contents(out) == contents(tmp_path / "whole")


def test_changed_files_and_options_start_unfinished_work_anew(
    tmp_path, documents, tokenizer, small_shards
):
    path = write(tmp_path / "a.txt", documents)

    def stop(now):
        if now.documents > 300:
            raise KeyboardInterrupt

    for change in ("text", "options"):
        with pytest.raises(KeyboardInterrupt):
            make(path, tmp_path / "out", tokenizer, progress=stop)
        assert len(list(partial_folder(tmp_path / "out").glob("shard-*/shard.json"))) > 3
        if change == "text":
            write(path, documents[:300])
            shards = make(path, tmp_path / "out", tokenizer)
            assert sum(info.documents for info in shards.manifest.splits.values()) == 300
            (tmp_path / "out").rename(tmp_path / "first")
            write(path, documents)
    shards = make(path, tmp_path / "out", tokenizer, validation=0)
    assert shards.manifest.splits["train"].documents == 701


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from conftest import WordTokenizer
from trivium.data import prepare, encode_tasks
encode_tasks.BATCH_CHARACTERS, encode_tasks.SHARD_BYTES = 701, 1009
def progress(now):
    print(now.documents, now.note, flush=True)
    time.sleep(0.004)
prepare.prepare(sys.argv[2], WordTokenizer(), sys.argv[3], progress=progress)
"""


def test_killed_and_resumed_is_byte_identical(tmp_path, documents, tokenizer, small_shards):
    for part in range(5):
        chosen = [*documents[part * 140 : part * 140 + 141], documents[part]]
        write(tmp_path / "in" / f"{part}.txt", chosen)
    write(tmp_path / "in" / "3.txt", ["\n".join(documents[:67]), *documents[3:9]])
    make(str(tmp_path / "in"), tmp_path / "whole", tokenizer)
    chance = random.Random(5)
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path / "in")]
    work = partial_folder(tmp_path / "out")
    finished, kills, resumed = {}, 0, False
    while not (tmp_path / "out").exists():
        process = subprocess.Popen(
            [*command, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(chance.randrange(3, 8)):
            resumed |= "resuming after" in process.stdout.readline()
        time.sleep(chance.random() * 0.01)
        if kills < 3:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        kills += 1
        for marker in work.glob("shard-*/shard.json"):
            # What a marker speaks of is never written again.
            status = marker.stat().st_mtime_ns
            assert finished.setdefault(marker.parent.name, status) == status
    assert kills >= 3
    assert resumed
    assert len(finished) > 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not work.exists()


def test_planning_is_linear_in_the_number_of_files(tmp_path, monkeypatch):
    """Fault 9 of version 0.1: it was quadratic."""
    for number in range(300):
        (tmp_path / f"{number:03}.txt").write_text(f"text {number}")
    calls = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda *a, **k: calls.append(a) or stat(*a, **k))
    assert len(list_text_sources(tmp_path).sources) == 300
    assert len(calls) < 300 * 10


def rename_split(manifest, name):
    tree = json.loads(manifest.read_text())
    tree["splits"][name] = tree["splits"].pop("train")
    manifest.write_text(json.dumps(tree))


def test_damaged_folders_are_refused(tmp_path, documents, tokenizer):
    path = write(tmp_path / "a.txt", documents)
    for damage, message in (
        (lambda f: (f / "manifest.json").unlink(), "is not a folder of token shards"),
        (lambda f: (f / "manifest.json").write_text("{"), "cannot be read as JSON"),
        (lambda f: (f / "manifest.json").write_text('{"format_version": 99}'), "version 99"),
        (lambda f: (f / "manifest.json").write_text('{"format_version": 2}'), "damaged"),
        (lambda f: (f / "manifest.json").write_text("[]"), "damaged"),
        (lambda f: rename_split(f / "manifest.json", "../train"), "contradicts itself"),
        (lambda f: (f / "train-00000.bin").unlink(), "train-00000.bin cannot be read"),
        (lambda f: (f / "train-00000.bin").write_bytes(b"12"), r"has \(1,\) entries"),
        (lambda f: (f / "train-00000.idx.npy").write_bytes(b"\x93NUMPY"), "idx.npy cannot be read"),
        (lambda f: np.save(f / "train-00000.idx.npy", np.arange(3)), "manifest says"),
        (lambda f: (f / "train.counts.npy").unlink(), "counts.npy cannot be read"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "not that of these shards"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    ):
        out = tmp_path / "out"
        (out / "manifest.json").unlink(missing_ok=True)
        for left in out.glob("*"):
            left.unlink()
        make(path, out, tokenizer)
        assert Shards.open(out).tokenizer_path.is_file()
        damage(out)
        with pytest.raises(DataError, match=message):
            Shards.open(out)


@pytest.mark.parametrize(
    "other",
    [
        "Caf\u00e9 au lait  \nand \uac01 more",
        "Caf\u00e9 au lait\r\nand \uac01 more\r\n",
        "Caf\u00e9 au lait\rand \uac01 more\n\n",
        "Cafe\u0301 au lait\nand \u1100\u1161\u11a8 more\t",
    ],
)
def test_invisible_differences_make_no_other_document(tmp_path, other):
    one = "Caf\u00e9 au lait\nand \uac01 more"
    assert hash_text(other) == hash_text(one)
    assert hash_text(one.replace(" au", "  au")) != hash_text(one)
    for validation in (0.0, 0.5):
        path = tmp_path / f"{validation}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (one, other, "x")))
        kept = [text for _, text in read_splits(path, CorpusOptions(validation=validation))]
        assert kept == [one, "x"]


def test_parts_of_a_text_have_the_hash_of_the_whole():
    rng = random.Random(0)
    parts = ["a", "\u00e9", "e\u0301", "\u1100", "\u1161", "\u11a8", "\u3099", "\u4e2d"]
    parts += [" ", "  ", "\n", "\r", "\r\n", "\u0915\u093c", "\u0344", "\u0323\u0302"]
    for _ in range(1000):
        text = "".join(rng.choices(parts, k=rng.randint(0, 30)))
        digest, position = TextDigest(), 0
        while position < len(text):
            size = rng.randint(1, 6)
            digest.update(text[position : position + size])
            position += size
        assert digest.value == hash_text(text), ascii(text)


@pytest.mark.parametrize("separator", ["blank", "line", "file", "<|end|>"])
@pytest.mark.parametrize("validation", [0.1, 0.5])
def test_one_document_holds_out_its_end(tmp_path, documents, tokenizer, separator, validation):
    text = " ".join(documents[:200])
    path = tmp_path / "a.txt"
    path.write_text(f"\n{text}\n", encoding="utf-8")
    options = {"separator": separator, "validation": validation}
    notes = []
    shards = make(
        path, tmp_path / "out", tokenizer, progress=lambda one: notes.append(one.note), **options
    )
    assert f"there is one document: its last {validation:.0%} are the validation split" in notes
    train, held_out = (stored(shards, split) for split in ("train", "validation"))
    assert (len(train), len(held_out)) == (1, 1)
    assert [train[0][1:-1] + held_out[0][1:-1]] == [one[1:-1] for one in by_hand(tokenizer, [text])]
    share = len(held_out[0]) / (len(train[0]) + len(held_out[0]))
    assert share == pytest.approx(validation, abs=0.03)
    pairs = list(read_splits(path, CorpusOptions(**options)))
    assert [split for split, _ in pairs] == ["train", "validation"]
    assert "".join(part for _, part in pairs) == text
    assert "".join(read_training_texts(path, CorpusOptions(**options))) == pairs[0][1]
    info = shards.manifest.splits["train"]
    assert (info.documents, info.text_bytes) == (1, len(pairs[0][1].encode()))
    (tmp_path / "b.txt").write_text("another document", encoding="utf-8")
    options["validation"] = 0.0
    assert [*read_splits([path, tmp_path / "b.txt"], CorpusOptions(**options))] == [
        ("train", text),
        ("train", "another document"),
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("separator", ["line", "<|end|>"])
def test_memory_does_not_grow_with_a_document(tmp_path, separator):
    """The peak of a process that encodes one line of 24 MB is near that of 8 MB."""
    code = """if True:
        import sys
        from trivium.data import prepare
        from trivium.data.splitting import CorpusOptions, read_training_texts
        from trivium.text import Tokenizer
        path, separator = sys.argv[1:]
        texts = ["the weather was cloudy " * 9]
        tokenizer = Tokenizer.train("byte-bpe", texts=texts, vocab_size=300, progress=False)
        options = CorpusOptions(separator=separator)
        for _ in read_training_texts(path, options):
            pass
        prepare.prepare(path, tokenizer, path + ".shards", options=options)
        # Not `ru_maxrss`, which counts the peak of the process that started this one, too.
        status = open("/proc/self/status").read()
        print(status.partition("VmHWM:")[2].split()[0])
    """
    peaks = []
    for size in (8, 24):
        path = tmp_path / f"{size}.txt"
        path.write_text("the weather was cloudy, 猫 " * (size * 40_000), encoding="utf-8")
        run = [sys.executable, "-c", code, str(path), separator]
        peaks.append(int(subprocess.run(run, check=True, capture_output=True).stdout) / 1024)
    assert peaks[1] - peaks[0] < 25, peaks


@pytest.mark.parametrize("old_files", [False, True], ids=["transformers-5", "transformers-4"])
def test_roles_of_a_saved_folder_reach_the_shards(old_files, tmp_path):
    """Roles with unusual names decide the tokens around documents; shards keep them."""
    backend = tokenizers.Tokenizer.from_str(
        Tokenizer.train(
            "byte-bpe",
            texts=["a text of some words"],
            vocab_size=270,
            special_tokens=["<start>", "<finish>", "<|endoftext|>"],
            progress=False,
        ).to_json()
    )
    folder, roles = tmp_path / "tokenizer", {"eos_token": "<finish>", "pad_token": "<start>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **roles).save_pretrained(folder)
    if old_files:
        config = folder / "tokenizer_config.json"
        kept = {k: v for k, v in json.loads(config.read_text()).items() if k not in roles}
        config.write_text(json.dumps(kept))
        (folder / "special_tokens_map.json").write_text(json.dumps(roles))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.tokens[tokenizer.suffix_ids[0]] == "<finish>"
    assert Tokenizer.load(folder / "tokenizer.json").roles == tokenizer.roles
    texts = tmp_path / "texts.txt"
    texts.write_text("\n\n".join(f"text number {n}" for n in range(40)))
    shards = make(texts, tmp_path / "shards", tokenizer)
    assert shards.manifest.suffix_ids == tokenizer.suffix_ids
    stored = Tokenizer.load(shards.tokenizer_path)
    assert (stored.roles, stored.suffix_ids) == (tokenizer.roles, tokenizer.suffix_ids)
    make(texts, tmp_path / "shards", stored)
    other = Tokenizer(tokenizer.backend)
    assert other.fingerprint == tokenizer.fingerprint
    with pytest.raises(DataError, match="another tokenizer"):
        make(texts, tmp_path / "shards", other)
