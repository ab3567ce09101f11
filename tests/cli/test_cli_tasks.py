"""classify, tag, answer, translate and embed on the command line: one line in, one answer out."""

from __future__ import annotations

import io
import json
import sys
import types

import numpy as np
import pytest
from small_models import small_spec
from task_models import VOCABULARY, as_ours, theirs
from their_tokenizers import TEXT, ours

from trivium.cli import main
from trivium.inference.beam import Beams
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.models.compiled_step import CompiledStep
from trivium.nn.compiled import has_compiler

NAMES = {"0": "bad", "1": "good", "2": "so so"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    classifier = as_ours(
        theirs("BertForSequenceClassification", num_labels=3), "bert", id2label=NAMES
    )
    tagger = as_ours(theirs("BertForTokenClassification", num_labels=3), "bert", id2label=NAMES)
    answers = as_ours(theirs("BertForQuestionAnswering"), "bert")
    encoder = as_ours(theirs("BertForMaskedLM"), "bert")
    spec = small_spec("bart").replace(vocab_size=VOCABULARY)
    start = Settings(config={"decoder_start_token_id": 0, "eos_token_id": 2})
    both = LanguageModel(spec, build(spec, seed=3), ours("roberta"), start)
    models = {"classify": classifier, "tag": tagger, "answer": answers, "embed": encoder}
    models["translate"] = both
    return {verb: str(model.save(folder / verb)) for verb, model in models.items()}


@pytest.fixture
def stdin(monkeypatch):
    def give(text: str) -> None:
        buffer = io.BytesIO(text.encode())
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=buffer))

    return give


def lines(capsys) -> list[str]:
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def records(capsys) -> list[dict]:
    return [json.loads(line) for line in lines(capsys)]


def test_classify(saved, capsys):
    model = load(saved["classify"])
    assert main(["classify", saved["classify"], "a\tfilm", "今天"]) == 0
    wanted = model.classify(["a\tfilm", "今天"])
    first, second = lines(capsys)
    assert first == f"{wanted[0].label}\t{wanted[0].score:.4f}\ta film"
    assert second == f"{wanted[1].label}\t{wanted[1].score:.4f}\t今天"
    assert main(["classify", saved["classify"], "a", "--pair", "b", "--json"]) == 0
    (record,) = records(capsys)
    pair = model.classify("a", "b")
    assert record == {
        "text": "a",
        "pair": "b",
        "label": pair.label,
        "score": pytest.approx(pair.score),
        "scores": pytest.approx(pair.scores),
    }
    assert list(record["scores"]) == list(pair.scores)


def test_classify_reads_lines_and_pairs(saved, capsys, stdin):
    stdin("a\tb\r\n\nAda wrote it\n")
    assert main(["classify", saved["classify"], "--json"]) == 0
    found = records(capsys)
    wanted = load(saved["classify"]).classify([("a", "b"), "", "Ada wrote it"])
    assert [row["label"] for row in found] == [each.label for each in wanted]
    assert [row["score"] for row in found] == pytest.approx([e.score for e in wanted], abs=1e-5)
    assert [(row["text"], row.get("pair")) for row in found] == [
        ("a", "b"),
        ("", None),
        ("Ada wrote it", None),
    ]


def test_tag(saved, capsys, stdin):
    stdin(f"{TEXT[0]}\n\n你好 x\n")
    assert main(["tag", saved["tag"]]) == 0
    found = lines(capsys)
    wanted = load(saved["tag"]).tag([TEXT[0], "", "你好 x"])
    assert found == [" ".join(f"{w.word}/{w.tag}" for w in words) for words in wanted]
    assert main(["tag", saved["tag"], "Ada wrote", "--json"]) == 0
    (record,) = records(capsys)
    assert record["text"] == "Ada wrote"
    assert [word["word"] for word in record["words"]] == ["Ada", "wrote"]
    assert set(record["words"][0]) == {"word", "tag", "score"}


def test_answer(saved, capsys, stdin, tmp_path):
    model, context = load(saved["answer"]), TEXT[1]
    options = ["--context", context, "--top-k", "2"]
    assert main(["answer", saved["answer"], "Who?", "What?", *options]) == 0
    wanted = [each for q in ("Who?", "What?") for each in model.answer(q, context, top_k=2)]
    found = [line.split("\t") for line in lines(capsys)]
    assert [text for text, _ in found] == [each.text for each in wanted]
    assert [float(s) for _, s in found] == pytest.approx([e.score for e in wanted], abs=2e-4)
    file = tmp_path / "context.txt"
    file.write_text(context, encoding="utf-8")
    assert main(["answer", saved["answer"], "Who?", "--context-file", str(file), "--json"]) == 0
    (record,) = records(capsys)
    (answer,) = record["answers"]
    assert context[answer["start"] : answer["end"]] == answer["text"] == wanted[0].text
    stdin(f"Who?\t{context}\n\nWhat?\tAda.\n")
    assert main(["answer", saved["answer"]]) == 0
    assert next(iter(lines(capsys))).split("\t")[0] == wanted[0].text


def test_answer_without_a_context(saved, capsys, tmp_path):
    file = tmp_path / "context.txt"
    file.write_bytes(b"ab\xff")
    for arguments, what in (
        (["Who?"], "'Who?' has no context: give --context TEXT or --context-file FILE"),
        (["Who?", "--context-file", str(file)], "not UTF-8 (byte 3)"),
        (["Who?", "--context-file", str(tmp_path / "none")], "No such file"),
        (["Who?", "--context", "a", "--context-file", str(file)], "leave out one of them"),
    ):
        assert main(["answer", saved["answer"], *arguments]) == 1
        found = capsys.readouterr()
        assert what in found.err
        assert found.err.count("\n") == 1
        assert found.out == ""


