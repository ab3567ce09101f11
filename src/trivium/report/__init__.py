"""Reports of runs: text, one HTML file for a run, one for several. Reads only a run's files."""

from __future__ import annotations

from trivium.report.comparison import write_comparison
from trivium.report.html import write_report

__all__ = ["write_comparison", "write_report"]
