"""Outputs of the model on validation texts, for the report and for `samples.jsonl`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from trivium.language_model import LanguageModel
from trivium.objectives import Objective


def generate_samples(
    lm: LanguageModel, excerpts: Sequence[tuple[Objective, str]]
) -> list[dict[str, str]]:
    """Generate sample outputs. The prompts are the beginnings of validation documents.

    `excerpts` are pairs of an objective and a validation text (`Corpus.iter_excerpts`). Returns one
    dict per sample with the keys prompt and output. Objectives without samples
    (`Objective.generate_sample`) have none.
    """
    samples = []
    lm.module.eval()
    for objective, text in excerpts:
        with warnings.catch_warnings(action="ignore"):  # rows may be shorter than a prompt
            sample = objective.generate_sample(lm, text)
        if sample is not None:
            samples.append({"prompt": sample[0], "output": sample[1]})
    return samples
