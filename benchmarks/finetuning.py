"""Does pretraining help? One network from its pretrained and from random weights, beside counting.

Every task is fine-tuned twice with the same settings, and judged on its validation file. Sentences
stand beside TF-IDF of words and pairs of words with logistic regression (scikit-learn), tags beside
the most frequent tag of every word (the most frequent of all for unknown words).

    python benchmarks/finetuning.py --model runs/encoder \\
        --sentences movie_sentences.train.jsonl movie_sentences.valid.jsonl \\
        --tags en_ewt.train.conllu en_ewt.valid.conllu --tags wnut17.train.conll wnut17.valid.conll
    python benchmarks/finetuning.py --model runs/encoder --folds movie_sentences.train.jsonl

`--folds` cuts labelled texts into five parts and holds out each in turn: 9,000 sentences tell apart
what 500 do not. Of the rest a tenth chooses the epoch, so the part held out decides nothing. At the
end stands how often one network alone is right, and how likely that is by chance (McNemar 1947).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean
from typing import NamedTuple

FOLDS = 5


def linear_baseline(train: str, valid: str) -> float:
    """Accuracy of TF-IDF and logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from trivium.data.labelled import read_texts

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10.0, max_iter=1000),
    )
    shown, asked = read_texts(train), read_texts(valid)
    model.fit([each.text for each in shown], [str(each.label) for each in shown])
    return float(model.score([each.text for each in asked], [str(each.label) for each in asked]))


def frequent_tag_baseline(train: str, valid: str) -> float:
    """F1 of chunks or accuracy of tags, where every word gets the tag it has most often."""
    from trivium.data.labelled import read_tagged
    from trivium.evaluate.tagging_metrics import tagging_metrics

    counted: dict[str, Counter[str]] = defaultdict(Counter)
    everywhere: Counter[str] = Counter()
    for sentence in read_tagged(train):
        for word, tag in zip(sentence.words, sentence.tags):
            counted[word.lower()][tag] += 1
            everywhere[tag] += 1
    (usual, _), *_ = everywhere.most_common(1)
    best = {word: tags.most_common(1)[0][0] for word, tags in counted.items()}
    asked = read_tagged(valid)
    said = [[best.get(word.lower(), usual) for word in each.words] for each in asked]
    return tagging_metrics([list(each.tags) for each in asked], said).main[1]


def finetuned(
    task: str, model: str, train: str, valid: str, weights: str, changes: list[str], folder: Path
) -> tuple[str, float]:
    """The name of the metric and what one fine-tuning reaches."""
    out = folder / f"{Path(train).name}-{weights}"
    command = [sys.executable, "-m", "trivium", "finetune", task, "--model", model]
    command += ["--data", train, "--validation", valid, "--out", str(out)]
    for change in (f"model.weights={weights}", *changes):
        command += ["--set", change]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    return found["metric"], found["score"]


class Fold(NamedTuple):
    """Files to learn from, to choose the epoch by, and to be judged by."""

    train: str
    valid: str
    asked: str


def cut(file: str, folder: Path) -> list[Fold]:
    """Five times all texts; every text is held out once."""
    from trivium.data.labelled import read_texts

    lines = [json.dumps({"text": each.text, "label": each.label}) for each in read_texts(file)]
    random.Random(0).shuffle(lines)
    folds = []
    for fold in range(FOLDS):
        rest = [line for i, line in enumerate(lines) if i % FOLDS != fold]
        parts = rest[len(rest) // 10 :], rest[: len(rest) // 10], lines[fold::FOLDS]
        paths = [folder / f"fold{fold + 1}.{name}.jsonl" for name in Fold._fields]
        for path, part in zip(paths, parts, strict=True):
            path.write_text("\n".join(part) + "\n", encoding="utf-8")
        folds.append(Fold(*map(str, paths)))
    return folds


def right(run: Path, asked: str) -> list[bool]:
    """Which of some labelled texts a fine-tuned model labels as they are."""
    import trivium
    from trivium.data.labelled import read_texts

    texts = read_texts(asked)
    found = trivium.load(run).classify([each.text for each in texts])
    return [said.label == str(each.label) for said, each in zip(found, texts, strict=True)]


def compare_folds(file: str, model: str, changes: list[str], folder: Path) -> None:
    """A line for each fold, one for all of them, and how sure the difference is."""
    from scipy.stats import binomtest

    answers: dict[str, list[bool]] = {"random": [], "start": []}
    counted, sizes = [], []
    for fold in cut(file, folder):
        counted.append(linear_baseline(fold.train, fold.asked))
        here = {}
        for weights, so_far in answers.items():
            finetuned("classification", model, fold.train, fold.valid, weights, changes, folder)
            here[weights] = right(folder / f"{Path(fold.train).name}-{weights}", fold.asked)
            so_far += here[weights]
        sizes.append(len(here["start"]))
        show(
            Path(fold.asked).name,
            "accuracy",
            counted[-1],
            mean(here["random"]),
            mean(here["start"]),
        )
    counting = sum(share * size for share, size in zip(counted, sizes, strict=True)) / sum(sizes)
    show(Path(file).name, "accuracy", counting, mean(answers["random"]), mean(answers["start"]))
    pairs = list(zip(answers["start"], answers["random"], strict=True))
    ours, theirs = pairs.count((True, False)), pairs.count((False, True))
    chance = binomtest(ours, ours + theirs).pvalue
    print(f"right alone: pretrained {ours}, random {theirs}; by chance p = {chance:.1g}")


def show(name: str, metric: str, counting: float, from_random: float, pretrained: float) -> None:
    """A line of the table."""
    print(
        f"{name:32} {metric:10} {counting:9.4f} {from_random:9.4f} {pretrained:11.4f}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a pretrained encoder")
    pair = {"nargs": 2, "metavar": ("TRAIN", "VALID"), "action": "append", "default": []}
    parser.add_argument("--sentences", **pair, help="labelled texts")
    parser.add_argument("--tags", **pair, help="tagged words")
    parser.add_argument("--folds", action="append", default=[], help="labelled texts, to be cut")
    parser.add_argument("--set", action="append", default=[], help="changes of the recipe")
    options = parser.parse_args()
    print(f"{'data':32} {'metric':10} {'counting':>9} {'random':>9} {'pretrained':>11}", flush=True)
    jobs = [("classification", *files, linear_baseline) for files in options.sentences]
    jobs += [("tagging", *files, frequent_tag_baseline) for files in options.tags]
    with tempfile.TemporaryDirectory() as folder:
        for file in options.folds:
            compare_folds(file, options.model, options.set, Path(folder))
        for task, train, valid, baseline in jobs:
            counting, scores, metric = baseline(train, valid), {}, ""
            for weights in ("random", "start"):
                metric, scores[weights] = finetuned(
                    task, options.model, train, valid, weights, options.set, Path(folder)
                )
            show(Path(train).name, metric, counting, scores["random"], scores["start"])


if __name__ == "__main__":
    main()
