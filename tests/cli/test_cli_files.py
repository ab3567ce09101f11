"""Commands around models: presets, import, export, tokenizer, prepare, eval, prompt, report."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib

import pytest
from overfit_tasks import untrained
from small_models import small_spec
from task_models import VOCABULARY, as_ours, theirs
from their_tokenizers import TEXT, ours
from transformers import BertTokenizerFast

from trivium.cli import main
from trivium.cli import prepare as prepare_command
from trivium.cli.eval_ import _format_result
from trivium.data.records import RecordOptions
from trivium.data.shards import Shards
from trivium.errors import DataError
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.objectives import Objective
from trivium.objectives.calibration import Calibration, compute_calibration
from trivium.objectives.classification import LabelledText, TextClassification
from trivium.presets import auto_presets, presets
from trivium.spec import Spec
from trivium.text import Tokenizer
from trivium.workflows.evaluate import evaluate

EXAMPLES = [LabelledText(text, None, text[-1], "a.csv") for text in ("tea x", "tea y")]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(f"{text} {n}" for n in range(40) for text in TEXT), "utf-8")
    return str(path)


def output(capsys, *arguments: str, code: int = 0) -> list[str]:
    assert main(list(arguments)) == code, capsys.readouterr().err
    streams = capsys.readouterr()
    return (streams.err if code else streams.out).splitlines()


def test_presets(capsys):
    heading, *lines = output(capsys, "presets")
    names = [line.split()[0] for line in lines]
    assert sorted(names) == sorted([*presets, *auto_presets])
    small = [name.endswith(("-auto", "-tiny", "-mini")) for name in names]
    assert small == sorted(small, reverse=True)  # those for a small machine come first
    assert heading.split()[:3] == ["preset", "parameters", "vocabulary"]
    assert output(capsys, "presets", "bert-mini")[1].split()[:3] == ["bert-mini", "11.3M", "30,522"]
    (row,) = [json.loads(line) for line in output(capsys, "presets", "llama-65b", "--json")]
    assert row["parameters"] == 65_285_660_672
    assert (row["decoder_layers"], row["num_heads"], row["d_ff"]) == (80, 64, 22_016)
    toml = "\n".join(output(capsys, "presets", "t5-base", "--spec"))
    assert Spec.from_dict(tomllib.loads(toml)["model"]["spec"]) == presets["t5-base"]
    (error,) = output(capsys, "presets", "llama-56b", "--spec", code=1)
    assert 'Did you mean "llama-65b"' in error


def test_export_and_import(capsys, tmp_path):
    lm = as_ours(theirs("BertForMaskedLM"), "bert")
    local, hf, again = (str(tmp_path / name) for name in ("local", "hf", "again"))
    lm.save(local)
    assert "BertForMaskedLM" in output(capsys, "export", local, hf)[0]
    assert output(capsys, "export", local, hf, code=1)[0].startswith("error: ")
    output(capsys, "export", local, hf, "--overwrite")
    lines = output(capsys, "import", hf, again)
    assert "encoder-only" in lines[0]
    assert "fill-mask" in lines[-1]
    ids = [[5, 7, 11]]
    assert load(again).logits(ids).allclose(lm.logits(ids))


def test_export_and_import_replace_no_run_and_no_other_files(capsys, tmp_path):
    model = str(as_ours(theirs("BertForMaskedLM"), "bert").save(tmp_path / "model"))
    run, notes = tmp_path / "run", tmp_path / "notes"
    for folder, name in ((run, "recipe.toml"), (notes, "config.json"), (notes, "notes.md")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    for command in ("export", "import"):
        for options in ([], ["--overwrite"]):
            (error,) = output(capsys, command, model, str(run), *options, code=1)
            assert "is a training run, which is never replaced" in error
            (error,) = output(capsys, command, model, str(notes), *options, code=1)
            assert "(notes.md), which are never replaced" in error
    files = {path.name: path.read_text() for folder in (run, notes) for path in folder.iterdir()}
    assert files == dict.fromkeys(("recipe.toml", "config.json", "notes.md"), "{}")


def test_tokenizer_train_takes_files_as_other_commands_do(capsys, tmp_path):
    texts = {name: f"{name} " * 50 for name in ("north", "south")}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    files = [str(tmp_path / f"{name}.txt") for name in texts]
    out = tmp_path / "tokenizer.json"
    output(capsys, "tokenizer", "train", *files, "--kind", "whitespace", "--out", str(out))
    assert set(texts) <= set(Tokenizer.load(out).tokens)


def test_tokenizer(capsys, tmp_path, text_file):
    path = str(tmp_path / "tokenizer.json")
    options = [text_file, "--vocab-size", "300", "--out", path]
    assert path in output(capsys, "tokenizer", "train", "--kind", "byte-bpe", *options)[0]
    arguments = ["--kind", "bpe", *options, "--lowercase"]
    *_, error = output(capsys, "tokenizer", "train", *arguments, code=1)
    assert 'bpe tokenizer: unknown key "lowercase". Known keys there: character_coverage' in error
    ids = Tokenizer.load(path).encode("Ada wrote it").ids
    (error,) = output(capsys, "tokenizer", "decode", "-t", path, "1", "300", code=1)
    assert "id 300: this tokenizer has ids 0 to 299" in error
    (error,) = output(capsys, "tokenizer", "encode", "-t", path, "a", "--source", code=1)
    assert "--source is for the folder of a model with two vocabularies" in error
    chinese, _ = output(capsys, "tokenizer", "encode", "-t", path, "\u4eca")
    assert chinese.replace(" ", "") == r"\xe4\xbb\x8a"
    symbols, _ = output(capsys, "tokenizer", "encode", "-t", path, "\u4eca", "--symbols")
    assert symbols.replace(" ", "") == "\u00e4\u00bb\u012c"
    tokens, numbers = output(capsys, "tokenizer", "encode", "-t", path, "Ada wrote it")
    assert numbers.split() == list(map(str, ids))
    assert "Ada" in tokens.replace(" ", "")
    assert output(capsys, "tokenizer", "decode", "-t", path, numbers) == ["Ada wrote it"]
    (record,) = map(json.loads, output(capsys, "tokenizer", "encode", "-t", path, "Ada", "--json"))
    assert record["text"] == "Ada"
    assert output(capsys, "explain", "bpe", "lower", "--tokenizer", path)[0].startswith("How a ")
    (facts,) = output(capsys, "explain", "unigram", "ababc", "--vocab", "ab c", "--json")
    assert json.loads(facts)["texts"][0]["likelihood"] == pytest.approx(4 / 27)
    (error,) = output(capsys, "explain", "unigram", "lower", "--tokenizer", path, code=1)
    assert "trivium explain byte-bpe" in error


def test_a_folder_of_a_tokenizer_has_the_files_of_berts_tokenizer(capsys, tmp_path):
    text, folder = tmp_path / "text.txt", tmp_path / "pretrained-bert"
    text.write_text("the weather was cloudy and the road was long " * 20, encoding="utf-8")
    options = ("--kind", "wordpiece", "--vocab-size", "200", "--max-length", "7", "--out")
    output(capsys, "tokenizer", "train", str(text), *options, str(folder))
    theirs = BertTokenizerFast.from_pretrained(folder)
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert theirs.convert_ids_to_tokens(range(len(theirs))) == lines
    assert theirs.model_max_length == 7
    assert len(theirs("the road " * 20, truncation=True).input_ids) == 7
    file = str(tmp_path / "one.json")
    *_, error = output(capsys, "tokenizer", "train", str(text), *options, file, code=2)
    assert "--max-length is stored in the tokenizer_config.json of a folder" in error


def test_a_page_of_explain_is_written_into_a_new_folder(capsys, tmp_path):
    path = tmp_path / "new" / "folder" / "x.html"
    assert output(capsys, "explain", "bpe", "lower", "--html", str(path)) == []
    assert "<table" in path.read_text("utf-8")


def test_prepare(capsys, tmp_path, text_file):
    shards = str(tmp_path / "shards")
    arguments = ["prepare", text_file, "--out", shards, "--vocab-size", "167"]
    written = ["--write-text", str(tmp_path / "split")]
    lines = output(capsys, *arguments, *written)
    assert any("bytes per token" in line for line in lines)
    assert lines[-1].endswith("unigram baseline")
    assert (tmp_path / "split" / "train.txt").is_file()
    count = Shards.open(shards).manifest.splits["train"].tokens
    output(capsys, *arguments)  # finished work is kept
    assert Shards.open(shards).manifest.splits["train"].tokens == count
    other = output(capsys, *arguments[:-1], "151", code=1)
    assert "another tokenizer" in other[-1]
    both = ["--tokenizer", shards, "--kind", "bpe"]
    assert "give either --tokenizer, or" in output(capsys, *arguments, *both, code=1)[0]
    assert "only once" in output(capsys, "prepare", "-", "--out", shards, code=1)[0]


def test_an_interrupt_says_where_the_work_is_kept(capsys, tmp_path, text_file, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_command, "prepare_shards", interrupt)
    arguments = ["prepare", text_file, "--out", str(tmp_path / "out"), "--vocab-size", "167"]
    error = output(capsys, *arguments, code=130)[-1]
    assert error.endswith(f"is kept in {tmp_path / 'out.partial'}: repeat the command to continue.")


def test_eval_refuses_what_it_would_not_read_before_it_begins(capsys, tmp_path, text_file):
    for arguments, message in (
        ([], "nothing to evaluate on"),
        ([text_file, "no-file.txt"], "There is no file or folder no-file.txt"),
        ([text_file + "x"], f"Did you mean {text_file}?"),
        ([text_file, "--shots", "2"], "--tasks-folder and --shots are for --lm-eval"),
        ([text_file, "--lm-eval", "x", "--tasks-folder", str(tmp_path / "no")], "no such folder"),
    ):
        (error,) = output(capsys, "eval", "no-model", *arguments, code=1)
        assert message in error


def test_eval_and_prompt(capsys, tmp_path, text_file):
    spec = small_spec("gpt2").replace(vocab_size=VOCABULARY)
    lm = LanguageModel(spec, build(spec, seed=5), ours("gpt2"))
    folder = str(lm.save(tmp_path / "gpt2"))
    results = tmp_path / "results.json"
    (line,) = output(capsys, "eval", folder, text_file, "--limit", "3", "--json")
    expected = evaluate(folder, text_file, limit=3).values
    assert json.loads(line)["loss"] == pytest.approx(expected["loss"])
    lines = output(
        capsys,
        "eval",
        folder,
        text_file,
        "--limit",
        "2",
        "--quantize",
        "int8",
        "--out",
        results.as_posix(),
    )
    assert any("change" in line for line in lines)
    result = json.loads(results.read_text())[0]
    assert result["int8"]["loss"] > 0
    result["int8"]["loss"] = 1.25 * result["loss"]
    (line,) = [
        line for line in _format_result(result, "int8").split("\n") if line.split()[0] == "loss"
    ]
    assert line.endswith(" +25.00%")
    assert "nothing to evaluate on" in output(capsys, "eval", folder, code=1)[0]
    assert not any("was trained on" in line for line in lines)
    pattern = text_file.replace("text.txt", "*.txt")
    (tmp_path / "gpt2" / "recipe.toml").write_text(f"[data]\npaths = ['{pattern}']\n")
    lines = output(capsys, "eval", folder, text_file, "--limit", "2")
    assert any(f"was trained on {text_file}" in line for line in lines)
    questions = tmp_path / "questions.jsonl"
    rows = [{"text": f"{text} {n}", "label": n % 2} for n in range(3) for text in TEXT]
    questions.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = ["--shots", "1", "--options", "bad,good"]
    prompt = "\n".join(output(capsys, "prompt", folder, str(questions), *options, "--show"))
    assert prompt.endswith("Answer: ") or prompt.endswith("Answer:")
    lines = output(capsys, "prompt", folder, str(questions), *options)
    assert lines[0].startswith("accuracy")
    *answers, total = output(capsys, "prompt", folder, str(questions), *options, "--json")
    assert len(answers) == len(rows)
    assert 0 <= json.loads(total)["accuracy"] <= 1


@pytest.mark.parametrize("way", ["--encoding", "--set"])
@pytest.mark.parametrize("task", ["classification", "tagging", "translation", "qa", "chat"])
def test_one_key_names_the_encoding_everywhere(capsys, tmp_path, task, way):
    line = {
        "classification": '{"text": "caf\u00e9 %d", "label": "%s"}',
        "tagging": '{"words": ["caf\u00e9", "%d"], "tags": ["%s", "O"]}',
        "translation": '{"source": "caf\u00e9 %d", "target": "%s"}',
        "qa": '{"question": "%d?", "context": "caf\u00e9 %s", "answer": "caf\u00e9"}',
        "chat": '{"prompt": "caf\u00e9 %d", "response": "%s"}',
    }[task]
    path = tmp_path / "a.jsonl"
    rows = "\n".join(line % (i, "ab"[i % 2]) for i in range(40))
    path.write_bytes(rows.encode("latin-1"))
    (error,) = output(capsys, "check", str(path), "--task", task, code=1)
    assert "give --encoding windows-1252" in error
    options = (
        ["--encoding", "latin-1"] if way == "--encoding" else ["--set", "data.encoding=latin-1"]
    )
    output(capsys, "check", str(path), "--task", task, *options)
    options = ["--errors", "replace"] if way == "--encoding" else ["--set", "data.errors=replace"]
    output(capsys, "check", str(path), "--task", task, *options)


def test_a_labelled_run_and_its_evaluation_read_other_encodings(capsys, tmp_path):
    path, out = tmp_path / "a.csv", tmp_path / "run"
    rows = "".join(f"caf\u00e9 {i},{'ab'[i % 2]}\n" for i in range(40))
    path.write_bytes(f"text,label\n{rows}".encode("windows-1252"))
    steps = ["--set", "train.steps=1", "--set", "train.device=cpu"]
    start = ["finetune", "classification", "--model", "bert-tiny", "--data", str(path)]
    start = [*start, "--out", str(out), *steps]
    for options, code in (([], 1), (["--errors", "replace"], 0), (["--encoding", "cp1252"], 0)):
        assert main([*start, *options, *(["--overwrite"] if options else [])]) == code
    capsys.readouterr()
    valid = tmp_path / "valid.csv"
    valid.write_bytes("text,label\nth\u00e9 1,a\nth\u00e9 2,b\n".encode("cp1252"))
    more = ["--validation", str(valid), "--set", "data.encoding=cp1252", "--overwrite"]
    assert main([*start, *more]) == 0
    capsys.readouterr()
    for options in (["--encoding", "cp1252"], ["--set", "data.encoding=cp1252"]):
        assert "accuracy" in "\n".join(output(capsys, "eval", str(out), str(path), *options))
    for options in (["--errors", "replace"], ["--set", "data.errors=replace"]):
        output(capsys, "eval", str(out), str(path), *options)
    *_, error = output(capsys, "eval", str(out), str(path), "--set", "data.length=3", code=1)
    assert "data.length is not used here" in error


ROWS = {  # by task: a row of a table, whose cells may not be blank
    "classification": {"text": "tea", "pair": "milk", "label": "x"},
    "contrastive": {"text": "tea", "pair": "milk", "negative": "rain"},
    "qa": {"question": "what?", "context": "a tea", "answers": "tea"},
    "translation": {"source": "tea", "target": "the"},
    "text-to-text": {"source": "tea", "target": "the"},
    "summarization": {"source": "tea", "target": "the"},
    "chat": {"prompt": "tea", "response": "milk"},
    "reward": {"prompt": "tea", "chosen": "milk", "rejected": "rain"},
    "preference": {"prompt": "tea", "chosen": "milk", "rejected": "rain"},
    "kto": {"prompt": "tea", "response": "milk", "label": "true"},
    "policy": {"prompt": "tea", "answer": "milk"},
}
MAY_BE_BLANK = {("qa", "answers")}  # a question without an answer


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("task", ROWS)
def test_blank_cells_are_an_error_with_the_row(task, suffix, capsys, tmp_path):
    row, mark = ROWS[task], {".csv": ",", ".tsv": "\t"}[suffix]
    path = tmp_path / f"a{suffix}"
    for blank in row:
        fixed = {name: row[name] for name in ("label", "answers") if name in row}
        rows = [{name: f"{cell} {n}" for name, cell in row.items()} | fixed for n in range(6)]
        rows[2][blank] = ""
        lines = [mark.join(row), *(mark.join(one.values()) for one in rows)]
        path.write_text("\n".join(lines) + "\n", "utf-8")
        report = json.loads(output(capsys, "check", str(path), "--task", task, "--json")[0])
        (bad,) = [one for one in report["findings"] if one["check"] == "bad records"]
        assert bad["count"] == ((task, blank) not in MAY_BE_BLANK), blank
        assert all(f"{path}, line 4" in one for one in bad["samples"]), blank
        if bad["count"]:
            objective = Objective.kinds[task]()
            with pytest.raises(DataError, match=re.escape(f"{path}, line 4")):
                list(objective.read([str(path)]))  # as runs and `eval` read


@pytest.mark.parametrize("task", ROWS)
def test_every_task_reads_the_encoding_that_is_named(task, capsys, tmp_path):
    row, path = {**ROWS[task]}, tmp_path / "a.csv"
    row[next(iter(row))] = "caf\u00e9"
    path.write_bytes(f"{','.join(row)}\n{','.join(row.values())}\n".encode("cp1252"))
    objective = Objective.kinds[task]()
    with pytest.raises(DataError, match=r"line 2 .*give --encoding windows-1252"):
        list(objective.read([str(path)]))
    for options, text in (
        ({"encoding": "cp1252"}, "caf\u00e9"),
        ({"errors": "replace"}, "caf\ufffd"),
    ):
        assert text in repr([*objective.read([str(path)], RecordOptions(**options))])


def test_finetune_and_eval_name_the_row_of_a_blank_cell(capsys, tmp_path):
    lm = untrained(TextClassification(), EXAMPLES, "bert")[1]
    lm.save(tmp_path / "model")
    path = tmp_path / "a.csv"
    for row in (" ,x", "tea,"):
        path.write_text(f"text,label\ntea b,y\n{row}\n" + "tea,x\n" * 9, "utf-8")
        start = ["finetune", "classification", "--model", str(tmp_path / "model")]
        start += ["--out", str(tmp_path / "run"), "--data", str(path)]
        for command in (start, ["eval", str(tmp_path / "model"), str(path)]):
            *_, error = output(capsys, *command, code=1)
            assert f"{path}, line 3 is blank" in error


def test_a_run_and_its_evaluation_report_calibration(capsys, tmp_path):
    rows = [
        json.dumps({"text": f"{TEXT[n % len(TEXT)]} {n}", "label": "abc"[n % 3]}) for n in range(90)
    ]
    train, valid = tmp_path / "train.jsonl", tmp_path / "valid.jsonl"
    train.write_text("\n".join(rows[:60]), "utf-8")
    valid.write_text("\n".join(rows[60:]), "utf-8")
    run = tmp_path / "run"
    arguments = ["finetune", "classification", "--model", "bert-tiny", "--out", str(run)]
    arguments += ["--data", str(train), "--validation", str(valid), "--set", "train.steps=3"]
    arguments += ["--set", "train.device=cpu", "--set", "tokenizer.vocab_size=300"]
    assert main(arguments) == 0
    printed = capsys.readouterr().err.splitlines()
    lines = [*map(json.loads, (run / "predictions.jsonl").read_text("utf-8").splitlines())]
    right = [one["label"] == one["predicted"] for one in lines]
    known = json.loads((run / "evaluation.json").read_text("utf-8"))["calibration"]
    expected = compute_calibration(right, [one["score"] for one in lines])
    assert known == json.loads(json.dumps(dataclasses.asdict(expected)))
    texts = expected.render()
    assert f"certainty  {texts[0]}" in printed
    assert f"{'':11}{texts[1]}" in printed
    result = json.loads(output(capsys, "eval", str(run), str(valid), "--json")[0])
    assert result["calibration"]["rule"] == known["rule"]
    assert result["calibration"]["points"][-1][1:] == [1.0, pytest.approx(result["accuracy"])]
    shown = output(capsys, "eval", str(run), str(valid))
    texts = [*Calibration(**result["calibration"]).render()]
    assert shown[-len(texts) :] == [f"  {text}" for text in texts]
