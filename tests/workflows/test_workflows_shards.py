"""Keys that say how text is read have no effect beside token shards, and are refused by name."""

from __future__ import annotations

import pytest
from run_settings import quiet, settings

from trivium.data.prepare import prepare
from trivium.errors import RecipeError
from trivium.text import Tokenizer
from trivium.workflows.training import pretrain

KEYS = {
    "validation": ["held_out.txt"],
    "separator": "line",
    "text_field": "content",
    "errors": "replace",
    "encoding": "gb18030",
    "keep_duplicates": True,
    "keep_text": True,
}


@pytest.fixture(scope="module")
def shards(text, encoder, tmp_path_factory):
    """Shards without held-out documents."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    prepare([text], Tokenizer.load(encoder.tokenizer), folder)
    return folder


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_reading_is_refused_beside_shards(key, shards, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held_out.txt").write_text("seven dogs ran over a mat.\n")
    changes = settings(steps=1)
    del changes["tokenizer"]
    options = {"out": tmp_path / "run", "console": quiet()}
    run = pretrain("bert-tiny", data=shards, changes=changes, **options)
    assert run.weights.is_file()
    changes["data"][key] = KEYS[key]
    options["out"] = tmp_path / "refused"
    with pytest.raises(RecipeError, match=rf"data\.{key}: not used, since .*shards holds token"):
        pretrain("bert-tiny", data=shards, changes=changes, **options)
    assert not options["out"].exists()
    # In a mix a source of text may read the key.
    source = {"objective": {"kind": "masked"}}
    mix = [
        {"name": "shards", "paths": [str(shards)], **source},
        {"name": "raw", "paths": [str(text)], **source},
    ]
    if key in ("separator", "keep_duplicates"):
        changes |= {"mix": mix}
        assert pretrain("bert-tiny", changes=changes, **options).weights.is_file()
    elif key == "validation":
        del changes["data"][key]
        mix[0]["validation"] = ["held_out.txt"]
        with pytest.raises(RecipeError, match="validation of the source shards: not used"):
            pretrain("bert-tiny", changes=changes | {"mix": mix}, **options)
