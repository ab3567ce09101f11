"""A sample of what `make fuzz` does for an hour: every reader refuses or reads a damaged file."""

from __future__ import annotations

import shutil

import pytest
from checking import READERS, fuzzed
from damage import Damage, damages
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.errors import CheckpointError
from trivium.interop.convert import from_hugging_face
from trivium.objectives.classification import sort_naturally

# What fuzzing found: reader, file, the bytes there and what they were replaced with.
FINDINGS: list[tuple[str, str, bytes, bytes]] = [
    ("records", "c.csv", b"text,", b"text" + b"x" * 5000 + b","),
    ("labels", "e.parquet", b"A good film.", b"A good \xff\xfelm."),
    ("labels", "c.jsonl", b'["x", "y"]', b'["x", ["y"]]'),
    ("questions", "a.json", b'"id": "2"', b'"id": "\\ud800", "x": ""'),
    ("questions", "a.json", b"{", b"[" * 3000 + b"{"),
    ("pairs", "b.tsv", b"A cat.\tUn chat.\nYes.\tOui.\n", b"\n\n"),
    ("tokenizer-byte-bpe", "special_tokens_map.json", b'"</s>"', b'"\\ud800"'),
    ("tokenizer-whitespace", "tokenizer.json", b'"unk_token": "[UNK]"', b'"unk_token": "?"'),
    ("model", "m/spec.json", b'"transformer"', b"[]"),
    (
        "model",
        "m/hugging_face.json",
        b'"task_specific_params": {',
        b'"task_specific_params": [], "x": {',
    ),
    ("hf-t5", "m/generation_config.json", b'"eos_token_id": ', b'"eos_token_id": [{}], "x": '),
    ("hf-bert", "m/config.json", b'"type_vocab_size": 2', b'"type_vocab_size": ' + b"9" * 30),
    ("hf-bert", "m/config.json", b'"architectures": [', b'"architectures": [{}, '),
    ("tokenizer-vocab-merges", "vocab.json", b'"!": 4,', b'"!": 2147483647,'),
    ("tokenizer-vocab-merges", "tokenizer_config.json", b"GPT2", b"\\ud800"),
    ("tokenizer-byte-bpe", "tokenizer.json", b'"!": 4,', b'"!": 2147483647,'),
    ("hf-tokenizer", "a/added_tokens.json", b": ", b": []" + b', "x": '),
    ("hf-tokenizer", "c/tokenizer_config.json", b'"extra_ids": ', b'"extra_ids": 999999999'),
    ("tokenizer-wordpiece", "tokenizer.json", b'"ids": [', b'"ids": [999, '),
    (
        "tokenizer-wordpiece",
        "tokenizer.json",
        b'"special_tokens": {',
        b'"special_tokens": {}, "x": {',
    ),
    (
        "tokenizer-sentencepiece-unigram",
        "spiece.model",
        b"\x87\xd3\x0e\x00\xbc\x02\x00",
        b"\x87\xd3\x0e\xff\xff\xff\xff",
    ),
    ("tokenizer-tiktoken", "small.tiktoken", b" 255", b" 2147483647"),
    ("chat-template", "chat_template.jinja", b"{% endfor", b"{% endfor %}{% break %}{% endfor"),
    ("chat-template", "chat_template.jinja", b"{% if", b"{{ 'a' * 10**15 }}{% if"),
    ("chat-template", "chat_template.jinja", b"{% if", b"{{ " + b"(" * 3000 + b"{% if"),
    ("recipe", "b.toml", b'name = "second"', b'name = ["second"]'),
    ("recipe", "b.toml", b"seed = 3", b"seed = 3" + b"9" * 5000),
    ("recipe", "b.toml", b"d_model = 32", b"d_model" + b"x" * 5000 + b" = 32"),
    ("recipe", "b.toml", b'paths = ["a.txt", "b.jsonl"]', b"paths = 2.5"),
    ("recipe", "b.toml", b"num_layers = 2", b"num_layers" + b"x" * 5000 + b" = 2"),
    ("recipe", "b.toml", b"num_layers = 2", b"num_layers = 2000"),
    ("recipe", "b.toml", b"d_model = 32", b"d_model = 1000000000000000000000"),
    ("recipe", "b.toml", b'"gpt2-mini"', b'"gpt2-mini' + b"9" * 5000 + b'"'),
    ("recipe", "c.toml", b'"learned"', b'"learned' + b"9" * 5000 + b'"'),
    ("recipe", "c.toml", b"12\nvocab_size = 50", b"2147483647\nvocab_size = 2147483647"),
    ("task shards", "shards.partial/inputs.json", b"{", b"[{"),
    (
        "task shards",
        "shards.partial/shard-00000-0000/shard.json",
        b'"documents": ',
        b'"documents": -',
    ),
    (
        "task shards",
        "shards.partial/shard-00000-0000/shard.json",
        b'"excerpts": {',
        b'"excerpts": {"99": "", ',
    ),
    (
        "task shards",
        "shards.partial/shard-00000-0000/shard.json",
        b'"sha256": {',
        b'"sha256": {}, "": {',
    ),
    (
        "task shards",
        "shards.partial/shard-00000-0000/shard.json",
        b'"documents": ',
        b'"documents": 1',
    ),
    ("task shards", "shards.partial/shard-00001-0000/train-00000.bin", b"\x01", b"\xff"),
    ("task shards", "shards.partial/shard-00001-0000/documents.npy", b"<i8", b"|S8"),
    (
        "task shards",
        "shards.partial/shard-00001-0000/documents.npy",
        b"in_validation",
        b"IN_VALIDATION",
    ),
    ("weights", "c/pytorch_model.bin", b"torch._utils\n", b"readers\nran_code\n)Rctorch._utils\n"),
    ("weights", "d/pytorch_model.bin", b"(", b"t"),
    ("weights", "d/pytorch_model.bin", b"M\xe9\x03.", b"X\3\0\0\0\xed\xa0\x80."),  # lone surrogate
    ("weights", "e/pytorch_model.bin.index.json", b'"1.bin"', b'"' + b"x" * 300 + b'"'),
    ("weights", "e/pytorch_model.bin.index.json", b'"1.bin"', b'"' + b"x" * 5000 + b'"'),
    ("shards", "shards/train.counts.npy", b"{'descr': '", b"{'descr\\<': '"),
    ("shards", "shards/validation-00000.idx.npy", b"v\0{", b'{"a":' * 3000),
    ("shards", "shards/manifest.json", b'"dtype": "uint16"', b'"dtype": "thing"'),
    ("shards", "shards/train-00000.idx.npy", bytes(8), b"\xff" * 8),
    ("checkpoint", "step-00000007/checksums.json", b"{", b"[{"),
    ("checkpoint-parts", "step-00000007/optimizer.safetensors", b'"F32"', b'"F33"'),
    ("checkpoint", "step-00000007/state.json", b'"step": 7', b'"step": "x"'),
    ("run", "run/evaluation.json", b'"confidence": 0.5', b'"confidence": [0.5]'),
    ("run", "run/evaluation.json", b'"support": 3', b'"support": "3"'),
    ("run", "run/recipe.toml", b"[objective]", b"[[objective]]"),
    ("chat", "a.jsonl", b'"system"', b'"' + b"x" * 5000 + b'"'),
    ("run", "run/run.json", b'"prompt": "a"', b'"prompt": []'),
    ("metrics", "run/run.json", b"{", b"[{"),
]

