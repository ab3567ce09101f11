"""The pieces of the playground that need no browser."""

from __future__ import annotations

import ast
import os
import re
import threading
import time
import warnings
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
from fastapi import FastAPI
from playground_models import LOADERS, classifier, decoder

import trivium.serve.playground
from trivium.errors import SpecError, TriviumError
from trivium.inference.tag import Tagged
from trivium.language_model import LanguageModel
from trivium.serve.playground import LoadedModels, ModelCard, mount
from trivium.serve.playground.asking import MOST_CHARACTERS, plainly, whole_number, written
from trivium.serve.playground.heat import LEVELS, heat_map
from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.filling import with_own_mask
from trivium.serve.playground.tabs.runs import run_names
from trivium.serve.playground.tabs.tagging import chunks
from trivium.serve.playground.words import LANGUAGES, Words, _read

FOLDER = Path(trivium.serve.playground.__file__).parent
WORDS = Words("en")


def literals() -> tuple[set[str], list[re.Pattern[str]]]:
    """Strings in the code, and those with places in them as patterns."""
    plain, patterns = set(), []
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                plain.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[\w-]+"
                    for part in node.values
                ]
                patterns.append(re.compile("".join(parts)))
    return plain, [each for each in patterns if r"\." in each.pattern]


def test_every_word_is_there_in_both_languages_and_used():
    plain, patterns = literals()
    texts = _read()
    for key, found in texts.items():
        assert len(found) == len(LANGUAGES), key
        assert all(text.strip() for text in found), key
        places = [sorted(re.findall(r"{(\w+)}", text)) for text in found]
        assert places[0] == places[1], key
        assert key in plain or any(each.fullmatch(key) for each in patterns), f"{key} is not used"
    code = "\n".join(file.read_text("utf-8") for file in FOLDER.rglob("*.py"))
    asked = set(re.findall(r'words\(\s*"([\w.-]+)"', code))
    assert len(asked) > 60
    assert not asked - texts.keys()


def test_chinese_is_chinese():
    same = {key for key, (english, chinese) in _read().items() if english == chinese}
    assert same == {"continue.top-k", "continue.top-p", "continue.min-p"}


def test_a_model_is_loaded_once_and_lent_to_one_at_a_time():
    made, inside, most = [], [], []

    def load() -> LanguageModel:
        made.append(time.sleep(0.05))
        return decoder()

    models = LoadedModels({"one": load})

    def borrow() -> None:
        with models.use("one"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=borrow) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert most == [1] * 5


def test_an_error_gives_the_model_back():
    models = LoadedModels({"one": decoder})
    for _ in range(2):
        with pytest.raises(SpecError), models.use("one") as lm:
            lm.classify("a")


def test_what_models_can_do_decides_where_they_are_shown():
    shown = Shown.of(LoadedModels(LOADERS))
    assert shown.that_can("generate") == ["decoder", "translator", "gaps"]
    assert shown.that_can("fill_mask") == ["encoder", "translator", "gaps"]
    assert shown.that_can("classify") == ["classifier"]
    assert shown.broken == {"gone": "runs/<gone>: there is no such folder."}
    assert shown.that_attend() == [name for name in LOADERS if name != "gone"]
    model = classifier()
    silent = LanguageModel(model.spec, model.module)
    bare = Shown.of(LoadedModels({"bare": lambda: silent}))
    assert ModelCard.of(silent).tokenizer is None
    assert [bare.that_can("classify"), bare.that_attend(), bare.tokenizers()] == [[], [], {}]


def test_a_server_without_models_still_has_a_page():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app = mount(FastAPI(), {})
    assert [getattr(route, "path", None) for route in app.routes][-2:] == ["/zh", ""]


def test_errors_become_a_line_without_html():
    def fails(error: Exception):
        def function() -> str:
            raise error

        return function

    with pytest.raises(gr.Error) as told:
        plainly(fails(TriviumError("no <mask> here")), WORDS)()
    assert told.value.message == "no &lt;mask&gt; here"
    with pytest.raises(gr.Error) as told:
        plainly(fails(RuntimeError("secret/path")), WORDS)()
    assert told.value.message == WORDS("error.unexpected").replace("'", "&#x27;")

    def pieces():
        yield 1
        raise TriviumError("late")

    found = plainly(pieces, WORDS)()
    assert next(found) == 1
    with pytest.raises(gr.Error):
        next(found)


def test_what_is_written_is_checked():
    assert written(" a ", WORDS) == " a "
    for nothing in ("", None, " \n"):
        with pytest.raises(TriviumError, match="no text yet"):
            written(nothing, WORDS)
    with pytest.raises(TriviumError, match="20001 characters"):
        written("a" * (MOST_CHARACTERS + 1), WORDS)
    assert [whole_number(v, 1, 7) for v in (None, -3, 2.4, 99)] == [1, 1, 2, 7]


def test_tags_make_chunks():
    def parts(*tags: str) -> list[tuple[str, int]]:
        found = chunks([Tagged("w", tag, 0.5) for tag in tags])
        return [(kind, len(of)) for kind, of in found]

    assert parts("O", "O", "B-X", "I-X", "B-X", "I-Y", "O") == [
        *(("", 2), ("X", 2), ("X", 1), ("Y", 1), ("", 1))
    ]
    assert parts("NOUN", "NOUN", "B-", "I") == [("NOUN", 1), ("NOUN", 1), ("B-", 1), ("I", 1)]
    assert parts() == []


def test_a_mask_of_another_tokenizer_is_rewritten():
    models = LoadedModels(LOADERS)
    with models.use("gaps") as lm:
        tokenizer = lm.text_tokenizer
    assert with_own_mask("a [MASK] b", tokenizer) == "a <mask> b"
    assert with_own_mask("a [MASK] <mask>", tokenizer) == "a [MASK] <mask>"
    with models.use("decoder") as lm:
        assert with_own_mask("a [MASK]", lm.text_tokenizer) == "a [MASK]"


def test_the_picture_of_attention():
    weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    html = heat_map(["<s>", "b"], ["<s>", "b"], weights, verb="at", note="n")
    assert re.findall(r'class="a(\d+)" data-v="([\d.]+)"', html) == [
        *((str(LEVELS), "1.0000"), ("0", "0.0000")),
        *(("10", "0.2500"), ("18", "0.7500")),
    ]
    assert "<s>" not in html.replace("&lt;s&gt;", "")


def test_runs_in_a_folder(tmp_path):
    assert run_names(tmp_path) == []
    for number, name in enumerate(("old", "new")):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "metrics.jsonl"
        path.write_text("{}\n")
        os.utime(path, (1000 + number, 1000 + number))
    (tmp_path / "no-run").mkdir()
    assert run_names(tmp_path) == ["new", "old"]
    assert run_names(tmp_path / "old") == ["."]
