"""Templates: how an example is written out as a text with its answer in it."""

from __future__ import annotations

import string
from collections.abc import Mapping

from trivium.errors import DataError, TriviumError, did_you_mean

# What files call the right answer: no prompt may give it away.
_ANSWERS = ("answer", "label", "target")


class Template:
    """A text with {fields} of an example in braces, and {answer} where its answer stands.

    {label} and {target} are other names of {answer}. A doubled brace stands for itself.

    >>> Template("{text} It was {answer}.").filled({"text": "Fine."}, "great", "line 1")
    'Fine. It was great.'

    Args:
        text: the template; `{answer}` stands in it once.

    Raises:
        TriviumError: a brace too many, or not one `{answer}`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise TriviumError(f"the template {text!r} cannot be read: {error}.") from None
        self._parts = [(literal, name) for literal, name, _, _ in parts]
        if sum(name in _ANSWERS for _, name in self._parts) != 1:
            raise TriviumError(
                f"the template {text!r} must have {{answer}} in it once: where the answer stands."
            )

    def around(self, fields: Mapping[str, str], where: str) -> tuple[str, str]:
        """The text before the answer and the text after it.

        Raises:
            DataError: a field that the example at `where` does not have.
        """
        before: list[str] = []
        current = before
        after: list[str] = []
        for literal, name in self._parts:
            current.append(literal)
            if name in _ANSWERS:
                current = after
            elif name is not None:
                current.append(self._field(fields, name, where))
        return "".join(before), "".join(after)

    def filled(self, fields: Mapping[str, str], answer: str, where: str) -> str:
        """The whole text, the answer in its place."""
        before, after = self.around(fields, where)
        return f"{before}{answer}{after}"

    def _field(self, fields: Mapping[str, str], name: str, where: str) -> str:
        if name not in fields:
            known = ", ".join(["answer", *(key for key in fields if key not in _ANSWERS)])
            raise DataError(
                f"{where}: the template names {{{name}}}; an example here has {known}."
                f"{did_you_mean(name, fields)}"
            )
        return fields[name]
