"""Every objective, and mixtures of them, from raw text through `pretrain`."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import trivium
from trivium.data import Shards
from trivium.errors import RecipeError
from trivium.train.recipe import load_recipe
from trivium.train.run import RunFolder
from trivium.workflows.pretrain import pretrain

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "dogs", "ran", "over"]
STEPS, KEPT, LENGTH, ROWS = 8, 4, 24, 7
MIXED_ENCODER = {
    "mix": [
        {"kind": "masked", "max_span": 3},
        {"kind": "masked", "max_span": 4, "span_lengths": "geometric", "whole_words": True},
        {"kind": "masked+nsp", "share": 2.0},
    ]
}
UL2 = {
    "mix": [
        {"kind": "span-corruption", "share": 2.0},
        {"kind": "span-corruption", "probability": 0.5, "mean_span": 32.0},
        {"kind": "prefix-lm"},
    ]
}
NOISES = {
    "kind": "denoising",
    "probability": 0.0,
    "mask_tokens": 0.2,
    "delete_tokens": 0.1,
    "rotate_documents": 0.5,
}
CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "spans": ("bert-tiny", {"max_span": 3, "whole_words": True}, set()),
    "nsp": ("bert-tiny", {"kind": "masked+nsp"}, {"mlm", "nsp"}),
    "order": ("albert-tiny", {"kind": "masked+order"}, {"mlm", "order"}),
    "nsp without a head": ("modernbert-tiny", {"kind": "masked+nsp"}, {"mlm", "nsp"}),
    "one token type": ("roberta-tiny", {"kind": "masked+order"}, {"mlm", "order"}),
    "replaced": ("electra-tiny", {}, {"generator", "discriminator"}),
    "context": ("gpt2-tiny", {"kind": "causal", "context": 5}, set()),
    "context of states": ("lstm-tiny", {"kind": "causal", "context": 5}, set()),
    "prefix": ("gpt2-tiny", {"kind": "prefix-lm"}, set()),
    "prefix pairs": ("t5-tiny", {"kind": "prefix-lm"}, set()),
    "prefix pairs of bart": ("bart-tiny", {"kind": "prefix-lm"}, set()),
    "noises": ("bart-tiny", NOISES, set()),
    "mixed encoder": ("bert-tiny", MIXED_ENCODER, {"mlm", "nsp"}),
    "mixed encoder-decoder": ("t5-tiny", UL2, set()),
    "mixed decoder": (
        "gpt2-tiny",
        {"mix": [{"kind": "causal"}, {"kind": "causal", "context": 3}, {"kind": "prefix-lm"}]},
        set(),
    ),
}
GROUPS = {
    "mixed encoder": {"masked-1", "masked-2", "masked+nsp"},
    "mixed encoder-decoder": {"span-corruption-1", "span-corruption-2", "prefix-lm"},
    "mixed decoder": {"causal-1", "causal-2", "prefix-lm"},
}
WITH_PREFIX_PAIRS = ("prefix pairs", "prefix pairs of bart")


def write_text(
    path: Path, *, seed: int = 7, documents: int = 120, words: list[str] = WORDS
) -> Path:
    """Sentences in which every word but the first follows from the one before it."""
    chance = random.Random(seed)

    def sentence() -> str:
        start, length = chance.randrange(len(words)), chance.randint(5, 15)
        return " ".join(words[(start + 5 * step) % len(words)] for step in range(length)) + "."

    texts = ("\n".join(sentence() for _ in range(chance.randint(2, 9))) for _ in range(documents))
    path.write_text("\n\n".join(texts))
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "corpus.txt")


def settings(objective: dict[str, Any], **train: Any) -> dict[str, Any]:
    return {
        "model": {"dropout": 0.1},
        "tokenizer": {"vocab_size": 300},
        "data": {"length": LENGTH},
        "objective": objective,
        "train": {
            "steps": STEPS,
            "batch_tokens": LENGTH * ROWS,
            "micro_batch": 3,
            "log_every": 3,
            "eval_every": 4,
            "eval_tokens": 20 * LENGTH,
            "save_every": KEPT,
            **train,
        },
    }


@pytest.fixture(scope="module")
def runs(text: Path, tmp_path_factory: pytest.TempPathFactory):
    root, made = tmp_path_factory.mktemp("runs"), dict[str, RunFolder]()

    def run(case: str) -> RunFolder:
        if case not in made:
            preset, objective, _ = CASES[case]
            out = root / case.replace(" ", "-")
            made[case] = pretrain(preset, data=text, out=out, changes=settings(objective))
        return made[case]

    return run


def lasting(run: RunFolder) -> list[dict[str, float]]:
    clocks = ("seconds", "tokens_per_second")
    return [{k: v for k, v in one.items() if k not in clocks} for one in run.read_metrics()]


def resumed(run: RunFolder, folder: Path) -> RunFolder:
    """A copy of a run that died after its first checkpoint and went on from there."""
    shutil.copytree(run.path, folder)
    copy = RunFolder(folder)
    shutil.rmtree(copy.checkpoints / f"step-{STEPS:08}")
    copy.weights.unlink()
    shutil.rmtree(folder / "generator", ignore_errors=True)
    return pretrain("", out=folder, resume=True)


@pytest.mark.parametrize("case", CASES)
def test_it_trains_and_writes_every_loss(case: str, runs) -> None:
    run, terms, groups = runs(case), CASES[case][2], GROUPS.get(case, set())
    records = run.read_metrics()
    trained = [one for one in records if "train_loss" in one]
    held = [one for one in records if "valid_loss" in one]
    assert [one["step"] for one in trained] == [3, 6, 8]
    assert [one["step"] for one in held] == [4, 8]
    for one in trained:
        assert {key for key in one if key.startswith("train_")} == {
            f"train_{name}" for name in {"loss", *terms}
        }
    for one in held:
        assert {key for key in one if key.startswith("valid_")} == {
            f"valid_{name}" for name in {"loss", *terms, *groups}
        }
    assert all(math.isfinite(value) for one in records for value in one.values())
    assert held[1]["valid_loss"] < held[0]["valid_loss"] + 0.1
    report = run.report.read_text()
    for name in terms | groups:
        assert f"validation, {name}" in report
    assert len(run.read_facts()["samples"]) == 4
    assert load_recipe(run.recipe).to_toml() == run.recipe.read_text()


@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_uninterrupted(case: str, runs, tmp_path: Path) -> None:
    run = runs(case)
    again = resumed(run, tmp_path / "run")
    assert lasting(again) == lasting(run)
    assert again.weights.read_bytes() == run.weights.read_bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        file = f"checkpoints/step-{STEPS:08}/{name}"
        assert (again.path / file).read_bytes() == (run.path / file).read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_it_loads_and_so_does_its_checkpoint(case: str, runs) -> None:
    run = runs(case)
    model = trivium.load(run.path, device="cpu")
    checkpoint = trivium.load(run.checkpoints / f"step-{STEPS:08}", device="cpu")
    for one, other in zip(model.module.parameters(), checkpoint.module.parameters(), strict=True):
        assert torch.equal(one, other)
    assert {head.kind for head in model.spec.heads} >= {
        "nsp": {"mlm", "nsp"},
        "replaced": {"replaced-token"},
    }.get(case, set())
    if model.spec.family == "encoder-decoder":
        start = "</s>" if model.spec.embedding.positions else "<pad>"
        assert model.tokenizer is not None
        assert model.settings.decoder_start == (model.tokenizer.token_to_id(start),)
    if case in WITH_PREFIX_PAIRS:
        assert isinstance(model.generate("the cat", max_new_tokens=5, temperature=0.0), str)


def test_a_generator_stands_beside_its_discriminator(runs) -> None:
    run = runs("replaced")
    model, generator = trivium.load(run.path), trivium.load(run.path / "generator")
    assert model.spec.heads[0].kind != generator.spec.heads[0].kind
    assert len(generator.fill_mask("the cat sat on a [MASK].", top_k=3)) == 3
    assert generator.spec.d_model == model.spec.d_model // 4
    shared = model.module.tokens.weight
    assert torch.equal(generator.module.tokens.weight, shared)
    ids = torch.randint(0, 60, (3, 11))
    assert model.logits(ids).shape == (3, 11, 1)
    facts = run.read_facts()
    assert facts["generator_parameters"] == generator.spec.num_parameters
    assert facts["unigram_loss"] is None
    assert all("replaced?" in sample["output"] for sample in facts["samples"])


def test_transformers_loads_the_discriminator_and_the_generator(runs, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run = runs("replaced")
    ids = torch.randint(5, 60, (3, 11), generator=torch.Generator().manual_seed(0))
    for path, name in (
        (run.path, "ElectraForPreTraining"),
        (run.path / "generator", "ElectraForMaskedLM"),
    ):
        model = trivium.load(path, device="cpu")
        model.save_hf(tmp_path / name)
        theirs = getattr(transformers, name).from_pretrained(tmp_path / name).eval()
        with torch.no_grad():
            expected = theirs(input_ids=ids).logits
        found = model.logits(ids).squeeze(-1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_training_goes_on_from_a_discriminator_and_its_generator(
    runs, text: Path, tmp_path: Path
) -> None:
    before = runs("replaced")
    run = pretrain(before.path, data=text, out=tmp_path / "run", changes=settings({}, steps=4))
    first = next(one["valid_loss"] for one in before.read_metrics() if "valid_loss" in one)
    assert run.read_metrics()[-1]["valid_loss"] < first
    assert trivium.load(run.path / "generator").spec.d_model == 32


def test_a_model_that_goes_on_gets_the_head_that_it_lacks(runs, text: Path, tmp_path: Path) -> None:
    changes = settings({"kind": "masked+nsp"}, steps=2)
    run = pretrain(runs("spans").path, data=text, out=tmp_path / "run", changes=changes)
    assert {head.kind for head in trivium.load(run.path).spec.heads} == {"mlm", "nsp"}


def mix(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Two sources, the first much larger, with words of their own."""
    large = write_text(tmp_path / "large.txt", documents=160)
    small = write_text(tmp_path / "small.txt", seed=3, documents=40, words=[w[::-1] for w in WORDS])
    sources = [{"paths": [str(large)]}, {"paths": [str(small)]}]
    changes = settings({"kind": "causal"})
    changes["data"] |= {"mix": sources, **more}
    return changes


