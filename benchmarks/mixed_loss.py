"""What fine-tuning forgets: a decoder taught classes with and without the language model's loss.

The same pretrained decoder learns the same labelled texts with L = L_task + lambda L_LM for several
lambda. Shown are the task's metric, the task's loss and the loss of the next token on the task's
held-out texts, and, where `--text` is given, that on text of another kind, before and after.

    python benchmarks/mixed_loss.py --model runs/gpt --data sentences.jsonl --text wiki.txt
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def run(command: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trivium", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"trivium {' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def text_loss(model: str, text: str, limit: int) -> float:
    """Nats a token of a text."""
    options = ["--task", "perplexity", "--limit", str(limit), "--json"]
    return json.loads(run(["eval", model, text, *options]))["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a pretrained decoder")
    parser.add_argument("--data", required=True, help="labelled texts")
    parser.add_argument("--validation", help="more of them, to be judged by")
    parser.add_argument("--text", help="text whose loss shows what is forgotten")
    parser.add_argument("--limit", type=int, default=40, help="documents of it")
    parser.add_argument("--lambdas", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--set", action="append", default=[], help="changes of the recipe")
    options = parser.parse_args()
    print(f"{'lambda':>7} {'metric':>10} {'task loss':>10} {'next token':>11} {'text':>9}")
    if options.text:
        before = text_loss(options.model, options.text, options.limit)
        print(f"{'before':>7} {'':>10} {'':>10} {'':>11} {before:9.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for weight in options.lambdas:
            out = str(Path(folder) / f"lambda-{weight}")
            command = ["finetune", "classification", "--model", options.model, "--out", out]
            command += ["--data", options.data, "--set", f"task.lm_weight={weight}"]
            command += ["--validation", options.validation] if options.validation else []
            for change in options.set:
                command += ["--set", change]
            run(command)
            lines = (Path(out) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            last = [json.loads(line) for line in lines if "valid_loss" in line][-1]
            found = json.loads((Path(out) / "evaluation.json").read_text(encoding="utf-8"))
            after = text_loss(out, options.text, options.limit) if options.text else float("nan")
            print(
                f"{weight:7.2f} {found['score']:10.4f} {last['valid_task']:10.4f} "
                f"{last['valid_lm']:11.4f} {after:9.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
