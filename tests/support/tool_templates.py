"""Small chat templates with tools, in the formats that models use for tool calls."""

from __future__ import annotations

from typing import Any

_TOOLS = (
    "{%- if tools %}{{ '<s>tools\n' }}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
)
_OTHER = """\
{%- elif m.role == 'tool' %}{{ '<t>' + m.content + '<e>\n' }}
{%- else %}{{ '<u>' + m.content + '<e>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<a>' }}{% endif %}"""

HERMES = (
    _TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<a>' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- ('\n' if m.content or not loop.first else '') + '<tool_call>\n{"name": "' + c.function.name }}
{{- '", "arguments": ' + (c.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}{{ '<e>\n' }}"""
    + _OTHER
)

THINKING = (
    _TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<a>' }}
{%- if loop.last %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + c.function.name }}
{{- '", "arguments": ' + (c.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}{{ '<e>\n' }}"""
    + _OTHER
    + "{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "{{- '<think>\n\n</think>\n\n' }}{% endif %}"
)
"""Only the last answer keeps its reasoning."""

OPEN_THINKING = THINKING.replace("{{ '<a>' }}{% endif %}", "{{ '<a><think>\n' }}{% endif %}")
"""The generation prompt begins the reasoning."""

LLAMA = (
    _TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set c = m.tool_calls[0].function %}
{{- '<a>{"name": "' + c.name + '", "parameters": ' + (c.arguments | tojson) + '}<e>\n' }}
{%- elif m.role == 'assistant' %}{{ '<a>' + m.content + '<e>\n' }}"""
    + _OTHER
)

MISTRAL = (
    _TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}{{ '<a>[TOOL_CALLS] [' }}
{%- for c in m.tool_calls %}
{%- if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{- (c.function | tojson)[:-1] + ', "id": "' + c.id + '"}' + ('' if loop.last else ', ') }}
{%- endfor %}{{ ']<e>\n' }}
{%- elif m.role == 'assistant' %}{{ '<a>' + m.content + '<e>\n' }}"""
    + _OTHER
)

MISTRAL_ARGS = (
    _TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<a>' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '[TOOL_CALLS]' + c.function.name + '[ARGS]' + (c.function.arguments | tojson) }}
{%- endfor %}{{ '<e>\n' }}"""
    + _OTHER
)

QWEN_XML = (
    _TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<a>' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- ('\n' if m.content or not loop.first else '') + '<tool_call>\n<function=' }}
{{- c.function.name + '>\n' }}
{%- for k, v in c.function.arguments | items %}
{{- '<parameter=' + k + '>\n' + (v if v is string else v | tojson) + '\n</parameter>\n' }}
{%- endfor %}
{{- '</function>\n</tool_call>' }}
{%- endfor %}{{ '<e>\n' }}"""
    + _OTHER
)

PYTHONIC = (
    _TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{{- '<a>[' + m.tool_calls[0].function.name + '(x=1)]<e>\n' }}
{%- elif m.role == 'assistant' %}{{ '<a>' + m.content + '<e>\n' }}"""
    + _OTHER
)
"""A format of tool calls that the server does not read."""

TEMPLATES = {
    "hermes": HERMES,
    "thinking": THINKING,
    "open-thinking": OPEN_THINKING,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mistral-args": MISTRAL_ARGS,
    "qwen-xml": QWEN_XML,
    "pythonic": PYTHONIC,
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function in OpenAI's format, whose arguments are all required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    function = {"name": name, "description": f"The {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


def call(name: str, arguments: Any, number: int = 1) -> dict[str, Any]:
    """A tool call, whose id has 9 characters."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call{number:05}", "type": "function", "function": function}


WEATHER = tool("weather", city={"enum": ["Paris", "Rome"]}, days={"type": "integer", "maximum": 9})
CLOCK = tool("clock")
