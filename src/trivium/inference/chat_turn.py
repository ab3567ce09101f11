"""One message of the assistant: its prompt, its constraint, and the reading of its text.

`LanguageModel.chat`, `trivium chat` and the server's `/v1/chat/completions` generate messages with
`ChatTurn`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trivium.errors import TriviumError, did_you_mean
from trivium.inference.chat_grammar import call_rules, content_rule, reasoning_rules, text_rules
from trivium.inference.constraint import Constraint
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import TextModel, prompt_ids
from trivium.text.chat_template import TEMPLATE_VARIABLES, Message, Tools, parse_arguments
from trivium.text.json_types import Schema
from trivium.text.reasoning import END_THINK, THINK, ReasoningReader, opens_reasoning
from trivium.text.tool_formats import ToolCall, ToolCallReader, ToolFormat, find_tool_format

ToolChoice = Literal["auto", "none", "required"] | Mapping[str, Any]
"""Whether a message may have tool calls, as in OpenAI's API.

With "auto" the model decides, "none" hides the tools from the model, "required" requires a call,
and `{"type": "function", "function": {"name": ...}}` requires one call of this function.
"""
_MODES = ("auto", "none", "required")


@dataclass(frozen=True)
class ChatAnswer:
    """A generated message of the assistant.

    Args:
        content: the text without reasoning and tool calls; None if there is none.
        reasoning_content: the reasoning of the model; None if there is none.
        tool_calls: the calls of tools.
        finish_reason: why the text ended: "tool_calls" (it ended with calls), "stop" or "length".
    """

    content: str | None
    reasoning_content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str

    def to_message(self) -> dict[str, Any]:
        """Return the message in the format of OpenAI's API, to append to the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or ""}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return message


class AnswerDelta(NamedTuple):
    """The new parts of a message: reasoning, content, and tool calls that are now complete."""

    reasoning: str
    content: str
    calls: list[ToolCall]


class AnswerReader:
    """Separates the text of a message, which arrives in pieces, into its parts.

    Args:
        format: the format of tool calls; None if the text has none.
        functions: the JSON schema of the arguments of each function, by the name of the function.
        in_reasoning: whether the prompt has already begun the reasoning.

    Attributes:
        num_calls: the number of calls so far.
    """

    def __init__(
        self, format: ToolFormat | None, functions: Mapping[str, Schema], *, in_reasoning: bool
    ) -> None:
        self._reasoning = ReasoningReader(is_open=in_reasoning)
        self._calls = None if format is None else ToolCallReader(format, functions)
        self.num_calls = 0

    def push(self, piece: str, *, is_last: bool = False) -> AnswerDelta:
        """Add a piece of text. Returns what is new. `is_last` is whether the text is complete."""
        reasoning, content = self._reasoning.push(piece, is_last=is_last)
        calls = list[ToolCall]()
        if self._calls is not None:
            content, calls = self._calls.push(content, is_last=is_last)
        self.num_calls += len(calls)
        return AnswerDelta(reasoning, content, calls)

    def finish_reason(self, reason: str) -> str:
        """Return the reason why a message ended: "tool_calls" if it is complete and has calls."""
        return "tool_calls" if reason == "stop" and self.num_calls else reason


