"""Commands that use a model: their lines, JSON objects and errors are those of `LanguageModel`."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
import types
import warnings

import numpy as np
import pytest
from double import FLOAT32
from overfit_tasks import untrained
from run_settings import quiet
from small_models import small_spec
from task_models import VOCABULARY, as_ours, theirs
from their_tokenizers import TEXT, ours

from trivium import cli
from trivium.adapt import LoRA, add_lora
from trivium.cli import main
from trivium.cli._shared import check_characters
from trivium.inference.score import encode_item, score_continuations
from trivium.inference.speculative import PromptLookup
from trivium.inference.text_model import prompt_ids
from trivium.interop.peft_format import save_adapter
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.objectives.preference import PreferenceOptimization
from trivium.objectives.preference_pairs import Preference, as_text
from trivium.objectives.reward_model import Reward
from trivium.text import Tokenizer
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from trivium.workflows.training import finetune

LABELS = {"0": "bad", "1": "good", "2": "so so"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, str]:
    """A saved model for each command."""
    folder = tmp_path_factory.mktemp("models")
    encoder = as_ours(theirs("BertForMaskedLM"), "bert")
    seq2seq_spec = small_spec("bart").replace(vocab_size=VOCABULARY)
    start = Settings(config={"decoder_start_token_id": 0, "eos_token_id": 2})
    seq2seq = LanguageModel(seq2seq_spec, build(seq2seq_spec, seed=3), ours("roberta"), start)
    decoder_spec = small_spec("gpt2").replace(vocab_size=VOCABULARY)
    models = {
        "classify": as_ours(
            theirs("BertForSequenceClassification", num_labels=3), "bert", id2label=LABELS
        ),
        "tag": as_ours(theirs("BertForTokenClassification", num_labels=3), "bert", id2label=LABELS),
        "answer": as_ours(theirs("BertForQuestionAnswering"), "bert"),
        "embed": encoder,
        "hidden-states": encoder,
        "fill-mask": encoder,
        "translate": seq2seq,
        "generate": LanguageModel(decoder_spec, build(decoder_spec, seed=5), ours("gpt2")),
    }
    models["score"] = models["generate"]
    return {command: str(lm.save(folder / command)) for command, lm in models.items()}


@pytest.fixture
def stdin(monkeypatch):
    def install(data: str | bytes) -> None:
        buffer = io.BytesIO(data.encode() if isinstance(data, str) else data)
        stream = types.SimpleNamespace(buffer=buffer, isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", stream)

    return install


@pytest.fixture
def run(saved, capsys):
    """Run a command on its model: the lines of its output, or the error."""

    def command(name: str, *arguments: str, code: int = 0) -> list[str]:
        assert main([name, saved[name], *arguments]) == code
        output = capsys.readouterr()
        if code:
            assert output.out == ""
            assert output.err.startswith("error: ")
            assert output.err.count("\n") == 1
            return [output.err]
        return output.out.splitlines()

    return command


@pytest.fixture
def warned(monkeypatch):
    """The warnings that commands show."""
    messages: list[str] = []
    monkeypatch.setattr(
        cli, "_show_warning", lambda message, *rest, **options: messages.append(str(message))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield messages


def as_json(lines: list[str]) -> list[dict]:
    return [json.loads(line) for line in lines]


def test_classify(saved, run, stdin, warned):
    lm = load(saved["classify"])
    first, second = lm.classify(["a\tfilm", "今天"])
    assert run("classify", "a\tfilm", "今天") == [
        f"{first.label}\t{first.score:.4f}\ta film",
        f"{second.label}\t{second.score:.4f}\t今天",
    ]
    pair = lm.classify("a", "b")
    (record,) = as_json(run("classify", "a", "--pair", "b", "--json"))
    assert (record["text"], record["pair"], record["label"]) == ("a", "b", pair.label)
    assert record["scores"] == pytest.approx(pair.scores)
    stdin("a\tb\r\n\nAda wrote it\n \n")
    lines = run("classify")
    assert warned.pop().endswith("no label is predicted: line 2, 4.")
    assert [bool(line) for line in lines] == [True, False, True, False]
    (record,) = as_json(run("classify", "", "--json"))
    assert warned == ["blank, so no label is predicted: text 1."]
    assert record == {"text": "", "label": None}
    stdin("a\tb\r\nAda wrote it\n")
    records = as_json(run("classify", "--json"))
    expected = lm.classify([("a", "b"), "Ada wrote it"])
    assert [row["label"] for row in records] == [each.label for each in expected]
    assert [(row["text"], row.get("pair")) for row in records] == [
        ("a", "b"),
        ("Ada wrote it", None),
    ]


def test_classify_reads_pairs_as_in_fine_tuning(saved, run, stdin, warned, tmp_path, monkeypatch):
    lm = load(saved["classify"])
    kept: dict[bool, str] = {}
    for pairs in (False, True):
        lm.settings = lm.settings.with_task("classification", pairs=pairs)
        kept[pairs] = str(lm.save(tmp_path / str(pairs)))
    monkeypatch.setitem(saved, "classify", kept[False])
    assert "single texts: leave out" in run("classify", "a", "--pair", "b", code=1)[0]
    stdin("a\tb\n")  # a tab is a space like others
    (record,) = as_json(run("classify", "--json"))
    assert (record["text"], "pair" in record) == ("a\tb", False)
    monkeypatch.setitem(saved, "classify", kept[True])
    assert (
        'pairs of texts: give the second text, too. The text: "a"'
        in run("classify", "a", code=1)[0]
    )


@pytest.mark.parametrize(
    "name", ["classify", "tag", "embed", "fill-mask", "score", "translate", "generate"]
)
def test_a_file_given_as_a_text_is_an_error(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my texts.csv").write_text("a")
    (error,) = run(name, "a", "my texts.csv", code=1)
    assert "To read its lines: < 'my texts.csv'" in error
    assert ("trivium predict" in error) == (name == "classify")


def test_a_text_whose_bytes_are_not_of_the_locale(run):
    bytes_of = "Zoë".encode().decode("ascii", "surrogateescape")
    assert run("classify", bytes_of) == run("classify", "Zoë")
    (error,) = run("classify", "\udcff", code=1)
    assert "is not UTF-8" in error


def test_tag(saved, run, stdin, warned):
    stdin(f"{TEXT[0]}\n\n你好 x\n")
    expected = load(saved["tag"]).tag([TEXT[0], "", "你好 x"])
    assert run("tag") == [" ".join(f"{w.word}/{w.tag}" for w in words) for words in expected]
    (record,) = as_json(run("tag", "Ada wrote.", "--json"))
    assert [word["word"] for word in record["words"]] == ["Ada", "wrote", "."]
    assert set(record["words"][0]) == {"word", "tag", "score", "start", "end"}
    assert record["entities"] == []


def test_answer(saved, run, stdin, tmp_path):
    lm, context = load(saved["answer"]), TEXT[1]
    expected = [each for q in ("Who?", "What?") for each in lm.answer(q, context, top_k=2)]
    rows = [
        line.split("\t")
        for line in run("answer", "Who?", "What?", "--context", context, "--top-k", "2")
    ]
    assert [text for text, _ in rows] == [each.text for each in expected]
    file = tmp_path / "context.txt"
    file.write_text(context, encoding="utf-8")
    (record,) = as_json(run("answer", "Who?", "--context-file", str(file), "--json"))
    (answer,) = record["answers"]
    assert context[answer["start"] : answer["end"]] == answer["text"] == expected[0].text
    stdin(f"Who?\t{context}\n\nWhat?\tAda.\n")
    assert run("answer")[0].split("\t")[0] == expected[0].text
    file.write_bytes(b"ab\xff")
    for arguments, message in (
        (["Who?"], "'Who?' has no context: give --context TEXT or --context-file FILE"),
        (["Who?", "--context-file", str(file)], "UTF-8"),
        (["Who?", "--context-file", str(tmp_path / "none")], "none"),
        (["Who?", "--context", "a", "--context-file", str(file)], "leave one of them out"),
    ):
        assert message in run("answer", *arguments, code=1)[0]


def test_translate(saved, run, stdin):
    lm = load(saved["translate"])
    stdin("Ada wrote it\n\nthe weather\n \n")
    lines = run("translate", "--num-beams", "2", "--max-new-tokens", "5")
    targets = lm.translate(["Ada wrote it", "the weather"], num_beams=2, max_new_tokens=5)
    first, second = (" ".join(target.split("\n")) for target in targets)
    assert lines == [first, "", second, ""]
    (record,) = as_json(run("translate", "Ada", "--max-new-tokens", "3", "--json"))
    assert record == {"text": "Ada", "target": lm.translate("Ada", max_new_tokens=3)}


def test_embed(saved, run, stdin, tmp_path, capsys):
    lm, texts = load(saved["embed"]), ["Ada wrote it", "", "今天"]
    expected = lm.embed(texts).numpy()
    stdin("\n".join(texts) + "\n")
    vectors = np.array([[float(x) for x in line.split()] for line in run("embed")])
    np.testing.assert_allclose(vectors, expected, atol=FLOAT32)
    stdin("\n".join(texts) + "\n")
    run("embed", "--out", str(tmp_path / "v"), "--pooling", "first")
    first = lm.embed(texts, pooling="first").numpy()
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), first, atol=FLOAT32)
    rows = as_json(run("embed", *texts, "--similarities", "--json"))
    similarities = [row["similarities"] for row in rows]
    np.testing.assert_allclose(similarities, expected @ expected.T, atol=FLOAT32)


def test_hidden_states(saved, run, stdin, tmp_path, capsys):
    lm, texts = load(saved["hidden-states"]), ["Ada wrote it", "", "今天"] * 7
    stdin("\n".join(texts) + "\n")
    run("hidden-states", "--layers", "0,-1", "--out", str(tmp_path / "s"))
    with np.load(tmp_path / "s.npz", allow_pickle=False) as file:
        assert file["layers"].tolist() == [0, lm.spec.encoder.num_layers]
        assert len(file.files) == 1 + 2 * len(texts)
        for number, text in enumerate(texts):
            states = lm.hidden_states(text, layers=[0, -1])
            vectors = states.vectors.numpy()
            np.testing.assert_allclose(file[f"states-{number}"], vectors, atol=FLOAT32)
            assert file[f"tokens-{number}"].tolist() == states.tokens
    states = lm.hidden_states("Ada wrote it")
    lines = [line.split("\t") for line in run("hidden-states", "Ada wrote it")]
    pairs = [(str(layer), token) for layer in states.layers for token in states.tokens]
    assert [(layer, token) for layer, token, _ in lines] == pairs
    numbers = [[float(x) for x in row.split()] for _, _, row in lines]
    np.testing.assert_allclose(numbers, states.vectors.flatten(0, 1).numpy(), atol=FLOAT32)
    records = as_json(run("hidden-states", "Ada wrote it", "--layers", "1", "--json"))
    assert [record["span"] for record in records] == [span and [*span] for span in states.spans]
    assert "no layer 99" in run("hidden-states", "Ada", "--layers", "99", code=1)[0]
    assert main(["hidden-states", saved["embed"], "Ada", "--layers", "first"]) == 2


def test_fill_mask(saved, run, warned):
    expected = load(saved["fill-mask"]).fill_mask("The [MASK] was cloudy.", top_k=3)
    lines = run("fill-mask", "The [MASK] was cloudy.", "--top-k", "3")
    assert [line.split()[1] for line in lines] == [fill.token for fill in expected]
    (record,) = as_json(run("fill-mask", "The [MASK] <mask>.", "--json"))
    assert len(record["masks"]) == 2
    assert run("fill-mask", "The [MASK] was [MASK].")[0] == "mask 1 of 2"
    (error,) = run("fill-mask", "The [MASK] was cloudy.", "--checkpoint", "500", code=1)
    assert "no checkpoint of step 500; it has none" in error


def test_chat_keeps_the_conversation(saved, run, stdin, warned, tmp_path):
    lm = load(saved["generate"])
    source = "{% for m in messages %}{{ m.content }}{{ '.' if m.role == 'user' }} {% endfor %}"
    lm.settings = Settings(chat_template=source)
    saved["chat"] = str(lm.save(tmp_path / "chat"))
    stdin("first\n/new\nAda\nwrote\n/exit\nnever read\n")
    flags = ["--system", "notes", "--temperature", "2", "--seed", "3", "--max-new-tokens", "3"]
    answers = "\n".join(run("chat", *flags))
    beginning, expected = [{"role": "system", "content": "notes"}], []
    messages = [*beginning]
    for text in ("first", "/new", "Ada", "wrote"):
        if text == "/new":
            messages = [*beginning]
            continue
        messages.append({"role": "user", "content": text})
        ids, template = lm.conversation_ids(messages), ChatTemplate.of(source, lm.tokenizer)
        prompt = template.render(messages, add_generation_prompt=True)
        assert ids == prompt_ids(lm, prompt)
        answer = lm.generate(prompt, temperature=2.0, seed=3, max_new_tokens=3).removeprefix(" ")
        messages.append({"role": "assistant", "content": answer})
        expected.append(answer)
    assert answers.split() == " ".join(expected).split() != []
    own, saved["generate"] = saved["generate"], saved["chat"]
    run("generate", "Ada", "--max-new-tokens", "1")
    assert any(f"`trivium chat {saved['chat']}`" in each for each in warned)
    saved["chat"] = saved["generate"] = own
    stdin("Ada")
    (error,) = run("chat", code=1)
    assert "no chat template" in error


def test_generate(saved, run, stdin, capsys):
    lm = load(saved["generate"])
    options = {"max_new_tokens": 7, "temperature": 0.7, "top_k": 11, "seed": 3}
    flags = [
        part for name, v in options.items() for part in (f"--{name.replace('_', '-')}", str(v))
    ]
    expected = [lm.generate("Ada", **{**options, "seed": seed}) for seed in (3, 4)]
    rows = as_json(run("generate", "Ada", *flags, "--num-samples", "2", "--json"))
    assert [row["text"] for row in rows] == expected
    assert [row["seed"] for row in rows] == [3, 4]
    assert "\n".join(run("generate", "Ada", *flags)) == f"Ada{expected[0]}"
    stdin("Ada\n the weather \r\n")
    rows = as_json(run("generate", *flags, "--json", "--slots", "1", "--draft", "lookup"))
    assert [row["prompt"] for row in rows] == ["Ada", " the weather "]
    assert rows[0]["text"] == lm.generate("Ada", **options, draft=PromptLookup())
    (row,) = as_json(run("generate", "Ada", "--choices", "wrote", "--choices", "it", "--json"))
    assert row["text"] in ("wrote", "it")
    assert main(["generate", saved["generate"], "Ada", "--temperature", "-1"]) == 2
    assert "a number greater than or equal to 0" in capsys.readouterr().err
    long = "Ada wrote it. " * 1000
    assert "reads at most" in run("generate", long, code=1)[0]
    stdin(f"Ada\n{long}\nthe weather\n")
    assert main(["generate", saved["generate"], *flags]) == 1  # after the texts before it
    output = capsys.readouterr()
    assert output.out.rstrip("\n") == f"Ada{expected[0]}"
    assert "reads at most" in output.err


class Typed(io.StringIO):
    """Lines that are typed at a terminal."""

    def isatty(self) -> bool:
        return True


def test_generate_asks_for_prompts_on_a_terminal(saved, monkeypatch, capsys):
    lm = load(saved["generate"])
    flags = ("--max-new-tokens", "7", "--temperature", "4")  # texts that differ
    for end in ("\n", "  \nunread\n", ""):  # an empty line, or Ctrl-D
        monkeypatch.setattr(sys, "stdin", Typed(f"Ada\n the weather \nAda\n{end}"))
        assert (
            main(["generate", saved["generate"], *flags, "--seed", "3", "--num-samples", "2"]) == 0
        )
        output = capsys.readouterr()
        options = {"max_new_tokens": 7, "temperature": 4}
        expected = [
            f"{prompt}{lm.generate(prompt, seed=seed, **options)}"
            for prompt in ("Ada", " the weather ", "Ada")
            for seed in (3, 4)
        ]
        assert output.out == "\n\n".join(expected) + "\n"
        assert output.err.count("> ") == 4
        assert output.err.startswith("Type the beginning of a text.")
    # Without a seed, the same prompt gives another text.
    monkeypatch.setattr(sys, "stdin", Typed("Ada\nAda\n"))
    assert main(["generate", saved["generate"], *flags, "--json"]) == 0
    first, second = as_json(capsys.readouterr().out.splitlines())
    assert first["seed"] != second["seed"]
    monkeypatch.setattr(sys, "stdin", Typed("Ada\nthe weather\n"))
    assert main(["generate", saved["generate"], "--num-beams", "2", "--max-new-tokens", "3"]) == 0
    assert len(capsys.readouterr().out.split("\n")) >= 2
    monkeypatch.setattr(sys, "stdin", Typed("\ud83d\n"))
    assert main(["generate", saved["generate"]]) == 1
    assert "error: what was typed is not UTF-8." in capsys.readouterr().err


def test_ranked_samples_train_a_preference(saved, run, tmp_path, monkeypatch):
    """Of a decoder and of one that chats: rewards are those of the texts, pairs are read back."""
    judge, pairs = str(tmp_path / "judge"), tmp_path / "new" / "folder" / "pairs.jsonl"
    _, classifier = untrained(Reward(), [Preference("Ada", " wrote it", " is open", "x")], "gpt2")
    classifier.save(judge)
    lm, prompts = load(saved["generate"]), ["Ada", "the weather "]
    flags = ("--num-samples", "3", "--seed", "5", "--max-new-tokens", "6")
    flags = (*flags, "--temperature", "4", "--json")  # samples that differ, whatever the CPU rounds
    for template, reward in ((None, judge), (PLAIN_TEMPLATE, '{kind="length", target=9}')):
        lm.settings = dataclasses.replace(lm.settings, chat_template=template)
        monkeypatch.setitem(saved, "generate", str(lm.save(tmp_path / f"chats-{bool(template)}")))
        lines = run("generate", *prompts, *flags, "--rank", reward, "--pairs", str(pairs))
        rows = as_json(lines)
        assert [row["prompt"] for row in rows] == [one for one in prompts for _ in range(3)]
        assert sorted(row["seed"] for row in rows[:3]) == [5, 6, 7]
        examples = list(PreferenceOptimization().read([str(pairs)]))
        for some, one in zip((rows[:3], rows[3:]), examples, strict=True):
            prompt, best, worst = some[0]["prompt"], some[0], some[-1]
            rewards = [row["reward"] for row in some]
            assert rewards == sorted(rewards, reverse=True)
            assert best["reward"] > worst["reward"]
            if template is None:
                texts = [prompt + row["text"] for row in some]
                judged = [classifier.classify(text.rstrip()).score for text in texts]
                assert rewards == pytest.approx(judged, abs=1e-5)
                assert one.prompt + one.chosen == texts[0]
                assert one.prompt + one.rejected == texts[-1]
                params = {"seed": best["seed"], "max_new_tokens": 6, "temperature": 4.0}
                assert best["text"] == lm.generate(prompt, **params)
            else:
                lengths = [abs(len(row["text"].strip()) - 9) for row in some]
                assert lengths == sorted(lengths)
                messages = as_text(one.prompt), as_text(one.chosen), as_text(one.rejected)
                assert messages == (prompt, best["text"].strip(), worst["text"].strip())
    rows = [pairs.read_text("utf-8")] * 4  # rows enough to hold some out
    pairs.write_text("".join(rows), "utf-8")
    changes = {"train": {"steps": 1, "batch_examples": 2, "log_every": 1}}
    trained = finetune(
        *("preference",),
        model=saved["generate"],
        data=pairs,
        out=tmp_path / "run",
        changes=changes,
        overwrite=True,
        console=quiet(),
    )
    assert trained.read_metrics()[0]["train_preference"] == pytest.approx(math.log(2), abs=1e-4)
    lines = run("generate", "Ada", *flags[:-1], "--rank", '{kind="regex", pattern="^"}')
    assert lines[0] == "Ada"
    assert [line.partition("\t")[0] for line in lines[1:]] == ["1.0000"] * 3
    for reward, problem in (
        ('{kind="exact"}', 'the prompt "Ada" has no column "answer"'),
        ('{kind="lenth"}', 'Did you mean "length"'),
        ("{length}", "not valid TOML"),
        (saved["generate"], "a model that `trivium finetune reward` has made"),
    ):
        assert problem in run("generate", "Ada", *flags, "--rank", reward, code=1)[0]


def test_score(saved, run):
    lm = load(saved["score"])
    (line,) = run("score", "Ada wrote it")
    value, text = line.split("\t")
    assert float(value) == pytest.approx(lm.score("Ada wrote it"), abs=FLOAT32)
    assert text == "Ada wrote it"
    (record,) = as_json(run("score", "Ada wrote it", "--per-token", "--json"))
    values = [token["log_probability"] for token in record["tokens"]]
    assert sum(filter(None, values)) == pytest.approx(record["log_probability"])
    first, second = as_json(run("score", "--context", "Ada wrote", " it", " notes", "--json"))
    assert first["log_probability"] != second["log_probability"]
    item = encode_item(lm, "Ada wrote", [" it"])
    expected = score_continuations(lm, [item])[0][0].total
    assert first["log_probability"] == pytest.approx(expected, abs=FLOAT32)


def test_a_model_without_the_capability_and_a_folder_without_a_model(saved, run, capsys, tmp_path):
    for command in ("classify", "tag", "answer", "translate", "embed", "fill-mask", "generate"):
        other = saved["translate" if command in ("embed", "generate") else "embed"]
        other = saved["tag"] if command in ("fill-mask", "generate") else other
        extra = ["--context", "c"] if command == "answer" else []
        assert main([command, other, "a", *extra]) == 1
        error = capsys.readouterr().err
        assert f"cannot {command}" in error
        assert main([command, str(tmp_path / "none"), "a", *extra]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_standard_input_that_is_not_utf8(run, stdin):
    stdin(b"b\xffd\n")
    assert "standard input, line 1: not UTF-8 (byte 2" in run("tag", code=1)[0]


def test_characters_that_the_vocabulary_lacks_are_named_once(saved, run, warned):
    run("tag", "Ada \u9f98 wrote", "\u9f98 \u9f99 \u9f98")
    assert [message[:24] for message in warned] == [
        "not in the vocabulary: \u9f98",
        "not in the vocabulary: \u9f99",
    ]
    warned.clear()
    run("embed", "Ada [MASK] wrote")
    assert warned == []
    run("answer", "\u9f98 who?", "\u9f98 wrote it", "--context", "\u9f99 wrote")
    assert [message[24:25] for message in warned] == [":", ":"]
    warned.clear()
    words = Tokenizer.train("whitespace", texts=["the cat"], vocab_size=10, progress=False)
    assert list(check_characters(["the dog", "a dog"], words)) == ["the dog", "a dog"]
    assert [message.split(": ")[1] for message in warned] == ["dog", "a"]


def test_generate_with_beams(saved, run):
    lm = load(saved["generate"])
    expected = [lm.generate(text, max_new_tokens=5, num_beams=3) for text in ("Ada", "The")]
    rows = as_json(
        run("generate", "Ada", "The", "--num-beams", "3", "--max-new-tokens", "5", "--json")
    )
    assert rows == [
        {"prompt": prompt, "text": text} for prompt, text in zip(("Ada", "The"), expected)
    ]
    for flags in (["--temperature", "0.5"], ["--draft", "lookup"]):
        run("generate", "Ada", "--num-beams", "3", *flags, code=1)
    flags = ["--num-beams", "3", "--num-samples", "2"]
    assert main(["generate", saved["generate"], "Ada", *flags]) == 2


TEXT_OUT = "\N{SNOWMAN} na\xefve caf\xe9 \u4eca\u5929 \N{GRINNING FACE}"
REAL = {
    "generate": ["{generate}", TEXT_OUT, "--max-new-tokens", "9", "--temperature", "0"],
    "classify": ["{classify}", TEXT_OUT],
    "fill-mask": ["{fill-mask}", f"{TEXT_OUT} [MASK]"],
    "score": ["{score}", TEXT_OUT],
    "explain": ["bpe", TEXT_OUT],
    "check": ["{texts}"],
    "tokenizer": ["encode", "-t", "{generate}", TEXT_OUT],
    "presets": ["llama"],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("encoding", ["cp1252", "cp936", "ascii"])
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", REAL)
def test_real_output_that_cannot_be_encoded_is_escaped(
    name, language, encoding, saved, tmp_path, monkeypatch
):
    """The same text, in which what the encoding lacks is escaped."""
    (tmp_path / "texts.txt").write_text(f"{TEXT_OUT}\n\n{TEXT_OUT}", "utf-8")
    arguments = [one.format(texts=tmp_path / "texts.txt", **saved) for one in REAL[name]]
    monkeypatch.setenv("TRIVIUM_LANGUAGE", language)
    shown = {}
    for each in (encoding, "utf-8"):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=each) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            assert main([name, *arguments]) == 0
        for stream in streams:
            stream.flush()
        shown[each] = streams[0].buffer.getvalue()
    full = shown["utf-8"].decode()
    assert not full.isascii() or name == "presets"
    escaped = full.encode(encoding, "backslashreplace")
    assert shown[encoding] in (escaped, shown["utf-8"])  # click writes UTF-8 in place of ASCII


def test_an_adapter_is_a_model_for_every_command(saved, capsys, tmp_path):
    """Its folder names the base; what is exported has the adapter merged into it."""
    own = load(saved["generate"])
    described, lora, folder = own.spec.replace(d_model=30), LoRA(rank=2), tmp_path / "adapter"
    lm = LanguageModel(described, build(described, seed=4), own.tokenizer)
    lm.save(tmp_path / "base")
    module = build(described, seed=4)
    add_lora(module, lora)
    for weight in module.parameters():
        if weight.requires_grad:
            weight.data.normal_(0.0, 1.0)
    save_adapter(folder, module, lora, base=str(tmp_path / "base"))
    options = {"max_new_tokens": 5, "temperature": 0}
    expected = load(folder, device="cpu").generate("Ada", **options)
    assert expected != lm.generate("Ada", **options)
    flags = ["--max-new-tokens", "5", "--temperature", "0", "--device", "cpu"]

    def generate(model):
        assert main(["generate", str(model), "Ada", *flags]) == 0
        return capsys.readouterr().out.rstrip("\n")

    assert generate(folder) == "Ada" + expected
    (tmp_path / "valid.txt").write_text("Ada wrote it.\n" * 20)
    results = {}
    for name, command in (("exported", "export"), ("imported", "import")):
        assert main([command, str(folder), str(tmp_path / name)]) == 0
        capsys.readouterr()
        assert generate(tmp_path / name) == "Ada" + expected
    for name in ("adapter", "exported"):
        arguments = ["eval", str(tmp_path / name), str(tmp_path / "valid.txt"), "--json"]
        assert main([*arguments, "--device", "cpu"]) == 0
        results[name] = json.loads(capsys.readouterr().out)
    assert results["adapter"]["loss"] == pytest.approx(results["exported"]["loss"], rel=1e-4)
