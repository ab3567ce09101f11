"""Supervised fine-tuning of a decoder on prompts with responses, and on conversations."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from trivium.data.batch import IGNORE_INDEX
from trivium.data.encoded import EncodedExamples, Sequences, Truncations
from trivium.data.records import Record
from trivium.data.schema import Fields, Slot
from trivium.errors import DataError
from trivium.inference.request import GenerationRequest
from trivium.inference.text_model import prepend_bos
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives.conversations import (
    MESSAGES,
    SYSTEM,
    Message,
    conversation,
    read_messages,
    read_prompt,
    read_turn,
)
from trivium.objectives.labelled import LabelledObjective, batches_by_length, column_key
from trivium.objectives.task_metrics import Metrics, perplexity_of
from trivium.objectives.tensor_batch import to_device, token_losses
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate, Span

# What a prompt and a response are called; `input` and `context` belong to an instruction.
PAIR = Fields(
    "prompt response input?",
    (("prompt", "response"), ("prompt", "completion")),
    (
        *(
            ("instruction", response, *more)
            for response in ("output", "response", "completion", "answer")
            for more in ((), ("input",), ("context",))
        ),
        *((one, name) for one in ("question", "query") for name in ("answer", "response")),
        ("problem", "solution"),
        *(("input", "output"), ("input", "target"), ("inputs", "targets")),
    ),
)
_ANSWERED = 16  # held-out conversations that are answered at the end of a run


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages {"role", "content"} in turn, at least one of them the assistant's."""

    messages: tuple[Message, ...]
    where: str

    @property
    def group(self) -> str:
        """Conversations with the same beginning share a side of the validation split."""
        roles = [message["role"] for message in self.messages]
        first = max(1, roles.index("assistant"))
        return "\n".join(message["content"] for message in self.messages[:first])


