"""Contrastive learning: pairs, loss by its formula, cached gradients, retrieval, overfitting."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from overfit_tasks import overfit, untrained
from torch.nn import functional as F

from trivium import load
from trivium.data.row_order import RowRandom, derived_seed
from trivium.errors import DataError, RecipeError, TriviumError
from trivium.interop.settings import Settings
from trivium.objectives import to_device
from trivium.objectives.contrastive import Contrastive, contrastive_loss
from trivium.objectives.retrieval import BM25, reciprocal_rank_fusion, retrieve
from trivium.objectives.text_pairs import TextPair
from trivium.presets import presets
from trivium.train.loader import micro_batch_slices

pytestmark = pytest.mark.usefixtures("double_precision")

CPU = torch.device("cpu")
PAIRS = [
    TextPair("who wrote it", "Ada wrote the first program .", "Bea sold it .", "x, line 1"),
    TextPair("where is the town", "the old town is by the sea far away .", None, "x, line 2"),
    TextPair("what did she eat", "she ate bread", "he drank water and wine", "x, line 3"),
    TextPair("who left", "Grace left the old town .", None, "x, line 4"),
    TextPair("who went away", "Grace left the old town .", None, "x, line 5"),
]


def read(folder, name: str, content, **options):
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")
    return list(Contrastive.from_tree(options).read([str(folder / name)]))


def test_reads_pairs_triples_squad_and_texts(tmp_path):
    row = {"anchor": "a", "positive": "b", "negative": "c"}
    assert read(tmp_path, "a.jsonl", row) == [
        TextPair("a", "b", "c", f"{tmp_path}/a.jsonl, line 1")
    ]
    answers = [{"text": "y", "answer_start": 0}]
    squad = {
        "paragraphs": [{"context": "y", "qas": [{"id": "1", "question": "q", "answers": answers}]}]
    }
    assert read(tmp_path, "b.json", {"data": [squad]})[0].texts == ["q", "y"]
    lines = ["A heading", "This line has eight words. It has two."]
    (one,) = read(tmp_path, "c.txt", "\n\n".join(lines) + "\n")
    assert (one.texts, one.where[-6:]) == (lines[1:], "line 3")
    (one,) = read(tmp_path, "d.csv", "x,y\nhello,world\n", text_field="y", pair_field="x")
    assert one.texts == ["world", "hello"]
    for content, message in (
        ({"word": "a"}, r'no column for the text \(such as text.*it has "word"'),
        ({"question": "a", "context": " "}, '"context" of .*e.jsonl, line 1 is blank'),
        ({"question": "a", "context": 3}, "is a number, not a string"),
        ({"text": "a", "negative": "b"}, "has a negative but no pair"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path, "e.jsonl", content)


@pytest.mark.parametrize("preset", ["t5-mini", "ngram-mini"])
def test_models_without_one_vector_of_a_text_are_refused(preset):
    with pytest.raises(RecipeError, match="needs one vector of a text"):
        Contrastive.from_tree({}).heads(presets[preset])


def batch_of(examples, pairs="cloze", *, key=0, lm=None):
    objective = Contrastive.from_tree({"pairs": pairs, "pooling": "mean"})
    if lm is None:
        objective, lm = untrained(objective, examples, "bert")
    rows = objective.encode(examples, lm).take(range(len(examples)))
    random = RowRandom(0, [key] * len(examples))
    return objective, lm, objective.prepare(rows, random, lm.tokenizer.vocabulary)


def texts_in(lm, batch):
    """The texts of a batch, by example and part."""
    assert batch.attention_mask is not None
    lengths = batch.attention_mask.sum(axis=1)
    assert (np.diff(lengths) <= 0).all()
    found = {}
    for ids, size, (example, part, _) in zip(batch.input_ids, lengths, batch.sequence_labels):
        words = [lm.tokenizer.tokens[i] for i in ids[:size]]
        assert (words[0], words[-1]) == ("[CLS]", "[SEP]")
        found[int(example), int(part)] = " ".join(words[1:-1])
    return found


def test_rows_are_the_texts_of_a_step_as_embed_reads_them():
    objective, lm, batch = batch_of(PAIRS)
    assert objective.loss_denominators(batch) == {"loss": 5}
    found = texts_in(lm, batch)
    expected = {(n, part): t for n, one in enumerate(PAIRS) for part, t in enumerate(one.texts)}
    assert found == expected
    assert set(map(len, lm.windows(["who wrote it"]))) == {1}
    own = batch.sequence_labels[:, 2].tolist()
    assert Counter(own).most_common(1)[0][1] == 2  # the same positive twice


def test_texts_alone_are_their_own_pairs():
    sentences = ["one fish .", "two fish ?", "three red fish ."]
    texts = [TextPair(text, None, None, "x") for text in (" ".join(sentences), "a sentence")]
    drawn, kept, lm = set(), 0, None
    for key in range(200):
        _, lm, batch = batch_of(texts, key=key, lm=lm)
        found = texts_in(lm, batch)
        assert found[1, 0] == found[1, 1] == "a sentence"
        anchor = found[0, 0]
        drawn.add(anchor)
        others = " ".join(each for each in sentences if each != anchor)
        kept += found[0, 1] != others
        assert found[0, 1] in (others, texts[0].text)
    assert drawn == {*sentences}
    assert 8 < kept < 35
    _, lm, batch = batch_of(texts, "dropout")
    assert set(texts_in(lm, batch).values()) == {texts[0].text, "a sentence"}
    assert len(set(batch.sequence_labels[:, 2].tolist())) == 2


def formula(anchors, positives, negatives, texts, temperature):
    """Equation 1 of SimCSE with equation 5's hard negatives, in Python."""
    total = 0.0
    for i, anchor in enumerate(anchors):
        own, right = texts["anchor"][i], texts["positive"][i]
        logits = [float(anchor @ positives[i]) / temperature]
        for j, positive in enumerate(positives):
            same = texts["positive"][j] in (own, right) or texts["anchor"][j] == own
            if i != j and not same:
                logits.append(float(anchor @ positive) / temperature)
        for j, negative in negatives.items():
            if texts["negative"][j] not in (own, right):
                logits.append(float(anchor @ negative) / temperature)
        total += math.log(sum(math.exp(one - logits[0]) for one in logits))
    return total


