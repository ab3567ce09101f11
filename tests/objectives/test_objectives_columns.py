"""Columns: what each task reads of public data sets, what is refused, and what a run says."""

from __future__ import annotations

import json
import re
import sys
import types

import pytest
from overfit_tasks import untrained

from trivium.cli import main
from trivium.data.batch import IGNORE_INDEX
from trivium.data.python_data import write_data
from trivium.data.records import ReadReport, Record, RecordOptions
from trivium.errors import DataError
from trivium.interop.settings import Settings
from trivium.objectives import LabelledObjective
from trivium.objectives.chat import Chat, get_chat_template
from trivium.objectives.classification import TextClassification
from trivium.objectives.conversations import as_text
from trivium.objectives.kto import KTO
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.preference import PreferenceOptimization
from trivium.objectives.tagging import Tagging

USER, YES, NO = (
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "yes"},
    {"role": "assistant", "content": "no"},
)
# Task, columns of a public data set (those with a dot are inside another), and what is read.
PUBLIC = [
    ("classification", "sentence label idx", "text <- sentence, label <- label; ignored: idx"),
    ("classification", "sentence1 sentence2 label idx", "text <- sentence1, pair <- sentence2"),
    ("classification", "question1 question2 label idx", "text <- question1, pair <- question2"),
    ("classification", "premise hypothesis label", "text <- premise, pair <- hypothesis"),
    ("classification", "question sentence label idx", "text <- question, pair <- sentence"),
    ("classification", "question passage label", "text <- question, pair <- passage"),
    ("classification", "sentence1 sentence2 score", "pair <- sentence2, label <- score"),
    ("classification", "gold_label sentence1 sentence2 pairID", "label <- gold_label"),
    ("classification", "text label", "text <- text, label <- label"),
    ("classification", "text label label_text", "label <- label; ignored: label_text"),
    ("classification", "title content label", "text <- content, label <- label; ignored: title"),
    ("classification", "text content label", "text <- text, label <- label; ignored: content"),
    ("classification", "text labels id", "label <- labels; ignored: id"),
    ("classification", "text intent", "label <- intent"),
    ("classification", "Text Label", "text <- Text, label <- Label"),
    ("classification", "text label score", "label <- label; ignored: score"),
    ("tagging", "id tokens pos_tags chunk_tags ner_tags", "words <- tokens, tags <- ner_tags"),
    ("tagging", "tokens ner_tags langs spans", "tags <- ner_tags; ignored: langs, spans"),
    ("tagging", "text tokens upos xpos", "tags <- upos; ignored: text, xpos"),
    ("qa", "id title context question answers.text answers.answer_start", "answers <- answers"),
    ("summarization", "document summary id", "source <- document, target <- summary"),
    ("summarization", "article highlights id", "source <- article, target <- highlights"),
    ("summarization", "id dialogue summary", "source <- dialogue, target <- summary"),
    ("summarization", "id url title summary text", "source <- text, target <- summary"),
    ("translation", "translation.de translation.en", "source <- translation.de, target <- transl"),
    ("translation", "id translation.en translation.fr", "source <- translation.en, target <- tra"),
    ("text-to-text", "instruction input output text", "target <- output, input <- input"),
    ("contrastive", "anchor positive negative", "text <- anchor, pair <- positive, negative <- n"),
    ("contrastive", "id title context question answers", "text <- question, pair <- context"),
    ("contrastive", "query answer", "text <- query, pair <- answer"),
    ("chat", "instruction input output", "prompt <- instruction, response <- output, input <- in"),
    ("chat", "instruction input output text", "input <- input; ignored: text"),
    ("chat", "instruction context response category", "response <- response, input <- context"),
    ("chat", "id conversations", "messages <- conversations; ignored: id"),
    ("chat", "prompt prompt_id messages", "messages <- messages; ignored: prompt, prompt_id"),
    ("chat", "id system_prompt question response", "response <- response, system <- system_prom"),
    ("chat", "question answer", "prompt <- question, response <- answer"),
    ("chat", "problem solution messages source", "messages <- messages; ignored: problem, solu"),
    ("chat", "prompt completion", "prompt <- prompt, response <- completion"),
    ("chat", "messages tools", "messages <- messages, tools <- tools"),
    ("preference", "chosen rejected", "chosen <- chosen, rejected <- rejected"),
    ("preference", "prompt prompt_id messages chosen rejected score_chosen", "prompt <- prompt"),
    ("preference", "system question chosen rejected", "prompt <- question, chosen <- chosen, rej"),
    ("preference", "source instruction chosen rejected", "prompt <- instruction"),
    ("preference", "system input chosen rejected", "prompt <- input"),
    ("preference", "input.messages preferred_output non_preferred_output", "<- input.messages, ch"),
    ("reward", "prompt chosen rejected margin", "margin <- margin"),
    ("kto", "prompt completion label", "prompt <- prompt, response <- completion, label <- label"),
    ("kto", "instruction input output kto_tag", "prompt <- instruction, input <- input, response"),
    ("policy", "question answer id", "prompt <- question; ignored: id"),
    ("policy", "prompt answer messages", "prompt <- prompt; ignored: messages"),
    # A table without a header: its columns have numbers.
    ("translation", "0 1 2", "source <- column 0, target <- column 1; ignored: column 2"),
]  # fmt: skip


