"""The program itself: commands imported lazily, errors as one line, exit codes."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import types
import warnings
from typing import Any

import pytest
import typer

from trivium import cli
from trivium.errors import DataError
from trivium.objectives import task_kinds
from trivium.train.recipe_loading import build_recipe, load_recipe


@pytest.fixture
def failing(monkeypatch):
    """Add a command "fail" that raises an error."""

    def install(error: BaseException) -> None:
        app = typer.Typer(add_completion=False)

        @app.command()
        def run() -> None:
            raise error

        module = types.SimpleNamespace(app=app)
        monkeypatch.setitem(sys.modules, "trivium_failing", module)
        monkeypatch.setattr(cli, "commands", lambda: {"fail": ("trivium_failing", "Fails.")})

    return install


@pytest.fixture(autouse=True)
def restored_warnings(monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)


def program(*arguments: str, **changes) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "timeout": 60, **changes}
    return subprocess.run([sys.executable, "-m", "trivium", *arguments], **settings)


def test_help_and_version_do_not_import_torch():
    code = (
        "import sys; from trivium.cli import main;"
        "codes = [main([option]) for option in ('--help', '--version', '-h')];"
        "assert 'torch' not in sys.modules and 'tokenizers' not in sys.modules;"
        "sys.exit(any(codes))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for command, (_, line) in cli.commands().items():
        assert f"  {command} " in done.stdout
        assert line.split()[0] in done.stdout


def test_a_shell_completes_commands_options_and_files_without_torch():
    code = (
        "import sys; from trivium.cli import main; code = main();"
        "assert 'torch' not in sys.modules and 'tokenizers' not in sys.modules; sys.exit(code)"
    )
    for line, expected in (
        ("trivium pretr", "pretrain"),
        ("trivium pretrain --data a.txt --ov", "--overwrite"),
        ("trivium pretrain book", ""),  # a name of a file, which the shell completes
        ("trivium tokenizer enc", "encode"),
        ("trivium tokenizer train --voc", "--vocab-size"),
    ):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        environment = {**os.environ, **words, "_TRIVIUM_COMPLETE": "complete_bash"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_help_and_wrong_usage_of_every_command_do_not_import_torch():
    """All in one interpreter, which ends at the first command that imports it."""
    assert {name.split()[0] for name in COMMANDS} == cli.commands().keys()
    usages = [(0, [*name.split(), "--help"]) for name in [*cli.commands(), *COMMANDS]]
    usages += [(2, [*name.split(), "--no-such-option"]) for name in COMMANDS]
    usages += [(2, [*name.split(), "--learning-rate", "1"]) for name in COMMANDS]
    required = {name for name in COMMANDS if any(one.required for one in COMMANDS[name].params)}
    usages += [(2, name.split()) for name in sorted(required)]
    code = f"""
import sys
from trivium.cli import main
for code, arguments in {usages}:
    assert main(arguments) == code, arguments
    assert "torch" not in sys.modules, arguments
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert " object at 0x" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("presets", 0, "bert-base"),
        ("presets llama --json", 0, '"parameters": 6738415616'),
        ("presets lamma-7b", 1, 'Did you mean "llama-7b"?'),
        ("explain", 0, "byte-level BPE"),
        ("finetune tagging --help", 0, "objective.repair_iob"),
        ("encode", 2, "Did you mean `trivium tokenizer encode`?"),
        ("generate m --top-kk 3", 2, "Did you mean --top-k?"),
        ("pretrain m --learning-rate 3", 2, "--set optimizer.lr=VALUE"),
    ],
)
def test_what_is_stored_of_the_package_is_shown_without_torch(arguments, code, text):
    program = "import sys; from trivium.cli import main; print(main(), 'torch' in sys.modules)"
    command = [sys.executable, "-c", program, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == f"{code} False"
    assert text in done.stdout + done.stderr


def test_every_command_has_help_with_examples(capsys):
    assert cli.commands().keys() >= {"pretrain", "generate", "serve"}
    for command, (_, line) in cli.commands().items():
        assert line.endswith(".")
        assert cli.main([command, "-h"]) == 0
        text = capsys.readouterr().out
        assert "Examples" in text or hasattr(cli.load_command(command), "commands")
        assert "bool" not in text  # a flag takes no value


def test_every_argument_and_option_has_help():
    for name in cli.commands():
        command = cli.load_command(name)
        for one in getattr(command, "commands", {"": command}).values():
            assert [parameter.name for parameter in one.params if not parameter.help] == [], name


def test_help_of_a_task_lists_its_keys(capsys):
    assert cli.main(["finetune", "tagging", "--help"]) == 0
    assert "objective.repair_iob" in capsys.readouterr().out
    assert cli.main(["finetune", "--help"]) == 0
    assert "objective.repair_iob" not in capsys.readouterr().out


@pytest.mark.parametrize("task", task_kinds())
def test_help_of_a_task_describes_its_keys_in_chinese(task, monkeypatch, capsys):
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "zh")
    assert cli.main(["finetune", task, "--help"]) == 0
    _, _, keys = capsys.readouterr().out.partition(f"{task} 的键")
    described = re.findall(r"^  objective\.(?!rewards\.kind)\S+ +(.+)", keys, re.MULTILINE)
    assert described
    assert [text for text in described if not re.search("[\u4e00-\u9fff]", text)] == []


