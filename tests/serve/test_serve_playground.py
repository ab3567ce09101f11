"""The playground: its functions by themselves, its page over HTTP, and all of it in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from serving import check_error, running

gr = pytest.importorskip("gradio")

from trivium.data.prepare import prepare  # noqa: E402
from trivium.explain import explain, get_topic_summary  # noqa: E402
from trivium.explain.attended_text import AttentionMap  # noqa: E402
from trivium.inference.sampling_params import SamplingParams  # noqa: E402
from trivium.language_model import LanguageModel  # noqa: E402
from trivium.model_loading import load  # noqa: E402
from trivium.serve.models import ModelRegistry  # noqa: E402
from trivium.serve.playground import _THEME, _describe_model, build_page  # noqa: E402
from trivium.serve.playground.attention_tab import (  # noqa: E402
    _make_shaded_table,
    compute_batch_attention_maps,
)
from trivium.serve.playground.examples import Examples, find_validation_texts  # noqa: E402
from trivium.serve.playground.tabs import _make_sampling_controls, escape_token, format_percent  # noqa: E402
from trivium.serve.playground.texts import LANGUAGES  # noqa: E402
from trivium.text import Tokenizer  # noqa: E402

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
TABS = {
    "Chat": "对话",
    "Generate": "生成",
    "Fill masks": "填空",
    "Translate": "翻译",
    "Classify": "分类",
    "Tag": "标注",
    "Answer": "问答",
    "Tokenizers": "分词器",
    "Attention": "注意力",
    "Learn": "学习",
    "Runs": "训练记录",
}
SENTENCE = "The weather was cloudy yesterday."
CHINESE_TEXT = "今天的天气很好。昨天的天气也很好。"
ENGLISH = SimpleNamespace(headers={"accept-language": "en-US,en"})
CHINESE = SimpleNamespace(headers={"accept-language": "zh-CN"})
# Gradio counts its events with pandas in ways that newer versions deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting"),
    pytest.mark.filterwarnings("ignore:The copy keyword is deprecated"),
]


def write_run(folder, losses):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"step": 10 * n, "tokens": 1000 * n, "seconds": n / 2, "valid_loss": loss})
        for n, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step"')  # being written


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first", [5.0, 4.0, 3.5])
    return folder


def registry_of(paths):
    """A registry in which texts wait for no server; to be closed."""
    return ModelRegistry(paths, load=lambda path: load(path, device="cpu"))


@pytest.fixture(scope="module")
def functions(paths, runs_folder):
    """The page's functions by name, called as Gradio calls them."""
    registry, loop = registry_of(paths), asyncio.new_event_loop()

    async def build():
        return build_page(registry, runs_folder)

    page = loop.run_until_complete(build())
    handlers = {fn.name: fn.fn for fn in page.fns.values() if fn.fn is not None}

    def call(name, *arguments):
        result = handlers[name](*arguments)

        async def answer():
            if hasattr(result, "__aiter__"):
                return [each async for each in result][-1]
            return await result if asyncio.iscoroutine(result) else result

        return loop.run_until_complete(answer())

    yield call
    registry.close()
    loop.close()


def test_the_settings_of_generation_start_as_those_of_the_command():
    controls = _make_sampling_controls()
    assert (controls["temperature"].value, controls["top_k"].value) == ("0.8", "")
    descriptions = {o.name: o.metadata["description"] for o in dataclasses.fields(SamplingParams)}
    for name in controls:
        assert LANGUAGES[0][f"option.{name}"] == descriptions[name]


