"""Forward and backward pass of every family: Trivium against `transformers` on the same work.

Both hold the same weights (4 layers x 256, vocabulary 8192, no dropout), read the same batch (16
rows of 128 tokens; encoder-decoders 64 and 64) and compute the family's training loss and all its
gradients in bfloat16 autocast. `transformers` runs with each of its attentions and counts with the
faster one. Every side has a process of its own; repetitions alternate. Printed are medians, the
median of the repetitions' ratios (above 1: Trivium is faster), and by how much the passes raise
the peak of each process's memory over what it held before the first one.

    python benchmarks/forward_backward.py --families bert t5 --repetitions 9
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB, LENGTH, ROWS, WIDTH, LAYERS, HEADS = 8192, 128, 16, 256, 4, 4
MASKED_SHARE = 0.15
SIDES = ("trivium", "sdpa", "eager")

_ENCODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_GPT = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
_GPT |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_LLAMA = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": 688,
    "pad_token_id": 0,
}
_BART = {
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 4 * WIDTH,
    "decoder_ffn_dim": 4 * WIDTH,
    "max_position_embeddings": 512,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
# Family -> its class in `transformers`, the options of its config, what it is trained for.
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertForMaskedLM", _ENCODER, "masked"),
    "roberta": ("RobertaForMaskedLM", {**_ENCODER, "max_position_embeddings": 514}, "masked"),
    "albert": ("AlbertForMaskedLM", {**_ENCODER, "embedding_size": 128}, "masked"),
    "electra": ("ElectraForMaskedLM", {**_ENCODER, "embedding_size": 128}, "masked"),
    "modernbert": (
        "ModernBertForMaskedLM",
        {
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": 384,
            **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
        },
        "masked",
    ),
    "gpt1": ("OpenAIGPTLMHeadModel", _GPT, "causal"),
    "gpt2": ("GPT2LMHeadModel", {**_GPT, "bos_token_id": 0, "eos_token_id": 0}, "causal"),
    "opt": (
        "OPTForCausalLM",
        {
            "hidden_size": WIDTH,
            "word_embed_proj_dim": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "ffn_dim": 4 * WIDTH,
            "max_position_embeddings": 512,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "causal",
    ),
    "llama": ("LlamaForCausalLM", _LLAMA, "causal"),
    "mistral": ("MistralForCausalLM", {**_LLAMA, "sliding_window": 64}, "causal"),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "d_model": WIDTH,
            "d_kv": WIDTH // HEADS,
            "d_ff": 4 * WIDTH,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
        "sequences",
    ),
    "bart": ("BartForConditionalGeneration", _BART, "sequences"),
    "marian": ("MarianMTModel", {**_BART, "decoder_vocab_size": VOCAB}, "sequences"),
}


def make_inputs(task: str) -> dict[str, Any]:
    """The batch as `transformers` takes it, int64 arrays [B, T]; -100 where there is no loss."""
    import numpy as np

    generator = np.random.default_rng(0)
    ids = generator.integers(5, VOCAB, (ROWS, LENGTH))
    if task == "sequences":
        source, target = ids[:, : LENGTH // 2], ids[:, LENGTH // 2 :]
        shifted = np.concatenate((np.full((ROWS, 1), 2), target[:, :-1]), axis=1)
        return {"input_ids": source, "decoder_input_ids": shifted, "labels": target}
    if task == "causal":
        return {"input_ids": ids, "labels": ids}
    chosen = generator.random(ids.shape) < MASKED_SHARE
    return {"input_ids": np.where(chosen, 4, ids), "labels": np.where(chosen, ids, -100)}


def write_work(family: str, folder: Path) -> None:
    """A random model of `transformers` and its batch, for all sides to read."""
    import numpy as np
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    name, options, task = FAMILIES[family]
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model_class(model_class.config_class(vocab_size=VOCAB, **options)).save_pretrained(folder)
    np.savez(folder / "batch.npz", **make_inputs(task))


def load_trivium(family: str, folder: Path, device: Any) -> Callable[[], Any]:
    """What computes our mean loss, weights read from their files."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from trivium.data import NO_LOSS, Batch
    from trivium.interop import from_hugging_face
    from trivium.objectives.base import to_device, token_loss
    from trivium.train.hardware import keep_freed_memory

    keep_freed_memory()
    options = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = from_hugging_face(options, load_file(folder / "model.safetensors"))
    model = model.to(device).train()
    arrays = dict(np.load(folder / "batch.npz"))
    if FAMILIES[family][2] == "causal":
        after = arrays["labels"][:, 1:]
        arrays["labels"] = np.pad(after, ((0, 0), (0, 1)), constant_values=NO_LOSS)
    batch = to_device(Batch(**arrays), torch.device(device))

    def loss() -> Any:
        found = token_loss(model, batch)
        return found.sum / found.count

    loss.model = model  # type: ignore[attr-defined]
    return loss


