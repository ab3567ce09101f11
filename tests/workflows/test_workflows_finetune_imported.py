"""Models of `transformers` are taught here, and go back with equal logits and names."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from labelled_examples import classes, figures, pairs, tagged, taught, write_lines

import trivium
from trivium.language_model import LanguageModel
from trivium.text import Tokenizer

transformers = pytest.importorskip("transformers")

SIZE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def bert(vocab_size: int) -> Any:
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=vocab_size, **SIZE))


def roberta(vocab_size: int) -> Any:
    config = transformers.RobertaConfig(vocab_size=vocab_size, type_vocab_size=1, **SIZE)
    return transformers.RobertaForMaskedLM(config)


def modernbert(vocab_size: int) -> Any:
    config = transformers.ModernBertConfig(vocab_size=vocab_size, pad_token_id=0, **SIZE)
    return transformers.ModernBertForMaskedLM(config)


def gpt2(vocab_size: int) -> Any:
    config = transformers.GPT2Config(
        vocab_size=vocab_size, n_embd=64, n_layer=2, n_head=2, n_positions=64,
        bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def t5(vocab_size: int) -> Any:
    config = transformers.T5Config(
        vocab_size=vocab_size, d_model=64, d_kv=32, d_ff=128, num_layers=2, num_heads=2,
        decoder_start_token_id=1, pad_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


MODELS = {
    "bert": (bert, "wordpiece"),
    "roberta": (roberta, "byte-bpe"),
    "modernbert": (modernbert, "wordpiece"),
    "gpt2": (gpt2, "byte-bpe"),
    "t5": (t5, "bpe"),
}


def saved(name: str, folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A model of theirs, with random weights and a tokenizer of these texts."""
    make, kind = MODELS[name]
    texts = [" ".join(str(value) for value in row.values()) for row in rows]
    tokenizer = Tokenizer.train(
        kind,
        texts=texts,
        vocab_size=400,
        special_tokens=None if kind == "wordpiece" else SPECIALS,
        progress=False,
    )
    torch.manual_seed(3)
    make(tokenizer.vocab_size).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


def ids_of(model: LanguageModel, texts: list[str]) -> torch.Tensor:
    """Of as many tokens each: what padding does is tested elsewhere."""
    ids = model.text_tokenizer.encode_ids_batch(texts)
    shortest = min(map(len, ids))
    return torch.tensor([row[:shortest] for row in ids])


TEXTS = ["the man saw a red house near it", "our blue town left the man a house"]


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "gpt2"])
def test_a_classifier_goes_back(name: str, tmp_path: Path) -> None:
    rows = classes(150)
    folder = saved(name, tmp_path / "theirs", rows)
    data = write_lines(tmp_path / "classes.jsonl", rows)
    run = taught("classification", folder, data, tmp_path / "run", "optimizer.lr=2e-3", steps=60)
    assert figures(run)["accuracy"] > 0.6
    ours = trivium.load(run.path)
    left = {"gpt2": pytest.warns(UserWarning, match="no longer the next token")}
    with left.get(name, nullcontext()):
        ours.save_hf(tmp_path / "back")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back")
    assert theirs.config.id2label == {0: "cold", 1: "plain", 2: "warm"}
    assert theirs.config.problem_type == "single_label_classification"
    ids = ids_of(ours, TEXTS)
    with torch.no_grad():
        wanted = theirs.eval()(ids).logits
    torch.testing.assert_close(ours.logits(ids, head="classifier"), wanted, atol=1e-5, rtol=1e-4)
    again = trivium.load(tmp_path / "back")
    assert again.classify(TEXTS) == ours.classify(TEXTS)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_tagger_goes_back(name: str, tmp_path: Path) -> None:
    rows = tagged(60)
    folder = saved(name, tmp_path / "theirs", [{"text": " ".join(row["words"])} for row in rows])
    data = write_lines(tmp_path / "names.jsonl", rows)
    run = taught("tagging", folder, data, tmp_path / "run", steps=3)
    ours = trivium.load(run.path)
    ours.save_hf(tmp_path / "back")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "back")
    assert theirs.config.id2label[0] == "O"
    ids = ids_of(ours, TEXTS)
    with torch.no_grad():
        wanted = theirs.eval()(ids).logits
    torch.testing.assert_close(ours.logits(ids, head="tagger"), wanted, atol=1e-5, rtol=1e-4)


def test_pairs_of_bert_go_back(tmp_path: Path) -> None:
    """With token types."""
    rows = pairs(120)
    folder = saved("bert", tmp_path / "theirs", rows)
    data = write_lines(tmp_path / "pairs.jsonl", rows)
    run = taught("classification", folder, data, tmp_path / "run", steps=3)
    ours = trivium.load(run.path)
    ours.save_hf(tmp_path / "back")
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    given = tokenizer(TEXTS[0], TEXTS[1], return_tensors="pt", return_token_type_ids=True)
    assert given["token_type_ids"].max() == 1
    with torch.no_grad():
        wanted = theirs(**given).logits.softmax(-1)[0]
    found = ours.classify(*TEXTS).scores
    assert [found[name] for name in ("no", "yes")] == pytest.approx(wanted.tolist(), abs=1e-5)


def test_text_to_text_goes_back(tmp_path: Path) -> None:
    rows = [{"source": row["text"], "target": row["label"]} for row in classes(150)]
    folder = saved("t5", tmp_path / "theirs", rows)
    data = write_lines(tmp_path / "pairs.jsonl", rows)
    run = taught(
        "text-to-text", folder, data, tmp_path / "run", "optimizer.lr=3e-3", "task.beams=1",
        steps=60,
    )  # fmt: skip
    assert figures(run)["exact_match"] > 90.0
    ours = trivium.load(run.path)
    ours.save_hf(tmp_path / "back")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    tokenizer = ours.text_tokenizer
    for text, wanted in zip(TEXTS, ("warm", "cold")):
        assert ours.translate(text) == wanted
        (row,) = tokenizer.encode_ids_batch([text])
        ids = torch.tensor([[*tokenizer.prefix_ids, *row, *tokenizer.suffix_ids]])
        written = theirs.generate(ids, max_new_tokens=12, num_beams=1)[0]
        assert tokenizer.decode(written.tolist()).strip() == wanted