def compute_contrast(first, second):
    """The contrast of two colours, channels from 0 to 255, as WCAG 2 defines it."""
    luminances = []
    for color in (first, second):
        channels = [one / 255 for one in color]
        light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminances.append(0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def find_color(name):
    """The channels of a colour of the theme."""
    shade = getattr(_THEME, name).removeprefix("*")
    return [int(getattr(_THEME, shade)[i : i + 2], 16) for i in (1, 3, 5)]


def test_text_has_enough_contrast():
    """WCAG 2, level AA: 4.5 at least."""
    white = (255, 255, 255)
    for name in ("", "_dark", "_hover", "_hover_dark"):
        assert compute_contrast(white, find_color(f"button_primary_background_fill{name}")) >= 4.5
    for name in ("body_text_color_subdued", "input_placeholder_color"):
        assert compute_contrast(white, find_color(name)) >= 4.5
        background = find_color("input_background_fill_dark")
        assert compute_contrast(background, find_color(f"{name}_dark")) >= 4.5


def test_attention_weights_of_one_have_enough_contrast():
    """Text on the darkest cells, in the light and in the dark scheme."""
    weights = np.eye(2)[None, None]
    table = _make_shaded_table(AttentionMap(["a", "b"], ["a", "b"], weights), 1, 1)
    *blue, alpha = map(float, re.findall(r"[\d.]+", re.findall(r"rgba(.*?)\)", table.to_html())[0]))
    for scheme in ("", "_dark"):
        text, paper = find_color(f"body_text_color{scheme}"), (255, 255, 255)
        if scheme:
            paper = find_color("background_fill_primary_dark")
        cell = [alpha * above + (1 - alpha) * below for above, below in zip(blue, paper)]
        assert compute_contrast(text, cell) >= 4.5


def test_a_second_tokenizer_is_described_only_where_there_is_one(paths):
    registry = registry_of(paths)
    try:
        named = {
            model.name: "source tokenizer" in _describe_model(model, ENGLISH)  # type: ignore[arg-type]
            for model in registry
        }
    finally:
        registry.close()
    assert named == {name: name == "translator" for name in named}
    assert {"encoder", "decoder", "translator"} <= named.keys()


def test_a_text_is_continued_with_probabilities(functions, models):
    options = ["0", *[""] * 9]  # temperature 0; the others empty
    pieces, plain, table = functions("generate", "decoder", SENTENCE, 7, ENGLISH, *options)
    (prompt, none), *tokens = pieces
    assert (prompt, none) == (SENTENCE, None)
    assert len(table) == 7
    output = models["decoder"].generate(SENTENCE, max_new_tokens=7, temperature=0.0)
    assert "".join(token for token, _ in tokens) == escape_token(output)
    assert plain == SENTENCE + output
    shares = [float(share.rstrip("%")) / 100 for share in table["Probability"]]
    expected = [1 - math.log(share) / math.log(1e-4) for share in shares]
    # Tokens that are parts of one character are shown as one, with the product of probabilities.
    assert sum(1 - shade for _, shade in tokens) == pytest.approx(7 - sum(expected), abs=0.07)
    assert len(tokens) <= 7
    assert list(table.columns) == ["Token", "Probability", "Most probable tokens"]
    request = models["decoder"].tokenizer.encode(SENTENCE).ids
    best = models["decoder"].logits([list(request)])[0, -1].softmax(-1).max()
    assert table["Probability"][0] == format_percent(float(best))
    pieces, plain, _ = functions("generate", "translator", SENTENCE, 7, ENGLISH, *options)
    output = models["translator"].generate(SENTENCE, max_new_tokens=7, temperature=0.0)
    assert "".join(token for token, _ in pieces) == escape_token(
        output
    )  # it does not continue its source
    with pytest.raises(gr.Error, match="no text yet"):
        functions("generate", "decoder", "", 7, ENGLISH, *options)
    with pytest.raises(gr.Error, match="还没有文本"):
        functions("fill-mask", "encoder", CHINESE, "", 3)


@pytest.mark.filterwarnings("ignore:a text ends at its limit")
def test_every_tab_shows_what_the_model_gives(functions, models):
    masked = "The [MASK] was <b>."
    table = functions("fill-mask", "encoder", CHINESE, masked, 3)
    expected = models["encoder"].fill_mask(masked, top_k=3)
    assert list(table["词元"]) == [fill.token for fill in expected]
    assert list(table["每词元概率"]) == [format_percent(fill.score) for fill in expected]
    with pytest.raises(gr.Error, match=r"there is no \[MASK\].*&lt;b&gt;"):
        functions("fill-mask", "encoder", ENGLISH, "<b>", 3)

    lines = functions("translate", "translator", ENGLISH, f"{SENTENCE}\n\ntoday", 2)
    first, last = models["translator"].translate([SENTENCE, "today"], num_beams=2)
    assert lines == f"{first}\n{last}"

    scores = functions("classify", "classifier", ENGLISH, SENTENCE, "today")
    assert scores == pytest.approx(
        models["classifier"].classify(SENTENCE, "today").scores, abs=1e-5
    )

    spans, words = functions("tag", "tagger", ENGLISH, SENTENCE)
    assert "".join(text for text, _ in spans) == SENTENCE
    assert list(words["Tags"]) == [word.tag for word in models["tagger"].tag(SENTENCE)]

    marked, answers = functions("answer", "reader", ENGLISH, "Where?", SENTENCE, 3)
    best, *_ = models["reader"].answer("Where?", SENTENCE, top_k=3)
    assert "".join(text for text, _ in marked) == SENTENCE
    assert [text for text, mark in marked if mark] == ([best.text] if best.text else [])
    assert len(answers) == 3

    figures, *shown = functions("compare_tokenizers", SENTENCE, ENGLISH)
    equal = [name for names in figures["Model"] for name in names.split(", ")]
    assert len(equal) == 10 > len(figures) == len(shown)
    assert {"translator (source)", "translator (target)"} < {*equal}
    ids = models["decoder"].tokenizer.encode(SENTENCE).ids
    assert next(iter(figures["Tokens"])) == len(shown[0]) == len(ids)


def test_translation_begins_with_a_model_that_learned_it(paths, tmp_path):
    lm = load(paths["translator"], device="cpu")
    lm.settings = lm.settings.with_task("translation", prefix="")
    tuned = str(lm.save(tmp_path / "tuned", overwrite=True))
    registry = registry_of({"pretrained": paths["translator"], "tuned": tuned})

    async def build():
        return build_page(registry, None)

    blocks = asyncio.run(build()).blocks.values()
    chosen = {block.elem_id: block.value for block in blocks if isinstance(block, gr.Dropdown)}
    registry.close()
    assert (chosen["translate-model"], chosen["completions-model"]) == ("tuned", "pretrained")


def test_a_second_text_is_shown_for_models_that_read_one(paths, tmp_path):
    lm = load(paths["classifier"], device="cpu")
    saved = {"unknown": paths["classifier"]}
    for pairs in (False, True):
        lm.settings = lm.settings.with_task("classification", pairs=pairs)
        saved[f"{pairs}"] = str(lm.save(tmp_path / str(pairs)))
    for name, is_shown in (("unknown", True), ("False", False), ("True", True)):
        registry = registry_of({name: saved.pop(name), **saved})

        async def build(registry=registry):
            return build_page(registry, None)

        blocks = asyncio.run(build()).blocks.values()
        (box,) = (block for block in blocks if block.elem_id == "classify-pair")
        assert box.get_config()["visible"] == is_shown
        registry.close()


def test_a_conversation_goes_on(functions, models):
    shown, box = functions("chat", [], "decoder", "Hi", ENGLISH)
    assert (shown[0], shown[1]["role"], box) == ({"role": "user", "content": "Hi"}, "assistant", "")
    parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in shown]
    longer, _ = functions("chat", parts, "decoder", "again", ENGLISH)
    assert longer[:2] == shown
    assert [turn["role"] for turn in longer] == ["user", "assistant"] * 2
    with pytest.raises(gr.Error, match="no text yet"):
        functions("chat", [], "decoder", " ", ENGLISH)


