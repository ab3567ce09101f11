"""Reports of training runs: HTML pages for one run or several, and summaries for the terminal.

Reports are made only from the files in run folders. The pages contain their own copy of uPlot (MIT
licence), which draws the charts, so they need no network.
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
