"""Text classification: reading, kinds of labels, losses, metrics, and overfitting."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
import torch
from overfit_tasks import overfit, untrained
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from trivium.data.batch import Batch
from trivium.errors import DataError, MissingExtraError, RecipeError
from trivium.interop.settings import Settings
from trivium.objectives import to_device
from trivium.objectives.classification import (
    LabelledText,
    TextClassification,
    infer_label_kind,
    normalize_label,
    sort_naturally,
)
from trivium.objectives.task_metrics import (
    compute_class_metrics,
    compute_multi_label_metrics,
    compute_regression_metrics,
)
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")

TEXTS = [
    "a dull film",
    "a fine film",
    "so bad",
    "so good and fine",
    "bad bad",
    "a good one",
    "dull",
]
CLASSES = ["neg", "pos", "neg", "pos", "neg", "pos", "neg"]


def examples(labels, pairs=None):
    pairs = pairs or [None] * len(labels)
    rows = zip(TEXTS, pairs, labels)
    return [
        LabelledText(text, pair, normalize_label(label, "x"), f"x.csv, line {i}")
        for i, (text, pair, label) in enumerate(rows, start=2)
    ]


def read(folder, name: str, content: str, **options):
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(content, encoding="utf-8")
    return list(TextClassification(**options).read([str(path)]))


def test_reads_texts_pairs_and_labels_of_all_formats(tmp_path):
    lines = [{"sentence": "so bad", "label": 0}, {"sentence": "good", "label": 1.0}]
    found = read(tmp_path, "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert [(one.text, one.label) for one in found] == [("so bad", "0"), ("good", "1")]
    assert found[1].where.endswith("a.jsonl, line 2")
    found = read(tmp_path, "b.csv", 'Premise,hypothesis,label\n"x, y",z,true\n')
    assert (found[0].text, found[0].pair, found[0].as_text) == ("x, y", "z", "x, y z")
    found = read(tmp_path, "c.tsv", "a\tb\tc\nu\tv\tw\n", text_field="b", label_field="c")
    assert (found[0].text, found[0].pair, found[0].label) == ("v", None, "w")
    for name in ("neg/1.txt", "pos/2.txt", "unsup/3.txt"):
        (tmp_path / "imdb" / name).parent.mkdir(parents=True)
        (tmp_path / "imdb" / name).write_text(f" text of {name}\n")
    found = list(TextClassification().read([str(tmp_path / "imdb")]))
    assert [(one.text, one.label) for one in found] == [
        ("text of neg/1.txt", "neg"),
        ("text of pos/2.txt", "pos"),
    ]
    (tmp_path / "imdb" / "urls_pos.txt").write_text("http://x")
    assert len(list(TextClassification().read([str(tmp_path / "imdb")]))) == 2
    read(tmp_path / "records", "README.csv", "text,label\nx,y\n")
    (tmp_path / "records" / "README.txt").write_text("about README.csv")
    assert [one.text for one in TextClassification().read([str(tmp_path / "records")])] == ["x"]
    found = list(TextClassification().read([str(tmp_path / "imdb" / "pos")]))
    assert [one.label for one in found] == ["pos"]


def test_hostile_files_are_one_clear_error(tmp_path):
    for name, content, message in (
        ("a.csv", "text,label\nx,\n", r"the label of .*a.csv, line 2 is blank"),
        ("b.csv", "text,label\n ,1\n", r'"text" of .*b.csv, line 2 is blank'),
        (
            "c.csv",
            "words,label\nx,1\n",
            r'no column for the text .*it has "words", "label".*--set objective.text_field',
        ),
        ("d.csv", "text\nx\n", r"no column for the label .*--set objective.label_field=NAME"),
        ("e.jsonl", '{"text": 5, "label": 1}\n', r'"text" of .*line 1 is a number'),
        ("f.jsonl", '{"text": "x", "label": {}}\n', r"the label of .*line 1 is an object"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path, name, content)
    deep = tmp_path / "data" / "train" / "pos" / "1.txt"
    deep.parent.mkdir(parents=True)
    deep.write_text("x")
    (tmp_path / "data" / "neg").mkdir()
    (tmp_path / "data" / "neg" / "1.txt").write_text("y")
    with pytest.raises(DataError, match="more than one folder below"):
        list(TextClassification().read([str(tmp_path / "data")]))
    (tmp_path / "data" / "neg" / "1.txt").write_text(" ")
    with pytest.raises(DataError, match="is blank"):
        list(TextClassification().read([str(tmp_path / "data")]))


def test_kinds_and_order_of_labels():
    for labels, kind in (
        (["a", "b"], "classes"),
        ([1, 2], "classes"),
        (["1", "2.5"], "regression"),
        ([0.5, 2], "regression"),
        (["beta", "2.1"], "classes"),
        ([["a"], []], "multi-label"),
    ):
        assert infer_label_kind(examples(labels)) == kind
    for labels, message in (
        ([["a"], "b"], "line 3 has one label, .*line 2 has a list"),
        ([], "no labelled example"),
    ):
        with pytest.raises(DataError, match=message):
            infer_label_kind(examples(labels))
    assert sort_naturally(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    names = TextClassification().add_settings(Settings(), examples([3, 10, 3.0])).labels
    assert names == ("3", "10")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "[1.5, NaN]"])
def test_a_label_that_is_not_finite_is_refused(tmp_path, value):
    lines = f'{{"text": "x", "label": 1.5}}\n{{"text": "y", "label": {value}}}\n'
    for kind in (None, "classes", "regression", "multi-label"):
        with pytest.raises(DataError, match=r"the label of .*a.jsonl, line 2 is .*Fill it in"):
            read(tmp_path, "a.jsonl", lines, label_kind=kind)


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        (["1.5", "2.5", "nan", "3"], "nan"),
        (["1", "2", "NaN"], "NaN"),
        (["1", "-inf"], "-inf"),
        (["0.5", "NA", "2"], "NA"),
        (["0.5", "#N/A", "2"], "#N/A"),
        (["3,5", "4"], "3,5"),
        (["butter", "nan", "2"], None),
        (["1", "2", "NA"], None),
        (["nan", "naan"], None),
        (["yes", "3,5"], None),
    ],
)
def test_what_is_no_number_among_numbers_is_refused(labels, refused):
    if refused is None:
        assert infer_label_kind(examples(labels)) == "classes"
        return
    line = labels.index(refused) + 2
    with pytest.raises(DataError, match=rf'the label of x.csv, line {line} is "{refused}"'):
        infer_label_kind(examples(labels))


def test_one_value_is_one_class_in_all_formats(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    for number, values in enumerate(([1, 0], [True, False])):
        classes = {"1", "0"} if number == 0 else {"true", "false"}
        names = set()
        for written in ({1: "1.0", 0: "0"}, {1: "1", 0: "0.00"}, {1: "TRUE", 0: "False"}):
            if (written[1] == "TRUE") == bool(number):
                rows = "".join(f"text {one},{written[int(one)]}\n" for one in values)
                names |= {one.label for one in read(tmp_path, "a.csv", f"text,label\n{rows}")}
        lines = [{"text": f"text {one}", "label": one} for one in (*values, float(values[0]))]
        lines = lines[: 3 - number]
        found = read(tmp_path, "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        names |= {one.label for one in found}
        numbers = (pyarrow.int8(), pyarrow.float32(), pyarrow.decimal128(22, 1))
        for kind in (pyarrow.bool_(),) if number else numbers:
            columns = {"text": ["x", "y"], "label": pyarrow.array(values).cast(kind)}
            pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
            found = TextClassification().read([str(tmp_path / "a.parquet")])
            names |= {one.label for one in found}
        assert names == classes
    cells = read(tmp_path, "b.csv", 'text,label\nx,"1.0, 2"\ny,"1, TRUE"\n')
    names = TextClassification(label_kind="multi-label").label_names(cells)
    assert names == ("true", "1", "2")
    composed = read(tmp_path, "c.csv", "text,label\nx,caf\u00e9\ny,cafe\u0301\n")
    assert {one.label for one in composed} == {"caf\u00e9"}


@pytest.mark.parametrize(
    ("labels", "notice"),
    [
        ([1, 2, 3, 4, 5], "5 whole numbers from 1 to 5.*objective.label_kind=regression"),
        (range(11), "11 whole numbers from 0 to 10"),
        ([-1, 0, 1], "3 whole numbers from -1 to 1"),
        ([10, 25, 40, 90], "4 whole numbers from 10 to 90"),
        (["yes", "no", "NA"], 'the label "NA" is a class like the others'),
        ([0, 1], None),
        ([0, 1, 2], None),
        (range(20), None),
        (["1 star", "2 stars"], None),
    ],
)
def test_a_rating_and_missing_labels_are_told(labels, notice):
    rows = [
        LabelledText(f"t{i}", None, normalize_label(one, "x"), "x") for i, one in enumerate(labels)
    ]
    spec = presets["bert-tiny"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert TextClassification().infer_keys(spec, rows).label_kind == "classes"
        TextClassification(label_kind="classes").infer_keys(spec, rows)
    told = [str(one.message) for one in caught]
    assert len(told) == (notice is not None)
    assert notice is None or re.search(notice, told[0])


def test_settings_refuse_labels_that_cannot_be_learned():
    objective = TextClassification()
    swapped = [LabelledText("x", None, f"text {i}", "x.csv, line 2") for i in range(300)]
    for wrong, message in (
        (examples(["a", "a"]), 'all 2 examples have the label "a"'),
        (swapped, "300 different labels, .*1 different texts.*columns of text and label swapped"),
    ):
        with pytest.raises(DataError, match=message):
            objective.add_settings(Settings(), wrong)
    with pytest.raises(DataError, match="name each class that applies once"):
        TextClassification(label_kind="multi-label").add_settings(
            Settings(), examples([["a", "a"]])
        )
    with pytest.raises(RecipeError, match="3 numbers for 2 classes"):
        TextClassification(class_weights=(1, 2, 3)).with_labels("ab", examples(CLASSES))
    gold = examples(CLASSES)
    resolved, lm = untrained(objective, gold, "bert")
    with pytest.raises(
        DataError, match=r'line 2: the label "poss" is unknown .*Did you mean "pos"'
    ):
        resolved.encode(examples(["poss"]), lm)
    numbers = examples([0.5, 1.5])
    resolved, lm = untrained(objective, numbers, "bert")
    with pytest.raises(DataError, match='line 2 is "much", not a number'):
        resolved.evaluate(lm, examples(["much"]))


def test_models_and_keys_that_do_not_fit_are_refused():
    encoder, decoder, both = (presets[f"{name}-tiny"] for name in ("bert", "gpt2", "t5"))
    with pytest.raises(RecipeError, match="prefix is for an encoder-decoder"):
        TextClassification(prefix="x: ").heads(encoder, "ab")
    with pytest.raises(RecipeError, match="lm_weight is for a decoder"):
        TextClassification(lm_weight=0.5).heads(encoder, "ab")
    with pytest.raises(
        RecipeError, match='generates the name of one class, not labels of kind "regression"'
    ):
        TextClassification().infer_keys(both, examples([0.5, 1]))
    with pytest.raises(RecipeError, match="class_weights needs one class per text"):
        TextClassification(class_weights="balanced").infer_keys(decoder, examples([0.5, 1]))
    pooled = TextClassification(pooling="mean").heads(decoder, "ab")
    assert [head.kind for head in pooled] == ["classifier"]
    for pooling, expected in ((None, "mean"), ("last", "last")):
        heads = TextClassification(pooling=pooling).heads(presets["elmo-tiny"], "ab")
        assert [head.pooling for head in heads] == [expected]
    balanced = TextClassification(class_weights="balanced").infer_keys(encoder, examples(CLASSES))
    names = balanced.label_names(examples(CLASSES))
    balanced = balanced.with_labels(names, examples(CLASSES))
    assert balanced.class_weights == pytest.approx((7 / 8, 7 / 6))
    gold = examples(["10", "9", "1", "9", "9", "1", "9"])
    names = np.array(TextClassification().label_names(gold))
    expected = compute_class_weight("balanced", classes=names, y=[one.label for one in gold])
    objective = TextClassification(class_weights="balanced", label_kind="classes")
    balanced = objective.infer_keys(encoder, gold).with_labels(names.tolist(), gold)
    assert balanced.class_weights == pytest.approx(expected.tolist())


@pytest.mark.parametrize(
    ("family", "labels", "options", "main"),
    [
        ("bert", CLASSES, {}, "accuracy"),
        ("bert", [["a"], ["b"], [], ["a", "b"], ["b"], ["a"], []], {}, "micro_f1"),
        ("bert", [0.5, 1.0, -1.0, 2.0, 0.0, 1.5, 3.0], {}, "r2"),
        ("gpt2", CLASSES, {"class_weights": "balanced"}, "accuracy"),
        ("t5", CLASSES, {"prefix": "sentiment: "}, "accuracy"),
    ],
    ids=["bert-classes", "bert-multi-label", "bert-numbers", "gpt2-classes", "t5-classes"],
)
def test_every_kind_overfits_and_measures_itself(family, labels, options, main):
    gold = examples(labels, ["a pair"] * 7 if family == "bert" else None)
    objective, lm, _ = overfit(TextClassification(**options), gold, family)
    metrics = objective.evaluate(lm, gold)
    assert metrics.main == main
    assert metrics.score > 0.98
    assert len(metrics.predictions) == 7
    if main == "r2":
        tree = json.loads(json.dumps(metrics.to_dict()))
        assert (tree["main"], tree["num_examples"]) == ("r2", 7)
        assert set(tree["mistakes"][0]) == {"where", "text", "expected", "predicted", "confidence"}
        return
    assert not metrics.mistakes
    if main == "micro_f1":
        return
    if family == "bert":  # of pairs
        return
    assert lm.classify("so bad").label == "neg"
    wrong = objective.evaluate(lm, examples(["pos", *CLASSES[1:]]))
    assert [(one.expected, one.predicted) for one in wrong.mistakes] == [("pos", "neg")]
    assert wrong.mistakes[0].where == "x.csv, line 2"


@torch.no_grad()
def test_losses_equal_the_definitions():
    gold = examples(CLASSES)
    objective, lm = untrained(TextClassification(lm_weight=0.25), gold, "gpt2")
    batch = objective.encode(gold, lm).take(range(7)).to_batch()
    terms = objective.loss(lm.module, to_device(batch, torch.device("cpu")))
    assert objective.term_weights() == {"lm": 0.25}
    assert TextClassification(lm_weight=0).term_weights() == {"lm": 0}
    task = lm_total = 0.0
    for text, label in zip(TEXTS, batch.sequence_labels):
        ids = torch.tensor([lm.text_inputs([(text, None)])[0].ids])
        hidden = lm.module(ids)
        task += float(
            F.cross_entropy(lm.module.logits(hidden, head="classifier"), torch.tensor([label]))
        )
        logits = lm.module.logits(hidden, head="lm")[0, :-1]
        lm_total += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
    assert float(terms["task"]) == pytest.approx(task, rel=1e-9)
    assert float(terms["lm"]) == pytest.approx(lm_total, rel=1e-9)
    weighted = objective.replace(class_weights=(0.5, 2.0))
    scaled = weighted.loss(lm.module, to_device(batch, torch.device("cpu")))["task"]
    assert float(scaled) != pytest.approx(task, rel=1e-9)
    logits = torch.randn(3, 2)

    class Fixed:
        heads = ("classifier",)

        def read(self, **inputs):
            return None, None

        def logits(self, hidden, head, attention_mask):
            return logits

    ids = np.zeros((3, 2), dtype=np.int64)
    for labels, expected in (
        (
            np.array([[1, 0], [1, 1], [0, 0]], dtype=np.float32),
            lambda y: F.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1).sum(),
        ),
        (np.array([0.5, -1, 2], dtype=np.float32), lambda y: ((logits[:, 0] - y) ** 2).sum()),
        (np.array([0, 1, 1]), lambda y: F.cross_entropy(logits, y, reduction="sum")),
    ):
        batch = Batch(ids, sequence_labels=labels)
        terms = TextClassification().loss(Fixed(), to_device(batch, torch.device("cpu")))
        assert float(terms["loss"]) == pytest.approx(float(expected(torch.tensor(labels))))
        assert TextClassification().loss_denominators(batch) == {"loss": 3}


def test_metrics_are_those_of_the_libraries():
    from scipy import stats
    from sklearn import metrics as sk

    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 5, (2, 31))
    metrics = compute_class_metrics(gold, predicted, list("abcdef"))
    assert metrics.values["macro_f1"] == sk.f1_score(gold, predicted, average="macro")
    assert metrics.values["matthews"] == sk.matthews_corrcoef(gold, predicted)
    assert len(metrics.by_label) == 6
    assert metrics.by_label[5]["support"] == 0
    assert sum(map(sum, metrics.confusion)) == 31
    assert compute_class_metrics([1, 1], [1, 1], ["a", "b"]).values["matthews"] == 0.0
    gold, predicted = rng.integers(0, 2, (2, 13, 3))
    metrics = compute_multi_label_metrics(gold, predicted, list("abc"))
    assert metrics.values["subset_accuracy"] == sk.accuracy_score(gold, predicted)
    gold, predicted = rng.normal(size=(2, 7))
    metrics = compute_regression_metrics(gold, predicted)
    assert metrics.values["spearman"] == stats.spearmanr(gold, predicted)[0]
    assert compute_regression_metrics(gold, predicted * 0).values["pearson"] == 0.0


def test_a_missing_library_is_an_error_that_says_what_to_install(monkeypatch):
    import importlib.util

    objective = TextClassification()
    objective.check_metric_libraries()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install '.\[metrics\]'"):
        objective.check_metric_libraries()


def test_the_command_to_try_has_a_held_out_text(tmp_path):
    assert (
        TextClassification().suggest_command("runs/x", None) == "classify runs/x 'a text of yours'"
    )
    (tmp_path / "predictions.jsonl").write_text('{"text": "\u4f60\u597d"}\n', encoding="utf-8")
    assert "\u4f60\u597d" in TextClassification().suggest_command(str(tmp_path), None)
    (tmp_path / "predictions.jsonl").write_text('{"text": "a", "pair": "b c"}\n')
    assert TextClassification().suggest_command(str(tmp_path), None).endswith("a --pair 'b c'")
