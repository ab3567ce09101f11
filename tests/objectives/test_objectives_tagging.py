"""Tagging: CoNLL, CoNLL-U and IOB2 files, chunks by seqeval, and overfitting."""

from __future__ import annotations

import json

import pytest
from overfit_tasks import overfit, untrained

from trivium.data.records import ReadReport, RecordOptions
from trivium.errors import DataError, RecipeError
from trivium.inference.tag import TaggedWord, merge_entities
from trivium.interop.settings import Settings
from trivium.objectives.tagging import TaggedSentence, Tagging, score_chunks, to_iob2
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")

CONLL = "-DOCSTART- -X- O\n\nAda NNP B-PER\nLovelace NNP I-PER\n# # O\n\nin IN O\nOslo NNP B-LOC\n"
CONLLU = """\
# sent_id = 1
1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_
1\tde\tde\tADP\tP\t_\t2\tcase\t_\t_
2\tle\tle\tDET\tD\t_\t0\troot\t_\t_
2.1\tempty\t_\t_\t_\t_\t_\t_\t_\t_

1\tchat\tchat\tNOUN\tN\t_\t0\troot\t_\t_
"""


def read(folder, name: str, content: str, **options):
    (folder / name).write_text(content, encoding="utf-8")
    return list(Tagging(**options).read([str(folder / name)]))


def sentences():
    rows = (
        ("Ada Lovelace saw Oslo", "B-PER I-PER O B-LOC"),
        ("in Oslo", "O B-LOC"),
        ("old Rome and Ada", "O B-LOC O B-PER"),
        ("then Ada left", "O B-PER O"),
    )
    return [
        TaggedSentence(tuple(words.split()), tuple(tags.split()), f"x.conll, line {i}")
        for i, (words, tags) in enumerate(rows, start=1)
    ]


def test_reads_columns_conllu_and_records(tmp_path):
    first, second = read(tmp_path, "a.conll", CONLL)
    assert first.words == ("Ada", "Lovelace", "#")
    assert first.tags == ("B-PER", "I-PER", "O")
    assert (first.locate_word(2)[-6:], second.where[-6:]) == ("line 5", "line 7")
    assert read(tmp_path, "a.conll", CONLL, column=1)[1].tags == ("IN", "NNP")
    first, second = read(tmp_path, "b.conllu", CONLLU)
    assert (first.words, first.tags, second.tags) == (("de", "le"), ("ADP", "DET"), ("NOUN",))
    assert read(tmp_path, "b.conllu", CONLLU, column="xpos")[0].tags == ("P", "D")
    assert read(tmp_path, "b.conllu", CONLLU, column="deprel")[0].tags == ("case", "root")
    indexed = "1 Ada PER\n2 left O\n"
    (one,) = read(tmp_path, "c.iob", indexed)
    assert (one.words, one.tags) == (("Ada", "left"), ("PER", "O"))
    (one,) = read(tmp_path, "d.txt", "\u3000\tO\nx\tO\n")
    assert one.words == ("\u3000", "x")
    lines = [{"tokens": ["Ada", "left"], "ner_tags": [1, 0]}]
    (one,) = read(tmp_path, "e.jsonl", "".join(map(json.dumps, lines)))
    assert (one.tags, one.locate_word(1)[-14:]) == (("1", "0"), "line 1, word 2")
    iob1 = "Ada I-PER\nLovelace I-PER\n"
    for repair, names in ((True, ("O", "B-PER", "I-PER")), (False, ("O", "I-PER"))):
        found = read(tmp_path, "f.conll", iob1, repair_iob=repair)
        assert Tagging(repair_iob=repair).label_names(found) == names


def test_iob_is_repaired():
    for tags, repaired in (
        ("I-A I-A B-A I-A O I-B", "B-A I-A B-A I-A O B-B"),
        ("E-A S-A B-A E-A E-A", "S-A S-A B-A E-A S-A"),
        ("L-A U-B B-B L-B", "U-A U-B B-B L-B"),
        ("M-A E-A E-A B-A M-A E-A", "B-A E-A S-A B-A M-A E-A"),
        ("I_A I_A O I_B_C", "B_A I_A O B_B_C"),
        ("I I O I", "B I O B"),
    ):
        assert to_iob2(tags.split()) == tuple(repaired.split())
    assert to_iob2(["E-A", "W-A"], "W") == ("W-A", "W-A")


