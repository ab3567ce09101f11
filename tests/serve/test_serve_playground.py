"""The playground in a real browser: each tab shows what the models say."""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import threading
import time

import pytest
import torch
import uvicorn
from fastapi import FastAPI
from playground_models import LOADERS, SlowModels, write_run

from trivium.inference import Sampling
from trivium.inference.attention_weights import attention_weights
from trivium.inference.fill_mask import document_ids
from trivium.serve.playground import mount
from trivium.serve.playground.marks import percent, visible
from trivium.serve.playground.tabs import continuation
from trivium.serve.playground.words import Words

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium to show the page in"),
    # Gradio counts its events with pandas in ways that newer ones frown upon.
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting"),
    pytest.mark.filterwarnings("ignore:The copy keyword is deprecated"),
]
TABS = (
    *("continue", "fill", "translate", "classify", "tag"),
    *("answer", "tokenizers", "attention", "runs"),
)
SENTENCE = "Ada Lovelace wrote notes on the engine"
EN, ZH = Words("en"), Words("zh")


@pytest.fixture(scope="module")
def models():
    return SlowModels(LOADERS)


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first", [5.0, 4.0, 3.5])
    write_run(folder / "second", [6.0, 2.125])
    return folder


@pytest.fixture(scope="module")
def address(models, runs_folder):
    app = FastAPI()

    @app.get("/healthz")
    def health() -> str:
        return "well"

    mount(app, models, runs=runs_folder)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def browser(address):
    sync_api = pytest.importorskip("playwright.sync_api", reason="no driver for a browser")
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visit(browser, address):
    """Open the page; at the end, nothing may have gone wrong in it or been asked of others."""
    pages, wrong = [], []

    def notice(request):
        if not request.url.startswith((address, "data:", "blob:")):
            wrong.append(request.url)

    def opened(path="", *, width=1280, locale="en-US"):
        context = browser.new_context(viewport={"width": width, "height": 900}, locale=locale)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", notice)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address + path)
        page.wait_for_selector("#tv-tabs button[role=tab]")
        settle(page)
        pages.append(context)
        return page

    yield opened
    for context in pages:
        context.close()
    assert not wrong


def settle(page):
    """What has just appeared listens only a moment later, sooner than people but not than tests."""
    page.wait_for_timeout(200)
    page.evaluate("() => new Promise((r) => requestIdleCallback(() => requestIdleCallback(r)))")


def show(page, tab, words=EN):
    page.get_by_role("tab", name=words(f"{tab}.tab"), exact=True).click()
    settle(page)


def unfold(page, label):
    page.get_by_text(label, exact=True).locator("visible=true").click()
    settle(page)


def write(page, place, text):
    page.locator(f"#{place} textarea, #{place} input").first.fill(text)


def run(page, tab, wait_for):
    page.locator(f"#{tab}-run").click()
    page.wait_for_selector(f"#{tab}-shown {wait_for}")


def choose(page, tab, name):
    page.locator(f"#{tab}-model input").click()
    page.get_by_role("option", name=name, exact=True).click()


def texts(page, selector):
    return [each.strip() for each in page.locator(selector).all_inner_texts()]


def bars(page, tab):
    """Name and percentage of each bar."""
    rows = f"#{tab}-shown .tv-bars li"
    return list(zip(texts(page, f"{rows} .tv-name"), texts(page, f"{rows} .tv-share")))


def set_number(page, place, value):
    box = page.locator(f"#{place} input[type=number]").first
    box.fill(str(value))
    box.blur()
    assert float(box.input_value()) == value


def test_a_text_is_continued_with_the_probability_of_each_token(visit, models):
    page = visit()
    unfold(page, EN("settings"))
    set_number(page, "continue-length", 23)
    set_number(page, "continue-temperature", 0.75)
    set_number(page, "continue-top-k", 7)
    set_number(page, "continue-seed", 11)
    prompt = "The <b>weather</b> 今"
    write(page, "continue-prompt", prompt)
    page.locator("#continue-run").click()
    done = page.get_by_text(re.compile(r"23 tokens, \d+ a second; as long as asked for"))
    done.wait_for()
    sampling = Sampling(temperature=0.75, top_k=7)
    with models.use("decoder") as lm:
        engine = lm.engine(rows=1)
        text = engine.add(prompt, max_new_tokens=23, sampling=sampling, seed=11, top_logprobs=5)
        while text.finish is None:
            engine.step()
        plain = lm.generate(prompt, max_new_tokens=23, temperature=0.75, top_k=7, seed=11)
    tokens = page.locator("#continue-shown .tv-token")
    assert tokens.count() == 23
    shown = page.locator("#continue-shown").evaluate(
        "(e) => [...e.querySelectorAll('.tv-prompt, .tv-token')]"
        ".map((each) => each.firstChild?.nodeType === 3 ? each.firstChild.data : '').join('')"
    )
    assert shown == prompt + plain == prompt + text.text
    for place in (0, 13):
        score = text.tokens[place]
        others = tokens.nth(place).locator("li")
        assert others.first.is_hidden()
        tokens.nth(place).focus()
        assert others.first.is_visible()
        told = [percent(torch.tensor(value).exp().item()) for _, value in score.top]
        assert texts(page, f"#continue-shown .tv-token >> nth={place} >> li b") == told
        share = percent(torch.tensor(score.log_probability).exp().item())
        assert tokens.nth(place).locator("em").inner_text() == share
    unfold(page, EN("continue.table"))
    page.wait_for_selector("#continue-table-shown tbody tr")
    rows = page.locator("#continue-table-shown tbody tr")
    assert rows.count() == 23
    assert rows.nth(3).locator("td").nth(1).inner_text() == visible(text.tokens[3].text)


