"""Outputs of the model on validation texts, for the report and for `samples.jsonl`."""

from __future__ import annotations

import warnings

from trivium.language_model import LanguageModel
from trivium.workflows.corpus import Corpus


def generate_samples(corpus: Corpus, lm: LanguageModel) -> list[dict[str, str]]:
    """Generate sample outputs. The prompts are the beginnings of validation documents.

    Returns one dict per sample with the keys prompt and output. The list is empty for objectives
    without samples (`Objective.generate_sample`) and for labelled examples.
    """
    samples = []
    lm.module.eval()
    for objective, text in corpus.iter_excerpts():
        with warnings.catch_warnings(action="ignore"):  # rows may be shorter than a prompt
            sample = objective.generate_sample(lm, text)
        if sample is not None:
            samples.append({"prompt": sample[0], "output": sample[1]})
    return samples
