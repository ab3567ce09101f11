"""The options of generation, each with its type, default, bounds and description in one place.

`LanguageModel.generate`, the command line, the server's JSON and the playground's controls are
derived from the fields of `SamplingParams`; `SamplingOptions` repeats the fields for type checkers.
Only the server's temperature has a different default: 1, as in OpenAI's API (`serve/schemas.py`).
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, Self, TypedDict

from trivium.config import option
from trivium.errors import TriviumError, did_you_mean

_BOUNDS = {
    "ge": ("at least", operator.ge),
    "gt": ("more than", operator.gt),
    "le": ("at most", operator.le),
}


@dataclass(frozen=True, kw_only=True)
class DecodingParams:
    """Options of both sampling and beam search: penalties, biases and rules that change logits.

    Raises:
        TriviumError: a value of the wrong type, or outside its bounds.
    """

    repetition_penalty: float = option(
        1.0,
        "above 1, tokens of the text and of a decoder's prompt become less probable",
        ge=0.01,
        le=100,
    )
    presence_penalty: float = option(
        0.0, "subtracted once from the logit of every generated token", ge=-100, le=100
    )
    frequency_penalty: float = option(
        0.0, "subtracted from a token's logit for each time it was generated", ge=-100, le=100
    )
    logit_bias: Mapping[int, float] = option(
        (), "token id -> number from -100 to 100 added to its logit; -100 rules a token out"
    )
    no_repeat_ngram: int = option(
        0, "no n-gram of this size occurs twice, a decoder's prompt included; 0: any may", ge=0
    )
    min_new_tokens: int = option(0, "tokens before a text may end", ge=0)

    def __post_init__(self) -> None:
        """Check types and bounds, and store `logit_bias` as a new dict."""
        check_options(self)
        biases = self.logit_bias or {}
        if not isinstance(biases, Mapping):
            raise TriviumError(f"logit_bias is {biases!r}, but must be a dict: token id -> number.")
        object.__setattr__(self, "logit_bias", dict(biases))
        for token_id, bias in biases.items():
            if not isinstance(token_id, Integral):
                raise TriviumError(f"logit_bias has {token_id!r}, but its keys must be token ids.")
            name = f"logit_bias of token {token_id}"
            check_bounds(name, bias, {"ge": -100, "le": 100}, Real)

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the options with `changes` applied."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class SamplingParams(DecodingParams):
    """Options of sampling and of stopping, named as in `transformers` and OpenAI's API.

    The fields apply in this order: penalties and biases, temperature, top-k, top-p, min-p.

    >>> SamplingParams(temperature=0.0).greedy
    True
    >>> SamplingParams(top_p=2.0)
    Traceback (most recent call last):
    trivium.errors.TriviumError: top_p is 2.0, but must be more than 0 and at most 1.

    Raises:
        TriviumError: a value of the wrong type, or outside its bounds.
    """

    max_new_tokens: int = option(64, "largest number of tokens to generate", ge=1)
    temperature: float = option(
        0.8, "logits are divided by it; 0 is greedy, above 1 more random", ge=0, le=100
    )
    top_k: int | None = option(None, "sample among the k most probable tokens only", ge=1)
    top_p: float | None = option(
        None, "sample among the fewest tokens whose probabilities sum to p", gt=0, le=1
    )
    min_p: float | None = option(
        None, "sample among tokens at least this fraction as probable as the best", ge=0, le=1
    )
    stop: Sequence[str] = option((), "strings that end the text and are not part of it")
    choices: Sequence[str] = option((), "the only texts that may be generated; none: any text")
    json_schema: Mapping[str, Any] | None = option(
        None, "a JSON schema that the text follows; {} allows any JSON"
    )
    regex: str | None = option(None, "a regular expression that matches the whole text")
    grammar: str | None = option(
        None, "a grammar that the text follows, in llguidance's variant of the syntax of Lark"
    )
    seed: int | None = option(None, "the same seed gives the same text; none: a random one", ge=0)
    top_logprobs: int | None = option(
        None, "record each token's log-probability and those of the k most probable tokens", ge=0
    )

    def __post_init__(self) -> None:
        """Check types, bounds and constraints, and store `stop` and `choices` as tuples."""
        super().__post_init__()
        for name in ("stop", "choices"):
            texts = getattr(self, name)
            texts = (texts,) if isinstance(texts, str) else texts
            if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
                raise TriviumError(f"{name} is {texts!r}, but must be a string or a list of them.")
            if not all(texts):
                raise TriviumError(f"{name} has an empty string: leave it out.")
            object.__setattr__(self, name, tuple(texts))
        if not isinstance(self.json_schema, Mapping | None):
            raise TriviumError(f"json_schema is {self.json_schema!r}, but must be a dict.")
        for name in ("regex", "grammar"):
            if not isinstance(getattr(self, name), str | None):
                raise TriviumError(f"{name} is {getattr(self, name)!r}, but must be a string.")
        constraints = ("choices", "json_schema", "regex", "grammar")
        given = [name for name in constraints if getattr(self, name) not in (None, ())]
        if len(given) > 1:
            raise TriviumError(f"{' and '.join(given)} are set, but a text can follow only one.")

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy: always the most probable token (temperature below 1e-5)."""
        return self.temperature < 1e-5


