"""A sample of what `make fuzz` does for an hour: every reader refuses or reads a damaged file."""

from __future__ import annotations

import pytest
from checking import READERS, fuzzed
from damage import Damage, damages
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# What fuzzing found: reader, file, the bytes there and what they were replaced with.
FINDINGS: list[tuple[str, str, bytes, bytes]] = []


@pytest.fixture(scope="module", params=READERS)
def reader(request):
    with fuzzed(request.param) as one:
        yield one


def test_good_files_are_read(reader):
    name, content = next(iter(reader.files.items()))
    error = reader.check(Damage(name, content), summed=False)
    assert error is None


def test_damaged_files_are_read_or_refused(reader):
    @settings(
        max_examples=20,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damage=damages(reader.files), summed=st.booleans())
    def check(damage, summed):
        reader.check(damage, summed=summed)

    check()


@pytest.mark.parametrize(("name", "file", "before", "after"), FINDINGS)
def test_what_fuzzing_found(name, file, before, after):
    with fuzzed(name) as one:
        content = one.files[file]
        assert before in content
        assert one.check(Damage(file, content.replace(before, after)), summed=True) is not None