def record_of(names: str) -> Record:
    columns: dict = {}
    for name in names.split():
        outer, _, inner = name.partition(".")
        columns[outer] = {**columns.get(outer, {}), inner: "x"} if inner else "x"
    return Record(columns, "a.jsonl, line 1")


def build_task_objective(task: str, **keys) -> LabelledObjective:
    return LabelledObjective.kinds[task].from_tree({"kind": task, **keys})


def line_of(task: str, names: str, **keys) -> str:
    report = ReadReport()
    build_task_objective(task, **keys).record_schema.resolve(record_of(names), report)
    return next(iter(report.layouts))


@pytest.mark.parametrize(("task", "names", "expected"), PUBLIC)
def test_public_data_sets_are_read(task, names, expected):
    assert expected in line_of(task, names)


@pytest.mark.parametrize(
    ("task", "names", "candidates", "option"),
    [
        ("classification", "text sentiment score", '"score", "sentiment"', "label"),
        ("classification", "text intent category", '"category", "intent"', "label"),
        ("classification", "review content label", '"review", "content"', "text"),
        ("classification", "text premise hypothesis label", '"text", "premise"', "text"),
        ("tagging", "tokens ner_tags labels", '"labels", "ner_tags"', "tags"),
        ("qa", "question passage paragraph answers", '"passage", "paragraph"', "context"),
        ("summarization", "document article summary", '"document", "article"', "source"),
        ("chat", "question answer response", '"answer", "response"', "response"),
        ("preference", "question query chosen rejected", '"question", "query"', "prompt"),
        ("preference", "prompt preferred chosen_response rejected", "chosen_response", "chosen"),
        ("kto", "prompt answer output label", '"answer", "output"', "response"),
        ("policy", "question instruction", '"instruction", "question"', "prompt"),
        ("contrastive", "sentence passage", '"sentence", "passage"', "text"),
    ],
)
def test_ambiguous_records_are_refused_and_a_key_chooses(task, names, candidates, option):
    with pytest.raises(DataError, match=f"for the {option}: .*{candidates}") as error:
        line_of(task, names)
    assert f"--set objective.{option}_field=NAME" in str(error.value)
    chosen = candidates.split(", ")[-1].strip('"')
    assert f"{option} <- {chosen}" in line_of(task, names, **{f"{option}_field": chosen})


# Task and a record, whose values are missing one after the other.
RECORDS = [
    ("classification", {"text": "a", "label": "x"}),
    ("classification", {"text": "a", "label": ["x", "y"]}),
    ("tagging", {"words": ["a"], "tags": ["O"]}),
    ("tagging", {"text": "a", "spans": [[0, 1, "x"]]}),
    ("qa", {"question": "q", "context": "c", "answer": "c"}),
    ("chat", {"prompt": "p", "response": "r", "system": "s"}),
    ("chat", {"messages": [{"role": "user", "content": "q"}, YES]}),
    ("text-to-text", {"source": "a", "target": "b"}),
    ("summarization", {"text": "a", "summary": "b"}),
    ("contrastive", {"text": "a", "pair": "b", "negative": "c"}),
    ("preference", {"prompt": "p", "chosen": "a", "rejected": "b"}),
    ("reward", {"prompt": "p", "chosen": "a", "rejected": "b", "margin": 1.0}),
    ("kto", {"prompt": "p", "response": "r", "label": True}),
    ("policy", {"prompt": "p", "answer": "a"}),
    ("tsdae", {"text": "a"}),
]


