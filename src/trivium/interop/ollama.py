"""Write a `Modelfile`, from which `ollama create` makes a model out of a GGUF file.

Ollama does not read Jinja chat templates. Its templates are those of Go, and a simple chat template
can be expressed as one: the text before and after the content of each role, found by rendering
examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trivium.errors import TokenizerError
from trivium.text.chat_template import ChatTemplate, Message

MODELFILE = "Modelfile"
_MAX_CONTEXT = 4096  # Ollama reserves memory for the whole context
_PLACEHOLDERS = {"system": "3141592653", "user": "2718281828", "assistant": "1618033988"}


class _Turn(NamedTuple):
    """The text before and after the content of a message."""

    before: str
    after: str

    def render(self, content: str) -> str:
        """Return the text of a turn with this content."""
        return self.before + content + self.after


def make_modelfile(
    gguf_name: str,
    *,
    context_length: int,
    stop: Sequence[str],
    parameters: Mapping[str, Any],
    template: ChatTemplate | None,
    added_bos: str = "",
) -> tuple[str, bool]:
    """Return the text of a Modelfile, and whether it has the chat template of the model.

    A model without a chat template gets Ollama's template for plain prompts, and the second value
    is True. If a chat template cannot be expressed in Go, the Modelfile has no template, and Ollama
    chooses one of its own that is similar, or none.

    Args:
        gguf_name: the name of the GGUF file in the same folder.
        context_length: the maximum number of tokens that the model reads.
        stop: the tokens that end a text.
        parameters: Ollama's parameters of sampling; those that are None are left out.
        template: the chat template.
        added_bos: the token that llama.cpp adds to the start of a prompt, "" if none; it is removed
            from the start of the template.
    """
    go_template = "{{ .Prompt }}" if template is None else to_go_template(template, added_bos)
    numbers = {"num_ctx": min(context_length, _MAX_CONTEXT), **parameters}
    lines = [
        "# ollama create NAME -f Modelfile && ollama run NAME",
        f"# The model reads up to {context_length} tokens (num_ctx).",
        f"FROM ./{gguf_name}",
        *(f"PARAMETER {name} {value}" for name, value in numbers.items() if value is not None),
        *(f'PARAMETER stop "{token}"' for token in stop if '"' not in token),
    ]
    if go_template is None:
        lines.append("# The chat template has no equal in Go's language: write TEMPLATE by hand.")
    else:
        lines.append(f'TEMPLATE """{go_template}"""')
    return "\n".join(lines) + "\n", go_template is not None


def to_go_template(template: ChatTemplate, added_bos: str = "") -> str | None:
    """Return a Go template for Ollama that renders messages as a chat template does.

    Returns None if the chat template is more than a text before and after each message.
    """
    try:
        start, turns, prompt = _find_turns(template)
    except TokenizerError:
        return None
    if turns is None:
        return None
    start = start.removeprefix(added_bos)
    pieces = [start, prompt, *(piece for turn in turns.values() for piece in turn)]
    if any(mark in piece for piece in pieces for mark in ("{{", "}}", '"""')):
        return None
    branches = (
        f'if eq .Role "{role}" }}}}{turn.before}{{{{ .Content }}}}{turn.after}{{{{ '
        for role, turn in turns.items()
    )
    loop = f"{{{{ range .Messages }}}}{{{{ {'else '.join(branches)}end }}}}{{{{ end }}}}"
    return start + loop + prompt


def _find_turns(template: ChatTemplate) -> tuple[str, dict[str, _Turn] | None, str]:
    """Return the start of every conversation, the turn of each role, and the generation prompt.

    The turns are None if they depend on anything but the role of the message. Raises TokenizerError
    if the template rejects the messages.
    """
    system, user, answer = (
        {"role": role, "content": content} for role, content in _PLACEHOLDERS.items()
    )

    def render(*messages: Message, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation."""
        return str(template.render(messages, add_generation_prompt=add_generation_prompt))

    asked, answered, again = render(user), render(user, answer), render(user, answer, user)
    user_turn = again.removeprefix(answered)
    start = asked.removesuffix(user_turn)
    texts = {
        "system": render(system, user).removesuffix(user_turn).removeprefix(start),
        "user": user_turn,
        "assistant": answered.removeprefix(asked),
    }
    prompt = render(user, add_generation_prompt=True).removeprefix(asked)
    turns = {}
    for role, text in texts.items():
        before, _, after = text.partition(_PLACEHOLDERS[role])
        turns[role] = _Turn(before, after)
    # Other contents, in a longer conversation, must give the same text.
    messages = [system, user, answer, user, answer, user]
    messages = [{**each, "content": f"A {index}?"} for index, each in enumerate(messages)]
    for count in (0, 1):  # with and without the system message
        rest = messages[count:]
        expected = "".join(turns[each["role"]].render(each["content"]) for each in rest)
        if render(*rest, add_generation_prompt=True) != start + expected + prompt:
            return start, None, prompt
    return start, turns, prompt
