"""BLEU of four translators after the same minutes: the bundled sentence pairs, a core each.

The Transformer of 2017, the recurrent network with attention of Bahdanau et al. 2015, T5, and two
decoders that answer the source with its translation and have a loss on that alone: one whose mask
is causal, and one that sees all of the source from each of its tokens (a prefix mask, Raffel et al.
2019, figure 4). The last 200 of 2,000 pairs are held out; decoding is greedy.

    python benchmarks/translators.py --minutes 3
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import io
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import sacrebleu
import torch
from rich.console import Console

import trivium
from trivium.data.batch import IGNORE_INDEX, Batch, RowBatch
from trivium.data.row_order import RowRandom
from trivium.data.samples import copy_samples
from trivium.inference.forward import vocabulary_log_probabilities
from trivium.inference.request import GenerationRequest
from trivium.language_model import LanguageModel
from trivium.objectives.chat import Chat, Conversation
from trivium.objectives.tensor_batch import to_device
from trivium.text.vocabulary import Vocabulary

MODELS = {
    "Transformer of 2017": ("translation", "transformer-mini"),
    "Bahdanau et al. 2015": ("translation", "bahdanau-mini"),
    "T5": ("translation", "t5-mini"),
    "decoder, prefix mask": ("prefix-translation", "llama-mini"),
    "decoder, causal mask": ("chat", "llama-mini"),
}
HELD_OUT, LONGEST = 200, 60


class PrefixTranslation(Chat):
    """`chat` of one prompt and one response, where the prompt is attended to by all tokens."""

    kind: Literal["prefix-translation"] = "prefix-translation"

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """See `with_prefix`."""
        return with_prefix(rows)

    def predict(
        self, lm: LanguageModel, examples: Sequence[Conversation]
    ) -> list[tuple[float, int]]:
        """Nats and tokens of the responses, one by one."""
        encoded, sums = self.encode(examples, lm), []
        for number in range(len(encoded)):
            batch = with_prefix(encoded.take(number))
            with torch.inference_mode():
                loss = self.loss(lm.module, to_device(batch, lm.module.device))["loss"]
            sums.append((loss.item(), batch.num_labels))
        return sums


def with_prefix(rows: RowBatch) -> Batch:
    """With the tokens of each prompt: the last one has the first label."""
    labelled = rows.labels != IGNORE_INDEX
    return dataclasses.replace(rows.to_batch(), prefix_lengths=labelled.argmax(axis=1) + 1)


@functools.cache
def pairs() -> list[list[str]]:
    """English and French sentences."""
    with tempfile.TemporaryDirectory() as folder:
        copy_samples(folder)
        text = Path(folder, "english-french.tsv").read_text(encoding="utf-8")
    return [line.split("\t")[:2] for line in text.splitlines() if "\t" in line]


def train(task: str, model: str, folder: Path, minutes: float) -> tuple[list[str], int]:
    """Greedy translations of the held-out sources, and steps of training."""
    records = sources() if task == "translation" else conversations()
    files = [folder / "train.jsonl", folder / "held_out.jsonl"]
    for file, part in zip(files, (records[:-HELD_OUT], records[-HELD_OUT:])):
        file.write_text("".join(json.dumps(one) + "\n" for one in part), encoding="utf-8")
    # `chat` packs about three conversations into a row.
    rows = 32 if task == "chat" else 96
    changes = [f"train.minutes={minutes}", f"train.batch_examples={rows}", "train.device=cpu"]
    changes.append(f"data.validation=['{files[1]}']")
    run = trivium.finetune(
        task,
        model=model,
        data=str(files[0]),
        out=folder / "run",
        changes=changes,
        console=Console(file=io.StringIO()),
    )
    lm = trivium.load(run.path)
    texts = [source for source, _ in pairs()[-HELD_OUT:]]
    steps = max(record["step"] for record in run.read_metrics())
    if task == "translation":
        return lm.translate(texts, num_beams=1), steps
    prompts = [lm.conversation_ids([{"role": "user", "content": text}]) for text in texts]
    if task == "prefix-translation":
        return [continued(lm, ids) for ids in prompts], steps
    options = {"temperature": 0.0, "max_new_tokens": LONGEST}
    requests = [
        GenerationRequest(ids, lm.sampling_params(ids, options), answers=True) for ids in prompts
    ]
    engine = lm.engine_for(requests, slots=8)
    for request in requests:
        engine.add(request)
    for _ in engine.run():
        pass
    return [request.text for request in requests], steps


@torch.inference_mode()
def continued(lm: LanguageModel, prompt: list[int]) -> str:
    """The most probable tokens after a prompt that is seen as a whole."""
    module, tokenizer = lm.module, lm.text_tokenizer
    cache = module.new_cache(1, len(prompt) + LONGEST)
    hidden = module(torch.tensor([prompt]), prefix_lengths=torch.tensor([len(prompt)]), cache=cache)
    ids: list[int] = []
    while len(ids) < LONGEST:
        scores = vocabulary_log_probabilities(module, hidden[0, -1], tokenizer.vocab_size)
        token_id = int(scores.argmax())
        if token_id in lm.generation_rules.stop_ids:
            break
        ids.append(token_id)
        hidden = module(torch.tensor([[token_id]]), cache=cache)
    return tokenizer.decode(ids).strip()


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
            found, steps = train(*MODELS[name], Path(folder), arguments.minutes)
        bleu = sacrebleu.corpus_bleu(found, references).score
        chrf = sacrebleu.corpus_chrf(found, references).score
        minutes = (time.monotonic() - start) / 60
        cells = (name, MODELS[name][1], steps, f"{bleu:.1f}", f"{chrf:.1f}", f"{minutes:.1f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
