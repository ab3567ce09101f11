"""Classes of texts, against the classifiers of `transformers`."""

from __future__ import annotations

import math

import pytest
import torch
from task_models import as_ours, theirs
from their_tokenizers import SAMPLES, TEXT
from their_tokenizers import theirs as their_tokenizer

from trivium.inference.classify import classified, classifier_logits, label_count
from trivium.text.inputs import encode_inputs

transformers = pytest.importorskip("transformers")

CASES = {
    "bert": "BertForSequenceClassification",
    "gpt2": "GPT2ForSequenceClassification",
    "roberta": "BartForSequenceClassification",
}
TEXTS = [*(text for text in SAMPLES if text), " ".join(TEXT)]
PAIRS = [(a, b) for a in TEXTS[4:-1] for b in TEXT[:2]]


def options(family: str) -> dict:
    return {"num_labels": 5} | ({"pad_token_id": 0} if family == "gpt2" else {})


@pytest.mark.parametrize("family", CASES)
def test_logits_are_those_of_transformers(family):
    hf, tokenizer = theirs(CASES[family], **options(family)), their_tokenizer(family)
    model = as_ours(hf, family, decoder_start_token_id=2)
    singles = [(text, None) for text in TEXTS]
    with pytest.warns(UserWarning, match=r"texts are longer than the 61 tokens"):
        found = model.classifier_logits([*singles, *PAIRS])
    for (a, b), mine in zip([*singles, *PAIRS], found, strict=True):
        inputs = tokenizer(
            a,
            b,
            truncation=True,
            max_length=61,
            return_tensors="pt",
            return_token_type_ids=family == "bert",
        )
        with torch.no_grad():
            wanted = hf(**inputs).logits[0]
        torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", CASES)
def test_one_by_one_and_together(family):
    model = as_ours(theirs(CASES[family], **options(family)), family, decoder_start_token_id=2)
    inputs = encode_inputs(model.text_tokenizer, [(text, None) for text in TEXTS], max_length=61)
    start = model.decoder_start(model.text_tokenizer)
    together, alone, few = (
        classifier_logits(model.module, inputs, batch_tokens=size, decoder_start=start)
        for size in (4096, 1, 97)
    )
    assert together.dtype == torch.float32
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(few, alone, atol=1e-4, rtol=1e-4)


def test_their_pipeline_says_the_same():
    names = {0: "bad", 1: "good", 2: "neither"}
    hf = theirs("BertForSequenceClassification", num_labels=3, id2label=names)
    model = as_ours(hf, "bert", id2label={str(n): name for n, name in names.items()})
    pipeline = transformers.pipeline(
        "text-classification", model=hf, tokenizer=their_tokenizer("bert"), top_k=None
    )
    texts = TEXTS[4:-1]
    for found, wanted in zip(model.classify(texts), pipeline(texts), strict=True):
        assert list(found.scores) == [each["label"] for each in wanted]
        assert list(found.scores.values()) == pytest.approx(
            [each["score"] for each in wanted], abs=1e-5
        )
        assert (found.label, found.score) == next(iter(found.scores.items()))


def test_several_labels():
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, -1.0, -2.0]])
    first, second = classified(logits, ("a", "b", "c"), "multi-label")

    def share(value):
        return pytest.approx(1 / (1 + math.exp(-value)))

    assert first.label == "a, c"
    assert first.score == share(0.5)
    assert first.scores == {"a": share(2.0), "c": share(0.5), "b": share(-1.0)}
    assert (second.label, second.score) == ("", share(-1.0))


def test_numbers():
    (found,) = classified(torch.tensor([[-2.5]]), ("value",), "numbers")
    assert (found.label, found.score, found.scores) == ("", -2.5, {})


def test_no_texts():
    model = as_ours(theirs("BertForSequenceClassification", num_labels=5), "bert")
    assert classifier_logits(model.module, []).shape == (0, 5)
    assert model.classify([]) == []
    assert label_count(model.spec, "tagger") == 0
