"""The exported web page computes in Chromium what the model computes here."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hf_models import Case, hf_model
from hugging_face import ours_of

from trivium import LanguageModel
from trivium.cli import main
from trivium.errors import SpecError, TriviumError
from trivium.interop.settings import Settings
from trivium.interop.web_page import (
    PACK_COMMAND,
    PACKAGES,
    PAGE,
    choose_task,
    copy_library,
    library_commands,
    write_page,
)
from trivium.text import Tokenizer
from trivium.text.trainers.byte_bpe import ByteBPE
from trivium.text.trainers.wordpiece import WordPiece

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Paris is the capital of France, and Rome that of Italy.",
    "She sells sea shells by the sea shore.",
]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder. Yields the address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archives of the JavaScript library, as npm fetches them."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    packed = subprocess.run(PACK_COMMAND.split(), cwd=folder, capture_output=True, text=True)
    if packed.returncode:
        pytest.skip(f"npm cannot fetch the library: {packed.stderr[-200:]}")
    return folder


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def run_page(chromium: Any, folder: Path, **fields: str) -> Any:
    """Fill in the fields of a page, without a network. Returns the rows of the table, or the text.

    Requests to other hosts fail the test.
    """
    with served(folder) as address:
        page = chromium.new_context(locale="en-US").new_page()
        others: list[str] = []
        page.on("request", lambda r: None if address in r.url else others.append(r.url))
        page.goto(address)
        wait = "['ready', 'failed', 'missing', 'file'].includes(document.body.dataset.state)"
        page.wait_for_function(wait, timeout=120_000)
        assert page.locator("body").get_attribute("data-state") == "ready", page.inner_text("body")
        for name, value in fields.items():
            page.fill(f"#{name}", value)
        page.click("#run")
        page.wait_for_function("document.body.dataset.runs === '1'", timeout=120_000)
        assert page.locator("body").get_attribute("data-state") == "ready", page.inner_text("body")
        rows = [row.locator("td").all_inner_texts() for row in page.locator("#table tr").all()]
        text = page.locator("#output").text_content()
        page.click("#language")
        assert page.locator("#run").inner_text() == "运行"
        page.context.close()
    assert [url for url in others if not url.startswith(("data:", "blob:"))] == []
    return rows or text


def make_model(
    name: str, tokenizer: Tokenizer, settings: Settings | None = None, **changes: Any
) -> LanguageModel:
    """A random model of `transformers` as ours."""
    config = {"vocab_size": tokenizer.vocab_size, **changes}
    module = ours_of(hf_model(Case(name, config)))
    return LanguageModel(module.spec, module, tokenizer, settings)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return WordPiece(vocab_size=220).train(TEXTS * 3, progress=False)


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return ByteBPE(vocab_size=300).train(TEXTS * 3, progress=False)


@pytest.mark.slow
def test_masks_are_filled_equally(
    words: Tokenizer,
    library: Path,
    chromium: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lm = make_model("BertForMaskedLM", words)
    saved, out = str(lm.save(tmp_path / "saved")), str(tmp_path / "out")
    assert main(["export", saved, out, "--format", "web", "--library", str(library)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: a web page, f32"
    assert lines[-2:] == [f"  cd {out}", "  python3 -m http.server"]
    text = f"The quick {words.tokens[words.mask_id]} jumps"
    rows = run_page(chromium, tmp_path / "out", text=text)
    ours = lm.fill_mask(text, top_k=5)
    for (token, score), guess in zip(rows, ours, strict=True):
        assert token == guess.token.strip()
        assert float(score) == pytest.approx(guess.score, abs=2e-4)


@pytest.mark.slow
def test_labels_are_equal(words: Tokenizer, library: Path, chromium: Any, tmp_path: Path) -> None:
    settings = Settings().with_labels(["red", "green", "blue", "<b>", "white"])
    lm = make_model("BertForSequenceClassification", words, settings)
    lm.save_web(tmp_path / "out", library=library)
    rows = run_page(chromium, tmp_path / "out", text=TEXTS[0])
    scores = sorted(lm.classify(TEXTS[0]).scores.items(), key=lambda item: -item[1])
    assert [label for label, _ in rows] == [label for label, _ in scores]
    for (_, theirs), (_, ours) in zip(rows, scores):
        assert float(theirs) == pytest.approx(ours, abs=2e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a text ends because the model's 31 positions do")
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_greedy_texts_are_equal(
    name: str, pieces: Tokenizer, library: Path, chromium: Any, tmp_path: Path
) -> None:
    lm = make_model(name, pieces)
    lm.save_web(tmp_path / "out", library=library)
    text = run_page(chromium, tmp_path / "out", prompt="The quick", tokens="40", temperature="0")
    assert text == "The quick" + lm.generate("The quick", max_new_tokens=40, temperature=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "BartForConditionalGeneration"])
def test_rewritten_texts_are_equal(
    name: str, pieces: Tokenizer, library: Path, chromium: Any, tmp_path: Path
) -> None:
    lm = make_model(name, pieces)
    lm.save_web(tmp_path / "out", library=library)
    text = run_page(chromium, tmp_path / "out", text=TEXTS[1], tokens="9")
    assert text == lm.generate(TEXTS[1], max_new_tokens=9, temperature=0.0)


@pytest.mark.slow
def test_tags_are_equal(words: Tokenizer, library: Path, chromium: Any, tmp_path: Path) -> None:
    settings = Settings().with_labels(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    lm = make_model("BertForTokenClassification", words, settings)
    lm.save_web(tmp_path / "out", library=library)
    rows = run_page(chromium, tmp_path / "out", text="The dog sells the sea")
    whole = [(tag, score) for token, tag, score in rows if not token.startswith("##")]
    ours = lm.tag("The dog sells the sea")
    assert [tag for tag, _ in whole] == [each.tag for each in ours]


@pytest.mark.slow
def test_answers_are_equal(words: Tokenizer, library: Path, chromium: Any, tmp_path: Path) -> None:
    lm = make_model("BertForQuestionAnswering", words)
    lm.save_web(tmp_path / "out", library=library)
    fields = {"question": "sea", "context": "The quick dog jumps"}  # as one window
    text = run_page(chromium, tmp_path / "out", **fields)
    [best] = lm.answer(fields["question"], fields["context"])
    ids = words.encode(best.text, add_special_tokens=False).ids
    assert text == words.decode(ids)


@pytest.mark.slow
def test_similarities_are_equal(
    words: Tokenizer, library: Path, chromium: Any, tmp_path: Path
) -> None:
    lm = make_model("BertModel", words, Settings().with_task("contrastive", pooling="mean"))
    lm.save_web(tmp_path / "out", library=library)
    rows = run_page(chromium, tmp_path / "out", text=TEXTS[0], pair=TEXTS[1])
    first, second = lm.embed(TEXTS[:2])
    assert float(rows[0][1]) == pytest.approx(float(first @ second), abs=1e-4)


@pytest.mark.slow
def test_chats_are_equal(pieces: Tokenizer, library: Path, chromium: Any, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    lm = make_model("LlamaForCausalLM", pieces, Settings(chat_template=template))
    lm.save_web(tmp_path / "out", library=library, weight_type="int8")
    lm.save_web(tmp_path / "out", library=library, overwrite=True)
    fields = {"message": "The dog", "tokens": "8", "temperature": "0"}
    text = run_page(chromium, tmp_path / "out", **fields)
    assert text == lm.generate("user: The dog\nassistant: ", max_new_tokens=8, temperature=0.0)


@pytest.mark.slow
def test_the_printed_commands_unpack_the_library(library: Path, tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package.archive).symlink_to(library / package.archive)
    pack, *unpack = library_commands()
    assert pack == PACK_COMMAND
    subprocess.run(["sh", "-ec", "\n".join(unpack)], cwd=tmp_path, check=True)
    copy_library(library, tmp_path / "copied")
    for file in (tmp_path / "copied" / "library").iterdir():
        assert (tmp_path / "library" / file.name).read_bytes() == file.read_bytes()


def test_a_library_without_a_page_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "runs/mine", "out", "--library", "npm"]) == 2
    assert "--library needs --format web" in capsys.readouterr().err


def test_a_page_without_the_library_shows_how_to_fetch_it(tmp_path: Path) -> None:
    write_page(tmp_path, task="tag", weight_type="int8", name="</script><b>")
    page = (tmp_path / PAGE).read_text()
    assert "</script><b>" not in page
    settings = json.loads(page.split('id="settings">')[1].split("</script>")[0])
    assert settings["dtype"] == "q8"
    assert settings["commands"][0] == PACK_COMMAND
    assert settings["name"] == "</script><b>"


def test_a_missing_or_changed_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TriviumError, match="tgz is missing: run `npm pack"):
        copy_library(tmp_path, tmp_path / "out")
    (tmp_path / PACKAGES[0].archive).write_bytes(b"something else")
    with pytest.raises(TriviumError, match="its SHA-512 differs"):
        copy_library(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "model_type", "problem"),
    [
        ("NemotronForCausalLM", "nemotron", 'models of the family "nemotron"'),
        ("PegasusForConditionalGeneration", "pegasus", 'models of the family "pegasus"'),
        ("T5EncoderModel", "t5", 'expects a decoder in the family "t5"'),
        ("ElectraForPreTraining", "electra", 'no task for a head of kind "replaced-token"'),
        ("GPT2ForSequenceClassification", "gpt2", "this decoder-only model has: classifier"),
    ],
)
def test_a_model_that_the_page_cannot_run_is_refused(
    name: str, model_type: str, problem: str
) -> None:
    with pytest.raises(SpecError, match=problem):
        choose_task(ours_of(hf_model(Case(name, {}))).spec, model_type)