class Chat(LabelledObjective):
    """L = - sum_t log P(y_t | y_1 ... y_(t-1)) over the tokens of the responses.

        input_ids  User : how are you ? Assistant : fine </s>
        labels     -100 ...                    fine </s> -100

    The chat template decides which tokens are a response, the end of the turn included.

    Source: Radford et al. 2018, equation 1; Ouyang et al. 2022, section 3.5 (SFT).
    """

    kind: Literal["chat"] = "chat"
    supported_family: ClassVar[str | None] = "decoder-only"
    fields: ClassVar[Sequence[Slot]] = (("conversation", (MESSAGES, PAIR)), SYSTEM)
    messages_field: str | None = column_key("list of messages", MESSAGES)
    prompt_field: str | None = Field(
        None, description="column of the prompt, where there are no messages; default: usual names"
    )
    response_field: str | None = Field(None, description="column of the response")
    responses_only: bool = Field(True, description="loss on what the assistant says only")

    def example(self, record: Record) -> Conversation:
        """A record with a list of messages, or with a prompt and a response.

        `instruction` is followed by an `input` that is not blank; `system` is the first message.
        Messages of the assistant with a `weight` of 0 are not trained.

        Raises:
            DataError: with file and line, for a blank part, an unknown role, or no response.
        """
        columns = record.columns
        if "messages" in columns:
            turn = tuple(read_messages(record, columns["messages"], weighted=True))
        else:
            turn = read_turn(record, "response", weighted=True)
        messages = conversation(record, read_prompt(record), turn)
        trained = [one.get("weight") != 0 for one in messages if one["role"] == "assistant"]
        if not any(trained):
            raise DataError(
                f"{record.where}: all messages of the assistant have weight 0."
                if trained
                else f"{record.where} has no message of the assistant: there is no response."
            )
        return Conversation(messages, record.where)

    def settings(self, settings: Settings, examples: Sequence[Conversation]) -> Settings:
        """Return the settings with a chat template: the model's own, or a plain one."""
        template = settings.chat_template or PLAIN_TEMPLATE
        return dataclasses.replace(settings, chat_template=template).with_task("chat")

    def encode(self, examples: Sequence[Conversation], lm: LanguageModel) -> EncodedExamples:
        """Return one row per conversation, with labels at the responses."""
        template = chat_template(lm)
        _warn_of_names(template, examples)
        sequences, truncations = by_field([self._row(one, template, lm) for one in examples])
        return EncodedExamples.with_targets(sequences, truncations, pad_id=lm.text_tokenizer.pad_id)

    def _row(self, one: Conversation, template: ChatTemplate, lm: LanguageModel) -> LabelledRow:
        text, spans = template.responses(one.messages)
        answers = [message for message in one.messages if message["role"] == "assistant"]
        left_out = [span for span, given in zip(spans, answers) if given.get("weight") == 0]
        if self.responses_only:
            spans = [span for span in spans if span not in left_out]
        else:
            starts, stops = zip(*[(-1, -1), *left_out, (len(text), len(text))])
            spans = list(zip(stops, starts[1:]))
        return labelled_row(lm, text, spans)

    def source_texts(self, examples: Sequence[Conversation]) -> Iterator[str]:
        """Return the content of all messages."""
        return (message["content"] for one in examples for message in one.messages)

    @torch.no_grad()
    def predict(
        self, lm: LanguageModel, examples: Sequence[Conversation]
    ) -> list[tuple[float, int]]:
        """Return the nats and the number of tokens of the responses of every batch."""
        sums = []
        for _, rows in batches_by_length(self.encode(examples, lm)):
            batch = rows.to_batch()
            if batch.num_labels:
                loss = token_losses(lm.module, to_device(batch, lm.module.device))["loss"]
                sums.append((float(loss), batch.num_labels))
        return sums

    def compute_metrics(
        self, answers: list[tuple[float, int]], examples: Sequence[Conversation], lm: LanguageModel
    ) -> Metrics:
        """Return the perplexity of the responses: e to the nats per token."""
        sums = [sum(each) for each in zip(*answers)] or [0.0, 0]
        values = {"perplexity": perplexity_of(*sums)}
        return Metrics(values).with_examples({"messages": list(one.messages)} for one in examples)

    def add_generations(self, lm: LanguageModel, metrics: Metrics) -> Metrics:
        """Add the model's own last answer to the first conversations, as `predicted`."""
        requests: dict[int, GenerationRequest] = {}
        for number, row in enumerate(metrics.predictions[:_ANSWERED]):
            last = max(i for i, one in enumerate(row["messages"]) if one["role"] == "assistant")
            if not last:  # an answer to nothing
                continue
            ids = lm.conversation_ids(row["messages"][:last])
            if lm.max_length is None or len(ids) < lm.max_length:
                params = lm.sampling_params(ids, {"temperature": 0.0})
                requests[number] = GenerationRequest(ids, params, answers=True)
        lm.run_requests([*requests.values()], slots=_ANSWERED)
        rows = [
            {**row, "predicted": requests[number].text} if number in requests else row
            for number, row in enumerate(metrics.predictions)
        ]
        return metrics.with_examples(rows)

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return the command that starts a conversation in the terminal."""
        return f"chat {run}"


def _warn_of_names(template: ChatTemplate, examples: Sequence[Conversation]) -> None:
    """Warn where the template does not show the names that messages have."""
    named = [one for one in examples if any("name" in message for message in one.messages)]
    without = [{**message, "name": ""} for one in named[:1] for message in one.messages]
    if named and template.render(named[0].messages) == template.render(without):
        warnings.warn(
            f"{len(named):,} conversations have messages with a name, which the chat template does "
            "not show.",
            stacklevel=2,
        )


def chat_template(lm: LanguageModel) -> ChatTemplate:
    """Return the model's own chat template, or a plain one."""
    return ChatTemplate.of(lm.settings.chat_template or PLAIN_TEMPLATE, lm.text_tokenizer)


LabelledRow = tuple[list[int], list[int], tuple[int, int, int]]
"""The ids of a text, its labels, and what is cut of it (`EncodedExamples.truncations`)."""


def labelled_row(
    lm: LanguageModel, text: str, spans: Sequence[Span], end: Sequence[int] = ()
) -> LabelledRow:
    """The ids of a text with its next tokens as labels, where these are in spans of characters.

    `end` are ids that follow the text, with labels too. The end of what is longer than
    `lm.max_length` tokens is cut.
    """
    tokenizer, limit = lm.text_tokenizer, lm.max_length
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids, ends = list(encoding.ids), np.array([end for _, end in encoding.offsets], dtype=int)
    response = np.zeros(len(ids), dtype=bool)
    for start, stop in spans:
        response |= (ends > start) & (ends <= stop)
    whole = [*prepend_bos(tokenizer, ids), *end]
    response = np.pad(response, (len(whole) - len(ids) - len(end), 0))
    response = np.pad(response, (0, len(end)), constant_values=True)
    # The label of position t is token t + 1.
    labels = [*np.where(response, whole, IGNORE_INDEX)[1:].tolist(), IGNORE_INDEX]
    beyond = [] if limit is None else labels[limit:]
    num_targets, num_cut = (len(x) - x.count(IGNORE_INDEX) for x in (labels, beyond))
    return whole[:limit], labels[:limit], (len(beyond), num_targets, num_cut)


def by_field(rows: Sequence[LabelledRow]) -> tuple[Sequences, Truncations]:
    """Return the fields of labelled rows by name, and what is cut of each row."""
    fields = {"input_ids": [row[0] for row in rows], "labels": [row[1] for row in rows]}
    return fields, [row[2] for row in rows]
