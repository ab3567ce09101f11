"""`trivium presets`: the table at any width, JSON, and the whole description of one preset."""

from __future__ import annotations

import json
import tomllib

import pytest

from trivium import cli
from trivium.cli import presets as verb
from trivium.presets import catalogue, presets
from trivium.spec import spec_from_dict


def lines_of(capsys, *arguments: str) -> list[str]:
    assert cli.main(["presets", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_preset_is_a_line_with_its_facts(capsys):
    heading, *lines = lines_of(capsys)
    assert [line.split()[0] for line in lines] == list(presets)
    llama = next(line for line in lines if line.startswith("llama2-70b "))
    facts = ["llama2-70b", "69.0B", "-", "80", "8192", "64/8", "28672", "4096", "2.0T", "32000"]
    assert llama.split()[: len(facts)] == facts
    assert llama.endswith("Touvron et al. 2023 (Llama 2)")
    t5 = next(line for line in lines if line.startswith("t5-small "))
    assert t5.split()[:5] == ["t5-small", "60.5M", "6", "6", "512"]
    assert heading.split()[:4] == ["preset", "parameters", "encoder", "decoder"]


@pytest.mark.parametrize("columns", [20, 80, 100, 130, 300])
def test_a_narrow_terminal_loses_columns_not_lines(columns, capsys, monkeypatch):
    monkeypatch.setattr(verb, "_in_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    heading, *lines = lines_of(capsys)
    assert [line.split()[0] for line in lines[: len(presets)]] == list(presets)
    if columns >= 80:
        assert max(len(line) for line in [heading, *lines[: len(presets)]]) <= columns
    note = [line for line in lines if "--json" in line]
    assert bool(note) == (columns < 300)
    assert ("paper" in heading) == (columns == 300)
    assert heading.split()[:2] == ["preset", "parameters"]
    if note:
        shown = heading.replace("trained on", "trained-on").split()
        assert len(shown) + note[0].count(",") + 1 == len(verb._COLUMNS)


def test_json_has_every_fact_and_no_table(capsys):
    rows = [json.loads(line) for line in lines_of(capsys, "--json")]
    assert [row["name"] for row in rows] == list(catalogue)
    row = next(row for row in rows if row["name"] == "llama-65b")
    assert row == {
        "name": "llama-65b",
        "family": "decoder-only",
        "parameters": 65_285_660_672,
        "encoder_layers": None,
        "decoder_layers": 80,
        "d_model": 8192,
        "num_heads": 64,
        "num_kv_heads": 64,
        "head_dim": 128,
        "d_ff": 22_016,
        "d_hidden": None,
        "vocab_size": 32_000,
        "context": 2048,
        "training_tokens": 1_400_000_000_000,
        "lr": 1.5e-4,
        "batch_tokens": 4_000_000,
        "paper": "Touvron et al. 2023 (LLaMA)",
    }
    assert len({tuple(row) for row in rows}) == 1


@pytest.mark.parametrize("name", catalogue)
def test_the_whole_description_is_what_a_recipe_takes(name, capsys):
    text = "\n".join(lines_of(capsys, name, "--spec"))
    assert text.startswith(f"# {name}: {presets[name].num_parameters:,} parameters.")
    assert spec_from_dict(tomllib.loads(text)["model"]["spec"]) == presets[name]


def test_the_whole_description_as_json(capsys):
    (line,) = lines_of(capsys, "t5-base", "--spec", "--json")
    assert spec_from_dict(json.loads(line)["spec"]) == presets["t5-base"]


def test_the_description_of_an_unknown_preset_suggests_the_nearest(capsys):
    assert cli.main(["presets", "llama-56b", "--spec"]) == 1
    assert 'Did you mean "llama-65b"' in capsys.readouterr().err
