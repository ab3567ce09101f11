"""Every pretraining objective overfits one batch: its model, loss and gradients fit together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium.data.batch import RowBatch
from trivium.data.row_order import RowRandom
from trivium.objectives import Objective, to_device
from trivium.presets import presets
from trivium.text.infilling import FIM_TOKENS
from trivium.text.vocabulary import Vocabulary
from trivium.train.optimizers.adamw import AdamW

VOCABULARY, ROWS, LENGTH = 53, 5, 19
CPU = torch.device("cpu")
SENTINELS = (44, 45, 46, 47, 48, 49)
FACTS = Vocabulary(
    size=VOCABULARY, pad_id=0, eos_id=1, cls_id=2, sep_id=3, mask_id=43,
    special_ids=(0, 1, 2, 3, 43, *SENTINELS), sentinel_ids=SENTINELS,
    special_tokens=dict(zip(FIM_TOKENS, SENTINELS, strict=False)),
)  # fmt: skip
CASES = {
    "masked": ("bert-tiny", {"probability": 0.3}),
    "similar-words": ("bert-tiny", {"probability": 0.3}),
    "sentence-pairs": ("bert-tiny", {"probability": 0.3}),
    "replaced-token": ("electra-tiny", {"probability": 0.3}),
    "causal": ("gpt2-tiny", {}),
    "prefix-lm": ("llama-tiny", {}),
    "fill-in-the-middle": ("llama-tiny", {"rate": 0.9}),
    "seq2seq-prefix-lm": ("t5-tiny", {}),
    "bidirectional-lm": ("elmo-tiny", {}),
    "span-corruption": ("t5-tiny", {"probability": 0.4}),
    "denoising": ("bart-tiny", {}),
    "blank-filling": ("glm-tiny", {"whole_share": 0.2}),
    "permutation": ("xlnet-tiny", {"probability": 0.3}),
}


def test_every_pretraining_objective_has_a_case():
    assert set(CASES) == {kind for kind, cls in Objective.kinds.items() if not cls.labelled}


@pytest.mark.parametrize("kind", CASES)
def test_every_pretraining_objective_overfits_one_batch(kind):
    preset, keys = CASES[kind]
    generator = np.random.default_rng(1)
    ids = np.stack([generator.permutation(np.arange(4, 43))[:LENGTH] for _ in range(ROWS)])
    ids[:, 0] = np.arange(ROWS) + 4  # a beginning of its own tells each row
    documents, firsts = np.ones_like(ids), np.arange(ROWS)
    objective = Objective.kinds[kind](**keys)
    if preset not in presets:
        preset = preset.replace("tiny", "mini")
    spec = presets[preset].replace(vocab_size=VOCABULARY).with_dropout(0.0)
    spec = spec.with_heads(objective.heads(spec))
    model = objective.build(spec, seed=0, device=CPU)
    needs = objective.needs_documents
    rows = RowBatch(
        ids, np.full(ROWS, LENGTH), documents if needs else None, firsts if needs else None
    )
    batch = objective.prepare(rows, RowRandom(0, np.arange(ROWS)), FACTS)
    tensors, counts = to_device(batch, CPU), objective.loss_denominators(batch)
    optimizers = AdamW(lr=3e-3, weight_decay=0.0).build(model)
    first, means = {}, {}
    for _ in range(150):
        losses = objective.loss(model, tensors)  # type: ignore[arg-type]
        means = {
            name: loss / counts[name]
            for name, loss in losses.items()
            if objective.term_weights().get(name, 1.0) > 0.0  # no accuracies
        }
        first = first or {name: mean.item() for name, mean in means.items()}
        torch.stack([*means.values()]).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if all(mean.item() < 0.2 for mean in means.values()):
            break
    for name, mean in means.items():
        assert mean.item() < 0.45 * first[name], name
        assert mean.item() < 0.5, name
