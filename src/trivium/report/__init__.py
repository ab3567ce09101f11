"""Reports of runs: one HTML file per run, a comparison of several, and text for the terminal.

Only the files of run folders are read. Charts are drawn by uPlot (MIT licence), which is part of
the page: it needs no network.
"""

from trivium.report.html_report import text_report, write_comparison, write_report
from trivium.report.run_files import RunFiles, read_run
from trivium.report.summary import UNKNOWN_SHARE, Summary, summarize, text_summary

__all__ = [
    "UNKNOWN_SHARE",
    "RunFiles",
    "Summary",
    "read_run",
    "summarize",
    "text_report",
    "text_summary",
    "write_comparison",
    "write_report",
]
