"""What texts are: the probabilities of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.inference.batches import BATCH_TOKENS, hidden_states
from trivium.models import LanguageModule
from trivium.spec import AnySpec
from trivium.text.inputs import TextInput


@dataclass(frozen=True, slots=True)
class Classified:
    """What a text was found to be.

    Args:
        label: the most probable class; of several labels those above one half, joined by commas;
            for numbers empty.
        score: the probability of the class; of several labels the least of those given (or the
            largest of all where none is); for numbers the number itself.
        scores: every class with its probability, the most probable first.
    """

    label: str
    score: float
    scores: dict[str, float]


@torch.inference_mode()
def classifier_logits(
    model: LanguageModule,
    inputs: Sequence[TextInput],
    *,
    batch_tokens: int = BATCH_TOKENS,
    decoder_start: Sequence[int] = (),
) -> Tensor:
    """Float32 logits of the classifier head, [N, L] on the CPU, in the order of the inputs."""
    found: dict[int, Tensor] = {}
    batches = hidden_states(
        model,
        [each.ids for each in inputs],
        type_ids=[each.type_ids for each in inputs],
        batch_tokens=batch_tokens,
        decoder_start=decoder_start,
    )
    for numbers, hidden, real in batches:
        logits = model.logits(hidden, head="classifier", attention_mask=real).float().cpu()
        found.update(zip(numbers, logits))
    if not inputs:
        return torch.empty(0, label_count(model.spec, "classifier"))
    return torch.stack([found[number] for number in range(len(inputs))])


def label_count(spec: AnySpec, kind: str) -> int:
    """Labels of a head; 0 where there is none of that kind."""
    return next((getattr(head, "num_labels", 0) for head in spec.heads if head.kind == kind), 0)


def classified(logits: Tensor, names: Sequence[str], kind: str) -> list[Classified]:
    """Answers for people: logits [N, L] with the names of the classes, by the kind of labels."""
    if kind == "numbers":
        return [Classified("", value, {}) for value in logits[:, 0].tolist()]
    several = kind == "multi-label"
    probabilities = logits.sigmoid() if several else logits.softmax(-1)
    answers = []
    for row in probabilities.tolist():
        ranked = sorted(zip(names, row), key=lambda pair: -pair[1])
        chosen = [pair for pair in ranked if pair[1] > 0.5] if several else ranked[:1]
        label = ", ".join(name for name, _ in chosen)
        answers.append(Classified(label, (chosen or ranked)[-1 if chosen else 0][1], dict(ranked)))
    return answers
