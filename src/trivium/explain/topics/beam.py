"""Explanation of beam search: the search tree, compared with greedy search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from trivium.errors import TriviumError
from trivium.explain.page import Formula, Page, Table, Tree, get_text
from trivium.inference.beam import Beam, Hypothesis, beam_search
from trivium.inference.sampling_params import BeamSearchParams
from trivium.inference.text_model import prompt_ids
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.models.heads.vocabulary import LMHead
from trivium.models.ngram import NGramSpec
from trivium.text import Tokenizer
from trivium.text.roles import TEXT_SPECIALS

_END = "</s>"
_TABLE = {
    "I": {"am": 0.5, "like": 0.4, "see": 0.1},
    "am": {"here": 0.4, "tired": 0.3, "late": 0.3},
    "like": {"tea": 0.9, "it": 0.1},
    "see": {"it": 1.0},
    **{word: {_END: 1.0} for word in ("here", "tired", "late", "tea", "it")},
}


def explain(
    prompt: str = "I",
    *,
    beams: int = 3,
    length_penalty: float = 1.0,
    max_new_tokens: int = 6,
    model: str | None = None,
) -> Page:
    """Search for the most probable text, by default with a small table of P(word | previous word).

    Args:
        prompt: The start of the text.
        beams: Number of hypotheses that are kept at every step.
        length_penalty: Exponent of the length: the score is the sum of log p divided by length **
            length_penalty.
        max_new_tokens: Maximum number of tokens.
        model: Search with this model instead of the table.
    """
    lm = _build_bigram_model(_TABLE) if model is None else load(model)
    lm.require("generate")
    ids = prompt_ids(lm.prompting, prompt)
    if model is None and lm.text_tokenizer.unk_id in ids:
        raise TriviumError(
            f'the table does not contain every word of "{prompt}"; its words are: '
            f"{' '.join(_TABLE)}."
        )
    params = BeamSearchParams(num_beams=beams, length_penalty=length_penalty, num_return=beams)
    recorder = _BeamRecorder(length_penalty)
    rules = lm.generation_rules
    [found] = beam_search(
        lm, [ids], params, max_new_tokens=max_new_tokens, rules=rules, watch=recorder.record_step
    )
    greedy = params.replace(num_beams=1, num_return=1)
    [chosen] = beam_search(lm, [ids], greedy, max_new_tokens=max_new_tokens, rules=rules)
    decode = lm.text_tokenizer.decode
    rows = [
        [
            name,
            decode(text.ids),
            math.exp(recorder.sum_log_p(text)),
            recorder.sum_log_p(text),
            text.score,
        ]
        for name, hypotheses in (("greedy", chosen), ("beam", found))
        for text in hypotheses
    ]
    columns = ["", get_text("beam.continuation"), "P", "log P", get_text("beam.score")]
    names = {"greedy": get_text("beam.greedy"), "beam": get_text("beam.beam_search")}
    note = get_text("beam.note", beams=beams)
    return Page(
        get_text("beam.title"),
        [
            Formula("score = sum_t log P(y_t | y_1 ... y_(t-1)) / length ** length_penalty"),
            recorder.build_tree(
                prompt, lm.text_tokenizer.readable_tokens, found[0] if found else None
            ),
            Table(
                columns,
                [[names[name], text.replace("\n", "\\n"), *rest] for name, text, *rest in rows],
            ),
            note,
        ],
        {"prompt": prompt, "found": [dict(zip(_RESULT_KEYS, row)) for row in rows]},
    )


_RESULT_KEYS = ("search", "text", "probability", "log_p", "score")


@dataclass
class _BeamRecorder:
    """Records the hypotheses of a beam search, keyed by their token ids.

    Args:
        length_penalty: the score of a hypothesis is its sum of log p divided by its length to this
            power.
        kept: the sum of log p of each unfinished hypothesis that was in the beam at some step.
        ended: the finished hypotheses.
    """

    length_penalty: float
    kept: dict[tuple[int, ...], float] = field(default_factory=dict)
    ended: dict[tuple[int, ...], Hypothesis] = field(default_factory=dict)

    def record_step(self, beams: Sequence[Beam], finished: Sequence[Hypothesis]) -> None:
        """Record the beam and the finished hypotheses of one search step."""
        self.kept |= {beam.ids: beam.log_p for beam in beams if math.exp(beam.log_p)}
        self.ended |= {hypothesis.ids: hypothesis for hypothesis in finished}

    def sum_log_p(self, hypothesis: Hypothesis) -> float:
        """Return the sum of log p over the tokens of a hypothesis.

        The sum is recovered from the score of the hypothesis.
        """
        length = len(hypothesis.ids) + (hypothesis.finish_reason == "stop")
        return hypothesis.score * length**self.length_penalty

    def build_tree(self, prompt: str, tokens: Sequence[str], best: Hypothesis | None) -> Tree:
        """Build the search tree of all recorded hypotheses.

        Args:
            prompt: the label of the root.
            tokens: the tokens of the vocabulary.
            best: the hypothesis to mark with "*".
        """
        sums = {(): 0.0, **self.kept, **{k: self.sum_log_p(v) for k, v in self.ended.items()}}
        # The ids of an ended text do not include its end-of-text token.
        paths = sorted({*sums} - {()}, key=lambda ids: -sums[ids])

        def build_subtree(ids: tuple[int, ...]) -> Tree:
            """Build the subtree below a hypothesis, given the hypothesis's token ids."""
            branches = [build_subtree(path) for path in paths if path[:-1] == ids]
            label = f"{tokens[ids[-1]]}  log P {sums[ids]:.3f}, P {math.exp(sums[ids]):.4f}"
            end = self.ended.get(ids)
            if end is not None:
                score = f"{end.score:.3f}{'  *' * (end is best)}"
                ends = get_text("beam.ends_score", label=label, score=score)
                return Tree(ends, branches)
            dropped = get_text("beam.dropped", label=label)
            return Tree(label if branches else dropped, branches)

        return Tree(prompt, [build_subtree(path) for path in paths if len(path) == 1])


def _build_bigram_model(table: Mapping[str, Mapping[str, float]]) -> LanguageModel:
    """Build a bigram model from a table of P(word | previous word)."""
    words = [*table, *(word for row in table.values() for word in row if word != _END)]
    tokenizer = Tokenizer.train(
        "whitespace", texts=[" ".join(words)], special_tokens=TEXT_SPECIALS, progress=False
    )
    size = tokenizer.vocab_size
    spec = NGramSpec(
        vocab_size=size,
        d_model=size,
        order=2,
        d_hidden=1,
        connections="direct",
        heads=(LMHead(tied=False),),
    )
    module = build(spec, seed=0)
    scores = torch.full((size, size), -1e4)
    ids = {token: index for index, token in enumerate(tokenizer.tokens)}
    for word, row in table.items():
        for following, probability in row.items():
            scores[ids[following], ids[word]] = math.log(probability)
    weights = {name: torch.zeros_like(one) for name, one in module.state_dict().items()}
    weights["tokens.weight"] = torch.eye(size)
    head = next(name for name, one in weights.items() if one.shape == (size, size + 1))
    weights[head][:, 1:] = scores
    module.load_state_dict(weights)
    return LanguageModel(spec, module, tokenizer)
