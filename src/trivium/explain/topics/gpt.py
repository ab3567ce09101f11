"""Explanation of a whole GPT: one text from token ids to probabilities, with every number.

Shape letters: T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.errors import TriviumError
from trivium.explain.page import Formula, Grid, Heading, Label, Page, Part, Table, get_text
from trivium.models import build
from trivium.models.stack import Embedding
from trivium.models.transformer import Transformer, TransformerSpec
from trivium.nn.attend import attention_probabilities
from trivium.nn.blocks import Block
from trivium.nn.loss import cross_entropy
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import Attention, AttentionModule
from trivium.nn.positions.learned import Learned
from trivium.nn.sequence_info import SequenceInfo
from trivium.presets.preset import decoder

_WORDS: list[str] = ["the", "cat", "dog", "mouse", "ate", "drank", "cheese", "milk", "."]
_SENTENCES = [
    "the cat drank the milk .",
    "the dog drank the milk .",
    "the mouse ate the cheese .",
    "the cat ate the mouse .",
]
_WIDTH, _HEADS, _LAYERS = 4, 2, 2


def explain(text: str = "the mouse ate the", *, steps: int = 300, seed: int = 0) -> Page:
    """Follow one text through a whole GPT that was trained on four sentences, number by number.

    Args:
        text: Words of the small vocabulary: the, cat, dog, mouse, ate, drank, cheese, milk and ".".
        steps: Number of training steps on the four sentences; 0: an untrained model.
        seed: Random seed of the initial weights.
    """
    ids = _encode(text)
    if not 0 <= steps <= 2_000:
        raise TriviumError(f"steps is {steps}: give 0 to 2000.")
    model, losses = _train(steps, seed)
    trace = _trace(model, ids)
    words = [_WORDS[i] for i in ids]
    dims = [f"d{i}" for i in range(1, _WIDTH + 1)]

    def grid(name: str, caption: Label) -> Grid:
        """Return a grid of the vectors of all tokens."""
        return Grid(trace[name].tolist(), words, dims, caption)

    first: list[Part] = [
        Heading(get_text("gpt.block_1")),
        grid("normed", "LN(h)"),
        Table(
            [get_text("shared.token"), "q", "k", "v"],
            [
                [word, *(trace[name][t].tolist() for name in ("q", "k", "v"))]
                for t, word in enumerate(words)
            ],
            get_text("gpt.head_1"),
        ),
        Grid(trace["alpha"].tolist(), words, words, get_text("gpt.attention_weights")),
        grid("attended", get_text("gpt.attended")),
        grid("middle", "h + Attention(LN(h))"),
        grid("fed", get_text("gpt.fed")),
        grid("block 1", get_text("gpt.block_output", number=1)),
    ]
    probabilities = trace["logits"].softmax(-1)
    best = probabilities[-1].topk(4)
    return Page(
        get_text("gpt.whole_gpt"),
        [
            Formula(
                "h   = E[token] + P[position]\n"
                "h   = h + Attention(LN(h));    h = h + FFN(LN(h))    (each block)\n"
                "z   = LN(h) E^T,    p = softmax(z)"
            ),
            get_text(
                "gpt.model_note",
                parameters=sum(weight.numel() for weight in model.parameters()),
                steps=steps,
                start=losses[0],
                end=losses[-1],
            ),
            Heading(get_text("gpt.input")),
            Table(
                [get_text("shared.token"), "id", "E", "P", "h = E + P"],
                [
                    [
                        word,
                        f"{ids[t]}",
                        *(trace[name][t].tolist() for name in ("tokens", "positions", "input")),
                    ]
                    for t, word in enumerate(words)
                ],
            ),
            *first,
            Heading(get_text("gpt.later_blocks")),
            *(
                grid(f"block {number}", get_text("gpt.block_output", number=number))
                for number in range(2, _LAYERS + 1)
            ),
            grid("final", get_text("gpt.final_norm")),
            Heading(get_text("gpt.output")),
            Grid(trace["logits"].tolist(), words, _WORDS, get_text("gpt.logits")),
            Grid(probabilities.tolist(), words, _WORDS, get_text("gpt.probabilities")),
            Table(
                [get_text("gpt.next_token"), "z", "p"],
                [
                    [_WORDS[i], trace["logits"][-1, i].item(), p]
                    for p, i in zip(best.values.tolist(), best.indices.tolist())
                ],
                get_text("gpt.after", text=" ".join(words)),
            ),
            Table(
                [get_text("gpt.input_token"), get_text("gpt.label"), "p", "-ln p"],
                [
                    [words[t], words[t + 1], p, loss]
                    for t, (p, loss) in enumerate(_score(trace["logits"], ids))
                ],
                get_text("gpt.loss"),
            ),
            get_text("gpt.note"),
        ],
        {
            "ids": ids,
            "losses": losses,
            "probabilities": probabilities.tolist(),
            **{name: value.tolist() for name, value in trace.items()},
        },
    )


def _encode(text: str) -> list[int]:
    """Return the ids of a text of words.

    Raises:
        TriviumError: a word is not in the vocabulary, or there are too few or too many words.
    """
    words, longest = text.lower().split(), max(len(one.split()) for one in _SENTENCES)
    if not 2 <= len(words) <= longest:
        raise TriviumError(f"the text has {len(words)} words: give 2 to {longest}.")
    for word in words:
        if word not in _WORDS:
            raise TriviumError(
                f'"{word}" is not in the vocabulary of the small model: use {", ".join(_WORDS)}.'
            )
    return [_WORDS.index(word) for word in words]


def _make_spec() -> TransformerSpec:
    """Return the spec of the small GPT-2: two blocks of width 4 with two heads."""
    return decoder(
        _LAYERS,
        _WIDTH,
        vocab_size=len(_WORDS),
        embedding=Embedding(positions=Learned(max_length=6)),
        mixer=Attention(num_heads=_HEADS, head_dim=_WIDTH // _HEADS),
    )


def _train(steps: int, seed: int) -> tuple[Transformer, list[float]]:
    """Train a small GPT on all sentences at once, in float64 with Adam.

    Returns the model, and the losses before the first step, after each step and at the end.
    """
    model = build(_make_spec(), seed=seed).double()
    assert isinstance(model, Transformer)
    for weight in model.parameters():  # from N(0, 0.02^2), too small for so few dimensions
        if weight.ndim > 1:
            weight.data *= 20
    rows = torch.tensor([_encode(sentence) for sentence in _SENTENCES])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for step in range(steps + 1):
        logits = model.logits(model(rows[:, :-1]))
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).sum / rows[:, 1:].numel()
        losses.append(loss.item())
        if step < steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, losses


def _trace(model: Transformer, ids: list[int]) -> dict[str, Tensor]:
    """Run the model on one text, and return the vectors of every step.

    Returns:
        A dict of name -> values [T, D]; "q", "k" and "v" of the first head [T, D / heads], "alpha"
        of the first head [T, T], and "logits" [T, V].
    """
    stack = model.decoder
    assert stack is not None
    info = SequenceInfo.of_length(len(ids), causal=True)
    block, positions = stack.layers[0], stack.embedding.positions
    assert isinstance(block, Block)
    mixer, network = block.mixer, block.feed_forward
    assert isinstance(mixer, AttentionModule)
    assert network is not None
    assert positions is not None
    hidden: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _module, _inputs, output: hidden.append(output[0]))
        for layer in stack.layers
    ]
    with torch.no_grad():
        final = model(torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        trace = {"tokens": model.tokens.weight[ids], "positions": positions(info.positions[0])}
        x = (trace["tokens"] + trace["positions"])[None]
        normed = block.mixer_residual.normalize(x)
        query = mixer.split_and_norm(mixer.query_norm, mixer.query(normed))
        key, value = mixer.project_kv(normed)
        alpha = attention_probabilities(query, key, Mask(info, info), mixer.scale)
        attended = mixer(normed, info)
        middle = block.mixer_residual(x, attended)
        fed = network(block.feed_forward_residual.normalize(middle), info)[0]
        trace |= {"q": query[0, 0], "k": key[0, 0], "v": value[0, 0], "alpha": alpha[0, 0]}
        steps = {"input": x, "normed": normed, "attended": attended, "middle": middle, "fed": fed}
        steps |= {f"block {number}": each for number, each in enumerate(hidden, start=1)}
        steps |= {"final": final, "logits": model.logits(final)}
    return trace | {name: step[0] for name, step in steps.items()}


def _score(logits: Tensor, ids: list[int]) -> list[tuple[float, float]]:
    """Return the probability and the loss of every next token of the text."""
    log_probabilities = logits.log_softmax(-1)
    return [
        (log_probabilities[t, ids[t + 1]].exp().item(), -log_probabilities[t, ids[t + 1]].item())
        for t in range(len(ids) - 1)
    ]
