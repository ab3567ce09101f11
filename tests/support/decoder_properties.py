"""What every decoder satisfies, whatever it is made of: for the test of a part of one's own."""

from __future__ import annotations

import json
import math
from contextlib import AbstractContextManager

import torch
from small_models import VOCABULARY, random_ids, random_model
from torch import Tensor

from trivium.models import LanguageModule, build
from trivium.spec import ModelSpec, Spec

ROWS, LENGTH = 3, 19
# A text in each of four slots out of five, by chunks: slots, and real tokens of each.
SLOTS = (3, 0, 4, 1)
CHUNKS = (((3, 0), (7, 2)), ((4, 1), (3, 5)), ((3, 4), (4, 1)), ((1, 3, 0), (1, 0, 2)))


def check_decoder(described: ModelSpec) -> None:
    """Every property that needs no data; a small spec, within `double_precision`."""
    assert Spec.from_dict(json.loads(json.dumps(described.to_dict()))) == described
    check_start(described)
    modes: tuple[AbstractContextManager[None], ...] = (torch.no_grad(), torch.enable_grad())
    for mode in modes:  # with gradients another kernel may compute
        with mode:
            model, ids = random_model(described), random_ids(ROWS, LENGTH)
            check_future(model, ids)
            check_padding(model, ids)
            check_packing(model, ids[:1])
            select = torch.tensor([0, 5, 20, 56])
            close(model(ids, select=select), model(ids).flatten(0, 1)[select])
    check_cache(random_model(described))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def check_start(described: ModelSpec) -> None:
    """Every weight learns, and the first prediction is about uniform."""
    model, ids = build(described, seed=0), random_ids(ROWS, LENGTH)
    hidden, loss = model.read(ids[:, :-1])
    nats = model.lm_loss(hidden.flatten(0, 1), ids[:, 1:].flatten()) / ids[:, 1:].numel()
    assert abs(nats.item() - math.log(VOCABULARY)) < 0.5
    (nats if loss is None else nats + loss).backward()
    still = [n for n, w in model.named_parameters() if w.grad is None or not w.grad.any()]
    assert not still, still


def check_future(model: LanguageModule, ids: Tensor) -> None:
    before = model(ids)
    for column in (0, 7, LENGTH - 2):
        other = ids.clone()
        other[:, column] = ids[:, column] % (VOCABULARY - 1) + 1
        after = model(other)
        close(after[:, :column], before[:, :column])
        assert ((before - after)[:, column : column + 2].abs().amax((0, 2)) > 1e-6).all(), column


def check_padding(model: LanguageModule, ids: Tensor) -> None:
    lengths = torch.tensor([LENGTH, 1, 7])
    real = torch.arange(LENGTH) < lengths[:, None]
    together, loss = model.read(ids, attention_mask=real.long())
    for row, length in enumerate(lengths.tolist()):
        close(together[row, :length], model(ids[row : row + 1, :length])[0])
    others = torch.where(real, ids, ids % (VOCABULARY - 1) + 1)
    if loss is not None:
        close(model.read(others, attention_mask=real.long())[1], loss)


def check_packing(model: LanguageModule, ids: Tensor) -> None:
    lengths = [3, 7, 1, 8]
    documents = torch.repeat_interleave(torch.arange(1, 5), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = model(ids, document_ids=documents, position_ids=positions)
    close(packed, torch.cat([model(part) for part in ids.split(lengths, 1)], 1))


@torch.no_grad()
def check_cache(model: LanguageModule) -> None:
    """Texts of different lengths enter slots in any order, with padding, and are copied."""
    texts = dict(zip(SLOTS, random_ids(len(SLOTS), LENGTH), strict=True))
    whole = {slot: model(text[None])[0] for slot, text in texts.items()}
    cache = model.new_cache(5, LENGTH)
    stale = torch.tensor([3, 1])
    model(random_ids(2, 5, seed=7), cache=cache, slots=stale)
    for slot in stale.tolist():
        cache.free(slot)
    for slots, lengths in CHUNKS:
        starts = cache.lengths[torch.tensor(slots)].tolist()
        ids = torch.full((len(slots), max(lengths) + 1), 7)
        for row, (slot, start, length) in enumerate(zip(slots, starts, lengths, strict=True)):
            ids[row, :length] = texts[slot][start : start + length]
        options = {"slots": torch.tensor(slots), "lengths": torch.tensor(lengths)}
        hidden = model(ids, cache=cache, **options)
        for row, (slot, start, length) in enumerate(zip(slots, starts, lengths, strict=True)):
            close(hidden[row, :length], whole[slot][start : start + length])
    for _ in range(2):  # decode steps of all rows; slot 2 is free
        starts = cache.lengths.tolist()
        ids = torch.tensor([[int(texts[s][starts[s]]) if s in texts else 1] for s in range(5)])
        hidden = model(ids, cache=cache, lengths=torch.tensor([1, 1, 0, 1, 1]))
        for slot in texts:
            close(hidden[slot, 0], whole[slot][starts[slot]])
    cache.free(4)
    cache.copy(torch.tensor([3, 3]), torch.tensor([2, 4]))  # as beams do
    start = int(cache.lengths[3])
    ids = texts[3][start : start + 2].expand(3, -1)
    for hidden in model(ids, cache=cache, slots=torch.tensor([4, 2, 3])):
        close(hidden, whole[3][start : start + 2])