def test_sources_have_shards_of_their_own_and_one_tokenizer(tmp_path: Path) -> None:
    run = pretrain("gpt2-tiny", out=tmp_path / "run", changes=mix(tmp_path))
    assert sorted(path.name for path in run.shards.iterdir()) == ["large", "small"]
    shards = [Shards.open(run.shards / name) for name in ("large", "small")]
    assert len({one.manifest.tokenizer_sha256 for one in shards}) == 1
    tokenizer = trivium.load(run.path).tokenizer
    assert tokenizer is not None
    assert len(tokenizer.encode(" tac eht").ids) < len(" tac eht")
    held = [one for one in run.read_metrics() if "valid_loss" in one]
    for one in held:
        low, high = sorted((one["valid_large"], one["valid_small"]))
        assert low < one["valid_loss"] < high
    recipe = load_recipe(run.recipe)
    assert recipe.data.mix is not None
    assert [source.name for source in recipe.data.mix] == ["large", "small"]
    again = resumed(run, tmp_path / "again")
    assert lasting(again) == lasting(run)
    assert again.weights.read_bytes() == run.weights.read_bytes()
    facts = run.read_facts()
    tokens = sum(one.manifest.splits["train"].tokens for one in shards)
    assert facts["train_tokens"] == tokens
    # Told apart they are told better than as one text of two languages.
    assert facts["unigram_loss"] > max(one.unigram_loss() for one in shards)


