"""Where the parameters, the computation and the memory of a preset go."""

from __future__ import annotations

import math
import re
from collections import Counter

import torch

from trivium.explain.page import Bilingual, Heading, Page, Table
from trivium.models import build, flops_per_token
from trivium.presets import catalogue
from trivium.train.memory import training_memory

SUMMARY = Bilingual(
    "where a model's parameters and memory go", "模型的参数量、计算量与显存花在哪里"
)

_PARTS = {  # what the name of a weight has, the first that fits -> the part
    "norm|residual": Bilingual("norms", "归一化"),
    "mixer|cross_attention": Bilingual("attention (mixer)", "注意力"),
    "feed_forward": Bilingual("feed-forward", "前馈层"),
    "heads": Bilingual("head", "输出层"),
    "^rnn|^backward_rnn|^hidden": Bilingual("recurrent or hidden layer", "循环层、隐藏层"),
    "": Bilingual("embeddings", "嵌入层"),
}
_MEMORY = {
    "weights": (Bilingual("weights, float32", "权重（float32）"), "4 P"),
    "gradients": (Bilingual("gradients, float32", "梯度（float32）"), "4 P"),
    "optimizer": (Bilingual("Adam's two moments", "Adam 的两个动量"), "8 P"),
    "copies": (Bilingual("weights, bfloat16", "权重的 bfloat16 副本"), "2 P"),
    "activations": (Bilingual("activations of one text", "一条文本的激活值"), ""),
    "logits": (Bilingual("logits and their gradient", "logits 及其梯度"), ""),
    "training": (Bilingual("training together", "训练合计"), ""),
    "generating": (Bilingual("to generate: weights, bfloat16", "生成时：权重（bfloat16）"), "2 P"),
    "cache": (Bilingual("to generate: cache of the text", "生成时：键值缓存"), "2 x 2 L K H T"),
}


def explain(preset: str = "llama-7b", *, length: int | None = None) -> Page:
    """Count where the parameters, FLOPs, training memory and cache of a preset go.

    Args:
        preset: One of `trivium presets`.
        length: Tokens of a text. Default: as published, 2048 at most.
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
        memory["cache"] = 2 * sum(one.numel() for state in states for one in state.tensors)
    work = [
        (Bilingual("matrix products", "矩阵乘法"), "6", products),
        (Bilingual("scores of attention", "注意力分数与加权和"), "12 L N H", flops - products),
        (Bilingual("together", "合计"), "", flops),
    ]
    if published.tokens:
        words = Bilingual(f"{published.tokens:.3g} tokens", f"{published.tokens:.3g} 个词元")
        work.append((words, "", flops * published.tokens))
    number = Bilingual("parameters", "参数量")
    name, formula = Bilingual("part", "部分"), Bilingual("formula", "公式")
    share = Bilingual("share", "占比")
    return Page(
        Bilingual(f"{preset}: {total:,} parameters P", f"{preset}：参数量 P = {total:,}"),
        [
            Table(
                [name, number, share],
                [[part, f"{n:,}", f"{n / total:.1%}"] for part, n in parts.most_common()],
            ),
            Table(
                [Bilingual("matrix", "矩阵"), formula, number],
                [
                    [matrix, _product(shape, shapes[matrix, shape]), f"{n:,}"]
                    for (matrix, shape), n in sorted(counts.items(), key=lambda item: -item[1])
                ],
                Bilingual("Matrices: rows x columns x how many", "各矩阵：行 x 列 x 个数"),
            ),
            Heading(Bilingual("FLOPs to train on a token", "训练一个词元的浮点运算次数")),
            Table([name, formula, "FLOPs"], [[*row, f"{n:.3e}"] for *row, n in work]),
            Heading(Bilingual(f"Memory, {length} tokens", f"显存（{length} 个词元的文本）")),
            Table(
                [name, formula, "GiB"],
                [[*_MEMORY[key], f"{size / 2**30:,.2f}"] for key, size in memory.items()],
            ),
            Bilingual(
                "A weight costs 6 FLOPs, 2 in the forward pass and 4 in the backward pass; a token "
                "that attention sees, 12 H in each of N heads and L layers. K: key-value heads, T: "
                "tokens; bfloat16 has 2 bytes.",
                "每个权重前向计 2 次、反向计 4 次浮点运算，共 6 次；注意力每看到一个词元，"
                "L 层中的 N 个头各计 12 H 次（每个头 H 维）。K 为键值头数，T 为词元数；"
                "bfloat16 每个数占 2 字节。",
            ),
        ],
        {
            "parameters": total,
            "parts": {part.en: n for part, n in parts.items()},
            "flops_per_token": flops,
            "memory": memory,
        },
    )


def _product(shape: tuple[int, ...], times: int) -> str:
    return " x ".join(f"{size}" for size in (*shape, times) if size > 1)
