"""Forward passes of a model: over batches of whole inputs, or over texts in a cache's slots.

Shape letters: B rows, T tokens, S positions of a source, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError
from trivium.inference.text_model import TextModel
from trivium.models import LanguageModule
from trivium.nn.sequence_info import check_length
from trivium.nn.state import Cache

Ids = Sequence[int]

_BATCH_TOKENS = 4096
_MASKED_TOKENS = 8192  # Per forward pass of rows that mask one token each.


def batch_by_length(
    lengths: Sequence[int],
    max_tokens: int,
    *,
    min_ratio: float = 0.0,
    counts: Sequence[int] | None = None,
) -> Iterator[list[int]]:
    """Group rows of similar lengths into batches. Yields the row indices of each batch.

    The batch with the longest rows comes first.

    Args:
        lengths: the number of tokens in every row.
        max_tokens: the maximum number of tokens in a batch, including padding; a longer row is a
            batch of its own.
        min_ratio: the minimum ratio of a batch's shortest row to its longest row.
        counts: the number of rows that each index stands for; None: one row each.
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
    """Return right-padded rows, int64 [B, T], and their lengths, int64 [B] (None: all are T)."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.int64)
    if min(lengths) == longest:
        return ids.to(device), None
    return ids.to(device), torch.tensor(lengths).to(device)


def padding_mask(lengths: Tensor | None, longest: int) -> Tensor | None:
    """Return the attention mask of right-padded rows, bool [B, `longest`], False for padding.

    Returns None if `lengths` is None (no row is padded).
    """
    if lengths is None:
        return None
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def hidden_states(
    lm: TextModel, inputs: Sequence[Ids], *, token_type_ids: Sequence[Ids] | None = None
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield the hidden states of inputs of any lengths, batch by batch.

    In an encoder-decoder, both the encoder and the decoder read the input; the decoder reads it
    shifted right by one token (Lewis et al. 2019, section 3.1).

    Args:
        lm: any model.
        inputs: the token ids of every input; at least one id each.
        token_type_ids: the token type (sentence A or B) of every token; ignored if the model does
            not use token types.

    Returns:
        For each batch, the indices of its inputs, the hidden states [B, T, D], and a mask, bool
        [B, T], that is False for padding.

    Raises:
        SpecError: an input is longer than the model's context length, or an id is out of
            vocabulary.
    """
    module = lm.module
    for row in inputs:
        check_ids(row, module.spec.input_vocab_size)
    for batch in batch_by_length([len(ids) for ids in inputs], _BATCH_TOKENS):
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
    """Return the hidden states [M, D] that predict the tokens at M positions of a text.

    The forward pass has one row per position, in which only this position is masked.

    Args:
        lm: an encoder-only model.
        ids: the ids of the text, including the special tokens around it.
        positions: the M positions.
        max_length: the maximum length of a row. If the text is longer, each row is a window around
            its position, with the same special tokens around it. None: any length.

    Raises:
        TokenizerError: the tokenizer has no mask token.
    """
    tokenizer, device = lm.source_tokenizer, lm.module.device
    check_ids(ids, lm.module.spec.input_vocab_size)
    if tokenizer.mask_id is None:
        raise TokenizerError("this tokenizer has no mask token, which scoring by an encoder needs.")
    prefix, suffix = len(lm.source_template.before), len(lm.source_template.after)
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
        if lm.module.spec.query_stream:  # the order hides the token: no mask needed
            masked = (rows == tokenizer.mask_id).index_put((row, column), torch.tensor(True))
            predicted = lm.module(rows, order=masked.long(), predicted=column[:, None])
            hidden.append(predicted[:, 0])
            continue
        rows[row, column] = tokenizer.mask_id
        hidden.append(lm.module(rows, gather_positions=row * rows.shape[1] + column))
    return torch.cat(hidden)


def extend(
    module: LanguageModule,
    cache: Cache,
    ids: Tensor,
    *,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Append tokens, int64 [B, T], to texts in a cache. Returns hidden states [B, T, D].

    Args:
        slots: the cache slot of each row, int64 [B]; None: the first B slots.
        lengths: the number of tokens per row without padding, int64 [B]; None: T for all rows.
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
    """Append prompts to cache slots. Returns the hidden states [B, D] of their last tokens.

    In an encoder-decoder, the encoder reads the prompts and the decoder reads `decoder_start`.
    """
    slot_ids = torch.tensor(slots, device=module.device)
    if module.spec.family == "encoder-decoder":
        sources, lengths = pad_rows(prompts, module.device)
        mask = padding_mask(lengths, sources.shape[1])
        cache.set_encoder_output(slot_ids, module.encode(sources, attention_mask=mask), mask)
        prompts = [decoder_start] * len(prompts)
    return _read_texts(module, cache, slot_ids, prompts)


def recompute(module: LanguageModule, cache: Cache, texts: Mapping[int, Ids]) -> Tensor:
    """Read whole texts again whose cached keys have expired (`Spec.recompute_lengths`).

    `texts` maps cache slots to the tokens of their texts. Returns the hidden states [B, D] of the
    last tokens.
    """
    for slot in texts:
        cache.restart(slot)
    slots = torch.tensor([*texts], device=module.device)
    return _read_texts(module, cache, slots, [*texts.values()])


def _read_texts(
    module: LanguageModule, cache: Cache, slots: Tensor, texts: Sequence[Ids]
) -> Tensor:
    """Append texts to cache slots. Returns the hidden states [B, D] of their last tokens."""
    ids, lengths = pad_rows(texts, module.device)
    hidden = extend(module, cache, ids, slots=slots, lengths=lengths)
    if lengths is None:
        return hidden[:, -1]
    return hidden[torch.arange(len(texts), device=module.device), lengths - 1]


def vocabulary_logits(module: LanguageModule, hidden: Tensor) -> Tensor:
    """Return logits, in at least float32, for all rows of the embedding matrix.

    Shape: [..., D] -> [..., V].
    """
    logits = module.logits(hidden)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def vocabulary_log_probabilities(module: LanguageModule, hidden: Tensor, vocab_size: int) -> Tensor:
    """Return the log-probabilities of the first `vocab_size` tokens: [..., D] -> [..., V].

    A model's embedding matrix may be padded beyond the tokenizer's vocabulary. As in training and
    in `transformers`, the softmax includes the padding rows, which have little probability.
    """
    return vocabulary_logits(module, hidden).log_softmax(-1)[..., :vocab_size]


def check_prompt(lm: TextModel, prompt: Ids) -> None:
    """Raise SpecError for a prompt that is empty, too long, or has out-of-vocabulary ids."""
    if not prompt:
        raise SpecError("a prompt has no tokens: start with at least one.")
    check_length(len(prompt), lm.context_length)
    check_ids(prompt, lm.module.spec.input_vocab_size, "the prompt")


def check_ids(ids: Ids, limit: int, what: str = "a text") -> None:
    """Raise SpecError for an id that is out of vocabulary (outside 0 to `limit` - 1)."""
    for token_id in ids:
        if not 0 <= token_id < limit:
            raise SpecError(f"{what} has id {token_id}, but this model takes 0 to {limit - 1}.")