def test_examples_are_in_the_language_of_the_model(paths, tmp_path):
    chinese = Tokenizer.train("byte-bpe", texts=[CHINESE_TEXT] * 5, vocab_size=300, progress=False)
    lm = load(paths["plain"], device="cpu")
    folder = LanguageModel(lm.spec, lm.module, chinese).save(tmp_path / "chinese")
    unigram = Tokenizer.train(  # long texts that it does not know are one <unk>
        "unigram",
        texts=[f"a few {SENTENCE}"] * 3,
        vocab_size=110,
        special_tokens=["<unk>"],
        progress=False,
    )
    assert unigram.encode("昨天的天气很好。").ids.count(unigram.unk_id) == 1
    without = LanguageModel(lm.spec, lm.module, unigram).save(tmp_path / "without")
    registry = registry_of(
        {"chinese": str(folder), "english": paths["tagger"], "without": str(without)}
    )

    def example(name):
        return Examples(registry, {name: registry.get_model(name).load_outline()})("completions")

    assert example("chinese") == "今天的天气"
    assert example("english") == "The weather was"
    assert example("without") == "The weather was"


def test_a_run_has_examples_of_its_own(tmp_path):
    (tmp_path / "predictions.jsonl").write_text('{"source": "Please sit down.", "target": "..."}\n')
    assert find_validation_texts(tmp_path)["text"] == "Please sit down."
    (tmp_path / "corpus.txt").write_text("the cat sat on the mat\n\nthe dog sat on the cat")
    tokenizer = Tokenizer.train("byte-bpe", texts=["the cat sat"], vocab_size=260, progress=False)
    prepare(tmp_path / "corpus.txt", tokenizer, tmp_path / "shards")
    texts = find_validation_texts(tmp_path)
    assert texts["text"] == "Please sit down."
    assert texts["completions"] == "Please sit down."
    assert texts["fill-mask"] == "the cat sat [MASK] the mat"


