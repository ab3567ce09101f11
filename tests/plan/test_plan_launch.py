"""Commands and scripts that start a planned run."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from trivium import cli
from trivium.cli import load_command
from trivium.errors import RecipeError
from trivium.train.recipe_loading import load_recipe

DOCS = Path(__file__).parents[2] / "docs"
STUBS = {"scontrol": "echo host1; echo host2", "srun": 'printf "%s\\n" "$@"', "torchrun": ""}


def launched(capsys, *arguments: str) -> str:
    assert cli.main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def run(script: str, folder) -> list[str]:
    """The arguments that a script gives to torchrun, with stand-ins for Slurm's programs."""
    stubs = {**STUBS, "torchrun": STUBS["srun"]}
    for name, body in stubs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    environment |= {"SLURM_NNODES": "8", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "host[1-2]"}
    result = subprocess.run(
        ["bash"], input=script, env=environment, capture_output=True, text=True, check=True
    )
    words = result.stdout.splitlines()
    return words[words[0] == "torchrun" :]


def settings_of(words: list[str]) -> list[str]:
    return [value for key, value in itertools.pairwise(words) if key == "--set"]


def test_a_slurm_script_starts_the_planned_run(capsys, tmp_path):
    arguments = ["llama-7b", "--gpus", "64", "--set", "optimizer.lr=1e-4"]
    script = launched(capsys, *arguments, "--launch", "slurm")
    words = run(script, tmp_path)
    assert words[words.index("--nnodes") + 1] == "8"
    assert words[words.index("--rdzv-endpoint") + 1] == "host1:29400"
    run_words = words[words.index("trivium") + 1 :]
    assert run_words[:2] == ["pretrain", "llama-7b"]
    assert run_words[run_words.index("--out") + 1] == str(tmp_path / "runs" / "llama-7b")
    load_command("pretrain").make_context("pretrain", run_words[1:])
    recipe = load_recipe("llama-7b", settings_of(run_words))
    assert recipe.parallel.data == "fsdp"
    assert recipe.train.tokens == 1e12
    assert recipe.optimizer.lr == 1e-4
    options = dict(
        line.removeprefix("#SBATCH --").split("=")
        for line in script.splitlines()
        if line.startswith("#SBATCH") and "=" in line
    )
    assert (options["nodes"], options["gpus-per-node"]) == ("8", "8")
    days, hours = options["time"].split("-")
    planned = float(launched(capsys, *arguments, "--json").partition('"days": ')[2].split(",")[0])
    assert int(days) + int(hours[:2]) / 24 == pytest.approx(1.2 * planned, abs=0.1)


@pytest.mark.parametrize("page", ["distributed.md", "zh/distributed.md"])
def test_the_page_shows_the_script(page, capsys):
    script = launched(capsys, "llama-7b", "--gpus", "16", "--launch", "slurm")
    assert script in (DOCS / page).read_text(encoding="utf-8")


def test_one_machine_gets_a_command(capsys, tmp_path):
    command = launched(
        capsys, "gpt2", "--gpus", "4", "--set", "train.steps=10", "--launch", "torchrun"
    )
    words = run(command, tmp_path)
    assert words[:3] == ["--standalone", "--nproc-per-node", "4"]
    recipe = load_recipe("gpt2", settings_of(words))
    assert recipe.train.budget == ("steps", 10)
    assert shlex.split(command)[0] == "torchrun"


def test_a_script_for_labelled_examples_has_settings_that_the_run_accepts(capsys, tmp_path):
    recipe = tmp_path / "dpo.toml"
    recipe.write_text(
        '[model]\npreset = "llama-tiny"\n[data]\npaths = ["pairs.jsonl"]\n'
        '[objective]\nkind = "preference"\n[train]\nepochs = 2\n'
    )
    arguments = [str(recipe), "--gpus", "2", "--length", "64", "--batch-tokens", "4e3"]
    words = run(launched(capsys, *arguments, "--launch", "torchrun"), tmp_path)
    assert words[words.index("trivium") + 1] == "finetune"
    loaded = load_recipe(str(recipe), settings_of(words))
    assert loaded.train.budget == ("epochs", 2)
    assert loaded.data.length == 64
    with pytest.raises(RecipeError, match="is for text"):  # which a run would refuse, too
        load_recipe(str(recipe), [*settings_of(words), "train.batch_tokens=4000"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama", "--launch", "slurm"], "give one of llama-7b,"),
        (["llama-7b", "--gpus", "12", "--launch", "slurm"], "--gpus as a multiple of 8"),
        (["llama-7b", "--gpus", "16", "--launch", "torchrun"], "give --launch slurm"),
        (["gpt2", "--gpus", "2", "--launch", "slurm", "--json"], "give one of them"),
        (["gpt2", "--this-machine", "--launch", "slurm"], "--launch is for a plan for GPUs"),
    ],
)
def test_what_cannot_be_launched_is_refused(arguments, message, capsys):
    assert cli.main(["plan", *arguments]) == 1
    assert message in capsys.readouterr().err
