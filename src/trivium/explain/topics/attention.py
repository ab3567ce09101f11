"""Explanation of attention: four vectors step by step, or the weights of a trained model.

Shape letters: N heads, T queries, H head_dim.
"""

from __future__ import annotations

import torch

from trivium.errors import TriviumError
from trivium.explain.attended_text import compute_attention_maps
from trivium.explain.page import Formula, Grid, Heading, Page, Part, Table, get_text, render
from trivium.model_loading import load
from trivium.nn.attend import attention_probabilities
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import Attention, AttentionModule
from trivium.nn.sequence_info import SequenceInfo

_X = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]
# Each of the two heads uses two columns.
_MATRICES = {
    "query": [[1, 1, 0, 0], [1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]],
    "key": [[1, 0, 1, 1], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 0, 1]],
    "value": [[1, 0, 2, 0], [0, 2, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]],
    "output": [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]],
}
_QUERY = 2  # the index of the query vector, x_3
_KINDS = {
    "encoder": get_text("attention.encoder"),
    "decoder": get_text("attention.decoder"),
    "cross": get_text("attention.cross_attention"),
}


def explain(
    text: str | None = None,
    *,
    model: str | None = None,
    target: str = "",
    layer: int | None = None,
    head: int | None = None,
) -> Page:
    """Compute the self-attention of four vectors or, given a model, show its attention weights.

    Args:
        text: The text that the model reads; for an encoder-decoder, the source.
        model: A run or a model folder.
        target: The target text of an encoder-decoder. Default: the text that it generates.
        layer: The layer to show, counted from 1. Default: the last.
        head: The head to show, counted from 1. Default: all.
    """
    if model is not None:
        return _build_model_page(model, text or "The cat sat on the mat.", target, layer, head)
    if text is not None:
        raise TriviumError("attention weights for a text need a model: give --model RUN, too.")
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
    e, heads = k @ q[_QUERY], scaled @ value[0]
    alpha, usual = plain[0, _QUERY], scaled[0, _QUERY]
    names = [f"x_{number}" for number in range(1, 5)]
    steps = [
        [j + 1, *(values[j].tolist() for values in (q, k, v, e, alpha, e * mixer.scale, usual))]
        for j in range(4)
    ]
    return Page(
        get_text("attention.self_attention_four"),
        [
            Formula(
                "q_i = x_i W_Q    k_j = x_j W_K    v_j = x_j W_V\n"
                "e_j = q_3 . k_j\n"
                "alpha_j = exp(e_j) / sum_i exp(e_i)\n"
                "Attention(x_3) = sum_j alpha_j v_j"
            ),
            Grid(_X, names, caption=get_text("attention.vectors_x")),
            *(
                Grid(_MATRICES[name], caption=f"W_{name[0].upper()}")
                for name in ("query", "key", "value")
            ),
            Heading(get_text("attention.x_3_attends_head_1")),
            Table(
                ["j", "q_j", "k_j", "v_j", "e_j", "alpha_j", "e_j / sqrt(d_k)", "alpha_j "], steps
            ),
            Formula(
                f"e_j = q_3 . k_j:              {render((alpha @ v).tolist(), 'en')}\n"
                f"e_j = q_3 . k_j / sqrt(d_k):  {render((usual @ v).tolist(), 'en')}"
            ),
            get_text("attention.scale_note"),
            Heading(get_text("attention.two_heads")),
            *(
                Grid(
                    scaled[n].tolist(), names, names, get_text("attention.alpha_head", number=n + 1)
                )
                for n in range(2)
            ),
            Table(
                ["i", *(get_text("attention.head", n=n) for n in (1, 2)), "Concat(head) W_O"],
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


def _build_model_page(
    model: str, text: str, target: str, layer: int | None, head: int | None
) -> Page:
    """Build a page with the attention weights of one layer of a trained model.

    If `layer` is None, the last layer is used. If `head` is None, all heads are shown.
    """
    attention_maps = compute_attention_maps(load(model, device="cpu"), text, target)
    grids: list[Part] = []
    data = {}
    for kind, attention_map in attention_maps.items():
        layers, heads, *_ = attention_map.weights.shape
        shown = _check_index("layer", layers if layer is None else layer, layers)
        shown_heads = range(1, heads + 1) if head is None else [_check_index("head", head, heads)]
        place = get_text("attention.layer", kind=_KINDS[kind], shown=shown, layers=layers)
        grids.append(Heading(place))
        data[kind] = {"queries": attention_map.queries, "keys": attention_map.keys, "layer": shown}
        for number in shown_heads:
            weights = attention_map.weights[shown - 1, number - 1].tolist()
            data[kind][f"head {number}"] = weights
            caption = get_text("attention.head_number", number=number)
            grids.append(Grid(weights, attention_map.queries, attention_map.keys, caption))
    return Page(
        get_text("attention.attention_weights", model=model),
        [get_text("attention.weights_note"), *grids],
        data,
    )


def _check_index(name: str, index: int, count: int) -> int:
    """Return `index` if it is in 1 to `count`. Otherwise raise TriviumError.

    `index` is the number of a layer or head, counted from 1, and `name` is "layer" or "head".
    """
    if not 1 <= index <= count:
        raise TriviumError(f"the model has no {name} {index}: choose 1 to {count}.")
    return index
