"""Texts to be written: sources and targets as numbers."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.data import NO_LOSS, Examples
from trivium.errors import RecipeError
from trivium.inference.generate import end_ids
from trivium.language_model import LanguageModel


def encode_targets(model: LanguageModel, pairs: Sequence[tuple[str, str]]) -> Examples:
    """Sources and targets for an encoder-decoder, or as prompts and responses for a decoder.

    Both begin and end as documents do; a target ends with the end of text. Each is cut to
    `model.max_length` tokens, the end kept.
    """
    tokenizer, limit = model.text_tokenizer, model.max_length
    ends = sorted(end_ids(tokenizer) | model.settings.stop_ids)
    if not ends:
        raise RecipeError(
            "this tokenizer has no token that ends a text, without which no target can end: "
            "take one with </s> or [SEP]."
        )
    end = ends[0] if tokenizer.eos_id is None else tokenizer.eos_id
    reader = model.source_tokenizer if model.spec.family == "encoder-decoder" else tokenizer
    prefix, suffix = list(reader.prefix_ids), list(reader.suffix_ids)
    sources = reader.encode_ids_batch([source for source, _ in pairs])
    targets = tokenizer.encode_ids_batch([target for _, target in pairs])
    if model.spec.family == "encoder-decoder":
        start = list(model.decoder_start(tokenizer))
        room = None if limit is None else max(1, limit - len(prefix) - len(suffix))
        writes = None if limit is None else max(1, limit - len(start))
        read = [[*prefix, *ids[:room], *suffix] for ids in sources]
        told = [[*_cut(ids, writes), end] for ids in targets]
        return Examples(
            {
                "input_ids": read,
                # The start is one token, or two where the first written one is forced.
                "decoder_input_ids": [[*start, *ids[:-1]] for ids in told],
                "labels": [[*[NO_LOSS] * (len(start) - 1), *ids] for ids in told],
            },
            pad_id=tokenizer.pad_id or 0,
        )
    rows, labels = [], []
    for source, target in zip(sources, targets):
        answer = [*_cut(target, limit), end]
        room = None if limit is None else max(0, limit - len(prefix) - len(answer))
        asked = [*prefix, *source[:room]]
        row = [*asked, *answer][:limit]
        silent = max(0, len(asked) - 1)
        rows.append(row)
        labels.append([*[NO_LOSS] * silent, *row[silent + 1 :], NO_LOSS])
    return Examples({"input_ids": rows, "labels": labels}, pad_id=tokenizer.pad_id or 0)


def _cut(ids: list[int], limit: int | None) -> list[int]:
    """The first tokens, with room left for the end."""
    return ids if limit is None else ids[: max(0, limit - 1)]
