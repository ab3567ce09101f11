"""T5 and BART from raw text: trained, resumed, asked, and taken to Hugging Face."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

import trivium
from trivium.errors import RecipeError
from trivium.train.run import RunFolder
from trivium.workflows.pretrain import pretrain

transformers = pytest.importorskip("transformers")

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "dogs", "ran", "over"]
NAMES = ["t5-tiny", "bart-tiny"]
THEIRS = {"t5-tiny": "T5ForConditionalGeneration", "bart-tiny": "BartForConditionalGeneration"}
STEPS = 24


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences in which every word but the first follows from the one before it."""
    chance = random.Random(7)

    def sentence() -> str:
        start, length = chance.randrange(len(WORDS)), chance.randint(5, 15)
        return " ".join(WORDS[(start + 5 * step) % len(WORDS)] for step in range(length)) + "."

    documents = ["\n".join(sentence() for _ in range(chance.randint(2, 9))) for _ in range(200)]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(documents))
    return path


def settings(steps: int = STEPS, **data: object) -> dict[str, object]:
    return {
        "model": {"dropout": 0.1},
        "tokenizer": {"vocab_size": 300},
        "data": {"length": 32, **data},
        "train": {
            "steps": steps,
            "batch_tokens": 32 * 7,
            "micro_batch": 3,
            "log_every": 3,
            "eval_every": 8,
            "save_every": 12,
        },
    }


@pytest.fixture(scope="module")
def runs(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("runs")
    return {name: pretrain(name, data=text, out=root / name, changes=settings()) for name in NAMES}


def losses(run: RunFolder) -> list[float]:
    return [record["valid_loss"] for record in run.read_metrics() if "valid_loss" in record]


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_and_shows_what_it_repairs(name: str, runs: dict[str, RunFolder]) -> None:
    run = runs[name]
    assert losses(run)[-1] < losses(run)[0] - 0.1
    facts = run.read_facts()
    gap = "<extra_id_0>" if name == "t5-tiny" else "<mask>"
    assert len(facts["samples"]) == 4
    assert all(sample["prompt"].count(gap) == 1 for sample in facts["samples"])
    kind = {"t5-tiny": "unigram", "bart-tiny": "byte-bpe"}[name]
    assert facts["tokenizer_kind"] == kind
    assert run.report.is_file()
    assert not (run.path / "baselines.json").exists()


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_writes(name: str, runs: dict[str, RunFolder]) -> None:
    model = trivium.load(runs[name].path)
    assert "generate" in model.verbs
    assert model.tokenizer is not None
    start = model.tokenizer.token_to_id("<pad>" if name == "t5-tiny" else "</s>")
    assert model.settings.decoder_start == (start,)
    prompts = ["the dogs", "seven grey cats sat on"]
    together = model.generate(prompts, max_new_tokens=9, temperature=0.0)
    assert together == [model.generate(p, max_new_tokens=9, temperature=0.0) for p in prompts]
    checkpoint = trivium.load(runs[name].checkpoints / f"step-{STEPS:08}")
    assert checkpoint.settings == model.settings


@pytest.mark.parametrize("name", NAMES)
def test_resumed_equals_uninterrupted(
    name: str, runs: dict[str, RunFolder], text: Path, tmp_path: Path
) -> None:
    def lasting(run: RunFolder) -> list[dict[str, float]]:
        clocks = ("seconds", "tokens_per_second")
        return [{k: v for k, v in one.items() if k not in clocks} for one in run.read_metrics()]

    run = pretrain(name, data=text, out=tmp_path / "run", changes=settings())
    for checkpoint in sorted(run.checkpoints.iterdir())[1:]:
        # As if the run had died after its first checkpoint that is still there.
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    run.weights.unlink()
    again = pretrain(name, out=run.path, resume=True)
    assert lasting(again) == lasting(runs[name])
    assert again.weights.read_bytes() == runs[name].weights.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_it_with_equal_logits(
    name: str, runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    model = trivium.load(runs[name].path, device="cpu")
    assert model.tokenizer is not None
    model.save_hf(tmp_path / "hf")
    theirs = getattr(transformers, THEIRS[name]).from_pretrained(tmp_path / "hf").eval()
    vocabulary, generator = model.tokenizer.vocab_size, torch.Generator().manual_seed(0)
    source = torch.randint(0, vocabulary, (3, 13), generator=generator)
    target = torch.randint(0, vocabulary, (3, 11), generator=generator)
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
    found = model.logits(source, decoder_input_ids=target)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    start = model.settings.decoder_start[0]
    assert theirs.config.decoder_start_token_id == start
    assert theirs.generation_config.decoder_start_token_id == start
    assert theirs.generation_config.eos_token_id == model.tokenizer.eos_id
    again = trivium.load(tmp_path / "hf")
    prompt = "seven grey dogs ran"
    wanted = model.generate(prompt, max_new_tokens=9, temperature=0.0)
    assert again.generate(prompt, max_new_tokens=9, temperature=0.0) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_training_goes_on_from_a_run(
    name: str, runs: dict[str, RunFolder], text: Path, tmp_path: Path
) -> None:
    model = trivium.load(runs[name].path)
    model.save_hf(tmp_path / "hf")
    run = pretrain(tmp_path / "hf", data=text, out=tmp_path / "run", changes=settings(8))
    assert losses(run)[-1] < losses(runs[name])[0]
    assert trivium.load(run.path).settings.decoder_start == model.settings.decoder_start


@pytest.mark.parametrize("name", NAMES)
def test_one_row_a_document(name: str, text: Path, tmp_path: Path) -> None:
    changes = settings(4, mode="truncate")
    run = pretrain(name, data=text, out=tmp_path / "run", changes=changes)
    assert math.isfinite(losses(run)[-1])


def test_models_for_translation_train_where_it_is_asked_for(text: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"objective\.kind"):
        pretrain("marian-tiny", data=text, out=tmp_path / "run", changes=settings(4))
    assert not (tmp_path / "run").exists()
    for name, kind in (("marian-tiny", "denoising"), ("transformer-tiny", "span-corruption")):
        changes = settings(4) | {"objective": {"kind": kind}}
        run = pretrain(name, data=text, out=tmp_path / name, changes=changes)
        assert math.isfinite(losses(run)[-1])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt2-tiny", {"objective": {"kind": "denoising"}}, "belong together"),
        ("t5-tiny", {"objective": {"kind": "causal"}}, "belong together"),
        ("t5-tiny", {"data": {"length": 32, "separate_documents": True}}, "truncate"),
        ("t5-tiny", {"data": {"length": 4096}}, "sentinels"),
        ("t5-tiny", {"tokenizer": {"kind": "wordpiece", "special_tokens": ["[UNK]"]}}, "padding"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, changes: dict[str, object], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=message):
        pretrain(name, data=text, out=tmp_path / "run", changes=settings(4) | changes)