def test_writing_stops_when_asked(visit, models, monkeypatch):
    monkeypatch.setattr(continuation, "_TURN", 0.0)
    monkeypatch.setattr(models, "pause", 0.25)
    page = visit()
    unfold(page, EN("settings"))
    set_number(page, "continue-length", 500)
    set_number(page, "continue-temperature", 1)
    set_number(page, "continue-seed", 7)
    page.locator("#continue-run").click()
    page.wait_for_selector("#continue-shown .tv-token >> nth=3", state="attached")
    page.locator("#continue-stop").dispatch_event("click")
    told = page.get_by_text(re.compile(r"\d+ tokens, \d+ a second; stopped"))
    told.wait_for()
    count = page.locator("#continue-shown .tv-token").count()
    assert 3 < count < 400
    monkeypatch.setattr(models, "pause", 0.0)
    set_number(page, "continue-length", 5)
    page.locator("#continue-run").click()
    page.get_by_text(re.compile(r"5 tokens, \d+ a second; as long")).wait_for()


def test_masks_are_filled(visit, models):
    page = visit()
    show(page, "fill")
    asked = "The [MASK] was cloudy [MASK]."
    write(page, "fill-text", asked)
    run(page, "fill", ".tv-bars >> nth=1")
    with models.use("encoder") as lm:
        both = lm.fill_mask(asked, top_k=5)
    told = [(fill.token, percent(fill.score)) for fills in both for fill in fills]
    assert bars(page, "fill") == told
    assert texts(page, "#fill-shown .tv-below") == [f.sequence for fills in both for f in fills]
    # The mask of another tokenizer is understood.
    choose(page, "fill", "gaps")
    run(page, "fill", f"h3:has-text('{EN('fill.gaps')}')")
    with models.use("gaps") as lm:
        fills = lm.fill_mask("The <mask> was cloudy <mask>.", top_k=5)
    shares = [percent(fill.score) for fill in fills]
    assert [share for _, share in bars(page, "fill")] == shares


def test_what_is_wrong_is_said_in_one_line(visit, models):
    page = visit()
    show(page, "fill")
    write(page, "fill-text", "no gap, but <b>bold</b>")
    page.locator("#fill-run").click()
    toast = page.get_by_test_id("toast-body")
    toast.get_by_text("there is no [MASK] in the text 'no gap, but <b>bold</b>'").wait_for()
    assert "Traceback" not in toast.inner_text()
    page.get_by_test_id("toast-close").click()
    write(page, "fill-text", "   ")
    page.locator("#fill-run").click()
    toast.get_by_text(EN("error.empty")).wait_for()
    told = "gone cannot be used: runs/<gone>: there is no such folder."
    assert texts(page, ".tv-broken") == [told]


def test_lines_are_translated(visit, models):
    page = visit()
    show(page, "translate")
    lines = ["The weather was cloudy", "", "Who wrote it?"]
    write(page, "translate-source", "\n".join(lines))
    unfold(page, EN("settings"))
    set_number(page, "translate-length", 9)
    set_number(page, "translate-beams", 2)
    page.locator("#translate-run").click()
    page.wait_for_function("document.querySelector('#translate-target textarea').value")
    with models.use("translator") as lm:
        beams = lm.usual_beams().__class__(num_beams=2)
        first, last = lm.translate([lines[0], lines[2]], beams=beams, max_new_tokens=9)
    assert page.locator("#translate-target textarea").input_value() == f"{first}\n\n{last}"


