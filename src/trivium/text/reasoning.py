"""Reasoning blocks: text between `<think>` and `</think>` at the beginning of a generation."""

from __future__ import annotations

import re

THINK, END_THINK = "<think>", "</think>"
_START = re.compile(rf"\s*{THINK}\s*")


def opens_reasoning(prompt: str) -> bool:
    """Return whether a rendered prompt opens a reasoning block, so that it ends with `<think>`."""
    return prompt.rstrip().endswith(THINK)


class ReasoningReader:
    """Splits a streamed generation into reasoning and content.

    The result does not depend on how the text is chunked. Spaces and line breaks around the
    reasoning are part of neither. If the reasoning block is not closed, all text is reasoning.

    Args:
        is_open: whether the prompt has already opened the reasoning block.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self._held = ""
        self._state = "start" if is_open else "before"

    def push(self, chunk: str, *, is_last: bool = False) -> tuple[str, str]:
        """Add a chunk of text. Returns the new reasoning and the new content.

        `is_last` is True for the last chunk of the text.
        """
        reasoning = ""
        self._held += chunk
        if self._state == "before":
            if match := _START.match(self._held):
                self._state, self._held = "start", self._held[match.end() :]
            elif is_last or not THINK.startswith(self._held.lstrip()):
                self._state = "rest"
        if self._state == "start":  # spaces before the reasoning
            self._held = self._held.lstrip()
            self._state = "reasoning" if self._held else "start"
        if self._state == "reasoning":
            reasoning = self._read_reasoning(is_last=is_last)
        if self._state == "after":  # spaces after the reasoning
            self._held = self._held.lstrip()
            self._state = "rest" if self._held else "after"
        rest = ""
        if self._state == "rest":
            rest, self._held = self._held, ""
        return reasoning, rest

    def _read_reasoning(self, *, is_last: bool) -> str:
        """Return the new reasoning in the held text. Trailing spaces are held back."""
        text, found, after = self._held.partition(END_THINK)
        if found:
            self._state, self._held = "after", after
            return text.rstrip()
        if is_last:
            self._held = ""
            return text
        sizes = range(min(len(END_THINK) - 1, len(text)), 0, -1)
        held = next((size for size in sizes if text.endswith(END_THINK[:size])), 0)
        certain = text[: len(text) - held].rstrip()
        self._held = text[len(certain) :]
        return certain
