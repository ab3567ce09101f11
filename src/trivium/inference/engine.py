"""Writing many texts at once: requests join and leave a running batch (continuous batching).

A step feeds every running text its last token, and texts that wait are read and join as rows
become free. Each text keeps its own length: none is padded, and each comes out as it would alone.

Shape letters: B running texts, T tokens fed to each, S positions of a source, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from trivium.errors import SpecError, TriviumError
from trivium.inference.ahead import Chosen
from trivium.inference.decoding import check_prompts, encoded, reader, reads_in_a_row
from trivium.inference.drafts import Draft
from trivium.inference.request import Request, TokenScore, Written
from trivium.inference.sampling import History, Sampling, force
from trivium.models import LanguageModule, Transformer
from trivium.models.transformer import Memory
from trivium.nn.cache import on_device

_ROOM = 64  # Positions beyond a prompt that there is room for; a cache grows as texts do.
_ROW = 256  # Tokens that a CPU reads in a row: more are no faster and leave its caches.
_PADDED = 0.8  # Prompts at least this share as long as the longest are read side by side.


class Engine:
    """Runs requests, many at a time.

    One thread at a time may use it.

    Args:
        model: with a decoder, in evaluation mode.
        rows: texts that are written at the same time.
        stop_ids: ids that end a text.
        vocab_size: ids from here on stand for nothing (a padded matrix) and are never chosen.
        decoder_start: ids every answer of an encoder-decoder begins with; not part of it.
        banned_ids: ids that are never chosen.
        forced_eos_id: what is chosen at the last of `max_new_tokens`, as BART's settings say.
        read_at_once: prompts of so many tokens together are read in one step, at least one: more
            would keep the running texts waiting.
        draft: what guesses tokens ahead (speculative decoding); results stay the same.
        ahead: begin a step before the ids of the last one are read, where no wish of a text needs
            them; a text that ends has one step too many. None: on a GPU, which never waits then.
    """

    def __init__(
        self,
        model: LanguageModule,
        *,
        rows: int = 8,
        stop_ids: Collection[int] = (),
        vocab_size: int | None = None,
        decoder_start: Sequence[int] = (),
        banned_ids: Collection[int] = (),
        forced_eos_id: int | None = None,
        read_at_once: int = 2048,
        draft: Draft | None = None,
        ahead: bool | None = None,
    ) -> None:
        if rows < 1:
            raise TriviumError(f"rows is {rows}, but must be 1 or more.")
        self.model, self.rows, self.read_at_once = model, rows, read_at_once
        self.vocab_size = min(vocab_size or model.spec.vocab_size, model.spec.vocab_size)
        self.stop_ids, self.forced_eos_id = frozenset(stop_ids), forced_eos_id
        self._start = tuple(decoder_start)
        self._banned = torch.tensor(sorted(banned_ids), dtype=torch.int64, device=model.device)
        self._read = reader(model)
        self._in_a_row = not self._start and reads_in_a_row(model)
        self._draft = draft
        self._ahead = model.device.type == "cuda" if ahead is None else ahead
        self._unread: Chosen | None = None
        self._waiting: deque[Written] = deque()
        self._running: list[Written] = []
        self._cache: Any = None  # every model takes the kind of cache that it makes
        self._sources: list[int] = []  # what the encoder read of each running text, in tokens

    @property
    def running(self) -> int:
        """Texts that are being written."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Texts that have not begun."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._running or self._waiting)

    def add(self, request: Request) -> Written:
        """Take a request; it begins as soon as there is a row for it.

        Raises:
            SpecError: a prompt that is empty or longer than the model's positions, or a bias of
                an id that does not exist.
            TriviumError: max_new_tokens below 1.
        """
        model, asked = self.model, request.sampling
        check_prompts(model, [request.prompt], self._start, request.max_new_tokens)
        wrong = [index for index, _ in asked.logit_bias if not 0 <= index < self.vocab_size]
        if wrong:
            raise SpecError(f"logit_bias names id {wrong[0]}, but ids end at {self.vocab_size}.")
        limit, positions = request.max_new_tokens, model.spec.max_length
        if positions is not None:
            # The last token is chosen but never fed back: it needs no position.
            begun = self._start or request.prompt
            limit = min(limit, positions - len(begun) + 1)
        history = None
        if asked.looks_back:
            history = History(self._start or request.prompt, self.vocab_size, model.device)
        written = Written(request, limit, history, model.device)
        self._waiting.append(written)
        return written

    @torch.inference_mode()
    def cancel(self, written: Written) -> None:
        """Write no more of a text; its row is free at once."""
        if written.finish is not None:
            return
        written.finish = "cancelled"
        if written in self._waiting:
            self._waiting.remove(written)
        else:
            self._leave(self._running.index(written))

    @torch.inference_mode()
    def step(self) -> list[Written]:
        """Add a token to every running text (with a draft: one or more), then let others begin.

        Returns:
            The texts that have changed; those with a `finish` have left.
        """
        changed = self._write_on() if self._running else []
        while self._waiting and len(self._running) < self.rows:
            begun = self._begin(self._next_batch())
            changed += begun
            if any(written.finish is None for written in begun):
                break
        return changed

    def run(self) -> Iterator[list[Written]]:
        """Step by step, until nothing is left to do."""
        while self.busy:
            yield self.step()

    def _next_batch(self) -> list[Written]:
        tokens, batch = 0, []
        while self._waiting and len(self._running) + len(batch) < self.rows:
            tokens += len(self._waiting[0].request.prompt)
            if batch and tokens > self.read_at_once:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _begin(self, batch: list[Written]) -> list[Written]:
        """Read prompts and write the first token of each."""
        self._make_room(batch)
        for group in self._groups(sorted(batch, key=lambda one: -len(one.request.prompt))):
            prompts = [list(written.request.prompt) for written in group]
            lengths = [len(self._start) or len(prompt) for prompt in prompts]
            if self._in_a_row:
                cache = self.model.new_cache(1, sum(lengths))
                hidden = self._read_in_a_row(prompts, lengths, cache)
            else:
                cache = self.model.new_cache(len(group), max(lengths))
                hidden = self._read_prompts(prompts, lengths, cache)
            chosen = self._choose(self._logits(hidden), group)
            for written, index in zip(group, chosen):
                self._put(written, index)
            self._join(group, lengths, prompts, cache)
        return batch

    def _make_room(self, batch: list[Written]) -> None:
        """At once for all that begin, and for what they write first."""
        length = max(
            (len(self._start) or len(one.request.prompt)) + min(one.limit, _ROOM) for one in batch
        )
        if self._cache is None:
            self._cache = self.model.new_cache(0, length)
        self._cache.make_room(length, len(self._running) + len(batch))

    def _groups(self, batch: list[Written]) -> Iterator[list[Written]]:
        """Prompts that are read together; the longest come first."""
        if self._in_a_row:
            yield from _rows(batch)
            return
        group: list[Written] = []
        can_shorten = self.model.new_cache(0, 1).can_shorten
        for written in batch:
            if group and not self._start:
                longest, length = len(group[0].request.prompt), len(written.request.prompt)
                if length < _PADDED * longest or not can_shorten(longest - length):
                    yield group
                    group = []
            group.append(written)
        if group:
            yield group

    def _read_prompts(self, prompts: list[list[int]], lengths: list[int], cache: Any) -> Tensor:
        """Hidden states after the last token of every prompt, or after an answer's start: [B, D].

        Padding stands behind a prompt, where no token of it looks.
        """
        device, longest = self.model.device, max(lengths)
        inputs: dict[str, Any] = {"cache": cache}
        begun = prompts
        if self._start:
            assert isinstance(self.model, Transformer)  # no other model has an encoder
            inputs["memory"] = encoded(self.model, prompts)
            begun = [list(self._start)] * len(prompts)
        ids = [[*prompt, *[0] * (longest - len(prompt))] for prompt in begun]
        last = [row * longest + length - 1 for row, length in enumerate(lengths)]
        select = torch.tensor(last, device=device)
        return self._read(torch.tensor(ids, device=device), select=select, **inputs)

    def _read_in_a_row(self, prompts: list[list[int]], lengths: list[int], cache: Any) -> Tensor:
        """The same where prompts stand one behind another: nothing is padded."""
        device = self.model.device
        ids = [index for prompt in prompts for index in prompt]
        positions = [place for length in lengths for place in range(length)]
        documents = [text for text, length in enumerate(lengths) for _ in range(length)]
        ids, positions, documents = (
            torch.tensor([row], device=device) for row in (ids, positions, documents)
        )
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        return self._read(
            ids, position_ids=positions, document_ids=documents, select=last, cache=cache
        )

    def _join(
        self, group: list[Written], lengths: list[int], prompts: list[list[int]], cache: Any
    ) -> None:
        self._cache.join(cache, lengths)
        self._running += group
        self._sources += [len(prompt) for prompt in prompts] if self._start else []
        for row in reversed(range(len(self._running))):
            if self._running[row].finish is not None:
                self._leave(row)

    def _leave(self, row: int) -> None:
        """Free a row; the last one takes its place."""
        if self._draft is not None:
            self._draft.forget(self._running[row])
        for of_rows in (self._running, self._sources):
            if of_rows:
                last = of_rows.pop()
                if row < len(of_rows):
                    of_rows[row] = last  # type: ignore[assignment]
        self._cache.leave(row)

    def _write_on(self) -> list[Written]:
        if self._ahead and self._draft is None and not any(map(self._needs_ids, self._running)):
            return self._write_ahead()
        return self._catch_up() if self._unread is not None else self._write_now()

    def _write_ahead(self) -> list[Written]:
        """Feed what was chosen before it is read; the texts whose ids are read meanwhile."""
        unread, running = self._unread, list(self._running)
        if unread is None:
            fed = on_device([one.ids[-1] for one in running], self.model.device)
        elif any(one.finish is None and one.at_last for one in unread.texts):
            return self._catch_up()
        else:
            fed = unread.last_ids(running)
        self._cache.make_room(self._cache.length + 1)
        hidden = self._read(fed[:, None], cache=self._cache, **self._memory())
        chosen = Chosen(running, self._draw(self._logits(hidden[:, 0]), running))
        changed = self._catch_up()
        self._unread = chosen
        return changed

    def _catch_up(self) -> list[Written]:
        """Read the ids that were chosen last."""
        unread, self._unread = self._unread, None
        changed = []
        for one, index in zip(unread.texts, unread.read()) if unread else ():
            if one.finish is None:  # else it was one step too many
                self._put(one, index)
                changed.append(one)
                if one.finish is not None:
                    self._leave(self._running.index(one))
        return changed

    def _needs_ids(self, one: Written) -> bool:
        """Whether what a text has must be known for what comes next."""
        if self.forced_eos_id is not None or one.request.top_scores is not None:
            return True
        return self._has_wishes(one)

    def _write_now(self) -> list[Written]:
        running, device = list(self._running), self.model.device
        guesses = self._guesses()
        width = 1 + max(map(len, guesses))
        self._cache.make_room(self._cache.length + width)
        fed = [[one.ids[-1], *guess] for one, guess in zip(running, guesses)]
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in fed], device=device)
        hidden = self._read(ids, cache=self._cache, **self._memory())
        going = list(range(len(running)))
        for place in range(width):
            # A guess stands where the model would have written it too.
            states = hidden[:, place] if len(going) == len(running) else hidden[going, place]
            chosen = self._choose(self._logits(states), [running[row] for row in going])
            for row, index in zip(going, chosen):
                self._put(running[row], index)
            going = [
                row
                for row, index in zip(going, chosen)
                if running[row].finish is None and guesses[row][place : place + 1] == [index]
            ]
            if not going:
                break
        self._take_back(running, width)
        return running

    def _take_back(self, running: list[Written], width: int) -> None:
        """Forget what was fed and not written; let those that are finished go."""
        if width > 1:
            begun = len(self._start)
            self._cache.lengths = [
                (begun or len(one.request.prompt)) + max(0, len(one.ids) - 1) for one in running
            ]
        for row in reversed(range(len(running))):
            if running[row].finish is not None:
                self._leave(row)

    def _guesses(self) -> list[list[int]]:
        """What comes next, perhaps: as many tokens as there is room for."""
        nothing: list[list[int]] = [[] for _ in self._running]
        if self._draft is None or not self._cache.can_shorten(self._draft.most):
            return nothing
        positions, most = self.model.spec.max_length, self._draft.most
        if positions is not None:
            most = min(most, positions - self._cache.length - 1)
        if most < 1:
            return nothing
        guesses = self._draft.guess(self._running, most)
        return [
            list(takewhile(self._exists, guess[: max(0, one.limit - len(one.ids) - 1)]))
            for one, guess in zip(self._running, guesses, strict=True)
        ]

    def _exists(self, index: int) -> bool:
        return index < self.vocab_size

    def _memory(self) -> dict[str, Memory]:
        """Which of what the encoder read is real; the cache has its keys and values."""
        if not self._start:
            return {}
        device, real = self.model.device, None
        keys, _ = self._cache.layers[0].memory
        if min(self._sources) < keys.shape[2]:
            lengths = on_device(self._sources, device)
            real = torch.arange(keys.shape[2], device=device) < lengths[:, None]
        return {"memory": Memory(keys.new_empty(0), real)}

    def _logits(self, hidden: Tensor) -> Tensor:
        """Float32 [B, D] -> [B, V]."""
        logits = self.model.logits(hidden)[:, : self.vocab_size].float()
        return logits.index_fill(1, self._banned, -torch.inf) if len(self._banned) else logits

    def _choose(self, logits: Tensor, texts: Sequence[Written]) -> list[int]:
        """The next id of each text; logits [B, V]."""
        scored = [i for i, one in enumerate(texts) if one.request.top_scores is not None]
        raw = logits[scored].log_softmax(-1) if scored else logits
        if any(map(self._has_wishes, texts)):
            rows = [self._wished(logits[i : i + 1], one) for i, one in enumerate(texts)]
            logits = torch.cat(rows)
        ids = self._draw(logits, texts).tolist()
        for row, i in enumerate(scored):
            texts[i].scores.append(_score(raw[row], ids[i], texts[i].request.top_scores or 0))
        return ids

    def _draw(self, logits: Tensor, texts: Sequence[Written]) -> Tensor:
        """By the rule of each text: [B, V] -> int64 [B]."""
        groups: dict[Sampling, list[int]] = {}
        for i, one in enumerate(texts):
            groups.setdefault(one.request.sampling, []).append(i)
        if len(groups) == 1:
            return texts[0].request.sampling.choose(logits, [one.generator for one in texts])
        ids = torch.empty(len(texts), dtype=torch.int64, device=logits.device)
        for sampling, members in groups.items():
            rows = on_device(members, logits.device)
            ids[rows] = sampling.choose(logits[rows], [texts[i].generator for i in members])
        return ids

    def _has_wishes(self, one: Written) -> bool:
        asked = one.request
        forced = self.forced_eos_id is not None and one.at_last
        preferred = one.history is not None or bool(asked.sampling.logit_bias)
        return forced or preferred or asked.choices is not None

    def _wished(self, logits: Tensor, one: Written) -> Tensor:
        """What a text's own settings make of its logits: [1, V] -> [1, V]."""
        if self.forced_eos_id is not None and one.at_last:
            return force(logits, self.forced_eos_id)
        logits = one.request.sampling.prefer(logits[0], one.history)[None]
        if one.request.choices is not None:
            allowed = one.request.choices.next_ids(one.ids)
            kept = torch.full_like(logits, -torch.inf)
            kept[:, allowed] = logits[:, allowed]
            logits = kept
        return logits

    def _put(self, one: Written, index: int) -> None:
        """Write an id, unless it is an end."""
        choices = one.request.choices
        if index in self.stop_ids and (choices is None or index in choices.ends):
            one.finish = "stop"
            if one.request.top_scores is not None:
                one.scores.pop()
            return
        one.ids.append(index)
        if one.history is not None:
            one.history.add(index)
        if choices is not None and not choices.next_ids(one.ids):
            one.finish = "stop"
        elif len(one.ids) >= one.limit:
            one.finish = "length"


def _rows(batch: list[Written]) -> list[list[Written]]:
    """Prompts for rows of at most _ROW tokens, or longer ones alone; the longest come first."""
    rows: list[list[Written]] = []
    room: list[int] = []
    for written in batch:
        length = len(written.request.prompt)
        row = next((row for row, left in enumerate(room) if length <= left), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(_ROW)
        rows[row].append(written)
        room[row] -= length
    return rows


def _score(log_probabilities: Tensor, index: int, count: int) -> TokenScore:
    best = log_probabilities.topk(min(count, len(log_probabilities)))
    top = tuple(zip(best.indices.tolist(), best.values.tolist()))
    return TokenScore(index, float(log_probabilities[index]), top)
