"""Fill-in-the-middle: rows, labels, and filling with a model that was trained for it."""

from __future__ import annotations

import numpy as np
import pytest

import trivium
from trivium.data.batch import RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError, SpecError, TriviumError
from trivium.objectives.fill_in_the_middle import FillInTheMiddle
from trivium.text.infilling import FIM_TOKENS, InfillTokens
from trivium.text.vocabulary import Vocabulary

PAD, EOS, PREFIX, SUFFIX, MIDDLE = range(5)
NAMES = {"<pad>": PAD, "</s>": EOS, **dict(zip(FIM_TOKENS, (PREFIX, SUFFIX, MIDDLE), strict=True))}
VOCABULARY = Vocabulary.from_special_tokens(
    NAMES, {"pad": PAD, "eos": EOS}, size=200, suffix_ids=(EOS,)
)


def rows_of(*rows, width=40, with_ids=False):
    """Rows of documents, each with its end token."""
    ids, documents = np.zeros((len(rows), width), int), np.zeros((len(rows), width), int)
    lengths = []
    for number, row in enumerate(rows):
        tokens = [one for document in row for one in document]
        ids[number, : len(tokens)] = tokens
        marks = [n for n, document in enumerate(row, start=1) for _ in document]
        documents[number, : len(tokens)] = marks
        lengths.append(len(tokens))
    return RowBatch(ids, np.array(lengths), document_ids=documents if with_ids else None)


def split_documents(ids, length):
    documents, current = [], []
    for one in ids[:length].tolist():
        current.append(one)
        if one == EOS:
            documents.append(current)
            current = []
    return [*documents, current] if current else documents


@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
def test_every_document_is_its_parts_in_the_order_of_the_paper(spm_rate):
    first, second = [*range(10, 20), EOS], [*range(30, 37), EOS]
    rows = rows_of([first, second], [[*range(50, 70)]], width=40)
    objective = FillInTheMiddle(rate=1.0, spm_rate=spm_rate)
    batch = objective.prepare(rows, RowRandom(3, [0, 1]), VOCABULARY)
    found = [
        document
        for ids, length in zip(batch.input_ids, (25, 24), strict=True)
        for document in split_documents(ids, length)
    ]
    assert len(found) == 3
    for document, text in zip(found, (first[:-1], second[:-1], [*range(50, 70)]), strict=True):
        suffix, middle = document.index(SUFFIX), document.index(MIDDLE)
        assert document[0] == PREFIX
        assert document[-1] == EOS
        if spm_rate:
            assert document[1] == SUFFIX
            joined = [*document[middle + 1 : -1], *document[2:middle]]
        else:
            joined = [
                *document[1:suffix],
                *document[middle + 1 : -1],
                *document[suffix + 1 : middle],
            ]
        assert joined == text
    labels = batch.labels[0]
    assert labels[:24].tolist() == batch.input_ids[0, 1:25].tolist()
    assert set(labels[24:].tolist()) == {-100}


def test_full_rows_keep_their_length_and_other_documents_stay():
    rows = rows_of([[*range(10, 50)]], [[*range(60, 99), EOS]], width=40, with_ids=True)
    batch = FillInTheMiddle(rate=1.0).prepare(rows, RowRandom(1, [0, 1]), VOCABULARY)
    for ids, start in zip(batch.input_ids, (10, 60), strict=True):
        assert sorted(ids.tolist()) == sorted(
            [PREFIX, SUFFIX, MIDDLE, EOS, *range(start, start + 36)]
        )
        assert ids[-1] == EOS
    assert batch.document_ids.tolist() == [[1] * 40] * 2
    rare = FillInTheMiddle(rate=1e-9).prepare(rows, RowRandom(1, [0, 1]), VOCABULARY)
    assert (rare.input_ids == rows.input_ids).all()


def test_cuts_are_uniform_and_rates_are_kept():
    count, length = 4000, 6
    rows = rows_of(*[[[*range(10, 10 + length), EOS]]] * count, width=12)
    objective = FillInTheMiddle(rate=0.7, spm_rate=0.4)
    batch = objective.prepare(rows, RowRandom(0, np.arange(count)), VOCABULARY)
    changed = [ids.tolist() for ids in batch.input_ids if PREFIX in ids]
    assert len(changed) / count == pytest.approx(0.7, abs=0.03)
    spm = [ids for ids in changed if (ids[1] == SUFFIX and ids[2] != MIDDLE) or ids[1:3] == [1, 2]]
    assert 0.3 < len(spm) / len(changed) < 0.6  # an empty prefix looks the same in both orders
    middles = [ids.index(EOS) - ids.index(MIDDLE) - 1 for ids in changed if ids[1] != SUFFIX]
    assert 0 < min(middles) + 1 < max(middles) + 1 <= length + 1


def test_a_tokenizer_without_the_tokens_is_refused():
    with pytest.raises(RecipeError, match=r"fim_prefix.*tokenizer\.extend_special"):
        FillInTheMiddle().check_tokens(Vocabulary(size=9))
    star = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3}
    assert InfillTokens.find(star) == InfillTokens(1, 2, 3)
    FillInTheMiddle().check_tokens(Vocabulary(size=9, special_tokens=star))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small model that has learned what stands in the middle."""
    out = tmp_path_factory.mktemp("fim") / "run"
    texts = [f"{n}: one two three four five six seven eight nine." for n in range(300)]
    trivium.pretrain(
        "llama-tiny",
        data=texts,
        out=out,
        changes={
            "objective.kind": "fill-in-the-middle",
            "objective.rate": 0.9,
            "tokenizer.vocab_size": 320,
            "train.steps": 140,
        },
    )
    return trivium.load(out)


def test_a_trained_model_fills_the_gap(trained):
    for order in ("psm", "spm"):
        for gap in (" four five", " six", " two three four"):
            prefix, suffix = "12: one two three four five six seven eight nine.".split(gap)
            filled = trained.infill(prefix, suffix, order=order, temperature=0, max_new_tokens=12)
            assert filled == gap


def test_wrong_uses(trained):
    with pytest.raises(TriviumError, match='"psm" or "spm"'):
        trained.infill("a", "b", order="mps")
    ids = trained.infill_ids("a", " b")
    names = [trained.tokenizer.tokens[one] for one in ids]
    assert [name for name in names if name in FIM_TOKENS] == [*FIM_TOKENS]
    # The name of a mark in a text is text.
    assert len(trained.infill_ids(FIM_TOKENS[0], "")) > 6
    plain = trivium.Tokenizer.train("byte-bpe", texts=["a b"] * 9, vocab_size=270, progress=False)
    with pytest.raises(SpecError, match="no tokens to fill in the middle"):
        trivium.LanguageModel(trained.spec, trained.module, plain).infill("a", "b")
