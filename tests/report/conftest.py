"""Run folders for the tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import RunMaker


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path)
