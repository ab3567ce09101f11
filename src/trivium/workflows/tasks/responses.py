"""Prompts and responses: a decoder learns what the assistant says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trivium.data import NO_LOSS, Examples
from trivium.data.labelled import Conversation, read_conversations
from trivium.errors import RecipeError
from trivium.evaluate.metrics import TableRow
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives import Objective, to_device
from trivium.objectives.told_tokens import ToldTokens
from trivium.spec import AnySpec, Head, ModelSpec
from trivium.text.chat import PLAIN_TEMPLATE, ChatTemplate
from trivium.workflows.tasks.base import Measured, Task

_BATCH = 16


@dataclass(frozen=True)
class ResponseMetrics:
    """How well responses are told: nats a token, and perplexity."""

    loss: float
    tokens: int

    @property
    def main(self) -> tuple[str, float]:
        """The loss."""
        return "loss", self.loss

    def to_dict(self) -> dict[str, float]:
        """Loss, perplexity and the tokens they are of."""
        return {"loss": self.loss, "perplexity": math.exp(min(self.loss, 700.0))} | {
            "tokens": float(self.tokens)
        }

    def table(self) -> list[TableRow]:
        """The figures."""
        rows = [(name, f"{value:.4f}") for name, value in self.to_dict().items()]
        return [("Measure", "Value"), *rows]


class ResponseTask(Task[Conversation]):
    """Loss on what the assistant says; examples are packed into rows and do not see each other."""

    def read(self, paths: Sequence[str], like: Sequence[Conversation] = ()) -> list[Conversation]:
        """Conversations of JSON lines."""
        section = self.section
        return read_conversations(
            list(paths),
            prompt_field=section.source_field,
            response_field=section.target_field,
        )

    def settings(self, settings: Settings, train: Sequence[Conversation]) -> Settings:
        """The chat template: the model's own, or a plain one."""
        template = settings.chat_template or PLAIN_TEMPLATE
        return dataclasses.replace(settings, chat_template=template).with_task("lm")

    def heads(self, spec: AnySpec, settings: Settings) -> tuple[Head, ...]:
        """That over the vocabulary."""
        heads = tuple(head for head in spec.heads if head.kind == "lm")
        if spec.family != "decoder-only" or not heads:
            raise RecipeError(
                "lm needs a decoder: take gpt2-mini or llama-mini; an encoder-decoder is taught "
                "with text-to-text."
            )
        return heads

    def objective(
        self, spec: AnySpec, settings: Settings, train: Sequence[Conversation]
    ) -> Objective:
        """Cross-entropy of the responses."""
        return ToldTokens()

    def encode(self, model: LanguageModel, examples: Sequence[Conversation]) -> Examples:
        """Conversations with labels at what the assistant says, several in a row of the longest's
        length."""
        limit = model.max_length
        rows = [self._row(model, each, limit) for each in examples]
        pad = model.text_tokenizer.pad_id or 0
        if not isinstance(model.spec, ModelSpec):
            return Examples(
                {"input_ids": [ids for ids, _ in rows], "labels": [asked for _, asked in rows]},
                pad_id=pad,
            )
        return packed(rows, max((len(ids) for ids, _ in rows), default=0), pad)

    def _row(
        self, model: LanguageModel, example: Conversation, limit: int | None
    ) -> tuple[list[int], list[int]]:
        tokenizer = model.text_tokenizer
        template = chat_template(model)
        messages = [{"role": one.role, "content": one.content} for one in example.messages]
        text, spans = template.responses(messages)
        found = tokenizer.backend.encode(text, add_special_tokens=False)
        prefix = list(tokenizer.prefix_ids)
        if found.ids[: len(prefix)] == prefix:
            prefix = []
        said = np.array([end for _, end in found.offsets]) if found.ids else np.zeros(0, int)
        answered = np.zeros(len(found.ids), dtype=bool)
        for start, stop in spans:
            answered |= (said > start) & (said <= stop)
        if not self.section.responses_only:
            answered[:] = True
        ids = [*prefix, *found.ids]
        told = np.array([*[False] * len(prefix), *answered.tolist()])
        # Position t is asked for token t + 1.
        labels = np.full(len(ids), NO_LOSS, dtype=np.int64)
        labels[:-1] = np.where(told[1:], np.array(ids[1:], dtype=np.int64), NO_LOSS)
        return ids[:limit], labels[:limit].tolist()

    @torch.no_grad()
    def measure(self, model: LanguageModel, examples: Sequence[Conversation]) -> Measured:
        """Nats a token of the responses."""
        encoded, total, count = self.encode(model, examples), 0.0, 0
        objective = ToldTokens()
        order = np.argsort(-encoded.lengths, kind="stable")
        for start in range(0, len(order), _BATCH):
            batch = encoded.take(order[start : start + _BATCH])
            if not batch.num_labels:
                continue
            loss = objective.loss(model.module, to_device(batch, model.module.device))
            total, count = total + float(loss.sum), count + loss.count
        return Measured(ResponseMetrics(total / max(1, count), count))

    def try_metrics(self, examples: Sequence[Conversation], settings: Settings) -> None:
        """They are our own: nothing can be missing."""

    def texts(self, examples: Sequence[Conversation]) -> Iterator[str]:
        """What is said."""
        for example in examples:
            for message in example.messages:
                yield message.content


def chat_template(model: LanguageModel) -> ChatTemplate:
    """The template of a model, with its special tokens."""
    roles = model.text_tokenizer.roles
    tokens = {f"{role}_token": token for role, token in roles.items()}
    return ChatTemplate(model.settings.chat_template or PLAIN_TEMPLATE, tokens)


def packed(rows: Sequence[tuple[list[int], list[int]]], length: int, pad_id: int) -> Examples:
    """Short rows joined into rows of at most `length` tokens, each with positions of its own.

    The longest first, each into the first row with room; `document_ids` keep them apart.
    """
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number][0]))
    bins: list[list[int]] = []
    room: list[int] = []
    # Rows with room for something, by how much: a row is looked for among few.
    for number in order:
        size = len(rows[number][0])
        place = next((n for n in range(max(0, len(bins) - 64), len(bins)) if room[n] >= size), None)
        if place is None:
            bins.append([])
            room.append(length)
            place = len(bins) - 1
        bins[place].append(number)
        room[place] -= size
    sequences: dict[str, list[list[int]]] = {
        name: [] for name in ("input_ids", "labels", "document_ids", "position_ids")
    }
    for chosen in bins:
        ids, labels, documents, positions = [], [], [], []
        for place, number in enumerate(chosen, start=1):
            row, asked = rows[number]
            ids += row
            labels += asked
            documents += [place] * len(row)
            positions += range(len(row))
        sequences["input_ids"].append(ids)
        sequences["labels"].append(labels)
        sequences["document_ids"].append(documents)
        sequences["position_ids"].append(positions)
    return Examples(sequences, pad_id=pad_id)
