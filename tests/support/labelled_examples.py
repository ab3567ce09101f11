"""Labelled examples that the smallest models learn in seconds, and how they are taught them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trivium.train.run import RunFolder
from trivium.workflows.finetune import finetune

FILLERS = ("the", "man", "saw", "a", "house", "near", "our", "old", "town", "then", "left", "it")
SENSES = {"warm": ("red", "orange"), "cold": ("blue", "green"), "plain": ("grey", "white")}
PEOPLE, PLACES = ("Ada", "Grace", "Alan", "Emmy"), ("London", "Paris", "Oslo", "Rome")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    """JSON lines, or plain lines of texts."""
    lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def filler(chance: random.Random, low: int = 3, high: int = 7) -> list[str]:
    """Words that say nothing."""
    return chance.choices(FILLERS, k=chance.randint(low, high))


def with_word(chance: random.Random, word: str) -> str:
    """A sentence with a word somewhere in it."""
    words = filler(chance)
    words.insert(chance.randrange(len(words) + 1), word)
    return " ".join(words)


def classes(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences with one colour, which decides the class."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        label = tuple(SENSES)[number % len(SENSES)]
        found.append({"text": with_word(chance, chance.choice(SENSES[label])), "label": label})
    return found


def pairs(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Two sentences: what the colour of the second says of that of the first."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        label, word = (("yes", "red"), ("no", "blue"))[number % 2]
        found.append(
            {"sentence1": " ".join(filler(chance)), "sentence2": with_word(chance, word)}
            | {"label": label}
        )
    return found


def several(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences with none, one or two colours, each a label."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        labels = sorted(chance.sample(("red", "blue", "green"), k=chance.randint(0, 2)))
        words = filler(chance) + labels
        chance.shuffle(words)
        found.append({"text": " ".join(words), "labels": labels})
    return found


def numbers(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences with a number word, which is the label (and a half)."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        number = chance.randrange(5)
        found.append({"text": with_word(chance, NUMBERS[number]), "label": number / 2})
    return found


def tagged(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Words, names of people and places among them."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        words, tags = filler(chance), ["O"]
        tags *= len(words)
        for names, kind in ((PEOPLE, "PER"), (PLACES, "LOC")):
            chosen = chance.sample(names, k=chance.randint(1, 2))
            words += [*chosen, *(more := filler(chance, 1, 3))]
            tags += [f"B-{kind}", *[f"I-{kind}"] * (len(chosen) - 1), *["O"] * len(more)]
        found.append({"words": words, "tags": tags})
    return found


def conll(sentences: Iterable[dict[str, Any]]) -> list[str]:
    """The lines of a file with columns."""
    lines = []
    for one in sentences:
        lines += [f"{word} {tag}" for word, tag in zip(one["words"], one["tags"])] + [""]
    return lines


def squad(count: int, *, impossible: bool = False, seed: int = 0) -> dict[str, Any]:
    """Questions after the word behind a colour, in the layout of SQuAD."""
    chance = random.Random(seed)
    paragraphs = []
    for number in range(count):
        colour, other = chance.sample(("red", "blue", "green"), k=2)
        words = filler(chance)
        place = chance.randrange(len(words) + 1)
        answer = chance.choice(PEOPLE)
        words[place:place] = [colour, answer]
        context = " ".join(words)
        question = {"id": str(number), "question": f"who is {colour}"}
        told = [{"text": answer, "answer_start": context.index(answer)}]
        if impossible and number % 2:
            question |= {"question": f"who is {other}", "answers": [], "is_impossible": True}
        elif impossible:
            question |= {"answers": told, "is_impossible": False}
        else:
            question |= {"answers": told}
        paragraphs.append({"context": context, "qas": [question]})
    version = "v2.0" if impossible else "1.1"
    return {"version": version, "data": [{"title": "colours", "paragraphs": paragraphs}]}


def dictionary(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Words and their translations, word by word."""
    chance = random.Random(seed)
    words = [*FILLERS, *NUMBERS]
    found = []
    for _ in range(count):
        chosen = chance.choices(words, k=chance.randint(3, 7))
        found.append((" ".join(chosen), " ".join(f"{word}o" for word in chosen)))
    return found


def chats(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """A question with a number, answered by the number after it."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        number = chance.randrange(9)
        said = " ".join([*filler(chance), NUMBERS[number]])
        messages = [
            {"role": "user", "content": said},
            {"role": "assistant", "content": NUMBERS[number + 1]},
        ]
        found.append({"messages": messages})
    return found


def taught(
    task: str,
    model: str | Path,
    data: Path | Sequence[Path],
    out: Path,
    *changes: str,
    steps: int = 60,
    **options: Any,
) -> RunFolder:
    """A short fine-tuning in float32, evaluated at its end."""
    settings = [
        f"train.steps={steps}",
        f"train.eval_every={steps}",
        f"train.save_every={steps}",
        "train.precision=fp32",
        "model.dropout=0.0",
        *changes,
    ]
    return finetune(task, model=model, data=data, out=out, changes=settings, **options)


def figures(run: RunFolder) -> dict[str, float]:
    """What was measured at the end."""
    return json.loads((run.path / "evaluation.json").read_text(encoding="utf-8"))["figures"]


def lasting(run: RunFolder) -> list[dict[str, float]]:
    """The metrics without what a clock decides."""
    clock = ("seconds", "tokens_per_second")
    return [{k: v for k, v in one.items() if k not in clock} for one in run.read_metrics()]
