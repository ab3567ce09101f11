"""Conversations: only what the assistant says is learned, and rows of several leak nothing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from labelled_examples import chats, figures, filler, taught, write_lines

import trivium
from trivium.data import NO_LOSS
from trivium.data.labelled import Conversation, Message
from trivium.errors import RecipeError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer
from trivium.train.finetune_recipe import ExamplesSection, TaskSection
from trivium.workflows.tasks.responses import ResponseTask


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("chats") / "chats.jsonl", chats(300))


@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_responses_are_learned(preset: str, data: Path, tmp_path: Path) -> None:
    run = taught("lm", preset, data, tmp_path / "run", steps=100)
    told = figures(run)
    assert told["loss"] < 0.3
    assert told["perplexity"] == pytest.approx(np.exp(told["loss"]))
    model = trivium.load(run.path)
    prompt = "User: the man saw a house three\nAssistant:"
    assert model.generate(prompt, max_new_tokens=8, temperature=0.0).strip() == "four"


@pytest.mark.parametrize("preset", ["lstm-tiny", "ngram-tiny"])
def test_what_came_before_learns_the_form_of_responses(
    preset: str, data: Path, tmp_path: Path
) -> None:
    """Not which number; a guess costs over 5 nats."""
    run = taught("lm", preset, data, tmp_path / "run", steps=20)
    assert figures(run)["loss"] < 2.5


def conversations(count: int) -> list[Conversation]:
    found = []
    for number, chat in enumerate(chats(count)):
        messages = tuple(Message(**one) for one in chat["messages"])
        if number % 2:
            messages = (Message("system", "say a number"), *messages, *messages)
        found.append(Conversation(messages, f"line {number + 1}"))
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [message.content for one in conversations(50) for message in one.messages]
    return Tokenizer.train("byte-bpe", texts=texts, vocab_size=330, progress=False)


def model_of(preset: str, tokenizer: Tokenizer) -> LanguageModel:
    spec = presets[preset].replace(vocab_size=384)
    return LanguageModel(spec, build(spec, seed=1), tokenizer)


def task(**section: object) -> ResponseTask:
    return ResponseTask(TaskSection(kind="lm", **section), ExamplesSection())  # type: ignore[arg-type]


def test_only_what_the_assistant_says_is_asked(tokenizer: Tokenizer) -> None:
    model = model_of("llama-tiny", tokenizer)
    (talk,) = conversations(2)[1:]
    batch = task().encode(model, [talk]).take([0])
    assert batch.labels is not None
    (ids,), (labels,) = batch.input_ids.tolist(), batch.labels.tolist()
    asked = [n for n, label in enumerate(labels) if label != NO_LOSS]
    assert [labels[n] for n in asked] == [ids[n + 1] for n in asked]
    answer = talk.messages[2].content
    # Both answers, each with the token that ends it.
    assert tokenizer.decode([labels[n] for n in asked]).split() == [answer, answer]
    assert [labels[n] for n in asked].count(tokenizer.eos_id) == 2
    everything = task(responses_only=False).encode(model, [talk]).take([0])
    assert everything.labels is not None
    assert everything.labels[0, :-1].tolist() == ids[1:]


@pytest.mark.parametrize(
    "preset", ["gpt1-tiny", "gpt2-tiny", "gpt3-tiny", "opt-tiny", "llama-tiny", "mistral-tiny"]
)
def test_rows_of_several_leak_nothing(preset: str, tokenizer: Tokenizer) -> None:
    """A conversation in a row with others has the logits and the labels it has alone."""
    model, talks = model_of(preset, tokenizer), conversations(11)
    settings = Settings(tokenizer={"model_max_length": 97})
    lm = LanguageModel(model.spec, model.module, tokenizer, settings)
    together = task().encode(lm, talks)
    assert len(together) < len(talks)
    batch = together.take(np.arange(len(together)))
    assert batch.document_ids is not None
    assert batch.labels is not None
    alone = [task().encode(lm, [one]).take([0]) for one in talks]
    with torch.no_grad():
        inputs = {
            "document_ids": torch.from_numpy(batch.document_ids),
            "position_ids": torch.from_numpy(batch.position_ids),
        }
        packed = lm.module.logits(lm.module(torch.from_numpy(batch.input_ids), **inputs))
    seen = 0
    for row, documents in enumerate(batch.document_ids):
        for number in range(1, int(documents.max()) + 1):
            places = np.flatnonzero(documents == number)
            ids = batch.input_ids[row, places].tolist()
            match = [one for one in alone if one.input_ids[0].tolist() == ids]
            assert match
            wanted = lm.logits([ids])[0]
            torch.testing.assert_close(packed[row, places], wanted, atol=2e-5, rtol=1e-4)
            assert batch.labels[row, places].tolist() == match[0].labels[0].tolist()  # type: ignore[index]
            seen += 1
    assert seen == len(talks)


def test_the_models_own_template_is_used(tmp_path: Path, data: Path) -> None:
    start = taught("lm", "gpt2-tiny", data, tmp_path / "start", steps=2)
    template = (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (start.path / "chat_template.jinja").write_text(template)
    run = taught("lm", start.path, data, tmp_path / "run", steps=2)
    assert (run.path / "chat_template.jinja").read_text() == template


def test_prompts_and_responses_by_their_fields(tmp_path: Path) -> None:
    rows = [{"ask": " ".join(filler(Random(n))), "say": "yes"} for n in range(40)]
    data = write_lines(tmp_path / "asked.jsonl", rows)
    run = taught(
        *("lm", "llama-tiny", data, tmp_path / "run"),
        *("task.source_field=ask", "task.target_field=say"),
        steps=60,
    )
    assert figures(run)["loss"] < 0.5
    told = json.loads((run.path / "evaluation.json").read_text())
    assert told["metric"] == "loss"


def test_only_decoders(data: Path, tmp_path: Path) -> None:
    for preset in ("bert-tiny", "t5-tiny"):
        with pytest.raises(RecipeError, match="lm needs a decoder"):
            taught("lm", preset, data, tmp_path / "run")
        assert not (tmp_path / "run").exists()
