"""Fill-in-the-middle: rows, labels, and filling with a model that was trained for it."""

from __future__ import annotations

import numpy as np
import pytest

import trivium
from trivium.data.batch import RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError, SpecError, TriviumError
from trivium.models import build
from trivium.objectives.fill_in_the_middle import FillInTheMiddle
from trivium.presets import presets
from trivium.text.infilling import FIM_TOKENS, InfillTokens
from trivium.text.vocabulary import Vocabulary

PAD, EOS, PREFIX, SUFFIX, MIDDLE = range(5)
NAMES = {"<pad>": PAD, "</s>": EOS, **dict(zip(FIM_TOKENS, (PREFIX, SUFFIX, MIDDLE), strict=True))}
VOCABULARY = Vocabulary.from_special_tokens(
    NAMES, {"pad": PAD, "eos": EOS}, size=200, suffix_ids=(EOS,)
)


TEXT = "12: one two three four five six seven eight nine."


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


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe"])
def test_parts_are_those_of_the_text_and_of_words_where_the_tokenizer_allows(kind):
    texts = [
        "The zirconium crown, 12 \u732b \U0001f600 na\u00efve.",
        "Snow fell softly on Montreal.",
    ]
    names = ["<pad>", "</s>", "<unk>", *FIM_TOKENS]
    trained = texts[1:] * 30  # the first text has tokens of parts of characters
    tokenizer = trivium.Tokenizer.train(
        kind, texts=trained, vocab_size=330, special_tokens=names, progress=False
    )
    vocabulary, marks = tokenizer.vocabulary, InfillTokens.find(tokenizer.special_tokens)
    for text in texts if kind == "byte-bpe" else trained[:1]:
        ids = [*tokenizer.encode(text, add_special_tokens=False).ids, vocabulary.end_id]
        rows = RowBatch(np.array([ids] * 300), np.full(300, len(ids)))
        room = rows.input_ids.shape[1] + 40
        wide = np.pad(rows.input_ids, ((0, 0), (0, room - len(ids))))
        objective = FillInTheMiddle(rate=1.0, spm_rate=0.0)
        batch = objective.prepare(
            RowBatch(wide, rows.lengths), RowRandom(1, np.arange(300)), vocabulary
        )
        starts = set()
        for row in batch.input_ids.tolist():
            found = row[: row.index(vocabulary.end_id)]
            suffix, middle = found.index(marks.suffix), found.index(marks.middle)
            parts = found[1:suffix], found[middle + 1 :], found[suffix + 1 : middle]
            joined = [one for part in parts for one in part]
            assert tokenizer.decode(joined) == text
            starts.add(len(tokenizer.decode(parts[0])))
        inside = [n for n in starts if 0 < n < len(text) and text[n - 1 : n + 1].isalpha()]
        if kind == "byte-bpe":
            assert len(starts) > 0.8 * len(text)  # a cut at nearly every character
            assert len(inside) > 5
        else:
            boundaries = {offsets[1] for offsets in tokenizer.encode(text).offsets}
            assert starts <= {0, *boundaries}


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
            "train.steps": 400,
        },
    )
    return trivium.load(out)


@pytest.mark.slow
def test_a_trained_model_fills_the_gap(trained):
    for order in ("psm", "spm"):
        for gap in (" four five", " six", "two three four", "ur fi"):  # also within words
            prefix, suffix = TEXT.split(gap)
            filled = trained.infill(prefix, suffix, order=order, temperature=0, max_new_tokens=12)
            assert filled == gap


def test_wrong_uses():
    special = ["<|endoftext|>", *FIM_TOKENS]
    tokenizer = trivium.Tokenizer.train(
        "byte-bpe", texts=["a b"] * 9, vocab_size=270, special_tokens=special, progress=False
    )
    spec = presets["llama-tiny"].replace(vocab_size=270)
    lm = trivium.LanguageModel(spec, build(spec, seed=0), tokenizer)
    with pytest.raises(TriviumError, match='"psm" or "spm"'):
        lm.infill("a", "b", order="mps")
    names = [tokenizer.tokens[one] for one in lm.infill_ids("a", " b")]
    assert [name for name in names if name in FIM_TOKENS] == [*FIM_TOKENS]
    # The name of a mark in a text is text.
    assert len(lm.infill_ids(FIM_TOKENS[0], "")) > 6
    plain = trivium.Tokenizer.train("byte-bpe", texts=["a b"] * 9, vocab_size=270, progress=False)
    with pytest.raises(SpecError, match="no tokens to fill in the middle"):
        trivium.LanguageModel(spec, lm.module, plain).infill("a", "b")