@pytest.mark.parametrize(("task", "row"), RECORDS)
def test_a_missing_number_is_no_text(tmp_path, task, row):
    """NaN, which pandas writes for a missing value, is an error in every column that is read."""
    objective = build_task_objective(
        task, **({"rewards": [{"kind": "exact"}]} if task == "policy" else {})
    )
    assert len(read(objective, tmp_path, row)[0]) == 1
    for name in row:
        with pytest.raises(DataError, match=r"(?i)nan|is blank: nothing equals it"):
            read(objective, tmp_path, {**row, name: float("nan")})


def test_a_column_that_no_key_chooses():
    record = Record(dict.fromkeys(("instruction", "input", "context", "output"), "a"), "x")
    with pytest.raises(
        DataError, match=r'the input: "input", "context"\. Remove or rename the oth'
    ):
        Chat().record_schema.resolve(record)


def test_columns_that_a_user_names():
    schema = build_task_objective("classification", text_field="body, review").record_schema
    assert schema.resolve(record_of("review label"))["text"] == "review"
    comma = build_task_objective("classification", text_field="a,b").record_schema
    assert comma.resolve(record_of("a,b label"))["text"] == "a,b"
    assert "pair" not in line_of("classification", "premise hypothesis label", text_field="premise")
    for task, keys, message in (
        ("classification", {"label_field": "star"}, 'no column "star".* Did you mean "stars"'),
        ("translation", {"source_field": "meta.d"}, 'Did you mean "meta.de"'),
        (
            "classification",
            {"text_field": "text", "label_field": "text"},
            "text and label are both",
        ),
    ):
        with pytest.raises(DataError, match=message):
            line_of(task, "text stars meta.de", **keys)
    with pytest.raises(DataError, match=r"for the text \(such as text.* and none for the label"):
        line_of("classification", "x y")


def write(folder, *records, name="a.jsonl"):
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return [str(folder / name)]


def read(objective, folder, *records):
    report = ReadReport()
    options = RecordOptions(report=report)
    return [*objective.read(write(folder, *records), options)], report.lines


def test_each_layout_is_told_once(tmp_path):
    rows = [{"text": "a", "label": "x", "id": 1}, {"review": "b", "label": "y"}] * 3
    examples, lines = read(TextClassification(), tmp_path, *rows)
    assert [one.text for one in examples] == ["a", "b"] * 3
    assert lines[0].startswith("text <- text, label <- label; ignored: id (3 records, the first")
    assert (len(lines), "text <- review" in lines[1]) == (2, True)
    many = [{"text": "a", "label": "x", f"more{n}": 1} for n in range(30)]
    _, lines = read(TextClassification(), tmp_path, *many)
    assert (len(lines), lines[-1]) == (6, "and 25 other column layouts")
    wide = {"text": "a", "label": "x", **{f"c{n}": 1 for n in range(30)}}
    assert read(TextClassification(), tmp_path, wide)[1][0].endswith("c11, 18 more")


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "Translate to French", "input": "cat"},
        {"prompt": "p", "system": "be kind"},
        {"instruction": "i", "input": " ", "system_prompt": "be kind"},
        {"instruction": "i", "input": "j", "system": None},
        {"prompt": [{"role": "developer", "content": "be kind"}, USER]},
    ],
)
def test_all_tasks_on_prompts_see_the_same_prompt(tmp_path, row):
    """SFT, preferences, judgements and policies of one data set."""
    chat = read(Chat(), tmp_path, {**row, "response": "r"})[0][0].messages[:-1]
    expected = as_text(chat)
    pair = read(PreferenceOptimization(), tmp_path, {**row, "chosen": "r", "rejected": "s"})[0][0]
    judged = read(KTO(), tmp_path, {**row, "response": "r", "label": True})[0][0]
    drawn = read(PolicyGradient(), tmp_path, {**row, "answer": "r"})[0][0]
    for one in (pair, judged, drawn):
        assert as_text(one.prompt) == expected
        if "system" in {message["role"] for message in chat}:
            assert one.prompt == chat


