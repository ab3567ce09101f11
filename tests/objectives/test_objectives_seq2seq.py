"""Translation, text to text and summarization: pairs, prefixes, metrics, overfitting."""

from __future__ import annotations

import json

import pytest
import torch
from overfit_tasks import overfit, untrained

from trivium.data.batch import IGNORE_INDEX
from trivium.errors import DataError, RecipeError
from trivium.interop.settings import Settings
from trivium.objectives import to_device
from trivium.objectives.example_split import split_examples
from trivium.objectives.seq2seq import (
    SourceTarget,
    Summarization,
    TextToText,
    Translation,
    choose_bleu_tokenizer,
    encode_pairs,
)
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")

PAIRS = (
    ("the cat sleeps", "le chat dort"),
    ("a dog", "un chien"),
    ("the dog sleeps now", "le chien dort maintenant ici"),
)


def examples(pairs=PAIRS):
    return [SourceTarget(a, (b,), f"x.tsv, line {i}") for i, (a, b) in enumerate(pairs, start=1)]


def write(folder, **files):
    paths = []
    for name, content in files.items():
        path = folder / name.replace("_", ".", 1)
        path.write_text(content, encoding="utf-8")
        paths.append(str(path))
    return paths


def read(paths, **options):
    return [(one.source, *one.targets) for one in Translation(**options).read(paths)]


def test_reads_aligned_files_tables_and_records(tmp_path):
    aligned = write(tmp_path, a_en="x\n\ny\n\n", a_fr="u\n\nv\n")
    assert read(aligned) == [("x", "u"), ("y", "v")]
    assert read(aligned, reverse=True) == [("u", "x"), ("v", "y")]
    tabs = write(tmp_path, b_tsv="1\ta\tx\n2\tb\ty\n")
    assert read(tabs) == [("1", "a"), ("2", "b")]
    assert read(tabs, source_field=2, target_field=1) == [("x", "a"), ("y", "b")]
    assert read(tabs, source_field=1) == [("a", "1"), ("b", "2")]  # of numbers, the first other one
    assert read(tabs, source_field="2", target_field="1") == [("x", "a"), ("y", "b")]
    assert read(tabs, reverse=True) == [("a", "1"), ("b", "2")]
    assert read(write(tmp_path, h_csv="de,en\na,b\n"), target_field="de") == [("b", "a")]
    assert read(write(tmp_path, c_csv="a,b\n"), source_field=0, target_field=1) == [("a", "b")]
    with pytest.warns(
        UserWarning, match=r"line 1 of .* \(english, chinese\) is read as an example"
    ):
        assert len(read(write(tmp_path, i_tsv="english\tchinese\na\tb\n"))) == 2
    assert read(write(tmp_path, d_tsv="src\ttgt\na\tb\n")) == [("a", "b")]
    assert read(
        write(tmp_path, e_csv='de,en\n"a, b",c\n'), source_field="en", target_field="de"
    ) == [("c", "a, b")]
    records = [
        {"translation": {"en": "a", "fr": "b"}},
        {"translation": {"en": "c", "fr": ["d", "e"]}},
    ]
    (path,) = write(tmp_path, f_jsonl="".join(json.dumps(one) + "\n" for one in records))
    options = {"source_field": "translation.en", "target_field": "translation.fr"}
    assert read([path], **options) == [("a", "b"), ("c", "d", "e")]
    (path,) = write(tmp_path, g_json=json.dumps([{"document": "a", "summary": 3}]))
    assert read([path]) == [("a", "3")]


def test_a_pair_is_held_out_in_both_directions(tmp_path):
    lines = "".join(f"the cat {n}\tle chat {n}\n" for n in range(60))
    (path,) = write(tmp_path, a_tsv=lines)
    held_out = [
        {one.where for one in split_examples(list(Translation(reverse=r).read([path])), 0.3)[1]}
        for r in (False, True)
    ]
    assert held_out[0] == held_out[1] != set()


