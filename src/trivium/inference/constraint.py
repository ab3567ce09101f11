"""Structured output: texts that follow a JSON schema, a regular expression or a grammar.

The library llguidance (the extra `structured`) computes which tokens may follow. Shape letter: V
vocabulary.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trivium.errors import TriviumError, require_extra, shorten
from trivium.inference.sampling_params import SamplingParams
from trivium.text import Tokenizer

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The whitespace of generated JSON, that of `json.dumps`. Free whitespace may have no end."""

_EXCERPT = re.compile(r"\s*(\d+ \||\^$)")
_POSITION = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_LOCK = threading.Lock()


class Constraint:
    """The constraint of one text: which tokens may follow the tokens so far.

    Args:
        tokenizer: the tokenizer of the text.
        stop_ids: the ids that end the text. They are allowed where the text may end.
        grammar: a grammar in llguidance's variant of the syntax of Lark.
        option: the option that sets the constraint, for error messages.

    Raises:
        TriviumError: the grammar is invalid, or the decoder of the tokenizer adds spaces.
        MissingExtraError: llguidance is not installed.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: frozenset[int], grammar: str, option: str = "grammar"
    ) -> None:
        with _LOCK:  # the server checks grammars in other threads than that of the engine
            matcher = _cached_matcher(tokenizer, stop_ids, grammar)
            if matcher.is_error():
                raise TriviumError(f"{option} cannot be used: {_summarize(matcher.get_error())}.")
            self._matcher = matcher.deep_copy()

    @classmethod
    def from_params(
        cls,
        params: SamplingParams,
        tokenizer: Tokenizer,
        stop_ids: frozenset[int],
        *,
        leading_space: bool = False,
    ) -> Constraint | None:
        """Return the constraint that `json_schema`, `regex` or `grammar` sets, or None.

        `leading_space` is whether the text may begin with a space that is not part of the
        constraint. Raises the same errors as the class.
        """
        if params.grammar is not None:
            return cls(tokenizer, stop_ids, params.grammar)
        rule = output_rule(json_schema=params.json_schema, regex=params.regex)
        if rule is None:
            return None
        start = '" "? output' if leading_space else "output"
        grammar = f"start: {start}\noutput: {rule}\n"
        option = "regex" if params.json_schema is None else "json_schema"
        return cls(tokenizer, stop_ids, grammar, option)

    def allowed_tokens(self, vocab_size: int) -> Tensor | None:
        """Return which tokens may follow, bool [V].

        Returns None if llguidance gives up because the grammar is too complex; see `error`.
        """
        mask = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        return None if self._matcher.is_error() else mask[:vocab_size] != 0

    def append(self, token_id: int) -> None:
        """Append a token that is not a stop id."""
        self._matcher.consume_token(token_id)

    @property
    def is_complete(self) -> bool:
        """Whether no token may follow."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """The reason why llguidance cannot continue the text; empty if it can."""
        return _summarize(self._matcher.get_error())


def _summarize(error: str) -> str:
    """Return an error message of llguidance without its excerpt of the grammar."""
    lines = (line.strip() for line in error.splitlines() if not _EXCERPT.match(line))
    return shorten(_POSITION.sub("", " ".join(filter(None, lines))), 300).rstrip(".")


def output_rule(
    *,
    json_schema: Mapping[str, Any] | None = None,
    regex: str | None = None,
    choices: Sequence[str] = (),
) -> str | None:
    """Return the right side of a rule of a Lark grammar for one of the constraints, or None."""
    if json_schema is not None:
        return json_rule(json_schema)
    if regex is not None:
        return "/" + _library().regex_to_lark(regex, "") + "/"
    return " | ".join(map(literal, choices)) or None


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the right side of a rule for JSON that follows a schema, on one line.

    The key "x-guidance" of a schema may set other whitespace; see llguidance.
    """
    style = {**_JSON_STYLE, **(schema.get("x-guidance") or {})}
    return f"%json {json.dumps({**schema, 'x-guidance': style})}"


def literal(text: str) -> str:
    """Return a text as a literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


@functools.lru_cache(maxsize=32)
def _cached_matcher(tokenizer: Tokenizer, stop_ids: frozenset[int], grammar: str) -> Any:
    """Return the matcher of a grammar in its first state, which callers must copy."""
    return _library().LLMatcher(_cached_tokenizer(tokenizer, stop_ids), grammar, log_level=0)


@functools.lru_cache(maxsize=4)
def _cached_tokenizer(tokenizer: Tokenizer, stop_ids: frozenset[int]) -> Any:
    """Return the tokenizer as llguidance needs it: the bytes of each token.

    Raises TriviumError if the decoder of the tokenizer adds spaces between tokens.
    """
    library = _library()
    if not tokenizer.joins_bytes:
        raise TriviumError(
            f"the decoder of a {tokenizer.kind} tokenizer adds spaces between tokens, so that its "
            "texts cannot be constrained: use a model with a byte-bpe, bpe or unigram tokenizer."
        )
    view = library.TokenizerWrapper(_TokenizerView(tokenizer, stop_ids))
    return library.LLTokenizer(view, eos_token=sorted(stop_ids) or [tokenizer.vocab_size])


class _TokenizerView:
    """The attributes of a tokenizer that llguidance reads.

    The vocabulary has one more token, which ends a text if the model has no stop id. The model
    cannot generate this token.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [*tokenizer.token_bytes, b"<|end of text|>"]
        self.eos_token_id = min(stop_ids, default=tokenizer.vocab_size)
        self.special_token_ids = sorted({*tokenizer.special_ids, *stop_ids, tokenizer.vocab_size})

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text that follows other text, without a space before it."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        tokens, data = [self.tokens[i] for i in ids], text.encode()
        if b"".join(tokens) == b" " + data:  # the tokenizer puts a space before a text
            tokens = [token for token in (tokens[0][1:], *tokens[1:]) if token]
        if b"".join(tokens) == data and all(token in self._ids for token in tokens):
            return [self._ids[token] for token in tokens]
        return self._encode_greedily(data)

    def _encode_greedily(self, data: bytes) -> list[int]:
        """Return the ids of the longest tokens that match, up to bytes that no token has."""
        ids, start = list[int](), 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[data[start:end]])
            start = end
        return ids

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        """The id of each token that is not special, by its bytes."""
        special = {*self.special_token_ids}
        return {each: i for i, each in enumerate(self.tokens) if each and i not in special}

    @functools.cached_property
    def _longest(self) -> int:
        """The number of bytes of the longest token."""
        return max(map(len, self._ids), default=0)


def _library() -> ModuleType:
    """Import llguidance. Raises MissingExtraError if it is not installed."""
    with require_extra("structured output", "structured"):
        import llguidance
    return llguidance
