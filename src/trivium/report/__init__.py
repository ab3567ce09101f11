"""Reports of training runs: HTML pages for one or several runs, and summaries for the terminal.

Reports are made only from the files in run folders. The pages need no network, because they include
the library that draws the charts (uPlot, MIT licence).
"""

from trivium.report.html_report import format_report as format_report
from trivium.report.html_report import write_comparison as write_comparison
from trivium.report.html_report import write_report as write_report
from trivium.report.run_files import RunFiles as RunFiles
from trivium.report.run_files import read_run as read_run
from trivium.report.summary import MAX_UNKNOWN_FRACTION as MAX_UNKNOWN_FRACTION
from trivium.report.summary import Summary as Summary
from trivium.report.summary import format_summary as format_summary
from trivium.report.summary import summarize as summarize
