"""Attention of four vectors step by step, and the attention weights of a trained model.

Shape letters: N heads, T queries, H head_dim.
"""

from __future__ import annotations

import torch

from trivium import spec
from trivium.errors import TriviumError
from trivium.explain.attended_text import attended_text
from trivium.explain.page import Bilingual, Formula, Grid, Heading, Page, Part, Table, say
from trivium.model_loading import load
from trivium.nn.attend import attention_probabilities
from trivium.nn.context import Context
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import AttentionMixer

SUMMARY = Bilingual(
    "attention step by step, or of a trained model", "逐步计算自注意力，或查看训练好的模型的注意力"
)

_X = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]
# Two heads, a pair of columns each.
_MATRICES = {
    "query": [[1, 1, 0, 0], [1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]],
    "key": [[1, 0, 1, 1], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 0, 1]],
    "value": [[1, 0, 2, 0], [0, 2, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]],
    "output": [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]],
}
_ASKING = 2  # the third vector
_KINDS = {
    "encoder": Bilingual("encoder", "编码器"),
    "decoder": Bilingual("decoder", "解码器"),
    "cross": Bilingual("cross-attention", "交叉注意力"),
}


def explain(
    text: str | None = None,
    *,
    model: str | None = None,
    target: str = "",
    layer: int | None = None,
    head: int | None = None,
) -> Page:
    """Compute attention of four vectors, or show that of a model to a text.

    Args:
        text: What a model reads; of an encoder-decoder the source.
        model: A run or a model folder.
        target: What an encoder-decoder answers; empty: what it generates.
        layer: The layer that is shown, from 1 on. Default: the last.
        head: The head that is shown, from 1 on. Default: all.
    """
    if model is not None:
        return _of_model(model, text or "The cat sat on the mat.", target, layer, head)
    if text is not None:
        raise TriviumError("the attention to a text is that of a model: give --model RUN, too.")
    mixer = AttentionMixer(spec.Attention(num_heads=2, head_dim=2, bias=False), 4).double()
    x = torch.tensor([_X], dtype=torch.float64)
    with torch.no_grad():
        for name, matrix in _MATRICES.items():
            getattr(mixer, name).weight.copy_(torch.tensor(matrix).T)  # y = x W
        query, (key, value) = mixer.normed(mixer.query_norm, mixer.query(x)), mixer.project(x)
        context = Context.of_length(4)
        mask = Mask(context, context)
        scaled = attention_probabilities(query, key, mask, mixer.scale)[0]
        plain = attention_probabilities(query, key, mask, 1.0)[0]
        output = mixer(x, context)[0]
    q, k, v = query[0, 0], key[0, 0], value[0, 0]  # of the first head, [T, H]
    e, heads = k @ q[_ASKING], scaled @ value[0]
    alpha, usual = plain[0, _ASKING], scaled[0, _ASKING]
    names = [f"x_{number}" for number in range(1, 5)]
    steps = [
        [j + 1, *(each[j].tolist() for each in (q, k, v, e, alpha, e * mixer.scale, usual))]
        for j in range(4)
    ]
    return Page(
        Bilingual("Self-attention of four vectors", "四个向量的自注意力"),
        [
            Formula(
                "q_i = x_i W_Q    k_j = x_j W_K    v_j = x_j W_V\n"
                "e_j = q_3 . k_j\n"
                "alpha_j = exp(e_j) / sum_i exp(e_i)\n"
                "Attention(x_3) = sum_j alpha_j v_j"
            ),
            Grid(_X, names, caption=Bilingual("vectors X", "输入向量 X")),
            *(
                Grid(_MATRICES[name], caption=f"W_{name[0].upper()}")
                for name in ("query", "key", "value")
            ),
            Heading(Bilingual("What x_3 attends to, head 1", "计算 x_3 的表示（第 1 个头）")),
            Table(
                ["j", "q_j", "k_j", "v_j", "e_j", "alpha_j", "e_j / sqrt(d_k)", "alpha_j "], steps
            ),
            Formula(
                f"e_j = q_3 . k_j:              {say((alpha @ v).tolist(), 'en')}\n"
                f"e_j = q_3 . k_j / sqrt(d_k):  {say((usual @ v).tolist(), 'en')}"
            ),
            Bilingual(
                "The example of a textbook leaves out 1 / sqrt(d_k), which its formula has, as "
                "nearly every model (T5 starts with smaller queries): without it the scores of "
                "wide heads are large, and one alpha is nearly 1.",
                "教材的算例省去了 1 / sqrt(d_k)，但教材的公式和几乎所有模型都有这一项"
                "（T5 改为缩小查询矩阵的初始值）：d_k 较大时，不缩放的分数过大，"
                "softmax 会把几乎全部权重给一个位置。",
            ),
            Heading(Bilingual("Two heads", "两个注意力头")),
            *(
                Grid(
                    scaled[n].tolist(),
                    names,
                    names,
                    Bilingual(f"alpha of head {n + 1}", f"第 {n + 1} 个头的 alpha"),
                )
                for n in range(2)
            ),
            Table(
                ["i", *(Bilingual(f"head {n}", f"头 {n}") for n in (1, 2)), "Concat(head) W_O"],
                [[i + 1, *heads[:, i].tolist(), output[i].tolist()] for i in range(4)],
            ),
        ],
        {
            "q": query[0].tolist(),
            "k": key[0].tolist(),
            "v": value[0].tolist(),
            "e": e.tolist(),
            "alpha": alpha.tolist(),
            "attention": (alpha @ v).tolist(),
            "alpha_scaled": scaled.tolist(),
            "heads": heads.tolist(),
            "output": output.tolist(),
        },
    )


def _of_model(model: str, text: str, target: str, layer: int | None, head: int | None) -> Page:
    """The weights of a layer of a trained model."""
    pictures = attended_text(load(model, device="cpu"), text, target)
    grids: list[Part] = []
    facts = {}
    for kind, picture in pictures.items():
        layers, heads, *_ = picture.weights.shape
        shown = _chosen("layer", layers if layer is None else layer, layers)
        some = range(1, heads + 1) if head is None else [_chosen("head", head, heads)]
        en, zh = _KINDS[kind]
        place = Bilingual(
            f"{en}, layer {shown} of {layers}", f"{zh}，第 {shown} 层（共 {layers} 层）"
        )
        grids.append(Heading(place))
        facts[kind] = {"queries": picture.queries, "keys": picture.keys, "layer": shown}
        for number in some:
            weights = picture.weights[shown - 1, number - 1].tolist()
            facts[kind][f"head {number}"] = weights
            caption = Bilingual(f"head {number}", f"第 {number} 个头")
            grids.append(Grid(weights, picture.queries, picture.keys, caption))
    return Page(
        Bilingual(f"Attention weights of {model}", f"{model} 的注意力权重"),
        [
            Bilingual(
                "A row is a token that attends; its numbers, to the tokens named above, sum to 1.",
                "每一行是一个查询词元，各列是被关注的词元；一行的权重之和为 1。",
            ),
            *grids,
        ],
        facts,
    )


def _chosen(what: str, number: int, most: int) -> int:
    if not 1 <= number <= most:
        raise TriviumError(f"the model has no {what} {number}: choose 1 to {most}.")
    return number