def test_texts_are_classified(visit, models):
    page = visit()
    show(page, "classify")
    write(page, "classify-text", SENTENCE)
    write(page, "classify-pair", "the notes were longer")
    run(page, "classify", ".tv-bars")
    with models.use("classifier") as lm:
        found = lm.classify(SENTENCE, "the notes were longer")
    assert bars(page, "classify") == [(k, percent(v)) for k, v in found.scores.items()]
    # One that is cut is classified with a warning.
    write(page, "classify-text", f"{SENTENCE} " * 13)
    page.locator("#classify-run").click()
    page.get_by_test_id("toast-body").get_by_text(EN("warning.cut", limit=61)).wait_for()


def test_words_are_tagged(visit, models):
    page = visit()
    show(page, "tag")
    write(page, "tag-text", f"{SENTENCE} & <i>today</i>")
    run(page, "tag", ".tv-tagged")
    with models.use("tagger") as lm:
        tagged = lm.tag(f"{SENTENCE} & <i>today</i>")
    parts = [(kind, [each.word for each in of]) for kind, of in chunks(tagged) if kind]
    assert parts
    shown = [text.split() for text in texts(page, "#tag-shown mark")]
    assert shown == [[*words, kind] for kind, words in parts]
    unfold(page, EN("tag.table"))
    page.wait_for_selector("#tag-table-shown tbody tr")
    cells = [row.split("\t") for row in texts(page, "#tag-table-shown tbody tr")]
    assert cells == [[each.word, each.tag, percent(each.score)] for each in tagged]


def chunks(tagged):
    """Tags in the IOB form as chunks, written anew."""
    found = []
    for each in tagged:
        mark, kind = each.tag[0], each.tag[2:]
        if mark == "I" and found and found[-1][0] == kind:
            found[-1][1].append(each)
        else:
            found.append((kind, [each]))
    return found


def test_questions_are_answered(visit, models):
    page = visit()
    show(page, "answer")
    context = "Ada Lovelace wrote notes on the engine; the notes were longer."
    write(page, "answer-question", "Who wrote it?")
    write(page, "answer-context", context)
    run(page, "answer", ".tv-bars")
    with models.use("reader") as lm:
        answers = lm.answer("Who wrote it?", context, top_k=3)
    assert bars(page, "answer") == [(each.text, percent(each.score)) for each in answers]
    assert texts(page, "#answer-shown mark") == [answers[0].text]
    assert texts(page, ".tv-context") == [context]


def test_tokenizers_stand_side_by_side(visit, models):
    page = visit()
    show(page, "tokenizers")
    text = "The weather 今天 ☃ was <cloudy>"
    write(page, "tokenizers-text", text)
    run(page, "tokenizers", ".tv-card")
    names = texts(page, ".tv-card h3")
    assert names == [name for name in LOADERS if name != "gone"][:6]
    for number, name in enumerate(names):
        with models.use(name) as lm:
            encoding = lm.text_tokenizer.encode(text, add_special_tokens=False)
        card = page.locator(".tv-card").nth(number)
        count, size = len(encoding.ids), len(text.encode())
        assert card.locator(".tv-figures b").all_inner_texts()[:2] == [
            str(count),
            f"{size / count:.2f}",
        ]
        assert card.locator(".tv-chip").count() == count
        titles = [f"{t} ({i})" for t, i in zip(encoding.tokens, encoding.ids)]
        chips = card.locator(".tv-chip").evaluate_all("(all) => all.map((one) => one.title)")
        assert chips == titles
        joined = card.locator(".tv-chips").inner_text().replace("·", "").replace("␣", "")
        assert joined.split() == text.split()


def heat(page):
    """The numbers of the picture, row by row."""
    return torch.tensor(
        page.locator("#attention-shown tbody").evaluate(
            "(body) => [...body.rows].map((row) => "
            "[...row.querySelectorAll('td')].map((cell) => parseFloat(cell.dataset.v)))"
        )
    )


def test_attention_of_any_layer_and_head(visit, models):
    page = visit()
    show(page, "attention")
    choose(page, "attention", "encoder")
    write(page, "attention-text", SENTENCE)
    run(page, "attention", ".tv-heat")
    with models.use("encoder") as lm:
        ids = document_ids(lm.text_tokenizer, SENTENCE)
        found = attention_weights(lm.module, torch.tensor([ids])).encoder
    torch.testing.assert_close(heat(page), found[0][0].mean(0), atol=6e-5, rtol=0)
    set_number(page, "attention-layer", 2)
    set_number(page, "attention-head", 3)
    wanted = found[1][0, 2]
    first = f"{wanted[0, 0].item():.4f}"
    page.wait_for_selector(f"#attention-shown tbody tr:first-child td[data-v='{first}']")
    torch.testing.assert_close(heat(page), wanted, atol=6e-5, rtol=0)
    page.locator("#attention-shown tbody tr").nth(1).locator("td").nth(2).click()
    line = page.locator("#attention-shown .tv-said").inner_text()
    assert line.endswith(f"{100 * round(wanted[1, 2].item(), 4):.1f}%")
    assert f" {EN('attention.said')} " in line


