"""Every benchmark runs: one step of each side, and the table of their figures."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import re
import sys
import time
import types
from pathlib import Path

import httpx
import numpy as np
import pytest

from trivium.data.samples import sample_path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.filterwarnings("ignore")  # the peer's


@pytest.fixture(autouse=True)
def _programs_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def program(name):
    return importlib.import_module(name)


def texts(folder):
    """Two small files of English text."""
    from trivium.data import read_documents

    documents = [document.text for _, document in zip(range(60), read_documents(sample_path("en")))]
    paths = folder / "train.txt", folder / "valid.txt"
    for path, part in zip(paths, (documents[:50], documents[50:]), strict=True):
        path.write_text("\n\n".join(part), encoding="utf-8")
    return [str(path) for path in paths]


def test_tables_show_medians_and_ratios_to_the_best_peer():
    side_by_side = program("side_by_side")
    results = {
        "trivium": [{"tokens/s": 20.0, "loss": 3.0}, {"tokens/s": 40.0, "loss": 5.0}],
        "transformers": [{"tokens/s": 10.0}, {"tokens/s": 10.0}],
        "transformers compiled": [{"tokens/s": 20.0}, {"tokens/s": 10.0}],
        "broken": [{}, {}],
    }
    lines = side_by_side.table("work", results)
    assert lines[1] == "| work | tokens/s | loss | ratio |"
    assert lines[3] == "| trivium | 30 | 4 | 2.50 (1.00 to 4.00) |"
    assert lines[5] == "| transformers compiled | 15 |  |  |"
    assert lines[6] == "| broken | failed | failed |  |"
    seconds = {"trivium": [{"seconds": 1.0}], "transformers": [{"seconds": 4.0}]}
    assert side_by_side.table("work", seconds)[3] == "| trivium | 1 | 0.25 (0.25 to 0.25) |"
    assert "PyTorch" in side_by_side.machine()


def test_sides_run_in_processes_of_their_own(tmp_path, monkeypatch, capsys):
    side_by_side = program("side_by_side")
    script = tmp_path / "work.py"
    script.write_text(
        "from side_by_side import is_child, parser\n"
        "def run(job): print('noise'); return {'tokens/s': job.speed}\n"
        "def fail(job): raise ValueError('no compiler')\n"
        "is_child(parser('Work.', rounds=1).parse_args(), {'trivium': run, 'transformers': fail})\n"
    )
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS), prepend=":")
    options = side_by_side.parser("Work.", rounds=1).parse_args([])
    results = side_by_side.compare(options, ["trivium", "transformers"], {"a": {"speed": 7.0}})
    assert results == {"a": {"trivium": [{"tokens/s": 7.0}], "transformers": [{}]}}
    output = capsys.readouterr()
    assert "| trivium | 7 |" in output.out
    assert "no compiler" in output.err


def test_results_keep_their_place():
    run_all = program("run_all")
    names = {path.stem for path in BENCHMARKS.glob("*.py")} - {"run_all", "side_by_side", "gpu"}
    assert {*run_all.PROGRAMS} == names
    text = "# Results\n\nBefore.\n"
    for output in ("one", "two"):
        for name in ("a.py", "b.py"):
            text = run_all.with_output(text, Path(name), ["--x", "1"], f"{name} {output}")
    assert text.startswith(
        "# Results\n\nBefore.\n\n<!-- a.py -->\n`python benchmarks/a.py --x 1`, 2"
    )
    assert text.index("a.py two\n<!-- end of a.py -->") < text.index("b.py two")
    assert "one" not in text


@pytest.mark.slow
def test_host_memory(tmp_path):
    host_memory = program("host_memory")
    host_memory.write_inputs(tmp_path, 500)
    [alone] = host_memory.measure("gpt2-tiny", tmp_path, 1, "ddp")
    assert 0 < alone < 2


@pytest.mark.slow
def test_checkpoint_time(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["checkpoint_time", "--preset", "gpt2-tiny", "--saves", "1"])
    program("checkpoint_time").main()
    line = r"2 processes, fsdp, \d.* GB: save \d.* s \(.*\), stall \d"
    assert re.search(line, capsys.readouterr().out)


@pytest.mark.slow
def test_train_throughput(tmp_path):
    train_throughput, text = program("train_throughput"), Path(texts(tmp_path)[0])
    sizes = {
        "length": 64,
        "batch_tokens": 128,
        "vocab_size": 500,
        "steps": 1,
        "warmup": 1,
        "precision": "fp32",
    }
    for model in (*train_throughput.SMALL, "t5-tiny"):
        job = train_throughput.make_job(model, text, tmp_path, **sizes)
        for side in ("trivium", "transformers"):
            assert train_throughput.SIDES[side](argparse.Namespace(**job))["tokens/s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["decoder", "bart"])
def test_time_to_loss(family, tmp_path):
    time_to_loss = program("time_to_loss")
    train, valid = texts(tmp_path)
    job = {"family": family, "data": train, "validation": valid, "minutes": 0.1, "settings": []}
    job |= {"vocab_size": 500, "sample_bytes": 50_000}
    job |= {"rate": None, "rows": None, "compile": False}
    found = {}
    for side, run in time_to_loss.SIDES.items():
        found[side] = run(argparse.Namespace(**job, started=time.monotonic()))
        assert found[side]["steps"] >= 1
        assert 3 < found[side]["loss"] < 9
    assert "as good" in time_to_loss.row(
        family, "trivium", {**found["trivium"], "loss": 0}, found["transformers"]
    )


@pytest.mark.slow
def test_passes(tmp_path, monkeypatch, capsys):
    train, valid = texts(tmp_path)
    options = ["--data", train, "--validation", valid, "--passes", "2", "--vocab-size", "500"]
    monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / "passes.py"), *options])
    program("passes").main()
    for side, row in zip(("trivium", "transformers"), capsys.readouterr().out.splitlines()[-2:]):
        name, lowest, *passes = row.strip("| ").split(" | ")[:4]
        assert name == side
        assert 3 < float(lowest) == min(map(float, passes)) < 9


@pytest.mark.slow
def test_time_to_bleu(tmp_path):
    time_to_bleu, finetune = program("time_to_bleu"), program("finetune")
    train, valid = finetune.split_sample("english-french.tsv", tmp_path)
    valid = time_to_bleu.part_of(valid, 5, tmp_path / "held-out.jsonl")
    sources, references = time_to_bleu.read_pairs(valid)
    assert len(sources) == 5
    assert time_to_bleu.scores(references, references)["BLEU"] == pytest.approx(100)
    job = {"data": train, "validation": valid, "minutes": 0.2, "settings": [], "vocab_size": 500}
    job |= {"rate": None, "rows": 16, "beams": 2, "dropout": 0.0, "smoothing": 0.1}
    found = {}
    for side, run in time_to_bleu.SIDES.items():
        options = argparse.Namespace(**job, sample_bytes=50_000, started=time.monotonic())
        found[side] = run(options)
        assert found[side]["steps"] >= 1
        assert 0 <= found[side]["BLEU"] < 100
    best = {**found["trivium"], "BLEU": 100}
    assert "as good" in time_to_bleu.row("trivium", best, found["transformers"])


def test_both_sides_of_a_translation_are_compared_by_the_same_texts(tmp_path):
    import transformers

    from trivium import presets
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.text import Tokenizer

    finetune = program("finetune")
    sources, _ = program("time_to_bleu").read_pairs(
        finetune.split_sample("english-french.tsv", tmp_path)[1]
    )
    tokenizer = Tokenizer.train(
        "unigram",
        texts=sources,
        vocab_size=300,
        special_tokens=("<pad>", "</s>", "<unk>", "<s>"),
        progress=False,
    )
    spec = presets["marian-tiny"].replace(vocab_size=tokenizer.vocab_size)
    ours = LanguageModel(spec, build(spec, seed=0), tokenizer)
    ours.save_hf(tmp_path / "marian")
    peer = transformers.MarianMTModel.from_pretrained(tmp_path / "marian")
    expected = ours.translate(sources[:9], num_beams=1)
    assert finetune.translations(peer, tokenizer, sources[:9], beams=1) == expected
    assert any(expected)


@pytest.mark.slow
def test_forecast(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["forecast.py", "--presets", "llama-tiny", "--steps", "5"])
    program("forecast").main()
    assert "| llama-tiny |" in capsys.readouterr().out


@pytest.mark.slow
def test_scaling(tmp_path, capsys):
    train, _ = texts(tmp_path)
    sizes = ["--rows", "4", "--steps", "3", "--warmup", "1", "--rounds", "1"]
    assert program("scaling").main(["--model", "gpt2-tiny", "--data", train, *sizes]) > 0
    assert "of the time of gradient all-reduces" in capsys.readouterr().out


@pytest.mark.slow
def test_attention(monkeypatch):
    attention = program("attention")
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    job = {"what": "speed", "length": 64, "device": "cpu", "rows": 1}
    for kind in attention.kinds():
        figures = attention.run(kind, argparse.Namespace(**job))
        assert figures["trained tokens/s"] > 0, kind


@pytest.mark.parametrize(
    ("task", "name", "lines"),
    [("classification", "movies.jsonl", 23), ("translation", "english-french.tsv", 200)],
)
@pytest.mark.slow
def test_finetune(task, name, lines, tmp_path):
    finetune = program("finetune")
    folder = tmp_path / task
    files = finetune.split_sample(name, folder)
    for path, count in zip(map(Path, files), (lines, 3), strict=True):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    train, valid = files
    job = {"task": task, "train": train, "valid": valid, "epochs": 0.1, "vocab_size": 300}
    if task == "classification":
        job["model"] = finetune.random_bert(train, folder / "bert")
    else:
        job["model"] = None
    for run in finetune.SIDES.values():
        figures = run(argparse.Namespace(**job))
        assert figures["seconds"] > 0
        assert finetune.METRICS[task] in figures


@pytest.mark.slow
def test_sentiment(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    sentiment = program("sentiment")
    path = tmp_path / "sentences.jsonl"
    sides = enumerate(("bad", "good"))
    lines = [
        {"text": f"a {word} film number {n} .", "label": label}
        for label, word in sides
        for n in range(200)
    ]
    sentiment.write(path, lines[::2] + lines[1::2])
    arguments = ["", str(path), "--out", str(tmp_path / "runs"), "--pretrain=train.steps=1"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--steps=1"])
    sentiment.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(sentiment.POLICIES)


@pytest.mark.parametrize(("model", "beams"), [("gpt2", 1), ("marian", 2)])
def test_generate(model, beams, tmp_path, capsys):
    generate = program("generate")
    folder = tmp_path / model
    generate.make_folder(model, folder, tiny=True)
    job = {"model": model, "folder": str(folder), "dtype": "float32", "device": "cpu"}
    job |= {"batch": 2, "new_tokens": 5, "repeats": 1, "beams": beams}
    results = {}
    for side, run in generate.SIDES.items():
        if "compiled" not in side:
            results[side] = [run(argparse.Namespace(**job))]
            assert results[side][0]["tokens/s"] > 0
    generate.check_same_tokens(results)
    assert capsys.readouterr().out == ""


def test_sizes_and_partial_figures_of_generation(capsys):
    generate = program("generate")
    spec = generate.smollm(importlib.import_module("trivium.presets").presets["llama-tiny"])
    assert spec.d_model == 576
    generate.check_same_tokens({"a": [{"checksum": 1}], "b": [{"checksum": 2}]})
    generate.measure_partial(argparse.Namespace(tiny=True, repeats=1))
    printed = capsys.readouterr().out
    assert "different tokens" in printed
    assert printed.count(" ms\n") == 6


def test_load_counts_tokens_and_requests_by_their_end(monkeypatch):
    serve_load = program("serve_load")
    calls = []
    # Every request takes 10 ms of this clock, whatever the machine does.
    clock = types.SimpleNamespace(perf_counter=lambda: 0.01 * len(calls))
    monkeypatch.setattr(serve_load, "time", clock)
    piece = json.dumps({"choices": [{"text": "a"}]})
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": 3}})
    late, broken = (
        json.dumps({"error": {"code": code, "message": "m"}})
        for code in ("timeout", "internal_error")
    )
    bodies = {2: [piece, late], 3: [piece, broken], 4: [piece, piece]}  # 4: cut off

    def answer(request):
        calls.append(json.loads(request.content))
        kind = len(calls) % 10
        if kind in (5, 6, 7):
            status = {5: 500, 6: 429, 7: 504}[kind]
            return httpx.Response(status, headers={"Retry-After": "0"})
        if kind == 8:
            raise httpx.ReadTimeout("no byte", request=request)
        lines = bodies.get(kind, [piece, piece, piece, usage, "[DONE]"])
        return httpx.Response(200, text="".join(f"data: {line}\n\n" for line in lines))

    async def run():
        load = serve_load.Load("http://test", "m", ["a b c d"] * 30)
        load.transport = httpx.MockTransport(answer)
        return await load.run(2, 1.0, iter((11.0, 12.0, 13.0)).__next__)

    figures = asyncio.run(run())
    assert calls[0]["stream_options"] == {"include_usage": True}
    ends = [number % 10 for number in range(2, len(calls) + 1)]  # call 1 only loads the model
    assert figures["requests"] == sum(end in (0, 1, 9) for end in ends)
    assert figures["refused"] == ends.count(6)
    assert figures["timed out"] == ends.count(2) + ends.count(7)
    assert figures["lost"] == sum(end in (3, 4, 5, 8) for end in ends)
    assert figures["tokens/s"] == pytest.approx(3 * figures["requests"] / (0.01 * len(ends)))
    assert len(ends) >= 100
    assert figures["first token, median s"] <= figures["request, median s"]
    assert figures["request, median s"] <= figures["request, 95 % s"] <= figures["request, 99 % s"]
    memory = [figures[f"MB at {when}"] for when in ("start", "half time", "end")]
    assert memory == [11.0, 12.0, 13.0]
    for count in (1, 2, 20, 99):
        values = random.sample(range(1, 1 + count), count)
        for fraction in (0.5, 0.95, 0.99):
            expected = np.quantile(values, fraction, method="inverted_cdf")
            assert serve_load.quantile(values, fraction) == expected


@pytest.mark.slow
def test_serve_load(tmp_path):
    serve_load = program("serve_load")
    serve_load.make_folder(tmp_path / "model", "gpt2-tiny")
    job = {"folder": str(tmp_path / "model"), "clients": 2, "seconds": 0.5, "slots": 2}
    for side, new_tokens in (("trivium", (8, 16)), ("trivium", (1,)), ("transformers", (8, 16))):
        figures = serve_load.SIDES[side](argparse.Namespace(**job, new_tokens=new_tokens))
        assert figures["tokens/s"] > 0
        assert figures["lost"] == 0
        if sys.platform == "linux":
            assert 10 < figures["MB at start"] < 10_000
            assert figures["MB at end"] > 10


@pytest.mark.slow
def test_large_corpus(tmp_path, monkeypatch, capsys):
    large_corpus = program("large_corpus")
    monkeypatch.setattr(large_corpus, "FILE_BYTES", 2_000_000)
    monkeypatch.setattr(large_corpus, "KILLS", (0.0, 0.0))
    # Linux counts the peak of the process that starts another for that one, too.
    monkeypatch.setattr(large_corpus, "LIMIT", 1e12)
    monkeypatch.setattr(
        sys, "argv", ["large_corpus.py", "--gigabytes", "0.01", "--folder", str(tmp_path / "work")]
    )
    with pytest.raises(SystemExit) as end:
        large_corpus.main()
    assert end.value.code == 0, capsys.readouterr()
    assert "Equal: True. Below 1000 GB: True." in capsys.readouterr().out
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_widths(tmp_path, monkeypatch, capsys):
    """What is measured takes the place of what the file has of it, and all of it is drawn."""
    widths = program("widths")
    data, validation = texts(tmp_path)
    figures, picture = tmp_path / "widths.json", tmp_path / "widths.svg"
    monkeypatch.setattr(widths, "PICTURE", picture)
    title, (_, default, _) = widths.RATES["optimizer.matrix_lr"]
    figures.write_text(json.dumps({"optimizer.matrix_lr": {"64": {"0.5": 0, "0.02": 6.5}}}))
    files = ["--data", data, "--validation", validation, "--figures", str(figures)]
    sizes = ["--widths", "64", "--steps", "8", "--vocab-size", "500"]
    with monkeypatch.context() as patch:
        patch.setattr(widths, "sizes", lambda width: {"d_model": width})
        patch.setattr(widths, "RATES", {"optimizer.matrix_lr": (title, (default, 0.5, default))})
        patch.setattr(sys, "argv", ["widths.py", *files, *sizes])
        widths.main()
    by_rate = json.loads(figures.read_text())["optimizer.matrix_lr"]["64"]
    assert by_rate.keys() == {"0.5", "0.02", "0.01"}
    assert 3 < by_rate["0.01"] < by_rate["0.5"] < 6.2  # which is far too large a rate
    assert by_rate["0.02"] == 6.5
    monkeypatch.setattr(sys, "argv", ["widths.py", "plot"])
    widths.main()
    assert "width 512" in picture.read_text()


def test_windows():
    windows = program("windows")
    for side in windows.SIDES.values():
        assert all(figure > 0 for figure in side(argparse.Namespace(length=17, window=5)).values())


@pytest.mark.slow
def test_sums(tmp_path, monkeypatch, capsys):
    sums = program("sums")
    pairs = [{"prompt": f"{n}+1= ", "chosen": str(n + 1), "rejected": "0"} for n in range(120)]
    monkeypatch.setattr(sums, "preferences", lambda *_: pairs)
    sizes = ["--start-steps", "2", "--policy-steps", "1", "--prompts", "64", "--held-out", "8"]
    arguments = ["sums.py", "--seeds", "0", *sizes, "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    sums.main()
    assert capsys.readouterr().out.count("\n| p") == 3


@pytest.mark.parametrize("mixer", ["mamba", "time-mixing"])
def test_scan(mixer, monkeypatch, capsys):
    sizes = ["--rounds", "1", "--rows", "1", "--width", "16", "--lengths", "20"]
    monkeypatch.setattr(sys, "argv", ["scan.py", "--mixer", mixer, *sizes])
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    program("scan").main()
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[0] == "20"
    assert len(last) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "only"), [("loss_bands", ["denoising"]), ("loss_curves", ["permutation", "tsdae"])]
)
def test_losses(name, only, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--steps", "2", "--only", *only])
    program(name).main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {one}" for one in only]


def test_a_part_of_the_gpu_benchmark_writes_its_results(tmp_path, monkeypatch):
    gpu = program("gpu")
    for name, count in (("ceilings", 4), ("loss", 4)):
        gpu.run_child(name, tmp_path, "cpu")
        result = json.loads((tmp_path / f"{name}.json").read_text())
        assert result["status"] == "complete"
        assert len(result["results"]) == count

    def lack_package(report):
        report.add("first", ms=1.0)
        import_module("no_such_package")

    import_module = importlib.import_module
    monkeypatch.setitem(gpu.PARTS, "loss", gpu.Part(lack_package, 1.0))
    gpu.run_child("loss", tmp_path, "cpu")
    result = json.loads((tmp_path / "loss.json").read_text())
    assert result["status"] == "skipped: the package no_such_package is not installed"
    assert result["results"] == [{"what": "first", "ms": 1.0}]


def test_parts_of_the_gpu_benchmark_that_time_does_not_reach(tmp_path, capsys):
    gpu = program("gpu")
    names = gpu.select_parts("loss, ceilings")
    assert names == ["ceilings", "loss"]  # the most important first
    with pytest.raises(SystemExit, match="no part speed; there are: ceilings, train-gpt2"):
        gpu.select_parts("speed")
    assert gpu.run_parts(names, tmp_path, minutes=0.0, tiny=True) == 0
    assert "not reached: ceilings, loss" in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["not reached"] == names
    assert gpu.run_part("loss", tmp_path, tiny=True, seconds=0.01)["status"].startswith("stopped")


@pytest.mark.slow
def test_every_part_of_the_gpu_benchmark(tmp_path, capsys):
    gpu = program("gpu")
    assert gpu.run_parts(gpu.PARTS, tmp_path, minutes=30.0, tiny=True) == 0
    output = capsys.readouterr().out
    for name in gpu.PARTS:
        assert f"| {name} | complete |" in output, output
