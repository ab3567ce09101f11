"""Explanation of model size: which parts of a preset account for parameters, FLOPs and memory."""

from __future__ import annotations

import math
import re
from collections import Counter

import torch

from trivium.explain.page import Bilingual, Heading, Page, Table, get_text
from trivium.models import build, flops_per_token
from trivium.presets import catalogue
from trivium.train.memory import training_memory

_PARTS = {  # pattern of weight names -> part of the model; the first match counts
    "norm|residual": get_text("params.norms"),
    "mixer|cross_attention": get_text("params.attention_mixer"),
    "feed_forward": get_text("params.feed_forward"),
    "heads": get_text("params.head"),
    "^rnn|^backward_rnn|^hidden": get_text("params.recurrent_or_hidden_layer"),
    "": get_text("params.embeddings"),
}
_MEMORY = {
    "weights": (get_text("params.weights_float32"), "4 P"),
    "gradients": (get_text("params.gradients_float32"), "4 P"),
    "optimizer": (get_text("params.adam_two_moments"), "8 P"),
    "copies": (get_text("params.weights_bfloat16"), "2 P"),
    "activations": (get_text("params.activations_one_text"), ""),
    "logits": (get_text("params.logits_their_gradient"), ""),
    "training": (get_text("params.training_together"), ""),
    "generating": (get_text("params.generate_weights"), "2 P"),
    "cache": (get_text("params.generate_cache"), "2 x 2 L K H T"),
}


def explain(preset: str = "llama-7b", *, length: int | None = None) -> Page:
    """Break down the parameters, FLOPs, training memory and KV cache of a preset.

    Args:
        preset: The name of a preset (see `trivium presets`).
        length: Sequence length in tokens. Default: as published, at most 2048.
    """
    published = catalogue[preset]
    spec, length = published.spec, length or min(published.context or 2048, 2048)
    model = build(spec, device="meta")
    shapes, parts = Counter[tuple[str, tuple[int, ...]]](), Counter[Bilingual]()
    for name, weight in model.named_parameters():
        part = next(part for pattern, part in _PARTS.items() if re.search(pattern, name))
        parts[part] += weight.numel()
        if weight.ndim > 1:
            matrix = re.sub(r"(\.layers)?\.\d+(?=\.)|\.weight$", "", name)
            shapes[matrix, tuple(weight.shape)] += 1
    total = sum(parts.values())
    counts = {key: times * math.prod(key[1]) for key, times in shapes.items()}
    products = flops_per_token(spec, 0)  # type: ignore[arg-type]
    flops = flops_per_token(spec, length)  # type: ignore[arg-type]
    memory = training_memory(spec, rows=1, length=length, precision=torch.bfloat16)
    memory |= {"training": sum(memory.values()), "generating": 2 * total}
    if spec.family != "encoder-only":
        states = model.new_cache(1, length).states
        memory["cache"] = 2 * sum(tensor.numel() for state in states for tensor in state.tensors)
    work = [
        (get_text("params.matrix_products"), "6", products),
        (get_text("params.scores_attention"), "12 L N H", flops - products),
        (get_text("params.together"), "", flops),
    ]
    if published.tokens:
        words = get_text("params.tokens", tokens=published.tokens)
        work.append((words, "", flops * published.tokens))
    number = get_text("shared.parameters")
    name, formula = get_text("params.part"), get_text("shared.formula")
    share = get_text("params.share")
    return Page(
        get_text("params.parameters_p", preset=preset, total=total),
        [
            Table(
                [name, number, share],
                [[part, f"{n:,}", f"{n / total:.1%}"] for part, n in parts.most_common()],
            ),
            Table(
                [get_text("params.matrix"), formula, number],
                [
                    [matrix, _format_num_elements(shape, shapes[matrix, shape]), f"{n:,}"]
                    for (matrix, shape), n in sorted(counts.items(), key=lambda item: -item[1])
                ],
                get_text("params.matrices_rows_x_columns_x"),
            ),
            Heading(get_text("params.flops_train_on_token")),
            Table([name, formula, "FLOPs"], [[*row, f"{n:.3e}"] for *row, n in work]),
            Heading(get_text("params.memory_tokens", length=length)),
            Table(
                [name, formula, "GiB"],
                [[*_MEMORY[key], f"{size / 2**30:,.2f}"] for key, size in memory.items()],
            ),
            get_text("params.flops_note"),
        ],
        {
            "parameters": total,
            "parts": {part.en: n for part, n in parts.items()},
            "flops_per_token": flops,
            "memory": memory,
        },
    )


def _format_num_elements(shape: tuple[int, ...], num_matrices: int) -> str:
    """Format the number of elements of equally large matrices, such as "4096 x 4096 x 32".

    The last factor is the number of matrices.
    """
    return " x ".join(f"{size}" for size in (*shape, num_matrices) if size > 1)
