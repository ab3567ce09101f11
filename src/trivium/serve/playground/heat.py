"""A picture of attention: a table whose cells are as dark as their numbers are large."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

LEVELS = 20
"""Shades of a cell; the style has a colour for each."""

HEAT_SCRIPT = """
const said = (event) => {
  const cell = event.target.closest('td[data-v]');
  const line = element.querySelector('.tv-said');
  if (!cell || !line) return;
  element.querySelectorAll('.tv-at').forEach((one) => one.classList.remove('tv-at'));
  const row = cell.parentElement.firstElementChild;
  const column = element.querySelectorAll('thead th')[cell.cellIndex];
  for (const one of [cell, row, column]) one.classList.add('tv-at');
  const share = (100 * parseFloat(cell.dataset.v)).toFixed(1) + '%';
  line.textContent = row.title + ' ' + line.dataset.verb + ' ' + column.title + ': ' + share;
};
element.addEventListener('mouseover', said);
element.addEventListener('click', said);
"""
"""Tells the number of the cell that is pointed at or tapped in the line above the picture."""


def heat_map(
    rows: Sequence[str], columns: Sequence[str], weights: np.ndarray, *, verb: str, note: str
) -> str:
    """HTML of attention probabilities [T, S]: what stands in a row looks at what is in a column.

    Shades follow the square root of a probability, so that small ones can be told apart; cells
    that are exactly 0 stay empty.

    Args:
        rows: T tokens.
        columns: S tokens.
        weights: [T, S], each row a distribution.
        verb: what stands between two tokens in the line above the picture.
        note: what the line says before a cell is pointed at.
    """
    levels = np.ceil(np.sqrt(weights.clip(0.0, 1.0)) * LEVELS).astype(int)
    head = "".join(_label(name, upright=True) for name in columns)
    body = []
    for name, shares, shades in zip(rows, weights.tolist(), levels.tolist()):
        cells = "".join(
            f'<td class="a{shade}" data-v="{share:.4f}"></td>'
            for share, shade in zip(shares, shades)
        )
        body.append(f"<tr>{_label(name)}{cells}</tr>")
    return (
        f'<p class="tv-said" data-verb="{escape(verb, quote=True)}">{escape(note)}</p>'
        f'<div class="tv-scroll"><table class="tv-heat"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _label(name: str, *, upright: bool = False) -> str:
    scope = "col" if upright else "row"
    text = f"<span>{escape(name)}</span>"
    return f'<th scope="{scope}" title="{escape(name, quote=True)}">{text}</th>'