@dataclass(frozen=True)
class BeamSearchParams(DecodingParams):
    """Options of beam search, with the same meanings as in `transformers`.

    Raises:
        TriviumError: a value of the wrong type, or outside its bounds.
    """

    num_beams: int = option(4, "texts kept at every step; 1 is greedy", ge=1)
    length_penalty: float = option(
        1.0, "scores are divided by length to this power: above 0 favours long texts"
    )
    early_stopping: bool | Literal["never"] = option(
        False,
        "true: stop at num_beams finished texts; false: when the best unfinished one scores no "
        'better at its present length; "never": when it could not at any length',
    )
    num_return: int = option(1, "finished texts returned per prompt, at most num_beams", ge=1)

    def __post_init__(self) -> None:
        """Check types, bounds, `early_stopping`, and that `num_return` is at most `num_beams`."""
        super().__post_init__()
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise TriviumError(
                f'early_stopping is {self.early_stopping!r}, but must be True, False or "never".'
            )
        if self.num_return > self.num_beams:
            raise TriviumError(
                f"num_return is {self.num_return}, but must be at most num_beams, {self.num_beams}."
            )


class DecodingOptions(TypedDict, total=False):
    """The fields of `DecodingParams` as keyword arguments; a test checks that both agree."""

    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    no_repeat_ngram: int
    min_new_tokens: int


class SamplingOptions(DecodingOptions, total=False):
    """The fields of `SamplingParams` as keyword arguments."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    stop: Sequence[str]
    choices: Sequence[str]
    json_schema: Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    seed: int | None
    top_logprobs: int | None


class BeamSearchOptions(DecodingOptions, total=False):
    """The fields of `BeamSearchParams` as keyword arguments."""

    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    num_return: int


class GenerationOptions(SamplingOptions, total=False):
    """The options of `generate`: those of sampling, or, with `num_beams`, of beam search."""

    num_beams: int | None
    length_penalty: float
    early_stopping: bool | Literal["never"]


_CONFIG_NAMES = {"no_repeat_ngram_size": "no_repeat_ngram", "stop_strings": "stop"}


def options_from_config(
    config: Mapping[str, Any], params: type[DecodingParams], prompt_length: int
) -> dict[str, Any]:
    """Return the fields of `params` that a `generation_config.json` sets, given a prompt length.

    `max_length` and `min_length` include the decoder's prompt. They are ignored unless they are
    larger than `prompt_length`: many files have an unused `max_length` of 20. If `do_sample` is
    true, a temperature or top-k that the file lacks is 1 or 50, as in `transformers`. If
    `do_sample` is false, decoding is greedy.
    """
    options = {_CONFIG_NAMES.get(name, name): v for name, v in config.items() if v is not None}
    if options.get("do_sample"):
        options = {"temperature": 1.0, "top_k": 50, **options}
    elif "do_sample" in options:
        options["temperature"] = 0.0
    if options.get("top_k") == 0:
        del options["top_k"]
    for bound in ("max", "min"):
        length = options.get(f"{bound}_length")
        if isinstance(length, int) and length > prompt_length:
            options.setdefault(f"{bound}_new_tokens", length - prompt_length)
    names = [field.name for field in dataclasses.fields(params) if field.name in options]
    return {name: options[name] for name in names}


def check_option_names(params: type[DecodingParams], options: Iterable[str]) -> None:
    """Raise TriviumError for an option name that is not a field of the class `params`."""
    beams = params is BeamSearchParams
    known = [field.name for field in dataclasses.fields(params)]
    for name in options:
        if name not in known:
            other = hasattr(SamplingParams if beams else BeamSearchParams, name)
            way = "leave it or num_beams out" if beams else "generate with num_beams"
            raise TriviumError(
                f"{name} is not an option of {'beam search' if beams else 'sampling'}"
                f"{f': {way}' if other else ''}. The options are {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )


def check_bounds(name: str, value: Any, bounds: Mapping[str, Any], kind: type = Integral) -> None:
    """Raise TriviumError unless `value` is a finite number of type `kind` within the bounds."""
    limits = [(words, test, bounds[key]) for key, (words, test) in _BOUNDS.items() if key in bounds]
    allowed = " and ".join(f"{words} {limit}" for words, _, limit in limits)
    if not isinstance(value, kind) or isinstance(value, bool):
        number = "a whole number" if kind is Integral else "a number"
        raise TriviumError(f"{name} is {value!r}, but must be {f'{number} {allowed}'.rstrip()}.")
    if not math.isfinite(value) or not all(test(value, limit) for _, test, limit in limits):
        raise TriviumError(f"{name} is {value}, but must be {allowed or 'a finite number'}.")


def check_options(options: Any) -> None:
    """Raise TriviumError if a numeric field of a dataclass has a wrong type or is out of bounds."""
    for field in dataclasses.fields(options):
        value, kinds = getattr(options, field.name), str(field.type).split(" | ")
        if ("int" in kinds or "float" in kinds) and not (value is None and "None" in kinds):
            kind = Integral if "int" in kinds else Real
            check_bounds(field.name, value, field.metadata, kind)