# What it found that is read all the same.
READ_ANYWAY: list[tuple[str, str, bytes, bytes]] = [
    ("recipe", "b.toml", b"minutes = 2.5", b"minutes = 1e308"),
    ("unfinished-run", "m/run.json", b'{\n  "finished": false\n}', b"[false]"),
    ("unfinished-run", "m/recipe.toml", b"[", b"[["),
    ("hub-cache", "refs/main", b"abc", b"\xff" + b"a" * 300),
    ("tokenizer-unigram", "tokenizer.json", b"        -", b"        999"),
    ("chat-template", "chat_template.jinja", b"'role'", b"'\\ole'"),
    ("run", "run/predictions.jsonl", b"", b"[{"),
    ("weights", "e/1.bin", b"ZZ64PK", b"ZZ00PK"),  # ended the process
]


@pytest.fixture(scope="module", params=READERS)
def reader(request):
    with fuzzed(request.param) as one:
        yield one


def test_good_files_are_read(reader):
    for name in {reader.folder_of(name): name for name in reader.files}.values():
        assert reader.check(Damage(name, reader.files[name]), summed=False) is None


def test_damaged_files_are_read_or_refused(reader):
    @settings(
        max_examples=20,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damage=damages(reader.files), summed=st.booleans())
    def check(damage, summed):
        reader.check(damage, summed=summed)

    check()


@pytest.mark.parametrize(("name", "file", "before", "after"), FINDINGS)
def test_what_fuzzing_found(name, file, before, after):
    with fuzzed(name) as one:
        content = one.files[file]
        assert before in content
        assert one.check(Damage(file, content.replace(before, after)), summed=True) is not None


@pytest.mark.parametrize(("name", "file", "before", "after"), READ_ANYWAY)
def test_what_is_read_anyway(name, file, before, after):
    with fuzzed(name) as one:
        content = one.files[file]
        assert before in content
        assert one.check(Damage(file, content.replace(before, after)), summed=True) is None


def test_labels_with_thousands_of_digits_are_sorted_by_value():
    """Python makes no int of them."""
    assert sort_naturally(["a" + "9" * 5000, "a10", "a9"])[:2] == ("a9", "a10")


def test_checksums_name_files_of_their_folder_alone():
    with fuzzed("checkpoint") as one:
        content = one.files["step-00000007/checksums.json"]
        content = content.replace(b'"state.json"', b'"/dev/zero": "", "state.json"')
        error = one.check(Damage("step-00000007/checksums.json", content), summed=False)
        assert "damaged" in str(error)


def test_a_copy_of_a_checkpoint_is_none_of_the_run():
    with fuzzed("unfinished-run") as one:
        (checkpoint,) = (one.folder / "m" / "checkpoints").iterdir()
        shutil.copytree(checkpoint, checkpoint.with_name(f"{checkpoint.name}.bak"))
        assert one.check(Damage("m/run.json", one.files["m/run.json"]), summed=False) is None


def test_layers_of_a_configuration_are_not_listed_before_they_are_counted():
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        from_hugging_face({"model_type": "modernbert", "num_hidden_layers": 2**32, **_WIDTHS}, {})


_WIDTHS = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
