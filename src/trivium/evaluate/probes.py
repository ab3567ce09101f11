"""What a model knows, asked directly: minimal pairs, last words, multiple choice.

Nothing is trained; every option is scored by the model itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trivium.errors import DataError
from trivium.evaluate.choices import NORMALISATIONS, Normalise, Share, score_choice
from trivium.evaluate.examples import Example, Layout
from trivium.evaluate.template import Template
from trivium.language_model import LanguageModel

Progress = Callable[[int], None]
"""Is told how many examples are done."""


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies of a probe: by every normalisation, and in its groups.

    Args:
        kind: "minimal-pairs", "choice" or "last-word".
        accuracy: normalisation -> share that was right; "greedy" for last words.
        groups: group -> name -> share by the first normalisation, such as "UID" -> "passive_1".
        perplexity: of a last word given the rest; None for other probes.
        num_cut: contexts that were cut from the left, because they were too long.
    """

    kind: str
    accuracy: dict[str, Share]
    groups: dict[str, dict[str, Share]] = field(default_factory=dict)
    perplexity: float | None = None
    num_cut: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {}
        for name, share in self.accuracy.items():
            found["accuracy" if name in ("sum", "greedy") else f"accuracy_per_{name}"] = share.value
        first = next(iter(self.accuracy.values()))
        low, high = first.interval
        if self.perplexity is not None:
            found["perplexity_per_word"] = self.perplexity
        found |= {"low": low, "high": high, "count": first.count, "num_cut": self.num_cut}
        if self.groups:
            found["groups"] = {
                group: {name: share.to_dict() for name, share in shares.items()}
                for group, shares in self.groups.items()
            }
        return found


def choose(
    lm: LanguageModel,
    layout: Layout,
    examples: Iterable[Example],
    *,
    progress: Progress | None = None,
) -> ProbeResult:
    """How often the right option is the most probable: minimal pairs and multiple choice.

    Of a minimal pair both sentences are scored as whole texts (Warstadt et al. 2020); the options
    of a choice follow its text, as the layout's template says. An option that is exactly as
    probable as another is not chosen.

    Raises:
        DataError: a layout without options.
    """
    template = Template(layout.template)
    names: Sequence[Normalise] = NORMALISATIONS
    right = dict.fromkeys(names, 0)
    grouped: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    count = num_cut = 0
    for count, example in enumerate(examples, start=1):
        if not example.options:
            raise DataError(f"{example.where}: an example without options cannot be chosen from.")
        before, after = template.around(example.fields, example.where)
        options = [option.strip() for option in example.options]
        scores = score_choice(lm, before, options, after=after)
        for name in names:
            right[name] += scores.best(name) == example.index
        for group, name in example.groups.items():
            grouped[group][name].append(scores.best("sum") == example.index)
        num_cut += scores.num_cut > 0
        if progress:
            progress(count)
    return ProbeResult(
        layout.kind,
        {name: Share(right[name], count) for name in names},
        {group: _shares(names) for group, names in sorted(grouped.items())},
        num_cut=num_cut,
    )


def last_words(
    lm: LanguageModel,
    lines: Iterable[tuple[str, str]],
    *,
    progress: Progress | None = None,
) -> ProbeResult:
    """How often the last word of a passage is what the model would write, and its perplexity.

    Right is a word all of whose tokens are the most probable ones, each given those before it (an
    encoder: given all others). Perplexity is exp of the mean nats a word (Paperno et al. 2016).

    Args:
        lm: the model.
        lines: where a passage stands, and the passage; its last word is what follows its last
            blank.
        progress: told after every passage.

    Raises:
        DataError: a passage of one word.
    """
    right = count = num_cut = 0
    nats: list[float] = []
    for count, (where, line) in enumerate(lines, start=1):
        context, blank, word = line.strip().rpartition(" ")
        if not context.strip():
            raise DataError(f"{where}: one word alone; a passage and its last word are needed.")
        (score,) = score_choice(lm, context, [blank + word]).scores
        right += score.greedy
        nats.append(-score.log_probability)
        num_cut += score.num_cut > 0
        if progress:
            progress(count)
    perplexity = math.exp(math.fsum(nats) / count) if count else math.nan
    return ProbeResult(
        "last-word", {"greedy": Share(right, count)}, perplexity=perplexity, num_cut=num_cut
    )


def _shares(outcomes: dict[str, list[bool]]) -> dict[str, Share]:
    return {name: Share(sum(found), len(found)) for name, found in sorted(outcomes.items())}