def test_translate_keeps_lines_together(saved, capsys, stdin):
    model = load(saved["translate"])
    stdin("Ada wrote it\n\nthe weather\n \n")
    options = ["--beams", "2", "--max-new-tokens", "5"]
    assert main(["translate", saved["translate"], *options]) == 0
    wanted = model.translate(
        ["Ada wrote it", "the weather"], beams=Beams(num_beams=2), max_new_tokens=5
    )
    first, second = (" ".join(text.split("\n")) for text in wanted)
    assert capsys.readouterr().out.split("\n") == [first, "", second, "", ""]
    assert main(["translate", saved["translate"], "Ada", "--max-new-tokens", "3", "--json"]) == 0
    (record,) = records(capsys)
    assert record == {"text": "Ada", "target": model.translate("Ada", max_new_tokens=3)}


def test_translate_in_8_bits(saved, capsys):
    assert main(["translate", saved["translate"], "Ada wrote", "--quantize", "int8"]) == 0
    model = load(saved["translate"], quantize="int8", packed=True)
    assert lines(capsys) == [" ".join(model.translate("Ada wrote").split("\n"))]


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
def test_translate_compiled_finds_the_same(saved, capsys, monkeypatch):
    steps, run = [], CompiledStep.__call__

    def hear(step, stack, tokens, *rest):
        steps.append(len(tokens))
        return run(step, stack, tokens, *rest)

    monkeypatch.setattr(CompiledStep, "__call__", hear)
    asked = [saved["translate"], "Ada wrote it", "the weather", "--max-new-tokens", "5"]
    for options in ([], ["--compile"]):
        assert not steps
        assert main(["translate", *asked, *options]) == 0
    first, second, *again = lines(capsys)
    assert again == [first, second]
    assert max(steps) == 8  # four beams of both


def test_translate_takes_a_length_penalty_alone(saved, capsys, monkeypatch):
    asked = []

    def translate(self, texts, **options):
        asked.append(options["beams"])
        return texts

    monkeypatch.setattr(LanguageModel, "translate", translate)
    assert main(["translate", saved["translate"], "a", "--length-penalty", "0.5"]) == 0
    assert main(["translate", saved["translate"], "a"]) == 0
    assert asked == [Beams(length_penalty=0.5), Beams()]
    assert lines(capsys) == ["a", "a"]


def test_embed(saved, capsys, stdin, tmp_path):
    model, texts = load(saved["embed"]), ["Ada wrote it", "", "今天"]
    wanted = model.embed(texts).numpy()
    stdin("\n".join(texts) + "\n")
    assert main(["embed", saved["embed"]]) == 0
    found = np.array([[float(x) for x in line.split()] for line in lines(capsys)])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    stdin("\n".join(texts) + "\n")
    assert main(["embed", saved["embed"], "--out", str(tmp_path / "v"), "--pooling", "first"]) == 0
    assert "3 vectors of 22 numbers" in capsys.readouterr().err
    stored = np.load(tmp_path / "v.npy")
    np.testing.assert_allclose(stored, model.embed(texts, pooling="first").numpy(), atol=1e-5)
    assert [file.name for file in tmp_path.iterdir()] == ["v.npy"]
    assert main(["embed", saved["embed"], "a", "b", "--no-normalize", "--json"]) == 0
    plain = model.embed(["a", "b"], normalize=False).tolist()
    assert [row["vector"] for row in records(capsys)] == [pytest.approx(v, rel=1e-4) for v in plain]


def test_similarities(saved, capsys):
    texts = ["Ada", "wrote", "notes"]
    arguments = ["embed", saved["embed"], *texts, "--similarities"]
    vectors = load(saved["embed"]).embed(texts).numpy()
    assert main(arguments) == 0
    for line, text, values in zip(lines(capsys), texts, vectors @ vectors.T, strict=True):
        numbers, _, name = line.strip().rpartition("  ")
        assert name == text
        assert [float(x) for x in numbers.split()] == pytest.approx(values, abs=1e-3)
    assert main([*arguments, "--json"]) == 0
    found = [row["similarities"] for row in records(capsys)]
    np.testing.assert_allclose(found, vectors @ vectors.T, atol=1e-5)


@pytest.mark.parametrize("verb", ["classify", "tag", "answer", "translate", "embed"])
def test_a_model_that_cannot(saved, verb, capsys):
    other = saved["translate" if verb == "embed" else "embed"]
    assert main([verb, other, "a\tb", *(["--context", "c"] if verb == "answer" else [])]) == 1
    found = capsys.readouterr()
    assert found.err.startswith("error: this model is an encoder")
    assert f"cannot {verb}; it has logits" in found.err
    assert found.err.count("\n") == 1
    assert found.out == ""


@pytest.mark.parametrize("verb", ["classify", "tag", "answer", "translate", "embed"])
def test_no_model_and_no_lines(saved, verb, capsys, stdin, tmp_path):
    assert main([verb, str(tmp_path / "none"), "a"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    stdin("")
    assert main([verb, saved[verb]]) == 0
    assert lines(capsys) == []


def test_embed_refuses_other_poolings(saved, capsys):
    assert main(["embed", saved["embed"], "a", "--pooling", "max"]) == 1
    assert "must be mean, first or last" in capsys.readouterr().err


def test_more_lines_than_go_together(saved, capsys, stdin, monkeypatch):
    monkeypatch.setattr("trivium.cli.answers.in_batches.__defaults__", (3,))
    texts = [f"{n} notes" for n in range(7)]
    stdin("\n".join(texts))
    assert main(["tag", saved["tag"], "--json"]) == 0
    assert [row["text"] for row in records(capsys)] == texts
