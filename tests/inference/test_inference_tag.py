"""Tags of words, against BERT's of `transformers`."""

from __future__ import annotations

import pytest
import torch
from task_models import as_ours, theirs
from their_tokenizers import KINDS, TEXT, ours
from their_tokenizers import theirs as their_tokenizer

from trivium.inference.tag import tag_words
from trivium.text.inputs import encode_words

transformers = pytest.importorskip("transformers")

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
SENTENCES = [
    TEXT[0].split(),
    ["Ada", "wrote", "今天", "天气", "notes", ",", "déjà"],
    ["one"],
    TEXT[3].split(),
    [],
    ["rainy", "\u3000", "day"],
]


@pytest.fixture(scope="module")
def hf():
    return theirs("BertForTokenClassification", num_labels=5)


@pytest.fixture(scope="module")
def model(hf):
    return as_ours(hf, "bert", id2label={str(n): name for n, name in enumerate(NAMES)})


def test_tags_are_those_of_transformers(hf, model):
    found = model.tag(SENTENCES)
    assert [len(each) for each in found] == [len(words) for words in SENTENCES]
    seen = 0
    for words, tagged in zip(SENTENCES, found, strict=True):
        if not words:
            continue
        inputs = their_tokenizer("bert")(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            shares = hf(**inputs).logits[0].softmax(-1)
        told: set[int] = set()
        for place, word in enumerate(inputs.word_ids(0)):
            if word is None or word in told:
                continue
            told.add(word)
            share, tag = shares[place].max(-1)
            assert tagged[word].word == words[word]
            assert tagged[word].tag == NAMES[tag]
            assert tagged[word].score == pytest.approx(share.item(), abs=1e-5)
        seen += len(told)
    assert seen > 30


def test_one_by_one_and_together(model):
    options = {"max_length": 23}
    tokenizer = model.text_tokenizer
    together = tag_words(model.module, tokenizer, SENTENCES, NAMES, **options)
    alone = tag_words(model.module, tokenizer, SENTENCES, NAMES, batch_tokens=1, **options)
    for mine, other in zip(together, alone, strict=True):
        assert [(each.word, each.tag) for each in mine] == [(each.word, each.tag) for each in other]
        scores = [each.score for each in mine]
        assert scores == pytest.approx([each.score for each in other], abs=1e-5)


@pytest.mark.parametrize("family", KINDS)
def test_long_sentences_are_read_in_runs_that_are_as_if_alone(hf, family):
    words = [word for text in TEXT * 3 for word in text.split()]
    tokenizer = ours(family)
    module = as_ours(hf, family).module
    (tagged,) = tag_words(module, tokenizer, [words], NAMES, max_length=17)
    assert [each.word for each in tagged] == words
    (runs,) = encode_words(tokenizer, [words], max_length=17)
    assert len(runs) > 3
    for run in runs:
        with torch.no_grad():
            hidden = module(torch.tensor([run.ids]))
            tags = module.logits(hidden, head="tagger")[0].argmax(-1)[run.places]
        assert [each.tag for each in tagged[run.start : run.stop]] == [NAMES[t] for t in tags]


def test_a_text_is_parted_at_spaces(model):
    text = " Ada wrote\tnotes "
    assert model.tag(text) == model.tag([text])[0] == model.tag([["Ada", "wrote", "notes"]])[0]
    assert model.tag([]) == []
    assert model.tag("") == []


def test_labels_without_names_are_called_as_theirs(hf):
    assert {each.tag for each in as_ours(hf, "bert").tag(TEXT[0])} <= {
        f"LABEL_{n}" for n in range(5)
    }