@pytest.mark.parametrize(
    "spans",
    [
        {
            "entities": [
                {"start": 0, "end": 12, "label": "PER"},
                {"start": 21, "end": 25, "label": "LOC"},
            ]
        },
        {"label": [[21, 25, "LOC"], [0, 12, "PER"]]},
        {"labels": [[0, 12, "PER"], [21, 25, "LOC"]]},
        {
            "entities": [
                {"start_offset": 0, "end_offset": 12, "type": "PER"},
                {"start_offset": 21, "end_offset": 25, "type": "LOC"},
            ]
        },
        {
            "spans": [
                {"start": 0, "end": 12, "entity_group": "PER", "score": 0.9},
                {"start": 21, "end": 25, "labels": ["LOC"]},
            ]
        },
    ],
)
def test_spans_by_character_offsets_are_read(tmp_path, spans):
    line = {"id": 7, "text": "Ada Lovelace, not in Oslo.", **spans}
    (found,) = read(tmp_path, "a.jsonl", json.dumps(line))
    assert found.words == ("Ada", "Lovelace", ",", "not", "in", "Oslo", ".")
    assert found.tags == ("B-PER", "I-PER", "O", "O", "O", "B-LOC", "O")


def test_spans_that_do_not_fit_are_counted(tmp_path):
    text = "Ada Lovelace saw \u5317\u4eac."
    spans = [[1, 7, "PER"], [0, 3, "X"], [17, 19, "LOC"], [30, 40, "Y"], [16, 17, "Z"], [5, 5, "E"]]
    lines = [{"text": text, "entities": spans}, {"text": "It rained .", "entities": []}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report = ReadReport()
    options = RecordOptions(report=report)
    found = list(Tagging().read([str(tmp_path / "a.jsonl")], options))
    assert found[0].words == ("Ada", "Lovelace", "saw", "\u5317", "\u4eac", ".")
    assert found[0].tags == ("B-X", "O", "O", "B-LOC", "I-LOC", "O")
    assert found[1].tags == ("O", "O", "O")
    assert sorted(report.notes.values()) == [1, 3]
    (part,) = read(tmp_path, "c.jsonl", '{"text": "Lovelace saw", "spans": [[4, 10, "PER"]]}')
    assert part.tags == ("B-PER", "I-PER")
    printed = "\n".join(report.lines)
    assert "text <- text, spans <- entities" in printed
    for span in ('{"start": 0, "end": 1}', "[0, 1]", "5", '[0, "1", "X"]', '[0, 1, ""]'):
        with pytest.raises(DataError, match=r"line 1: .* is not a span. A span is"):
            read(tmp_path, "b.jsonl", f'{{"text": "a b", "spans": [{span}]}}')


SCHEMES = {
    "IOB2": "B-A I-A O B-B O I-A",
    "BIOES": "B-A E-A O S-B O E-A",
    "BILOU": "B-A L-A O U-B O L-A",
    "BMES": "B-A E-A O S-B O M-A",
    "BMEWO": "B-A E-A O W-B O E-A",
    "underscore": "B_A I_A O B_B O I_A",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_chunk_schemes_are_repaired_and_measured_by_chunks(scheme):
    tags = tuple(SCHEMES[scheme].split())
    gold = [TaggedSentence(("Ada", "Lovelace", "saw", "Oslo", "with", "Rome"), tags, "x, line 1")]
    (repaired,) = Tagging()._repair_tags(gold, tags)
    assert repaired.tags[:5] == tags[:5]
    assert repaired.tags[5] != tags[5]
    scores = score_chunks([repaired.tags], [["O", *repaired.tags[1:]]])
    assert [(row["label"], row["support"]) for row in scores.by_label] == [("A", 2), ("B", 1)]
    assert scores.values["recall"] == pytest.approx(2 / 3)
    words = [
        TaggedWord(word, tag, 0.5, i, i + 1) for i, (word, tag) in enumerate(zip("abcdef", tags))
    ]
    found = [(one.type, one.start, one.end) for one in merge_entities(words, "abcdef")]
    assert found == [("A", 0, 2), ("B", 3, 4), ("A", 5, 6)]
    names = Tagging().label_names(gold)
    assert {"O", *repaired.tags} <= {*names}


def test_what_tags_mean_is_decided_for_the_whole_data_set():
    # Italian parts of speech (TANL): E is a preposition, S a noun, AP a possessive adjective.
    tags = (("E", "S"), ("E", "AP", "S"))
    gold = [TaggedSentence(("in", "mia", "casa")[-len(one) :], one, "x, line 1") for one in tags]
    names = Tagging().label_names(gold)
    assert names == ("AP", "E", "S")
    objective, lm = untrained(Tagging(), gold, "bert")
    (rows,) = objective.encode(gold[:1], lm).take([0]).to_batch().labels
    assert [lm.settings.labels[i] for i in rows if i >= 0] == ["E", "S"]
    assert "recall" not in objective.evaluate(lm, gold[:1]).values


@pytest.mark.parametrize(
    "header",
    [
        "word\ttag",
        "Token\tNER",
        "text\tlabel",
        "Wort\tMarke",
        "\u8bcd\t\u6807\u7b7e",
        "tokens\tpos_tags\n",
    ],
)
def test_a_header_of_columns_is_no_word(tmp_path, header):
    rows = "Ada\tB-PER\nleft\tO\n\nin\tO\nOslo\tB-LOC\n"
    with pytest.warns(UserWarning, match="the first line .* is read as a header"):
        found = read(tmp_path, "a.tsv", f"{header}\n{rows}")
    assert [one.words for one in found] == [("Ada", "left"), ("in", "Oslo")]
    assert [one.words for one in read(tmp_path, "b.tsv", rows)] == [one.words for one in found]
    plain = read(tmp_path, "c.tsv", "word\tNOUN\ntag\tNOUN\n")
    assert plain[0].words == ("word", "tag")


@pytest.mark.filterwarnings("ignore:.*is read as a header")
@pytest.mark.parametrize(
    "content",
    [
        "Sentence #\tWord\tPOS\tTag\n1\tAda\tN\tB-PER\n\tleft\tV\tO\n",
        "label\ttoken\nB-PER\tAda\nO\tleft\n",
        "token\tner\tscore\nAda\tB-PER\t0.9\nleft\tO\t0.8\n",
        "0\tAda\tB-PER\n1\tleft\tO\n\n0\tback\tO\n",
        "Ada\t B-PER\nleft\tO \n",
    ],
)
def test_columns_of_files_are_those_that_a_header_or_numbers_tell(tmp_path, content):
    found = read(tmp_path, "a.tsv", content)
    assert (found[0].words, found[0].tags) == (("Ada", "left"), ("B-PER", "O"))


def test_hostile_files_are_one_clear_error(tmp_path):
    for name, content, options, message in (
        ("a.conll", "Ada B-PER\nleft\n", {}, r"line 2 has 1 column, line 1 has 2: .left."),
        ("b.conll", "\n\n", {}, "contains no sentence"),
        ("c.conll", "Ada O\n", {"column": 5}, "2 columns, 0 to 1: .* its tag in column 5"),
        ("d.conll", "Ada\nleft\n", {}, "1 columns, 0 to 0: the word cannot be in column 0"),
        ("e.conll", "Ada O\n", {"column": "upos"}, r'no column "upos"; it has 2 columns'),
        ("f.conllu", CONLLU, {"column": "upo"}, 'Did you mean "upos"'),
        ("a.csv", "Ada,B-PER\n", {}, "tagging reads columns separated by tabs or spaces"),
        ("g.conll", "a\tO\nb\t\n", {}, r'line 2: the tag of "b" is missing'),
        ("h.conll", "a\tO\n\tO\n", {}, "line 2: the word is missing"),
        ("i.conllu", CONLLU.replace("DET", "_"), {}, r'the tag of "le" is missing'),
        ("j.jsonl", '{"words": ["a"], "tags": []}', {}, "1 words and 0 tags"),
        ("k.jsonl", '{"words": "a", "tags": []}', {}, "is a string, not a list"),
        ("l.jsonl", '{"words": [""], "tags": ["O"]}', {}, 'item 1 of "words" .* is blank'),
        ("m.jsonl", '{"word": ["a"], "tags": ["O"]}', {}, "--set objective.words_field=NAME"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path, name, content, **options)


def test_names_of_tags_have_every_inside_tag():
    names = Tagging().add_settings(Settings(), sentences()).labels
    assert names == ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
    objective, lm = untrained(Tagging(), sentences(), "bert")
    wrong = [TaggedSentence(("x",), ("B-LOK",), "y.conll, line 3", (3,))]
    with pytest.raises(DataError, match=r'y.conll, line 3: the label "B-LOK" is unknown .*"B-LOC"'):
        objective.encode(wrong, lm)
    with pytest.raises(
        RecipeError, match='"tagging" reads a hidden state of every word: use an enc'
    ):
        Tagging().heads(presets["t5-tiny"], names)


def test_overfits_and_measures_itself():
    gold = sentences()
    objective, lm, _ = overfit(Tagging(), gold, "bert")
    metrics = objective.evaluate(lm, gold)
    assert metrics.values == dict.fromkeys(
        ("f1", "precision", "recall", "macro_f1", "accuracy"), 1.0
    )
    assert [(row["label"], row["support"]) for row in metrics.by_label] == [("LOC", 3), ("PER", 3)]
    changed = [TaggedSentence(gold[1].words, ("B-PER", "B-LOC"), gold[1].where)]
    (mistake,) = objective.evaluate(lm, changed).mistakes
    assert (mistake.text, mistake.expected, mistake.predicted) == ("in", "B-PER", "O")
    parts = [
        TaggedSentence(one.words, tuple("N" if w[0].isupper() else "X" for w in one.words), "x")
        for one in gold
    ]
    _, elmo, _ = overfit(Tagging(), gold, "elmo", lr=3e-3)
    assert elmo.capabilities == ("logits", "tag", "embed")
    assert elmo.module.heads["scalar-mix"].weights.any()
    assert [each.tag for each in elmo.tag("in Oslo")] == ["O", "B-LOC"]
    assert elmo.embed(["in Oslo"]).shape == (1, 2 * elmo.spec.d_model)
    objective, lm, _ = overfit(Tagging(), parts, "gpt2")
    metrics = objective.evaluate(lm, parts)
    assert (metrics.main, metrics.score, metrics.labels) == ("accuracy", 1.0, ("N", "X"))
    assert "tag runs/x 'Ada Lovelace lived" in objective.suggest_command("runs/x", lm)


def test_long_sentences_are_read_in_rows_and_every_word_has_its_tag_once():
    words = tuple("abcdefg" * 11)
    gold = [TaggedSentence(words, tuple("XY"[i % 2] for i in range(77)), "x")]
    objective, lm = untrained(Tagging(), gold, "bert")
    settings = lm.settings
    object.__setattr__(settings, "tokenizer", {"model_max_length": 13})
    rows = objective.encode(gold, lm).take(range(7))
    assert rows.input_ids.shape == (7, 13)
    labels = rows.labels[rows.labels >= 0]
    assert [lm.settings.labels[label] for label in labels] == list(gold[0].tags)


def test_chunk_metrics_are_those_of_seqeval():
    from seqeval.metrics import classification_report, f1_score

    gold = [["B-A", "I-A", "O", "B-B"], ["O", "O", "B-A"]]
    predicted = [["B-A", "O", "O", "B-B"], ["O", "B-B", "B-A"]]
    metrics = score_chunks(gold, predicted)
    assert metrics.values["f1"] == f1_score(gold, predicted)
    report = classification_report(gold, predicted, output_dict=True, zero_division=0)
    assert [row["f1"] for row in metrics.by_label] == [report[k]["f1-score"] for k in "AB"]
    bilou = score_chunks([["B-A", "L-A", "U-B"]], [["B-A", "L-A", "U-B"]])
    assert (bilou.values["f1"], len(bilou.by_label)) == (1.0, 2)
    assert score_chunks([["O"]], [["O"]]).values["f1"] == 0.0
