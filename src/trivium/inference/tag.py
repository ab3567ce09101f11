"""What the words of a sentence are, and the chunks they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.inference.batches import BATCH_TOKENS, hidden_states
from trivium.models import LanguageModule
from trivium.text import Tokenizer
from trivium.text.inputs import encode_words


@dataclass(frozen=True, slots=True)
class Tagged:
    """A word, its most probable tag and that tag's probability."""

    word: str
    tag: str
    score: float


@torch.inference_mode()
def tag_words(
    model: LanguageModule,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    names: Sequence[str],
    *,
    max_length: int | None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[list[Tagged]]:
    """The tags of words; sentences longer than `max_length` tokens are read in several runs."""
    runs = encode_words(tokenizer, sentences, max_length=max_length)
    flat = [(number, run) for number, of_one in enumerate(runs) for run in of_one]
    found: dict[tuple[int, int], tuple[str, float]] = {}
    inputs = [run.ids for _, run in flat]
    for numbers, hidden, _ in hidden_states(model, inputs, batch_tokens=batch_tokens):
        best, tags = _best(model, hidden)
        for row, number in enumerate(numbers):
            sentence, run = flat[number]
            for word, place in zip(range(run.start, run.stop), run.places):
                found[sentence, word] = names[int(tags[row, place])], float(best[row, place])
    return [
        [Tagged(word, *found[number, place]) for place, word in enumerate(words)]
        for number, words in enumerate(sentences)
    ]


def _best(model: LanguageModule, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Probability and number of the best tag of every position, [B, T] each."""
    probabilities = model.logits(hidden, head="tagger").float().softmax(-1)
    best, tags = probabilities.max(-1)
    return best.cpu(), tags.cpu()
