"""How probable a model finds each of some continuations of a context: what few-shot asking needs.

The unit of computation is one item, a context with its options, read by itself in chunks that
follow from its lengths alone. So the numbers of an item are the same to the last digit whatever
else is asked before, after or beside it: there is no batch size that could change them.

Shape letters: O options, S context tokens, L longest option, D d_model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.score import (
    beginning,
    masked_log_probabilities,
    needed_mask,
    padded,
    token_log_probabilities,
)
from trivium.models import LanguageModule, Transformer
from trivium.models.transformer import Memory
from trivium.nn.positions import check_length
from trivium.text import Tokenizer

Ids = Sequence[int]

# Bounds the memory of a pass: rows x (context + option). Part of what fixes an item's numbers.
_POSITIONS_AT_ONCE = 8192


class Item(NamedTuple):
    """A context and the options that may follow it, as ids without special tokens around them.

    `after` stands behind every option; only an encoder, which sees both ways, reads it.
    """

    context: Ids
    options: Sequence[Ids]
    after: Ids = ()


@dataclass(frozen=True, slots=True)
class OptionScore:
    """What a model thinks of one option.

    Args:
        log_probability: sum of log p over its tokens, in nats; of an encoder the
            pseudo-log-likelihood, each token given all others (Salazar et al. 2020).
        num_tokens: tokens the sum is over.
        greedy: each of them is the most probable one in its place.
        num_cut: tokens that were cut from the left of the context, where the row was too long.
    """

    log_probability: float
    num_tokens: int
    greedy: bool
    num_cut: int = 0


def score_continuations(
    model: LanguageModule,
    items: Sequence[Item | tuple[Ids, Sequence[Ids]]],
    *,
    tokenizer: Tokenizer,
    decoder_start: Ids = (),
    cut: bool = False,
) -> list[list[OptionScore]]:
    """Score every option of every item, in their order.

    A decoder reads the context once, begun as documents begin in training, and its options go on
    from there; an empty context where nothing begins documents is the end of a text, and where
    there is no such token either, the first token of each option is not counted. An
    encoder-decoder reads the context as a document, and its decoder says the option after
    `decoder_start`. An encoder reads context, option and `after` as one document.

    Where context and option do not fit into the model's positions, `cut` takes as many tokens from
    the left of the context as the longest option needs, the same for all options of the item;
    without it that is an error. An option is never cut.

    Args:
        model: in evaluation mode, with a head over the vocabulary.
        items: contexts with their options; a plain pair will do.
        tokenizer: what the ids come from: how documents begin and end, the mask, ids that stand
            for nothing.
        decoder_start: ids every answer of an encoder-decoder begins with.
        cut: shorten contexts that are too long.

    Raises:
        SpecError: an item that does not fit, no decoder_start for an encoder-decoder.
        TokenizerError: an encoder whose tokenizer has no mask token.
        TriviumError: an item without options, or an option without tokens.
    """
    family = model.spec.family
    if family == "encoder-decoder" and not decoder_start:
        raise SpecError(
            "this model has an encoder and a decoder: say with decoder_start what its answers "
            "begin with, such as [0] for T5."
        )
    found = []
    for number, given in enumerate(items, start=1):
        item = given if isinstance(given, Item) else Item(given[0], given[1])
        if not item.options or not all(item.options):
            raise TriviumError(f"item {number}: every item needs options, and an option tokens.")
        match family:
            case "decoder-only":
                found.append(_continue(model, item, tokenizer, cut, number))
            case "encoder-only":
                found.append(_fill(model, item, tokenizer, cut, number))
            case _:
                assert isinstance(model, Transformer)
                found.append(_answer(model, item, tokenizer, decoder_start, cut, number))
    return found


def encode_item(
    tokenizer: Tokenizer,
    context: str,
    options: Sequence[str],
    *,
    after: str = "",
    apart: bool = False,
) -> Item:
    """The ids of a context and its options, encoded as the texts they make together.

    Blanks at the end of the context belong to the options, as tokenizers see them. The context is
    what the encodings of all the texts begin with alike, up to its last character; what follows
    belongs to the option, also a token that stands on the border. With `apart`, for an
    encoder-decoder, each is encoded alone.

    >>> from trivium.text import Tokenizer
    >>> texts = ["the cat sat on the mat"]
    >>> words = Tokenizer.train("whitespace", texts=texts, vocab_size=10, progress=False)
    >>> item = encode_item(words, "the cat", [" sat on", " sat"])
    >>> [words.decode(ids) for ids in (item.context, *item.options)]
    ['the cat', 'sat on', 'sat']

    Raises:
        TokenizerError: an option that gives no token.
    """
    behind = _ids(tokenizer, after) if after else []
    if apart:
        ids = [_ids(tokenizer, option.strip()) for option in options]
        _check_options(options, ids)
        return Item(_ids(tokenizer, context.strip()), ids, behind)
    stem = context.rstrip()
    blanks = context[len(stem) :]
    whole, borders = [], []
    for option in options:
        encoding = tokenizer.encode(stem + blanks + option, add_special_tokens=False)
        ends = (place for place, (_, end) in enumerate(encoding.offsets) if end > len(stem))
        whole.append(encoding.ids)
        borders.append(next(ends, len(encoding.ids)))
    _check_options(options, [ids[border:] for ids, border in zip(whole, borders)])
    shared = min(borders, default=0)
    while shared and len({ids[:shared] for ids in whole}) > 1:
        shared -= 1
    return Item(whole[0][:shared] if whole else (), [ids[shared:] for ids in whole], behind)


@torch.inference_mode()
def _continue(
    model: LanguageModule, item: Item, tokenizer: Tokenizer, cut: bool, number: int
) -> list[OptionScore]:
    """A decoder: the context is read once, and its keys and values are copied for the options."""
    before = list(tokenizer.prefix_ids)
    if not before and not item.context:
        before = list(beginning(tokenizer))
    longest = max(map(len, item.options))
    # The last token of an option is predicted, but not read.
    excess = _excess(model, len(before), len(item.context), longest - 1, number, cut)
    context = [*before, *item.context[excess:]]
    read: Callable[..., Tensor] = model  # every model takes the kind of cache that it makes
    cache, state = None, None
    if context:
        cache = model.new_cache(1, len(context) + longest - 1)
        state = read(torch.tensor([context], device=model.device), cache=cache)[:, -1:]
    found: list[OptionScore] = []
    for options in _chunks(item.options, len(context) + longest):
        hidden = [] if state is None else [state.expand(len(options), -1, -1)]
        if max(map(len, options)) > 1:
            ids, _ = padded([option[:-1] for option in options], model.device)
            hidden.append(read(ids, cache=_copied(cache, len(options))))
        first = 0 if context else 1
        joined = torch.cat(hidden, 1) if hidden else None
        found += _option_scores(model, joined, options, first, tokenizer.vocab_size, excess)
    return found


@torch.inference_mode()
def _answer(
    model: Transformer, item: Item, tokenizer: Tokenizer, start: Ids, cut: bool, number: int
) -> list[OptionScore]:
    """An encoder-decoder: the encoder reads the context once, the decoder says every option."""
    longest = max(map(len, item.options))
    check_length(len(start) + longest - 1, model.spec.max_length)
    around = len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
    excess = _excess(model, around, len(item.context), 0, number, cut)
    source = [*tokenizer.prefix_ids, *item.context[excess:], *tokenizer.suffix_ids]
    if not source:
        raise TokenizerError(f"item {number}: the context is empty, so the encoder reads nothing.")
    memory = model.encode(torch.tensor([source], device=model.device))
    found: list[OptionScore] = []
    for options in _chunks(item.options, len(source) + longest):
        ids, _ = padded([[*start, *option[:-1]] for option in options], model.device)
        hidden = model.decode(ids, memory=Memory(memory.expand(len(options), -1, -1)))
        hidden = hidden[:, len(start) - 1 :]
        found += _option_scores(model, hidden, options, 0, tokenizer.vocab_size, excess)
    return found


@torch.inference_mode()
def _fill(
    model: LanguageModule, item: Item, tokenizer: Tokenizer, cut: bool, number: int
) -> list[OptionScore]:
    """An encoder: every token of an option masked in turn, all else in its place."""
    mask, prefix, suffix = needed_mask(tokenizer), tokenizer.prefix_ids, tokenizer.suffix_ids
    longest = max(map(len, item.options))
    around = len(prefix) + len(item.after) + len(suffix)
    excess = _excess(model, around, len(item.context), longest, number, cut)
    context = [*prefix, *item.context[excess:]]
    found = []
    for option in item.options:
        row = [*context, *option, *item.after, *suffix]
        places = range(len(context), len(context) + len(option))
        ((values, best),) = masked_log_probabilities(
            model,
            [row],
            [places],
            mask_id=mask,
            vocab_size=tokenizer.vocab_size,
            batch_size=max(1, _POSITIONS_AT_ONCE // len(row)),
        )
        total = math.fsum(values.tolist())
        found.append(OptionScore(total, len(option), bool(best.all()), excess))
    return found


def _option_scores(
    model: LanguageModule,
    hidden: Tensor | None,
    options: Sequence[Ids],
    first: int,
    vocab_size: int,
    num_cut: int,
) -> list[OptionScore]:
    """Scores of the tokens from `first` on; hidden [O, L - first, D] tell of them, in order."""
    lengths = [len(option) - first for option in options]
    if hidden is None or not any(lengths):
        return [OptionScore(0.0, 0, True, num_cut) for _ in options]
    states = torch.cat([hidden[row, :length] for row, length in enumerate(lengths)])
    targets = [index for option in options for index in option[first:]]
    values, best = token_log_probabilities(
        model, states, torch.tensor(targets, device=model.device), vocab_size
    )
    parts = zip(values.split(lengths), best.split(lengths), strict=True)
    return [
        OptionScore(math.fsum(value.tolist()), len(value), bool(greedy.all()), num_cut)
        for value, greedy in parts
    ]


def _excess(
    model: LanguageModule, around: int, context: int, option: int, number: int, cut: bool
) -> int:
    """How many tokens of the context do not fit beside what has to stay."""
    limit = model.spec.max_length
    excess = 0 if limit is None else max(0, around + context + option - limit)
    if excess > context:
        raise SpecError(
            f"item {number}: an option alone needs {around + option} of the model's {limit} "
            "positions: shorten it."
        )
    if excess and not cut:
        raise SpecError(
            f"item {number}: context and option need {around + context + option} of the model's "
            f"{limit} positions: shorten the context, or have it cut from the left (cut=True)."
        )
    return excess


def _chunks(options: Sequence[Ids], length: int) -> list[Sequence[Ids]]:
    """The options in as many parts as the memory of a pass asks for."""
    rows = max(1, _POSITIONS_AT_ONCE // length)
    return [options[start : start + rows] for start in range(0, len(options), rows)]


def _copied(cache: Any, rows: int) -> Any:
    """A cache of one text as one of `rows` texts alike; the first stays as it is."""
    if cache is None:
        return None
    copied = copy.deepcopy(cache)
    copied.reorder(torch.zeros(rows, dtype=torch.int64))
    return copied


def _ids(tokenizer: Tokenizer, text: str) -> Ids:
    return tokenizer.encode(text, add_special_tokens=False).ids


def _check_options(options: Sequence[str], ids: Sequence[Ids]) -> None:
    for option, found in zip(options, ids, strict=True):
        if not found:
            raise TokenizerError(f"the option {option!r} gives no token: nothing can be scored.")
