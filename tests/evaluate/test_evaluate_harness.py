"""The adapter for lm-evaluation-harness against its own models, and on a task from local files."""

from __future__ import annotations

import json
import logging
import os

import pytest
import torch
from counting_models import counting_model, log_probabilities
from double import FLOAT32
from shaken_models import TEXT, shaken

from trivium.errors import MissingExtraError, SpecError, TriviumError
from trivium.evaluate.harness import make_harness_model, run_tasks
from trivium.language_model import LanguageModel
from trivium.presets import presets
from trivium.text import Tokenizer

LOGITS = {"good": 3.0, "bad": 1.0, "a": 2.0, "b": 2.5}
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    validation: {file}
output_type: {kind}
validation_split: validation
test_split: null
{more}
metadata:
  version: 1.0
"""
CHOICE = """\
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
ROLLING = """\
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""
WRITING = """\
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 3
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""

pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and what it imports


@pytest.fixture(scope="module")
def harness():
    before = os.environ.get("HF_DATASETS_OFFLINE")
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    found = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    yield found
    if before is None:
        del os.environ["HF_DATASETS_OFFLINE"]
    else:
        os.environ["HF_DATASETS_OFFLINE"] = before


@pytest.fixture(scope="module")
def decoder():
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=TEXT * 5, vocab_size=300, special_tokens=["<|endoftext|>"], progress=False
    )
    spec = presets["gpt2-tiny"].replace(vocab_size=300).with_dropout(0.0)
    return LanguageModel(spec, shaken(spec), tokenizer)


def instances(kind: str, arguments: list[tuple]) -> list:
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=given, idx=0) for given in arguments]


@pytest.fixture(scope="module")
def theirs(harness, decoder, tmp_path_factory):
    """The same model as the harness loads it through `transformers`."""
    from lm_eval.models.huggingface import HFLM

    folder = decoder.save_hf(tmp_path_factory.mktemp("theirs"))
    return HFLM(pretrained=str(folder), device="cpu", batch_size=1, dtype="float32")


def test_log_likelihoods_equal_those_of_their_model(decoder, theirs):
    requests = instances(
        "loglikelihood",
        [
            ("The weather was", " cloudy"),
            ("The weather was", " rainy yesterday, but"),
            ("The weather was ", "cloudy"),
            ("", "The weather"),
            ("今天", "天气很好"),
            ("The weather was cloudy. " * 200, "rainy"),  # cut from the left
        ],
    )
    ours = make_harness_model(decoder).loglikelihood(requests)
    for (value, greedy), (wanted, wanted_greedy) in zip(
        ours, theirs.loglikelihood(requests), strict=True
    ):
        assert value == pytest.approx(wanted, rel=FLOAT32)
        assert greedy == wanted_greedy


def test_rolling_log_likelihoods_equal_those_of_their_model(decoder, theirs):
    texts = [("The weather",), ("The weather was cloudy yesterday. " * 150,), ("今天天气",)]
    requests = instances("loglikelihood_rolling", texts)
    ours = make_harness_model(decoder).loglikelihood_rolling(requests)
    assert ours == pytest.approx(theirs.loglikelihood_rolling(requests), rel=FLOAT32)


def test_what_is_written_equals_what_their_model_writes(decoder, theirs):
    arguments = [
        ("The weather", {"until": ["."], "max_gen_toks": 11, "do_sample": False}),
        ("今天", {"until": ["e", "a"], "max_gen_toks": 13}),
    ]
    requests = instances("generate_until", arguments)
    assert make_harness_model(decoder).generate_until(requests) == theirs.generate_until(requests)


def test_numbers_do_not_depend_on_other_requests(harness, decoder):
    pairs = [("The", " weather"), ("The", " rainy day"), ("cloudy", " today"), ("The", " a")]
    ours = make_harness_model(decoder)
    together = ours.loglikelihood(instances("loglikelihood", pairs))
    assert together[2:] == ours.loglikelihood(instances("loglikelihood", pairs[2:]))
    assert together[:2] == ours.loglikelihood(instances("loglikelihood", pairs[:2]))


def write_task(folder, name: str, kind: str, records: list[dict], more: str) -> None:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (folder / f"{name}.yaml").write_text(
        TASK.format(name=name, kind=kind, file=file, more=more), encoding="utf-8"
    )


@pytest.fixture
def tasks(tmp_path, harness):
    choices = {"question": "a", "choices": ["good", "bad"]}
    records = [{**choices, "label": label} for label in (0, 0, 1, 0)]
    write_task(tmp_path, "trivium_choice", "multiple_choice", records, CHOICE)
    texts = [{"text": "good bad a"}, {"text": "b a"}]
    write_task(tmp_path, "trivium_text", "loglikelihood_rolling", texts, ROLLING)
    answers = [{"question": "a", "answer": " good good good"}, {"question": "b", "answer": "bad"}]
    write_task(tmp_path, "trivium_answer", "generate_until", answers, WRITING)
    return tmp_path


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_a_task_from_local_files(family, tasks):
    lm = counting_model(family, LOGITS)
    results = run_tasks(lm, ["trivium_choice"], folder=tasks)
    assert results["trivium_choice"]["acc,none"] == 0.75
    results = run_tasks(lm, ["trivium_choice"], folder=tasks, limit=2)
    assert results["trivium_choice"]["acc,none"] == 1.0


def test_perplexity_and_writing_from_local_files(tasks):
    lm = counting_model("decoder", LOGITS)
    known = log_probabilities(lm, LOGITS)
    found = run_tasks(lm, ["trivium_text", "trivium_answer"], folder=tasks)
    nats = -(known["good"] + known["bad"] + 2 * known["a"] + known["b"])
    wanted = float(torch.tensor(nats / 5).exp())
    assert found["trivium_text"]["word_perplexity,none"] == pytest.approx(wanted, rel=FLOAT32)
    assert found["trivium_answer"]["exact_match,none"] == 0.5


def test_what_the_harness_cannot_do(tasks):
    lm = counting_model("encoder", LOGITS)
    with pytest.raises(SpecError, match="this model cannot generate text"):
        run_tasks(lm, ["trivium_answer"], folder=tasks)
    with pytest.raises(TriviumError, match="has no task nothing; known tasks: trivium_answer"):
        run_tasks(lm, ["nothing"], folder=tasks)
    with pytest.raises(TriviumError, match="no such folder of tasks"):
        run_tasks(lm, ["trivium_answer"], folder=tasks / "missing")


def test_a_missing_harness_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with pytest.raises(MissingExtraError, match="EXTRAS=lm-eval"):
        make_harness_model(counting_model("decoder", LOGITS))
