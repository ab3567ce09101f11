"""Generated tokens per second: Trivium's engine against `transformers.generate`, equal weights.

Random weights of a published shape are written once as a Hugging Face folder that both sides load.
Prompts of mixed lengths are continued greedily, without an early end; reading them is included.
In float32 both sides must generate the same tokens. Ratios are to the better of the peer's two
ways, its dynamic cache and its compiled static cache.

    python benchmarks/generate.py
    python benchmarks/generate.py --models gpt2 --dtypes bfloat16 --batches 1 --rounds 5
    OMP_NUM_THREADS=1 python benchmarks/generate.py --partial

`--partial` measures Trivium alone where much could be done in vain: one text that is left in many
slots, many labels of one source, many short texts to score.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from side_by_side import Figures, compare, is_child, parser

MODELS = ("gpt2", "llama", "t5", "marian")
TRANSLATORS = ("t5", "marian")
LENGTHS = (32, 10, 24, 45, 70, 98, 130, 165)  # tokens of prompts; of sources a fifth


def make_folder(model: str, folder: Path, *, tiny: bool = False) -> None:
    """Random weights of a published shape, as both sides read them."""
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets

    sizes = {"gpt2": "gpt2", "llama": "llama-tiny", "t5": "t5-small", "marian": "marian-opus-mt"}
    spec = presets[f"{model}-tiny" if tiny else sizes[model]]
    if model == "llama" and not tiny:
        spec = smollm(spec)
    LanguageModel(spec, build(spec, seed=0)).save_hf(folder)


def smollm(spec: Any) -> Any:
    """The shape of SmolLM 135M."""
    decoder = spec.decoder.with_layers(
        num_layers=30,
        mixer=spec.decoder.mixers[0].replace(num_heads=9, num_kv_heads=3, head_dim=64),
        feed_forward=spec.decoder.every_layer[0].feed_forward.replace(d_ff=1536),
    )
    heads = (spec.heads[0].replace(tied=True),)
    return spec.replace(vocab_size=49_152, d_model=576, decoder=decoder, heads=heads)


def prompts(job: argparse.Namespace, vocab_size: int) -> list[list[int]]:
    """Ids of prompts, or of sources."""
    import numpy as np

    rng = np.random.default_rng(1)
    lengths = [LENGTHS[number % len(LENGTHS)] for number in range(job.batch)]
    if job.model in TRANSLATORS:
        lengths = [max(4, length // 5) for length in lengths]
    return [rng.integers(10, vocab_size - 1, length).tolist() for length in lengths]


def measure(job: argparse.Namespace, generate: Callable[[], list[list[int]]]) -> Figures:
    """Tokens per second, the median of some repeats, and a checksum of the ids."""
    generate()  # compiles, and compiles again for other lengths
    ids = generate()
    seconds = []
    for _ in range(job.repeats):
        started = time.perf_counter()
        generate()
        seconds.append(time.perf_counter() - started)
    rate = job.batch * job.new_tokens / statistics.median(seconds)
    checksum = sum(number * token for row in ids for number, token in enumerate(row, start=1))
    return {"tokens/s": rate, "checksum": checksum % 10_007}


def endless(module: Any, *, translates: bool) -> Any:
    """A `TextModel` whose texts never end early, with a tokenizer of numbered words."""
    import tokenizers

    from trivium.inference.text_model import GenerationRules, TextModel
    from trivium.text import Tokenizer

    class EndlessModel(TextModel):
        generation_rules = GenerationRules(
            module.spec.vocab_size, decoder_start=(0,) if translates else ()
        )

    words = {f"w{number}": number for number in range(module.spec.vocab_size)}
    tokenizer = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")))
    return EndlessModel(module.spec, module, tokenizer)


def run_trivium(
    job: argparse.Namespace, *, compile: bool = False, pack: bool = False, quantize: Any = None
) -> Figures:
    """The engine, or beam search."""
    from trivium.inference.beam import beam_search
    from trivium.inference.engine import Engine
    from trivium.inference.request import GenerationRequest
    from trivium.inference.sampling_params import BeamSearchParams, SamplingParams
    from trivium.model_loading import load

    module = load(
        job.folder, device=job.device, dtype=job.dtype, pack=pack, quantize=quantize
    ).module
    lm = endless(module, translates=job.model in TRANSLATORS)
    rows = prompts(job, module.spec.vocab_size)
    params = SamplingParams(temperature=0.0, max_new_tokens=job.new_tokens)
    capacity = max(map(len, rows)) + job.new_tokens
    engine = Engine(lm, slots=job.batch, slot_length=capacity, compile=compile)

    def sample() -> list[list[int]]:
        requests = [engine.add(GenerationRequest(row, params)) for row in rows]
        for _ in engine.run():
            pass
        return [request.output_ids for request in requests]

    def search() -> list[list[int]]:
        beams = BeamSearchParams(num_beams=job.beams)
        results = beam_search(lm, rows, beams, max_new_tokens=job.new_tokens)
        return [list(hypotheses[0].ids) for hypotheses in results]

    return measure(job, search if job.beams > 1 else sample)


def run_transformers(job: argparse.Namespace, *, static: bool = False) -> Figures:
    """`generate`, prompts padded on the left, sources on the right."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    translates = job.model in TRANSLATORS
    kind = transformers.AutoModelForSeq2SeqLM if translates else transformers.AutoModelForCausalLM
    network = kind.from_pretrained(job.folder, dtype=getattr(torch, job.dtype))
    network = network.eval().to(job.device)
    rows = prompts(job, network.config.vocab_size)
    longest = max(map(len, rows))

    def padded(row: list[int]) -> list[int]:
        padding = [0] * (longest - len(row))
        return [*row, *padding] if translates else [*padding, *row]

    ids = torch.tensor([padded(row) for row in rows], device=job.device)
    mask = torch.tensor([padded([1] * len(row)) for row in rows], device=job.device)
    config = network.generation_config
    config.eos_token_id = config.forced_eos_token_id = config.bad_words_ids = None
    config.pad_token_id, config.max_length = 0, None
    config.decoder_start_token_id = 0 if translates else None
    options: dict[str, Any] = {"num_beams": job.beams, "do_sample": False}
    if static:
        compiling = transformers.CompileConfig(mode="default", fullgraph=False)
        compiling._compile_all_devices = True
        options |= {"cache_implementation": "static", "compile_config": compiling}

    def generate() -> list[list[int]]:
        new = {"max_new_tokens": job.new_tokens, **options}
        outputs = network.generate(ids, attention_mask=mask, **new)
        return outputs[:, 1 if translates else longest :].tolist()

    return measure(job, generate)


