"""Film sentences that please a classifier: a policy with and without the divergence in its reward.

A decoder is trained on film sentences, and a copy of it to tell positive ones from negative ones by
half of them. The other half teaches a judge, a bag of words, which no policy sees. Prompts are the
first three words of sentences. The table has means over 128 held-out prompts, of `kl` over the last
steps, and seconds of the processor. A run that is there is kept.

    OMP_NUM_THREADS=1 python benchmarks/sentiment.py sentences.jsonl --out runs/sentiment
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

SHOWN = ("reward", "judge", "kl", "distinct_2", "length", "seconds")
POLICIES = {
    "start": ("train.steps=1", "optimizer.lr=1e-9"),
    "beta 0.05": (),
    "beta 0.05, k3": ('objective.kl="k3"',),
    "beta 0": ("objective.beta=0",),
}


def write(path: Path, rows: list[dict[str, str]]) -> str:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def bag_of_words(texts: list[str], labels: list[str]) -> Any:
    """The probability of the label "good", as a function of texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    fitted: Any = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, labels)
    return lambda texts: fitted.predict_proba(texts)[:, list(fitted.classes_).index("good")]


def once(train: Any, *what: str, out: Path, **options: Any) -> float:
    """Train where there is no such run; seconds of the processor."""
    started = time.process_time()
    if not (out / "report.html").exists():
        train(*what, out=out, overwrite=True, **options)
    return time.process_time() - started


def main() -> None:
    """Train all, and print the table."""
    parser = argparse.ArgumentParser(description="Sentiment by a policy.")
    parser.add_argument("sentences", help="JSON lines: text, label (1 and positive: good)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretrain", default="train.minutes=2.5", help="budget of the decoder")
    parser.add_argument("--steps", type=int, default=100, help="of a policy")
    job = parser.parse_args()

    import trivium
    from trivium.data import read_records

    job.out.mkdir(parents=True, exist_ok=True)
    records = list(read_records(job.sentences))
    texts = [record.text("text") for record in records]
    labels = ["good" if str(one["label"]) in ("1", "positive") else "bad" for one in records]
    half = len(texts) // 2
    judge = bag_of_words(texts[half:], labels[half:])
    plain = write(job.out / "texts.jsonl", [{"text": text} for text in texts])
    rows = [{"text": text, "label": label} for text, label in zip(texts[:half], labels)]
    labelled = write(job.out / "labelled.jsonl", rows)
    rows = [{"prompt": " ".join(text.split()[:3])} for text in texts]
    prompts = write(job.out / "prompts.jsonl", rows)

    film, label = job.out / "film", job.out / "label"
    once(trivium.pretrain, "llama-tiny", data=plain, out=film, changes=[job.pretrain])
    once(trivium.finetune, "classification", model=film, data=labelled, out=label)
    changes = [
        f'objective.rewards=[{{kind="label", model="{label}", label="good"}}]',
        *("objective.max_new_tokens=24", "optimizer.lr=1.5e-3", "train.batch_examples=16"),
        *(f"train.steps={job.steps}", "train.eval_examples=128"),
    ]
    print("|", " | ".join(("", *SHOWN)), "|\n" + "|---" * (len(SHOWN) + 1) + "|")
    for name, own in POLICIES.items():
        out = job.out / name.replace(" ", "-")
        settings = {"model": film, "data": prompts, "changes": [*changes, *own]}
        seconds = once(trivium.finetune, "policy", out=out, **settings)
        values = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["values"]
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        last = [row for row in map(json.loads, lines) if "train_reward" in row][-1]
        drawn = read_records(str(out / "predictions.jsonl"))
        values["judge"] = judge([f"{one['prompt']} {one['response']}" for one in drawn]).mean()
        values |= {"kl": last.get("train_kl", float("nan")), "seconds": seconds}
        print("|", " | ".join((name, *(f"{values[one]:.2f}" for one in SHOWN))), "|")


if __name__ == "__main__":
    main()