OPENAI = {
    "input": {"messages": [USER], "tools": []},
    "preferred_output": [YES],
    "non_preferred_output": [NO],
}


@pytest.mark.parametrize(
    "row",
    [
        OPENAI,
        {"prompt": [USER], "chosen": [YES], "rejected": [NO]},
        {"prompt": "q", "chosen": [USER, YES], "rejected": [USER, NO]},
        {"chosen": [USER, YES], "rejected": [USER, NO]},
        {"prompt": [USER], "chosen": YES, "rejected": NO},
        {"prompt": [USER], "chosen": "yes", "rejected": "no"},
        {"question": "q", "chosen": {"from": "gpt", "value": "yes"}, "rejected": "no"},
        {"conversations": [{"from": "human", "value": "q"}], "chosen": YES, "rejected": NO},
    ],
)
def test_formats_of_preferences_are_one_example(tmp_path, row):
    [one] = read(PreferenceOptimization(), tmp_path, row)[0]
    assert (one.prompt, one.chosen, one.rejected) == ((USER,), (YES,), (NO,))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Q: hi", "chosen": "Q: hi A: y", "rejected": "Q: hi A: n"}, ("Q: hi", " A: y")),
        ({"prompt": "def f(", "chosen": "x):", "rejected": "y):"}, ("def f(", "x):")),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, ("a", "b")),
        ({"chosen": "天气很好。是的", "rejected": "天气很好。不"}, ("天气很好。", "是的")),
        ({"chosen": "Q: A: because", "rejected": "Q: A: begone"}, ("Q: A:", " because")),
        ({"chosen": "A:yes", "rejected": "A:no"}, ("A:", "yes")),
        ({"chosen": "one two", "rejected": "one"}, ("", "one two")),
        ({"chosen": "12", "rejected": "13"}, ("", "12")),
        ({"chosen": "ก\u0e48x", "rejected": "ก\u0e49y"}, ("", "ก\u0e48x")),
    ],
)
def test_texts_of_preferences_are_used_as_they_are(tmp_path, row, expected):
    [one] = read(PreferenceOptimization(), tmp_path, row)[0]
    assert (one.prompt, one.chosen) == expected
    whole = row.get("chosen") if "prompt" not in row else one.prompt + one.chosen
    assert one.prompt + one.chosen == whole


def test_joined_texts_are_told(tmp_path):
    whole = {"prompt": "Q: hi", "completion": "Q: hi A: y", "label": True}
    greeting = {"prompt": "Hi", "completion": "Hi there", "label": False}
    plain_one = {"prompt": "Why?", "completion": "Because", "label": False}
    examples, lines = read(KTO(), tmp_path, whole)
    assert [one.response for one in examples] == [" A: y"]
    assert lines[-1].startswith("responses that repeat their prompt at the start")
    assert lines[-1].endswith(": 1")
    # Few of many begin with their prompt by chance.
    examples, lines = read(KTO(), tmp_path, greeting, plain_one, plain_one)
    assert [one.response for one in examples] == ["Hi there", "Because", "Because"]
    assert re.fullmatch("responses without a space after their prompt .*: 2", lines[-1])