class ChatTurn:
    """The next message of the assistant in a conversation.

    Args:
        lm: the model, which has a chat template.
        messages: the messages so far, in OpenAI's format.
        tools: the tools that the model may call: functions with a JSON schema. The arguments of
            functions with `"strict": True` always follow their schema.
        tool_choice: whether the model may or must call tools.
        parallel_tool_calls: whether the message may have several calls. If not, the message ends
            after the first call.
        chat_template_kwargs: additional variables of the chat template, such as `enable_thinking`.

    Attributes:
        prompt_ids: the ids of the prompt.

    Raises:
        TokenizerError: the model has no chat template, the template rejects the messages, or tools
            are given, and the template does not render them or writes calls in an unknown format.
        TriviumError: a tool or `tool_choice` is invalid, or a variable of the template is reserved.
    """

    def __init__(
        self,
        lm: TextModel,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        variables = {**(chat_template_kwargs or {})}
        functions = _read_functions(tools or ())
        self._required = _find_required(tool_choice, functions)
        tools = None if tool_choice == "none" else tools
        self._lm, self._parallel = lm, parallel_tool_calls and isinstance(tool_choice, str)
        messages = _complete_messages(messages)
        has_tools = bool(tools) or any(message.get("tool_calls") for message in messages)
        template = lm.get_chat_template(tools=has_tools)
        for name in (*TEMPLATE_VARIABLES, *template.tokens):
            if name in variables:
                raise TriviumError(f"chat_template_kwargs cannot set {name}.")
        self._functions = functions if tools else {}
        strict = {
            str(tool["function"]["name"]) for tool in tools or () if tool["function"].get("strict")
        }
        self._is_strict = bool(strict)
        self._strict_functions = {
            name: schema if name in strict else {"type": "object"}
            for name, schema in self._functions.items()
        }
        self._format = find_tool_format(template) if tools else None
        shown = [_without_strict(tool) for tool in tools or ()]
        prompt = template.render(messages, add_generation_prompt=True, tools=shown, **variables)
        self.prompt_ids = prompt_ids(lm, prompt)
        self._in_reasoning = opens_reasoning(prompt)
        closed = prompt.rstrip().endswith(END_THINK)
        self._may_reason = self._in_reasoning or (THINK in template.source and not closed)

    def reader(self) -> AnswerReader:
        """Return a reader for the text of the message."""
        return AnswerReader(self._format, self._functions, in_reasoning=self._in_reasoning)

    def request(self, params: SamplingParams) -> GenerationRequest:
        """Return the request for the text of the message.

        A constraint in `params` applies to the content. It does not apply to reasoning and to tool
        calls.

        Raises:
            TriviumError: the schema of a tool or the constraint is invalid or cannot be used with
                the tokenizer, or a call is required and the content is constrained, too.
            MissingExtraError: a call is required, and llguidance is not installed.
        """
        special = self._lm.text_tokenizer.special_tokens
        names = (THINK, END_THINK, *(self._format.names if self._format else ()))
        ends_after_call = self._format is not None and not (self._parallel or self._required)
        return GenerationRequest(
            self.prompt_ids,
            self._constrain(params),
            answers=True,
            shown_ids={special[name] for name in names if name in special},
            is_complete=self._make_call_detector() if ends_after_call else None,
        )

    def _make_call_detector(self) -> Callable[[str], bool]:
        """Return a function that reads the text piece by piece, and is True after a call."""
        reader = self.reader()

        def has_call(piece: str) -> bool:
            """Read a piece of text. Returns whether it completes a call."""
            return bool(reader.push(piece).calls)

        return has_call

    def read(self, request: GenerationRequest) -> ChatAnswer:
        """Return the message that a finished request has generated."""
        reader = self.reader()
        reasoning, content, calls = reader.push(request.text, is_last=True)
        reason = reader.finish_reason(request.finish_reason or "length")
        return ChatAnswer(content or None, reasoning or None, tuple(calls), reason)

    def _constrain(self, params: SamplingParams) -> SamplingParams:
        """Return the options with a grammar for the whole text, if the text is constrained."""
        tokenizer, format = self._lm.text_tokenizer, self._format
        given = [name for name in _CONSTRAINTS if getattr(params, name) not in (None, ())]
        if self._required and given:
            raise TriviumError(
                f"tool_choice requires a call, and {given[0]} constrains the text: set one."
            )
        rules, option = list[str](), given[0] if given else "the tools"
        if self._required:
            message, functions = "calls", self._required
        elif given and (format is not None or self._may_reason):
            message, functions = "output" if format is None else "calls | output", self._functions
            rules.append(f"output: {content_rule(params)}")
        elif format is not None and self._is_strict:
            message, functions = "(before_call calls)* text", self._strict_functions
            if format.begins_with_json:
                message = "calls | text"
            rules += text_rules(format, tokenizer)
        else:
            return params
        if format is not None:
            after_text = message.startswith("(")
            rules += call_rules(
                format, functions, tokenizer, parallel=self._parallel, after_marker=after_text
            )
        thinking = "thinking " if self._in_reasoning else "thinking? " if self._may_reason else ""
        if thinking:
            rules += reasoning_rules(tokenizer, is_open=self._in_reasoning)
        grammar = "\n".join([f'start: " "? {thinking}message', f"message: {message}", *rules, ""])
        Constraint(tokenizer, self._lm.generation_rules.stop_ids, grammar, option)  # may raise
        free = dict.fromkeys(_CONSTRAINTS, None) | {"choices": (), "grammar": grammar}
        return params.replace(**free)


_CONSTRAINTS = ("choices", "json_schema", "regex", "grammar")


def _read_functions(tools: Tools) -> dict[str, Schema]:
    """Return the JSON schema of the arguments of each function, by the name of the function.

    Raises TriviumError if a tool is not a function in OpenAI's format.
    """
    functions: dict[str, Schema] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not (isinstance(name, str) and name):
            raise TriviumError(
                f"tools[{index}] is not a function in OpenAI's format: "
                '{"type": "function", "function": {"name": ..., "parameters": ...}}.'
            )
        if name in functions:
            raise TriviumError(f"two tools have the name {name!r}: rename one.")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(schema, Mapping):
            raise TriviumError(f"the parameters of the tool {name!r} are not a JSON schema.")
        functions[name] = schema
    return functions


def _without_strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool without `strict`, which is not for the model to read."""
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    return {**tool, "function": function}


def _find_required(
    tool_choice: ToolChoice, functions: Mapping[str, Schema]
) -> Mapping[str, Schema]:
    """Return the functions of which one must be called; {} if a call is not required.

    Raises TriviumError if `tool_choice` is invalid.
    """
    if isinstance(tool_choice, str):
        if tool_choice not in _MODES:
            raise TriviumError(
                f"tool_choice is {tool_choice!r}, but must be {', '.join(map(repr, _MODES))} or "
                '{"type": "function", "function": {"name": ...}}.'
            )
        if tool_choice == "required" and not functions:
            raise TriviumError("tool_choice requires a call, but there are no tools: set tools.")
        return functions if tool_choice == "required" else {}
    function = tool_choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in functions:
        known = ", ".join(functions) or "none"
        raise TriviumError(
            f"tool_choice names the function {name!r}, but the tools are: {known}."
            f"{did_you_mean(str(name), list(functions))}"
        )
    return {name: functions[name]}


def _complete_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in the form that chat templates expect.

    The arguments of calls are objects, an empty list of calls is left out, and the result of a tool
    has the name of the function, which some templates render.
    """
    names = dict[str, str]()
    completed = list[dict[str, Any]]()
    for message in messages:
        message = parse_arguments(message)
        if not message.get("tool_calls"):
            message.pop("tool_calls", None)
        for call in message.get("tool_calls", ()):
            names[str(call.get("id"))] = str((call.get("function") or call).get("name"))
        call_id = str(message.get("tool_call_id"))
        if message.get("role") == "tool" and call_id in names:
            message = {"name": names[call_id], **message}
        completed.append(message)
    return completed