def test_attention_of_every_kind(functions, models):
    lm = models["translator"]
    (found,) = compute_batch_attention_maps(lm, [(SENTENCE, "it")])
    assert {*found} == {"encoder", "decoder", "cross"}
    source = list(lm.source_tokenizer.encode(SENTENCE).ids)
    target = [0, *lm.text_tokenizer.encode("it").ids]
    expected = lm.attention_weights([source], decoder_input_ids=[target]).cross
    cross = torch.from_numpy(found["cross"].weights)
    torch.testing.assert_close(cross, torch.stack([layer[0] for layer in expected]))
    table = functions("show_weights", "translator", SENTENCE, "it", "cross", 2, 1, ENGLISH)
    assert table.data.shape == (len(target), len(source) + 1)
    assert float(table.data.iloc[1, 2]) == pytest.approx(float(cross[1, 0, 1, 1]))
    (generated,) = compute_batch_attention_maps(lm, [("today", "")])
    assert {*generated} == {*found}
    table = functions("show_weights", "encoder", SENTENCE, "", "cross", 1, 0, ENGLISH)
    ids = models["encoder"].tokenizer.encode(SENTENCE).ids
    assert table.data.shape == (len(ids), len(ids) + 1)
    with pytest.raises(gr.Error, match="there are only 2 layers"):
        functions("show_weights", "encoder", SENTENCE, "", "cross", 9, 0, ENGLISH)
    with pytest.raises(gr.Error, match="fit in a figure"):
        functions("show_weights", "decoder", SENTENCE * 20, "", "decoder", 1, 0, ENGLISH)


def test_a_topic_explains_a_text_in_the_language_of_the_page(functions):
    page = functions("show_topic", "bpe", "the car\nthe cat\n", CHINESE)
    assert page == explain("bpe", ["the car", "the cat"]).html("zh", whole=False)
    assert "<html" not in page
    row, words, page = functions("choose_topic", "norm", ENGLISH)
    assert (row.visible, words) == (False, "")
    assert page == explain("norm").html("en", whole=False)
    assert functions("choose_topic", "bytes", ENGLISH)[0].visible
    names = dict(functions("fill_menu", CHINESE).choices)
    assert f"bpe: {get_topic_summary('bpe').zh}" in names
    with pytest.raises(gr.Error, match="at most 1,000"):
        functions("show_topic", "bytes", "a" * 1001, ENGLISH)


def test_the_curves_of_runs_grow(paths, runs_folder):
    from trivium.serve.playground.runs import list_runs

    assert list_runs(runs_folder) == ["first"]

    async def build():
        return build_page(registry_of({}), runs_folder)

    page = asyncio.run(build())
    (draw,) = (fn.fn for fn in page.fns.values() if fn.name == "update_plots")
    chosen, valid, train, now = draw([], "step", None)
    assert chosen.value == ["first"]
    assert (len(valid["valid_loss"]), train["train_loss"].count()) == (3, 0)
    assert all("__type__" in each for each in draw(["first"], "step", now))  # nothing new
    write_run(runs_folder / "second", [6.0, 2.125])
    chosen, valid, *_ = draw(["first", "second", "gone"], "seconds", now)
    assert set(chosen.value) == {"first", "second"}
    assert list(valid["x"]) == [0.0, 0.5, 1.0, 0.0, 0.5]
    *_, now = draw(["first", "second"], "step", now)
    write_run(runs_folder / "second", [6.0, 2.125, 2.0])
    _, valid, *_ = draw(["first", "second"], "step", now)
    assert list(valid["valid_loss"]) == [5.0, 4.0, 3.5, 6.0, 2.125, 2.0]
    chosen, *_ = draw([], "step", None)
    assert len(chosen.value) == 1  # of other runs the losses may not compare


def test_the_page_is_closed_to_other_sites_and_files(paths, runs_folder):
    """And it shows no tab that no served model could do."""
    with running({"tagger": paths["tagger"]}, playground=True) as server:
        page = server.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "http" not in policy
        assert "googleapis" not in page.text
        assert '"tag-run"' in page.text
        for absent in ("completions-run", "fill-mask-run", "runs-valid_loss"):
            assert absent not in page.text
        for path in ("upload", "file=/etc/passwd", "proxy=https://example.org/"):
            address = f"{server.url}/gradio_api/{path}"
            check_error(httpx.get(address), 404)
            check_error(httpx.post(address), 404)
        for path in ("nothing", "gradio_api/nothing", "assets/nothing.js"):
            check_error(server.get(f"/{path}"), 404)
        assert server.get("/healthz").json()["status"] == "ok"


