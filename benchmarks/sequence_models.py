"""From n-grams to the Transformer: models of about equal size, ranked after equal time.

Every model gets the same tokens, the same number of minutes and its own default recipe; the
ranking by validation loss stands beside what counting reaches on the same text: word frequencies,
and n-grams of 5 with modified Kneser-Ney smoothing.

    python benchmarks/sequence_models.py --minutes 2

--out keeps the runs and their comparison page, for `trivium report`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from trivium.data.prepare import prepare
from trivium.data.samples import sample
from trivium.data.shards import TRAIN
from trivium.data.splits import read_splits
from trivium.report import write_comparison
from trivium.report.ranking import rankings, text_ranking
from trivium.report.run_files import read_run
from trivium.text import Tokenizer

PRESETS = ("ngram-mini", "rnn-mini", "gru-mini", "lstm-mini", "elmo-mini", "llama-mini")
VOCABULARY = 8192


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("presets", nargs="*", default=PRESETS, metavar="PRESET")
    options.add_argument("--minutes", type=float, default=2.0, help="for each model")
    options.add_argument("--data", type=Path, default=sample("en"), help="text, or the sample")
    options.add_argument("--out", type=Path, help="keep the runs here")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        compare(chosen.presets, chosen.minutes, chosen.data, chosen.out or Path(temporary))


def compare(presets: list[str], minutes: float, data: Path, folder: Path) -> None:
    """Train all of them in turn and print the ranking."""
    shards = folder / "shards"
    documents = read_splits([str(data)], validation=0.1)
    texts = (document.text for split, document in documents if split == TRAIN)
    tokenizer = Tokenizer.train("byte-bpe", texts=texts, vocab_size=VOCABULARY)
    prepare([str(data)], shards, tokenizer, validation=0.1)
    runs = []
    for preset in presets:
        print(f"\n{preset}", file=sys.stderr, flush=True)
        out = folder / preset
        command = [sys.executable, "-m", "trivium", "pretrain", preset, "--overwrite"]
        command += ["--data", str(shards), "--out", str(out), f"--set=train.minutes={minutes}"]
        subprocess.run(command, check=True)
        runs.append(read_run(out))
    for ranking in rankings(runs, presets):
        print(f"\n{text_ranking(ranking)}")
    if len(runs) > 1:
        print(f"\n{write_comparison([run.folder for run in runs], folder / 'comparison.html')}")


if __name__ == "__main__":
    main()
