"""Sources and targets: translation, tasks mixed by prefixes, summaries."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from labelled_examples import (
    NUMBERS,
    dictionary,
    figures,
    filler,
    lasting,
    taught,
    with_word,
    write_lines,
)

import trivium
from trivium.errors import RecipeError
from trivium.text import Tokenizer

WORDS = "tokenizer.kind=whitespace"


@pytest.mark.parametrize(
    ("preset", "steps"), [("transformer-tiny", 70), ("marian-tiny", 70), ("t5-tiny", 60)]
)
def test_a_language_is_learned(preset: str, steps: int, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "pairs.tsv", ["\t".join(pair) for pair in dictionary(400)])
    run = taught(
        *("translation", preset, data, tmp_path / "run"),
        *(WORDS, "train.batch=48", "task.smoothing=0.1", "task.beams=2"),
        steps=steps,
    )
    told = json.loads((run.path / "evaluation.json").read_text(encoding="utf-8"))
    assert told["metric"] == "bleu"
    assert told["score"] > 50.0
    assert "|tok:13a|" in told["signatures"][0]
    said = trivium.load(run.path).translate("the old man left")
    assert len({*said.split()} & {"theo", "oldo", "mano", "lefto"}) >= 3


def test_two_aligned_files_and_a_tokenizer_there_is(tmp_path: Path) -> None:
    pairs = dictionary(120)
    source = write_lines(tmp_path / "text.en", [one for one, _ in pairs])
    target = write_lines(tmp_path / "text.xx", [other for _, other in pairs])
    special = ("<pad>", "</s>", "<unk>", "<s>")
    texts = [text for pair in pairs for text in pair]
    tokenizer = Tokenizer.train("bpe", texts=texts, vocab_size=150, special_tokens=special)
    tokenizer.save(tmp_path / "tokenizer.json")
    run = taught(
        *("translation", "transformer-tiny", [source, target], tmp_path / "run"),
        f"tokenizer.path={tmp_path / 'tokenizer.json'}",
        steps=2,
    )
    assert Tokenizer.load(run.tokenizer).fingerprint == tokenizer.fingerprint
    # Neither is cut, and what is held out is not learned.
    facts = run.read_facts()
    assert facts["train_examples"] + facts["valid_examples"] == 120


def numbers_named(count: int, language: int, seed: int) -> list[dict[str, str]]:
    """Sentences with one number; what is asked is its name, in one of two languages."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        word = chance.choice(NUMBERS[:5])
        found.append({"source": with_word(chance, word), "target": (word, f"{word}o")[language]})
    return found


def test_one_model_learns_two_tasks(tmp_path: Path) -> None:
    """The prefix alone says which."""
    first = write_lines(tmp_path / "first.jsonl", numbers_named(200, 0, seed=1))
    second = write_lines(tmp_path / "second.jsonl", numbers_named(200, 1, seed=1))
    run = taught(
        *("text-to-text", "t5-tiny", first, tmp_path / "run"),
        *(WORDS, 'task.prefix="name : "', "task.beams=1"),
        f'data.mix=[{{paths="{second}", prefix="other : "}}]',
        # Fewer than the examples of either task: both are looked at all the same.
        "train.eval_examples=8",
    )
    told = figures(run)
    assert told["exact_match (name)"] > 90.0
    assert told["exact_match (other)"] > 90.0
    assert {"valid_exact_match (name)", "valid_exact_match (other)"} <= lasting(run)[-1].keys()
    model = trivium.load(run.path)
    assert model.translate("name : the man saw three house") == "three"
    assert model.translate("other : the man saw three house") == "threeo"


def test_sources_of_a_mix_are_enough(tmp_path: Path) -> None:
    """Without further paths; files of their own to be judged by replace the fraction."""
    files = [
        write_lines(tmp_path / f"{n}.jsonl", numbers_named(40, n % 2, seed=n)) for n in range(3)
    ]
    sources = (
        f'{{paths="{files[0]}", prefix="name : ", validation="{files[2]}"}}, '
        f'{{paths="{files[1]}", prefix="other : "}}'
    )
    run = taught(
        "text-to-text", "t5-tiny", None, tmp_path / "run", WORDS, f"data.mix=[{sources}]", steps=2
    )
    facts = run.read_facts()
    assert (facts["train_examples"], facts["valid_examples"]) == (80, 40)
    with pytest.raises(RecipeError, match="mix means nothing to tagging"):
        taught("tagging", "bert-tiny", None, tmp_path / "tags", f"data.mix=[{sources}]")