def test_the_page_takes_its_address_from_the_browser(paths):
    """And not from Host, which a proxy may set: by a flag that Gradio's page reads for Colab."""
    registry = registry_of({"tagger": paths["tagger"]})

    async def build():
        return build_page(registry, None)

    assert asyncio.run(build()).get_config_file()["is_colab"] is True
    scripts = (Path(gr.__file__).parent / "templates" / "frontend" / "assets").glob("index-*.js")
    reads = re.compile(r"location\.href,\w+\.is_colab")
    assert any(reads.search(each.read_text("utf-8")) for each in scripts)
    registry.close()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium to show the page in")
def test_the_page_in_a_browser(paths, models, runs_folder):
    sync_api = pytest.importorskip("playwright.sync_api")
    wrong = []
    with (
        running({"tag": paths["tagger"], **paths}, playground=True, runs=runs_folder) as server,
        sync_api.sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])

        def visit(locale, width):
            viewport = {"width": width, "height": 900}
            page = browser.new_context(viewport=viewport, locale=locale).new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on(
                "request",
                lambda request: (
                    request.url.startswith((server.url, "data:", "blob:"))
                    or wrong.append(request.url)
                ),
            )
            page.goto(server.url)
            page.get_by_role("tab").first.wait_for()
            page.wait_for_timeout(1000)
            return page

        def run(page, tab, name):
            page.get_by_role("tab", name=tab, exact=True).click()
            page.wait_for_timeout(500)
            for box in ("text", "question", "context"):
                field = page.locator(f"#{name}-{box} textarea, #{name}-{box} input")
                if field.count() and not field.first.input_value():
                    field.first.fill(SENTENCE)
            page.locator(f"#{name}-run").click()

        def seen(page, place, text):
            page.locator(place).get_by_text(text).locator("visible=true").first.wait_for()

        page = visit("en-US", 1280)
        tabs = [each.strip() for each in page.get_by_role("tab").all_inner_texts()]
        assert tabs == list(TABS)
        seen(page, "#chat-shown", "How is the weather?")  # without a click
        page.get_by_role("tab", name="Tag", exact=True).click()
        seen(page, "#tag-table", "Lovelace")
        assert page.locator("#tag-model input").input_value() == "tag"  # no text of the page
        run(page, "Fill masks", "fill-mask")
        best = models["encoder"].fill_mask("The [MASK] was cloudy yesterday.")[0]
        seen(page, "#fill-mask-table", format_percent(best.score))
        page.locator("#fill-mask-text textarea").fill("no mask")
        page.locator("#fill-mask-run").click()  # what was there is no answer to this
        page.locator("#fill-mask-table").get_by_text("%").first.wait_for(state="detached")
        run(page, "Classify", "classify")
        label = models["classifier"].classify(SENTENCE).label
        seen(page, "#classify-shown", label)
        run(page, "Generate", "completions")
        seen(page, "#completions-table", "%")
        page.get_by_text("Settings").first.click()  # fields that are empty send no 0
        page.locator("#completions-temperature textarea, #completions-temperature input").fill(
            "0.7"
        )
        run(page, "Generate", "completions")
        seen(page, "#completions-table", "%")
        run(page, "Attention", "attention")
        seen(page, "#attention-table", "0.00")
        page.get_by_role("tab", name="Learn", exact=True).click()
        page.locator("#learn-shown .explain h1").wait_for()
        page.get_by_role("tab", name="Runs", exact=True).click()
        page.locator("#runs-valid_loss canvas, #runs-valid_loss svg").first.wait_for()
        page.get_by_role("tab", name="Translate", exact=True).click()
        page.locator("#translate-text textarea").fill("")
        message = page.get_by_test_id("toast-body")
        for _ in range(3):  # a click on a tab that is being built is lost
            page.locator("#translate-run").click()
            with contextlib.suppress(sync_api.TimeoutError):
                message.get_by_text("There is no text yet").wait_for(timeout=10_000)
                break
        assert message.get_by_role("button").count() == 1  # no button inside a button

        page = visit("zh-CN", 390)  # a phone, in Chinese
        tabs = [each.strip() for each in page.get_by_role("tab").all_inner_texts()]
        assert {*tabs} <= {*TABS.values()}
        assert tabs
        wide = "document.documentElement.scrollWidth - window.innerWidth"
        assert page.evaluate(wide) <= 0
        browser.close()
    assert not wrong
