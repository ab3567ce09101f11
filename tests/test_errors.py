"""Errors: one family, and a suggestion where something near exists."""

from __future__ import annotations

import inspect

import pytest

from trivium import errors
from trivium.errors import MissingExtraError, TriviumError, did_you_mean


def test_every_kind_is_a_trivium_error_and_a_value_error():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    kinds = [kind for kind in kinds if kind.__module__ == "trivium.errors"]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, TriviumError)
        assert issubclass(kind, ValueError)
        assert kind.__doc__


def test_a_missing_extra_names_the_install_command():
    with pytest.raises(
        TriviumError, match=r"parquet files.*EXTRAS=parquet.*pip install '.\[parquet\]'"
    ):
        raise MissingExtraError("reading parquet files", "parquet")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("bert-smal", ' Did you mean "bert-small"?'),
        ("gtp2", ' Did you mean "gpt2"?'),
        ("qqqq", ""),
        ("", ""),
    ],
)
def test_did_you_mean(given, expected):
    assert did_you_mean(given, iter(["bert-small", "gpt2"])) == expected