def test_a_prefix_of_all_is_put_before_every_text(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "one.jsonl", numbers_named(60, 0, seed=2))
    run = taught(
        "text-to-text", "t5-tiny", data, tmp_path / "run", WORDS, 'task.prefix="name : "', steps=2
    )
    assert trivium.load(run.path).settings.task_options("text-to-text")["prefix"] == "name : "


def test_summaries_are_judged_by_rouge(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [
        {"document": f"{(word := chance.choice(NUMBERS[:4]))} {' '.join(filler(chance))}"}
        | {"summary": f"about {word}"}
        for _ in range(150)
    ]
    data = write_lines(tmp_path / "articles.jsonl", rows)
    run = taught(
        "summarization", "t5-tiny", data, tmp_path / "run", WORDS, "task.beams=1", steps=40
    )
    told = json.loads((run.path / "evaluation.json").read_text(encoding="utf-8"))
    assert told["metric"].startswith("rouge")
    assert {"rouge1", "rouge2", "rouge_l", "rouge_lsum"} <= told["figures"].keys()
    assert told["score"] > 60.0


def test_the_mean_of_checkpoints_is_taken_where_it_is_better(tmp_path: Path) -> None:
    """Its weights are those of the mean, and its score is what was measured."""
    data = write_lines(tmp_path / "pairs.tsv", ["\t".join(pair) for pair in dictionary(150)])
    run = taught(
        *("translation", "transformer-tiny", data, tmp_path / "run", WORDS, "task.beams=1"),
        *("train.average=3", "train.eval_every=6", "train.save_every=6", "train.batch=32"),
        "train.keep_checkpoints=1",
        steps=18,
    )
    from safetensors.torch import load_file

    steps = sorted((run.path / "checkpoints").glob("step-*"))
    assert [path.name for path in steps] == ["step-00000006", "step-00000012", "step-00000018"]
    ours, best = load_file(run.weights), load_file(run.checkpoints / "best.safetensors")
    parts = [load_file(path / "model.safetensors") for path in steps]
    mean = {name: sum(part[name].double() for part in parts) / 3 for name in ours}
    is_mean = all((ours[name].double() - mean[name]).abs().max() < 1e-6 for name in ours)
    is_best = all((ours[name] == best[name]).all() for name in ours)
    assert is_mean != is_best


def test_decoders_and_wrong_sources_are_refused(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "pairs.tsv", ["a\tb", "c\td", "e\tf"])
    out = tmp_path / "run"
    with pytest.raises(RecipeError, match="a decoder is taught with lm"):
        taught("translation", "gpt2-tiny", data, out)
    with pytest.raises(RecipeError, match=r"data\.mix: unknown \['path'\]"):
        taught("translation", "t5-tiny", data, out, 'data.mix=[{path="x"}]')
    assert not out.exists()


def test_sources_and_targets_with_a_tokenizer_each(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "pairs.tsv", ["\t".join(pair) for pair in dictionary(400)])
    run = taught(
        *("translation", "transformer-tiny", data, tmp_path / "run"),
        *(WORDS, "tokenizer.separate=true", "train.batch=48", "task.beams=2"),
        steps=70,
    )
    model = trivium.load(run.path)
    sources, targets = model.source_tokenizer, model.text_tokenizer
    assert sources.token_to_id("man") is not None
    assert targets.token_to_id("man") is None
    assert targets.token_to_id("mano") is not None
    assert model.spec.source_vocab_size is not None
    assert json.loads((run.path / "evaluation.json").read_text(encoding="utf-8"))["score"] > 50.0
    copy = model.save(tmp_path / "copy")
    assert trivium.load(copy).translate("the man left") == model.translate("the man left")
    checkpoint = next((run.path / "checkpoints").glob("step-*"))
    assert trivium.load(checkpoint).own_source_tokenizer is not None
    with pytest.raises(trivium.TriviumError, match="tokenizers of their own"):
        model.save_hf(tmp_path / "theirs")
