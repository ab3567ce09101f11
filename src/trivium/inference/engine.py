"""Generation of many texts at once: each running request occupies one slot of a shared cache.

Shape letters: B rows of a decode step, T tokens per row, V vocabulary.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from trivium.errors import SpecError, TriviumError
from trivium.inference.constraint import Constraint
from trivium.inference.decode_step import (
    UNFIXED_SHAPES,
    CUDAGraph,
    DecodeStep,
    captures_decoding,
    fuse_projections,
)
from trivium.inference.forward import (
    batch_by_length,
    check_prompt,
    prefill,
    recompute,
    vocabulary_logits,
)
from trivium.inference.logits_processors import DecodingState, next_choice_ids, process_logits
from trivium.inference.request import FinishReason, GenerationRequest, token_logprob
from trivium.inference.sampling import sample_tokens
from trivium.inference.sampling_params import check_bounds
from trivium.inference.speculative import Draft
from trivium.inference.text_model import TextModel
from trivium.inference.text_stream import StopStrings, TextStream

_SLOT_LENGTH = 2048
# The number of prompt tokens that one step prefills, so that running texts do not wait long. A
# longer prompt is prefilled whole, alone.
_PREFILL_TOKENS = 2048


class Engine:
    """Generates many texts at once by continuous batching (Yu et al. 2022, Orca).

    Each running request has one of a fixed number of cache slots. The requests in the same batch
    affect a text only through rounding, because matmuls of different shapes sum in different
    orders. This can matter if two tokens are almost equally probable.

    One thread at a time may use an engine.

    Args:
        lm: a `LanguageModel` that generates.
        slots: the number of texts generated at the same time; further requests wait.
        slot_length: the maximum number of tokens in a slot, including the prompt; it is limited to
            the model's context length.
        compile: whether to compile the decode step with `torch.compile`, with static shapes for
            all slots.
        draft: a source of draft tokens (speculative decoding); drafts change the speed, not the
            text.
        cuda_graph: whether to capture the decode step in a CUDA graph; None: on a GPU, if the
            shapes of the decode step do not depend on the tokens.
        fused: whether to compute query, key and value in one matmul, and gate and up in one, which
            may be faster on a GPU (`fuse_projections`).

    Raises:
        SpecError: `compile` is set and the model is not a Transformer, `compile` or `cuda_graph` is
            set and the shapes of the decode step depend on the tokens (experts), or `draft`
            proposes more tokens than the cache can roll back.
        TriviumError: `slots` is below 1, `compile` and `draft` are combined, or `cuda_graph` is set
            and the model is not on a GPU.
    """

    def __init__(
        self,
        lm: TextModel,
        *,
        slots: int = 8,
        slot_length: int = _SLOT_LENGTH,
        compile: bool = False,
        draft: Draft | None = None,
        cuda_graph: bool | None = None,
        fused: bool = False,
    ) -> None:
        check_bounds("slots", slots, {"ge": 1})
        if compile and draft is not None:
            raise TriviumError("a compiled decode step reads one token per text: drop the draft.")
        module = lm.module
        if compile and not module.spec.stacks:
            raise SpecError("a compiled decode step needs a Transformer: leave compile out.")
        for option, is_set in (("compile", compile), ("cuda_graph", cuda_graph)):
            if is_set and not module.has_fixed_shapes:
                raise SpecError(f"{UNFIXED_SHAPES}: leave {option} out.")
        if cuda_graph and module.device.type != "cuda":
            raise TriviumError("a CUDA graph needs a model on a GPU: leave cuda_graph out.")
        if cuda_graph is None:
            cuda_graph = captures_decoding(module)
        self.lm, self.slots = lm, slots
        self.slot_length = min(slot_length, module.spec.max_length or slot_length)
        self._module = fuse_projections(module) if fused else module
        self._rules, self.draft = lm.generation_rules, draft
        self._cache = module.new_cache(slots, self.slot_length)
        self._recompute_lengths = module.spec.recompute_lengths
        if draft is not None and draft.num_tokens > self._cache.max_crop:
            raise SpecError(
                f"the cache of this model can be rolled back by {self._cache.max_crop} tokens, "
                f"but drafts have up to {draft.num_tokens}: leave draft out."
            )
        self._states: list[_RequestState | None] = [None] * slots
        self._waiting: deque[_RequestState] = deque()
        self._finished: list[GenerationRequest] = []
        self.compiled = compile
        self._extend_texts = DecodeStep(
            self._module,
            self._cache,
            compile=compile,
            capture=CUDAGraph if cuda_graph else None,
            max_width=1 if draft is None else 1 + draft.num_tokens,
        )
        if draft is not None:
            draft.start(slots, self.slot_length)

    @property
    def num_active(self) -> int:
        """The number of requests that hold a slot."""
        return sum(state is not None for state in self._states)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether any request holds or waits for a slot."""
        return bool(self.num_active or self._waiting)

    def add(self, request: GenerationRequest) -> GenerationRequest:
        """Queue a request. Returns the same request.

        Raises:
            SpecError: the prompt is empty or longer than a cache slot, or a token id is out of
                vocabulary.
            TriviumError: one of the texts in `choices` has no tokens, or is a prefix of another one
                and the model has no EOS token to tell them apart. Or the JSON schema, the regular
                expression or the grammar is invalid, or cannot be used with the tokenizer.
        """
        rules, prompt = self._rules, request.prompt_ids
        check_prompt(self.lm, prompt)
        if not rules.decoder_start and len(prompt) > self.slot_length:
            raise SpecError(
                f"the prompt has {len(prompt)} tokens, but a slot of this engine holds "
                f"{self.slot_length}: shorten the prompt, or make an engine with longer slots."
            )
        rules.check_logit_bias(request.params)
        self._waiting.append(_RequestState(request, self.lm, self.slot_length))
        return request

    @torch.inference_mode()
    def cancel(self, request: GenerationRequest) -> None:
        """End a request with finish_reason "cancelled" and free its slot.

        A request that has already finished stays as it is.
        """
        for state in [*self._waiting, *self._running_states()]:
            if state.request is request:
                state.finish("cancelled")
                if state in self._waiting:
                    self._waiting.remove(state)
                else:
                    self._free_slot(state)

    @torch.inference_mode()
    def step(self) -> list[GenerationRequest]:
        """Run a decode step for all active requests, then prefill waiting requests.

        A prefill also generates the first token of a request.

        Returns:
            The requests that finished.
        """
        if self.num_active:
            self._decode_running()
        if self._waiting and self.num_active < self.slots:
            self._prefill_waiting()
        finished, self._finished = self._finished, []
        return finished

    def run(self) -> Iterator[GenerationRequest]:
        """Run steps until no request is left. Yields the requests as they finish."""
        while self.busy:
            yield from self.step()

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """Run steps until a request has finished. Yields the generated text piece by piece.

        Raises:
            TriviumError: the request was not added to this engine, or its constraint cannot be
                followed.
        """
        here = [*self._waiting, *self._running_states()]
        if not request.finished and all(state.request is not request for state in here):
            raise TriviumError("this request was not added to this engine: call add first.")
        return self._stream_pieces(request)

    def _stream_pieces(self, request: GenerationRequest) -> Iterator[str]:
        """Yield the text of a request in pieces, running a step whenever there is no new text."""
        length = 0
        while len(request.text) > length or not request.finished:
            if piece := request.text[length:]:
                length += len(piece)
                yield piece
            else:
                self.step()
        if request.error is not None:
            raise request.error

    def _running_states(self) -> list[_RequestState]:
        """Return the states of the requests that hold a slot."""
        return [state for state in self._states if state is not None]

    def _prefill_waiting(self) -> None:
        """Assign free slots to waiting requests, prefill them and generate their first tokens."""
        free = [slot for slot, state in enumerate(self._states) if state is None]
        batch: list[_RequestState] = []
        tokens = 0
        while self._waiting and len(batch) < len(free):
            tokens += len(self._waiting[0].request.prompt_ids)
            if batch and tokens > _PREFILL_TOKENS:
                break
            state = self._waiting.popleft()
            state.slot = free[len(batch)]
            self._states[state.slot] = state
            batch.append(state)
        lengths = [len(state.request.prompt_ids) for state in batch]
        for indices in batch_by_length(lengths, _PREFILL_TOKENS, min_ratio=0.75):
            group = [batch[index] for index in indices]
            hidden = prefill(
                self._module,
                self._cache,
                [state.slot for state in group],
                [state.request.prompt_ids for state in group],
                self._rules.decoder_start,
            )
            self._sample_next(hidden, group)

    def _decode_running(self) -> None:
        """Run a decode step: generate at least one token for every running text."""
        if not self.compiled and not self._waiting:
            self._compact_slots()
        running = self._running_states()
        drafts = self._propose_drafts(running)
        # Every text's last token, followed by its draft tokens.
        new = {
            state.slot: [state.request.output_ids[-1], *drafts.get(state.slot, ())]
            for state in running
        }
        longest = max(state.num_cached + len(new[state.slot]) for state in running)
        hidden = self._extend_texts(new, longest)
        expired = {
            state.slot: [*state.decoding.prompt, *state.request.output_ids]
            for state in running
            if state.num_cached in self._recompute_lengths
        }
        if expired:
            hidden[[*expired], 0] = recompute(self._module, self._cache, expired)
        if hidden.shape[1] == 1:
            self._sample_next(_select_slots(hidden[:, 0], running), running)
        else:
            self._verify_drafts(hidden, running, new)

    def _verify_drafts(
        self, hidden: Tensor, running: Sequence[_RequestState], new: Mapping[int, Sequence[int]]
    ) -> None:
        """Append the accepted tokens to each text, and crop the cache after the last one.

        Args:
            hidden: [slots, T, D], the hidden states of the tokens `new`.
            running: the states of the texts.
            new: slot -> last token and draft tokens.
        """
        texts = running
        for position in range(1, 1 + hidden.shape[1]):
            ids = self._sample_next(_select_slots(hidden[:, position - 1], texts), texts)
            # A draft token is accepted if the model chose the same token.
            texts = [
                state
                for state, token_id in zip(texts, ids, strict=True)
                if not state.request.finished
                and new[state.slot][position : position + 1] == [token_id]
            ]
            if not texts:
                break
        if active := [state for state in running if not state.request.finished]:
            slots, lengths = zip(*((state.slot, state.num_cached) for state in active), strict=True)
            self._cache.crop(*torch.tensor([slots, lengths], device=self._module.device))

    def _compact_slots(self) -> None:
        """Move texts to the lowest slots: a decode step also computes free slots below a text."""
        for slot in range(self.num_active):
            if self._states[slot] is None:
                state = self._running_states()[-1]
                source, target = torch.tensor([[state.slot], [slot]], device=self._module.device)
                self._cache.copy(source, target)
                self._free_slot(state)
                self._states[slot], state.slot = state, slot

    def _propose_drafts(self, running: Sequence[_RequestState]) -> dict[int, list[int]]:
        """Return each slot's draft tokens: fewer than the number of tokens left to generate.

        No text grows by draft tokens beyond a length at which its cached keys expire.
        """
        if self.draft is None:
            return {}
        texts, limits = {}, {}
        for state in running:
            request, cached = state.request, state.num_cached
            limit = min(self.draft.num_tokens, state.limit - len(request.output_ids) - 1)
            for length in self._recompute_lengths:
                if cached <= length:
                    limit = min(limit, length - cached - 1)
            if limit > 0:
                texts[state.slot] = [*request.prompt_ids, *request.output_ids]
                limits[state.slot] = limit
        vocab_size = self._rules.vocab_size
        return {
            slot: list(takewhile(lambda token_id: token_id < vocab_size, ids))
            for slot, ids in self.draft.propose(texts, limits).items()
        }

    def _sample_next(self, hidden: Tensor, states: Sequence[_RequestState]) -> list[int]:
        """Sample each text's next token from hidden states [B, D], append it, and return it."""
        logits, vocab_size = vocabulary_logits(self._module, hidden), self._rules.vocab_size
        recorded = [
            None if state.request.params.top_logprobs is None else row.log_softmax(-1)[:vocab_size]
            for state, row in zip(states, logits)
        ]
        logits = logits[:, :vocab_size]
        process_logits(logits, [state.decoding for state in states], self._rules)
        params = [state.request.params for state in states]
        ids = sample_tokens(logits, params, [state.random.random() for state in states]).tolist()
        for state, token_id, logprobs in zip(states, ids, recorded, strict=True):
            state.append(token_id, logprobs)
            if state.request.finished:
                self._finished.append(state.request)
                self._free_slot(state)
        return ids

    def _free_slot(self, state: _RequestState) -> None:
        """Free the slot of a request and the cache of the slot."""
        self._states[state.slot] = None
        self._cache.free(state.slot)


