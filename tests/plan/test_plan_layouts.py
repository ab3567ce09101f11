"""Plans for many GPUs against what was published, and memory against what autograd keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from trivium import cli
from trivium.gpus import GPUS
from trivium.models import build
from trivium.objectives.tensor_batch import TensorBatch, token_losses
from trivium.plan.forecast import resolve_model_spec
from trivium.plan.layouts import Step, Workload
from trivium.plan.training_plan import find_fewest_gpus, plan_training
from trivium.presets import catalogue, presets
from trivium.spec import AttentionRNNSpec, LatentAttention, TransformerSpec
from trivium.train.memory import Layout
from trivium.train.recipe_loading import load_recipe

# Model, GPUs, tokens of a step and tokens/s of each GPU. LLaMA: Touvron et al. 2023, section 2.4
# (65B) and table 15; Llama 2: its table 2; both are tokens by GPU-hours. OPT: Zhang et al. 2022,
# section 2.4 (147 TFLOP/s). Llama 3: docs/performance.md of pytorch/torchtitan. GPT-3 and H100: MPT
# models of these sizes, scripts/train/benchmarking/README.md of mosaicml/llm-foundry.
PUBLISHED = [
    ("llama-7b", 1024, "a100-80g", 4e6, 1e12 / 82_432 / 3600),
    ("llama-13b", 1024, "a100-80g", 4e6, 1e12 / 135_168 / 3600),
    ("llama-33b", 2048, "a100-80g", 4e6, 1.4e12 / 530_432 / 3600),
    ("llama-65b", 2048, "a100-80g", 4e6, 380),
    ("llama2-7b", 1024, "a100-80g", 4e6, 2e12 / 184_320 / 3600),
    ("llama2-70b", 2048, "a100-80g", 4e6, 2e12 / 1_720_320 / 3600),
    ("llama3-8b", 64, "a100-80g", 64 * 8192, 2973),
    ("llama3-70b", 64, "a100-80g", 64 * 8192, 331),
    ("opt-175b", 992, "a100-80g", 2e6, 147e12 / 1.06e12),
    ("gpt3-6.7b", 8, "a100-80g", 196_608, 4641),
    ("gpt3-6.7b", 256, "h100", 3_145_728, 10_119),
    ("gpt3-6.7b", 512, "h100", 6_291_456, 9670),
    ("gpt3-13b", 512, "h100", 16_777_216, 4952),
    ("llama-65b", 512, "h100", 8_388_608, 1007),
]


def planned(capsys, *arguments: str) -> dict:
    assert cli.main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_llama_65b_takes_the_published_21_days(capsys):
    arguments = ["llama-65b", "--gpus", "2048", "--gpu", "a100-80g", "--tokens", "1.4e12"]
    for more in ([], ["--tokens-per-second-per-gpu", "380"]):
        plan = planned(capsys, *arguments, *more)
        assert plan["days"] == pytest.approx(21, rel=0.15)
        assert plan["gpu_hours"] == pytest.approx(1_022_362, rel=0.15)
        assert plan["memory_per_gpu_bytes"] < 80e9
        # A layer in float32; the first process also saves the whole model.
        assert plan["host_memory_per_process_bytes"] == pytest.approx(4 * 809e6, rel=0.01)
        assert plan["host_memory_of_first_process_bytes"] == 4 * plan["parameters"]
        assert plan["layout"]["data"] == "fsdp"


def test_gpt3_takes_the_published_flops(capsys):
    plan = planned(capsys, "gpt3-175b", "--gpus", "1024")
    assert plan["flops"] == pytest.approx(3.14e23, rel=0.02)


@pytest.mark.parametrize(("name", "gpus", "gpu", "batch_tokens", "published"), PUBLISHED)
def test_predicted_rates_are_near_the_published_ones(name, gpus, gpu, batch_tokens, published):
    preset = catalogue[name]
    length = min(preset.context or 0, 8192)
    work = Workload(preset.spec, length, batch_tokens, GPUS[gpu], gpus)
    rate = plan_training(name, work, 1e12).tokens_per_second_per_gpu
    assert rate == pytest.approx(published, rel=0.25)


def test_changes_keep_what_is_published_and_follow_the_tokenizer_and_the_adapter(capsys):
    gpus = ["--gpus", "64"]
    whole = planned(capsys, "llama-7b", *gpus)
    clipped = planned(capsys, "llama-7b", *gpus, "--set", "train.clip=2.0")
    assert clipped == whole
    for change, tokens in (
        ("train.tokens=2e9", 2e9),
        ("train.steps=500", 500 * 4e6),
        ("data.length=1024", 1e12),
    ):
        assert planned(capsys, "llama-7b", *gpus, "--set", change)["tokens"] == tokens
    small = planned(capsys, "llama-7b", *gpus, "--set", "tokenizer.vocab_size=8190")
    assert small["parameters"] == whole["parameters"] - 2 * 4096 * (32_000 - 8192)
    memory = planned(capsys, "llama-7b", *gpus, "--set", "adapter.rank=8")["layouts"][0]
    full = whole["layouts"][0]["memory_bytes"]
    muon = planned(capsys, "llama-7b", *gpus, "--set", "optimizer.kind=muon")["layouts"]
    assert muon[0]["memory_bytes"]["optimizer"] < 0.55 * full["optimizer"]  # one moment of most
    seconds = (one[-1]["seconds_per_step"]["memory"] for one in (muon, whole["layouts"]))
    assert next(seconds) < next(seconds)
    assert cli.main(["plan", "llama-7b", *gpus, "--set", "parallel.replicas=8"]) == 1
    assert "leave parallel.replicas out" in capsys.readouterr().err
    assert memory["memory_bytes"]["weights"] == full["weights"]
    for part in ("gradients", "optimizer"):
        assert memory["memory_bytes"][part] < 0.01 * full[part]


def test_a_plan_counts_the_weights_of_the_published_listing(capsys):
    """BERT for masked language modeling has neither a pooler nor a head of sentence pairs."""
    config = BertConfig(vocab_size=30_528, max_position_embeddings=512)  # a multiple of 64
    with torch.device("meta"):
        published = BertForMaskedLM(config)
    plan = planned(capsys, "textbook-bert", "--gpus", "1")
    assert plan["parameters"] == published.num_parameters()


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("bert-tiny", {"mlm"}),
        ("bert-base", {"mlm", "nsp"}),
        ("albert-tiny", {"mlm"}),
        ("electra-tiny", {"replaced-token"}),
        ("gpt2-tiny", {"lm"}),
        ("t5-tiny", {"lm"}),
        ("elmo-tiny", {"lm"}),
    ],
)
def test_a_plan_has_the_heads_of_the_objective(name, heads):
    spec, _ = resolve_model_spec(load_recipe(name))
    assert {head.kind for head in spec.heads} == heads


def test_a_plan_has_the_vocabularies_of_the_run():
    for changes, source in (({}, None), ({"model.separate_vocabularies": True}, 1024)):
        changes |= {"objective.kind": "translation", "tokenizer.vocab_size": 1000}
        for name in ("transformer-tiny", "textbook-transformer-base", "bahdanau-rnnsearch"):
            spec, _ = resolve_model_spec(load_recipe(name, changes))
            assert isinstance(spec, AttentionRNNSpec | TransformerSpec)
            assert (spec.vocab_size, spec.source_vocab_size) == (1024, source)


def test_sizes_of_our_own_are_planned_as_they_train(capsys):
    for changes, steps in (([], 2000), (["--set", "train.steps=1000"], 1000)):
        assert planned(capsys, "llama-mini", "--gpus", "1", *changes)["tokens"] == steps * 2048


def test_a_fine_tuning_recipe_needs_sizes_that_only_data_shows(capsys, tmp_path):
    recipe = tmp_path / "a.toml"
    recipe.write_text(
        '[model]\npreset = "bert-base"\n[data]\npaths = ["a.csv"]\n'
        '[objective]\nkind = "classification"\n[train]\nepochs = 3\n'
    )
    assert cli.main(["plan", str(recipe), "--gpus", "8"]) == 1
    assert "give, for example, --length 512 --batch-tokens 16e3." in capsys.readouterr().err
    sizes = ["--length", "128", "--batch-tokens", "16384"]
    unknown = planned(capsys, str(recipe), "--gpus", "8", *sizes)
    known = planned(capsys, str(recipe), "--gpus", "8", *sizes, "--tokens", "1e9")
    assert known["tokens"] == 1e9
    assert known["flops"] == 1e9 * known["flops_per_token"]
    for key in ("tokens", "flops", "gpu_hours", "days"):
        assert unknown.pop(key) is None
    assert unknown == {key: value for key, value in known.items() if key in unknown}


def test_a_family_is_the_table_of_its_paper(capsys):
    assert cli.main(["plan", "llama"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:5]]
    # Touvron et al. 2023, table 2, with the parameters of all weights.
    assert [row[:10] for row in rows] == [
        ["llama-7b", "6.7B", "4096", "32", "32", "11008", "-", "3.0e-04", "4.0M", "1.0T"],
        ["llama-13b", "13.0B", "5120", "40", "40", "13824", "-", "3.0e-04", "4.0M", "1.0T"],
        ["llama-33b", "32.5B", "6656", "52", "60", "17920", "-", "1.5e-04", "4.0M", "1.4T"],
        ["llama-65b", "65.3B", "8192", "64", "80", "22016", "-", "1.5e-04", "4.0M", "1.4T"],
    ]


def test_a_family_without_published_tokens_is_a_table_of_all_sizes(capsys, tmp_path, monkeypatch):
    assert cli.main(["plan", "bart"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if line]
    assert {"bart-tiny", "bart-base", "bart-large"} <= {*names}
    (tmp_path / "bart").mkdir()  # a model of that name is no family
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", "bart", "--tokens", "20e9"]) == 1


def test_the_table_shows_every_layout_and_marks_the_chosen_one(capsys):
    assert cli.main(["plan", "gpt2-xl", "--gpus", "8", "--tokens", "10e9"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("> ")]
    assert "fsdp x tensor" not in out  # 25 heads
    assert "fsdp, checkpointing" in out


def test_gradients_are_reduced_once_only_where_the_network_is_slow():
    gpu = GPUS["a100-80g"]
    for bandwidth, expected in ((gpu.network_bandwidth, False), (1e9, True)):
        slow = replace(gpu, network_bandwidth=bandwidth)
        steps = Workload(presets["llama-7b"], 2048, 4e6, slow, 16).list_steps()
        best = max((s for s in steps if not s.problem), key=lambda s: s.tokens_per_second_per_gpu)
        assert best.layout.reduce_once == expected
    each = Step(best.work, replace(best.layout, reduce_once=False))
    more = best.memory["gradients"] - each.memory["gradients"]
    assert more == pytest.approx(4 * best.work.sizes.parameters / best.layout.tensor)
    assert best.communication["data"] < each.communication["data"]


def test_what_sharding_tensor_parallelism_and_checkpointing_save():
    work = Workload(presets["llama-7b"], 2048, 4e6, GPUS["a100-80g"], 16)
    whole, sharded = Step(work, Layout("ddp")), Step(work, Layout("fsdp"))
    tensor, again = Step(work, Layout("fsdp", 8)), Step(work, Layout("fsdp", 1, True))
    assert (
        whole.memory["optimizer"] == 8 * work.sizes.parameters == 16 * sharded.memory["optimizer"]
    )
    assert sharded.memory["activations"] * tensor.micro_batch_rows == pytest.approx(
        8 * tensor.memory["activations"] * sharded.micro_batch_rows
    )
    assert again.memory["activations"] / again.micro_batch_rows < 0.15 * (
        sharded.memory["activations"] / sharded.micro_batch_rows
    )
    # Four collectives of the residual stream in both passes of a layer (Korthikanti et al. 2022).
    stream = tensor.rows * 2048 * 4096 * 2
    assert tensor.communication["tensor"] == 2 * 4 * 32 * stream * 7 / 8
    # Weights are gathered for both passes of a micro-batch, its gradients scattered (Rajbhandari
    # et al. 2020, section 7); tensors outside of blocks are gathered once, in float32.
    sizes = work.sizes
    sent = 4 * sizes.outside + 2 * 2 * (sizes.parameters - sizes.outside) + 4 * sizes.parameters
    assert sharded.micro_batches > 1
    assert sharded.communication["data"] == sharded.micro_batches * sent * 15 / 16
    # An all-reduce sends float32 gradients twice.
    assert whole.communication["data"] == 2 * 4 * work.sizes.parameters * 15 / 16


def test_the_fewest_gpus_compute_nothing_twice_unless_only_checkpointing_fits():
    short = Workload(presets["gpt2-xl"], 2**13, 2**22, GPUS["a100-40g"], 1)
    layouts = [step.layout for step in short.list_steps() if step.problem is None]
    assert [layout.activation_checkpointing for layout in layouts] == [True]
    few = find_fewest_gpus(short)
    kept = [step for step in few.list_steps() if not step.layout.activation_checkpointing]
    assert few.gpus == 2
    assert [str(step.layout) for step in kept if step.problem is None] == ["fsdp x context 2"]
    undivided = find_fewest_gpus(replace(short, divides_rows=False))
    layouts = [step.layout for step in undivided.list_steps() if step.problem is None]
    assert (undivided.gpus, layouts[0].activation_checkpointing) == (4, False)
    work = Workload(presets["gpt2-xl"], 2**17, 2**22, GPUS["a100-80g"], 1)
    few = find_fewest_gpus(work)
    steps = [step for step in few.list_steps() if step.problem is None]
    assert all(step.layout.activation_checkpointing for step in steps)
    assert few.gpus == 2
    assert all(step.problem for step in work.list_steps())


def test_rows_are_divided_only_if_their_activations_fit_in_no_other_layout(capsys):
    short = Workload(presets["qwen3-8b"], 2**12, 2**22, GPUS["h100"], 16)
    long = replace(short, length=2**15)
    assert all(step.layout.context == 1 for step in short.list_steps())
    divided = [step for step in long.list_steps() if step.layout.context > 1]
    assert {step.layout.context for step in divided} == {2, 4, 8}
    for other in (replace(long, divides_rows=False), replace(long, spec=presets["bloom-7.1b"])):
        assert all(step.layout.context == 1 for step in other.list_steps())
    # A row of 4,096 positions on each GPU, with the keys and values of 32,768 (8 heads of 128).
    step = Step(long, Layout("fsdp", context=8))
    kept = long.spec.activation_bytes(2**15, 2, on_cpu=False) * 2**12
    gathered = 36 * 2 * 8 * 128 * 2 * (2**15 - 2**12)
    assert step.micro_batch_rows == 1
    assert step.memory["activations"] == kept + gathered
    assert step.communication["tensor"] == 2 * 36 * 2 * 8 * 128 * 2 * step.rows * 2**15 * 7 / 8
    arguments = "--gpus 2 --gpu a100-40g --length 8192 --batch-tokens 4194304 --launch torchrun"
    assert cli.main(["plan", "gpt2-xl", *arguments.split()]) == 0
    assert "--set parallel.context=2" in capsys.readouterr().out


def test_what_cannot_be_planned_is_refused(capsys, tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("review,stars\ngood,5\n")
    for arguments, message in (
        (["llama-7b", "--gpu", "a100"], "a100-40g"),
        (["llama-65b", "--gpus", "8"], "cannot be trained on 8"),
        (["llama-7b", "--gpus", "4096", "--batch-tokens", "5e5"], "more groups of GPUs"),
        (["lama-7b"], "llama-7b"),
        (["llama-7b", "--tokens-per-second-per-gpu", "9000"], "at most 7,5"),
        (["llama-7b", "--data", "text/"], "--data is for a plan with --this-machine"),
        (["bert-tiny", "--this-machine", "--gpus", "2"], "--gpus is for a plan for GPUs"),
        (["bert-tiny", "--this-machine", "--set", "train.epochs=1"], "has train.epochs"),
        (["bert-tiny", "--this-machine", "--data", str(table)], 'has no column "text"'),
    ):
        assert cli.main(["plan", *arguments]) == 1
        assert message in capsys.readouterr().err


def test_a_run_without_end_is_refused(capsys):
    for option in ("--tokens", "--batch-tokens"):
        assert cli.main(["plan", "llama-7b", option, "inf"]) == 2
        assert "less than or equal to 1" in capsys.readouterr().err


def saved_bytes(spec, rows, length, precision) -> int:
    """What autograd keeps of a forward pass, besides weights and their copies."""
    model = build(spec, seed=0)
    weights = {weight.shape for weight in model.parameters()}
    weights |= {shape[::-1] for shape in weights}
    own = {weight.data_ptr() for weight in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.shape not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, spec.vocab_size, (rows, length))
    inputs = {"input_ids": ids}
    if spec.family == "encoder-decoder":
        inputs["decoder_input_ids"] = ids
    everywhere = torch.arange(rows * length)
    batch = TensorBatch(
        label_positions=everywhere, targets=ids.flatten(), sequence_labels=None, inputs=inputs
    )
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", precision, enabled=precision is not torch.float32),
    ):
        token_losses(model, batch)["loss"]
    return sum(storage.nbytes() for storage in kept.values())


def spec_that_keeps_activations(name):
    if name == "bigbird":
        encoder = presets["bigbird-tiny"].encoder
        blocks = encoder.with_layers(mixer=encoder.mixers[0].replace(block_size=4, num_random=2))
        return presets["bigbird-tiny"].replace(vocab_size=211, encoder=blocks)
    if name == "sandwich":
        llama = presets["llama-mini"].replace(vocab_size=211)
        return llama.replace(decoder=llama.decoder.with_layers(norm_placement="sandwich"))
    if name == "latent-attention":
        llama = presets["llama-mini"].replace(vocab_size=211)
        mixer = LatentAttention(
            num_heads=4, head_dim=48, rotary_dim=16, value_dim=64, kv_rank=128, query_rank=96
        )
        return llama.replace(decoder=llama.decoder.with_layers(mixer=mixer))
    if name == "gpt-oss":
        decoder = presets["mixtral-mini"].decoder
        [layer], oss = decoder.layers, presets["gpt-oss-20b"].decoder.layers[1]
        expert = oss.feed_forward.expert.replace(d_ff=448)
        layer = layer.replace(
            mixer=layer.mixer.replace(sinks=True, bias=True),
            feed_forward=layer.feed_forward.replace(expert=expert, router_bias=True),
        )
        stack = decoder.replace(layers=(layer,))
        return presets["mixtral-mini"].replace(vocab_size=211, decoder=stack)
    return presets[name].replace(vocab_size=211)


_BOTH_PRECISIONS = (
    *("bert-mini", "palm-mini", "mixtral-mini", "mamba-mini", "t5-mini", "bart-mini"),
    *("rwkv-mini", "performer-tiny", "linformer-mini", "sparse-transformer-tiny", "bigbird"),
    *("latent-attention", "gpt-oss"),
)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, torch.bfloat16) for name in _BOTH_PRECISIONS),
        *((name, torch.float32) for name in (*_BOTH_PRECISIONS, "sandwich", "pythia-mini")),
    ],
)
def test_activations_are_those_that_autograd_keeps(name, precision):
    for dropout, length in ((0.0, 64), (0.1, 128)):
        spec = spec_that_keeps_activations(name).with_dropout(dropout)
        kept = saved_bytes(spec, 3, length, precision) / (3 * length)
        expected = spec.activation_bytes(length, precision.itemsize, on_cpu=True)
        assert expected == pytest.approx(kept, rel=0.04), dropout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base", "gpt2"])
def test_memory_of_training_is_what_is_measured(name):
    """The peak of all tensors of the program, which also has PyTorch's own memory beside them."""
    program = Path(__file__).parents[1] / "support" / "training_memory.py"
    done = subprocess.run(
        [sys.executable, program, name], capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["planned"] == pytest.approx(figures["measured"], rel=0.1)


def test_a_policy_has_a_reference_and_draws_samples(capsys, tmp_path):
    recipe = tmp_path / "policy.toml"
    recipe.write_text(
        '[model]\npreset = "llama3.2-1b"\n[data]\npaths = ["p.jsonl"]\n[objective]\n'
        'kind = "policy"\n[[objective.rewards]]\nkind = "length"\ntarget = 30\n'
    )
    batch = ["--gpus", "8", "--length", "1024", "--batch-tokens", "65536"]
    policy = planned(capsys, str(recipe), *batch)
    alone = planned(capsys, str(recipe), *batch, "--set", "objective.beta=0")
    assert [layout["data"] for layout in policy["layouts"]] == ["ddp"]
    reference = policy["memory_per_gpu_bytes"] - alone["memory_per_gpu_bytes"]
    assert reference == 4 * policy["parameters"]
    step = Step(Workload(presets["gpt2"], 1024, 2**30, GPUS["t4"], 1, samples=128), Layout())
    caches = 2 * 12 * 768 * 1024 * 128 * 4
    assert step.memory_bytes > caches