def test_attention_of_a_decoder_to_an_encoder(visit, models):
    page = visit()
    show(page, "attention")
    choose(page, "attention", "translator")
    write(page, "attention-text", "Who wrote the notes?")
    write(page, "attention-target", "Ada")
    run(page, "attention", ".tv-heat")
    page.get_by_label(EN("attention.cross")).check()
    with models.use("translator") as lm:
        source = document_ids(lm.text_tokenizer, "Who wrote the notes?")
        told = [0, *lm.text_tokenizer.encode("Ada", add_special_tokens=False).ids]
        found = attention_weights(
            lm.module, torch.tensor([source]), decoder_input_ids=torch.tensor([told])
        ).cross
    page.wait_for_function(
        f"document.querySelectorAll('#attention-shown tbody tr').length === {len(told)}"
    )
    torch.testing.assert_close(heat(page), found[0][0].mean(0), atol=6e-5, rtol=0)
    write(page, "attention-text", "notes " * 99)
    page.locator("#attention-run").click()
    page.get_by_test_id("toast-body").get_by_text("too many for a picture").wait_for()


def test_curves_of_runs_grow_while_one_trains(visit, runs_folder):
    page = visit()
    show(page, "runs")
    table = "#runs-shown .tv-table tbody tr"
    page.wait_for_selector(table)
    rows = {row.partition(" ")[0].split("\t")[0]: row.split("\t") for row in texts(page, table)}
    assert set(rows) == {"first", "second"}
    assert rows["first"][1:5] == ["30", "3000", "3.7500", "3.5000"]
    assert rows["second"][4] == "2.1250"
    assert page.locator("#runs-shown svg.narrow .line").count() == 4
    write_run(runs_folder / "second", [6.0, 2.125, 1.0625])
    page.get_by_role("cell", name="1.0625").wait_for()
    assert page.get_by_text("second (live)").count() == 1
    page.get_by_label(EN("runs.seconds")).check()
    page.locator("#runs-shown svg[aria-label$='over seconds']").first.wait_for(state="attached")


def test_other_routes_stay_and_nothing_may_be_fetched_elsewhere(browser, address):
    context = browser.new_context()
    assert context.request.get(f"{address}healthz").json() == "well"
    for path in ("", "zh/"):
        found = context.request.get(address + path)
        assert found.ok
        policy = found.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "http" not in policy
        assert "googleapis" not in found.text()
    for path in ("upload", "file=/etc/passwd", "proxy=https://example.org/", "vibe-code"):
        for prefix in ("", "zh/"):
            address_there = f"{address}{prefix}gradio_api/{path}"
            assert context.request.get(address_there).status == 404
            assert context.request.post(address_there).status == 404
    context.close()


def test_a_chinese_browser_reads_chinese_and_may_choose(visit):
    page = visit(locale="zh-CN")
    page.wait_for_url("**/zh/")
    page.wait_for_selector("#tv-tabs button[role=tab]")
    settle(page)
    assert texts(page, "#tv-tabs button[role=tab]") == [ZH(f"{tab}.tab") for tab in TABS]
    show(page, "classify", ZH)
    page.locator("#classify-run").click()
    page.get_by_test_id("toast-body").get_by_text(ZH("error.empty")).wait_for()
    page.get_by_test_id("toast-close").click()
    page.get_by_role("link", name="English").click()
    page.get_by_role("tab", name=EN("fill.tab")).wait_for()
    page.reload()
    page.get_by_role("tab", name=EN("fill.tab")).wait_for()
    assert "/zh" not in page.url


@pytest.mark.parametrize("path", ["", "zh/"])
def test_every_tab_fits_a_phone(visit, path, monkeypatch):
    monkeypatch.setattr(secrets, "randbits", lambda _: 3)  # a drawn text may be empty
    words = ZH if path else EN
    page = visit(path, width=390)
    wide = "document.documentElement.scrollWidth - window.innerWidth"
    for tab in TABS:
        show(page, tab, words)
        if tab in ("tokenizers", "attention", "fill", "continue"):
            marks = {"tokenizers": ".tv-card", "attention": ".tv-heat", "fill": ".tv-bars"}
            run(page, tab, marks.get(tab, ".tv-token"))
        elif tab == "runs":
            page.wait_for_selector("#runs-shown .tv-table")
        assert page.evaluate(wide) <= 0, tab
        page.screenshot()