def test_examples_in_help_are_recipes_that_load():
    for command in ("pretrain", "finetune"):
        epilog = str(cli.load_command(command).epilog)
        for example in epilog.split("\n\n")[1:]:
            _, _, first, *rest = shlex.split(example)
            changes = [rest[i + 1] for i, word in enumerate(rest) if word == "--set"]
            if first.startswith(("-", "hf/")):
                continue
            if command == "pretrain":
                assert load_recipe(first, changes).sources
            else:
                start = {"objective": {"kind": first}, "model": {"preset": "bert-tiny"}}
                assert build_recipe(start, changes).objective.kind == first


def test_wrong_usage_exits_with_2(capsys):
    for arguments, message in (
        (["pretrian"], "there is no command 'pretrian'. Did you mean \"pretrain\"?"),
        (["--nonsense"], "--nonsense"),
        (["presets", "--nonsense"], "--nonsense"),
        (["encode"], "Did you mean `trivium tokenizer encode`?"),
        (["explain", "nrom"], "Did you mean 'norm'"),
        (["pretrain", "bert-tiny", "--minutes", "3"], "--set train.minutes=VALUE"),
        (["finetune", "qa", "--batch-size", "3"], "--set train.batch_examples=VALUE"),
        (["score", "runs/x", "--num-beams", "3"], "--num-beams is an option of "),
        (["generate", "runs/x", "--tempratur", "3"], "Did you mean --temperature?"),
        (["generate", "runs/x", "--max-tokens", "3"], "Did you mean --max-new-tokens?"),
        (["finetune", "qa", "--text-field", "x"], "recipe: --set objective.text_field=VALUE."),
        (["finetune", "qa", "--set", "a.b=0", "a.c=1"], "--set A=1 --set B=2"),
        (["pretrain", "bert-tiny", "--data", "a", "b"], "several values: --data A --data B."),
        (["generate", "runs/x", "--temperature", "hot"], "'--temperature': expected a number"),
        (["generate", "runs/x", "--slots", "many"], "'--slots': expected a whole number"),
        (["generate", "runs/x", "--slots", "0"], "expected a number greater than or equal to 1"),
        (
            ["eval", "runs/x", "--quantize", "int4"],
            "'--quantize': 'int4' is not one of 'int8', 'nf4'",
        ),
        (["generate"], "MODEL"),
        (["serve", "runs/x", "--port", "99999"], "expected a number less than or equal to 65535"),
        (["generate", "runs/x", "--top-p", "2"], "expected a number less than or equal to 1"),
        (["generate", "runs/x", "--min-p", "-1"], "expected a number greater than or equal to 0"),
        (["eval", "runs/x", "--data", "a"], "positional argument: `trivium eval MODEL [FILE]...`"),
        (["check", "--data", "a"], "positional argument: `trivium check DATA...`"),
        (
            ["tokenizer", "train", "--data", "a"],
            "positional argument: `trivium tokenizer train PATHS...`",
        ),
        (["pretrain"], "name a preset or a recipe"),
        (["finetune"], "name a task"),
        (["finetune", "qa", "--resume", "--overwrite"], "give only one of them"),
        (["pretrain", "--resume"], "give --out RUN"),
        ([], "Usage"),
    ):
        assert cli.main(arguments) == 2
        assert message.lower() in capsys.readouterr().err.lower()


def test_an_error_of_the_input_is_one_line_and_exits_with_1(failing, capsys):
    failing(DataError("bad.txt is empty."))
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr() == ("", "error: bad.txt is empty.\n")
    with pytest.raises(DataError):
        cli.main(["--debug", "fail"])
    failing(OSError(28, "No space left on device", "out.bin"))
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr().err == "error: out.bin: No space left on device.\n"


def test_an_interrupt_exits_with_130(failing, capsys):
    for error, message in ((KeyboardInterrupt("saved."), "saved."), (KeyboardInterrupt(), None)):
        failing(error)
        assert cli.main(["fail"]) == cli.INTERRUPTED == 130
        assert capsys.readouterr().err == f"\n{message or 'interrupted'}\n"


