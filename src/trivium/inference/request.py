"""One text to generate, from the API to the engine and back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_stream import token_texts
from trivium.text import Tokenizer

FinishReason = Literal["stop", "length", "cancelled"]


class TokenLogprob(NamedTuple):
    """A generated token with its log-probability in nats, before temperature and penalties.

    `text` shows the bytes of a token that is not whole characters; `top` has the most probable
    tokens of that position, most probable first.
    """

    id: int
    text: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


def token_logprob(
    tokenizer: Tokenizer, previous: int | None, token_id: int, logprobs: Tensor, top: int
) -> TokenLogprob:
    """A token after another one or None, with the `top` best by their log-probabilities, [V]."""
    best = logprobs.topk(min(top, len(logprobs)))
    ids = [token_id, *best.indices.tolist()]
    text, *texts = token_texts(tokenizer, [(previous, index) for index in ids])
    others = tuple(map(TokenLogprob, ids[1:], texts, best.values.tolist()))
    return TokenLogprob(token_id, text, float(logprobs[token_id]), others)


class GenerationRequest:
    """A prompt with its sampling parameters, and what has been generated so far.

    Args:
        prompt_ids: what a decoder continues, or what the encoder of an encoder-decoder reads.
        params: how tokens are chosen.
        answers: the text is the answer in a conversation: a space that only separates it from the
            prompt is not part of it.

    Attributes:
        output_ids: generated tokens, without a stop id; those of a stop string are among them.
        end_id: the stop id that ended it, if one did.
        text: their text, as far as it is final: no stop string and no incomplete character.
        logprobs: one entry per token of `output_ids`, where `params.top_logprobs` is not None.
        finish_reason: None while generating; "stop" (end of text, a stop string or a complete
            choice), "length" (max_new_tokens or positions used up), "cancelled".
        seed: that of the parameters, or a random one.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        answers: bool = False,
    ) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.params = params or SamplingParams()
        self.answers = answers
        self.seed = secrets.randbits(31) if self.params.seed is None else self.params.seed
        self.output_ids: list[int] = []
        self.end_id: int | None = None
        self.logprobs: list[TokenLogprob] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None

    @property
    def finished(self) -> bool:
        """Whether the text is complete or cancelled."""
        return self.finish_reason is not None
