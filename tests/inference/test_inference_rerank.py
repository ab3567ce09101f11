"""Reranking with imported cross-encoders: scores and order as `CrossEncoder` computes them.

`CrossEncoder` of sentence-transformers applies the activation that `config.json` names to the one
logit of a sequence classifier of `transformers`, by default the sigmoid.
"""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from task_models import as_ours, theirs
from their_tokenizers import TEXT
from their_tokenizers import theirs as hf_tokenizer

import trivium
from trivium.errors import SpecError, TriviumError
from trivium.inference.rerank import IDENTITY, SIGMOID

DOCUMENTS = [*TEXT, "a document that is not like the others", "short"]
QUERY = "Who wrote the notes?"
ACTIVATIONS = [
    ({}, True),
    ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "6.2.0"}}, True),
    ({"sentence_transformers": {"activation_fn": IDENTITY}}, False),
    ({"sbert_ce_default_activation_function": IDENTITY}, False),
]


def expected_scores(hf, family, sigmoid):
    scores = []
    for document in DOCUMENTS:
        inputs = hf_tokenizer(family)(
            QUERY, document, return_tensors="pt", return_token_type_ids=True
        )
        with torch.no_grad():
            scores.append(hf(**inputs).logits[0, 0])
    scores = torch.stack(scores)
    return scores.sigmoid() if sigmoid else scores


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("config", "sigmoid"), ACTIVATIONS)
def test_scores_and_order_are_those_of_the_classifier(config, sigmoid):
    hf = theirs("BertForSequenceClassification", num_labels=1)
    lm = as_ours(hf, "bert", **config)
    assert "rerank" in lm.capabilities
    expected = expected_scores(hf, "bert", sigmoid)
    ranked = lm.rerank(QUERY, DOCUMENTS)
    assert [one.index for one in ranked] == expected.argsort(descending=True).tolist()
    assert [one.document for one in ranked] == [DOCUMENTS[one.index] for one in ranked]
    found = torch.tensor([one.score for one in ranked])
    torch.testing.assert_close(found, expected.sort(descending=True).values)
    assert lm.rerank(QUERY, DOCUMENTS, top_k=2) == ranked[:2]
    assert lm.rerank(QUERY, []) == []


def test_equal_scores_keep_the_order_of_the_documents():
    lm = as_ours(theirs("BertForSequenceClassification", num_labels=1), "bert")
    ranked = lm.rerank(QUERY, ["same", "other text here", "same"])
    same = [one.index for one in ranked if one.document == "same"]
    assert same == [0, 2]


def test_an_exported_reranker_keeps_its_scores(tmp_path):
    hf = theirs("BertForSequenceClassification", num_labels=1)
    lm = as_ours(hf, "bert", sentence_transformers={"activation_fn": IDENTITY})
    lm.save_hf(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["sentence_transformers"] == {"activation_fn": IDENTITY}
    again = trivium.load(str(tmp_path / "out"))
    assert [r.index for r in again.rerank(QUERY, DOCUMENTS)] == [
        r.index for r in lm.rerank(QUERY, DOCUMENTS)
    ]
    theirs_again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    expected = expected_scores(theirs_again.eval(), "bert", False)
    found = torch.tensor([one.score for one in again.rerank(QUERY, DOCUMENTS)])
    torch.testing.assert_close(found, expected.sort(descending=True).values, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_ranked_is_refused():
    classifier = as_ours(theirs("BertForSequenceClassification", num_labels=3), "bert")
    with pytest.raises(SpecError, match=r"cannot rerank.*`trivium finetune reranking` adds it"):
        classifier.rerank(QUERY, DOCUMENTS)
    hf = theirs("BertForSequenceClassification", num_labels=1)
    other = as_ours(hf, "bert", sentence_transformers={"activation_fn": "torch.nn.ReLU"})
    with pytest.raises(TriviumError, match=r"activation of the scores is torch\.nn\.ReLU"):
        other.rerank(QUERY, DOCUMENTS)
    lm = as_ours(hf, "bert")
    with pytest.raises(TriviumError, match="a query or a document is empty"):
        lm.rerank(QUERY, ["a", " "])


def test_the_activation_in_the_file_of_sentence_transformers_6(tmp_path):
    lm = as_ours(theirs("BertForSequenceClassification", num_labels=1), "bert")
    lm.save_hf(tmp_path / "out")
    options = {"model_type": "CrossEncoder", "activation_fn": IDENTITY}
    (tmp_path / "out" / "config_sentence_transformers.json").write_text(json.dumps(options))
    logits = trivium.load(str(tmp_path / "out")).rerank(QUERY, DOCUMENTS)
    expected = [one.score for one in lm.rerank(QUERY, DOCUMENTS)]
    found = torch.tensor([one.score for one in logits]).sigmoid().tolist()
    assert found == pytest.approx(expected, rel=1e-5)
