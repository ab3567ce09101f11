"""A generation request, which passes from the API to the engine and back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from trivium.errors import TriviumError
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_stream import token_texts
from trivium.text import Tokenizer

FinishReason = Literal["stop", "length", "cancelled"]


class TokenLogprob(NamedTuple):
    """A generated token with its log-probability in nats, before temperature and penalties.

    If the token's bytes are not complete characters, `text` shows the bytes. `top` contains the
    most probable tokens at the same position, most probable first.
    """

    id: int
    text: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


def token_logprob(
    tokenizer: Tokenizer, previous: int | None, token_id: int, logprobs: Tensor, top: int
) -> TokenLogprob:
    """Return a token's log-probability and the `top` most probable tokens, from `logprobs` [V].

    The texts of the tokens depend on the `previous` token (None: there is none).
    """
    best = logprobs.topk(min(top, len(logprobs)))
    ids = [token_id, *best.indices.tolist()]
    text, *texts = token_texts(tokenizer, [(previous, index) for index in ids])
    others = tuple(map(TokenLogprob, ids[1:], texts, best.values.tolist()))
    return TokenLogprob(token_id, text, float(logprobs[token_id]), others)


class GenerationRequest:
    """A prompt with its sampling parameters, and the output generated so far.

    Args:
        prompt_ids: the ids that a decoder continues, or that the encoder of an encoder-decoder
            reads.
        params: the sampling parameters.
        answers: whether the output is an answer in a conversation. If so, its leading space is
            removed, because the space only separates the answer from the prompt.
        shown_ids: the special tokens whose names are part of the text, such as Mistral's
            `[TOOL_CALLS]`.
        is_complete: called with each new piece of the text; the text ends where it returns True.

    Attributes:
        output_ids: the generated tokens, without a stop id but including those of a stop string.
        end_id: the stop id that ended the text, if any.
        text: the text generated so far; it excludes stop strings, a possible start of a stop
            string, and incomplete characters.
        logprobs: one entry per token of `output_ids` if `params.top_logprobs` is not None.
        finish_reason: None while generating; "stop" (end of text, a stop string, a complete
            choice, or `is_complete`), "length" (max_new_tokens reached, or no positions left),
            "cancelled".
        seed: the seed in the parameters, or a random seed.
        error: why the text was cancelled, if its constraint cannot be followed further.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        answers: bool = False,
        shown_ids: Collection[int] = (),
        is_complete: Callable[[str], bool] | None = None,
    ) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.params = params or SamplingParams()
        self.answers, self.shown_ids, self.is_complete = answers, shown_ids, is_complete
        self.seed = secrets.randbits(31) if self.params.seed is None else self.params.seed
        self.output_ids: list[int] = []
        self.end_id: int | None = None
        self.logprobs: list[TokenLogprob] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.error: TriviumError | None = None

    @property
    def finished(self) -> bool:
        """Whether the text is complete or cancelled."""
        return self.finish_reason is not None
