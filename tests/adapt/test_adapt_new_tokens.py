"""New tokens: their ids as in `transformers`, their rows as means, in training and export."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from double import double_precision
from small_models import ALL_SPECS, VOCABULARY, inputs_for, random_ids, small_model

import trivium
from trivium.adapt import LoRA, add_lora
from trivium.adapt.new_tokens import extend_vocabulary, find_vocabulary_tables
from trivium.errors import RecipeError, SpecError, TokenizerError
from trivium.models import build
from trivium.presets import presets

TEXTS = [
    f"Number {n}: the quick brown fox likes zinc and zirconium, boron, beryllium, and its den."
    for n in range(150)
]
WITHOUT_ROWS = ("elmo",)  # of ALL_SPECS
WORDS, CONTROLS = ["zirconium", "beryllium"], ["<tool>"]


def outputs(model, name):
    with torch.no_grad():
        return model.logits(model(**inputs_for(name, random_ids(2, 11))))


@pytest.mark.parametrize("name", sorted(ALL_SPECS))
@double_precision()
def test_rows_are_means_and_known_tokens_keep_their_logits(name):
    model = small_model(name).double()
    if getattr(model.spec, "source_vocab_size", None) is not None:
        with pytest.raises(SpecError, match="separate vocabularies"):
            find_vocabulary_tables(model)
        return
    if name in WITHOUT_ROWS:
        with pytest.raises(SpecError, match="does not have one row per token"):
            find_vocabulary_tables(model)
        return
    tables = find_vocabulary_tables(model)
    pieces = {VOCABULARY: [3, 4, 4], VOCABULARY + 1: []}
    extended = extend_vocabulary(model, pieces)
    old, new = model.state_dict(), extended.state_dict()
    assert old.keys() == new.keys()
    for table in tables:
        rows = old[table]
        expected = torch.stack((*rows, (rows[3] + 2 * rows[4]) / 3, rows.mean(0)))
        torch.testing.assert_close(new[table], expected)
    assert all(torch.equal(new[key], old[key]) for key in old.keys() - {*tables})
    before, after = outputs(model, name), outputs(extended, name)
    if before.shape[-1] == VOCABULARY:
        torch.testing.assert_close(after[..., :VOCABULARY], before)


def test_spare_rows_are_used_first():
    model = small_model("llama")
    extended = extend_vocabulary(model, {VOCABULARY - 2: [1, 2]})
    assert extended.spec == model.spec
    for table in find_vocabulary_tables(model):
        rows = model.state_dict()[table]
        torch.testing.assert_close(extended.state_dict()[table][-2], (rows[1] + rows[2]) / 2)


def test_packed_quantised_and_adapted_models_are_refused(tmp_path):
    tokenizer = trivium.Tokenizer.train("byte-bpe", texts=TEXTS, vocab_size=300, progress=False)
    spec = presets["llama-tiny"].replace(vocab_size=300)
    trivium.LanguageModel(spec, build(spec, seed=0), tokenizer).save(tmp_path / "base")
    for options in ({"pack": True}, {"quantize": "int8"}):
        lm = trivium.load(tmp_path / "base", device="cpu", **options)
        with pytest.raises(SpecError, match="added to plain weights"):
            lm.with_new_tokens(["xenon"])
    module = build(spec, seed=0)
    add_lora(module, LoRA())
    with pytest.raises(SpecError, match="added to plain weights"):
        trivium.LanguageModel(spec, module, tokenizer).with_new_tokens(["xenon"])


@pytest.fixture(scope="module", params=["byte-bpe", "wordpiece", "unigram"])
def folder(request, tmp_path_factory):
    """A small model with a tokenizer of each kind, as a Hugging Face folder."""
    path = tmp_path_factory.mktemp("base") / request.param
    encoder = request.param == "wordpiece"
    trivium.pretrain(
        "bert-tiny" if encoder else "llama-tiny",
        data=[text.replace("zirconium, boron, beryllium", "lead") for text in TEXTS],
        out=path,
        changes={"tokenizer.kind": request.param, "tokenizer.vocab_size": 300, "train.steps": 2},
    )
    trivium.load(path).save_hf(path.with_name(f"{request.param}-hf"))
    return path.with_name(f"{request.param}-hf")


def test_ids_are_those_of_transformers_and_the_export_has_them(folder, tmp_path):
    lm = trivium.load(folder)
    extended = lm.with_new_tokens(WORDS, special_tokens=CONTROLS)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.add_tokens([transformers.AddedToken(one, normalized=False) for one in WORDS])
    theirs.add_special_tokens({"additional_special_tokens": CONTROLS})
    text = "zirconium, beryllium and boron <tool>"
    ours = extended.reading("special").text_tokenizer.encode(text)
    assert list(ours.ids) == theirs(text)["input_ids"]
    assert (
        extended.tokenizer.decode(ours.ids).split()
        == theirs.decode(ours.ids, skip_special_tokens=True).split()
    )
    extended.save_hf(tmp_path / "hf")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert read(text)["input_ids"] == theirs(text)["input_ids"]
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf")
    table = model.get_input_embeddings().weight
    pieces = lm.tokenizer.encode(WORDS[0], add_special_tokens=False).ids
    assert len(pieces) > 1
    place = lm.tokenizer.vocab_size
    torch.testing.assert_close(table[place], table[list(pieces)].mean(0))


@pytest.mark.parametrize("rank", [0, 2])
def test_training_changes_the_new_rows(rank, folder, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("zirconium\nberyllium\n", encoding="utf-8")
    trivium.pretrain(
        folder,
        data=TEXTS,
        out=tmp_path / "run",
        changes={
            "tokenizer.extend": str(words),
            "tokenizer.extend_special": CONTROLS,
            "train.steps": 3,
            "adapter.rank": rank,
        },
    )
    lm, before = trivium.load(tmp_path / "run"), trivium.load(folder)
    extended = before.with_new_tokens(WORDS, special_tokens=CONTROLS)
    assert lm.tokenizer.fingerprint == extended.tokenizer.fingerprint
    [table] = [n for n in find_vocabulary_tables(lm.module) if n.endswith("tokens.weight")]
    place = before.tokenizer.vocab_size
    trained, start = lm.module.state_dict()[table], extended.module.state_dict()[table]
    assert (trained[place : place + 2] - start[place : place + 2]).abs().min() > 0
    recipe = (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    assert "zirconium" in recipe  # the run needs no other file
    resumed = trivium.pretrain("", out=tmp_path / "run", resume=True, changes={"train.steps": 5})
    assert resumed is not None


@pytest.mark.parametrize(
    "tokens", [["quick", "quick"], [""], [" "], [], ["<tool>", "a"]], ids=json.dumps
)
def test_tokens_that_cannot_be_added(tokens):
    tokenizer = trivium.Tokenizer.train("byte-bpe", texts=TEXTS, vocab_size=300, progress=False)
    with pytest.raises(TokenizerError, match=r"new tokens that are|no new tokens"):
        tokenizer.extend(tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer.extend": ["fox", "fox"]},
            r"tokenizer.extend: new tokens that are given twice: 'fox'",
        ),
        ({"tokenizer.extend": "no/such/file"}, "a list of tokens, or a text file"),
        ({"tokenizer.extend": ["q"], "tokenizer.vocab_size": 9}, "has its own tokenizer"),
        (
            {"tokenizer.extend": ["qq"], "adapter.rank": 2, "adapter.save_separately": True},
            "base model has no rows for the new tokens",
        ),
    ],
)
def test_recipes_that_are_refused(changes, message, folder, tmp_path):
    with pytest.raises(RecipeError, match=message):
        trivium.pretrain(folder, data=TEXTS, out=tmp_path / "run", changes=changes)


@pytest.mark.parametrize("changes", [{"extend": ["fox"]}, {"kind": "extended"}], ids=str)
def test_new_tokens_are_for_a_model_to_start_from(changes, tmp_path):
    changes = {f"tokenizer.{name}": value for name, value in changes.items()}
    with pytest.raises(RecipeError, match=r"model\.init_from"):
        trivium.pretrain("gpt2-tiny", data=TEXTS, out=tmp_path / "run", changes=changes)