class _RequestState:
    """The state of a waiting or running request: random generator, decoding state, text stream."""

    def __init__(self, request: GenerationRequest, lm: TextModel, slot_length: int) -> None:
        params, tokenizer, rules = request.params, lm.text_tokenizer, lm.generation_rules
        self.request, self.slot = request, -1
        self.limit = rules.max_tokens(request.prompt_ids, params.max_new_tokens, slot_length)
        self.random = random.Random(request.seed)
        self._tokenizer, self._rules = tokenizer, rules
        decoder_prompt = rules.decoder_start or request.prompt_ids
        choices = tokenizer.encode_ids_batch(list(params.choices))
        _check_choices(choices, rules.stop_ids)
        constraint = Constraint.from_params(
            params, tokenizer, rules.stop_ids, leading_space=request.answers
        )
        self.decoding = DecodingState(
            params,
            decoder_prompt,
            request.prompt_ids,
            request.output_ids,
            self.limit,
            choices,
            constraint,
        )
        context = () if rules.decoder_start else request.prompt_ids
        self._stream = TextStream(tokenizer, context, shown_ids=request.shown_ids)
        self._stop = StopStrings(params.stop)
        self._last = context[-1] if context else None

    @property
    def num_cached(self) -> int:
        """The number of tokens in the cache: all tokens except the last generated one."""
        return len(self.decoding.prompt) + max(0, len(self.request.output_ids) - 1)

    def append(self, token_id: int, logprobs: Tensor | None) -> None:
        """Append a generated token, or end the text at a stop id.

        Args:
            logprobs: the log-probabilities [V] at this position, which are recorded in the request;
                None: nothing is recorded.
        """
        request = self.request
        choices, stop_ids = self.decoding.choices, self._rules.stop_ids
        constraint = self.decoding.constraint
        if len(request.output_ids) < len(self._rules.forced_start):
            constraint = None
        if constraint is not None and token_id not in stop_ids:
            constraint.append(token_id)
        if constraint is not None and constraint.error:
            request.error = TriviumError(f"the text cannot be constrained: {constraint.error}.")
            self.finish("cancelled")
            return
        if token_id in stop_ids:
            request.end_id = token_id
            self.finish("stop")
            return
        if logprobs is not None:
            last = request.output_ids[-1] if request.output_ids else self._last
            top = request.params.top_logprobs or 0
            request.logprobs.append(token_logprob(self._tokenizer, last, token_id, logprobs, top))
        request.output_ids.append(token_id)
        length = len(request.text)
        self._append_text(self._stop.push(self._stream.push(token_id)))
        if self._stop.matched:
            request.finish_reason = "stop"
        elif (
            (choices and not next_choice_ids(choices, request.output_ids, stop_ids))
            or (constraint is not None and constraint.is_complete)
            or (request.is_complete is not None and request.is_complete(request.text[length:]))
        ):
            self.finish("stop")
        elif len(request.output_ids) >= self.limit:
            self.finish("length")

    def finish(self, reason: FinishReason) -> None:
        """End the text: append the characters held back by the streams, and set the reason."""
        self._append_text(self._stop.push(self._stream.finish(), last=True))
        self.request.finish_reason = "stop" if self._stop.matched else reason

    def _append_text(self, piece: str) -> None:
        """Append a piece to the request's text; the leading space of a chat answer is removed."""
        if self.request.answers and not self.request.text:
            piece = piece.removeprefix(" ")
        self.request.text += piece


def _select_slots(hidden: Tensor, states: Sequence[_RequestState]) -> Tensor:
    """Return the rows of the hidden states for some requests' slots: [slots, D] -> [B, D]."""
    return hidden if len(states) == len(hidden) else hidden[[state.slot for state in states]]


def _check_choices(choices: Sequence[Sequence[int]], stop_ids: Collection[int]) -> None:
    """Raise TriviumError if a choice is empty, or a prefix of another and no stop id exists."""
    if not all(choices):
        raise TriviumError("a choice has no tokens: give texts that are not empty.")
    if not stop_ids and any(next_choice_ids(choices, one, ()) for one in choices):
        raise TriviumError(
            "one choice is the beginning of another, and this model has no token that ends a "
            "text: use choices that differ before either ends."
        )
