"""The memory that a run is said to need, beside the peak of all of its tensors."""

from __future__ import annotations

import json

import pytest
from overfit_tasks import SPECIALS
from run_settings import quiet
from torch.profiler import ProfilerActivity, profile
from training_memory import peak

from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer
from trivium.workflows import training_run
from trivium.workflows.training import finetune


@pytest.mark.slow
def test_memory_counts_samples_and_what_they_are_compared_with(tmp_path, monkeypatch):
    uses, fit = [], training_run.fit_memory

    def fit_memory(*arguments, **options):
        uses.append(fit(*arguments, **options))
        return uses[-1]

    monkeypatch.setattr(training_run, "fit_memory", fit_memory)
    words = [f"w{number}" for number in range(1000)]
    tokenizer = Tokenizer.train(
        "whitespace", texts=[" ".join(words)], vocab_size=1010, progress=False,
        special_tokens=SPECIALS["gpt2"],
    )  # fmt: skip
    spec = presets["gpt2-tiny"].replace(vocab_size=1024).with_dropout(0.0)
    LanguageModel(spec, build(spec, seed=0), tokenizer).save(tmp_path / "model")
    prompt, chosen, rejected = (" ".join(words[n : n + 60]) for n in (0, 100, 200))
    pair = {"prompt": prompt[:100], "chosen": chosen, "rejected": rejected}
    asked = {"prompt": prompt[:100], "answer": "a"}
    for task, row, changes in (
        ("preference", pair, ["train.batch_examples=8"]),
        ("policy", asked, ["objective.max_new_tokens=60", "train.batch_examples=2"]),
        # Most is what is held before anything is learned from the samples.
        ("policy", asked, ["objective.max_new_tokens=40", "train.micro_batch_tokens=128"]),
    ):
        data = tmp_path / "data.jsonl"
        rows = [{**row, "prompt": f"w{number} {row['prompt']}"} for number in range(10)]
        data.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
        changes = [*changes, "train.steps=2", "train.precision=fp32", "train.eval_examples=1"]
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            finetune(
                task, model=tmp_path / "model", data=data, validation=0.1, out=tmp_path / "run",
                changes=changes, overwrite=True, console=quiet(),
            )  # fmt: skip
        assert uses[-1].needed == pytest.approx(peak(profiler), rel=0.2), changes
