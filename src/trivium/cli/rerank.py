"""`trivium rerank`: sort documents by their relevance to a query.

Examples:

  trivium rerank hf/reranker "who wrote it?" "Ada wrote the first program." "It rained."

  cat passages.txt | trivium rerank runs/reranker "who wrote it?" --top-k 10 --json
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import join_cells, load, print_result, read_texts


def rerank(
    model: opt.Model,
    query: Annotated[str, typer.Argument(show_default=False)],
    documents: Annotated[list[str] | None, typer.Argument(show_default=False)] = None,
    top_k: Annotated[int | None, typer.Option(min=1, show_default="all")] = None,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """Print the documents in the order of their relevance to the query, each with its score.

    Documents come from the arguments or, one per line, from standard input.

    Args:
        query: The text that the documents are compared with.
        documents: The documents; default: the lines of standard input.
        top_k: Print only the most relevant documents, up to this number.
    """
    lm = load(model, device=device).reading(special_tokens)
    texts = list(read_texts(documents))
    for one in lm.rerank(query, texts, top_k=top_k):
        print_result(asdict(one), join_cells(f"{one.score:.4f}", one.document), as_json=as_json)
