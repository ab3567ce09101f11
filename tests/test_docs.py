"""The reference pages are what the program would write, and the examples of all pages work."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
from fake_hub import fake_hub
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from page_examples import (
    DOCS,
    SmallRunner,
    agrees,
    check_notebook,
    check_page,
    load_script,
    run_examples,
)

import trivium
from trivium.cli import commands, load_command, main
from trivium.data.documents import read_documents
from trivium.errors import MissingExtraError, TriviumError
from trivium.messages import load_chinese_recipe
from trivium.objectives.chat import Chat
from trivium.objectives.classification import TextClassification
from trivium.objectives.contrastive import Contrastive
from trivium.objectives.kto import KTO
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.question_answering import QuestionAnswering
from trivium.objectives.reranking import Reranking
from trivium.objectives.reward_model import Reward
from trivium.objectives.seq2seq import Translation
from trivium.objectives.tagging import Tagging
from trivium.serve.security import PUBLIC
from trivium.serve.server import get_allowed_hosts
from trivium.train.recipe_loading import build_recipe
from trivium.workflows import corpus

ROOT = Path(__file__).parent.parent
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [page.relative_to(DOCS).as_posix() for page in PAGES]
# Those in Chinese have the same commands and outputs, which a test below compares.
TUTORIALS = [name for name in NAMES if re.fullmatch(r"tutorials/[^/]+", name)]
RUN = [
    "index.md",
    "zh/index.md",
    "concepts.md",
    "plan.md",
    "how_big.md",
    "coming_from.md",
    "serving.md",
    "hub_example.md",
    "take_with_you.md",
    *TUTORIALS,
]

# What pages take from those before them.
_SAMPLES = "trivium samples samples"
_BERT = "trivium pretrain modernbert-mini --data samples/english.txt --out runs/bert"
_STORY = "trivium pretrain llama-mini --data samples/english.txt --out runs/story"
_TASK = "trivium finetune {} --model runs/bert --data samples/{} --out runs/{}"
_TASKS = (
    _TASK.format("classification", "movies.jsonl", "movies"),
    _TASK.format("tagging", "names.conll", "names"),
)
EARLIER = {
    "tutorials/finetuning.md": (_SAMPLES, _BERT),
    "serving.md": (_SAMPLES, _BERT, _STORY, *_TASKS),
}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_script("make_reference")


def test_reference_pages_are_up_to_date(reference: ModuleType) -> None:
    for name, make in reference.PAGES.items():
        if name == "families":  # takes minutes: the slow test below
            continue
        pages = make()
        for path, text in pages.items():
            written = (DOCS / path).read_text(encoding="utf-8")
            assert written == text, f"{path} is out of date: `make docs`"
        if folder := reference.FOLDERS.get(name):
            assert {path for path in NAMES if path.startswith(f"{folder}/")} == pages.keys()
    for name, make in reference.STORED.items():
        written = (reference.COMMANDS / f"{name}.json").read_text(encoding="utf-8")
        assert written == make(), f"{name}.json is out of date: `make docs`"


@pytest.mark.slow
def test_the_table_of_families_is_up_to_date(reference: ModuleType) -> None:
    for path, text in reference.index_page().items():
        assert (DOCS / path).read_text(encoding="utf-8") == text, "`make docs`"


def test_every_recipe_key_has_a_description(reference: ModuleType) -> None:
    pages = "".join(reference.recipe_pages().values())
    rows = re.findall(r"^\| `([a-z_.]+)` \|.*\| .* \| (.*) \|$", pages, re.MULTILINE)
    assert len(rows) > 80
    assert [key for key, description in rows if not description.strip()] == []


def test_every_chinese_text_about_the_recipe_is_on_a_page(reference: ModuleType) -> None:
    """A page that lacks a text cannot be made, so that none is missing."""
    pages = "".join(reference.chinese_recipe_pages().values()).replace("\\|", "|")
    texts = [text for table in load_chinese_recipe().values() for text in table.values()]
    assert [text for text in texts if text.strip() not in pages] == []


def test_optional_parts_are_installed_from_the_checkout() -> None:
    """No distribution of that name is published: it would be somebody else's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [page.read_text(encoding="utf-8") for page in (*PAGES, *READMES)]
    texts += [str(MissingExtraError("this", extra)) for extra in extras]
    named = set()
    for text in texts:
        assert not re.search(r"pip install '?trivium", text)
        parts = re.findall(r"EXTRAS=([a-z,-]+)|install '\.\[([a-z,-]+)\]'", text)
        named |= {extra for one in parts for extra in "".join(one).split(",")}
    assert named == {*extras}
    for command in ("make setup", "make setup EXTRAS=metrics,serve"):
        done = subprocess.run([*command.split(), "-n"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0
        assert ("-e '.[metrics,serve]'" in done.stdout) == ("EXTRAS" in command)


def test_a_tokenizer_has_one_name_in_chinese() -> None:
    """It is called 分词器 on pages, in messages and in the playground, as by most of the web."""
    texts = [*PAGES, *READMES, ROOT / "mkdocs.yml", *(ROOT / "src").rglob("*.toml")]
    words = re.compile("词元分析|词元化器|标记器|标记化|令牌化|切词器|词法分析")
    assert [path.name for path in texts if words.search(path.read_text(encoding="utf-8"))] == []
    assert sum("分词器" in path.read_text(encoding="utf-8") for path in texts) > 10


def test_links_of_the_docs_lead_to_files() -> None:
    for page in PAGES:
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


def test_every_page_is_in_the_navigation() -> None:
    """By its name, or with all pages of its folder."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ *- [^:]+: (\S+)", navigation, re.MULTILINE)
    folders = tuple(name for name in listed if name.endswith("/"))
    assert [name for name in NAMES if name not in listed and not name.startswith(folders)] == []


def test_the_switch_of_languages_leads_to_the_same_page() -> None:
    pytest.importorskip("mkdocs", reason="MkDocs, of the extra docs")
    hooks = load_script("site_hooks")
    for english, chinese in (
        ("index.md", "zh/index.md"),
        ("serving.md", "zh/serving.md"),
        ("parts.md", "zh/parts.md"),
        ("reference/cli/serve.md", "zh/reference/cli/serve.md"),
        ("reference/recipe/objective/masked.md", "zh/reference/recipe/objective/masked.md"),
        ("tutorials/bert.md", "tutorials/zh/bert.md"),
        ("book/en/llama.md", "book/zh/llama.md"),
    ):
        assert hooks._translation(english) == chinese
        assert hooks._translation(chinese) == english
    assert hooks._translation("architecture.md") == "zh/index.md"  # only in English
    assert hooks._translation("zh/recipe.md") == "reference/recipe/index.md"
    for page in NAMES:
        other = hooks._translation(page)
        assert hooks._language(other) != hooks._language(page), page
        assert other in NAMES


def test_a_tutorial_is_the_same_in_both_languages() -> None:
    """Its blocks, headings, rows, commands in sentences and links; Chinese may have more links."""
    assert [f"tutorials/zh/{Path(name).name}" for name in TUTORIALS] == [
        name for name in NAMES if name.startswith("tutorials/zh/")
    ]
    for name in TUTORIALS:
        pages = DOCS / name, DOCS / "tutorials" / "zh" / Path(name).name
        english, chinese = (page.read_text(encoding="utf-8") for page in pages)
        for part in (r"^```.*?^```$", r"^#+ ", r"^\|"):
            found = re.findall(part, english, re.DOTALL | re.MULTILINE)
            assert found == re.findall(part, chinese, re.DOTALL | re.MULTILINE), name
        assert sorted(mentioned(pages[0])) == sorted(mentioned(pages[1])), name
        links = Counter(in_the_other_language(link) for link in targets(pages[0]))
        assert links - Counter(targets(pages[1])) == Counter(), name


SAME_IN_CHINESE = (
    "take_with_you.md",
    "runtimes.md",
    "deployment.md",
    "distributed.md",
    "large_data.md",
    "parts.md",
    "callbacks.md",
    "tools.md",
    "rates.md",
    "hub_example.md",
)


@pytest.mark.parametrize("name", SAME_IN_CHINESE)
def test_a_page_has_the_same_blocks_in_both_languages(name: str) -> None:
    pages = [(folder / name).read_text(encoding="utf-8") for folder in (DOCS, DOCS / "zh")]
    english, chinese = (
        [re.findall(part, page, re.DOTALL | re.MULTILINE) for part in (r"^```.*?^```$", r"^#+ ")]
        for page in pages
    )
    assert english == chinese


def targets(page: Path) -> list[str]:
    """What a page links to, files by their path in the repository."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [
        link if ":" in link else (page.parent / link).resolve().relative_to(ROOT).as_posix()
        for link in links
    ]


def in_the_other_language(target: str) -> str:
    """What the Chinese tutorial links to where the English one leads here."""
    target = target.replace("docs/book/en/", "docs/book/zh/")
    target = re.sub(
        "^docs/tutorials/(zh/)?", lambda at: f"docs/tutorials/{'' if at[1] else 'zh/'}", target
    )
    chinese = re.sub(r"^docs/(?=\w+\.md$|reference/)", "docs/zh/", target)
    return chinese if (ROOT / chinese).exists() else target


def test_the_python_page_has_all_public_names() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    for path in re.findall(r"^::: (\S+)", page, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    missing = [name for name in trivium.__all__ if name.rpartition("__")[2] and name not in page]
    assert missing == []


def test_commands_that_pages_mention_have_these_options() -> None:
    """Also those in running text, and those that are for other machines."""
    lines = [line for page in (*PAGES, *READMES) for line in mentioned(page)]
    assert len(lines) > 100
    for line in lines:
        check_command(shlex.split(line, comments=True)[1:])


def check_command(command: list[str]) -> None:
    """A command of `trivium` exists and has these options."""
    name, *arguments = command
    if name in ("--help", "--install-completion"):
        return
    assert name in commands(), command
    parsed = load_command(name)
    if hasattr(parsed, "commands") and arguments:
        parsed = parsed.commands[arguments.pop(0)]
    known = {name for one in parsed.params for name in (*one.opts, *one.secondary_opts)}
    given = {part.partition("=")[0] for part in arguments if part.startswith("--")}
    assert given <= known | {"--help"}, command


def test_the_image_is_made_of_what_there_is() -> None:
    """Files, extras, user, key, and the options and addresses of the server; it is not built."""
    yaml = pytest.importorskip("yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    steps: list[Any] = re.findall(r"^([A-Z]+) (.*)$", image, re.MULTILINE)
    values: dict[str, str] = dict(steps)
    assert Version(values["FROM"].removeprefix("python:").removesuffix("-slim")) in SpecifierSet(
        project["requires-python"]
    )
    for name in [name for key, value in steps if key == "COPY" for name in value.split()[:-1]]:
        assert (ROOT / name).exists(), name
    for name in (project["readme"], *project["license-files"], "src"):
        assert re.search(rf"^COPY .*\b{name}\b", image, re.MULTILINE), name
    # The code is copied after the dependencies are installed, so that an edit keeps their layer.
    order = (
        "COPY pyproject.toml",
        "-c constraints.txt",
        "COPY src",
        "--no-deps --force-reinstall .",
    )
    assert sorted(order, key=image.index) == [*order]
    (extra,) = re.findall(r"pip install .*-c constraints\.txt '\.\[(\w+)\]'", image)
    assert extra in project["optional-dependencies"]
    assert values["USER"] not in ("root", "0")
    assert json.loads(values["ENTRYPOINT"]) == [*project["scripts"]]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    gpu = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text(encoding="utf-8"))
    services, ((other, overlay),) = compose["services"], gpu["services"].items()
    service = services[other]
    argument = values["ARG"].partition("=")[0]
    assert service["build"]["args"].keys() == overlay["build"]["args"].keys() == {argument}
    command = shlex.split(service["command"])
    check_command(command)
    port = command[command.index("--port") + 1]
    assert service["ports"] == [f"127.0.0.1:{port}:{values['EXPOSE']}"]
    assert f"http://127.0.0.1:{port}{PUBLIC}" in service["healthcheck"]["test"]
    assert service["volumes"] == [f"./runs:{values['WORKDIR']}:ro"]
    (subnet,) = compose["networks"]["default"]["ipam"]["config"]
    assert command[command.index("--forwarded-allow-ips") + 1] == subnet["subnet"]
    proxy = shlex.split(services["proxy"]["command"])
    assert proxy[proxy.index("--to") + 1] == f"{other}:{port}"
    host = proxy[proxy.index("--from") + 1]
    assert command[command.index("--allow-origin") + 1] == f"https://{host}"
    assert services["proxy"]["depends_on"].keys() == {other}
    (key,) = service["environment"]
    assert key == next(one.envvar for one in load_command("serve").params if one.envvar)
    with pytest.raises(TriviumError, match="API key"):
        get_allowed_hosts(command[command.index("--host") + 1], None)
    for line in (DOCS / "deployment.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("    serve "):
            check_command(shlex.split(line))


def mentioned(page: Path) -> Iterator[str]:
    """The `trivium` commands of a page; of generated ones, those in blocks."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.split(r" \| (?=trivium )", line)[-1]
            command = re.sub(r"^(\w+=\S+ )+", "", command)
            if command.startswith("trivium "):
                yield command
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for command in re.findall(r"`(trivium [^`\n]+)`", text):
        if not re.search(r"[A-Z]{3,}|\.\.\.", command):
            yield command


def files_of(name: str) -> dict[str, str]:
    """The files that a page shows, by name."""
    page = (DOCS / name).read_text(encoding="utf-8")
    return dict(example.file for example in run_examples.examples(page) if example.file)


READERS: dict[str, type[Any]] = {
    "search.jsonl": Contrastive,
    "relevance.jsonl": Reranking,
    "reviews.csv": TextClassification,
    "nli.jsonl": TextClassification,
    "names.conll": Tagging,
    "names.jsonl": Tagging,
    "entities.jsonl": Tagging,
    "questions.jsonl": QuestionAnswering,
    "pairs.tsv": Translation,
    "pairs.jsonl": Translation,
    "chats.jsonl": Chat,
    "preferences.jsonl": Reward,
    "unpaired.jsonl": KTO,
    "sums.jsonl": PolicyGradient,
}


def test_the_examples_of_texts_are_read_and_those_of_tasks_have_readers(tmp_path: Path) -> None:
    for name, text in files_of("data.md").items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert len(list(read_documents(tmp_path / "texts"))) == 4
    assert READERS.keys() == {one for one in files_of("data.md") if "/" not in one}


@pytest.mark.parametrize("page", ["data.md", "zh/data.md"])
@pytest.mark.parametrize("name", READERS)
def test_the_example_of_a_data_format_is_read(page: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(files_of(page)[name], encoding="utf-8")
    assert len(list(READERS[name]().read([str(path)]))) == 2


def test_recipes_on_pages_are_recipes() -> None:
    found = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```toml[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            tree = tomllib.loads(block)
            if "init_from" in tree["model"]:  # a run that the page makes
                tree["model"] = {"preset": "llama-tiny"}
            build_recipe(tree, where=page.name)
            found += 1
    assert found >= 4


def test_forms_of_output() -> None:
    """What the comparison below tells apart, and what it does not."""
    assert agrees("done  5 steps\n", "done  7,000 steps in 3s\n") == []
    assert agrees("done  5 steps\n", "best  at step 3\n") == ["done  5 steps"]
    assert agrees(" 4.3%  the  The\n", " 0.1%  of  Of\n") == []
    assert agrees(" 4.3%  the  The\n", "of  Of\n") != []
    assert agrees("negative\t0.5\ttext\n", "positive\t0.9\ttext\n") == []
    assert agrees("negative\t0.5\ttext\n", "positive\n") != []
    assert agrees("Step | Loss\n 5 | 7.1  done\n", "Step | Loss\n 2 | 6.9\n") == []
    assert agrees("Step | Loss\n", "Step | Training loss\n") != []
    assert agrees('{"a": [{"b": 1}]}\n', '{"a": [{"b": 2}]}\n') == []
    assert agrees('{"a": [{"b": 1}]}\n', '{"a": [{"c": 1}]}\n') != []


@pytest.mark.slow
# Of models of a few steps, and of vocabularies learned from a little text.
@pytest.mark.filterwarnings(
    "ignore:a text ends at its limit",
    "ignore:not in the vocabulary",
    "ignore:.is_gradient_checkpointing. is deprecated",  # by peft, of transformers
    "ignore:Use 'content=:DeprecationWarning",  # by huggingface_hub, of its own uploads
)
@pytest.mark.parametrize("name", RUN)
def test_the_examples_of_a_page_run_and_print_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uploads = name == "take_with_you.md"
    hub = fake_hub(monkeypatch, tmp_path / "cache") if uploads else nullcontext()
    with hub, SmallRunner(tmp_path) as runner:
        for command in EARLIER.get(name, ()):
            runner.run(command)
        check_page(DOCS / name, runner)


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_as_a_notebook(name: str, tmp_path: Path) -> None:
    check_notebook(DOCS / name, tmp_path)


class _SplitError(Exception):
    """Raised in place of the rest of a run, with the number of examples on each side."""


def _stop(*arguments: Any) -> None:
    (sources,) = (one for one in arguments if isinstance(one, list))
    examples = [source for source in sources if isinstance(source, corpus.ExampleSource)]
    raise _SplitError(*((len(source.train), len(source.valid)) for source in examples))


COUNTED = re.compile(r"^examples   ([\d,]+) for training, ([\d,]+) for validation", re.MULTILINE)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if COUNTED.search((DOCS / name).read_text(encoding="utf-8"))]
)
def test_numbers_of_examples_on_pages_are_those_of_the_split(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data is read and split as in the command, with a new small model; then the run ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpus, "_load_tokenizers", _stop)
    assert main(["samples", "samples"]) == 0
    earlier = ["tutorials/alignment.md"] if name == "book/en/alignment.md" else []
    for page in (*earlier, name):
        for example in run_examples.examples((DOCS / page).read_text(encoding="utf-8")):
            if example.file:
                file, text = example.file
                text = re.sub('init_from = "runs/[^"]*"', 'preset = "gpt2-tiny"', text)
                Path(file).write_text(text, encoding="utf-8")
            documented = COUNTED.findall(example.output or "") if page == name else []
            found = []
            for command in example.commands:
                if command.startswith("python make_"):
                    runpy.run_path(command.split()[1])
                elif documented and re.match("trivium (pretrain|finetune) ", command):
                    found += examples_of(shlex.split(command)[1:])
            numbers = [tuple(int(one.replace(",", "")) for one in pair) for pair in documented]
            assert numbers == found, example.commands


def examples_of(arguments: list[str]) -> list[tuple[int, int]]:
    """The number of examples to train on and held out of a command; none where it reads text."""
    if arguments[1].startswith("runs/"):  # more pretraining, of text
        return []
    small = {"runs/bert": "modernbert-tiny"}
    arguments = [
        small.get(one, "gpt2-tiny") if before == "--model" and one.startswith("runs/") else one
        for before, one in zip(["", *arguments], arguments)
    ]
    try:
        main(arguments)
    except _SplitError as split:
        return [*split.args]
    return []


class Links(HTMLParser):
    """The links, ids, loaded files and language of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.language: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "html":
            self.language = values.get("lang")
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        address = values.get("href") or values.get("src")
        if not address:
            return
        if tag == "a" or values.get("rel") in ("next", "prev", "canonical"):
            self.links.append(address)
        else:
            self.loaded.append(address)


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="Material for MkDocs, of the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = {}
    for path in tmp_path.rglob("*.html"):
        pages[path.resolve()] = links = Links()
        links.feed(path.read_text(encoding="utf-8"))
    assert len(pages) > 20
    for path, links in pages.items():
        assert links.language == ("zh" if "zh" in path.relative_to(tmp_path).parts else "en"), path
        assert [one for one in links.loaded if one.startswith(("http", "//"))] == [], path
        for link in (*links.links, *links.loaded):
            if re.match(r"[a-z]+:", link) or path.name == "404.html":
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            assert target.exists(), f"{path}: {link}"
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].ids, f"{path}: {link}"
    navigation = {
        page: set(re.findall(r'href="([^"#]+)" class="md-nav__link', text))
        for page in ("bert", "zh/bert")
        for text in [(tmp_path / "tutorials" / f"{page}.html").read_text(encoding="utf-8")]
    }
    assert "../zh/gpt.html" not in navigation["bert"]
    assert {"../bert.html", "gpt.html"} & navigation["zh/bert"] == {"gpt.html"}
