"""Supervised fine-tuning (SFT) of a decoder on conversations, or on prompts and responses."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

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
    TEMPLATE_KWARGS,
    TOOLS,
    Message,
    join_messages,
    read_messages,
    read_prompt,
    read_template_kwargs,
    read_tools,
    read_turn,
)
from trivium.objectives.labelled import LabelledObjective, batch_by_length, column_key
from trivium.objectives.task_metrics import Metrics, compute_perplexity
from trivium.objectives.tensor_batch import to_device, token_losses
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate, Span

# Usual column names of a prompt and its response. `input` and `context` belong to an instruction.
PAIR = Fields(
    "prompt response input?",
    (("prompt", "response"), ("prompt", "completion")),
    (
        *(
            ("instruction", response, *more)
            for response in ("output", "response", "completion", "answer")
            for more in ((), ("input",), ("context",))
        ),
        *((question, a) for question in ("question", "query") for a in ("answer", "response")),
        ("problem", "solution"),
        *(("input", "output"), ("input", "target"), ("inputs", "targets")),
    ),
)
_NUM_GENERATIONS = 16  # validation conversations with a generated response at the end of a run


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation: a list of messages {"role", "content"}, at least one by the assistant.

    Args:
        messages: the messages.
        where: the location of the conversation, for messages.
        tools: the tools that the assistant may call, in OpenAI's format.
        variables: additional variables of the chat template, such as `enable_thinking`.
    """

    messages: tuple[Message, ...]
    where: str
    tools: tuple[Mapping[str, Any], ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group_key(self) -> str:
        """The key by which conversations are grouped when the data is split.

        It is the text before the first response. Groups are never divided between splits.
        """
        roles = [message["role"] for message in self.messages]
        first = max(1, roles.index("assistant"))
        return "\n".join(message["content"] for message in self.messages[:first])


class Chat(LabelledObjective):
    """Supervised fine-tuning: L = - sum_t log P(y_t | y_1 ... y_(t-1)).

    The sum is over the tokens y_t of the responses:

        input_ids  User : how are you ? Assistant : fine </s>
        labels     -100 ...                    fine </s> -100

    The chat template determines which tokens belong to a response. They include the end-of-turn
    token.

    Source: Radford et al. 2018, equation 1; Ouyang et al. 2022, section 3.5 (SFT).
    """

    example_type: ClassVar[type | None] = Conversation
    kind: Literal["chat"] = "chat"
    supported_family: ClassVar[str | None] = "decoder-only"
    fields: ClassVar[Sequence[Slot]] = (
        ("conversation", (MESSAGES, PAIR)),
        *(SYSTEM, TOOLS, TEMPLATE_KWARGS),
    )
    messages_field: str | None = column_key("list of messages", MESSAGES)
    prompt_field: str | None = Field(
        None, description="column of the prompt if there are no messages; default: usual names"
    )
    response_field: str | None = Field(None, description="column of the response")
    responses_only: bool = Field(True, description="compute the loss only on assistant messages")

    def read_example(self, record: Record) -> Conversation:
        """Read a conversation from a record: a list of messages, or a prompt and a response.

        An `input` column that is not blank is appended to the prompt. A `system` column becomes the
        first message. Assistant messages with `weight` 0 are excluded from the loss. A `tools`
        column and tool calls in messages are passed to the chat template, and so are the variables
        in a `chat_template_kwargs` column.

        Raises:
            DataError: a message is blank, a role is unknown, or there is no response with a weight
                other than 0. The error message contains the file and the line.
        """
        columns = record.columns
        if "messages" in columns:
            response = tuple(read_messages(record, columns["messages"], complete=True))
        else:
            response = read_turn(record, "response", complete=True)
        messages = join_messages(record, read_prompt(record, complete=True), response)
        trained = [turn.get("weight") != 0 for turn in messages if turn["role"] == "assistant"]
        if not any(trained):
            raise DataError(
                f"{record.where}: all messages of the assistant have weight 0."
                if trained
                else f"{record.where} has no message of the assistant: there is no response."
            )
        tools, variables = read_tools(record), read_template_kwargs(record)
        return Conversation(messages, record.where, tools, variables)

    def add_settings(self, settings: Settings, examples: Sequence[Conversation]) -> Settings:
        """Return the settings with the task "chat", and a plain chat template if they have none."""
        template = settings.chat_template or PLAIN_TEMPLATE
        return dataclasses.replace(settings, chat_template=template).with_task("chat")

    def encode(self, examples: Sequence[Conversation], lm: LanguageModel) -> EncodedExamples:
        """Encode each conversation as one row, with labels only for the tokens of the responses.

        If `responses_only` is false, the whole text has labels, except assistant messages with
        weight 0.
        """
        _warn_about_hidden_parts(lm, examples)
        sequences, truncations = group_by_field(
            [self._encode_conversation(one, lm) for one in examples]
        )
        return EncodedExamples.with_targets(sequences, truncations, pad_id=lm.text_tokenizer.pad_id)

    def _encode_conversation(self, example: Conversation, lm: LanguageModel) -> LabelledRow:
        """Encode a conversation with the chat template, and label the tokens of the responses."""
        template = get_chat_template(lm, tools=bool(example.tools))
        text, spans = template.get_turns(example.messages, tools=example.tools, **example.variables)
        responses = [message for message in example.messages if message["role"] == "assistant"]
        excluded = [span for span, message in zip(spans, responses) if message.get("weight") == 0]
        if self.responses_only:
            spans = [span for span in spans if span not in excluded]
        else:
            starts, stops = zip(*[(-1, -1), *excluded, (len(text), len(text))])
            spans = list(zip(stops, starts[1:]))
        return encode_spans(lm, text, spans)

    def source_texts(self, examples: Sequence[Conversation]) -> Iterator[str]:
        """Return an iterator over the contents of all messages, their tool calls and tools."""
        for one in examples:
            yield from (json.dumps(tool, ensure_ascii=False) for tool in one.tools)
            for message in one.messages:
                yield message["content"]
                yield message.get("reasoning_content", "")
                if calls := message.get("tool_calls"):
                    yield json.dumps(calls, ensure_ascii=False)

    @torch.no_grad()
    def predict(
        self, lm: LanguageModel, examples: Sequence[Conversation]
    ) -> list[tuple[float, int]]:
        """Compute the loss of the labelled tokens.

        Returns one pair per batch: the summed loss in nats, and the number of labelled tokens.
        """
        sums = []
        for _, rows in batch_by_length(self.encode(examples, lm)):
            batch = rows.to_batch()
            if batch.num_labels:
                loss = token_losses(lm.module, to_device(batch, lm.module.device))["loss"]
                sums.append((float(loss), batch.num_labels))
        return sums

    def compute_metrics(
        self,
        predictions: list[tuple[float, int]],
        examples: Sequence[Conversation],
        lm: LanguageModel,
    ) -> Metrics:
        """Return the perplexity of the responses: exp of the mean loss in nats per token."""
        sums = [sum(column) for column in zip(*predictions)] or [0.0, 0]
        values = {"perplexity": compute_perplexity(*sums)}
        return Metrics(values).with_examples(
            {"messages": list(one.messages)}
            | ({"tools": list(one.tools)} if one.tools else {})
            | ({"chat_template_kwargs": dict(one.variables)} if one.variables else {})
            for one in examples
        )

    def add_generations(self, lm: LanguageModel, metrics: Metrics) -> Metrics:
        """Generate responses for the first 16 validation conversations, for the report.

        In each conversation, the last assistant message is generated from the messages before it.
        Returns the metrics with the generated texts in their predictions, under the key
        `predicted`.
        """
        requests: dict[int, GenerationRequest] = {}
        for index, row in enumerate(metrics.predictions[:_NUM_GENERATIONS]):
            last = max(i for i, one in enumerate(row["messages"]) if one["role"] == "assistant")
            if not last:  # nothing before the response
                continue
            variables = row.get("chat_template_kwargs") or {}
            history = row["messages"][:last]
            ids = lm.conversation_ids(history, tools=row.get("tools"), **variables)
            if lm.max_length is None or len(ids) < lm.max_length:
                params = lm.sampling_params(ids, {"temperature": 0.0})
                requests[index] = GenerationRequest(ids, params, answers=True)
        lm.run_requests([*requests.values()], slots=_NUM_GENERATIONS)
        rows = [
            {**row, "predicted": requests[index].text} if index in requests else row
            for index, row in enumerate(metrics.predictions)
        ]
        return metrics.with_examples(rows)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return the command that starts a chat with the model, without the leading `trivium`."""
        return f"chat {run}"


def _warn_about_hidden_parts(lm: LanguageModel, examples: Sequence[Conversation]) -> None:
    """Warn if conversations have parts that the chat template does not render.

    Such parts are tools and, in messages, names, tool calls and reasoning. For each part, one
    conversation that contains it is rendered.
    """
    with_tools = [one for one in examples if one.tools]
    if with_tools and not get_chat_template(lm, tools=True).renders_tools:
        _warn_about_hidden_part("tools", len(with_tools))
    for part in ("name", "tool_calls", "reasoning_content"):
        some = [one for one in examples if any(part in message for message in one.messages)]
        if not some:
            continue
        last = max(i for i, message in enumerate(some[0].messages) if part in message)
        messages = some[0].messages[: last + 1]
        others = [{**each, part: _OTHER_PARTS[part]} if part in each else each for each in messages]
        template, variables = get_chat_template(lm, tools=bool(some[0].tools)), some[0].variables
        if template.render(messages, tools=some[0].tools, **variables) == template.render(
            others, tools=some[0].tools, **variables
        ):
            name = "a name" if part == "name" else part
            _warn_about_hidden_part(f"messages with {name}", len(some))


def _warn_about_hidden_part(what: str, count: int) -> None:
    """Warn that `count` conversations have a part that the chat template does not render."""
    warnings.warn(
        f"{count:,} conversations have {what}, which the chat template does not show.", stacklevel=4
    )


_OTHER_PARTS: dict[str, Any] = {
    "name": "",
    "tool_calls": [{"id": "f31415926", "function": {"name": "f31415926", "arguments": {}}}],
    "reasoning_content": "",
}
"""For each part of a message, another value that a chat template renders differently."""


def get_chat_template(lm: LanguageModel, *, tools: bool = False) -> ChatTemplate:
    """Return the chat template of the model, or the plain template if the model has none.

    `tools` says whether the conversation has tools; some models have a separate template for tools.
    """
    if lm.settings.chat_template is None:
        return ChatTemplate.of(PLAIN_TEMPLATE, lm.text_tokenizer)
    return lm.get_chat_template(tools=tools)


LabelledRow = tuple[list[int], list[int], tuple[int, int, int]]
"""The token ids of a row, their labels, and the three counts of `EncodedExamples.truncations`."""


def encode_spans(
    lm: LanguageModel, text: str, spans: Sequence[Span], end: Sequence[int] = ()
) -> LabelledRow:
    """Encode a text as a training row, with labels only for the tokens in `spans`.

    The row is truncated on the right to `lm.max_length` tokens.

    Args:
        lm: the model.
        text: the text.
        spans: the (start, stop) character offsets of the spans whose tokens have labels.
        end: token ids to append to the row. They have labels, too.
    """
    tokenizer, limit = lm.text_tokenizer, lm.max_length
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids, ends = list(encoding.ids), np.array([end for _, end in encoding.offsets], dtype=int)
    response = np.zeros(len(ids), dtype=bool)
    for start, stop in spans:
        response |= (ends > start) & (ends <= stop)
    row = [*prepend_bos(tokenizer, ids), *end]
    response = np.pad(response, (len(row) - len(ids) - len(end), 0))
    response = np.pad(response, (0, len(end)), constant_values=True)
    # The label of position t is token t + 1.
    labels = [*np.where(response, row, IGNORE_INDEX)[1:].tolist(), IGNORE_INDEX]
    removed = [] if limit is None else labels[limit:]
    num_targets, num_removed = (len(x) - x.count(IGNORE_INDEX) for x in (labels, removed))
    return row[:limit], labels[:limit], (len(removed), num_targets, num_removed)


def group_by_field(rows: Sequence[LabelledRow]) -> tuple[Sequences, Truncations]:
    """Convert rows to the arguments of `EncodedExamples`.

    Returns a dict with two fields, `input_ids` and `labels`, which contain one list per row. Also
    returns the truncation counts of each row.
    """
    fields = {"input_ids": [row[0] for row in rows], "labels": [row[1] for row in rows]}
    return fields, [row[2] for row in rows]
