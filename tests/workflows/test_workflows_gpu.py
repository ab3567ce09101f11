"""Training on GPUs, compiled and sharded over all of them, has the losses of a CPU."""

from __future__ import annotations

import pytest
import torch
from distributed_runs import curve, run_processes, small
from run_settings import quiet

from trivium.workflows.training import pretrain

pytestmark = pytest.mark.gpu


def test_compiled_and_sharded_runs(text, tmp_path):
    jobs = []
    for model in ("bert-tiny", "gpt2-tiny", "llama-tiny", "t5-tiny"):
        pretrain(model, data=text, out=tmp_path / model, changes=small(0.0), console=quiet())
        changes = small(0.0, data="fsdp", activation_checkpointing=True)
        changes["train"] |= {"device": "cuda", "compile": True}
        out = tmp_path / f"{model}-gpu"
        jobs.append({"recipe": model, "data": text, "out": out, "changes": changes})
    run_processes(torch.cuda.device_count(), jobs)
    for job in jobs:
        expected = curve(tmp_path / job["recipe"])
        assert curve(job["out"]) == pytest.approx(expected, rel=1e-3), job["recipe"]
