"""Token ids through a model: whole inputs in batches, and texts in the slots of a cache.

Shape letters: B rows, T tokens, S positions of a source, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError
from trivium.inference.text_model import TextModel
from trivium.models import LanguageModule
from trivium.nn.context import check_length
from trivium.nn.state import Cache

Ids = Sequence[int]

_BATCH_TOKENS = 4096
_MASKED_TOKENS = 8192  # Of rows in which a token each is masked, read together.


def length_batches(
    lengths: Sequence[int],
    max_tokens: int,
    *,
    min_ratio: float = 0.0,
    counts: Sequence[int] | None = None,
) -> Iterator[list[int]]:
    """Indices of rows in batches of similar lengths, the longest first.

    Args:
        lengths: tokens of every row.
        max_tokens: tokens of a batch, padding included; a longer row is a batch of its own.
        min_ratio: of the shortest row of a batch to its longest.
        counts: rows that each index stands for; None: one.
    """
    batch: list[int] = []
    rows = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        longest = lengths[batch[0]] if batch else 0
        count = 1 if counts is None else counts[index]
        full = (rows + count) * longest > max_tokens
        if batch and (full or lengths[index] < min_ratio * longest):
            yield batch
            batch, rows = [], 0
        batch.append(index)
        rows += count
    if batch:
        yield batch


def pad_rows(rows: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Rows padded on the right, int64 [B, T], and their lengths, int64 [B]; None: all are T."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.int64)
    if min(lengths) == longest:
        return ids.to(device), None
    return ids.to(device), torch.tensor(lengths).to(device)


def padding_mask(lengths: Tensor | None, longest: int) -> Tensor | None:
    """Which of `longest` positions are real: bool [B, T]; None: all."""
    if lengths is None:
        return None
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def hidden_states(
    lm: TextModel,
    inputs: Sequence[Ids],
    *,
    token_type_ids: Sequence[Ids] | None = None,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Hidden states of inputs of any lengths, batch by batch.

    An encoder-decoder reads an input on both sides, its decoder shifted right by one token (Lewis
    et al. 2019, section 3.1).

    Args:
        lm: any model.
        inputs: ids, at least one each.
        token_type_ids: sentence A or B, used by models that have token types.

    Returns:
        Of each batch the indices of its inputs, hidden states [B, T, D], and bool [B, T]: which
        tokens are real.

    Raises:
        SpecError: an input longer than the model's context length.
    """
    module = lm.module
    for row in inputs:
        check_ids(row, module.spec.source_size)
    for batch in length_batches([len(ids) for ids in inputs], _BATCH_TOKENS):
        ids, lengths = pad_rows([inputs[index] for index in batch], module.device)
        mask = padding_mask(lengths, ids.shape[1])
        model_inputs = {"attention_mask": mask}
        if token_type_ids is not None and module.spec.reads_token_types:
            types, _ = pad_rows([token_type_ids[index] for index in batch], module.device)
            model_inputs["token_type_ids"] = types
        if module.spec.family == "encoder-decoder":
            first = ids.new_full((len(ids), 1), lm.generation_rules.decoder_start[0])
            model_inputs["decoder_input_ids"] = torch.cat((first, ids[:, :-1]), 1)
        hidden = module(ids, **model_inputs)
        yield batch, hidden, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask


