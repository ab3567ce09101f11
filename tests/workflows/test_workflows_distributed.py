"""Runs of several processes have the loss curve of one process; so have runs that change them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from distributed_runs import curve, run_processes, small, train
from run_settings import assert_equal_runs, quiet
from safetensors.torch import load_file

import trivium
from trivium.cli import main
from trivium.errors import RecipeError
from trivium.presets import presets
from trivium.train.distributed import SINGLE_PROCESS
from trivium.train.recipe_loading import load_recipe
from trivium.train.run_folder import RunFolder
from trivium.workflows import training
from trivium.workflows.training import pretrain

DDP, FSDP = {"data": "ddp"}, {"data": "fsdp", "activation_checkpointing": True}
FSDP_ALONE = {"data": "fsdp"}
TENSOR, SEQUENCE = {"tensor": 2}, {"tensor": 2, "sequence": True}
CONTEXT = {"context": 2}
# Processes -> layouts: every one for models of each family and a task, some for others.
FAMILIES = ["bert", "gpt2", "llama", "t5", "reviews", "pairs"]
# Other mixers, positions and objectives, with what their objectives have.
KINDS = {
    "mamba": {},
    "mixtral": {},
    "xlnet": {"kind": "permutation", "carry_state": True},
    "longformer": {},
    "glm": {},
    "deberta-v3": {"kind": "replaced-token", "sharing": "gradient-disentangled"},
    "transformer-xl": {"kind": "causal", "carry_state": True},
}
LAYOUTS = {
    2: [
        (DDP, [*FAMILIES, *KINDS, "reviews-elmo"]),
        (FSDP, [*FAMILIES, "lstm", "reviews-lora", "reviews-elmo"]),
        (FSDP_ALONE, [*KINDS]),
        (TENSOR, FAMILIES),
    ],
    4: [
        (DDP, [*FAMILIES, "bigram", "muon"]),
        (FSDP, [*FAMILIES, "electra", "muon"]),
        (TENSOR, [*FAMILIES, "muon"]),
        (SEQUENCE, ["llama", "t5"]),
        (CONTEXT | DDP, ["gpt2", "llama"]),
        (CONTEXT | FSDP | {"replicas": 2}, ["bert", "llama"]),
        ({"context": 4, "data": "fsdp"}, ["gpt2", "muon"]),
    ],
}


def assert_same_curve(run, single):
    expected = curve(single)
    assert len(expected) > 6
    # Float32 sums in another order.
    assert curve(run) == pytest.approx(expected, rel=1e-4)


def assert_same_losses(run, single):
    """Texts of equal similarity may change their places, which metrics count."""
    ours, theirs = (
        {key: loss for key, loss in curve(folder).items() if key[1].endswith("_loss")}
        for folder in (run, single)
    )
    assert len(theirs) > 4
    assert ours == pytest.approx(theirs, rel=3e-6)


def task_job(name, encoder, file, out, dropout, **parallel):
    """Four steps, each of eleven examples in parts of a few."""
    changes = small(dropout, **parallel)
    del changes["tokenizer"], changes["data"]
    del changes["train"]["batch_tokens"], changes["train"]["eval_tokens"]
    changes["train"] |= {"batch_examples": 11, "steps": 4}
    names = {"command": "finetune", "task": name, "model": encoder.path}
    return names | {"data": file, "out": out, "changes": changes}


def policy_job(file, out, algorithm, **parallel):
    """Four steps, each of eleven prompts with three responses."""
    changes = small(0.0, **parallel)
    del changes["data"], changes["train"]["batch_tokens"], changes["train"]["eval_tokens"]
    changes["train"] |= {"batch_examples": 11, "steps": 4}
    rewards = [{"kind": "length", "target": 3}, {"kind": "exact"}]
    changes["objective"] = {
        "algorithm": algorithm,
        "num_generations": 3,
        "num_iterations": 2,
        "rewards": rewards,
    }
    changes["objective"]["max_new_tokens"] = 6
    names = {"command": "finetune", "task": "policy", "model": "gpt2-tiny"}
    return names | {"data": file, "out": out, "changes": changes}


@pytest.fixture(scope="session")
def pairs(text, tmp_path_factory):
    """Lines of the text and those after them; every third has a hard negative."""
    lines = text.read_text().split()
    rows = []
    for number in range(60):
        one, two, three = (" ".join(lines[7 * n : 7 * n + 4 + number % 5]) for n in range(3))
        del lines[:21]
        rows.append({"query": one, "passage": two} | ({} if number % 3 else {"negative": three}))
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.slow
def test_two_processes_train_as_one_and_one_goes_on(text, encoder, pairs, tmp_path):
    # Of XLNet no step uses what compares token types.
    layouts = {"xlnet-tiny": DDP, "bert-tiny": FSDP, "t5-tiny": TENSOR}
    jobs = []
    for model, layout in layouts.items():
        # Tensor parallelism drops other attention weights than one process.
        dropout = 0.0 if layout is TENSOR else 0.1
        single, changes = tmp_path / model, small(dropout, **layout)
        pretrain(model, data=text, out=single, changes=small(dropout), console=quiet())
        out = tmp_path / f"{model}-2"
        jobs.append({"recipe": model, "data": text, "out": out, "changes": changes})
    # In-batch negatives of both processes.
    searches = [tmp_path / "search", tmp_path / "search-2"]
    for out, layout in zip(searches, ({}, FSDP)):
        jobs.append(task_job("contrastive", encoder, pairs, out, 0.1, **layout))
    train([jobs.pop(-2)])
    # Responses of both processes, several updates from them, and values.
    sums = tmp_path / "sums.jsonl"
    sums.write_text("\n".join(f'{{"prompt": "{n}+{n}=", "answer": {n}}}' for n in range(60)))
    policies = {}
    for algorithm in ("ppo", "grpo"):
        single = tmp_path / algorithm
        train([policy_job(sums, single, algorithm)])
        for layout in (DDP, FSDP_ALONE):
            out = tmp_path / f"{algorithm}-{layout['data']}"
            jobs.append(policy_job(sums, out, algorithm, **layout))
            policies[out] = single
    jobs[-1]["keeps_blocks"] = False
    run_processes(2, jobs)
    assert_same_losses(*searches)
    for out, single in policies.items():
        assert curve(out) == pytest.approx(curve(single), rel=1e-4, abs=1e-4), out.name
    for model in layouts:
        assert_same_curve(tmp_path / f"{model}-2", tmp_path / model)
        assert (
            RunFolder(tmp_path / f"{model}-2").read_metadata()["forecast"]["tokens_per_second"] > 0
        )
    sharded = tmp_path / "bert-tiny-2"
    weights = load_file(sharded / "model.safetensors")
    for name, weight in load_file(tmp_path / "bert-tiny" / "model.safetensors").items():
        if not name.endswith("key.bias"):  # no loss depends on it, its gradient is rounding
            torch.testing.assert_close(weights[name], weight, rtol=0.0, atol=1e-4, msg=name)
    for step in (4, 6):
        shutil.rmtree(sharded / "checkpoints" / f"step-{step:08}")
    pretrain("", out=sharded, resume=True, console=quiet())
    assert_same_curve(sharded, tmp_path / "bert-tiny")


@pytest.mark.slow
def test_two_processes_carry_the_state_of_their_own_lanes(text, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text(text.read_text()[:6000])
    state = {"objective": {"carry_state": True}}
    pretrain(
        "lstm-tiny", data=short, out=tmp_path / "one", changes=small() | state, console=quiet()
    )
    jobs = [
        {"recipe": "lstm-tiny", "data": short, "out": tmp_path / name, "changes": changes | state}
        for name, changes in (("ddp", small(**DDP)), ("fsdp", small(**FSDP)))
    ]
    killed = {**jobs[0], "out": tmp_path / "killed", "kill": ("1", 5)}
    run_processes(2, [*jobs, killed], "--max-restarts", "1")
    ddp, one = RunFolder(tmp_path / "ddp"), tmp_path / "one"
    killed = RunFolder(tmp_path / "killed")
    assert_equal_runs(killed, ddp)
    for step in (4, 6):  # what was restored is saved again
        name = f"step-{step:08}/carried.safetensors"
        assert (killed.checkpoints / name).read_bytes() == (ddp.checkpoints / name).read_bytes()
    for name in ("ddp", "fsdp"):
        assert_same_curve(tmp_path / name, one)
    for step in (4, 6):
        shutil.rmtree(ddp.checkpoints / f"step-{step:08}")
    pretrain("", out=ddp.path, resume=True, console=quiet())
    assert_same_curve(ddp.path, one)


@pytest.mark.slow
def test_two_processes_answer_a_part_of_the_held_out_examples_each(reviews, encoder, tmp_path):
    train = {
        "steps": 2,
        "eval_every": 1,
        "save_every": 1,
        "average": 2,
        "device": "cpu",
        "precision": "fp32",
    }
    changes = {"train": train, "model": {"dropout": 0.0}}
    shared = {"task": "classification", "model": encoder.path, "data": reviews, "validation": 0.3}
    training.finetune(**shared, out=tmp_path / "one", changes=changes, console=quiet())
    results = {}
    for layout in ("one", "ddp", "fsdp"):
        folder, counted = tmp_path / layout, tmp_path / f"{layout}-answers"
        if layout != "one":
            counted.mkdir()
            job = {"command": "finetune", **shared, "out": folder, "note_answers": counted}
            job["changes"] = {**changes, "parallel": {"data": layout}}
            job["keeps_blocks"] = layout == "ddp"
            run_processes(2, [job])
        values = json.loads((folder / "evaluation.json").read_text())["values"]
        rows = [*map(json.loads, (folder / "predictions.jsonl").read_text().splitlines())]
        results[layout] = values, rows
        assert values == pytest.approx(results["one"][0], abs=1e-6)
        for row, expected in zip(rows, results["one"][1], strict=True):
            assert row == {**expected, "score": pytest.approx(expected["score"], abs=1e-4)}
        counts = [[*map(int, file.read_text().split())] for file in sorted(counted.glob("*"))]
        # Two evaluations, and at the end one of each candidate.
        first, all_of_them = len(rows) // 2, len(rows)
        if layout != "one":
            assert counts == [[first] * 4, [all_of_them - first] * 4]


@pytest.mark.slow
def test_two_processes_compute_a_part_of_the_reference_each(tmp_path):
    """More examples than a process takes at once, with metrics that need the reference of all."""
    numbers = range(700)
    answers = {
        "preference": [{"chosen": f"{2 * n}", "rejected": f"{n + 1} or so"} for n in numbers],
        "kto": [{"response": f"{n + n % 3}", "label": n % 3 == 0} for n in numbers],
    }
    jobs, singles = [], {}
    for kind, layout in (("preference", DDP), ("preference", FSDP_ALONE), ("kto", DDP)):
        data = tmp_path / f"{kind}.jsonl"
        lines = ({"prompt": f"{n}+{n}=", **each} for n, each in enumerate(answers[kind]))
        data.write_text("\n".join(map(json.dumps, lines)))
        for parallel in ({}, layout):
            out = tmp_path / f"{kind}-{parallel.get('data', 'one')}"
            if not out.exists():
                changes = small(0.0, **parallel)
                del changes["data"], changes["train"]["batch_tokens"]
                del changes["train"]["eval_tokens"]
                changes["train"] |= {"batch_examples": 11, "steps": 4}
                job = {"command": "finetune", "task": kind, "model": "gpt2-tiny", "data": data}
                job |= {"validation": 0.4, "out": out, "changes": changes}
                if parallel:
                    jobs.append(job)
                else:
                    train([job])
        singles[out] = tmp_path / f"{kind}-one"
    counted = tmp_path / "references"
    counted.mkdir()
    jobs[0]["note_references"] = counted
    run_processes(2, jobs)
    for out, single in singles.items():
        assert len(curve(single)) > 12
        assert curve(out) == pytest.approx(curve(single), rel=1e-4, abs=1e-5), out.name
    shares = [sum(map(int, file.read_text().split())) for file in sorted(counted.iterdir())]
    assert len(shares) == 2
    assert min(shares) > 0.4 * sum(shares)


@pytest.mark.slow
def test_every_layout_has_the_curve_of_one_process(text, reviews, encoder, pairs, tmp_path):
    def job(name, out, dropout, **parallel):
        if name == "pairs":
            return task_job("contrastive", encoder, pairs, out, dropout, **parallel)
        if name.startswith("reviews"):
            job = task_job("classification", encoder, reviews, out, dropout, **parallel)
            if name == "reviews-lora":
                job["changes"]["adapter"] = {"rank": 2, "dropout": dropout}
            if name == "reviews-elmo":
                job |= {"model": "elmo-tiny"}
                job["changes"]["tokenizer"] = {"vocab_size": 300}
            return job
        changes = small(dropout, **parallel)
        job = {"recipe": f"{name}-tiny", "data": text, "out": out, "changes": changes}
        if KINDS.get(name):
            changes["objective"] = KINDS[name]
        if name == "muon":
            job["recipe"], changes["optimizer"] = "llama-tiny", {"kind": "muon"}
        if name == "bigram":
            job["recipe"] = "ngram-tiny"
            changes["model"]["spec"] = {**presets["ngram-tiny"].to_dict(), "order": 2}
        return job

    for processes, layouts in LAYOUTS.items():  # one start of so many processes for all runs
        jobs, folders = [], {}
        for number, (parallel, names) in enumerate(layouts):
            # Tensor and context parallelism drop other units than one process.
            dropout = 0.0 if {"tensor", "context"} & parallel.keys() else 0.1
            for name in names:
                single, out = (
                    tmp_path / f"{name}-{dropout}",
                    tmp_path / f"{processes}-{number}-{name}",
                )
                if not single.exists():
                    train([job(name, single, dropout)])
                folders[out] = single
                jobs.append(job(name, out, dropout, **parallel))
        run_processes(processes, jobs)
        for out, single in folders.items():
            is_search = out.name.endswith("pairs")
            (assert_same_losses if is_search else assert_same_curve)(out, single)


# Models, whether they start from a folder of their own, and the layout of two processes.
STARTS = [
    ("gpt2", False, FSDP_ALONE),
    ("gpt2", True, FSDP_ALONE),
    ("bert", False, TENSOR),
    ("t5", False, FSDP_ALONE),
    ("t5", True, TENSOR),
    ("mixtral", False, FSDP_ALONE),
    ("llama", False, CONTEXT | FSDP_ALONE),
    ("modernbert", False, CONTEXT),
]


@pytest.mark.slow
def test_twenty_steps_have_the_losses_of_one_process(text, tmp_path):
    """Of new weights, and of weights in a folder of `transformers`."""
    jobs, singles = [], {}
    for name, starts_from_folder, parallel in STARTS:
        single, recipe = tmp_path / f"{name}-{starts_from_folder}", f"{name}-tiny"
        if starts_from_folder:
            recipe = str(tmp_path / f"{name}-folder")
            trivium.load(tmp_path / f"{name}-False").save_hf(recipe)
        for out, layout in ((single, {}), (tmp_path / f"{single.name}-2", parallel)):
            changes = small(0.0, **layout)
            changes["train"] |= {"steps": 20, "eval_every": 20, "save_every": 20}
            if starts_from_folder:
                del changes["tokenizer"]
            jobs.append({"recipe": recipe, "data": text, "out": out, "changes": changes})
            singles[out] = single
        train([jobs.pop(-2)])
    run_processes(2, jobs)
    for out, single in singles.items():
        expected = {key: loss for key, loss in curve(single).items() if key[1] == "train_loss"}
        losses = {key: loss for key, loss in curve(out).items() if key[1] == "train_loss"}
        assert len(expected) == 20
        assert losses == pytest.approx(expected, abs=2e-5), out.name  # nats


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_with_another_number_and_layout(text, tmp_path, capsys):
    """From the last good one of its checkpoints, whose shards a model is also read from."""
    single, first = tmp_path / "single", tmp_path / "first"
    pretrain("gpt2-tiny", data=text, out=single, changes=small(0.0), console=quiet())
    changes = small(0.0, **FSDP)
    run_processes(2, [{"recipe": "gpt2-tiny", "data": text, "out": first, "changes": changes}])
    shutil.rmtree(first / "checkpoints" / "step-00000006")
    newest, last_good = (first / "checkpoints" / f"step-{step:08}" for step in (4, 2))
    shards = [last_good / f"model-0000{number}.safetensors" for number in (1, 2)]
    assert sorted(last_good.glob("model*")) == shards
    one, other = (file.stat().st_size for file in shards)
    assert one == pytest.approx(other, rel=0.1)
    os.truncate(newest / "model-00002.safetensors", one // 2)
    with pytest.warns(UserWarning, match=r"step-00000004: model-00002\.safetensors does not match"):
        lm = trivium.load(first / "checkpoints")
    weights = load_file(single / "checkpoints" / last_good.name / "model.safetensors")
    torch.testing.assert_close(lm.module.state_dict(), weights, rtol=0.0, atol=1e-5)
    options = ["the", "--max-new-tokens", "9", "--temperature", "0"]
    assert main(["generate", str(last_good), *options]) == 0
    text_of_model = "the" + lm.generate("the", max_new_tokens=9, temperature=0.0)
    assert capsys.readouterr().out == text_of_model + "\n"
    for number, (processes, parallel) in enumerate([(1, FSDP), (2, DDP), (4, FSDP), (4, TENSOR)]):
        out = tmp_path / str(number)
        shutil.copytree(first, out)
        parallel = {"data": None, **parallel}
        job = {"recipe": "", "out": out, "resume": True, "changes": {"parallel": parallel}}
        train([job]) if processes == 1 else run_processes(processes, [job])
        assert_same_curve(out, single)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [("0", 1), ("1", 3), ("0", 5)])
def test_a_run_whose_worker_is_killed_is_restarted_and_finishes(text, tmp_path, killed):
    """Before the first checkpoint, between two, and in the last step."""
    pretrain("gpt2-tiny", data=text, out=tmp_path / "a", changes=small(), console=quiet())
    job = {"recipe": "gpt2-tiny", "data": text, "out": tmp_path / "b", "changes": small(**FSDP)}
    run_processes(2, [{**job, "kill": killed}], "--max-restarts", "1")
    assert_same_curve(tmp_path / "b", tmp_path / "a")


@pytest.mark.slow
def test_a_run_that_is_killed_while_a_slow_disk_writes_goes_on_from_the_checkpoint_before(
    text, tmp_path
):
    """One process has written half of its part of the checkpoint of step 4."""
    pretrain("gpt2-tiny", data=text, out=tmp_path / "a", changes=small(), console=quiet())
    job = {"recipe": "gpt2-tiny", "data": text, "out": tmp_path / "b", "changes": small(**FSDP)}
    run_processes(2, [{**job, "slow_disk": 4}], "--max-restarts", "1")
    assert_same_curve(tmp_path / "b", tmp_path / "a")
    assert RunFolder(tmp_path / "b").read_metadata()["resumed"] == [2]


def test_processes_that_cannot_be_divided_are_refused(text, tmp_path):
    with pytest.raises(RecipeError, match=r"parallel.tensor = 2 does not divide 1 process"):
        pretrain(
            "gpt2-tiny", data=text, out=tmp_path / "a", changes=small(tensor=2), console=quiet()
        )
    with pytest.raises(RecipeError, match=r"parallel.context = 2 does not divide 1 process:"):
        pretrain(
            "gpt2-tiny", data=text, out=tmp_path / "a", changes=small(**CONTEXT), console=quiet()
        )


def test_rows_that_cannot_be_divided_are_refused_by_name():
    recipe = load_recipe("mamba-tiny", {"parallel": CONTEXT, "objective": {"kind": "causal"}})
    message = r'context = 2 does not support mixers of kind "mamba": leave parallel.context out'
    with pytest.raises(RecipeError, match=message):
        training._check_parallel_layout(recipe, presets["mamba-tiny"], SINGLE_PROCESS)


@pytest.mark.parametrize("option", ["--data", "--dat"])
def test_an_error_of_all_processes_is_printed_once(option, tmp_path, monkeypatch, capsys):
    printed, codes = "", set()
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / rank / "error.json"))
        codes.add(main(["pretrain", "bert-tiny", option, "missing", "--out", str(tmp_path / "a")]))
        printed += capsys.readouterr().err
    assert codes == ({1} if option == "--data" else {2})
    assert printed.lower().count("error: ") == 1


def test_scripts_for_clusters_have_valid_syntax():
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")
    scripts = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert any("#SBATCH" in script for script in scripts)
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    [job] = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == job["spec"]["elasticPolicy"]["minReplicas"]
    [container] = worker["template"]["spec"]["containers"]
    assert container["command"][:3] == ["torchrun", "-m", "trivium"]
