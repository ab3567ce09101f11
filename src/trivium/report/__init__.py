"""Reports of runs: one HTML file per run, a comparison of several, and text for the terminal.

Only the files of run folders are read. Charts are drawn by uPlot (MIT licence), which is part of
the page: it needs no network.
"""

from trivium.report.html_report import text_report as text_report
from trivium.report.html_report import write_comparison as write_comparison
from trivium.report.html_report import write_report as write_report
from trivium.report.run_files import RunFiles as RunFiles
from trivium.report.run_files import read_run as read_run
from trivium.report.summary import UNKNOWN_SHARE as UNKNOWN_SHARE
from trivium.report.summary import Summary as Summary
from trivium.report.summary import summarize as summarize
from trivium.report.summary import text_summary as text_summary