def masked_states(
    lm: TextModel, ids: Ids, positions: Sequence[int], max_length: int | None
) -> Tensor:
    """Hidden states [M, D] of some positions of a text, each masked in a row of its own.

    Args:
        lm: a model with an encoder alone.
        ids: of the text between its special tokens.
        positions: M of them.
        max_length: of a longer text a row is the window around the position, between the same
            special tokens; None: rows are whole texts.

    Raises:
        TokenizerError: the tokenizer has no mask token.
    """
    tokenizer, device = lm.source_tokenizer, lm.module.device
    check_ids(ids, lm.module.spec.source_size)
    if tokenizer.mask_id is None:
        raise TokenizerError("this tokenizer has no mask token, which scoring by an encoder needs.")
    prefix, suffix = len(lm.source_frame.before), len(lm.source_frame.after)
    length = min(len(ids), max_length or len(ids))
    width = max(1, length - prefix - suffix)
    text, columns = torch.tensor(ids, device=device), torch.arange(len(ids), device=device)
    hidden = []
    for some in torch.tensor(positions, device=device).split(max(1, _MASKED_TOKENS // length)):
        starts = (some - width // 2).clamp(prefix, len(ids) - suffix - width)
        first, last = columns[:prefix], columns[len(ids) - suffix :]
        inner, count = starts[:, None] + columns[:width], len(some)
        rows = text[torch.cat((first.expand(count, -1), inner, last.expand(count, -1)), 1)]
        row, column = torch.arange(count, device=device), some - starts + prefix
        if lm.module.spec.query_stream:  # masked is what is not known: no token stands for it
            masked = (rows == tokenizer.mask_id).index_put((row, column), torch.tensor(True))
            predicted = lm.module(rows, order=masked.long(), predicted=column[:, None])
            hidden.append(predicted[:, 0])
            continue
        rows[row, column] = tokenizer.mask_id
        hidden.append(lm.module(rows, select=row * rows.shape[1] + column))
    return torch.cat(hidden)


def extend(
    module: LanguageModule,
    cache: Cache,
    ids: Tensor,
    *,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Append tokens, int64 [B, T], to texts in a cache: hidden states [B, T, D].

    Args:
        slots: int64 [B]; None: the first B.
        lengths: int64 [B], real tokens per row; None: all.
    """
    if module.spec.family == "encoder-decoder":
        return module(decoder_input_ids=ids, cache=cache, slots=slots, lengths=lengths)
    return module(ids, cache=cache, slots=slots, lengths=lengths)


def prefill(
    module: LanguageModule,
    cache: Cache,
    slots: Sequence[int],
    prompts: Sequence[Ids],
    decoder_start: Ids = (),
) -> Tensor:
    """Append prompts to slots: hidden states of their last tokens, [B, D].

    The encoder of an encoder-decoder reads the prompts, its decoder `decoder_start`.
    """
    slot_ids = torch.tensor(slots, device=module.device)
    if module.spec.family == "encoder-decoder":
        sources, lengths = pad_rows(prompts, module.device)
        mask = padding_mask(lengths, sources.shape[1])
        cache.remember(slot_ids, module.encode(sources, attention_mask=mask), mask)
        prompts = [decoder_start] * len(prompts)
    ids, lengths = pad_rows(prompts, module.device)
    hidden = extend(module, cache, ids, slots=slot_ids, lengths=lengths)
    if lengths is None:
        return hidden[:, -1]
    return hidden[torch.arange(len(prompts), device=module.device), lengths - 1]


def vocabulary_logits(module: LanguageModule, hidden: Tensor) -> Tensor:
    """Logits over all rows of the embedding matrix, at least float32: [..., D] -> [..., V]."""
    logits = module.logits(hidden)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def vocabulary_log_probabilities(module: LanguageModule, hidden: Tensor, vocab_size: int) -> Tensor:
    """The first `vocab_size` of the log-softmax over all logits: [..., D] -> [..., V].

    A model's embedding matrix may be padded beyond its tokenizer. As in training and in
    `transformers` its padding counts, which has little probability.
    """
    return vocabulary_logits(module, hidden).log_softmax(-1)[..., :vocab_size]


def check_prompt(lm: TextModel, prompt: Ids) -> None:
    """Raise SpecError for a prompt that is empty, too long or has ids outside the vocabulary."""
    if not prompt:
        raise SpecError("a prompt has no tokens: start with at least one.")
    check_length(len(prompt), lm.context_length)
    check_ids(prompt, lm.module.spec.source_size, "the prompt")


def check_ids(ids: Ids, limit: int, what: str = "a text") -> None:
    """Raise SpecError for an id that is not below `limit`, the rows of the embedding."""
    for token_id in ids:
        if not 0 <= token_id < limit:
            raise SpecError(f"{what} has id {token_id}, but this model takes 0 to {limit - 1}.")
