"""BLEU of four translators after the same minutes: the bundled sentence pairs, a core each.

The Transformer of 2017, the recurrent network with attention of Bahdanau et al. 2015, T5, and a
decoder that answers the source with its translation (with a causal mask, its loss on the
translation alone). The last 200 of 2,000 pairs are held out; targets are searched for greedily.

    python benchmarks/translators.py --minutes 3
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import sacrebleu
from rich.console import Console

import trivium
from trivium.data.samples import copy_samples
from trivium.inference.request import GenerationRequest

MODELS = {
    "Transformer of 2017": "transformer-mini",
    "Bahdanau et al. 2015": "bahdanau-mini",
    "T5": "t5-mini",
    "decoder": "llama-mini",
}
HELD_OUT = 200


@functools.cache
def pairs() -> list[list[str]]:
    """English and French sentences."""
    with tempfile.TemporaryDirectory() as folder:
        copy_samples(folder)
        text = Path(folder, "english-french.tsv").read_text(encoding="utf-8")
    return [line.split("\t")[:2] for line in text.splitlines() if "\t" in line]


def train(model: str, folder: Path, minutes: float) -> tuple[list[str], int]:
    """Greedy translations of the held-out sources, and steps of training."""
    decodes = trivium.presets[model].family == "decoder-only"
    kind, records = ("chat", conversations()) if decodes else ("translation", sources())
    files = [folder / "train.jsonl", folder / "held_out.jsonl"]
    for file, part in zip(files, (records[:-HELD_OUT], records[-HELD_OUT:])):
        file.write_text("".join(json.dumps(one) + "\n" for one in part), encoding="utf-8")
    changes = [f"train.minutes={minutes}", "train.device=cpu", f"data.validation=['{files[1]}']"]
    run = trivium.finetune(
        kind,
        model=model,
        data=str(files[0]),
        out=folder / "run",
        changes=changes,
        console=Console(file=io.StringIO()),
    )
    lm = trivium.load(run.path)
    texts = [source for source, _ in pairs()[-HELD_OUT:]]
    steps = max(record["step"] for record in run.read_metrics())
    if not decodes:
        return lm.translate(texts, num_beams=1), steps
    prompts = [lm.conversation_ids([{"role": "user", "content": text}]) for text in texts]
    options = {"temperature": 0.0, "max_new_tokens": 60}
    requests = [
        GenerationRequest(ids, lm.sampling_params(ids, options), answers=True) for ids in prompts
    ]
    engine = lm.engine_for(requests, slots=8)
    for request in requests:
        engine.add(request)
    for _ in engine.run():
        pass
    return [request.text for request in requests], steps


def sources() -> list[dict[str, Any]]:
    return [{"source": source, "target": target} for source, target in pairs()]


def conversations() -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": source},
                {"role": "assistant", "content": target},
            ]
        }
        for source, target in pairs()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS])
    arguments = parser.parse_args()
    references = [[target for _, target in pairs()[-HELD_OUT:]]]
    print("| model | preset | steps | BLEU | chrF | minutes |\n|---|---|---|---|---|---|")
    for name in arguments.only:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found, steps = train(MODELS[name], Path(folder), arguments.minutes)
        bleu = sacrebleu.corpus_bleu(found, references).score
        chrf = sacrebleu.corpus_chrf(found, references).score
        minutes = (time.monotonic() - start) / 60
        cells = (name, MODELS[name], steps, f"{bleu:.1f}", f"{chrf:.1f}", f"{minutes:.1f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
