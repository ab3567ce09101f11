"""`LanguageModel` and `load`: the public face, folders on the disk and what can be wrong there."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from shaken_models import TEXT, shaken

import trivium
from trivium.errors import CheckpointError, SpecError, TokenizerError, TriviumError
from trivium.inference import Fill
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer


@pytest.fixture(scope="module")
def wordpiece():
    return Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=97, progress=False)


@pytest.fixture(scope="module")
def byte_bpe():
    return Tokenizer.train("byte-bpe", texts=TEXT * 5, vocab_size=300, progress=False)


@pytest.fixture(scope="module")
def encoder(wordpiece):
    spec = presets["bert-tiny"].replace(vocab_size=128)
    return LanguageModel(spec, shaken(spec), wordpiece)


@pytest.fixture(scope="module")
def decoder(byte_bpe):
    spec = presets["gpt2-tiny"].replace(vocab_size=320)
    return LanguageModel(spec, shaken(spec), byte_bpe)


@pytest.fixture
def folder(encoder, tmp_path):
    return encoder.save(tmp_path / "model")


def checkpoint(model: LanguageModel, run, step: int):
    path = model.save(run / "checkpoints" / f"step-{step:08}")
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    (path / "checksums.json").write_text(json.dumps(sums))
    return path


def flip_byte(file) -> None:
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)


def test_round_trip(encoder, folder):
    found = load(folder)
    assert found.spec == encoder.spec
    assert found.tokenizer is not None
    assert found.tokenizer.fingerprint == encoder.tokenizer.fingerprint
    for name, weight in encoder.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], weight)
    ids = [[5, 7, 11], [13, 17, 19]]
    assert torch.equal(found.logits(ids), encoder.logits(ids))
    ours, theirs = (model.fill_mask("The [MASK] was") for model in (found, encoder))
    assert [fill.token for fill in ours] == [fill.token for fill in theirs]
    assert not found.module.training
    assert {file.name for file in folder.iterdir()} == {
        "model.safetensors",
        "spec.json",
        "tokenizer.json",
    }


def test_weights_are_mapped_and_not_copied(folder):
    found = load(folder)
    (folder / "model.safetensors").unlink()  # what is mapped stays readable
    assert found.logits([[3, 5]]).isfinite().all()
    weight = found.module.tokens.weight
    with torch.no_grad():
        weight[0] += 1.0  # and can be written: training may go on from here
    assert weight.requires_grad


def test_dtype_and_device(folder):
    found = load(folder, device="cpu", dtype=torch.bfloat16)
    assert found.module.dtype == torch.bfloat16
    assert found.logits([[3, 5]]).dtype == torch.float32
    with pytest.raises(TriviumError, match="device 'nonsense'"):
        load(folder, device="nonsense")


def test_logits_take_lists_arrays_and_tensors(encoder):
    rows = [[5, 7, 11], [13, 17, 19]]
    wanted = encoder.logits(torch.tensor(rows))
    assert wanted.shape == (2, 3, 128)
    assert torch.equal(encoder.logits(rows), wanted)
    assert torch.equal(encoder.logits(np.array(rows, dtype=np.uint16)), wanted)
    types = encoder.logits(rows, token_type_ids=[[0, 1, 1]] * 2)
    assert not torch.allclose(types, wanted)
    padded = encoder.logits([[5, 7, 11, 0, 0]], attention_mask=[[1, 1, 1, 0, 0]])
    torch.testing.assert_close(padded[:, :3], wanted[:1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ([[5, 128]], "has 128, but this model takes 0 to 127"),
        ([[5, -1]], "has -1"),
        ([5, 7], r"must be \[B, T\]"),
        ([[]], "not empty|whole numbers"),
        ([[5], [7, 11]], "equal length"),
        ([[0.5]], "whole numbers"),
        ([[3] * 513], "513 tokens.*end at 512"),
    ],
)
def test_logits_refuse(encoder, ids, what):
    with pytest.raises(SpecError, match=what):
        encoder.logits(ids)


def test_mask_of_another_shape(encoder):
    with pytest.raises(SpecError, match=r"attention_mask is \[1, 2\], but input_ids is \[1, 3\]"):
        encoder.logits([[3, 5, 7]], attention_mask=[[1, 1]])


def test_token_types_where_there_are_none(decoder):
    with pytest.raises(SpecError, match="token_type_ids"):
        decoder.logits([[3, 5]], token_type_ids=[[0, 0]])


def test_fill_mask_one_or_several(encoder):
    one = encoder.fill_mask("The [MASK] was cloudy.", top_k=3)
    assert len(one) == 3
    assert all(isinstance(fill, Fill) for fill in one)
    two = encoder.fill_mask("The [MASK] was [MASK].", top_k=3)
    assert [len(fills) for fills in two] == [3, 3]


def test_generate_reads_on_from_the_prompt(decoder):
    prompt = "The weather"
    text = decoder.generate(prompt, max_new_tokens=20, temperature=0)
    ids = decoder.tokenizer.encode(prompt).ids
    for _ in range(20):
        best = int(decoder.logits([ids])[0, -1, : decoder.tokenizer.vocab_size].argmax())
        if best == decoder.tokenizer.eos_id:
            break
        ids = (*ids, best)
    assert prompt + text == decoder.tokenizer.decode(ids)


def test_seeds(decoder):
    def sampled(seed):
        return decoder.generate("The", max_new_tokens=12, temperature=1.5, seed=seed)

    assert sampled(7) == sampled(7)
    assert sampled(7) != sampled(8)
    torch.manual_seed(0)
    assert sampled(None) != sampled(None)  # random, and not from torch's own state
    assert decoder.generate(["The", "The"], max_new_tokens=12, temperature=1.5, seed=7) == [
        sampled(7),
        sampled(8),
    ]


def test_several_prompts_equal_one_by_one(decoder):
    prompts = ["The weather was cloudy", "", "今天"]
    together = decoder.generate(prompts, max_new_tokens=15, temperature=0)
    assert together == [decoder.generate(p, max_new_tokens=15, temperature=0) for p in prompts]


def test_several_prompts_at_the_end_of_the_positions(decoder):
    long = "The weather was cloudy yesterday. " * 300
    ids = decoder.tokenizer.encode(long).ids[:1020]
    prompts = [decoder.tokenizer.decode(ids), "The"]
    together = decoder.generate(prompts, max_new_tokens=30, temperature=0)
    assert together == [decoder.generate(p, max_new_tokens=30, temperature=0) for p in prompts]


def test_stream_is_the_same_text_in_pieces(decoder):
    settings = {"max_new_tokens": 50, "temperature": 1.2, "top_p": 0.99, "seed": 3}
    pieces = list(decoder.stream("The weather", **settings))
    assert "".join(pieces) == decoder.generate("The weather", **settings)
    assert len(pieces) > 5


def test_prompt_longer_than_the_positions(decoder):
    with pytest.raises(SpecError, match=r"tokens.*end at 1024"):
        decoder.generate(["short", "The weather was cloudy yesterday. " * 300])
    with pytest.raises(SpecError, match=r"tokens.*end at 1024"):
        decoder.stream("The weather was cloudy yesterday. " * 300)


def test_score_of_a_decoder(decoder):
    eos, text = decoder.tokenizer.eos_id, "The weather was cloudy. " * 60
    ids = [eos, *decoder.tokenizer.encode(text).ids]
    vocab_size = decoder.tokenizer.vocab_size
    scores = decoder.logits([ids])[0, :-1, :vocab_size].double().log_softmax(-1)
    wanted = sum(float(scores[i, index]) for i, index in enumerate(ids[1:]))
    assert len(ids) > 512
    assert decoder.score(text) == pytest.approx(wanted, rel=1e-5)
    assert decoder.score("") == 0.0


def test_score_of_an_encoder(encoder):
    assert encoder.score("The weather was cloudy") < 0.0
    assert encoder.score("") == 0.0


def test_wrong_verb(encoder, decoder):
    with pytest.raises(SpecError, match="an encoder and cannot generate; it has logits, fill_mask"):
        encoder.generate("The")
    with pytest.raises(SpecError, match="a decoder and cannot fill_mask; it has logits, generate"):
        decoder.fill_mask("The [MASK]")


def test_without_a_tokenizer(encoder, tmp_path):
    path = LanguageModel(encoder.spec, encoder.module).save(tmp_path / "bare")
    found = load(path)
    assert found.tokenizer is None
    assert torch.equal(found.logits([[3, 5]]), encoder.logits([[3, 5]]))
    with pytest.raises(TokenizerError, match=r"without a tokenizer.*tokenizer\.json"):
        found.fill_mask("The [MASK]")


def test_tokenizer_larger_than_the_model(encoder, byte_bpe):
    with pytest.raises(SpecError, match=r"300 ids, but the model only 128"):
        LanguageModel(encoder.spec, encoder.module, byte_bpe)


def test_run_in_progress_gives_its_last_good_checkpoint(encoder, tmp_path):
    other = LanguageModel(encoder.spec, build(encoder.spec, seed=5), encoder.tokenizer)
    checkpoint(encoder, tmp_path, 500)
    newest = checkpoint(other, tmp_path, 1000)
    ids = [[3, 5, 7]]
    assert torch.equal(load(tmp_path).logits(ids), other.logits(ids))
    assert torch.equal(load(tmp_path / "checkpoints").logits(ids), other.logits(ids))
    flip_byte(newest / "model.safetensors")
    with pytest.warns(UserWarning, match="step-00001000: model.safetensors does not match"):
        assert torch.equal(load(tmp_path).logits(ids), encoder.logits(ids))
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        load(newest)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000500")
    with (
        pytest.warns(UserWarning, match="does not match"),
        pytest.raises(CheckpointError, match="none of its 1 checkpoints"),
    ):
        load(tmp_path)


def test_checkpoint_without_checksums_is_not_whole(encoder, tmp_path):
    path = checkpoint(encoder, tmp_path, 500)
    (path / "checksums.json").unlink()
    with pytest.raises(CheckpointError, match=r"checksums\.json is missing"):
        load(path)


def test_the_finished_model_of_a_run_comes_first(encoder, tmp_path):
    other = LanguageModel(encoder.spec, build(encoder.spec, seed=5), encoder.tokenizer)
    checkpoint(other, tmp_path, 500)
    encoder.save(tmp_path)
    assert torch.equal(load(tmp_path).logits([[3, 5]]), encoder.logits([[3, 5]]))


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is a file, not a folder"):
        load(tmp_path / "file")
    with pytest.raises(CheckpointError, match="no model inside"):
        load(tmp_path)


def test_weights_that_do_not_match_the_spec(encoder, folder):
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = "encoder.layers.0.attention.query.weight"
    save_file({**weights, name: torch.zeros(64, 128)}, file)
    with pytest.raises(CheckpointError, match=rf"{name} is \[64, 128\], but .* says \[128, 128\]"):
        load(folder)
    save_file({key: value for key, value in weights.items() if key != name}, file)
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load(folder)
    save_file({**weights, "extra": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match="extra is not part"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 3001])
def test_truncated_weights(folder, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "missing"),
        ("{", "cannot be read"),
        ("[]", "not the description"),
        ('{"architecture": "x"}', "unknown format"),
    ],
)
def test_bad_spec(folder, content, what):
    file = folder / "spec.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=what):
        load(folder)


def test_saving_where_nothing_can_be_written(encoder, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be saved"):
        encoder.save(tmp_path / "file" / "model")


@pytest.mark.parametrize("name", trivium.__all__)
def test_public_names_resolve(name):
    assert getattr(trivium, name) is not None
    assert name in dir(trivium)


def test_unknown_public_name():
    with pytest.raises(AttributeError, match='"presets"'):
        trivium.preset  # noqa: B018


def test_presets_is_the_mapping_whatever_was_imported():
    program = (
        "import trivium, trivium.presets, sys;"
        "from trivium.presets import find;"
        "assert trivium.presets['gpt2'].d_model == 768;"
        "assert trivium.__version__;"
        "assert 'torch' not in sys.modules;"
        "assert trivium.Tokenizer.__name__ == 'Tokenizer';"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