def test_hostile_files_are_one_clear_error(tmp_path):
    for number, (files, options, message) in enumerate(
        (
            (
                {"a_en": "x\ny\n", "a_fr": "u\n"},
                {},
                "a.en has 2 lines and .*a.fr has 1;.*a.fr, line 2 is blank or missing",
            ),
            ({"a_en": "x\n\ny\n", "a_fr": "u\nv\n"}, {}, "but .*a.en, line 2 is blank"),
            ({"a_en": "x\n", "a_fr": "\n"}, {}, "is empty: it contains no text"),
            ({"a_en": "x", "a_fr": "y", "a_de": "z"}, {}, "which lines belong together"),
            ({"a_tsv": "a b\tc\nd\n"}, {}, "line 2 has 1 cells, the header has 2"),
            ({"a_tsv": "a\t \n"}, {}, '"1" .columns are numbered from 0. of .*line 1 is blank: it'),
            (
                {"a_tsv": "a\tb\n"},
                {"source_field": 1, "target_field": 1},
                "source and target are both the column .1.",
            ),
            (
                {"a_tsv": "a\tb\n"},
                {"target_field": 2},
                'no column "2"; it has "0", "1".*Columns of a table without a header are numbered',
            ),
            ({"a_txt": "a\tb\n"}, {}, "a.txt: which lines belong together"),
            (
                {"a_tsv": "en\tfr\na\tb\n"},
                {"source_field": "de"},
                r'a.tsv has no column "de"; it has "en", "fr".*objective.source_field=NAME.$',
            ),
            (
                {"a_tsv": "Hi.\t\u55e8\nRun.\t\u8dd1\n"},
                {"source_field": "english"},
                r"it has .Hi\.., .*if it is data, give numbers .*objective.source_field=0",
            ),
            (
                {"a_jsonl": '{"source": "a", "target": []}'},
                {},
                r'"target" of .*line 1 is null: it needs a target',
            ),
            ({"a_jsonl": '{"source": "a", "target": " "}'}, {}, "is blank: it needs a target"),
            (
                {"a_jsonl": '{"x": "a", "y": "b"}'},
                {},
                r'no column for the source .* and none for the target .*it has "x", "y"',
            ),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(DataError, match=message):
            read(write(folder, **files), **options)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(RecipeError, match='"summarization" trains encoder-decoder models'):
        Summarization().heads(presets["gpt2-tiny"])
    gold = examples()
    _objective, lm = untrained(Translation(), gold, "t5")
    tokenizer = type(lm.tokenizer).train(
        "whitespace", texts=["a b"], vocab_size=9, special_tokens=["<unk>"], progress=False
    )
    lm.tokenizer = tokenizer
    with pytest.raises(RecipeError, match="no token that ends a text"):
        encode_pairs(lm, [("a", "b")])


def test_sources_and_targets_are_encoded_and_truncated_with_their_ends():
    gold = examples()
    objective, lm = untrained(Translation(prefix="to french : "), gold, "t5")
    end, start = lm.tokenizer.eos_id, lm.generation_rules.decoder_start[0]
    rows = objective.encode(gold[:1], lm).take([0])
    assert lm.tokenizer.decode(rows.input_ids[0].tolist()) == "to french : the cat sleeps"
    target = lm.tokenizer.encode_ids_batch(["le chat dort"])[0]
    assert rows.labels[0].tolist() == [*target, end]
    assert rows.decoder_input_ids[0].tolist() == [start, *target]
    object.__setattr__(lm.settings, "tokenizer", {"model_max_length": 3})
    rows = objective.encode(gold[:1], lm).take([0])
    assert rows.input_ids.shape == (1, 3)
    beginning = lm.tokenizer.encode_ids_batch(["to french"])[0]
    assert rows.input_ids[0].tolist() == [*beginning, end]
    assert rows.labels[0].tolist() == target[:2]  # no end follows what is cut
    object.__setattr__(
        lm.settings, "generation", {"decoder_start_token_id": 0, "forced_bos_token_id": 5}
    )
    rows = objective.encode(gold[:1], lm).take([0])
    assert rows.decoder_input_ids[0].tolist() == [0, 5]
    assert rows.labels[0].tolist() == [IGNORE_INDEX, target[0]]


def test_label_smoothing_is_for_training_only():
    gold = examples()
    losses = {}
    for smoothing in (0.0, 0.25):
        objective, lm = untrained(Translation(label_smoothing=smoothing), gold, "t5")
        batch = to_device(
            objective.encode(gold, lm).take([0, 1, 2]).to_batch(), torch.device("cpu")
        )
        for training in (True, False):
            lm.module.train(training)
            with torch.no_grad():
                losses[smoothing, training] = float(objective.loss(lm.module, batch)["loss"])
    assert losses[0.0, True] == pytest.approx(losses[0.25, False])
    assert losses[0.25, True] != pytest.approx(losses[0.0, True])


def test_every_task_overfits_and_measures_itself():
    gold = examples()
    for objective, main in (
        (Translation(prefix="fr : "), "bleu"),
        (Summarization(), "rouge_l"),
        (TextToText(num_beams=1), "exact_match"),
    ):
        objective, lm, _ = overfit(objective, gold, "t5", lr=3e-3)
        metrics = objective.evaluate(lm, gold)
        assert metrics.main == main
        assert metrics.values["exact_match"] == 1.0
        assert metrics.predictions[1] == {
            "source": "a dog",
            "target": "un chien",
            "predicted": "un chien",
        }
        assert metrics.values[main] > 0.99
        if main != "exact_match":  # the worst mistake is first
            near, far = (
                SourceTarget("a dog", ("un chien la",), "1"),
                SourceTarget("a dog", ("z",), "2"),
            )
            assert [one.where for one in objective.evaluate(lm, [near, far]).mistakes] == ["2", "1"]
    assert lm.translate("a dog") == "un chien"
    (mistake,) = objective.evaluate(
        lm, [SourceTarget("a dog", ("une", "dog"), "y, line 7")]
    ).mistakes
    assert (mistake.where, mistake.expected, mistake.predicted) == ("y, line 7", "une", "un chien")
    assert objective.suggest_command("runs/x", lm) == "translate runs/x 'a text of yours'"


def test_prefixes_of_mixed_tasks_are_each_their_own():
    # A summarizer whose targets had at least 56 tokens learns shorter ones.
    settings = Settings(generation={"min_length": 56, "max_length": 142, "eos_token_id": 2})
    for prefix in ("a: ", "b: "):
        settings = TextToText(prefix=prefix, num_beams=3).add_settings(settings, [])
        assert settings.task_options("text-to-text") == {"prefix": prefix}
    assert settings.generation == {"eos_token_id": 2, "num_beams": 3, "length_penalty": 1.0}
    texts = TextToText(prefix="a: ").texts(examples(PAIRS[:1]))
    assert list(texts) == ["a: the cat sleeps", "le chat dort"]


def test_metrics_are_those_of_the_libraries():
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu import corpus_bleu, corpus_chrf

    predicted = ["the cat sat on the mat today", "a small dog"]
    references = [("the cat sat on a mat today", "the cat is here"), ("a small dog barks",)]
    metrics, scores = Translation().compute_text_metrics(predicted, references)
    streams = [[one[0] for one in references], [references[0][1], None]]
    assert metrics.values["bleu"] * 100 == pytest.approx(corpus_bleu(predicted, streams).score)
    assert metrics.values["chrf"] * 100 == pytest.approx(corpus_chrf(predicted, streams).score)
    assert "tok:13a" in metrics.notes[0]
    of_texts = [corpus_chrf([p], [[one] for one in r]).score for p, r in zip(predicted, references)]
    assert [100 * score for score in scores] == pytest.approx(of_texts)
    metrics, _ = Summarization().compute_text_metrics(predicted, references)
    scorer = RougeScorer(["rougeL"])
    scores = [scorer.score_multi(r, p)["rougeL"].fmeasure for p, r in zip(predicted, references)]
    assert metrics.values["rouge_l"] == pytest.approx(sum(scores) / 2)
    with pytest.raises(RecipeError, match=r"sacrebleu\[ja\]"):
        Translation(bleu_tokenizer="ja-mecab").compute_text_metrics(predicted, references)
    for objective in (Translation(), Summarization(), TextToText()):
        objective.check_metric_libraries()


def test_languages_without_spaces_get_their_own_tokenizer():
    chinese = "\u4eca\u5929\u5929\u6c14\u5f88\u597d"
    for text, name in (
        (chinese, "zh"),
        ("\u3053\u3093\u306b\u3061\u306f", "char"),
        ("\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "char"),
        ("how are you", "13a"),
        ("", "13a"),
    ):
        assert choose_bleu_tokenizer([text]) == name
    metrics, _ = Translation().compute_text_metrics([chinese], [(chinese,)])
    assert metrics.values["bleu"] == pytest.approx(1.0)
    assert "tok:zh" in metrics.notes[0]
    metrics, _ = Summarization().compute_text_metrics([chinese[:3]], [(chinese,)])
    assert metrics.values["rouge1"] == pytest.approx(2 / 3)
    assert "each Han character is a word" in metrics.notes[0]
