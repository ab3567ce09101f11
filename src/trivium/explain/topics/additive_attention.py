"""Explanation of additive attention (Bahdanau et al. 2015): two steps of a decoder, with numbers.

Shape letters: S source positions, T target positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.errors import TriviumError
from trivium.explain.page import Formula, Grid, Heading, Page, Table, get_text, render
from trivium.models.attention_rnn import AttentionDecoder, AttentionRNNSpec, AttentionSource

_H = [[1.0, 0.5], [0.5, 0.0], [0.0, 1.0], [-1.0, 0.5]]  # states of a forward and a backward GRU
_TOKENS = [0.0, -2.0, -1.0, 1.0]  # embeddings of the target tokens that the decoder reads
_WEIGHTS = {
    "query.weight": [[2.0], [-2.0]],
    "key.weight": [[1.0, 0.0], [0.5, 1.0]],
    "score": [2.0, -1.0],
    "start.weight": [[1.0]],
    # The rows are W_z, W_r and W; C_z, C_r and C; U_z and U_r; U.
    "inputs.weight": [[0.5], [0.0], [1.0]],
    "attended.weight": [[0.0, 0.0], [0.0, 0.0], [1.0, -1.0]],
    "gates.weight": [[0.5], [0.5]],
    "candidate.weight": [[1.0]],
}


def explain(steps: int = 3) -> Page:
    """Compute the additive attention of a recurrent decoder over four encoder states.

    Args:
        steps: Number of target tokens to decode, 1 to 4.
    """
    if not 1 <= steps <= len(_TOKENS):
        raise TriviumError(f"steps is {steps}: give 1 to {len(_TOKENS)}.")
    decoder = _build_decoder()
    values = torch.tensor([_H], dtype=torch.float64)
    with torch.no_grad():
        source = AttentionSource(decoder.key(values), values, torch.ones(1, len(_H)).bool())
        first = decoder.initial_state(source)
        embeds = torch.tensor(_TOKENS[:steps], dtype=torch.float64)[None, :, None]
        states, contexts, weights = (part[0] for part in decoder(embeds, source, first, None))
        before = torch.cat((first, states[:-1]))
        tables = [
            _make_step_table(decoder, source, step, before[step]) for step in range(min(steps, 2))
        ]
    columns = [f"h_{j}" for j in range(1, len(_H) + 1)]
    rows = [f"{i}" for i in range(1, steps + 1)]
    return Page(
        get_text("additive_attention.additive_attention"),
        [
            Formula(
                "e_ij    = v . tanh(W s_(i-1) + U h_j)\n"
                "alpha_i = softmax(e_i1, ..., e_iS)\n"
                "c_i     = sum_j alpha_ij h_j\n"
                "s_i     = GRU(s_(i-1), y_(i-1), c_i)    s_0 = tanh(W_s h_1), backward half of h_1"
            ),
            Formula(
                "\n".join(
                    f"{name} = {_WEIGHTS[key]}"
                    for name, key in (("W", "query.weight"), ("U", "key.weight"), ("v", "score"))
                )
            ),
            *(
                part
                for i, table in enumerate(tables)
                for part in (
                    Heading(get_text("additive_attention.step", i=i + 1)),
                    Formula(f"s_{i} = {render(before[i].tolist(), 'en')}"),
                    table,
                    Formula(
                        f"c_{i + 1} = {render(contexts[i].tolist(), 'en')}    "
                        f"s_{i + 1} = {render(states[i].tolist(), 'en')}"
                    ),
                )
            ),
            Heading(get_text("additive_attention.alignment")),
            Grid(weights.tolist(), [f"i = {row}" for row in rows], columns, "alpha_ij"),
            get_text("additive_attention.alignment_note"),
        ],
        {
            "states": states.tolist(),
            "contexts": contexts.tolist(),
            "alpha": weights.tolist(),
            "start": first[0].tolist(),
        },
    )


def _build_decoder() -> AttentionDecoder:
    """Build a decoder with one cell and small weights, in float64."""
    spec = AttentionRNNSpec(vocab_size=2, d_model=1, d_hidden=1, d_attention=2, d_readout=1)
    decoder = AttentionDecoder(spec).double()
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            weight.copy_(torch.tensor(_WEIGHTS[name])) if name in _WEIGHTS else weight.zero_()
    return decoder


def _make_step_table(
    decoder: AttentionDecoder, source: AttentionSource, step: int, state: Tensor
) -> Table:
    """Return the table of one step: scores and weights of all encoder states.

    Args:
        decoder: the decoder.
        source: the encoder states.
        step: the index of the target token, counted from 0.
        state: the decoder's state before the step, [1].
    """
    query, keys = decoder.query(state), source.keys[0]
    features = torch.tanh(query + keys)
    scores, alpha = features @ decoder.score, decoder.attn_weights(state[None], source)[0]
    i = step + 1
    return Table(
        ["j", "h_j", "U h_j", f"W s_{step} + U h_j", "tanh", f"e_{i}j", f"alpha_{i}j"],
        [
            [f"{j + 1}", *(part[j].tolist() for part in parts)]
            for j in range(len(_H))
            for parts in [(source.values[0], keys, query + keys, features, scores, alpha)]
        ],
    )