def test_the_loss_is_that_of_the_papers_and_duplicates_are_no_negatives():
    texts = {
        "anchor": [1, 2, 3, 1, 4, 5],
        "positive": [11, 12, 13, 14, 12, 4],
        "negative": {0: 21, 2: 12, 5: 22},
    }
    rows = [(n, 0, t) for n, t in enumerate(texts["anchor"])]
    rows += [(n, 1, t) for n, t in enumerate(texts["positive"])]
    rows += [(n, 2, t) for n, t in texts["negative"].items()]
    torch.manual_seed(0)
    vectors = F.normalize(torch.randn(len(rows), 7), dim=-1)
    split = vectors[:6], vectors[6:12], dict(zip(texts["negative"], vectors[12:]))
    for temperature in (0.05, 1.3):
        expected = formula(*split, texts, temperature)
        order = torch.randperm(len(rows))
        got = contrastive_loss(vectors[order], torch.tensor(rows)[order], temperature)
        assert got.item() == pytest.approx(expected, rel=1e-12)
    everything = formula(*split, texts | {"anchor": [*range(30, 36)]}, 1.3)
    assert abs(everything - expected) > 0.1  # of other texts there are more negatives


def gradients(objective, lm, tensors):
    lm.module.zero_grad()
    torch.manual_seed(3)
    loss = objective.loss(lm.module, tensors)["loss"]
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in lm.module.parameters() if p.grad is not None)]


