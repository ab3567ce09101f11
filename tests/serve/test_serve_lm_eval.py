"""lm-evaluation-harness scores tasks through the server as it does with the model itself."""

from __future__ import annotations

import json
import logging
import os

import pytest
from serving import decoder, running

from trivium.evaluate.lm_eval import run_tasks

pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and what it imports

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
  - metric: bits_per_byte
"""
WRITING = """\
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 7
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
QUESTIONS = ["The weather was", "Yesterday it", "today it's", "今天", "but", "The weather"]
OPTIONS = [" cloudy", " rainy", " yesterday"]


@pytest.fixture(scope="module")
def harness():
    before = os.environ.get("HF_DATASETS_OFFLINE")
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    yield
    if before is None:
        del os.environ["HF_DATASETS_OFFLINE"]
    else:
        os.environ["HF_DATASETS_OFFLINE"] = before


def write(folder, name: str, kind: str, records: list[dict], more: str) -> None:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (folder / f"{name}.yaml").write_text(
        TASK.format(name=name, kind=kind, file=file, more=more), encoding="utf-8"
    )


@pytest.fixture
def tasks(tmp_path, harness):
    asked = [
        {"question": question, "choices": OPTIONS, "label": number % 3}
        for number, question in enumerate(QUESTIONS)
    ]
    write(tmp_path, "trivium_served_choice", "multiple_choice", asked, CHOICE)
    texts = [{"text": "The weather was cloudy yesterday."}, {"text": "今天天气很好。"}]
    write(tmp_path, "trivium_served_text", "loglikelihood_rolling", texts, ROLLING)
    lm = decoder()
    answered = [
        {"question": question, "answer": written if number % 2 else "nothing"}
        for number, question in enumerate(QUESTIONS)
        for written in [lm.generate(question, max_new_tokens=7, temperature=0.0).split(".")[0]]
    ]
    write(tmp_path, "trivium_served_answer", "generate_until", answered, WRITING)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_task_through_the_server(tasks, tmp_path, batch_size):
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    names = ["trivium_served_choice", "trivium_served_text", "trivium_served_answer"]
    lm = decoder()
    theirs = lm.save_hf(tmp_path / "theirs")  # their client counts tokens by itself
    with running({"mine": str(lm.save(tmp_path / "mine"))}) as served:
        found = simple_evaluate(
            model="local-completions",
            model_args={
                "model": "mine",
                "base_url": f"{served.url}/v1/completions",
                "tokenizer": str(theirs),
                "tokenizer_backend": "huggingface",
                "max_length": 1024,
                "batch_size": batch_size,
                "max_retries": 1,
            },
            tasks=names,
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
            bootstrap_iters=0,
            log_samples=False,
        )
        assert served.metric("trivium_requests_total", status="200") > 3
        assert served.metric("trivium_requests_total", route="/v1/completions", status="400") == 0
    wanted = run_tasks(lm, names, folder=tasks)
    results = found["results"]
    choice, text, answer = names
    assert results[choice]["acc,none"] == wanted[choice]["acc,none"]
    assert results[text]["bits_per_byte,none"] == pytest.approx(
        wanted[text]["bits_per_byte,none"], rel=1e-4
    )
    assert results[answer]["exact_match,none"] == wanted[answer]["exact_match,none"]
    assert 0 < results[answer]["exact_match,none"] < 1