def test_sources_and_objectives_mix(tmp_path: Path) -> None:
    changes = mix(tmp_path, temperature=2.0)
    changes["objective"] = MIXED_ENCODER
    run = pretrain("bert-tiny", out=tmp_path / "run", changes=changes)
    last = [one for one in run.read_metrics() if "valid_loss" in one][-1]
    names = {"loss", "mlm", "nsp", "masked-1", "masked-2", "masked+nsp", "large", "small"}
    assert {key.removeprefix("valid_") for key in last if key.startswith("valid_")} == names
    again = resumed(run, tmp_path / "again")
    assert lasting(again) == lasting(run)
    assert again.weights.read_bytes() == run.weights.read_bytes()


def test_prepared_shards_mix_with_text(tmp_path: Path) -> None:
    changes = mix(tmp_path)
    run = pretrain("gpt2-tiny", out=tmp_path / "run", changes=changes)
    changes["data"]["mix"][1] = {"paths": [str(run.shards / "small")], "weight": 2.0}
    changes["data"]["mix"][0]["weight"] = 1.0
    again = pretrain("gpt2-tiny", out=tmp_path / "again", changes=changes)
    assert [path.name for path in again.shards.iterdir()] == ["large"]
    assert (again.path / "tokenizer.json").read_text() == run.tokenizer.read_text()
    other = pretrain(
        "gpt2-tiny",
        data=tmp_path / "large.txt",
        out=tmp_path / "other",
        changes=settings({"kind": "causal"}, steps=1),
    )
    changes["data"]["mix"][0] = {"paths": [str(other.shards)], "weight": 1.0}
    with pytest.raises(RecipeError, match="another tokenizer"):
        pretrain("gpt2-tiny", out=tmp_path / "wrong", changes=changes)