def test_a_bug_keeps_its_traceback(failing):
    failing(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_warnings_are_one_line(capsys):
    cli.main(["--version"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = cli._show_warning
        warnings.warn("careful", stacklevel=1)
    assert capsys.readouterr().err == "warning: careful\n"


def test_a_closed_output_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        done = program("presets", "bert", stdout=out, stderr=subprocess.PIPE, capture_output=False)
    assert (done.returncode, done.stderr) == (cli.OUTPUT_CLOSED, "")


def test_python_dash_m_exits_with_the_code():
    done = program("presets", "no-such-thing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no preset")


def every_command() -> list[tuple[str, Any]]:
    """Every command, also those inside others, with its names as they are typed."""
    found: list[tuple[str, Any]] = []
    for name in cli.commands():
        command = cli.load_command(name)
        inner = getattr(command, "commands", {})
        found += [(f"{name} {one}", inner[one]) for one in inner] or [(name, command)]
    return found


COMMANDS = dict(every_command())
EXAMPLES = [
    (name, example)
    for name in cli.commands()
    for example in str(sys.modules[cli.commands()[name][0]].__doc__).split("\n\n")[2:]
    if "trivium " in example and "python " not in example
]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_without_its_value_is_wrong_usage(name, capsys):
    for one in COMMANDS[name].params:
        if one.opts[0].startswith("--") and not one.is_flag:
            assert cli.main([*name.split(), one.opts[0]]) == 2, one.opts
            error = capsys.readouterr().err
            assert f"'{one.opts[0]}' requires an argument" in error


def outside_bounds() -> list[tuple[str, str, str]]:
    """A command, an option of it, and a number that the option may not have."""
    found = []
    for name, command in COMMANDS.items():
        for one in command.params:
            kind = one.type_descriptor.annotation
            if kind not in (int, float) or name.startswith("explain "):  # topics have rules
                continue
            numbers = ["nan"] if kind is float else []
            numbers += [] if one.min is None else [f"{one.min - 1:g}"]
            numbers += [] if one.max is None else [f"{one.max * 10 + 1:g}"]
            numbers += ["0", "-1"] if one.callback is not None else []
            if one.opts[0] == "--length-penalty":  # which has no bounds
                continue
            assert len(numbers) > 1 or (kind is int and numbers), (name, one.opts)
            found += [(name, one.opts[0], number) for number in numbers]
    return found


@pytest.mark.parametrize(("name", "option", "number"), outside_bounds())
def test_a_number_outside_the_bounds_of_an_option_is_wrong_usage(name, option, number, capsys):
    assert cli.main([*name.split(), "x", f"{option}={number}"]) == 2
    error = capsys.readouterr().err
    assert f"'{option}': expected a number" in error


@pytest.mark.parametrize("option", ["--language", "--debug", "--version"])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_of_the_program_goes_before_the_command(name, option, capsys):
    if any(option in one.opts for one in COMMANDS[name].params) or name.startswith("explain"):
        pytest.skip("the command has an option of this name")
    assert cli.main([*name.split(), option]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"goes before the command: `trivium {option}" in error
    assert f"{name}`." in error


@pytest.mark.parametrize("name", COMMANDS)
def test_a_line_of_usage_is_written_as_in_manuals(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main([*name.split(), "--help"]) == 0
    usage = capsys.readouterr().out.splitlines()[0]
    arguments = usage.partition("[OPTIONS]")[2]
    assert not set(arguments) & set("{}")
    assert "[[" not in arguments
    assert "......" not in arguments.replace(" ", "")
    assert arguments == arguments.upper()


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_an_example_in_help_can_be_copied(name, example, columns, monkeypatch, capsys):
    lines = [line.strip() for line in example.strip().splitlines()]
    assert all(line.endswith("\\") for line in lines[:-1])
    words = shlex.split("".join(line.removesuffix("\\") + " " for line in lines))
    words = words[words.index("trivium") + 1 :]
    for sign in ("<", ">", "|"):
        words = words[: words.index(sign)] if sign in words else words
    command, rest = cli.load_command(words[0]), words[1:]
    own = words[0]
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command, own, rest = COMMANDS[f"{own} {rest[0]}"], f"{own} {rest[0]}", rest[1:]
    command.make_context(own, rest)
    monkeypatch.setenv("COLUMNS", str(columns))
    if own == "explain":  # which lists its topics
        return
    owner = own if own.startswith(f"{name} ") else name
    assert cli.main([*owner.split(), "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert set(lines) <= set(shown)


@pytest.mark.parametrize("encoding", ["cp1252", "cp936", "utf-8", "ascii"])
@pytest.mark.parametrize("name", cli.commands())
def test_output_that_cannot_be_encoded_is_escaped(name, encoding, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "zh")
    monkeypatch.setattr(sys, "stdout", output)
    assert cli.main([name, "--help"]) == 0
    print("\N{SNOWMAN}")
    output.flush()
    text = output.buffer.getvalue().decode("utf-8" if encoding == "ascii" else encoding)
    assert ("\\u2603" in text) == (encoding != "utf-8")


def test_an_interrupt_while_modules_are_imported_is_not_swallowed():
    code = """
import importlib, os, signal, sys
from trivium import cli
real = importlib.import_module
def import_module(name, *rest, **more):
    if name.startswith("trivium.cli."):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10): pass
        except KeyboardInterrupt:
            pass
    return real(name, *rest, **more)
importlib.import_module = import_module
sys.exit(cli.main(["presets", "--help"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize(
    "arguments",
    [
        "answer m q --context c", "chat m", "check {file}", "classify m a", "doctor", "embed m a",
        "eval m {file}", "explain norm", "export m {out}", "fill-mask m a",
        "finetune classification --model m --data {file} --out {out}", "generate m a",
        "hidden-states m a", "import m {out}", "plan gpt2", "predict m {file} --out {out}",
        "presets gpt2 --spec", "pretrain gpt2 --data {file} --out {out}", "prompt m {file}",
        "quickstart --out {out}", "score m a", "serve m", "tag m a", "translate m a",
    ],
)  # fmt: skip
def test_an_interrupt_while_torch_is_imported_is_not_swallowed(arguments, tmp_path):
    (tmp_path / "a.txt").write_text("A text.")
    code = """
import os, signal, sys
from trivium import cli
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(10): pass
            except KeyboardInterrupt:
                print("swallowed")
sys.meta_path.insert(0, Finder())
sys.exit(cli.main())
"""
    words = arguments.format(file=tmp_path / "a.txt", out=tmp_path / "out").split()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize("module", ["shutil", "typer", "trivium.messages", "trivium.cli._help"])
def test_an_interrupt_from_the_first_imports_on_prints_no_traceback(module):
    """Python tells which modules are imported; the signal is sent after one of them."""
    command = [sys.executable, "-X", "importtime", "-m", "trivium", "quickstart", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        imported = (line.decode().rpartition("|")[2].strip() for line in process.stderr)
        assert module in imported
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().decode()
        assert (process.wait(60), process.stdout.read()) == (130, b"")
    assert "Traceback" not in rest
    assert "KeyboardInterrupt" not in rest


WORK = {
    "pretrain": ["pretrain", "bert-tiny", "--out", "{out}", "--data", "{data}"],
    "finetune": ["finetune", "classification", "--model", "bert-tiny", "--out", "{out}", "--data",
                 "{data}"],
    "prepare": ["prepare", "{data}", "--out", "{out}"],
    "validation": ["prepare", "{text}", "--out", "{out}", "--validation", "{data}"],
    "check": ["check", "{text}", "{data}"],
    "check task": ["check", "{text}", "--task", "classification", "--validation", "{data}"],
    "eval": ["eval", "no-model", "{text}", "{data}"],
    "tokenizer": ["tokenizer", "train", "{text}", "{data}", "--kind", "bpe", "--out", "{out}"],
}  # fmt: skip


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize(
    ("library", "data"),
    [
        ("pyarrow", "a.parquet"),
        ("pyarrow", ""),  # the folder
        ("datasets", "hf:wikitext"),
        ("tensorboard", "a.txt"),
    ],
)
def test_a_missing_library_is_found_before_any_work(
    library, data, work, tmp_path, monkeypatch, capsys
):
    if library == "tensorboard" and work != "pretrain":
        pytest.skip("only training writes for it")
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.txt", "a.parquet"):
        (folder / name).write_text("A text.\n\nAnother text.")
    monkeypatch.setitem(sys.modules, library, None)
    out = tmp_path / "out"
    path = data if data.startswith("hf:") else str(folder / data)
    arguments = [one.format(data=path, text=folder / "a.txt", out=out) for one in WORK[work]]
    if library == "tensorboard":
        arguments += ["--set", "train.tensorboard=true"]
    assert cli.main(arguments) == 1
    streams = capsys.readouterr()
    assert "needs an optional part" in streams.err
    assert (streams.out, streams.err.count("\n")) == ("", 1)
    assert not out.exists()


def test_a_run_in_place_of_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("A text.\n\nAnother text.")
    out = tmp_path / "run"
    out.write_text("mine")
    data = ["--data", str(tmp_path / "a.txt")]
    assert cli.main(["pretrain", "bert-tiny", *data, "--out", str(out)]) == 1
    assert "is a file: choose a folder" in capsys.readouterr().err
    assert out.read_text() == "mine"
