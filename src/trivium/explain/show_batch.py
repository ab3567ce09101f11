"""The callback `ShowBatch` prints the first batch before the first training step."""

from __future__ import annotations

import sys
from pathlib import Path

from trivium.explain.batch_parts import build_batch_parts
from trivium.explain.page import Page, TokenRow, get_text, render
from trivium.language_model import LanguageModel
from trivium.messages import detect_language
from trivium.train import Callback
from trivium.train.loader import GlobalBatch
from trivium.train.run_folder import RunFolder

_ROWS, _TOKENS = 2, 64  # the maximum numbers to show


class ShowBatch(Callback):
    """A callback that shows the first training batch on the terminal and in the report.

    Args:
        run: the run folder.
    """

    def __init__(self, run: str | Path) -> None:
        self.run = RunFolder(run)

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Print the first rows of the batch to standard error, and store them in the run folder."""
        objective = batch.stream.objective
        labels = lm.settings.labels if objective.labelled else ()
        parts = build_batch_parts(
            objective,
            batch.micro_batches[0],
            lm.text_tokenizer,
            source_tokenizer=lm.source_tokenizer,
            label_names=labels,
            loss_denominators=batch.loss_denominators,
            max_rows=_ROWS,
            max_tokens=_TOKENS,
        )
        title = get_text("page.first_batch_loss_sees", objective=objective.kind)
        print(Page(title, parts).text(detect_language()), file=sys.stderr)
        rows = [
            {"caption": render(part.caption, "en"), "tokens": part.format_cells("en")}
            for part in parts
            if isinstance(part, TokenRow)
        ]
        self.run.write_metadata(self.run.read_metadata() | {"first_batch": rows})