def load_transformers(family: str, folder: Path, device: Any, attention: str) -> Callable[[], Any]:
    """What computes their loss. Raises ValueError where the family has no such attention."""
    import numpy as np
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model_class = getattr(transformers, FAMILIES[family][0])
    model = model_class.from_pretrained(folder, attn_implementation=attention)
    model = model.float().to(device).train()
    arrays = np.load(folder / "batch.npz")
    inputs = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def loss() -> Any:
        return model(**inputs).loss

    loss.model = model  # type: ignore[attr-defined]
    return loss


def serve(side: str, family: str, folder: Path) -> None:
    """Load, then answer every line on standard input with one pass as JSON; last, the memory."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if side == "trivium":
            loss = load_trivium(family, folder, device)
        else:
            loss = load_transformers(family, folder, device, side)
    except ValueError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    start = peak_memory(device)
    for _ in sys.stdin:
        loss.model.zero_grad(set_to_none=True)  # type: ignore[attr-defined]
        began = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            total = loss()
        total.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        memory = peak_memory(device) - start
        print(json.dumps({"seconds": seconds, "loss": float(total), "memory": memory}), flush=True)


def peak_memory(device: str) -> int:
    """The most bytes this process has held so far: of the GPU where it works on one."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Side:
    """One process that holds one side's model and makes a pass whenever it is asked."""

    def __init__(self, name: str, family: str, folder: Path) -> None:
        self.name, self.seconds, self.last = name, [], {}
        command = [sys.executable, str(Path(__file__)), "--serve", name]
        command += ["--families", family, "--folder", str(folder)]
        self.command = " ".join(command)
        self.log = (folder / f"{name}.log").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def starts(self) -> bool:
        """Wait for the model; False where `transformers` has no such attention."""
        return "ready" in self.answer()

    def step(self, *, timed: bool) -> None:
        """One forward and backward pass."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.last = self.answer()
        if timed:
            self.seconds.append(self.last["seconds"])

    def answer(self) -> dict[str, Any]:
        """The next line of the process. Raises SystemExit with its words where it has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise SystemExit(f"{self.command}:\n{self.log.read()[-3000:]}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def measure(family: str, repetitions: int, warm: int) -> list[Side]:
    """All sides that there are, their repetitions in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_work(family, folder)
        sides = [Side(side, family, folder) for side in SIDES]
        try:
            running = [side for side in sides if side.starts()]
            for number in range(warm + repetitions):
                for side in running:
                    side.step(timed=number >= warm)
        finally:
            for side in sides:
                side.close()
    return running


def report(family: str, sides: list[Side]) -> str:
    """The row of a family."""
    ours, *theirs = sides
    other = min(theirs, key=lambda side: statistics.median(side.seconds))
    ratios = [b / a for a, b in zip(ours.seconds, other.seconds, strict=True)]
    mine, yours = (statistics.median(side.seconds) * 1000 for side in (ours, other))
    memory, their_memory = (side.last["memory"] / 2**20 for side in (ours, other))
    return (
        f"{family:10} {mine:8.0f} {yours:8.0f} {other.name:>9} {statistics.median(ratios):6.2f} "
        f"({min(ratios):4.2f} to {max(ratios):4.2f}) {memory:8.0f} {their_memory:8.0f} "
        f"{their_memory / memory:6.2f} {ours.last['loss'] - other.last['loss']:+10.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--repetitions", type=int, default=7, help="timed passes of each side")
    parser.add_argument("--warm", type=int, default=2, help="passes before the clock starts")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.families[0], options.folder)
        return
    print(
        f"{'':10} {'milliseconds':^26} {'ratio':^23} {'peak memory, MiB':^17} {'':6} loss, ours\n"
        f"{'family':10} {'trivium':>8} {'theirs':>8} {'attention':>9} {'':23} "
        f"{'trivium':>8} {'theirs':>8} {'ratio':>6} - theirs",
        flush=True,
    )
    for family in options.families:
        print(report(family, measure(family, options.repetitions, options.warm)), flush=True)


if __name__ == "__main__":
    main()