def test_nothing_in_messages_is_dropped_silently(tmp_path):
    function = {"name": "f", "arguments": '{"x": 1}'}
    calls = [{"id": "1", "type": "function", "function": function}]
    call = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "content": "5", "tool_call_id": "1"}
    named = {**USER, "name": "Ada"}
    last = {**YES, "reasoning_content": "hm", "weight": 1, "refusal": None}
    row = {"messages": [{"role": "developer", "content": "be"}, named, call, result, last]}
    [one], lines = read(Chat(), tmp_path, {**row, "tools": [{"type": "function"}]})
    roles = ["system", "user", "assistant", "tool", "assistant"]
    assert [message["role"] for message in one.messages] == roles
    assert one.messages[1] == named
    assert one.messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert one.messages[3] == result
    assert one.messages[4]["reasoning_content"] == "hm"
    assert lines == ["messages <- messages, tools <- tools"]
    # Other tasks do not use tools.
    pair = {"prompt": [named, call, result], "chosen": [last], "rejected": [NO]}
    lines = read(PreferenceOptimization(), tmp_path, pair)[1]
    assert lines[1:] == [
        "not used: reasoning_content (1), weight (1), tool_calls (1), tool_call_id (1)",
        "assistant messages with only tool calls, which are skipped: 1",
    ]
    for weight in (2, "1", 0.5):
        with pytest.raises(DataError, match=r'"weight" of .*, message 2 is .*: give 0 or 1'):
            read(Chat(), tmp_path, {"messages": [USER, {**YES, "weight": weight}]})
    with pytest.raises(DataError, match="all messages of the assistant have weight 0"):
        read(Chat(), tmp_path, {"messages": [USER, {**YES, "weight": 0}]})


@pytest.mark.parametrize("responses_only", [True, False])
def test_messages_of_weight_0_are_read_and_not_trained(tmp_path, responses_only):
    first, second = {**USER, "name": "Ada"}, {"role": "user", "content": "and then"}
    weights = [{"weight": 0}, {"weight": True}]
    rows = [
        {"messages": [first, {**YES, **some}, second, {**NO, **more}]}
        for some, more in (({}, {}), weights, weights[::-1])
    ]
    examples = read(Chat(), tmp_path, *rows)[0]
    objective, lm = untrained(Chat(responses_only=responses_only), examples, "gpt2")
    encoded = objective.encode(examples, lm)
    both, last, start = (encoded.take([number]).to_batch().labels[0] for number in range(3))
    said = [
        lm.tokenizer.decode([one for one in labels if one != IGNORE_INDEX]).split()
        for labels in (both, last, start)
    ]
    assert "yes" in said[0]
    assert "no" in said[0]
    assert ("yes" in said[1], "no" in said[1]) == (False, True)
    assert ("yes" in said[2], "no" in said[2]) == (True, False)
    assert all(("q" in words) != responses_only for words in said)
    assert get_chat_template(lm).render(examples[0].messages).startswith("Ada: q\n")
    turn = "{{ m.content }}{% generation %}x{% endgeneration %}"
    lm.settings = Settings(chat_template=f"{{% for m in messages %}}{turn}{{% endfor %}}")
    with pytest.warns(UserWarning, match="3 conversations have messages with a name"):
        objective.encode(examples, lm)


NAMES = {
    "label": {"names": ["bad", "good"], "_type": "ClassLabel"},
    "ner_tags": {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}, "_type": "List"},
    "labels": [{"names": ["calm", "gay", "sad"], "_type": "ClassLabel"}],
}


@pytest.mark.parametrize("make", ["pyarrow", "datasets"])
def test_class_names_of_parquet_are_used(tmp_path, make):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "text": ["a", "b"],
        "label": [1, 0],
        "tokens": [["Ada", "left"], ["Bob"]],
        "ner_tags": [[1, 0], [1]],
        "moods": [[0, 2], [1]],
    }
    names = {**NAMES, "moods": NAMES["labels"]}
    del names["labels"]
    path = tmp_path / "a.parquet"
    if make == "pyarrow":
        stored = {"huggingface": json.dumps({"info": {"features": names}})}
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(stored), path)
    else:
        datasets = pytest.importorskip("datasets")
        strings = datasets.Value("string")
        features = {
            "text": strings,
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "tokens": datasets.Sequence(strings),
            "ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"])),
            "moods": datasets.Sequence(datasets.ClassLabel(names=["calm", "gay", "sad"])),
        }
        data = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        data.to_parquet(str(path))
    assert [one.label for one in TextClassification().read([str(path)])] == ["good", "bad"]
    moods = TextClassification(label_field="moods").read([str(path)])
    assert [one.label for one in moods] == [("calm", "sad"), ("gay",)]
    assert [one.tags for one in Tagging().read([str(path)])] == [("B-PER", "O"), ("B-PER",)]


