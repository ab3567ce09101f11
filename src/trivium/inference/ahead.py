"""Ids on their way from the device, so that nobody has to wait for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivium.inference.request import Written
from trivium.nn.cache import on_device


class Chosen:
    """The next id of some texts, chosen on the device and not read yet.

    Args:
        texts: whose ids they are.
        ids: int64 [B].
    """

    def __init__(self, texts: Sequence[Written], ids: Tensor) -> None:
        self.texts, self._ids = texts, ids
        self._copy = ids.to("cpu", non_blocking=True)
        self._copied = None
        if ids.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[int]:
        """The ids; waits until they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy.tolist()

    def last_ids(self, texts: Sequence[Written]) -> Tensor:
        """The last id of each of these texts, int64 [B]: of others, what they have by now."""
        if list(texts) == list(self.texts):
            return self._ids
        places = {text: place for place, text in enumerate(self.texts)}
        others = [text for text in texts if text not in places]
        places |= {text: len(self.texts) + place for place, text in enumerate(others)}
        device = self._ids.device
        known = torch.cat((self._ids, on_device([text.ids[-1] for text in others], device)))
        return known[on_device([places[text] for text in texts], device)]
