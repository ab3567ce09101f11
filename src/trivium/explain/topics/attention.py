"""Attention of four vectors step by step, and the attention weights of a trained model.

Shape letters: N heads, T queries, H head_dim.
"""

from __future__ import annotations

import torch

from trivium.errors import TriviumError
from trivium.explain.attended_text import attended_text
from trivium.explain.page import Formula, Grid, Heading, Page, Part, Table, bilingual, say
from trivium.model_loading import load
from trivium.nn.attend import attention_probabilities
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import Attention, AttentionModule
from trivium.nn.sequence_info import SequenceInfo

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
    "encoder": bilingual("attention.encoder"),
    "decoder": bilingual("attention.decoder"),
    "cross": bilingual("attention.cross_attention"),
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
    mixer = AttentionModule(Attention(num_heads=2, head_dim=2, bias=False), 4).double()
    x = torch.tensor([_X], dtype=torch.float64)
    with torch.no_grad():
        for name, matrix in _MATRICES.items():
            getattr(mixer, name).weight.copy_(torch.tensor(matrix).T)  # y = x W
        query, (key, value) = (
            mixer.split_and_norm(mixer.query_norm, mixer.query(x)),
            mixer.project_kv(x),
        )
        context = SequenceInfo.of_length(4)
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
        bilingual("attention.self_attention_four"),
        [
            Formula(
                "q_i = x_i W_Q    k_j = x_j W_K    v_j = x_j W_V\n"
                "e_j = q_3 . k_j\n"
                "alpha_j = exp(e_j) / sum_i exp(e_i)\n"
                "Attention(x_3) = sum_j alpha_j v_j"
            ),
            Grid(_X, names, caption=bilingual("attention.vectors_x")),
            *(
                Grid(_MATRICES[name], caption=f"W_{name[0].upper()}")
                for name in ("query", "key", "value")
            ),
            Heading(bilingual("attention.x_3_attends_head_1")),
            Table(
                ["j", "q_j", "k_j", "v_j", "e_j", "alpha_j", "e_j / sqrt(d_k)", "alpha_j "], steps
            ),
            Formula(
                f"e_j = q_3 . k_j:              {say((alpha @ v).tolist(), 'en')}\n"
                f"e_j = q_3 . k_j / sqrt(d_k):  {say((usual @ v).tolist(), 'en')}"
            ),
            bilingual("attention.scale_note"),
            Heading(bilingual("attention.two_heads")),
            *(
                Grid(
                    scaled[n].tolist(),
                    names,
                    names,
                    bilingual("attention.alpha_head", number=n + 1),
                )
                for n in range(2)
            ),
            Table(
                ["i", *(bilingual("attention.head", n=n) for n in (1, 2)), "Concat(head) W_O"],
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
    data = {}
    for kind, picture in pictures.items():
        layers, heads, *_ = picture.weights.shape
        shown = _chosen("layer", layers if layer is None else layer, layers)
        some = range(1, heads + 1) if head is None else [_chosen("head", head, heads)]
        place = bilingual("attention.layer", kind=_KINDS[kind], shown=shown, layers=layers)
        grids.append(Heading(place))
        data[kind] = {"queries": picture.queries, "keys": picture.keys, "layer": shown}
        for number in some:
            weights = picture.weights[shown - 1, number - 1].tolist()
            data[kind][f"head {number}"] = weights
            caption = bilingual("attention.head_number", number=number)
            grids.append(Grid(weights, picture.queries, picture.keys, caption))
    return Page(
        bilingual("attention.attention_weights", model=model),
        [bilingual("attention.weights_note"), *grids],
        data,
    )


def _chosen(what: str, number: int, most: int) -> int:
    if not 1 <= number <= most:
        raise TriviumError(f"the model has no {what} {number}: choose 1 to {most}.")
    return number
