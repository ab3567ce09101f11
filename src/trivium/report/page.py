"""The page around a report: style inside, light and dark, wide and narrow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2127; --soft: #5c6570;
  --rule: #dfe3e8; --panel: #f6f7f9; --good: #0a7d4f; --bad: #b3400a;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a8578a;
  --c4: #b07800; --c5: #2f9fd8; --c6: #6b6b6b; --c7: #7a4fc9; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e6e9ed; --soft: #9aa4af;
  --rule: #2c333b; --panel: #1c2026; --good: #4cc38a; --bad: #f08c5a;
  --c0: #5ab4f0; --c1: #f59350; --c2: #3ccf9f; --c3: #e093c4;
  --c4: #e9b949; --c5: #8fd3ff; --c6: #b0b0b0; --c7: #b79bff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 860px; padding: 24px 20px 60px; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "Noto Sans CJK SC", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 4px; } h2 { font-size: 1.15rem; margin: 40px 0 12px; }
h3 { font-size: 1rem; margin: 24px 0 8px; } p { margin: 8px 0; } .soft { color: var(--soft); }
.verdict { border-left: 4px solid var(--good); background: var(--panel); padding: 10px 14px;
  border-radius: 0 6px 6px 0; margin: 16px 0; } .verdict.stuck { border-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px;
  margin: 16px 0; }
.tiles div { background: var(--panel); border-radius: 6px; padding: 10px 12px; }
.tiles b { display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .85rem; }
figure { margin: 18px 0 26px; } figcaption { font-weight: 600; margin-bottom: 4px; }
svg.chart { display: block; width: 100%; height: auto; } svg.narrow { display: none; }
@media (max-width: 560px) { body { padding: 16px 14px 40px; } svg.wide { display: none; }
  svg.narrow { display: block; } }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg text.label { fill: var(--ink); }
.grid { stroke: var(--rule); stroke-width: 1; fill: none; }
.axis { stroke: var(--soft); stroke-width: 1; fill: none; }
.level { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.hover { fill: transparent; } .hover:hover { fill: var(--soft); fill-opacity: .35; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: .88rem; color: var(--soft); }
.key { display: inline-block; width: 16px; height: 3px; margin-right: 6px; vertical-align: middle;
  background: currentColor; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; } .scroll { overflow-x: auto; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: normal; } thead th { color: var(--soft); font-weight: 600; }
th[scope=row] { font-weight: 500; } td.number, th.number { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.mistakes td:first-child { white-space: normal; min-width: 40%; }
table.pairs th { width: 34%; } td:first-child { white-space: nowrap; }
.compact table { font-size: .85rem; } .bars th { width: 34%; } td.bar { width: 42%; }
td.bar i { display: block; height: 12px;
  margin-top: 6px; background: var(--c0); border-radius: 2px; min-width: 2px; }
blockquote { margin: 0 0 12px; padding: 10px 14px; background: var(--panel); border-radius: 6px; }
blockquote .prompt { color: var(--soft); } blockquote p { margin: 2px 0; white-space: pre-wrap; }
pre { background: var(--panel); padding: 12px 14px; border-radius: 6px; overflow-x: auto;
  font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }
code.token { font: 13px ui-monospace, Menlo, Consolas, monospace; background: var(--panel);
  padding: 1px 5px; margin: 0 4px 4px 0; border-radius: 4px; display: inline-block;
  white-space: pre; }
summary { cursor: pointer; font-weight: 600; } footer { color: var(--soft); font-size: .85rem;
  margin-top: 48px; }
"""
_COLORS = "".join(
    f".line.c{index} {{ stroke: var(--c{index}); }} .dot.c{index} {{ fill: var(--c{index}); }} "
    f".key.c{index} {{ color: var(--c{index}); }} "
    for index in range(8)
)
# Nothing may be fetched, whatever text a run puts into the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, parts: Iterable[str], *, footer: str = "") -> str:
    """A whole HTML document. `title` and `footer` are text, `parts` are HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{_COLORS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<footer>{escape(footer)}</footer>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading with HTML below it; nothing at all where there is nothing below."""
    body = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Large figures with a small label each: (label, figure)."""
    cells = (
        f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for label, value in pairs
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """A table of text; the columns after the first `text_columns` are numbers, set right."""

    def cell(tag: str, index: int, text: str) -> str:
        kind = ' class="number"' if index >= text_columns else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    def line(tag: str, texts: Sequence[str]) -> str:
        return "".join(cell(tag, index, text) for index, text in enumerate(texts))

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{line("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def pairs_table(pairs: Iterable[tuple[str, str]]) -> str:
    """A table of name and value."""
    rows = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<table class="pairs">{"".join(rows)}</table>'


def write_page(path: Path, html: str) -> Path:
    """Write the page whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(html, encoding="utf-8")
    os.replace(partial, path)
    return path
