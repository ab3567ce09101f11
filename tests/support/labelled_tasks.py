"""One record of every fine-tuning task, as long as a test wants it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivium.objectives import LabelledObjective, task_kinds

KINDS = task_kinds()
DECODER_KINDS = ("chat", "preference", "kto", "policy")
TO_TARGET = ("translation", "summarization", "text-to-text")
# The families of `overfit_tasks.untrained` that a task is tried with first.
FAMILIES = {
    **dict.fromkeys(KINDS, "bert"),
    **dict.fromkeys(DECODER_KINDS, "gpt2"),
    **dict.fromkeys(TO_TARGET, "t5"),
}
# The presets of the families.
PRESETS = {"bert": "bert-tiny", "gpt2": "gpt2-tiny", "t5": "t5-tiny"}
_WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "dogs", "ran", "over"]


def text_of(number: int, size: int) -> str:
    """A text of `size` words, whose first two make it the only one with this number."""
    words = [f"n{number // 10}", f"u{number % 10}"]
    words += [_WORDS[(number + i) % len(_WORDS)] for i in range(size - 2)]
    return " ".join(words)


def record(kind: str, number: int, *, size: int = 6, response: int = 2) -> dict[str, Any]:
    """An example whose input has `size` words and, where there is a response, this many."""
    text, answer = text_of(number, size), " ".join(["yes", "indeed"] * response)[: 7 * response]
    other, good = answer.replace("yes", "no"), bool(number % 2)
    if kind in TO_TARGET:
        return {"source": text, "target": answer}
    return {
        "classification": {"text": text, "label": "pos" if good else "neg"},
        "tagging": {"words": text.split(), "tags": ["A", "B", *["A"] * (size - 2)]},
        "qa": {"question": "who", "context": text, "answers": [text.split()[0]]},
        "chat": {"prompt": text, "response": answer},
        "preference": {"prompt": text, "chosen": answer, "rejected": other},
        "reward": {"prompt": text, "chosen": answer, "rejected": other},
        "kto": {"prompt": text, "completion": answer, "label": good},
        "policy": {"prompt": text, "answer": answer},
        "reranking": {"query": f"who {number}", "document": text, "label": number % 2},
        "contrastive": {"text": f"who {number}", "pair": text},
        "tsdae": {"text": text},
    }[kind]


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """The records as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


def examples_of(kind: str, path: Path, records: Sequence[dict[str, Any]]) -> list[Any]:
    """Some records as the task reads them."""
    objective = LabelledObjective.kinds[kind].from_tree({"kind": kind})
    assert isinstance(objective, LabelledObjective)
    return list(objective.read([str(write_records(path, records))]))