@pytest.mark.parametrize("is_list", [True, False])
def test_class_names_of_spans_are_used(tmp_path, is_list):
    """Spans of `datasets` are a list of objects, or an object of lists."""
    datasets = pytest.importorskip("datasets")
    number = datasets.Value("int32")
    span = {"start": number, "end": number, "label": datasets.ClassLabel(names=["LOC", "PER"])}
    layout = [span] if is_list else datasets.Sequence(span)
    found = [{"start": 0, "end": 3, "label": 1}]
    if not is_list:
        found = {"start": [0], "end": [3], "label": [1]}
    features = datasets.Features({"text": datasets.Value("string"), "entities": layout})
    data = datasets.Dataset.from_dict({"text": ["Ada left"], "entities": [found]}, features)
    data.to_parquet(str(tmp_path / "a.parquet"))
    write_data(data, tmp_path / "a" / "a.jsonl", "text")
    for file in ("a.parquet", "a/a.jsonl"):
        assert [one.tags for one in Tagging().read([str(tmp_path / file)])] == [("B-PER", "O")]


def test_no_label_of_a_class_index(tmp_path):
    names = {"label": ("bad", "good"), "tags": ("O", "B-PER")}
    record = Record({"text": "a", "label": -1, "tags": [[0, -1]]}, "x", class_names=names)
    assert (record.value_with_class_names("label"), record.value_with_class_names("tags")) == (
        None,
        [["O", None]],
    )
    objective = TextClassification()
    with pytest.raises(DataError, match="the label of x is null"):
        [*objective.build_examples([record], RecordOptions())]


def test_class_names_of_the_hub_are_used(monkeypatch):
    class Rows(list):
        features = types.SimpleNamespace(to_dict=lambda: NAMES)

    rows = Rows([{"text": "a", "label": 1, "tokens": ["Ada"], "ner_tags": [1]}])
    module = types.SimpleNamespace(load_dataset=lambda *_, **__: rows)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("trivium.data.records.find_hub_problem", lambda: None)
    assert [one.label for one in TextClassification().read(["hf:a"])] == ["good"]
    assert [one.tags for one in Tagging().read(["hf:a"])] == [("B-PER",)]
    sentences = build_task_objective("text-to-text", source_field="text", target_field="label")
    assert [one.targets for one in sentences.read(["hf:a"])] == [("good",)]


@pytest.mark.parametrize("command", ["finetune", "check", "eval", "pretrain"])
def test_commands_print_the_columns(tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": n, "review": f"film number {n}", "stars": n % 2 + 1} for n in range(20)]
    write(tmp_path, *rows)
    keys = ["--set", "objective.label_field=stars"]
    quick = ["--set", "train.steps=1", "--set", "train.verify=false"]
    tune = ["finetune", "classification", "--model", "bert-tiny", "--data", "a.jsonl"]
    expected = "text <- review, label <- stars; ignored: id\n"
    if command == "check":
        assert main(["check", "a.jsonl", "--task", "classification", *keys]) == 0
    elif command == "pretrain":
        texts = ["--data", "a.jsonl", "--text-field", "review", "--set", "data.length=8"]
        assert main(["pretrain", "gpt2-tiny", "--out", "r", *texts, *quick]) == 0
        expected = "text <- review; ignored: id, stars\n"
    else:
        assert main([*tune, *keys, *quick, "--out", "r"]) == 0
    if command == "eval":
        capfd.readouterr()
        assert main(["eval", "r", "a.jsonl"]) == 0
        expected = f"({expected[:-1]})"
    output = capfd.readouterr()
    assert (output.out + output.err).count(expected) == 1


def test_records_in_memory_follow_the_same_way():
    """What `data=[{...}]` is: mappings with a place, which no reader has read."""
    rows = [Record({"review": "a", "stars": 5}, "item 1")]
    [one] = TextClassification(label_field="stars").build_examples(rows, RecordOptions())
    assert (one.text, one.label, one.where) == ("a", "5", "item 1")
