"""Explanation of sampling: the effect of temperature, top-k, top-p and min-p on the next token."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from trivium.errors import TriviumError
from trivium.explain.page import Formula, Grid, Page, Table, get_text
from trivium.inference.logits_processors import DecodingState, process_logits
from trivium.inference.sampling import LOGITS_FILTERS, filter_logits, sample
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import GenerationRules, prompt_ids
from trivium.model_loading import load

_WORDS = {"mat": 4.0, "sofa": 3.4, "floor": 3.0, "table": 2.2, "roof": 1.5, "moon": 0.2}
_PROMPT = "The cat sat on the"
_TEMPERATURES = (0.2, 0.5, 1.0, 1.5, 3.0)
_SHOWN, _DRAWS = 12, 1000


def explain(
    logits: list[float] | None = None,
    *,
    words: list[str] | None = None,
    temperature: float = 0.8,
    top_k: int | None = 5,
    top_p: float | None = 0.9,
    min_p: float | None = None,
    model: str | None = None,
    prompt: str = _PROMPT,
    seed: int = 0,
) -> Page:
    """Show the probabilities after each processing step, and how often each token is sampled.

    Args:
        logits: The logits of the next token. Default: logits of six words, or of the model.
        words: The tokens to which the logits belong.
        temperature: The logits are divided by the temperature.
        top_k: Keep the k most probable tokens.
        top_p: Keep the smallest set of most probable tokens whose probabilities sum to at least p.
        min_p: Keep tokens whose probability is at least this fraction of the highest probability.
        model: The model that predicts the next token.
        prompt: The text that the model continues.
        seed: Random seed.
    """
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    if params.greedy:
        raise TriviumError(
            "temperature 0 always selects the most probable token: give a temperature above 0."
        )
    if model is not None:
        names, scores = _compute_model_logits(model, prompt)
    else:
        names, scores = _pair_words_with_logits(logits, words)
    order = scores.argsort(descending=True)
    names, scores = [names[i] for i in order.tolist()], scores[order]
    stages = {"T = 1": scores[None].softmax(-1)[0]}
    setting = SamplingParams(temperature=temperature)
    for name in ("temperature", *LOGITS_FILTERS):
        value = getattr(params, name)
        if value is not None:
            setting = setting.replace(**{name: value})
            label = f"{name.replace('_', '-')} {value:g}".replace("temperature", "T =")
            stages[label] = filter_logits(scores[None], setting).softmax(-1)[0]
    final, generator = [*stages.values()][-1], random.Random(seed)
    uniforms = [generator.random() for _ in range(_DRAWS)]
    drawn = sample(final.expand(_DRAWS, -1), uniforms).bincount(minlength=len(names)).tolist()
    table = Table(
        [get_text("shared.token"), "logit", *stages, get_text("sampling.1_000_draws")],
        [
            [name, *(float(values[i]) for values in (scores, *stages.values())), drawn[i]]
            for i, name in enumerate(names[:_SHOWN])
        ],
    )
    temperatures = Grid(
        [(scores[:_SHOWN] / t - (scores / t).logsumexp(-1)).exp().tolist() for t in _TEMPERATURES],
        [f"T = {t:g}" for t in _TEMPERATURES],
        names[:_SHOWN],
        get_text("sampling.probabilities_by"),
    )
    spread = Table(
        [
            "T",
            get_text("sampling.highest"),
            get_text("sampling.entropy"),
            get_text("sampling.tokens_of_90"),
        ],
        [_describe_spread(scores, t) for t in sorted({*_TEMPERATURES, temperature})],
    )
    note = get_text("sampling.note")
    data = {
        "tokens": names,
        "logits": scores.tolist(),
        "probabilities": {name: stage.tolist() for name, stage in stages.items()},
        "draws": drawn,
    }
    formula = Formula("p_i = exp(z_i / T) / sum_j exp(z_j / T)")
    title = get_text("sampling.sampling_next_token")
    hidden = get_text("sampling.shown_tokens", shown=_SHOWN, total=len(names))
    shown = [hidden] if len(names) > _SHOWN else []
    return Page(title, [formula, *shown, table, temperatures, spread, note], data)


def _describe_spread(logits: Tensor, temperature: float) -> list[str | float]:
    """Return a row that describes how spread the distribution is at a temperature.

    `logits` [V] are sorted from high to low. The row has the temperature, the highest probability,
    the entropy in nats, and the smallest number of tokens whose probabilities sum to 0.9.
    """
    logps = (logits / temperature).log_softmax(-1)
    probabilities = logps.exp()
    entropy = -(probabilities * logps).nan_to_num(0.0).sum()
    count = int((probabilities.cumsum(-1) < 0.9).sum()) + 1
    return [f"{temperature:g}", f"{probabilities[0]:.4f}", f"{entropy:.2f}", f"{count:,}"]


def _pair_words_with_logits(
    logits: list[float] | None, words: list[str] | None
) -> tuple[list[str], Tensor]:
    """Return the user's words and logits, or those of the example if none are given.

    If only logits are given, the words are w1, w2 and so on. Raises TriviumError if the numbers of
    words and logits differ, or if there are fewer than two.
    """
    values = list(_WORDS.values()) if logits is None else logits
    names = list(_WORDS) if logits is None else [f"w{i}" for i in range(1, len(values) + 1)]
    if words is not None:
        names = words
    if len(names) != len(values) or len(values) < 2:
        raise TriviumError(
            f"{len(values)} logits and {len(names)} words: give the same number, at least two."
        )
    return names, torch.tensor(values, dtype=torch.float64)


def _compute_model_logits(model: str, prompt: str) -> tuple[list[str], Tensor]:
    """Compute the next-token logits of a model after a prompt.

    Returns all tokens of the vocabulary, and their logits [vocabulary size].
    """
    lm = load(model)
    lm.require("generate")
    ids, rules = prompt_ids(lm.prompting, prompt), lm.generation_rules
    start = rules.target_start
    all_logits = lm.logits([ids], decoder_input_ids=[start]) if start else lm.logits([ids])
    logits = all_logits[:, -1, : rules.vocab_size].double().cpu()
    state = DecodingState(SamplingParams(), start or ids, ids, (), 1)
    process_logits(logits, [state], GenerationRules(rules.vocab_size, banned_ids=rules.banned_ids))
    return list(lm.text_tokenizer.readable_tokens[: rules.vocab_size]), logits[0]
