"""Every mutation can still be put in, and the test that notices it is there."""

from __future__ import annotations

import tomllib
from pathlib import Path

from test_architecture_faults import ROOT, functions_of

MUTATIONS = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text("utf-8"))["mutation"]


def test_every_mutation_has_its_place_and_its_test():
    for mutation in MUTATIONS:
        what = mutation["what"]
        text = Path(ROOT / "src" / "trivium" / mutation["file"]).read_text("utf-8")
        assert text.count(mutation["old"]) == 1, what
        assert mutation["new"] != mutation["old"], what
        package = mutation["file"].partition("/")[0] if "/" in mutation["file"] else "(top)"
        assert mutation["package"] == package, what
        file, _, name = mutation["test"].partition("::")
        assert name in functions_of(file), what