def test_cached_gradients_are_those_of_the_whole_batch_for_any_micro_batch():
    objective, lm, batch = batch_of(PAIRS)
    tensors = to_device(batch, CPU)
    lm.module.train()
    whole = gradients(objective, lm, tensors)
    assert len(whole) > 30
    for size in (1, 17, 29, 10**6):
        slices = micro_batch_slices(batch, size)
        assert [cut.start for cut in slices[1:]] == [cut.stop for cut in slices[:-1]]
        assert (len(slices) == len(batch.input_ids)) == (size == 1)
        parts = gradients(objective, lm, replace(tensors, slices=slices))
        for one, other in zip(parts, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    # With dropout: those of one graph of the parts in any order, which draw the same masks.
    dropped, lm_dropped, _ = batch_of(PAIRS)
    lm_dropped.module = dropped.build(lm.spec.with_dropout(0.3), seed=0, device=CPU).train()
    tensors = replace(tensors, slices=micro_batch_slices(batch, 29))
    cached = gradients(dropped, lm_dropped, tensors)
    lm_dropped.module.zero_grad()
    vectors = []
    for cut, part in reversed([*tensors.micro_batches()]):
        torch.manual_seed(derived_seed(3, cut.number))
        vectors.insert(0, dropped._embed(lm_dropped.module, part)[0])
    loss = contrastive_loss(torch.cat(vectors), tensors.sequence_labels, dropped.temperature)
    loss.backward()
    own = [loss, *(p.grad for p in lm_dropped.module.parameters() if p.grad is not None)]
    assert abs(loss - whole[0]) > 1e-3
    for one, other in zip(cached, own, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def theirs(folder, texts):
    """What `sentence-transformers` does with a folder, by `transformers`."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(folder)(**inputs).last_hidden_state
    real = inputs["attention_mask"][..., None]
    return F.normalize((hidden * real).sum(1) / real.sum(1), dim=-1).float()


@pytest.mark.parametrize(("family", "pooling"), [("bert", "mean"), ("gpt2", "last")])
def test_overfits_and_finds_what_belongs_together(family, pooling, tmp_path):
    pairs = PAIRS[:4]
    objective, lm, loss = overfit(Contrastive.from_tree({}), pairs, family, steps=25)
    assert objective.pooling == lm.pooling == pooling  # type: ignore[attr-defined]
    assert loss < 0.3
    metrics = objective.evaluate(lm, pairs)
    assert metrics.main == "mrr"
    assert metrics.score == metrics.values["recall@1"] == metrics.values["recall@10"] == 1.0
    assert {"bm25_mrr", "mixed_recall@10"} <= metrics.values.keys()
    assert metrics.predictions[1]["rank"] == 1
    vectors = lm.embed([one.text for one in pairs])
    torch.testing.assert_close(vectors, lm.embed([p.text for p in pairs], pooling=pooling))
    # Saved, exported and read again it embeds the same.
    folder = lm.save(tmp_path / f"own-{family}-{pooling}")
    exported = lm.save_hf(tmp_path / f"hf-{family}-{pooling}")
    lm.save_hf(exported, overwrite=True)
    for again in (load(folder), load(exported)):
        assert again.settings.pooling == pooling
        embedded = again.embed([one.text for one in pairs])
        torch.testing.assert_close(embedded, vectors, rtol=1e-4, atol=1e-5)
    if family == "bert":
        their_vectors = theirs(exported, [one.text for one in pairs])
        torch.testing.assert_close(their_vectors, vectors, rtol=1e-4, atol=1e-5)
    flags = json.loads((exported / "1_Pooling" / "config.json").read_text())
    named = {"mean": "mean_tokens", "last": "lasttoken"}[pooling]
    assert [name for name, value in flags.items() if value is True] == [f"pooling_mode_{named}"]
    assert flags["word_embedding_dimension"] == lm.spec.d_model
    modules = json.loads((exported / "modules.json").read_text())
    assert [(one["path"], one["type"].split(".")[-1]) for one in modules] == [
        ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"),
    ]  # fmt: skip
    (exported / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    config = json.loads((exported / "config.json").read_text())
    del config["finetuning_task"]
    (exported / "config.json").write_text(json.dumps(config))
    with pytest.raises(TriviumError, match="pooling_mode_max_tokens is not supported"):
        load(exported)
    lm.settings = Settings().with_task("contrastive", pooling="max")
    with pytest.raises(TriviumError, match='pools by "max"'):
        lm.embed("a")


def test_bm25_and_fusion_are_those_of_the_papers():
    passages = ["the cat sat on the mat", "The dog, the cat!", "a bird", "\u732b\u72d7"]
    words = [one.split() for one in ("the cat sat on the mat", "the dog the cat", "a bird")]
    words.append(["\u732b", "\u72d7"])
    queries = ["the cat the", "a \u732b", "nothing"]
    mean = sum(map(len, words)) / 4
    expected = np.zeros((3, 4))
    for q, query in enumerate((["the", "cat", "the"], ["a", "\u732b"], ["nothing"])):
        for d, document in enumerate(words):
            for word in query:
                n, tf = sum(word in each for each in words), document.count(word)
                idf = math.log(1 + (4 - n + 0.5) / (n + 0.5))
                norm = 1.2 * (0.25 + 0.75 * len(document) / mean)
                expected[q, d] += idf * tf * 2.2 / (tf + norm)
    scores = BM25(passages).score_passages(queries)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    other = np.array([[0.1, 0.9, 0.5, 0.2]])
    fused = reciprocal_rank_fusion(np.array([[3.0, 2.0, 1.0, 0.0]]), other)
    ranks = np.array([[1, 2, 3, 4]]), np.array([[4, 1, 2, 3]])
    np.testing.assert_allclose(fused, 1 / (60 + ranks[0]) + 1 / (60 + ranks[1]))
    # "q" has two passages, of which the first one found counts; equal scores count against one.
    pairs = [("q", "A"), ("q", "B"), ("r", "A"), ("s", "C")]
    vectors = {"A": (1.0, 0.0), "B": (0.0, 1.0), "C": (1.0, 0.0)}
    asked = np.array([(0.6, 0.8), (0.6, 0.8), (1.0, 0.0), (0.0, 1.0)])
    found = retrieve(pairs, asked, np.array([vectors[p] for _, p in pairs]), hybrid=False)
    assert found.ranks.tolist() == [1, 1, 2, 3]
    assert found.best == ["B", "B", "A", "B"]
    assert found.num_passages == 3
    assert found.values == {"mrr": (2 + 0.5 + 1 / 3) / 4, "recall@1": 0.5, "recall@10": 1.0}