def measure_partial(options: argparse.Namespace) -> None:
    """Milliseconds of process time, each beside what it would be without the others' work."""
    from trivium.inference.engine import Engine
    from trivium.inference.request import GenerationRequest
    from trivium.inference.sampling_params import SamplingParams
    from trivium.inference.score import ScoreItem, score_continuations
    from trivium.models import build
    from trivium.presets import presets

    size = "tiny" if options.tiny else "mini"
    decoder, translator = (
        endless(build(presets[f"{name}-{size}"], seed=0).eval(), translates=name == "t5")
        for name in ("gpt2", "t5")
    )

    def milliseconds(run: Callable[[], Any], repeats: int) -> float:
        run()
        seconds = []
        for _ in range(repeats):
            started = time.process_time()
            run()
            seconds.append(time.process_time() - started)
        return statistics.median(seconds) * 1e3

    def left_in(slots: int) -> Engine:
        """An engine with all slots in use, and then with the text of the last one alone."""
        engine = Engine(decoder, slots=slots, slot_length=256)
        for slot in range(slots):
            params = SamplingParams(temperature=0.0, max_new_tokens=150 if slot == slots - 1 else 2)
            engine.add(GenerationRequest([5 + slot] * 64, params))
        while engine.waiting or engine.num_active > 1:
            engine.step()
        return engine

    def score(lm: Any, groups: list[list[ScoreItem]]) -> None:
        for group in groups:
            score_continuations(lm, group)

    source = [5 + number % 999 for number in range(256)]
    labels = [[7 + number, 9 + number, 1] for number in range(16)]
    items = [ScoreItem([5 + i + j for j in range(20)], [[9 + i, 8, 7]]) for i in range(64)]
    figures = {
        "a step of the text left of 16": milliseconds(left_in(16).step, 40),
        "a step of one text in one slot": milliseconds(left_in(1).step, 40),
    }
    for name, lm, groups in (
        ("16 labels of a source", translator, [[ScoreItem(source, labels)]]),
        ("1 label of it", translator, [[ScoreItem(source, labels[:1])]]),
        ("64 short items together", decoder, [items]),
        ("64 short items one by one", decoder, [[item] for item in items]),
    ):
        figures[name] = milliseconds(functools.partial(score, lm, groups), options.repeats)
    for name, figure in figures.items():
        print(f"{name:<32}{figure:8.1f} ms")


SIDES = {
    "trivium": run_trivium,
    "trivium packed": functools.partial(run_trivium, pack=True),
    "trivium packed int8": functools.partial(run_trivium, pack=True, quantize="int8"),
    "trivium compiled": functools.partial(run_trivium, compile=True),
    "transformers": run_transformers,
    "transformers static cache, compiled": functools.partial(run_transformers, static=True),
}


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="texts at a time")
    options.add_argument("--beams", nargs="+", type=int, default=[1], help="of translators")
    options.add_argument("--new-tokens", type=int, default=64)
    options.add_argument("--repeats", type=int, default=3, help="timed calls in each round")
    options.add_argument("--device", default="cpu")
    options.add_argument("--tiny", action="store_true", help="tiny models, to try the program")
    options.add_argument("--partial", action="store_true", help="Trivium alone; see above")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    if chosen.partial:
        measure_partial(chosen)
        return
    shared = {name: getattr(chosen, name) for name in ("new_tokens", "repeats", "device")}
    with tempfile.TemporaryDirectory() as place:
        for model in chosen.models:
            folder = Path(place, model)
            make_folder(model, folder, tiny=chosen.tiny)
            for dtype, batch, beams in itertools.product(
                chosen.dtypes, chosen.batches, chosen.beams if model in TRANSLATORS else [1]
            ):
                job = {"model": model, "folder": str(folder), "dtype": dtype, "batch": batch}
                name = f"{model} {dtype}, batch {batch}, beams {beams}"
                results = compare(chosen, SIDES, {name: {**job, "beams": beams, **shared}})
                if dtype == "float32":
                    check_same_tokens(results[name])


def check_same_tokens(results: dict[str, list[Figures]]) -> None:
    """Say so where sides of equal precision generated other tokens than the peer."""
    sums = {
        side: rows[0]["checksum"]
        for side, rows in results.items()
        if rows[0] and "int8" not in side
    }
    if len(set(sums.values())) > 1:
        print(f"different tokens: {sums}")


if __name__ == "__main__":
    main()