def test_a_source_with_held_out_text_of_its_own(tmp_path: Path) -> None:
    changes = mix(tmp_path, validation=0.0)
    held = write_text(tmp_path / "held.txt", seed=9, documents=20)
    changes["data"]["mix"][0]["validation"] = str(held)
    run = pretrain("gpt2-tiny", out=tmp_path / "run", changes=changes)
    last = [one for one in run.read_metrics() if "valid_loss" in one][-1]
    assert last["valid_loss"] == pytest.approx(last["valid_large"])
    assert "valid_small" not in last


def test_weights_decide_what_the_tokenizer_learns(tmp_path: Path) -> None:
    found = []
    for weights in ((1.0, 1000.0), (1000.0, 1.0)):
        changes = mix(tmp_path)
        for source, weight in zip(changes["data"]["mix"], weights, strict=True):
            source["weight"] = weight
        changes["tokenizer"] = {"vocab_size": 270}
        changes["train"]["steps"] = 1
        run = pretrain("gpt2-tiny", out=tmp_path / f"{weights[0]}", changes=changes)
        tokenizer = trivium.load(run.path).tokenizer
        assert tokenizer is not None
        found.append(
            [len(tokenizer.encode(" ".join(w)).ids) for w in (WORDS, (x[::-1] for x in WORDS))]
        )
    assert found[0][1] < found[0][0]
    assert found[1][0] < found[1][1]


def test_a_plain_run_writes_what_it_did(runs) -> None:
    run = runs("prefix")
    recipe = run.recipe.read_text()
    assert "mix" not in recipe
    assert "temperature" not in recipe
    assert (run.shards / "manifest.json").is_file()
    assert "loss_terms" not in run.read_facts()
    assert not (run.path / "generator").exists()


@pytest.mark.parametrize(
    ("preset", "objective", "message"),
    [
        ("gpt2-tiny", {"kind": "masked+nsp"}, "encoders"),
        ("gpt2-tiny", {"kind": "replaced-token"}, "encoders"),
        ("bilstm-tiny", {"kind": "masked+order"}, "encoders"),
        ("t5-tiny", {"kind": "replaced-token"}, "belong together"),
        ("bert-tiny", {"kind": "prefix-lm"}, "head of kind lm"),
        ("bert-tiny", {"kind": "masked", "context": 5}, r'objective.context belongs to .*"causal"'),
        ("bart-tiny", {"kind": "denoising", "mean_span": 40.0}, "mean_span"),
        (
            "bert-tiny",
            {"mix": [{"kind": "masked"}, {"kind": "replaced-token"}]},
            "cannot be mixed",
        ),
        ("t5-tiny", {"mix": [{"kind": "prefix-lm"}, {"kind": "causal"}]}, "belong together"),
        ("gpt2-tiny", {"mix": [{"kind": "causal"}, {"kind": "masked"}]}, "mask"),
    ],
)
def test_what_does_not_fit_is_refused(
    preset: str, objective: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=message):
        pretrain(preset, data=text, out=tmp_path / "run", changes=settings(objective))
    assert not (tmp_path / "run").exists()


def test_pairs_that_cannot_be_made_name_the_key(tmp_path: Path) -> None:
    one = tmp_path / "one.txt"
    one.write_text(" ".join(WORDS * 40))
    changes = settings({"kind": "masked+nsp"})
    changes["data"]["validation"] = 0.0
    with pytest.raises(RecipeError, match=r'objective\.kind = "masked\+nsp".*only one'):
        pretrain("bert-tiny", data=one, out=tmp_path / "run", changes=changes)
    changes["data"]["length"] = 4
    with pytest.raises(RecipeError, match=r"data\.length = 4"):
        pretrain("bert-tiny", data=one, out=tmp_path / "run", changes=changes)


def test_text_and_sources_are_not_given_at_once(text: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"\[\[data\.mix\]\]"):
        pretrain("gpt2-tiny", data=text, out=tmp_path / "run", changes=mix(tmp_path))
    changes = mix(tmp_path)
    changes["data"]["mix"][0]["name"] = "causal"
    with pytest.raises(RecipeError, match="causal"):
        pretrain("gpt2-tiny", out=tmp_path / "run", changes=changes)


def test_a_resumed_run_cannot_change_its_mix(runs, tmp_path: Path) -> None:
    run = runs("mixed decoder")
    mixed = json.dumps([{"kind": "causal"}]).replace(":", " =")
    with pytest.raises(RecipeError, match="cannot change"):
        pretrain("", out=run.path, resume=True, changes=[f"objective.mix={mixed}"])
