"""The page of the studio: its token, its functions by themselves, and all of it in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import string
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

gr = pytest.importorskip("gradio")

from trivium.cli import main  # noqa: E402
from trivium.studio import studio_app  # noqa: E402
from trivium.studio.goals import GOALS  # noqa: E402
from trivium.studio.processes import StudioFolder  # noqa: E402
from trivium.studio.studio_app import StudioApp, write_opener  # noqa: E402
from trivium.studio.studio_page import build_studio_page, describe_forecast  # noqa: E402
from trivium.studio.studio_texts import LANGUAGES  # noqa: E402

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SOURCE = Path(studio_app.__file__).parent
TOKEN = "secret-token"
TEXT = "".join(f"{n}. The cat sat on a mat. Seven grey dogs ran over it.\n\n" for n in range(600))
FAST = "tokenizer.vocab_size=300\ndata.length=32\ntrain.batch_tokens=224\ntrain.eval_every=10"
ENGLISH = gr.Request(headers={"accept-language": "en-US,en"})
CHINESE = gr.Request(headers={"accept-language": "zh-CN"})
# Gradio counts its events with pandas in ways that newer versions deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting"),
    pytest.mark.filterwarnings("ignore:The copy keyword is deprecated"),
]


@pytest.fixture
def folder(tmp_path):
    place = StudioFolder(tmp_path / "studio")
    yield place
    place.stop(place.find_training_run() or "none")


@pytest.fixture
def call(folder):
    """Calls a function of the page by its name, as Gradio does."""

    async def build():
        return build_studio_page(folder)

    page = asyncio.run(build())
    handlers = {fn.name: fn.fn for fn in page.fns.values() if fn.fn is not None}
    return lambda name, *values: handlers[name](*values)


def choices(data, goal="continue", minutes=1.0, changes=""):
    """The values of the form, with a path that the user typed."""
    return [goal, "path", None, None, str(data), "small", "", minutes, changes]


def test_texts_have_the_same_fields_in_both_languages_and_are_used():
    code = "".join(file.read_text("utf-8") for file in SOURCE.glob("*.py"))
    code = code.replace("'", '"')  # quotes inside f-strings
    statuses = ("new", "preparing", "training", "finished", "stopped", "failed", "killed")
    derived = {f"goal.{name}" for name in GOALS} | {f"about.{name}" for name in GOALS}
    derived |= {f"status.{name}" for name in statuses}
    derived |= {f"source.{name}" for name in ("sample", "upload", "path")}
    derived |= {f"size.{name}" for name in ("auto", "small", "medium", "large")}
    derived |= {"progress.resumed", "progress.steps.resumed"}
    derived |= {f"export.{name}" for name in ("hf", "gguf")}
    english, chinese = LANGUAGES
    for key in (key for key in english if key.startswith("studio.")):
        fields = [{f for _, f, _, _ in string.Formatter().parse(t[key]) if f} for t in LANGUAGES]
        assert fields[0] == fields[1], key
        name = key.removeprefix("studio.")
        assert name in derived or f'"{name}"' in code, key
        if name not in ("recipe", "export.hf"):
            assert re.search("[\u4e00-\u9fff]", chinese[key]), key


def test_a_request_needs_the_token(folder):
    app = StudioApp(folder, TOKEN)

    async def ask(path, method="GET"):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path)

    run = folder.runs / "mine"
    run.mkdir()
    record = {"step": 1, "tokens": 8, "seconds": 1.0, "train_loss": 2.0}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")

    async def check():
        refused = [await ask(path) for path in (
            *("/", "/config", "/gradio_api/info", "/report/mine", "/wrong/", "/wrong/report/mine"),
            *(f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "//", f"//{TOKEN}/", "/\u4e2d/"),
        )]  # fmt: skip
        refused += [await ask("/gradio_api/upload", "POST"), await ask("/gradio_api/queue/join")]
        assert {answer.status_code for answer in refused} == {403}
        assert len({answer.text for answer in refused}) == 1
        page = await ask(f"/{TOKEN}/")
        assert page.status_code == 200
        assert "Trivium Studio" in page.text
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert page.headers["referrer-policy"] == "no-referrer"
        assert (await ask(f"/{TOKEN}")).headers["location"] == f"/{TOKEN}/"
        for path in ("file=/etc/passwd", "proxy=https://example.org/"):
            assert (await ask(f"/{TOKEN}/gradio_api/{path}")).status_code == 404
        report = await ask(f"/{TOKEN}/report/mine")
        assert report.headers["content-type"].startswith("text/html")
        for path in ("report/..%2F..", "report/absent", "try/mine/", "try/..%2F/"):
            assert (await ask(f"/{TOKEN}/{path}")).status_code == 404
        assert (await ask(f"/{TOKEN}/compare?run=mine")).status_code == 404  # one is not enough
        assert (await ask(f"/{TOKEN}/compare?run=mine&run=mine")).status_code == 200

    asyncio.run(check())


def test_the_page_listens_on_this_machine_only_and_the_token_is_new(folder, monkeypatch):
    seen = []

    def run(self, sockets):
        seen.append((sockets[0].getsockname()[0], self._app._token))

    monkeypatch.setattr(studio_app._Server, "run", run)
    for _ in range(2):
        assert main(["studio", str(folder.path), "--port", "0", "--no-open"]) == 0
    assert [host for host, _ in seen] == ["127.0.0.1"] * 2
    assert seen[0][1] != seen[1][1]
    assert len(seen[0][1]) >= 32
    opener = write_opener(folder, "http://127.0.0.1:1/x/")
    assert opener.stat().st_mode & 0o077 == 0
    assert "http://127.0.0.1:1/x/" in opener.read_text()


def test_what_is_understood_of_the_data(call, folder, tmp_path):
    reviews = tmp_path / "reviews.jsonl"
    rows = [{"text": f"a {w} film {n}", "label": w} for n in range(30) for w in ("good", "bad")]
    rows[3]["label"] = "Bad"
    reviews.write_text("\n".join(map(json.dumps, rows)))
    shown = call("_describe_data", ENGLISH, *choices(reviews, "classify"))
    plain = shown.replace("\\", "")
    for part in ("Examples: 60", "text &lt;- text", "Labels (3): good (30)", "only in case"):
        assert part in plain, part
    shown = call("_describe_data", CHINESE, *choices(reviews, "classify"))
    assert "60 个" in shown
    assert "只有大小写不同的类别" in shown
    command = call("_show_command", ENGLISH, *choices(reviews, "classify"), "mine")
    assert command.startswith("trivium finetune classification --model modernbert-tiny --data ")
    assert command.endswith(" --set train.minutes=1 --set train.samples=true")
    assert "no such file" in call("_describe_data", ENGLISH, *choices(tmp_path / "absent.txt"))
    (tmp_path / "damaged.txt").write_bytes(b"PK\x03\x04" + bytes(range(256)))
    assert "not text" in call("_describe_data", ENGLISH, *choices(tmp_path / "damaged.txt"))
    assert "不是文本" in call("_describe_data", CHINESE, *choices(tmp_path / "damaged.txt"))
    with pytest.raises(gr.Error, match="more than 0"):
        call("_start", ENGLISH, *choices(reviews, minutes=None), "mine")
    assert folder.list_runs() == []
    assert "还没有文本" in call("_show_command", CHINESE, *choices(""), "mine")


def test_the_forecast_says_what_was_measured():
    forecast = {"tokens_per_second": 1234.5, "tokens": 74_070.0, "steps": 70.3, "seconds": 60.0}
    forecast |= {"memory_bytes": 2**30, "free_bytes": 4 * 2**30, "warning": None}
    text = {"documents": 7, "train_tokens": 37_035, "unigram_loss": 5.25, "forecast": forecast}
    text |= {"first_loss": 8.5, "steps_to_beat_unigram": 700.0, "num_parameters": 1_234_567}
    counts, model, speed, loss = describe_forecast(text, ENGLISH)
    assert "37,035 tokens" in counts
    assert "1,234,567" in model
    for part in ("1,230 tokens per second", "70 steps", "2.0 passes", "1.0 GiB of 4.0 GiB"):
        assert part in speed, part
    assert "below 5.25" in loss
    assert "begins at 8.50" in loss
    assert "may end above" in loss
    text["forecast"] = {**forecast, "steps": 900.0, "warning": "the run is <long>"}
    *_, warning, loss = describe_forecast(text, ENGLISH)
    assert "&lt;long&gt;" in warning.replace("\\", "")
    assert "may end above" not in loss
    labelled = {"train_examples": 64, "valid_examples": 8, "first_loss": 0.75, "forecast": forecast}
    labelled |= {"recipe": {"train": {"batch_examples": 32}}, "num_parameters": 1_234_567}
    counts, _, speed, loss = describe_forecast(labelled, CHINESE)
    assert "64 个用于训练" in counts
    assert "35.1 遍" in speed
    assert "低于 0.75" in loss
    labelled["forecast"] = None
    assert "more than 20 seconds" in describe_forecast(labelled, ENGLISH)[2]


def test_warnings_and_samples_are_escaped_and_translated(call, folder):
    run = folder.runs / "mine"
    run.mkdir()
    warning = "the gradients are large"
    record = {"step": 7, "tokens": 8, "seconds": 1.0, "train_loss": 2.0, "warning": warning}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (folder.logs / "mine.log").write_text("\n$ trivium pretrain\n")  # ended without a message
    samples = [{"prompt": "<b>", "output": "<script>"}, {"text": "a", "predicted": ["x", "<i>"]}]
    (run / "samples.jsonl").write_text(json.dumps({"step": 7, "samples": samples}))
    (run / "run.json").write_text('{"preparation_seconds": 0.75, "resumed": [3]}')
    line, _, status, warnings, stop, resume, links, curves, shown, *_ = call(
        "_update", None, None, CHINESE
    )
    assert "没有训练" in line
    assert "第 7 步" in status
    assert "含准备共 1s" in status  # the preparation of the first start is not known
    assert "没有已保存的进度" in status
    assert "7: the gradients are large" in warnings
    assert (stop.interactive, resume.interactive) == (False, False)
    assert 'href="report/mine"' in links
    assert "try/" not in links
    assert list(curves["loss"]) == [2.0]
    assert "&lt;b&gt; <mark>&lt;script&gt;</mark>" in shown
    assert "&lt;i&gt;" in shown
    assert "<script>" not in shown


@contextlib.contextmanager
def studio(path):
    """A studio in a process of its own. Yields the address of its page."""
    command = [sys.executable, "-m", "trivium", "studio", str(path), "--port", "0", "--no-open"]
    environment = {**os.environ, "TRIVIUM_LANGUAGE": "en", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        watchdog = threading.Timer(1800, process.kill)
        watchdog.start()
        try:
            yield process.stdout.readline().strip()  # type: ignore[union-attr]
        finally:
            watchdog.cancel()
            process.send_signal(signal.SIGINT)
            process.wait(60)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium to show the page in")
def test_a_model_is_trained_in_a_browser(folder, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    (tmp_path / "cats.txt").write_text(TEXT)
    (tmp_path / "damaged.txt").write_bytes(b"PK\x03\x04" + bytes(range(256)))
    wrong = []
    sync_api.expect.set_options(timeout=300_000)
    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(sync_api.sync_playwright())
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])

        def visit(address, locale="en-US", width=1280):
            viewport = {"width": width, "height": 900}
            page = browser.new_context(viewport=viewport, locale=locale).new_page()
            page.set_default_timeout(300_000)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on(
                "request",
                lambda request: (
                    request.url.startswith((address, "data:", "blob:")) or wrong.append(request.url)
                ),
            )
            page.goto(address)
            page.locator("#studio-command textarea").wait_for()
            sync_api.expect(page.locator("#studio-command textarea")).not_to_have_value("")
            return page

        def see(page, place, text):
            found = page.locator(f"#studio-{place}").get_by_text(text, exact=False)
            found.locator("visible=true").first.wait_for()

        def open_tab(page, name):
            page.get_by_role("tab", name=name, exact=True).click()

        with studio(folder.path) as address:
            page = visit(address)
            page.get_by_label("Upload", exact=True).check()
            page.locator("#studio-upload").get_by_role("button", name="Drop File Here").wait_for()
            files = page.locator("#studio-upload input[type=file]")
            files.set_input_files(tmp_path / "damaged.txt")  # a bad file
            command = page.locator("#studio-command textarea")
            sync_api.expect(command).to_have_value(re.compile("damaged"))
            page.locator("#studio-look").click()
            see(page, "facts", "not text")
            page.locator("#studio-upload").get_by_label("Clear").or_(
                page.locator("#studio-upload button[aria-label='Remove this file']")
            ).first.click()
            files.set_input_files(tmp_path / "cats.txt")
            sync_api.expect(command).to_have_value(re.compile("cats"))
            page.locator("#studio-look").click()
            see(page, "facts", "Documents: 600")
            page.get_by_text("More settings").click()
            page.locator("#studio-changes textarea").fill(FAST)
            page.locator("#studio-minutes input").fill("2")
            sync_api.expect(command).to_have_value(re.compile("minutes=2 .*eval_every=10$"))
            typed = command.input_value()
            page.locator("#studio-start").click()  # start ...
            see(page, "status", "Step ")
            second = visit(address, "zh-CN", 390)  # two pages, one on a phone
            see(second, "busy", "continue-1")
            second.locator("#studio-start").click()
            second.get_by_test_id("toast-body").get_by_text("同一时间只进行一个训练").wait_for()
            open_tab(second, "训练")
            see(second, "status", "训练中")
            wide = "document.documentElement.scrollWidth - window.innerWidth"
            assert second.evaluate(wide) <= 0
            see(page, "samples", "Step 10")
            page.locator("#studio-stop").click()  # ... stop ...
            see(page, "status", "Stopped")
            see(second, "status", "已停止")
            page.locator("#studio-resume").click()  # ... resume ...
            see(second, "status", "训练中")
            page.context.close()
            second.context.close()  # ... without a page
        assert folder.find_training_run() == "continue-1"  # without a studio
        with studio(folder.path) as address:
            page = visit(address)
            open_tab(page, "Training")
            see(page, "status", "Training loss")
            process = folder._find_process()[1]
            os.kill(process, signal.SIGKILL)  # ... killed ...
            see(page, "status", "Ended without a message")
            page.locator("#studio-resume-minutes input").fill("0.05")
            page.locator("#studio-resume").click()
            see(page, "status", "Finished")
            page.get_by_text("Command, recipe and log").click()
            commands = page.locator("#studio-commands textarea").input_value().splitlines()
            assert commands[0] == typed
            assert commands[-1].endswith("--set train.minutes=0.05")
            page.locator("#studio-export").click()
            see(page, "exported", "exported/continue-1-hf")
            assert (folder.exported / "continue-1-hf" / "config.json").is_file()
            with page.context.expect_page() as opened:
                page.get_by_role("link", name="Open the report").click()
            opened.value.get_by_role("heading").first.wait_for()
            with page.context.expect_page() as opened:
                page.get_by_role("link", name="Try the model").click()
            tried = opened.value
            tried.locator("#completions-run").wait_for()
            shown = tried.locator("#completions-table").get_by_text("%")
            shown.locator("visible=true").first.wait_for()
        browser.close()
    assert not wrong
