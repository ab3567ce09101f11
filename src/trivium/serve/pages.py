"""Pages for people that need nothing from elsewhere: what is served, and a form for every road."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from trivium.serve.models import Models

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 50rem; padding: 0 1rem; }
code, pre, textarea { font: 14px/1.4 ui-monospace, monospace; }
textarea { box-sizing: border-box; width: 100%; }
pre { background: #f4f4f4; overflow: auto; padding: .5rem; white-space: pre-wrap; }
table { border-collapse: collapse; } td, th { padding: .2rem 1rem .2rem 0; text-align: left; }
summary { cursor: pointer; }
"""
_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body><h1>{title}</h1>
"""
_SCRIPT = """
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", async (e) => {
  e.preventDefault();
  const shown = form.querySelector("pre");
  shown.hidden = false;
  shown.textContent = "...";
  const body = form.querySelector("textarea");
  const headers = body ? { "Content-Type": "application/json" } : {};
  const key = document.querySelector("#key");
  if (key && key.value) headers.Authorization = "Bearer " + key.value;
  try {
    const answer = await fetch(form.dataset.path,
      { method: form.dataset.method, headers, body: body ? body.value : undefined });
    let text = await answer.text();
    try { text = JSON.stringify(JSON.parse(text), null, 1); } catch { /* no JSON: as it is */ }
    shown.textContent = answer.status + "\\n" + text;
  } catch (error) { shown.textContent = String(error); }
});
"""


def front_page(models: Models, *, playground: str | None) -> str:
    """What is served. `playground` says why there is none here."""
    rows = "".join(
        f"<tr><td><code>{escape(each.name)}</code></td>"
        f"<td>{'loaded' if each.loaded else 'loaded when first asked for'}</td>"
        f"<td>{escape(', '.join(each.verbs or ('?',)))}</td></tr>"
        for each in models
    )
    hint = f"<p>{escape(playground)}</p>" if playground else ""
    return (
        f"{_HEAD.format(title='Trivium', style=_STYLE)}"
        f"<table><tr><th>model</th><th></th><th>can</th></tr>{rows}</table>"
        '<p><a href="docs">Try every road</a>, <a href="openapi.json">the OpenAPI document</a>, '
        '<a href="healthz">health</a>, <a href="metrics">metrics</a>.</p>'
        f"{hint}</body></html>"
    )


def docs_page(document: Mapping[str, Any]) -> str:
    """Every road of an OpenAPI document with its example, to be changed and run."""
    parts = [
        _form(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    key = ""
    if document.get("security"):
        key = '<p><label>API key <input id="key" type="password" autocomplete="off"></label></p>'
    head = _HEAD.format(title="Trivium: every road", style=_STYLE)
    return f"{head}{key}{''.join(parts)}<script>{_SCRIPT}</script></body></html>"


def _form(path: str, method: str, operation: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    example = content.get("example")
    field = ""
    if example is not None:
        text = json.dumps(example, ensure_ascii=False, indent=1)
        lines = text.count("\n") + 1
        field = f'<textarea rows="{lines}" spellcheck="false">{escape(text)}</textarea>'
    elif content:
        field = "<p>No model that is served can do this.</p>"
    runs = "{" not in path and (example is not None or not content)
    button = "<button>Run</button><pre hidden></pre>" if runs else ""
    return (
        f"<details><summary><code>{method.upper()} {escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary>"
        f'<form data-path="{escape(path.lstrip("/"))}" data-method="{method.upper()}">'
        f"{field}{button}</form></details>"
    )
